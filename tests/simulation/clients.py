"""The clients of a history: the package's own ledger, with its fence, on clients whose requests take turns.

Everything above confluent-kafka is the package's code: `Ledger`, `FencedTransaction`, the queue, the fold. What is below
is replaced here, request by request; see `patched`.
"""

from __future__ import annotations

import math
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import pytest
from confluent_kafka import KafkaError, KafkaException

import kafka_ordered_ops.windows.service
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import LedgerUnavailableError
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_CONFIG, LEDGER_PARTITIONS
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.ledger import ledger as ledger_module
from kafka_ordered_ops.kafka.ledger import queue, transaction
from kafka_ordered_ops.kafka.ledger.ledger import Ledger
from kafka_ordered_ops.kafka.ledger.log import LedgerLog
from kafka_ordered_ops.kafka.ledger.topic import LedgerTopic
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output import contents
from kafka_ordered_ops.output.objects import cleaning, probe, publisher, reading, store
from kafka_ordered_ops.testing import doors
from kafka_ordered_ops.testing.log import PartitionLog
from kafka_ordered_ops.testing.lookup import MemoryLookup
from kafka_ordered_ops.testing.reader import MemoryReader
from tests.simulation.brokers import Fate, Refused
from tests.simulation.folder import put_in
from tests.simulation.world import World, world_named

_Answer = TypeVar("_Answer")

#: Pauses between two looks of a client that waits for a broker, s.
_PAUSE_S: Final = 0.05

#: The client's errors for refusals.
_CODES: Final = {
    "FENCED": KafkaError._FENCED,
    "INVALID_TXN_STATE": KafkaError.INVALID_TXN_STATE,
    "UNKNOWN_TOPIC_OR_PART": KafkaError.UNKNOWN_TOPIC_OR_PART,
}
#: Refusals after which the client makes a request again, until its time is over.
_REPEATED: Final = ("CONCURRENT_TRANSACTIONS", "UNKNOWN_TOPIC_OR_PART")


class SimulatedProducer:
    """The client's producer: with a transactional id, or for tickets without one."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.world = world_named(config["bootstrap.servers"].removeprefix("memory:"))
        self._name: str = config.get("transactional.id", "")
        self.epoch = -1
        #: Whether a newer one has its id.
        self.is_fenced = False
        #: The error that a record met, of which the next call tells.
        self._error: KafkaException | None = None

    def list_topics(self, topic: str, timeout: float) -> None:
        """Connect."""

    def poll(self, timeout: float) -> int:
        """Deliver reports: there are none."""
        return 0

    def flush(self, timeout: float) -> int:
        """Wait for what was written; return how many records are left."""
        return 0

    def init_transactions(self, timeout: float) -> None:
        """Fence the producers before this one."""

        def init() -> None:
            self.epoch = self.world.coordinator.init(self._name)

        # Asked once more, it would be the newest producer again.
        self._ask("init_transactions", init, timeout, but=[Fate.TWICE])

    def begin_transaction(self) -> None:
        """Begin a transaction: the broker learns of it by its first record."""

    def produce(
        self,
        topic: str,
        *,
        key: bytes,
        value: bytes | None,
        partition: int,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Write a record."""
        tp = TopicPartition(topic, partition)
        encoded = [(name, text.encode()) for name, text in headers]
        if not self._name:
            self.world.command("write a ticket")
            self.world.cluster.append(tp, key=key, value=value, timestamp_ms=None)
            return
        self.world.command(f"write {_short(key)}")
        with self._refusals(later=True):
            self._patient(
                lambda: self.world.coordinator.write(
                    self._name, self.epoch, tp, key, value, encoded
                )
            )

    def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], timeout_s: float
    ) -> None:
        """Let offsets be committed with the transaction."""
        self._raise_late()
        told = ", ".join(f"{tp.partition}: {one.offset}" for tp, one in offsets.items())
        self._ask(
            f"send offsets of {group_id}: {told}",
            lambda: self._patient(
                lambda: self.world.coordinator.send_offsets(
                    self._name, self.epoch, group_id, offsets
                ),
                timeout_s,
            ),
            timeout_s,
            # A broker refuses offsets of a transaction that has ended.
            but=[Fate.LATE, Fate.TWICE],
        )

    def commit_transaction(self, timeout: float) -> None:
        """Commit."""
        self._raise_late()
        self._ask("commit_transaction", lambda: self._end(is_commit=True), timeout)

    def abort_transaction(self, timeout: float) -> None:
        """Abort."""
        self._ask("abort_transaction", lambda: self._end(is_commit=False), timeout)

    def _end(self, *, is_commit: bool) -> None:
        self.world.coordinator.end(self._name, self.epoch, is_commit=is_commit)

    def _ask(
        self, what: str, call: Callable[[], object], timeout: float, but: Collection[Fate] = ()
    ) -> None:
        """Make a request; its answer may be lost, or it may be late or arrive twice."""
        world = self.world
        world.command(what)
        fate = world.fate()
        if fate in but:
            fate = Fate.ANSWERED
        if fate is not Fate.ANSWERED:
            world.scheduler.told.append(f"          {fate.name.lower()}")
        if fate in (Fate.ANSWERED, Fate.UNANSWERED, Fate.TWICE):
            with self._refusals(later=False):
                call()
        if fate in (Fate.LATE, Fate.TWICE):
            world.scheduler.later(
                world.random.random() * 30, f"{what} arrives late", lambda: _unheard(call)
            )
        if fate in (Fate.LOST, Fate.UNANSWERED, Fate.LATE):
            world.scheduler.sleep(timeout)
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, "no answer in time", False, True, False)
            )

    def _patient(self, call: Callable[[], object], timeout_s: float = math.inf) -> None:
        """Make a request again while the end of the transaction before is being written, as the client does."""
        deadline_s = self.world.scheduler.now_s + timeout_s
        while True:
            try:
                call()
                return
            except Refused as refused:
                if refused.code not in _REPEATED or self.world.scheduler.now_s >= deadline_s:
                    raise
            self.world.scheduler.sleep(_PAUSE_S)

    def _raise_late(self) -> None:
        if self._error is not None:
            raise self._error

    @contextmanager
    def _refusals(self, *, later: bool) -> Iterator[None]:
        try:
            yield
        except Refused as refused:
            self.world.scheduler.told.append(f"          refused: {refused.code}")
            is_abortable = refused.code == "UNKNOWN_TOPIC_OR_PART"
            self.is_fenced = self.is_fenced or not is_abortable
            text, flags = f"refused: {refused.code}", (not is_abortable, False, is_abortable)
            error = KafkaException(KafkaError(_CODES[refused.code], text, *flags))
            if not later:
                raise error from refused
            self._error = error


def _unheard(call: Callable[[], object]) -> None:
    """Make a request whose answer nobody hears."""
    try:
        call()
    except Refused:
        return


def _short(key: bytes) -> str:
    return key.decode(errors="replace")[:60]


class _Record:
    """A record as the client returns it."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry

    def offset(self) -> int:
        """Return its offset."""
        return int(self._entry.offset)

    def key(self) -> bytes | None:
        """Return its key."""
        return self._entry.message.key  # type: ignore[no-any-return]

    def value(self) -> bytes | None:
        """Return its value."""
        return self._entry.message.value  # type: ignore[no-any-return]

    def headers(self) -> list[tuple[str, bytes]]:
        """Return its headers."""
        return list(self._entry.message.headers)

    def timestamp(self) -> tuple[int, int]:
        """Return the kind of its timestamp, and the timestamp."""
        return self._entry.message.timestamp_type, self._entry.message.timestamp_ms


class SimulatedLog(LedgerLog):
    """The package's reader of the ledger, with the requests of a client that take turns."""

    def _read(self, start: int, end: int, deadline: float) -> Iterator[Any]:
        world = world_named(self._config["bootstrap.servers"].removeprefix("memory:"))
        position = start
        while position < end:
            world.command(f"read the ledger from {position} to {end}")
            log = world.cluster.log(self.where)
            reached = min(log.last_stable_offset, end)
            if reached > position:
                entries = [
                    _Record(entry)
                    for entry in log.entries(position, reached)
                    if entry.is_visible(Isolation.READ_COMMITTED)
                ]
                position = reached
                yield entries, reached
                continue
            left_s = deadline - world.scheduler.now_s
            if left_s <= 0:
                raise self._unread(range(start, end), position, 1.0, 1.0)
            world.scheduler.wait_for(
                lambda: min(log.last_stable_offset, end) > position,  # noqa: B023 - at once
                left_s + 0.001,
            )


class SimulatedTopic(LedgerTopic):
    """The package's ledger topic, created by a broker at once."""

    def _create(self) -> None:
        world = world_named(self._settings.memory_name or "")
        world.command("create the ledger")
        if self.name not in world.cluster.topics:
            world.cluster.create_topic(self.name, LEDGER_PARTITIONS, LEDGER_CONFIG)

    def _check_kept(self, topic_id: str) -> None:
        """Do nothing: a model keeps everything."""


class SimulatedOffsets:
    """The reader of committed offsets."""

    def __init__(self, settings: ClientSettings, group_id: str) -> None:
        self._world = world_named(settings.memory_name or "")
        self._group = group_id

    def close(self) -> None:
        """Do nothing."""

    def read(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the committed offsets, once no open transaction holds them back."""
        self._world.request(f"read committed offsets of {self._group}")
        deadline = self._world.scheduler.now_s + timeout_s
        committed = self._world.cluster.committed(self._group, partitions, deadline=deadline)
        if committed is None:
            raise LedgerUnavailableError(
                f"committed offsets of group {self._group} are held back", group_id=self._group
            )
        return dict(committed)


class SimulatedLookup(MemoryLookup):
    """The look-ups of a model, each a request."""

    def cluster_id(self) -> str:
        """Return the cluster's id."""
        return world_named(self._name).cluster.cluster_id

    def topics(self, names: Iterable[str]) -> dict[str, Any]:
        """See `MemoryLookup`."""
        world_named(self._name).request("describe topics")
        return super().topics(names)

    def group_members(self, group_id: str) -> list[str]:
        """See `MemoryLookup`."""
        world_named(self._name).request("describe the group")
        return super().group_members(group_id)

    def _of_each(
        self, partitions: Collection[TopicPartition], ask: Callable[[PartitionLog], _Answer]
    ) -> dict[TopicPartition, _Answer]:
        world = world_named(self._name)
        world.request("ask about logs")
        return {tp: ask(world.cluster.log(tp)) for tp in partitions}


class SimulatedReader(MemoryReader):
    """The reader of a model, whose rounds are requests."""

    def _round(self) -> Iterator[Any]:
        world_named(self._name).request("fetch")
        return super()._round()


def _ledger(name: str, lookup: Any, *, topic: str, timeout_s: float) -> Ledger:
    settings = ClientSettings.of({"bootstrap.servers": f"memory:{name}"})
    return Ledger(settings, lookup, topic=topic, timeout_s=timeout_s)


def _reader(
    name: str,
    _group_id: str,
    isolation: Isolation,
    wanted: Mapping[TopicPartition, OffsetSet],
    **options: Any,
) -> SimulatedReader:
    return SimulatedReader(name, isolation, wanted, **options)


# --- the clock, chance and threads ---------------------------------------------------------------


class _Clock:
    """The module `time`, for the package alone."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        """Return the history's clock."""
        world = World.running
        return time.monotonic() if world is None else world.scheduler.now_s

    def time(self) -> float:
        """Return the history's clock."""
        world = World.running
        return time.time() if world is None else world.scheduler.now_s

    def time_ns(self) -> int:
        """Return the history's clock."""
        return int(self.time() * 1e9)

    def sleep(self, seconds: float) -> None:
        """Wait on the history's clock."""
        world = World.running
        if world is None:
            time.sleep(seconds)
        else:
            world.scheduler.sleep(seconds)


class _Chance:
    """The module `random`, for the package alone."""

    def __getattr__(self, name: str) -> Any:
        world = World.running
        return getattr(random if world is None else world.random, name)


class _NoThread:
    """A thread that does nothing: it would only tell people, or renew a courtesy."""

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        """Do nothing."""

    def join(self) -> None:
        """Do nothing."""


class _Inline:
    """An executor that runs calls in the caller's thread."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, call: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
        """Run the calls."""
        return [call(argument) for argument in arguments]


def _named() -> uuid.UUID:
    world = World.running
    if world is None:
        raise AssertionError("a name is made outside of a history")
    return uuid.UUID(int=world.random.getrandbits(128), version=4)


@contextmanager
def patched() -> Iterator[pytest.MonkeyPatch]:
    """Replace what is below the package's code, in the block."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock, chance = _Clock(), _Chance()
        for name, module in list(sys.modules.items()):
            if not name.startswith("kafka_ordered_ops"):
                continue
            for attribute, original, replacement in (
                ("time", time, clock),
                ("random", random, chance),
                ("uuid", uuid, SimpleNamespace(uuid4=_named, UUID=uuid.UUID)),
            ):
                if getattr(module, attribute, None) is original:
                    monkeypatch.setattr(module, attribute, replacement)
        set_ = monkeypatch.setattr
        set_(calls, "threading", SimpleNamespace(Thread=_NoThread, Event=threading.Event))
        set_(queue, "Thread", _NoThread)
        set_(contents, "ThreadPoolExecutor", _Inline)
        set_(reading, "ThreadPoolExecutor", _Inline)
        # The clients of the ledger.
        set_(ClientSettings, "_forced_common", lambda self: {})
        for client in (transaction, queue):
            set_(client, "open_client", lambda _, config, __: SimulatedProducer(config))
        set_(
            transaction,
            "send_offsets_to_transaction",
            lambda producer, group_id, offsets, timeout_s: producer.send_offsets(
                group_id, offsets, timeout_s
            ),
        )
        set_(ledger_module, "LedgerLog", SimulatedLog)
        set_(ledger_module, "LedgerTopic", SimulatedTopic)
        set_(ledger_module, "OffsetsReader", SimulatedOffsets)
        monkeypatch.setitem(doors.DOORS, "open_ledger", _ledger)
        monkeypatch.setitem(doors.DOORS, "open_lookup", lambda name, **_: SimulatedLookup(name))
        monkeypatch.setitem(doors.DOORS, "open_reader", _reader)
        # As on brokers: a call with time left starts over.
        set_(kafka_ordered_ops.windows.service, "outages_pass", lambda _: True)
        # The store, in every module that has its name already.
        for place in (store, publisher, reading, cleaning, probe):
            set_(place, "open_store", _open_store)
        # The file system.
        put_in(monkeypatch, lambda: None if World.running is None else World.running.folder)
        yield monkeypatch


def _open_store(root: str, _: object = None) -> Any:
    world = World.running
    if world is None:
        raise AssertionError("a store is opened outside of a history")
    return world.store
