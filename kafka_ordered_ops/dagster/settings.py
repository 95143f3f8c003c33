"""What all windows of an asset have in common: everything but their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from dagster import AssetKey

from kafka_ordered_ops.core.arguments import check_choice, check_flag, check_group, check_span
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import time_at
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    OnDataLoss,
    OnForeignCommit,
    OnOpenClaim,
)
from kafka_ordered_ops.core.window.bounds import Bound, parse_bound
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.spark.job_checks import check_engine, check_output

#: Stands for a window's cutoff where the other parts of its question are looked at.
_ANY_TIME: Final = time_at(0)


class OnNotLive(StrEnum):
    """What a step does when a topic's partitions have not come to the cutoff yet.

    Records before it may still be written then. They are not lost: a later window takes them, flagged late.
    Warn goes on, and the asset's check says so. Fail fails the step before anything is planned. Ignore does not
    look.
    """

    WARN = "warn"
    FAIL = "fail"
    IGNORE = "ignore"


@dataclass(frozen=True, kw_only=True)
class WindowSettings:
    """What all windows of an asset have in common.

    Args:
        topics: names, or regular expressions that begin with ``^``.
        group_id: the consumer group whose progress the windows are: the asset's own.
        start: where a new group begins: a bound, or its text as ``earliest``, ``latest``, ``committed``, a time,
            ``-PT1H``.
        allowed_lateness: None reads all that there is.
        isolation: ``read_committed`` or ``read_uncommitted``.
        exclude: names or patterns to leave out.
        on_covered: what to do with a window that is delivered already, when it is materialised again. ``replay``
            reads the same records again, and moves nothing; ``skip`` reports it as it is; ``fail`` fails.
        on_open_claim: what to do about other open windows that may hold some of the records.
        on_data_loss: ``fail``, or ``warn``: write down as lost what retention took, and go on.
        on_foreign_commit: stop when somebody else moved the group's committed offset, or adopt it.
        on_not_live: what to do when the partitions have not come to the cutoff yet.
        grace: how long after the cutoff a partition without newer records counts as idle; None: never.
        open_lag: take a partition that is not over yet as well, up to this long before the run began; what is
            missing of it then is taken by later runs of the partition. None: it is refused.
        output: the folder for the windows' files; None: the job has a sink of its own.
        ordered: total order by (timestamp, topic, partition, offset).
        engine: who reads Kafka: ``python``, ``jvm`` or ``stage``.
        redefine: make this asset's topics, mode and isolation the group's, and this asset the one that plans its
            windows: for one run, after the asset was renamed or changed.

    Raises:
        ConfigError: no topic or group, or what cannot be one of the above.
    """

    topics: Sequence[str]
    group_id: str
    start: Bound | str | None = None
    allowed_lateness: timedelta | None = None
    isolation: Isolation | str = Isolation.READ_COMMITTED
    exclude: Sequence[str] = ()
    on_covered: OnCovered | str = OnCovered.REPLAY
    on_open_claim: OnOpenClaim | str = OnOpenClaim.STEP_AROUND
    on_data_loss: OnDataLoss | str = OnDataLoss.FAIL
    on_foreign_commit: OnForeignCommit | str = OnForeignCommit.FAIL
    on_not_live: OnNotLive | str = OnNotLive.WARN
    grace: timedelta | None = None
    open_lag: timedelta | None = None
    output: str | None = None
    ordered: bool = True
    engine: str = "python"
    redefine: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.topics, str) or isinstance(self.exclude, str):
            raise ConfigError("topics and exclude are lists of names or patterns")
        if not self.topics or not self.group_id:
            raise ConfigError(
                "topics and group_id are needed: what to read, and whose progress it is"
            )
        check_group(self.group_id)
        choices = {
            "isolation": Isolation,
            "on_covered": OnCovered,
            "on_open_claim": OnOpenClaim,
            "on_data_loss": OnDataLoss,
            "on_foreign_commit": OnForeignCommit,
            "on_not_live": OnNotLive,
        }
        for name, choice in choices.items():
            object.__setattr__(self, name, check_choice(getattr(self, name), choice, what=name))
        check_engine(self.engine)
        check_flag(self.redefine, what="redefine")
        if self.output is not None:
            check_output(self.output)
        for name in ("allowed_lateness", "grace", "open_lag"):
            if getattr(self, name) is not None:
                check_span(getattr(self, name), what=name)
        if isinstance(self.start, str):
            object.__setattr__(self, "start", parse_bound(self.start))
        # All that any window of the asset asks for, but its times.
        self.window(_ANY_TIME, None)
        object.__setattr__(self, "topics", tuple(self.topics))
        object.__setattr__(self, "exclude", tuple(self.exclude))

    @classmethod
    def among(cls, given: Mapping[str, Any]) -> WindowSettings:
        """The settings that are among a function's arguments; raises `ConfigError`."""
        return cls(**{one.name: given[one.name] for one in fields(cls)})

    def window(self, cutoff: datetime, since: datetime | None) -> Window:
        """The question for these times; raises `ConfigError`."""
        start = self.start
        return Window(
            self.topics,
            cutoff,
            since=since,
            start=None if isinstance(start, str) else start,
            allowed_lateness=self.allowed_lateness,
            isolation=Isolation(self.isolation),
            exclude=self.exclude,
            on_data_loss=OnDataLoss(self.on_data_loss),
        )


def window_id_of(key: AssetKey, name: str) -> str:
    """A window's id: the same for every try and every run of a partition."""
    return f"{key.to_user_string()}/{name}"
