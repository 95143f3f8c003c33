"""Parameters that an operator does not have: named, with the one that was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from kafka_ordered_ops.hosting.arguments import check_names


def check_parameters(task: Any, given: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for what neither the task's class nor Airflow's own ones take.

    Args:
        task: an operator that is being made.
        given: what is left for Airflow's own classes.
    """
    known = {
        name
        for kind in type(task).__mro__
        if "__init__" in vars(kind)
        for name in inspect.signature(vars(kind)["__init__"]).parameters
    }
    # Airflow's own have an underscore.
    names = [name for name in given if not name.startswith("_")]
    check_names(getattr(task, "custom_operator_name", type(task).__name__), names, known)
