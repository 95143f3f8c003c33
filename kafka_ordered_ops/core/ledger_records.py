"""The ledger's records: how a group's state lies in a compacted topic, and how it is put together again.

Key: the JSON list ``[group, kind, name, part]``; kinds are ``state``, ``window`` and ``times`` (and
``turn``, of which `kafka.turns` tells). Value: a part
of a JSON text, at most `PART_BYTES_MAX` long. Two headers, ``koo-generation`` and ``koo-parts``, say which
writing the part belongs to and how many there are; parts of an older, longer writing get tombstones in the
same transaction. A record is whole when all parts of its newest generation are there, and under a
transaction they always are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import LedgerCorruptError, LedgerVersionError
from kafka_ordered_ops.core.group_state import Change, GroupState, GroupView, WindowRecord
from kafka_ordered_ops.core.strict_json import Fields, JsonError, JsonVersionError
from kafka_ordered_ops.core.time_map import TimeMap
from kafka_ordered_ops.core.types import TopicPartition

#: Half of Kafka's default record limit: headers, keys and batch overhead fit beside it.
PART_BYTES_MAX: Final = 512 * 1024

#: A whole record: the largest plan, and its window's other fields.
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024

_GENERATION: Final = "koo-generation"
_PARTS: Final = "koo-parts"

#: As a client hands them out.
Headers = Sequence[tuple[str, str | bytes | None]] | Mapping[str, str | bytes | None]

#: (key, value, headers); a value of None is a tombstone.
LedgerMessage = tuple[bytes, bytes | None, dict[str, str]]


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


@dataclass(frozen=True, slots=True)
class _Damaged:
    """A part that cannot be one, and where it stands."""

    offset: int


def record_key(group: str, record: RecordName, part: int) -> bytes:
    """The key of one part of a record."""
    return strict_json.dumps([group, record.kind, record.name, part]).encode()


class LedgerFold:
    """One group's records, folded from the messages of its ledger partition in their order.

    Compaction does no harm to the fold: the newest record of a key is never removed, and what was folded
    stays folded.
    """

    def __init__(self, where: TopicPartition, group: str) -> None:
        self.where = where
        self.group = group
        self._parts: dict[RecordName, dict[int, _Part | _Damaged]] = {}
        self._parsed: dict[RecordName, Any] = {}

    def take(
        self,
        offset: int,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Callable[[], Headers | None],
    ) -> None:
        """Folds one message; those of other groups, and of anybody else's, are passed over.

        Their headers are not even asked for: nobody knows what others write there.

        Raises:
            LedgerCorruptError: it is the group's, and lacks the headers of a part.
        """
        parsed = _parse_key(key)
        if parsed is None or parsed[0] != self.group:
            return
        _, kind, name, number = parsed
        self._fold(RecordName(kind, name), number, offset, value, headers() or [])

    def view(self, wanted: Collection[str] = (), *, everything: bool = False) -> GroupView:
        """The group as folded: its state, time maps, open windows, and those wanted by id."""
        state: GroupState | None = self._parse(STATE, GroupState.from_json)
        windows: dict[str, WindowRecord] = {}
        ids = {*(state.open if state else ()), *wanted}
        time_maps: dict[TopicPartition, TimeMap] = {}
        for record in list(self._parts):
            if record.kind == "window" and (everything or record.name in ids):
                windows[record.name] = self._parse(record, WindowRecord.from_json)
            elif record.kind == "times":
                time_maps[self._partition_of(record)] = self._parse(record, TimeMap.from_json)
        self._check_identity(state, windows)
        known = {tp: time_map for tp, time_map in time_maps.items() if time_map}
        view = GroupView(self.group, state, windows, known)
        view.check()
        return view

    def messages(self, change: Change) -> Iterator[LedgerMessage]:
        """A change as (key, value, headers), leftovers of longer writings as tombstones."""
        generation = change.state.sequence
        yield from self._written(STATE, change.state.to_json(), generation)
        for record in change.records:
            window = RecordName("window", record.plan.window_id)
            yield from self._written(window, record.to_json(), generation)
        for window_id in change.forgotten:
            yield from self._tombstones(RecordName("window", window_id), 0)
        for tp, time_map in change.time_maps.items():
            # An empty map is written too: a tombstone goes from the log after a day, and a process that had
            # been idle until then would go on with the map that it folded before.
            times = RecordName("times", str(tp))
            yield from self._written(times, time_map.to_json(), generation)

    def _written(
        self, record: RecordName, value: Mapping[str, Any], generation: int
    ) -> Iterator[LedgerMessage]:
        data = strict_json.dumps(value).encode()
        parts = [data[at : at + PART_BYTES_MAX] for at in range(0, len(data), PART_BYTES_MAX)]
        headers = {_GENERATION: str(generation), _PARTS: str(len(parts))}
        for number, part in enumerate(parts):
            yield record_key(self.group, record, number), part, headers
        yield from self._tombstones(record, len(parts))

    def _tombstones(self, record: RecordName, from_part: int) -> Iterator[LedgerMessage]:
        for number in self._parts.get(record, {}):
            if number >= from_part:
                yield record_key(self.group, record, number), None, {}

    def _fold(
        self,
        record: RecordName,
        number: int,
        offset: int,
        value: bytes | str | None,
        headers: Headers,
    ) -> None:
        self._parsed.pop(record, None)
        if value is None:
            parts = self._parts.get(record, {})
            parts.pop(number, None)
            if not parts:
                self._parts.pop(record, None)
            return
        data = value.encode() if isinstance(value, str) else value
        found = dict(headers)
        part: _Part | _Damaged
        try:
            part = _Part(int(found[_GENERATION] or ""), int(found[_PARTS] or ""), data)
        except (KeyError, ValueError, TypeError):
            # Told when somebody needs it: a good writing behind it mends the record.
            part = _Damaged(offset)
        self._parts.setdefault(record, {})[number] = part

    def _parse(self, record: RecordName, read: Any) -> Any:
        if record in self._parsed:
            return self._parsed[record]
        parts = self._parts.get(record)
        if parts is None:
            return None
        damaged = [part for part in parts.values() if isinstance(part, _Damaged)]
        if damaged:
            raise self._corrupt(record, f"offset {damaged[0].offset} lacks the headers of a part")
        whole = {number: part for number, part in parts.items() if isinstance(part, _Part)}
        newest = max(part.generation for part in whole.values())
        current = {number: part for number, part in whole.items() if part.generation == newest}
        wanted = next(iter(current.values())).parts
        # Counted before it is compared: the number comes from the log, and may be any.
        if len(current) != wanted or set(current) != set(range(wanted)):
            raise self._corrupt(record, f"{len(current)} of {wanted} parts are there")
        data = b"".join(current[number].value for number in range(wanted))
        try:
            parsed = read(
                Fields(strict_json.loads(data, limit_bytes=RECORD_BYTES_MAX), record.kind)
            )
        except JsonVersionError as error:
            raise LedgerVersionError(
                f"group {self.group}: the {record.kind} record {record.name!r} in the ledger {self.where}: {error}. "
                "Upgrade this package to the version that wrote it"
            ) from error
        except JsonError as error:
            raise self._corrupt(record, str(error)) from error
        self._parsed[record] = parsed
        return parsed

    def _check_identity(
        self, state: GroupState | None, windows: Mapping[str, WindowRecord]
    ) -> None:
        """Each record must be what its key says."""
        if state is not None and state.group != self.group:
            raise self._corrupt(STATE, f"it is the state of group {state.group!r}")
        for name, record in windows.items():
            if (record.plan.group, record.plan.window_id) != (self.group, name):
                raise self._corrupt(
                    RecordName("window", name),
                    f"it is window {record.plan.window_id!r} of group {record.plan.group!r}",
                )

    def _partition_of(self, record: RecordName) -> TopicPartition:
        topic, opening, number = record.name.removesuffix("]").rpartition("[")
        if not (opening and number.isdecimal()):
            raise self._corrupt(record, "its name is no partition")
        return TopicPartition(topic, int(number))

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
