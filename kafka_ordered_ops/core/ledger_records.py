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
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

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

#: Values of windows that a process keeps: the open windows of most groups, and some thousand old ones of an
#: hourly job. Twice the largest plan, so that a window just written need not be fetched to be looked at.
HELD_BYTES_MAX: Final = 32 * 1024 * 1024

#: Windows parsed at once where all are looked at; only those that are wanted stay.
_WINDOWS_AT_ONCE: Final = 1_000

#: A key of ours has no space around it, which is what takes the standard function half of its time.
_DECODER: Final = json.JSONDecoder()

_GENERATION: Final = "koo-generation"
_PARTS: Final = "koo-parts"

#: As a client hands them out.
Headers = Sequence[tuple[str, str | bytes | None]] | Mapping[str, str | bytes | None]

#: (key, value, headers); a value of None is a tombstone.
LedgerMessage = tuple[bytes, bytes | None, dict[str, str]]


class RecordName(NamedTuple):
    """Which record of a group: its kind, and the window id or partition it is about."""

    kind: str
    name: str = ""


STATE: Final = RecordName("state")


class _Part(NamedTuple):
    generation: int
    parts: int
    #: Where it stands in the ledger.
    offset: int
    #: None: let go, and fetched again when it is needed.
    value: bytes | None


@dataclass(frozen=True, slots=True)
class _Damaged:
    """A part that cannot be one, and where it stands."""

    offset: int


#: Values by offset, of rising offsets of the ledger's partition; those that are gone from the log are left out.
Fetch = Callable[[Sequence[int]], Mapping[int, bytes]]

#: Whether a window belongs in a view of all of them.
Keep = Callable[[WindowRecord], bool]


class StaleFoldError(Exception):
    """What was let go is gone from the log: something newer has come in its place. Fold the log anew."""


def record_key(group: str, record: RecordName, part: int) -> bytes:
    """The key of one part of a record."""
    return strict_json.dumps([group, record.kind, record.name, part]).encode()


class LedgerFold:
    """One group's records, folded from the messages of its ledger partition in their order.

    Compaction does no harm to the fold: the newest record of a key is never removed, and what was folded
    stays folded. A group has few open windows and may have a hundred thousand old ones: where values can be
    fetched again, those of windows are held up to `held_bytes_max`, and of the oldest only their places.
    """

    def __init__(
        self,
        where: TopicPartition,
        group: str,
        *,
        fetch: Fetch | None = None,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self.where = where
        self.group = group
        self._fetch = fetch
        self._held_bytes_max = held_bytes_max
        self._key_prefix = strict_json.dumps([group])[:-1].encode() + b","
        self._parts: dict[RecordName, dict[int, _Part | _Damaged]] = {}
        self._times: dict[RecordName, None] = {}
        #: What was parsed of the records that every view needs; and the windows of the last one.
        self._parsed: dict[RecordName, Any] = {}
        self._looked_at: dict[RecordName, WindowRecord] = {}
        # The parts of windows whose values are held, the oldest first. Some are overwritten since.
        self._held: deque[tuple[RecordName, int, _Part]] = deque()
        self._held_bytes = 0

    def take(
        self,
        offset: int,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Callable[[], Headers | None],
    ) -> None:
        """Folds one message; those of other groups, and of anybody else's, are passed over.

        Their headers are not even asked for: nobody knows what others write there.
        """
        data = key.encode() if isinstance(key, str) else key
        # The keys of other groups need no parsing.
        if data is None or not data.startswith(self._key_prefix):
            return
        parsed = _parse_key(data)
        if parsed is not None and parsed[0] == self.group:
            _, kind, name, number = parsed
            self._fold(RecordName(kind, name), number, offset, value, headers() or [])

    def view(
        self, wanted: Collection[str] = (), *, everything: bool = False, keep: Keep | None = None
    ) -> GroupView:
        """The group as folded: its state, time maps, open windows, and those wanted by id.

        With `everything` all of its windows; with `keep` those of all that it says yes to, besides.

        Raises:
            LedgerCorruptError, LedgerVersionError: a record cannot be read.
            StaleFoldError: the log has changed under the fold.
        """
        state: GroupState | None = self._parse_all([STATE], GroupState.from_json).get(STATE)
        if state is not None and state.group != self.group:
            raise self._corrupt(STATE, f"it is the state of group {state.group!r}")
        ids = {*(state.open if state else ()), *wanted}
        windows = self._windows([RecordName("window", one) for one in ids])
        self._looked_at = dict(windows)
        if everything or keep is not None:
            others = [name for name in self._parts if name.kind == "window" and name not in windows]
            others.sort(key=lambda name: min(part.offset for part in self._parts[name].values()))
            for at in range(0, len(others), _WINDOWS_AT_ONCE):
                for name, record in self._windows(others[at : at + _WINDOWS_AT_ONCE]).items():
                    if keep is None or keep(record):
                        windows[name] = record
        time_maps = {
            self._partition_of(name): time_map
            for name, time_map in self._parse_all(self._times, TimeMap.from_json).items()
        }
        view = GroupView(
            self.group,
            state,
            {name.name: record for name, record in windows.items()},
            {tp: time_map for tp, time_map in time_maps.items() if time_map},
        )
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
        self._looked_at.pop(record, None)
        if value is None:
            parts = self._parts.get(record, {})
            parts.pop(number, None)
            if not parts:
                self._parts.pop(record, None)
                self._times.pop(record, None)
            return
        data = value.encode() if isinstance(value, str) else value
        found = dict(headers)
        part: _Part | _Damaged
        try:
            part = _Part(int(found[_GENERATION] or ""), int(found[_PARTS] or ""), offset, data)
        except (KeyError, ValueError, TypeError):
            # Told when somebody needs it: a good writing behind it mends the record.
            part = _Damaged(offset)
        self._parts.setdefault(record, {})[number] = part
        if record.kind == "times":
            self._times[record] = None
        elif record.kind == "window" and isinstance(part, _Part):
            self._hold(record, number, part, len(data))

    def _hold(self, record: RecordName, number: int, part: _Part, size: int) -> None:
        """Holds a window's value for now, and lets the oldest go when they become too many."""
        if self._fetch is None:
            return
        self._held.append((record, number, part))
        self._held_bytes += size
        while self._held_bytes > self._held_bytes_max:
            oldest, number, part = self._held.popleft()
            self._held_bytes -= len(part.value or b"")
            self._let_go(oldest, number, part)

    def _let_go(self, record: RecordName, number: int, part: _Part) -> None:
        parts = self._parts.get(record, {})
        if parts.get(number) is part:
            parts[number] = _Part(part.generation, part.parts, part.offset, None)

    def _windows(self, names: Collection[RecordName]) -> dict[RecordName, WindowRecord]:
        """Those of the windows that there are; what the last view held is not parsed again."""
        unknown = [name for name in names if name in self._parts and name not in self._looked_at]
        values = self._fetched(unknown)
        windows: dict[RecordName, WindowRecord] = {}
        for name in names:
            if name in self._looked_at:
                windows[name] = self._looked_at[name]
            elif name in self._parts:
                windows[name] = self._parse(name, WindowRecord.from_json, values)
                self._check_identity(name, windows[name])
        return windows

    def _parse_all(
        self, names: Iterable[RecordName], read: Callable[[Fields], Any]
    ) -> dict[RecordName, Any]:
        """Those of the records that there are, each parsed once after every writing."""
        there = [name for name in names if name in self._parts]
        values = self._fetched([name for name in there if name not in self._parsed])
        for name in there:
            if name in self._parsed:
                continue
            self._parsed[name] = self._parse(name, read, values)
            for number, part in list(self._parts[name].items()):
                if self._fetch is not None and isinstance(part, _Part):
                    self._let_go(name, number, part)
        return {name: self._parsed[name] for name in there}

    def _fetched(self, names: Iterable[RecordName]) -> Mapping[int, bytes]:
        """The values of records that were let go, by offset."""
        absent = sorted(
            part.offset
            for name in names
            for part in self._parts[name].values()
            if isinstance(part, _Part) and part.value is None
        )
        return self._fetch(absent) if absent and self._fetch is not None else {}

    def _parse(
        self, record: RecordName, read: Callable[[Fields], Any], values: Mapping[int, bytes]
    ) -> Any:
        """A record from its parts; `values` has those that were let go."""
        parts = self._parts[record]
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
        pieces = []
        for part in (current[number] for number in range(wanted)):
            piece = values.get(part.offset) if part.value is None else part.value
            if piece is None:
                raise StaleFoldError(f"{record} is gone from offset {part.offset}")
            pieces.append(piece)
        data = b"".join(pieces)
        try:
            return read(Fields(strict_json.loads(data, limit_bytes=RECORD_BYTES_MAX), record.kind))
        except JsonVersionError as error:
            raise LedgerVersionError(
                f"group {self.group}: the {record.kind} record {record.name!r} in the ledger {self.where}: {error}. "
                "Upgrade this package to the version that wrote it"
            ) from error
        except JsonError as error:
            raise self._corrupt(record, str(error)) from error

    def _check_identity(self, name: RecordName, record: WindowRecord) -> None:
        """A window must be what its key says."""
        if (record.plan.group, record.plan.window_id) != (self.group, name.name):
            raise self._corrupt(
                name, f"it is window {record.plan.window_id!r} of group {record.plan.group!r}"
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


def _parse_key(key: bytes) -> tuple[str, str, str, int] | None:
    """The four parts of a key of ours; None for a record of anybody else's."""
    try:
        text = key.decode()
        parts, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if end != len(text) or not isinstance(parts, list):
        return None
    if [type(part) for part in parts] != [str, str, str, int]:
        return None
    return parts[0], parts[1], parts[2], parts[3]
