"""Clients of the relay in threads, and what they saw: judged exactly, for all clocks are those of one machine."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Producer

from kafka_ordered_ops import RelayUnavailableError
from kafka_ordered_ops.relay import Lease, RelayClient
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World

CLIENTS = 8
_CALL_TIMEOUT_S = 60.0
#: A time in ms is cut off below it.
_TICK_MS = 1
_WRITE_EVERY_S = 0.05
_WRITTEN_AT_ONCE = 10


class _Taken(NamedTuple):
    partition: int
    offsets: Any
    start_ms: int
    until_ms: int
    attempt: int
    is_right: bool


class _Done(NamedTuple):
    partition: int
    offsets: Any
    at_ms: int


@dataclass(frozen=True)
class Verdict:
    """What came of all clients."""

    faults: list[str]
    #: Records that came more than once.
    again: int
    #: Of each partition: the longest time between two leases.
    gaps_s: list[float]


class Witness:
    """What all clients saw. For any number of threads.

    Args:
        partitions: of the topic.
        each: records that each of them will have.
    """

    def __init__(self, partitions: int, each: int) -> None:
        self._each = each
        self._guard = threading.Lock()
        self._acknowledged = [np.zeros(each, dtype=bool) for _ in range(partitions)]
        self._taken: list[_Taken] = []
        self._done: list[_Done] = []
        self.left = partitions * each

    def took(self, lease: Lease, lease_s: float) -> None:
        """A client has got records."""
        offsets = np.array([one.offset for one in lease.records], dtype=np.int64)
        is_right = all(one.value == b"%d" % one.offset for one in lease.records)
        start_ms = lease.until_ms - round(lease_s * 1_000)
        taken = _Taken(
            lease.tp.partition, offsets, start_ms, lease.until_ms, lease.attempt, is_right
        )
        with self._guard:
            self._taken.append(taken)

    def acknowledged(self, lease: Lease) -> None:
        """A server has answered that records are done."""
        at_ms = time.time_ns() // 1_000_000
        offsets = np.array([one.offset for one in lease.records], dtype=np.int64)
        with self._guard:
            self._done.append(_Done(lease.tp.partition, offsets, at_ms))
            mine = self._acknowledged[lease.tp.partition]
            self.left -= int((~mine[offsets]).sum())
            mine[offsets] = True

    def verdict(self) -> Verdict:
        """Judge it all."""
        faults: list[str] = []
        again, gaps_s = 0, []
        for partition, acknowledged in enumerate(self._acknowledged):
            taken = sorted(
                (one for one in self._taken if one.partition == partition),
                key=lambda one: one.start_ms,
            )
            if lost := int((~acknowledged).sum()):
                faults.append(f"partition {partition}: {lost} records were never acknowledged")
            faults += self._faults_of(taken, self._acknowledged_ms(partition))
            times = np.bincount(
                np.concatenate([one.offsets for one in taken]), minlength=self._each
            )
            again += int((times > 1).sum())
            starts = [one.start_ms for one in taken]
            gaps_s.append(float(max(np.diff(starts), default=0)) / 1_000)
        return Verdict(faults, again, gaps_s)

    def _acknowledged_ms(self, partition: int) -> Any:
        """When each record was first known to be done."""
        found = np.full(self._each, np.iinfo(np.int64).max)
        for one in self._done:
            if one.partition == partition:
                found[one.offsets] = np.minimum(found[one.offsets], one.at_ms)
        return found

    def _faults_of(self, taken: Sequence[_Taken], done_ms: Any) -> list[str]:
        faults = []
        until_ms = np.zeros(self._each, dtype=np.int64)
        attempts = np.zeros(self._each, dtype=np.int64)
        for one in taken:
            checks = {
                "during another lease": until_ms[one.offsets] <= one.start_ms,
                "after it was acknowledged": one.start_ms <= done_ms[one.offsets] + _TICK_MS,
                "with an attempt that does not rise": attempts[one.offsets] < one.attempt,
                "with a wrong value": np.full(one.offsets.size, one.is_right),
            }
            for what, holds in checks.items():
                if not holds.all():
                    first = one.offsets[~holds][0]
                    faults.append(
                        f"{one.partition}@{first} and {int((~holds).sum()) - 1} more were handed out {what}, from "
                        f"{one.start_ms} to {one.until_ms}, before until {until_ms[first]}, done {done_ms[first]}, "
                        f"attempts {attempts[first]} and {one.attempt}"
                    )
            until_ms[one.offsets] = one.until_ms
            attempts[one.offsets] = one.attempt
        return faults


class Crowd:
    """Eight clients that read and acknowledge until all is done. A context manager that ends them.

    Args:
        urls: of the servers.
        witness: of what they see.
        records_max: of each read.
        lease_s: of each read.
        forgets: the share of leases that no client acknowledges.
    """

    def __init__(
        self,
        urls: Sequence[str],
        witness: Witness,
        *,
        records_max: int = 500,
        lease_s: float,
        forgets: float = 0.0,
    ) -> None:
        self._urls, self._witness = list(urls), witness
        self._records_max, self._lease_s, self._forgets = records_max, lease_s, forgets
        self._is_over = threading.Event()
        #: Calls that no server took in time.
        self.unavailable: list[str] = []
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=[seed], daemon=True) for seed in range(CLIENTS)
        ]

    def __enter__(self) -> Crowd:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        for one in self._threads:
            one.join(_CALL_TIMEOUT_S)

    def wait(self, timeout_s: float) -> None:
        """Wait until everything is acknowledged, or a client failed."""
        self._is_over.wait(timeout_s)

    def _run(self, seed: int) -> None:
        choose = random.Random(seed)
        try:
            with RelayClient(self._urls, timeout_s=_CALL_TIMEOUT_S) as client:
                while not self._is_over.is_set():
                    self._once(client, choose)
        except BaseException as error:
            self.failures.append(error)
            self._is_over.set()
            raise

    def _once(self, client: RelayClient, choose: random.Random) -> None:
        try:
            delivery = client.read(
                "g", records_max=self._records_max, wait_s=2.0, lease_s=self._lease_s
            )
        except RelayUnavailableError as error:
            self.unavailable.append(str(error))
            return
        for lease in delivery:
            self._witness.took(lease, self._lease_s)
            if choose.random() < self._forgets:
                continue
            self._acknowledge(client, lease)
        if not self._witness.left:
            self._is_over.set()

    def _acknowledge(self, client: RelayClient, lease: Lease) -> None:
        """Repeat it until a server has answered: one that did not may have stored it."""
        while True:
            try:
                client.acknowledge(lease)
            except RelayUnavailableError as error:
                self.unavailable.append(str(error))
                if self._is_over.is_set():
                    return
            else:
                self._witness.acknowledged(lease)
                return


class Writer:
    """Writes records whose values are their offsets. For one thread.

    Args:
        world: with the topic.
        partitions: of it.
    """

    def __init__(self, world: World, partitions: int) -> None:
        self._topic, self.written = world.named("orders"), 0
        self._partitions = range(partitions)
        self._producer = Producer(
            {
                "bootstrap.servers": world.settings.bootstrap_servers,
                "enable.idempotence": True,
                "queue.buffering.max.messages": 1_000_000,
            }
        )

    def write(self, each: int) -> None:
        """Write so many more to each partition."""
        for partition in self._partitions:
            for at in range(self.written, self.written + each):
                self._producer.produce(self._topic, b"%d" % at, partition=partition)
        assert self._producer.flush(TIMEOUT_S) == 0
        self.written += each

    def keep_writing(self, total: int, is_over: threading.Event) -> None:
        """Write a few records at a time to each partition until something is over, and then the rest of so many."""
        while not is_over.wait(_WRITE_EVERY_S):
            self.write(_WRITTEN_AT_ONCE)
        assert self.written <= total, "it took longer than there are records"
        self.write(total - self.written)
