"""A relay service without Kafka, for tests of the HTTP side: leases in a dictionary."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from kafka_ordered_ops import LeaseError, NotReadyError, UnknownTopicError, WindowPlan
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.processing import Record
from kafka_ordered_ops.relay.ports import (
    Delivered,
    LeasedOffsets,
    LeasePlace,
    PartitionStatus,
    Reader,
)


class FakeService:
    """Hands out what was added, and remembers what clients said of it."""

    def __init__(self, topics: Sequence[str] = ("orders",)) -> None:
        self.topics = frozenset(topics)
        self.is_ready = True
        self.waiting: deque[Record] = deque()
        self.leased: dict[str, list[Record]] = {}
        self.acknowledged: list[tuple[str, int, int]] = []
        self.cancelled: list[str] = []
        self.windows: list[tuple[WindowPlan, str | None]] = []
        self.done = False
        self.failure: Exception | None = None
        self.ended_by: BaseException | None = None
        #: What its start waits for.
        self.starting: Callable[[], Awaitable[object]] = partial(asyncio.sleep, 0)
        self.readers = 0
        #: The reader of the last read.
        self.read_by: Reader | None = None
        #: The client group of each lease.
        self.groups: dict[str, str] = {}
        #: The groups in its status.
        self.known = ["billing"]
        #: What keeps it from handing out records.
        self.problem: str | None = None
        #: How many offsets wait in each partition.
        self.lag: int | None = 1_250
        self._arrived = asyncio.Event()
        self._numbers = itertools.count()

    async def start(self) -> None:
        await self.starting()

    async def close(self) -> None:
        pass

    def add(self, *records: Record) -> None:
        """More to hand out."""
        self.waiting.extend(records)
        self._arrived.set()

    async def read(
        self,
        group: str,
        *,
        records_max: int,
        wait_s: float,
        lease_s: float,
        topics: frozenset[str] | None,
        reader: Reader | None = None,
    ) -> tuple[list[Delivered], bool]:
        self.read_by = reader
        if self.failure is not None:
            raise self.failure
        if not self.is_ready:
            raise NotReadyError("the logs are still being read: 3 of 10 records")
        if others := (topics or frozenset()) - self.topics:
            raise UnknownTopicError(f"no topic {min(others)!r}", topics=sorted(others))
        if not self.waiting and wait_s:
            self._arrived.clear()
            self.readers += 1
            try:
                await asyncio.wait_for(self._arrived.wait(), wait_s)
            except TimeoutError:
                pass
            finally:
                self.readers -= 1
        taken = [self.waiting.popleft() for _ in range(min(records_max, len(self.waiting)))]
        by_tp: dict[TopicPartition, list[Record]] = {}
        for record in taken:
            by_tp.setdefault(record.tp, []).append(record)
        return [self._lease(group, tp, found, lease_s) for tp, found in by_tp.items()], self.done

    def _lease(
        self, group: str, tp: TopicPartition, records: list[Record], lease_s: float
    ) -> Delivered:
        token = f"{tp.topic}-lease-{next(self._numbers)}"
        self.leased[token], self.groups[token] = records, group
        return Delivered(tp, records, token, round((time.time() + lease_s) * 1000))

    def _check(self, tokens: Sequence[str]) -> None:
        for token in tokens:
            if token not in self.leased:
                raise LeaseError("the lease is not one of this relay's")

    async def acknowledge(self, leases: Sequence[LeasedOffsets]) -> None:
        if self.failure is not None:
            raise self.failure
        self._check([token for token, _ in leases])
        for token, offsets in leases:
            self.acknowledged += [
                (one.topic, one.partition, one.offset)
                for one in self.leased[token]
                if offsets is None or one.offset in offsets
            ]

    async def cancel(self, leases: Sequence[LeasedOffsets]) -> None:
        self._check([token for token, _ in leases])
        self.cancelled += [token for token, _ in leases]

    async def extend(self, tokens: Sequence[str], lease_s: float) -> list[int]:
        self._check(tokens)
        return [round((time.time() + lease_s) * 1000)] * len(tokens)

    async def open_window(
        self, plan: WindowPlan, group: str | None, reader: Reader | None = None
    ) -> str:
        self.windows.append((plan, group))
        return group or plan.window_id

    def place_of(self, token: str) -> LeasePlace:
        self._check([token])
        return LeasePlace(self.leased[token][0].topic, self.groups[token])

    def status(self) -> list[PartitionStatus]:
        return [
            PartitionStatus(
                topic,
                0,
                group,
                "server-1",
                True,
                True,
                self.lag,
                3,
                7,
                12,
                None,
                0,
                self.problem,
                10,
                10,
            )
            for topic in sorted(self.topics)
            for group in self.known
        ]
