"""What an ordered read is asked for, checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kafka_ordered_ops.core.arguments import (
    as_names,
    as_span,
    check_choice,
    check_count,
    check_flag,
    check_function,
    check_timeout_s,
    checked_clock,
    path_text,
    shown,
)
from kafka_ordered_ops.core.cluster_facts import is_pattern, is_selected
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.names import check_group, check_topic
from kafka_ordered_ops.core.release.ordered_release import Limits, Order
from kafka_ordered_ops.core.types import INT64_MAX, Isolation
from kafka_ordered_ops.core.window.bounds import Bound, Committed, Earliest, as_bound
from kafka_ordered_ops.core.window.plan import WindowPlan

#: Starting offsets: a bound, its text, or an aware datetime.
StartingOffsets = Bound | str | datetime

#: ``(offsets done, offsets known)``
Progress = Callable[[int, int], None]

#: How late records reach their partition at most, as long as nobody says otherwise: producers batch for milliseconds,
#: and clocks of a cluster differ by less.
GRACE: Final = timedelta(seconds=5)

_MS: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Question:
    """An ordered read; see `OrderedReader` for the meaning of each."""

    topics: tuple[str, ...]
    #: Its records, instead of topics and starting offsets.
    plan: WindowPlan | None
    #: By topic; ``None`` stands for all others.
    starting_offsets: Mapping[str | None, Bound]
    follow: bool
    group_id: str | None
    isolation: Isolation
    order: Order
    max_out_of_orderness_ms: int | None
    grace_ms: int
    limits: Limits
    temporary_folder: str | None
    commit_interval_s: float
    session_timeout_s: float
    stall_timeout_s: float
    timeout_s: float
    progress: Progress | None
    clock: Callable[[], float]

    @classmethod
    def of(
        cls,
        *,
        topics: str | Sequence[str],
        plan: WindowPlan | None,
        starting_offsets: StartingOffsets | Mapping[str, StartingOffsets],
        follow: bool,
        group_id: str | None,
        isolation: Isolation | str,
        order: Order | str,
        max_out_of_orderness: timedelta | str | None,
        grace: timedelta | str,
        held_records_max: int,
        held_bytes_max: int,
        spilled_bytes_max: int,
        temporary_folder: str | os.PathLike[str] | None,
        commit_interval_s: float,
        session_timeout_s: float,
        stall_timeout_s: float,
        timeout_s: float,
        progress: Progress | None,
        clock: Callable[[], float],
    ) -> Question:
        """Check all arguments; raise `ConfigError`, which names the one that is wrong."""
        names = as_names(topics, what="topics")
        if not names and plan is None:
            raise ConfigError("topics is empty: give a name or pattern, or a list of at least one")
        for name in names:
            check_topic(name, what="topics")
        following = check_flag(follow, what="follow")
        if group_id is not None and not following:
            raise ConfigError(
                "group_id is given without follow=True: a read up to the end stores no progress. Use OrderedWindows "
                "for bounded reads with progress, or follow=True"
            )
        starts = _bounds(starting_offsets, names)
        if group_id is None and Committed() in starts.values():
            raise ConfigError(
                "starting_offsets is 'committed', and there is no group_id whose commits could be meant: give one, with "
                "follow=True, or choose other starting offsets"
            )
        chosen = check_choice(order, Order, what="order")
        slack_ms = _slack_ms(max_out_of_orderness, following)
        limits = Limits(
            check_count(held_records_max, what="held_records_max", least=1, greatest=INT64_MAX),
            check_count(held_bytes_max, what="held_bytes_max", least=1, greatest=INT64_MAX),
            check_count(spilled_bytes_max, what="spilled_bytes_max", least=0, greatest=INT64_MAX),
        )
        folder = None if temporary_folder is None else path_text(temporary_folder)
        if temporary_folder is not None and not folder:
            raise ConfigError(f"temporary_folder is {shown(temporary_folder)}: give a path")
        if folder is not None:
            _check_folder(folder)
        if progress is not None:
            check_function(progress, what="progress", takes=2)
        told_clock = checked_clock(clock)
        # One that returns no time is an error now, not in the middle of a read.
        told_clock()
        return cls(
            topics=names,
            plan=plan,
            starting_offsets=starts,
            follow=following,
            group_id=None if group_id is None else check_group(group_id),
            isolation=check_choice(isolation, Isolation, what="isolation"),
            order=chosen,
            max_out_of_orderness_ms=slack_ms,
            grace_ms=as_span(grace, what="grace") // _MS,
            limits=limits,
            temporary_folder=folder,
            commit_interval_s=check_timeout_s(commit_interval_s, what="commit_interval_s"),
            session_timeout_s=check_timeout_s(session_timeout_s, what="session_timeout_s"),
            stall_timeout_s=check_timeout_s(stall_timeout_s, what="stall_timeout_s"),
            timeout_s=check_timeout_s(timeout_s, what="timeout_s"),
            progress=progress,
            clock=told_clock,
        )

    @property
    def wait_ms(self) -> int:
        """How long a record waits at the end of the logs: for late deliveries, or for others out of order, whichever is longer."""
        is_by_time = self.order is Order.TIMESTAMP
        return max(self.grace_ms, self.max_out_of_orderness_ms or 0 if is_by_time else 0)

    def bound_of(self, topic: str) -> Bound:
        """Return where a topic starts: by its name, or else by the first pattern that it matches."""
        found = self.starting_offsets.get(topic)
        if found is not None:
            return found
        for name, bound in self.starting_offsets.items():
            if name is not None and is_pattern(name) and is_selected(topic, [name], ()):
                return bound
        return self.starting_offsets[None]


def _check_folder(folder: str) -> None:
    """Raise `ConfigError` unless records can be held in the folder; it is made when there is a need."""
    try:
        nearest = os.path.abspath(folder)
        while not _is_there(nearest):
            nearest = os.path.dirname(nearest)
    except (OSError, ValueError) as error:
        raise ConfigError(f"temporary_folder is {shown(folder)}: {error}") from None
    if not os.path.isdir(nearest) or not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(
            f"temporary_folder is {shown(folder)}, and {shown(nearest)} is not a folder that this process may write to"
        )


def _is_there(path: str) -> bool:
    """Return whether there is something at a path; raise `ValueError` or `OSError` for one that cannot be."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _slack_ms(value: timedelta | str | None, following: bool) -> int | None:
    if value is None:
        return 0 if following else None
    return as_span(value, what="max_out_of_orderness") // _MS


def _bounds(
    value: StartingOffsets | Mapping[str, StartingOffsets], topics: Sequence[str]
) -> Mapping[str | None, Bound]:
    if not isinstance(value, Mapping):
        return {None: _bound(value)}
    if unknown := sorted(set(map(str, value)) - set(topics)):
        raise ConfigError(
            f"starting_offsets has {', '.join(unknown[:5])}, which topics does not name: it has "
            f"{', '.join(topics[:5])}"
        )
    return {None: Earliest(), **{topic: _bound(one) for topic, one in value.items()}}


def _bound(value: object) -> Bound:
    bound = as_bound(value)
    if bound is None:
        raise ConfigError("starting_offsets is None: give 'earliest', 'latest' or another bound")
    return bound
