"""Restore one record of the ledger that another program wrote over.

The record before it is usually still in the log: compaction keeps the newest segment, and the ledger is compacted only when a tenth
of it is old. While the state of a group cannot be read, no process changes the group, so that nothing is lost by restoring it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kafka_ordered_ops.core.errors import ConfigError, LedgerCorruptError, LedgerVersionError
from kafka_ordered_ops.core.group.ledger.messages import (
    FORGOTTEN,
    GENERATION,
    PARTS,
    RECORD_BYTES_MAX,
    STATE,
    SUMMARY,
    LedgerMessage,
    RecordName,
    parse_key,
    record_key,
)
from kafka_ordered_ops.core.group.ledger.records import Headers, LedgerFold
from kafka_ordered_ops.core.types import TopicPartition

_OWN_HEADERS: Final = (GENERATION, PARTS, SUMMARY, FORGOTTEN)


@dataclass(frozen=True, slots=True)
class RestoredRecord:
    """A record of a group that was restored, or that would be."""

    group_id: str
    #: ``state``, ``window``, ``processed``, ``forgotten`` or ``times``, and the window id or partition that it is about.
    kind: str
    name: str
    #: The offset of the unreadable record in the group's partition of the ledger.
    offset: int
    #: Where the record is that was written again; None: there was none, and the unreadable one was removed.
    restored_from: int | None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "group": self.group_id,
            "kind": self.kind,
            "name": self.name,
            "offset": self.offset,
            "restored_from": self.restored_from,
        }


class _Write(NamedTuple):
    offset: int
    number: int
    value: bytes | None
    headers: Mapping[str, str | bytes | None]


class RecordHistory:
    """The writes of one record, in the order of the log; of a long history the newest."""

    def __init__(self, group_id: str, record: RecordName) -> None:
        self._group_id = group_id
        self._record = record
        self._writes: deque[_Write] = deque()
        self._bytes = 0

    def take(
        self,
        offset: int,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Callable[[], Headers | None],
    ) -> None:
        """Take in one message of the ledger."""
        parsed = parse_key(key.encode() if isinstance(key, str) else key or b"")
        if parsed is None or parsed[:3] != (self._group_id, *self._record):
            return
        data = value.encode() if isinstance(value, str) else value
        self._writes.append(_Write(offset, parsed[3], data, dict(headers() or {})))
        self._bytes += len(data or b"")
        while self._bytes > 2 * RECORD_BYTES_MAX:
            self._bytes -= len(self._writes.popleft().value or b"")

    def states(self) -> Iterator[dict[int, _Write]]:
        """Yield what the record was after each write, by the numbers of its parts: the newest first."""
        states: list[dict[int, _Write]] = []
        for write in self._writes:
            before = states[-1] if states else {}
            others = {number: part for number, part in before.items() if number != write.number}
            states.append(others if write.value is None else {**others, write.number: write})
        yield from reversed(states)


def damaged_record(fold: LedgerFold, offset: int) -> RecordName:
    """Return the record that has a part at this offset; raise `ConfigError` unless there is one that cannot be read."""
    record = fold.record_at(offset)
    if record is None:
        raise ConfigError(
            f"group {fold.group_id} has no record at offset {offset} of the ledger {fold.where}: it was restored or written "
            "again since, or is another group's. Take the offset from the error about the record"
        )
    try:
        fold.check(record)
    except (LedgerCorruptError, LedgerVersionError):
        return record
    raise ConfigError(
        f"group {fold.group_id}: the {record.kind} record {record.name!r} at offset {offset} of the ledger {fold.where} can be "
        "read. Only a record that cannot be read is restored"
    )


def restoration(
    fold: LedgerFold, record: RecordName, offset: int, history: RecordHistory
) -> tuple[RestoredRecord, list[LedgerMessage]]:
    """Return what becomes of an unreadable record, and the messages that do it.

    It is written again as it last could be read. Where the log no longer has that, it is removed; the state of a group with
    windows is emptied instead, so that it counts as damaged, and never as that of a new group.
    """
    group_id = fold.group_id
    parts: Mapping[int, _Write] = {}
    was_removed = False
    for parts in history.states():
        # What was removed on purpose does not come back.
        if was_removed := not parts:
            break
        if _reads(fold.where, group_id, record, parts):
            break
    else:
        parts = {}
    messages: list[LedgerMessage] = [
        (record_key(group_id, record, number), write.value, _own(write.headers))
        for number, write in sorted(parts.items())
    ]
    if not parts and not was_removed and record == STATE and fold.knows_windows():
        messages.append((record_key(group_id, record, 0), b"", {GENERATION: "1", PARTS: "1"}))
    written = {key for key, _, _ in messages}
    messages += [
        (key, None, {})
        for number in fold.numbers_of(record)
        if (key := record_key(group_id, record, number)) not in written
    ]
    restored_from = max((write.offset for write in parts.values()), default=None)
    return RestoredRecord(group_id, record.kind, record.name, offset, restored_from), messages


def _reads(
    where: TopicPartition, group_id: str, record: RecordName, state: Mapping[int, _Write]
) -> bool:
    fold = LedgerFold(where, group_id)
    for number, write in state.items():
        key = record_key(group_id, record, number)
        fold.take(write.offset, key, write.value, lambda headers=write.headers: headers)  # type: ignore[misc]
    try:
        fold.check(record)
    except (LedgerCorruptError, LedgerVersionError):
        return False
    return True


def _own(headers: Mapping[str, str | bytes | None]) -> dict[str, str]:
    """Return the headers of this package's own, as text; others are not written again."""
    own: dict[str, str] = {}
    for name in _OWN_HEADERS:
        value = headers.get(name)
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        if text is not None:
            own[name] = text
    return own
