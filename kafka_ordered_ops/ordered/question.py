"""The checked arguments of an ordered read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from kafka_ordered_ops.core.arguments import (
    as_moment,
    as_names,
    check_choice,
    check_count,
    check_flag,
    check_function,
    checked_clock,
    shown,
)
from kafka_ordered_ops.core.cluster.names import check_topic
from kafka_ordered_ops.core.cluster.out_of_range import OnOutOfRange
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.release.ordered_release import Limits, Order
from kafka_ordered_ops.core.release.sorting import BATCH_ROWS
from kafka_ordered_ops.core.types import INT64_MAX, Isolation
from kafka_ordered_ops.core.window.bounds import Bound, StartingOffsets
from kafka_ordered_ops.core.window.decoding import Decoding, check_decoding
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.read_starts import ReadStarts
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.ordered.options import Member, Ordering, ReadLimits, check_limits

#: A bound in the forms that callers may pass: a bound, its text, or an aware datetime.
BoundGiven = Bound | str | datetime

#: Starting offsets in the forms that callers may pass.
StartsGiven = StartingOffsets | BoundGiven | Mapping[Any, BoundGiven | int]

#: ``(offsets done, offsets known)``
Progress = Callable[[int, int], None]

#: The default limit of a batch, in records.
BATCH_SIZE: Final = BATCH_ROWS


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of an ordered read; see `OrderedReader` for the meaning of each."""

    topics: tuple[str, ...]
    exclude: tuple[str, ...]
    #: The plan to read, instead of topics and starting offsets.
    plan: WindowPlan | None
    #: For a read until a time: its window, which is planned when the read is opened.
    window: Window | None
    starts: ReadStarts
    on_data_loss: OnOutOfRange
    follow: bool
    member: Member | None
    isolation: Isolation
    ordering: Ordering
    batch_size: int
    limits: ReadLimits
    decoding: Decoding | None
    progress: Progress | None
    clock: Callable[[], float]

    @classmethod
    def of(
        cls,
        *,
        topics: str | Sequence[str],
        exclude: str | Sequence[str],
        starting_offsets: StartsGiven,
        on_data_loss: OnOutOfRange | str,
        until: datetime | str | None,
        follow: bool,
        group_id: str | Member | None,
        isolation: Isolation | str,
        order: Order | Ordering | str,
        batch_size: int,
        limits: ReadLimits | None,
        decoding: Decoding | None,
        progress: Progress | None,
        clock: Callable[[], float],
    ) -> Question:
        """Check all arguments of a read of topics; raise `ConfigError`, which names the invalid one."""
        names = _names(topics, what="topics")
        if not names:
            raise ConfigError("topics is empty: give a name or pattern, or a list of at least one")
        following = check_flag(follow, what="follow")
        member = Member.of(group_id)
        if member is not None and not following:
            raise ConfigError(
                "group_id is set without follow=True: a read with an end stores no progress. Use OrderedWindows "
                "for bounded reads with progress, or follow=True"
            )
        starts = ReadStarts.of(starting_offsets, names)
        if member is None and starts.need_a_group:
            raise ConfigError(
                "starting_offsets is 'committed', and there is no group_id with committed offsets: set group_id and "
                "follow=True, or choose other starting offsets"
            )
        _check_progress(progress)
        checked = checked_clock(clock)
        # So that a clock that does not return a time fails now, not in the middle of a read.
        checked()
        ordering = Ordering.of(order)
        chosen = check_choice(isolation, Isolation, what="isolation")
        policy = check_choice(on_data_loss, OnOutOfRange, what="on_data_loss")
        excluded = _names(exclude, what="exclude")
        window = None
        if until is not None:
            _check_until(until, starts, policy, follow=following)
            window = Window(
                names,
                cutoff=as_moment(until, what="until"),
                starting_offsets=starts.by_topic,
                max_out_of_orderness=ordering.slack,
                isolation=chosen,
                exclude=excluded,
                on_data_loss=str(policy),
            )
        return cls(
            topics=names,
            window=window,
            exclude=excluded,
            plan=None,
            starts=starts,
            on_data_loss=policy,
            follow=following,
            member=member,
            isolation=chosen,
            ordering=ordering,
            batch_size=_size(batch_size),
            limits=check_limits(limits),
            decoding=_check_decoding(decoding, names),
            progress=progress,
            clock=checked,
        )

    @classmethod
    def of_plan(
        cls,
        plan: WindowPlan,
        *,
        order: Order | Ordering | str,
        batch_size: int,
        limits: ReadLimits | None,
        progress: Progress | None,
    ) -> Question:
        """Check all arguments of a read of a plan; raise `ConfigError`, which names the invalid one."""
        _check_progress(progress)
        return cls(
            topics=(),
            window=None,
            exclude=(),
            plan=plan,
            starts=ReadStarts.of("earliest", ()),
            on_data_loss=OnOutOfRange.FAIL,
            follow=False,
            member=None,
            isolation=plan.isolation,
            ordering=Ordering.of(order),
            batch_size=_size(batch_size),
            limits=check_limits(limits),
            decoding=None,
            progress=progress,
            clock=time.time,
        )

    @property
    def slack_ms(self) -> int | None:
        """How far timestamps may go back within a partition, in ms; `None` means any distance."""
        return self.ordering.slack_ms(follow=self.follow)

    @property
    def held(self) -> Limits:
        """The limits of held records."""
        return self.limits.held

    @property
    def wait_ms(self) -> int:
        """How long a record waits at the end of the logs, in ms: for late deliveries or for records out of order."""
        is_by_time = self.ordering.by is Order.TIMESTAMP
        return max(self.ordering.grace_ms, self.slack_ms or 0 if is_by_time else 0)


def _check_until(until: object, starts: ReadStarts, policy: OnOutOfRange, *, follow: bool) -> None:
    if follow:
        raise ConfigError(
            f"until is {shown(until)}, which ends the read, but follow=True has no end: omit one of them"
        )
    if starts.by_partition:
        raise ConfigError(
            "starting_offsets names single partitions, but a read with until is planned by topic: give a bound for each "
            "topic, or omit until"
        )
    if policy in (OnOutOfRange.EARLIEST, OnOutOfRange.LATEST):
        raise ConfigError(
            f"on_data_loss is '{policy}', but a read with until is exact: use 'fail' or 'warn', or omit until"
        )


def _check_decoding(value: object, topics: Sequence[str]) -> Decoding | None:
    decoding = check_decoding(value)
    if decoding is not None:
        decoding.window(topics).check_no_dead_letters("an OrderedReader")
    return decoding


def _names(value: object, *, what: str) -> tuple[str, ...]:
    names = as_names(value, what=what)
    for name in names:
        check_topic(name, what=what)
    return names


def _check_progress(progress: object) -> None:
    if progress is not None:
        check_function(progress, what="progress", takes=2)


def _size(batch_size: object) -> int:
    return check_count(batch_size, what="batch_size", least=1, greatest=INT64_MAX)
