"""Which failures are worth another attempt: a policy for Airflow 3.3 and later."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.hosting.arguments import with_known_names

#: Errors after which somebody else is busy with the same group: over in seconds.
_BUSY: Final = ("GroupInUseError", "OpenClaimError", "WindowFencedError")

_HOME: Final = "kafka_ordered_ops.core.errors"

_FINAL_REASON: Final = "trying again cannot help"


@with_known_names
def window_retry_policy(busy_delay: timedelta = timedelta(seconds=30)) -> Any:
    """A ``retry_policy`` for tasks that use this package in functions of their own.

    What is not retriable fails at once; where somebody else is busy with the group the next attempt comes after
    `busy_delay`; all else as the task says. The operators here need no policy to fail at once: they raise
    AirflowFailException.

    Raises:
        ConfigError: this Airflow has no retry policies.
    """
    try:
        from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
    except ImportError as error:
        raise ConfigError(
            "this Airflow has no retry policies: they came with Airflow 3.3. The operators of this package fail "
            "at once without one where trying again cannot help"
        ) from error
    whole, alone = _final()
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception=[f"{_HOME}.{name}" for name in _BUSY],
                action=RetryAction.RETRY,
                retry_delay=busy_delay,
                reason="another window of the group is under way",
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
    """The errors that are final with all their kinds; and those that are, but have kinds that are not."""
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
    """All kinds of a kind of error."""
    children = kind.__subclasses__()
    return children + [deeper for child in children for deeper in _below(child)]
