"""The names of Airflow that the package uses, from wherever the installed version has them.

Features are detected; versions are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.sdk import BaseHook as BaseHook
from airflow.sdk import BaseOperator as BaseOperator
from airflow.sdk import BaseOperatorLink as BaseOperatorLink
from airflow.sdk import BaseSensorOperator as BaseSensorOperator
from airflow.sdk import PokeReturnValue as PokeReturnValue
from airflow.sdk import XComArg as XComArg

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, name_places

try:
    from airflow.sdk.exceptions import AirflowException as AirflowException
    from airflow.sdk.exceptions import AirflowFailException as AirflowFailException
    from airflow.sdk.exceptions import AirflowNotFoundException as AirflowNotFoundException
    from airflow.sdk.exceptions import AirflowSensorTimeout as AirflowSensorTimeout
    from airflow.sdk.exceptions import AirflowSkipException as AirflowSkipException
except ImportError:  # before Airflow 3.2
    from airflow.exceptions import (  # type: ignore[attr-defined]
        AirflowException as AirflowException,
    )
    from airflow.exceptions import AirflowFailException as AirflowFailException  # type: ignore[no-redef]
    from airflow.exceptions import (  # type: ignore[attr-defined]
        AirflowNotFoundException as AirflowNotFoundException,
    )
    from airflow.exceptions import AirflowSensorTimeout as AirflowSensorTimeout  # type: ignore[no-redef]
    from airflow.exceptions import AirflowSkipException as AirflowSkipException  # type: ignore[no-redef]

try:
    from airflow.sdk import conf as conf
except ImportError:  # before Airflow 3.2
    from airflow.configuration import conf as conf  # type: ignore[assignment]

#: The context of a task; a plain mapping in unit tests.
Context = Any


@contextmanager
def errors_for_airflow(
    places: Callable[[], Mapping[str, str | None]] = dict,
) -> Iterator[None]:
    """Fail a task for good if a retry cannot help; leave all other errors to Airflow's retries.

    Args:
        places: returns what an error's message must name, such as its group and window.

    Raises:
        AirflowFailException: for an error of this package that is not retriable; see `failure_of`.
    """
    try:
        yield
    except AirflowFailException:
        # It is an error of this package as well; see `failure_of`.
        raise
    except KafkaOrderedOpsError as error:
        name_places(error, **places())
        if error.retriable:
            raise
        # Keep the frames, but not the cause: a log would show the message twice.
        raise failure_of(error).with_traceback(error.__traceback__) from None


def failure_of(error: KafkaOrderedOpsError) -> AirflowFailException:
    """Return an error that Airflow does not retry, of the original error's class as well and with its fields.

    Callbacks receive it as ``context["exception"]``. Its text begins with the name of the original class.
    """
    kind = _failing(type(error))
    failed: AirflowFailException = kind.__new__(kind)
    vars(failed).update(vars(error))
    failed.args = (f"{type(error).__name__}: {error}",)
    return failed


def _failing(kind: type[KafkaOrderedOpsError]) -> type[AirflowFailException]:
    # The class has Airflow's name; the text begins with the original name.
    body = {"__module__": AirflowFailException.__module__, "__reduce__": _reduced}
    return type(AirflowFailException.__name__, (AirflowFailException, kind), body)


def _reduced(failed: KafkaOrderedOpsError) -> tuple[Any, ...]:
    """Pickle the failure as its original error."""
    _, kind = type(failed).__bases__
    return failure_of, (kind(failed.message, **failed.facts),)


def mask(secret: str) -> None:
    """Make Airflow mask a value in everything that the task logs."""
    from airflow.sdk.log import mask_secret

    mask_secret(secret)


def asset_store(trigger: Any) -> Any | None:
    """Return Airflow's state store for the assets of a trigger; None before Airflow 3.3, and in a task's trigger."""
    return getattr(trigger, "asset_state_store", None)


def ends_drivers() -> bool:
    """Return whether Airflow calls a trigger when its task is cleared or marked; since Airflow 3.3."""
    from airflow.triggers.base import BaseTrigger

    return hasattr(BaseTrigger, "on_kill")
