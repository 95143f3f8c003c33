"""The ledger's records: how a group's state lies in a compacted topic, and how it is read back.

Key: the JSON list ``[group, kind, name, part]``; kinds are ``state``, ``window`` and ``times``. Value: a part
of a JSON text, at most `PART_BYTES_MAX` long. Two headers, ``koo-generation`` and ``koo-parts``, say which
writing the part belongs to and how many there are; parts of an older, longer writing get tombstones in the
same transaction. A record is whole when all parts of its newest generation are there, and under a
transaction they always are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core import types as core
from kafka_ordered_ops.core.errors import LedgerCorruptError, LedgerUnavailableError
from kafka_ordered_ops.core.group_state import Change, GroupState, GroupView, WindowRecord
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.time_map import TimeMap
from kafka_ordered_ops.kafka.faults import FaultReasons, translate

#: Half of Kafka's default record limit: headers, keys and batch overhead fit beside it.
PART_BYTES_MAX: Final = 512 * 1024

#: A whole record: the largest plan, and its window's other fields.
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024

_GENERATION: Final = "koo-generation"
_PARTS: Final = "koo-parts"
_CONSUME_RECORDS: Final = 1_000
# `consume` waits for a full batch or this long: the end of the ledger is never a full batch.
_CONSUME_TIMEOUT_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class RecordName:
    """Which record of a group: its kind, and the window id or partition it is about."""

    kind: str
    name: str = ""


STATE: Final = RecordName("state")


@dataclass(frozen=True, slots=True)
class _Part:
    generation: int
    parts: int
    value: bytes


def record_key(group: str, record: RecordName, part: int) -> bytes:
    """The key of one part of a record."""
    return strict_json.dumps([group, record.kind, record.name, part]).encode()


class LedgerLog:
    """One group's records, folded from its ledger partition up to a position; read on from there.

    Compaction does no harm to the fold: the newest record of a key is never removed, and what was folded
    stays folded.
    """

    def __init__(self, where: core.TopicPartition, group: str) -> None:
        self.where = where
        self.group = group
        self._position: int | None = None
        self._parts: dict[RecordName, dict[int, _Part]] = {}
        self._parsed: dict[RecordName, Any] = {}

    @property
    def position(self) -> int:
        """Everything below this offset of the ledger's partition is folded."""
        return self._position or 0

    def read_to(
        self,
        end: int,
        *,
        log_start: int,
        consumer: Consumer,
        reasons: FaultReasons,
        deadline: float,
    ) -> None:
        """Folds everything below `end`; `deadline` is a `time.monotonic` moment.

        Raises:
            LedgerUnavailableError: the position does not reach the end in time. Under read_committed that
                is so while a transaction of any group is open in the partition.
        """
        position = log_start if self._position is None else self._position
        if position >= end:
            return
        tp = TopicPartition(self.where.topic, self.where.partition, position)
        consumer.assign([tp])
        try:
            while position < end:
                for message in consumer.consume(_CONSUME_RECORDS, _CONSUME_TIMEOUT_S):
                    position = max(position, self._take(message, reasons))
                [now] = consumer.position([tp])
                position = max(position, now.offset)
                # What is folded stays folded, even if the rest does not come.
                self._position = position
                if position < end and time.monotonic() > deadline:
                    raise LedgerUnavailableError(
                        f"group {self.group}: the ledger {self.where} could be read up to offset {position} of "
                        f"{end}: a transaction of another process is open there, or the broker does not "
                        "answer. It ends by itself after its time-out; try again. If it does not, a broker died before it "
                        "had marked the transaction's end: see kafka-transactions.sh find-hanging and abort"
                    )
        except KafkaException as error:
            raise translate(
                error, doing="reading the ledger", where=str(self.where), reasons=reasons
            ) from error
        finally:
            consumer.unassign()

    def view(self, wanted: Collection[str] = (), *, everything: bool = False) -> GroupView:
        """The group as folded: its state, time maps, open windows, and those wanted by id."""
        state: GroupState | None = self._parse(STATE, GroupState.from_json)
        windows: dict[str, WindowRecord] = {}
        ids = {*(state.open if state else ()), *wanted}
        time_maps: dict[core.TopicPartition, TimeMap] = {}
        for record in list(self._parts):
            if record.kind == "window" and (everything or record.name in ids):
                windows[record.name] = self._parse(record, WindowRecord.from_json)
            elif record.kind == "times":
                time_maps[_partition_of(record.name)] = self._parse(record, TimeMap.from_json)
        view = GroupView(self.group, state, windows, time_maps)
        view.check()
        return view

    def messages(self, change: Change) -> Iterator[tuple[bytes, bytes | None, dict[str, str]]]:
        """A change as (key, value, headers), leftovers of longer writings as tombstones."""
        generation = change.state.sequence
        yield from self._written(STATE, change.state.to_json(), generation)
        for record in change.records:
            window = RecordName("window", record.plan.window_id)
            yield from self._written(window, record.to_json(), generation)
        for window_id in change.forgotten:
            yield from self._tombstones(RecordName("window", window_id), 0)
        for tp, time_map in change.time_maps.items():
            times = RecordName("times", str(tp))
            if time_map:
                yield from self._written(times, time_map.to_json(), generation)
            else:
                yield from self._tombstones(times, 0)

    def _written(
        self, record: RecordName, value: Mapping[str, Any], generation: int
    ) -> Iterator[tuple[bytes, bytes | None, dict[str, str]]]:
        data = strict_json.dumps(value).encode()
        parts = [data[at : at + PART_BYTES_MAX] for at in range(0, len(data), PART_BYTES_MAX)]
        headers = {_GENERATION: str(generation), _PARTS: str(len(parts))}
        for number, part in enumerate(parts):
            yield record_key(self.group, record, number), part, headers
        yield from self._tombstones(record, len(parts))

    def _tombstones(
        self, record: RecordName, from_part: int
    ) -> Iterator[tuple[bytes, bytes | None, dict[str, str]]]:
        for number in self._parts.get(record, {}):
            if number >= from_part:
                yield record_key(self.group, record, number), None, {}

    def _take(self, message: Message, reasons: FaultReasons) -> int:
        """Folds one message; the position behind it."""
        error = message.error()
        offset = message.offset()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return offset if offset is not None else 0
            raise translate(
                error, doing="reading the ledger", where=str(self.where), reasons=reasons
            )
        if offset is None:
            return 0
        key = _parse_key(message.key())
        if key is not None and key[0] == self.group:
            self._fold(RecordName(key[1], key[2]), key[3], message)
        return offset + 1

    def _fold(self, record: RecordName, number: int, message: Message) -> None:
        self._parsed.pop(record, None)
        value = message.value()
        if value is None:
            parts = self._parts.get(record, {})
            parts.pop(number, None)
            if not parts:
                self._parts.pop(record, None)
            return
        headers = dict(message.headers() or [])
        try:
            part = _Part(int(headers[_GENERATION] or ""), int(headers[_PARTS] or ""), bytes(value))
        except (KeyError, ValueError, TypeError) as error:
            raise self._corrupt(
                record, f"offset {message.offset()} lacks the headers of a part"
            ) from error
        self._parts.setdefault(record, {})[number] = part

    def _parse(self, record: RecordName, read: Any) -> Any:
        if record in self._parsed:
            return self._parsed[record]
        parts = self._parts.get(record)
        if parts is None:
            return None
        newest = max(part.generation for part in parts.values())
        current = {number: part for number, part in parts.items() if part.generation == newest}
        wanted = next(iter(current.values())).parts
        if set(current) != set(range(wanted)):
            raise self._corrupt(record, f"{len(current)} of {wanted} parts are there")
        data = b"".join(current[number].value for number in range(wanted))
        try:
            parsed = read(
                Fields(strict_json.loads(data, limit_bytes=RECORD_BYTES_MAX), record.kind)
            )
        except JsonError as error:
            raise self._corrupt(record, str(error)) from error
        self._parsed[record] = parsed
        return parsed

    def _corrupt(self, record: RecordName, why: str) -> LedgerCorruptError:
        return LedgerCorruptError(
            f"group {self.group}: the {record.kind} record {record.name!r} in the ledger {self.where} cannot be "
            f"read: {why}. Something else writes to the topic, or it was damaged: restore it, or start a new "
            "group"
        )


def _parse_key(key: bytes | str | None) -> tuple[str, str, str, int] | None:
    """The four parts of a key of ours; None for a record of anybody else's."""
    try:
        parts = json.loads(key) if key is not None else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(parts, list) or [type(part) for part in parts] != [str, str, str, int]:
        return None
    return parts[0], parts[1], parts[2], parts[3]


def _partition_of(name: str) -> core.TopicPartition:
    topic, _, number = name.removesuffix("]").rpartition("[")
    return core.TopicPartition(topic, int(number))
