"""The parts of a group's records in the ledger, and their values: the newest ones are held, the others fetched again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kafka_ordered_ops.core.errors import LedgerCorruptError
from kafka_ordered_ops.core.group.ledger.damage import damage_error, place_in_record
from kafka_ordered_ops.core.group.ledger.messages import RecordName
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.core.types import TopicPartition

#: Values of windows that a process keeps: the open windows of most groups, and some thousand old ones of an
#: hourly job. Twice the largest plan, so that a window just written need not be fetched to be read.
HELD_BYTES_MAX: Final = 32 * 1024 * 1024

#: Kinds of records of which a group has one for each window: not held for long.
_OF_WINDOWS: Final = frozenset({"window", "processed", "forgotten"})

#: Values by offset, of rising offsets of the ledger's partition; those that are gone from the log are left out.
Fetch = Callable[[Sequence[int]], Mapping[int, bytes]]


class StaleFoldError(Exception):
    """The fold may hold records that are gone from the log: fold the log again from its start."""


class _Chunk(NamedTuple):
    generation: int
    parts: int
    #: Its place in the ledger.
    offset: int
    #: None: let go, and fetched again when it is needed.
    value: bytes | None


@dataclass(frozen=True, slots=True)
class _Damaged:
    """An invalid part, and its place."""

    offset: int


class StoredParts:
    """The newest parts of every record of a group.

    A group has few open windows and may have a hundred thousand old ones: where values can be fetched again, those of
    windows are held up to `held_bytes_max`, and of the oldest only their places.
    """

    def __init__(
        self, where: TopicPartition, group_id: str, fetch: Fetch | None, held_bytes_max: int
    ) -> None:
        self._where = where
        self._group_id = group_id
        self._fetch = fetch
        self._held_bytes_max = held_bytes_max
        self._parts: dict[RecordName, dict[int, _Chunk | _Damaged]] = {}
        # The parts of windows whose values are held, the oldest first. Some are overwritten since.
        self._held: deque[tuple[RecordName, int, _Chunk]] = deque()
        self._held_bytes = 0

    def __contains__(self, record: RecordName) -> bool:
        return record in self._parts

    def __iter__(self) -> Iterator[RecordName]:
        return iter(self._parts)

    def put(
        self,
        record: RecordName,
        number: int,
        offset: int,
        value: bytes,
        headers: Mapping[str, str | bytes | None],
    ) -> bool:
        """Take in a part; return whether it is a valid one."""
        part: _Chunk | _Damaged
        try:
            part = _Chunk(*place_in_record(headers), offset, value)
        except JsonError:
            # Reported when it is needed: a later valid write fixes the record.
            part = _Damaged(offset)
        self._parts.setdefault(record, {})[number] = part
        if not isinstance(part, _Chunk):
            return False
        if record.kind in _OF_WINDOWS:
            self._hold(record, number, part, len(value))
        return True

    def drop(self, record: RecordName, number: int) -> None:
        """Take a part away."""
        parts = self._parts.get(record, {})
        parts.pop(number, None)
        if not parts:
            self._parts.pop(record, None)

    def numbers(self, record: RecordName) -> list[int]:
        """Return the numbers of the parts that a record has; none where there is no such record."""
        return sorted(self._parts.get(record, ()))

    def first_offset(self, record: RecordName) -> int:
        """Return the offset of the oldest part of a record."""
        return min(part.offset for part in self._parts[record].values())

    def newest_offset(self, record: RecordName) -> int:
        """Return the offset of the newest part of a record."""
        return max(part.offset for part in self._parts[record].values())

    def record_at(self, offset: int) -> RecordName | None:
        """Return the record that has a part at this offset; None where there is none, or no longer."""
        for name, parts in self._parts.items():
            if any(part.offset == offset for part in parts.values()):
                return name
        return None

    def let_go(self, record: RecordName) -> None:
        """Let the values of a record go, where they can be fetched again."""
        if self._fetch is None:
            return
        for number, part in list(self._parts[record].items()):
            if isinstance(part, _Chunk):
                self._let_go(record, number, part)

    def fetched(self, names: Iterable[RecordName]) -> Mapping[int, bytes]:
        """Return the values of records that were let go, by offset."""
        absent = sorted(
            part.offset
            for name in names
            for part in self._parts[name].values()
            if isinstance(part, _Chunk) and part.value is None
        )
        return self._fetch(absent) if absent and self._fetch is not None else {}

    def text(self, record: RecordName, values: Mapping[int, bytes]) -> bytes:
        """Return a record from its parts; `values` has those that were let go.

        Raises:
            LedgerCorruptError: parts are missing, or damaged.
            StaleFoldError: a part is gone from the log.
        """
        parts = self._parts[record]
        damaged = [part for part in parts.values() if isinstance(part, _Damaged)]
        if damaged:
            raise self.corrupt(record, f"offset {damaged[0].offset} lacks the headers of a part")
        whole = {number: part for number, part in parts.items() if isinstance(part, _Chunk)}
        newest = max(part.generation for part in whole.values())
        current = {number: part for number, part in whole.items() if part.generation == newest}
        wanted = next(iter(current.values())).parts
        # Counted before it is compared: the number comes from the log, and may be any.
        if len(current) != wanted or set(current) != set(range(wanted)):
            raise self.corrupt(record, f"{len(current)} of {wanted} parts are there")
        pieces = []
        for part in (current[number] for number in range(wanted)):
            piece = values.get(part.offset) if part.value is None else part.value
            if piece is None:
                raise StaleFoldError(f"{record} is gone from offset {part.offset}")
            pieces.append(piece)
        return b"".join(pieces)

    def corrupt(self, record: RecordName, why: object) -> LedgerCorruptError:
        """Return the error of a record that cannot be read."""
        offset = self.newest_offset(record)
        return damage_error(self._where, self._group_id, record, offset, str(why))

    def _hold(self, record: RecordName, number: int, part: _Chunk, size: int) -> None:
        """Hold a value of a window for now, and let the oldest go when they become too many."""
        if self._fetch is None:
            return
        self._held.append((record, number, part))
        self._held_bytes += size
        while self._held_bytes > self._held_bytes_max:
            oldest, number, part = self._held.popleft()
            self._held_bytes -= len(part.value or b"")
            self._let_go(oldest, number, part)

    def _let_go(self, record: RecordName, number: int, part: _Chunk) -> None:
        parts = self._parts.get(record, {})
        if parts.get(number) is part:
            parts[number] = _Chunk(part.generation, part.parts, part.offset, None)
