"""Staging, publishing and reading back a window's files. No pyspark.

::

    from kafka_ordered_ops.output import files

    duckdb.read_parquet(files("s3://bucket/lake/orders"))  # each published window as a whole, or not at all
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_ordered_ops.output.published import files as files
else:  # A type checker that saw this would let any name pass.

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


#: Where each public name lives: hosts import this room for less, and load less.
_HOMES = {"files": "published"}

__all__ = sorted(_HOMES)
