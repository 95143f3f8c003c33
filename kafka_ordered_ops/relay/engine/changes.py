"""Calls of clients that change leases or open windows: written to the log, and answered once that is stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

from kafka_ordered_ops.core.errors import (
    ConfigError,
    KafkaOrderedOpsError,
    LeaseError,
    NotReadyError,
    RelayUnavailableError,
    TopicRecreatedError,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.relay.log_records import (
    Extended,
    LogRecord,
    Opened,
    Released,
    encode,
)
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.relay.engine.group_limits import WindowLimits
from kafka_ordered_ops.relay.engine.requests import Topics
from kafka_ordered_ops.relay.engine.server import Server, now_ms
from kafka_ordered_ops.relay.log import acknowledged
from kafka_ordered_ops.relay.ports import Reader
from kafka_ordered_ops.relay.tokens import Lease

#: A lease, and the offsets of it that a call changes.
Chosen = tuple[Lease, OffsetSet]


class _Writing:
    """The records of one call while they are written.

    Args:
        server: the server that writes them.
        future: the future of the call.
        stored: called when all are stored; if it raises, the call fails. None answers the call.
    """

    def __init__(
        self,
        server: Server,
        future: asyncio.Future[Any],
        stored: Callable[[], None] | None = None,
    ) -> None:
        self._server, self._future, self._stored = server, future, stored
        self._left = 1
        self._error: KafkaOrderedOpsError | None = None

    def write(self, tp: TopicPartition, record: LogRecord) -> None:
        self._left += 1
        self._server.log.append(tp, record, self._report)

    def end(self) -> None:
        """End writing: answer after the last report."""
        self._report(None)

    def _report(self, error: KafkaOrderedOpsError | None) -> None:
        self._left -= 1
        self._error = self._error or error
        if self._left:
            return
        if self._error is None:
            try:
                if self._stored is None:
                    self._server.answers.give(self._future, None)
                else:
                    self._stored()
            except KafkaOrderedOpsError as error:
                self._server.answers.fail(self._future, error)
            return
        failure = RelayUnavailableError(
            f"the relay's log did not confirm the change in time, but may have stored it ({self._error}). The same call can be "
            "repeated"
        )
        failure.__cause__ = self._error
        self._server.answers.fail(self._future, failure)


@dataclass(frozen=True)
class _Opening:
    """A call that opens a window."""

    group: str
    offsets: Mapping[TopicPartition, OffsetSet]
    future: asyncio.Future[Any]
    #: A `time.monotonic` moment.
    deadline: float
    #: The name of the access token; None without a token.
    begun_by: str | None

    @cached_property
    def records(self) -> dict[TopicPartition, Opened]:
        """The records to write, by partition."""
        return {
            tp: Opened(self.group, offsets.first if offsets else 0, offsets, self.begun_by)
            for tp, offsets in self.offsets.items()
        }


class Changes:
    """Write the calls of clients to the log."""

    def __init__(self, server: Server) -> None:
        self._server = server
        #: Calls with the partitions whose records are stored, but not all read back.
        self._openings: list[tuple[_Opening, set[TopicPartition]]] = []
        self._limits = WindowLimits(server)

    def acknowledge(self, chosen: Sequence[Chosen], future: asyncio.Future[Any]) -> None:
        """Acknowledge records."""
        if not self._are_served(chosen, future):
            return
        together: dict[tuple[TopicPartition, str], OffsetSet] = {}
        for lease, offsets in chosen:
            key = lease.tp, lease.group
            together[key] = together.get(key, EMPTY_SET) | offsets
        writing = _Writing(self._server, future)
        for (tp, group), offsets in together.items():
            for record in acknowledged(group, offsets):
                writing.write(tp, record)
        writing.end()

    def cancel(self, chosen: Sequence[Chosen], future: asyncio.Future[Any]) -> None:
        """Give records back."""
        if not self._are_served(chosen, future):
            return
        writing = _Writing(self._server, future)
        for lease, offsets in chosen:
            writing.write(lease.tp, Released(lease.group, lease.lease_id, offsets))
        writing.end()

    def extend(self, leases: Sequence[Lease], lease_ms: int, future: asyncio.Future[Any]) -> None:
        """Extend leases."""
        if not self._are_served([(lease, lease.offsets) for lease in leases], future):
            return
        ends = [(lease, self._until_ms(lease)) for lease in leases]

        def check() -> None:
            now = now_ms()
            for lease, until_ms in ends:
                if until_ms <= now:
                    raise _ended(lease)

        def stored() -> None:
            check()
            self._server.answers.give(future, [until_ms] * len(leases))

        check()
        until_ms = now_ms() + lease_ms
        # Checked again when it is stored: if the extension is in the log before the lease ends, the owner reads it before
        # it can write another lease. If it is stored later, another lease may come first, and it has no effect.
        writing = _Writing(self._server, future, stored)
        for lease in leases:
            writing.write(lease.tp, Extended(lease.group, lease.lease_id, until_ms, lease.offsets))
        writing.end()

    def open_window(
        self, plan: WindowPlan, group: str, reader: Reader | None, future: asyncio.Future[Any]
    ) -> None:
        """Open a group with the offsets of a plan, in every partition of its topics; `reader` is held to its limits."""
        server = self._server
        if not server.is_replayed:
            self._fail(future, server.not_ready())
            return
        taken = {part.tp: part.taken for part in plan}
        topics = {tp.topic for tp in taken}
        offsets = {tp: taken.get(tp, EMPTY_SET) for tp in server.partitions if tp.topic in topics}
        if missing := sorted(set(taken) - set(offsets)):
            self._look_for(missing[0], future)
            return
        for part in plan:
            if (topic_id := server.partitions[part.tp].topic_id) != part.topic_id:
                self._fail(future, _planned_before(part.tp, part.topic_id, topic_id))
                return
        deadline = time.monotonic() + server.options.timeout_s
        opening = _Opening(
            group, offsets, future, deadline, None if reader is None else reader.name
        )
        for record in opening.records.values():
            encode(record)  # A record that is too large raises here, before anything is written.
        if reader is not None and self._unopened(opening):
            self._limits.add(group, reader)
        self._go_on(opening)

    def _look_for(self, tp: TopicPartition, future: asyncio.Future[Any]) -> None:
        """Fail a call about a partition that this server does not know: it is new, or does not exist."""
        requests, topics = self._server.requests, self._server.options.topics

        def answered(topics: Topics) -> None:
            facts = topics.data[tp.topic]
            if tp.partition in facts.partitions:
                self._fail(future, NotReadyError(f"this server does not know {tp} yet. Call again"))
                return
            self._fail(
                future,
                ConfigError(
                    f"there is no partition {tp}: the topic has {len(facts.partitions)}. Plan the window again"
                ),
            )

        requests.ask(
            lambda: requests.topics(topics), answered, lambda error: self._fail(future, error)
        )

    def due_at(self) -> float:
        """Return the `time.monotonic` time when `look` is due if nothing is read back before."""
        return min((opening.deadline for opening, _ in self._openings), default=inf)

    def look(self) -> None:
        """Continue with windows whose records are read back."""
        if not self._openings:
            return
        waiting, self._openings = self._openings, []
        for opening, written in waiting:
            try:
                unread = self._unopened(opening) & written
                if not unread:
                    self._go_on(opening)
                elif time.monotonic() < opening.deadline:
                    self._openings.append((opening, written))
                else:
                    raise _not_read_back(min(unread), opening.group)
            except KafkaOrderedOpsError as error:
                self._fail(opening.future, error)

    def _go_on(self, opening: _Opening) -> None:
        """Write the missing records, or answer.

        Other clients may open a group of this name at the same time. In each log the first record counts, and the log of
        the first partition decides for all partitions: only the winner there writes to the others.
        """
        if not (unopened := self._unopened(opening)):
            self._server.answers.give(opening.future, opening.group)
            return
        first = min(opening.records)
        written = {first} if first in unopened else unopened
        writing = _Writing(
            self._server, opening.future, lambda: self._openings.append((opening, written))
        )
        for tp in sorted(written):
            writing.write(tp, opening.records[tp])
        writing.end()

    def _unopened(self, opening: _Opening) -> set[TopicPartition]:
        """Return the window's partitions in which the group is not open, as far as the log has been read.

        Raises:
            ConfigError: the group is open with other offsets.
        """
        unopened = set()
        for tp, offsets in opening.offsets.items():
            progress = self._server.partitions[tp].state.groups.get(opening.group)
            if progress is None or not progress.is_opened:
                unopened.add(tp)
            elif not progress.is_about(offsets):
                raise _other_offsets(tp, opening.group)
        return unopened

    def _until_ms(self, lease: Lease) -> int:
        """Return the known end of a lease; its record may not have been read yet, or may be forgotten."""
        progress = self._server.partitions[lease.tp].state.groups.get(lease.group)
        until_ms = None if progress is None else progress.until_ms(lease.lease_id)
        return max(until_ms or 0, lease.until_ms)

    def _are_served(self, chosen: Sequence[Chosen], future: asyncio.Future[Any]) -> bool:
        for lease, _ in chosen:
            if lease.tp not in self._server.partitions:
                if lease.tp.topic in self._server.options.topics:
                    # A new partition, whose records were read at a server that knows it already.
                    self._fail(
                        future,
                        NotReadyError(f"this server does not know {lease.tp} yet. Call again"),
                    )
                    return False
                self._fail(
                    future,
                    LeaseError(f"{lease.tp} is not served by this server: call one that serves it"),
                )
                return False
            if lease.topic_id != self._server.partitions[lease.tp].topic_id:
                self._fail(future, _of_another_topic(lease))
                return False
        return True

    def _fail(self, future: asyncio.Future[Any], error: KafkaOrderedOpsError) -> None:
        self._server.answers.fail(future, error)


def _ended(lease: Lease) -> LeaseError:
    return LeaseError(
        f"a lease of {lease.tp}, group {lease.group}, has ended: others may have its records by now. Read again, or "
        "acknowledge what is done nevertheless"
    )


def _of_another_topic(lease: Lease) -> LeaseError:
    return LeaseError(
        f"a lease of {lease.tp}, group {lease.group}, is of a topic that was deleted: the topic was recreated since, and "
        "has other records. Read again"
    )


def _planned_before(tp: TopicPartition, expected: str, actual: str) -> TopicRecreatedError:
    return TopicRecreatedError(
        f"the window was planned with {tp} of the topic with the id {expected}, and the topic has the id {actual}: it was "
        "recreated, or is on another cluster. Plan the window again",
        topic=tp.topic,
        expected_id=expected,
        found_id=actual,
    )


def _not_read_back(tp: TopicPartition, group: str) -> RelayUnavailableError:
    return RelayUnavailableError(
        f"group {group} is opened in the log of {tp}, which this server has not read back in time. The same call can be "
        "repeated"
    )


def _other_offsets(tp: TopicPartition, group: str) -> ConfigError:
    return ConfigError(
        f"group {group} exists, and has other offsets of {tp} than the plan. Choose another group for this window"
    )
