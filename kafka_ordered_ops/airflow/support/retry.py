"""Which failures are worth another attempt: a policy for Airflow 3.3 and later."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.delivery.arguments import with_known_names

#: Errors while another process works on the same group: over in seconds.
_BUSY: Final = ("GroupInUseError", "OpenClaimError", "WindowFencedError")

_HOME: Final = "kafka_ordered_ops.core.errors"

_FINAL_REASON: Final = "a retry cannot help"


@with_known_names
def window_retry_policy(busy_delay: timedelta = timedelta(seconds=30)) -> Any:
    """Return a ``retry_policy`` for tasks that use this package in their own functions.

    An error that is not retriable fails at once. If another process is busy with the group, the next attempt starts
    after `busy_delay`. For all other errors the task's settings count. Operators need no policy: they raise
    AirflowFailException.

    Raises:
        ConfigError: this Airflow has no retry policies.
    """
    try:
        from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
    except ImportError as error:
        raise ConfigError(
            "this Airflow has no retry policies: they came with Airflow 3.3. The operators of this package fail "
            "at once without one where a retry cannot help"
        ) from error
    whole, alone = _final()
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception=[f"{_HOME}.{name}" for name in _BUSY],
                action=RetryAction.RETRY,
                retry_delay=busy_delay,
                reason="another process is busy with the group",
            ),
            RetryRule(exception=[*whole], action=RetryAction.FAIL, reason=_FINAL_REASON),
            RetryRule(
                exception=[*alone],
                action=RetryAction.FAIL,
                reason=_FINAL_REASON,
                match_subclasses=False,
            ),
        ]
    )


def _final() -> tuple[list[str], list[str]]:
    """Return the errors that are final with all their subclasses, and the final ones with retriable subclasses."""
    from kafka_ordered_ops.core import errors

    whole: list[str] = []
    alone: list[str] = []
    for name, kind in sorted(vars(errors).items()):
        if not (isinstance(kind, type) and issubclass(kind, errors.KafkaOrderedOpsError)):
            continue
        if kind.retriable:
            continue
        mixed = any(child.retriable for child in _below(kind))
        (alone if mixed else whole).append(f"{_HOME}.{name}")
    return whole, alone


def _below(kind: type[Any]) -> list[type[Any]]:
    """Return all subclasses of an error."""
    children = kind.__subclasses__()
    return children + [deeper for child in children for deeper in _below(child)]
