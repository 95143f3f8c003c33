"""A group's records in the ledger: how they are stored in a compacted topic, and how they are put together again.

Key: the JSON list ``[group, kind, name, part]``; kinds are ``state``, ``window``, ``processed``, ``forgotten`` and
``times`` (and ``turn``, see `kafka.ledger.queue`). Value: a part of a JSON text, at most `ledger_messages.PART_BYTES_MAX` long. Two
headers, ``koo-generation`` and ``koo-parts``, name the write that the part belongs to and the number of parts. Parts of
an older, longer write get tombstones in the same transaction. A record is complete when all parts of its newest
generation exist; a transaction guarantees it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import LedgerCorruptError
from kafka_ordered_ops.core.group.group_state import (
    Change,
    Forgotten,
    GroupState,
    GroupView,
    WindowRecord,
)
from kafka_ordered_ops.core.group.ledger_damage import (
    check_state,
    check_window,
    count_of,
    damage_error,
    partition_of,
    place_in_record,
    version_error,
)
from kafka_ordered_ops.core.group.ledger_messages import (
    FORGOTTEN,
    GENERATION,
    RECORD_BYTES_MAX,
    STATE,
    SUMMARY,
    UNREADABLE,
    parse_key,
    written,
)
from kafka_ordered_ops.core.group.ledger_messages import LedgerMessage as LedgerMessage
from kafka_ordered_ops.core.group.ledger_messages import RecordName as RecordName
from kafka_ordered_ops.core.group.ledger_messages import record_key as record_key
from kafka_ordered_ops.core.group.processed import ProcessedOffsets
from kafka_ordered_ops.core.group.summaries import Summaries, WindowSummary
from kafka_ordered_ops.core.planning.time_map import TimeMap
from kafka_ordered_ops.core.strict_json import Fields, JsonError, JsonVersionError
from kafka_ordered_ops.core.types import TopicPartition

#: Values of windows that a process keeps: the open windows of most groups, and some thousand old ones of an
#: hourly job. Twice the largest plan, so that a window just written need not be fetched to be read.
HELD_BYTES_MAX: Final = 32 * 1024 * 1024

#: What each kind of record is, and parsed by.
_KINDS: Final[Mapping[str, Any]] = {
    "state": GroupState,
    "window": WindowRecord,
    "processed": ProcessedOffsets,
    "forgotten": Forgotten,
    "times": TimeMap,
}

#: Windows parsed at once if all are read; only the wanted ones stay in memory.
_WINDOWS_AT_ONCE: Final = 1_000

#: As a client hands them out.
Headers = Sequence[tuple[str, str | bytes | None]] | Mapping[str, str | bytes | None]


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


#: Values by offset, of rising offsets of the ledger's partition; those that are gone from the log are left out.
Fetch = Callable[[Sequence[int]], Mapping[int, bytes]]

#: Whether a window belongs in a view of all of them.
Keep = Callable[[WindowRecord], bool]


class StaleFoldError(Exception):
    """The fold may hold records that are gone from the log: fold the log again from its start."""


class LedgerFold:
    """One group's records, folded from the messages of its ledger partition in their order.

    Compaction removes no newest record except tombstones: a process that was idle meanwhile never reads that a window
    was forgotten. The state therefore has the number of forgotten windows, and a disagreement counts only after the
    log was folded again (`view`). A group has few open windows and may have a hundred thousand old ones: where values
    can be
    fetched again, those of windows are held up to `held_bytes_max`, and of the oldest only their places.
    """

    def __init__(
        self,
        where: TopicPartition,
        group_id: str,
        *,
        fetch: Fetch | None = None,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self.where = where
        self.group_id = group_id
        self._fetch = fetch
        self._held_bytes_max = held_bytes_max
        self._key_prefix = strict_json.dumps([group_id])[:-1].encode() + b","
        self._parts: dict[RecordName, dict[int, _Chunk | _Damaged]] = {}
        self._times: dict[RecordName, None] = {}
        #: The parsed records that every view needs; and the windows of the last one.
        self._parsed: dict[RecordName, Any] = {}
        self._looked_at: dict[RecordName, WindowRecord] = {}
        # The parts of windows whose values are held, the oldest first. Some are overwritten since.
        self._held: deque[tuple[RecordName, int, _Chunk]] = deque()
        self._held_bytes = 0
        #: Headers of windows, as they were last written, parsed when a list is made; and the list, until a record changes.
        self._summaries: dict[RecordName, bytes | WindowSummary] = {}
        self._listed: Summaries | None = None
        #: The number of forgotten windows: by the state, and by this fold. None: it has just begun.
        self._forgotten_told = 0
        self._forgotten_known: int | None = None
        #: Records that cannot be read, although the log was folded again.
        self._confirmed: set[RecordName] = set()
        self._dropped: dict[RecordName, LedgerCorruptError] = {}
        #: Time maps that cannot be read: the next change removes them.
        self._left_out: set[RecordName] = set()

    def take(
        self,
        offset: int,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Callable[[], Headers | None],
    ) -> None:
        """Fold one message; those of other groups, and of anybody else's, are passed over.

        Their headers are not read: other programs may write anything there.
        """
        data = key.encode() if isinstance(key, str) else key
        # The keys of other groups need no parsing.
        if data is None or not data.startswith(self._key_prefix):
            return
        parsed = parse_key(data)
        if parsed is not None and parsed[0] == self.group_id:
            _, kind, name, number = parsed
            self._fold(RecordName(kind, name), number, offset, value, headers() or [])

    def has_read_all(self) -> None:
        """Note that the log is folded up to its current end."""
        if self._forgotten_known is None:
            self._forgotten_known = self._forgotten_told

    def view(
        self,
        wanted: Collection[str] = (),
        *,
        everything: bool = False,
        keep: Keep | None = None,
        processed: Collection[str] = (),
        certain: bool = True,
    ) -> GroupView:
        """Return the group as folded: its state, time maps, open windows, and those wanted by id.

        With `everything` all of its windows; with `keep` also those that it accepts. A window that cannot be read is
        in `unreadable`. A time map that cannot be read is left out, and rebuilt by reading. `processed` are windows
        whose processed offsets are wanted; those that cannot be read are left out, and processed again. Unless the fold
        is `certain`, because it was recreated, it is stale after any error.

        Raises:
            LedgerCorruptError: the group's state cannot be read.
            LedgerVersionError: a newer version of this package wrote a record.
            StaleFoldError: the log has changed under the fold.
        """
        state = self._state(certain=certain)
        unreadable: dict[str, LedgerCorruptError] = {}
        ids = {*(state.open if state else ()), *wanted}
        windows = self._windows([RecordName("window", one) for one in ids], unreadable)
        self._looked_at = dict(windows)
        if everything or keep is not None:
            for some in self._in_batches(windows):
                for name, record in self._windows(some, unreadable).items():
                    if keep is None or keep(record):
                        windows[name] = record
        view = GroupView(
            self.group_id,
            state,
            {name.name: record for name, record in windows.items()},
            self._time_maps(),
            unreadable,
        )
        disagreements = view.disagreements()
        unreadable |= disagreements
        for window_id in disagreements:
            windows.pop(RecordName("window", window_id), None)
        self._confirm([RecordName("window", one) for one in unreadable], certain=certain)
        return GroupView(
            self.group_id,
            state,
            {name.name: record for name, record in windows.items()},
            view.time_maps,
            unreadable,
            self._of_windows("processed", processed, self._dropped.__setitem__),
            self._of_windows(
                "forgotten",
                wanted,
                lambda name, error: unreadable.__setitem__(name.name, error),
            ),
        )

    def summaries(self, *, certain: bool = True) -> Summaries:
        """Return the summaries of all windows, without their plans; raise the errors of `view`."""
        # Open windows are few, and an error in one of them matters.
        view = self.view(certain=certain)
        if self._listed is not None and not view.unreadable:
            return self._listed
        unreadable = dict(view.unreadable)
        found: list[WindowSummary] = []
        untold: list[RecordName] = []
        for name in self._parts:
            if name.kind == "window":
                summary = self._summaries.get(name)
                if isinstance(summary, bytes):
                    summary = WindowSummary.from_text(name.name, summary)
                if summary is None:
                    untold.append(name)
                else:
                    self._summaries[name] = summary
                    found.append(summary)
        for at in range(0, len(untold), _WINDOWS_AT_ONCE):
            records = self._windows(untold[at : at + _WINDOWS_AT_ONCE], unreadable)
            found += [WindowSummary.of(record) for record in records.values()]
        self._confirm([RecordName("window", one) for one in unreadable], certain=certain)
        made = Summaries.made(found, unreadable, view.state.unpublished if view.state else ())
        # An error may be another one when the record is read again.
        self._listed = None if unreadable else made
        return made

    def newly_dropped(self) -> list[LedgerCorruptError]:
        """Return the errors of records that were left out since the last call."""
        dropped = list(self._dropped.values())
        self._dropped.clear()
        return dropped

    def _state(self, *, certain: bool) -> GroupState | None:
        told = self._forgotten_told
        if self._forgotten_known is not None and told != self._forgotten_known and not certain:
            raise StaleFoldError(f"{told} windows were forgotten, {self._forgotten_known} known")
        self._forgotten_known = told
        try:
            state: GroupState | None = self._parse_all([STATE]).get(STATE)
        except LedgerCorruptError:
            self._confirm([STATE], certain=certain)
            raise
        return state

    def _confirm(self, wrong: Collection[RecordName], *, certain: bool) -> None:
        """Raise `StaleFoldError` for an error that was not read again yet."""
        if not certain and not self._confirmed.issuperset(wrong):
            raise StaleFoldError(f"{len(wrong)} records disagree with the fold")
        self._confirmed.update(wrong)

    def _in_batches(self, known: Collection[RecordName]) -> Iterator[list[RecordName]]:
        """Yield the other windows, as stored in the log."""
        others = [name for name in self._parts if name.kind == "window" and name not in known]
        others.sort(key=lambda name: min(part.offset for part in self._parts[name].values()))
        for at in range(0, len(others), _WINDOWS_AT_ONCE):
            yield others[at : at + _WINDOWS_AT_ONCE]

    def _time_maps(self) -> dict[TopicPartition, TimeMap]:
        found: dict[TopicPartition, TimeMap] = {}
        for name in list(self._times):
            try:
                time_map = self._parse_all([name])[name]
            except LedgerCorruptError as error:
                self._leave_out(name, error)
                continue
            if time_map:
                found[partition_of(name.name)] = time_map
        return found

    def _leave_out(self, name: RecordName, error: LedgerCorruptError) -> None:
        """Leave out a time map: its times are read again by the next plan."""
        self._dropped[name] = error
        self._times.pop(name)
        self._left_out.add(name)

    def _of_windows(
        self,
        kind: str,
        window_ids: Collection[str],
        wrong: Callable[[RecordName, LedgerCorruptError], object],
    ) -> dict[str, Any]:
        """Return the records of a kind that windows have beside their own, by id; `wrong` hears of those that are damaged."""
        found: dict[str, Any] = {}
        for name in (RecordName(kind, one) for one in window_ids):
            try:
                found |= {name.name: one for name, one in self._parse_all([name]).items()}
            except LedgerCorruptError as error:
                wrong(name, error)
        return found

    def messages(self, change: Change) -> Iterator[LedgerMessage]:
        """Yield a change as (key, value, headers), leftovers of longer writings as tombstones."""
        generation = {GENERATION: str(change.state.sequence)}
        forgotten = self._forgotten_told + len(change.forgotten)
        told = {**generation, FORGOTTEN: str(forgotten)} if forgotten else generation
        yield from self._whole(STATE, change.state.to_json(), told)
        for record in change.records:
            window = RecordName("window", record.plan.window_id)
            summary = WindowSummary.of(record).to_text()
            told = generation if summary is None else {**generation, SUMMARY: summary}
            yield from self._whole(window, record.to_json(), told)
        for window_id in change.forgotten:
            told = {FORGOTTEN: "1"}
            kinds = ("window",) if window_id in change.kept else ("window", "forgotten")
            for kind in kinds:
                for key, value, _ in self._tombstones(RecordName(kind, window_id), 0):
                    yield key, value, told
                    told = {}
        for window_id, kept in change.kept.items():
            name = RecordName("forgotten", window_id)
            yield from self._whole(name, kept.to_json(), generation)
        for window_id, processed in change.processed.items():
            name = RecordName("processed", window_id)
            yield from self._whole(name, processed.to_json(), generation)
        for window_id in sorted(change.finished):
            yield from self._tombstones(RecordName("processed", window_id), 0)
        for tp, time_map in change.time_maps.items():
            # An empty map is written too: a tombstone is removed from the log after a day, and a process that had
            # been idle until then would continue with its older map.
            times = RecordName("times", str(tp))
            yield from self._whole(times, time_map.to_json(), generation)
        written_again = {RecordName("times", str(tp)) for tp in change.time_maps}
        for name in sorted(self._left_out - written_again):
            yield from self._tombstones(name, 0)

    def removal(self) -> Iterator[LedgerMessage]:
        """Yield tombstones for every record of the group."""
        for name in list(self._parts):
            yield from self._tombstones(name, 0)

    def record_at(self, offset: int) -> RecordName | None:
        """Return the record that has a part at this offset of the ledger; None where there is none, or no longer."""
        for name, parts in self._parts.items():
            if any(part.offset == offset for part in parts.values()):
                return name
        return None

    def numbers_of(self, record: RecordName) -> list[int]:
        """Return the numbers of the parts that a record has now; none where there is no such record."""
        return sorted(self._parts.get(record, ()))

    def knows_windows(self) -> bool:
        """Return whether the group has records of windows."""
        return any(name.kind in ("window", "forgotten") for name in self._parts)

    def check(self, record: RecordName) -> None:
        """Raise `LedgerCorruptError` or `LedgerVersionError` for a record that cannot be read."""
        self._valid(record, self._fetched([record]))

    def _whole(
        self, record: RecordName, content: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Iterator[LedgerMessage]:
        """Yield a record's parts, and tombstones for further parts of a longer write."""
        read, count = _KINDS[record.kind].from_json, 0
        messages = written(self.where, self.group_id, record, content, read, headers)
        for count, message in enumerate(messages, start=1):  # noqa: B007
            yield message
        yield from self._tombstones(record, count)

    def _tombstones(self, record: RecordName, from_part: int) -> Iterator[LedgerMessage]:
        for number in self._parts.get(record, {}):
            if number >= from_part:
                yield record_key(self.group_id, record, number), None, {}

    def _fold(
        self,
        record: RecordName,
        number: int,
        offset: int,
        value: bytes | str | None,
        headers: Headers,
    ) -> None:
        self._listed = None
        self._parsed.pop(record, None)
        self._left_out.discard(record)
        self._looked_at.pop(record, None)
        self._confirmed.discard(record)
        if number == 0:
            self._summaries.pop(record, None)
        if value is None:
            if self._forgotten_known is not None and FORGOTTEN in dict(headers):
                self._forgotten_known += 1
            parts = self._parts.get(record, {})
            parts.pop(number, None)
            if not parts:
                self._parts.pop(record, None)
                self._times.pop(record, None)
            return
        data = value.encode() if isinstance(value, str) else value
        found = dict(headers)
        part: _Chunk | _Damaged
        try:
            part = _Chunk(*place_in_record(found), offset, data)
        except JsonError:
            # Reported when it is needed: a later valid write fixes the record.
            part = _Damaged(offset)
        self._parts.setdefault(record, {})[number] = part
        if record == STATE and number == 0:
            self._forgotten_told = count_of(found.get(FORGOTTEN))
        if record.kind == "times":
            self._times[record] = None
        elif record.kind in ("window", "processed", "forgotten") and isinstance(part, _Chunk):
            if number == 0 and (summary := found.get(SUMMARY)) is not None:
                self._summaries[record] = summary.encode() if isinstance(summary, str) else summary
            self._hold(record, number, part, len(data))

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

    def _windows(
        self, names: Collection[RecordName], unreadable: dict[str, LedgerCorruptError]
    ) -> dict[RecordName, WindowRecord]:
        """Return the windows that exist; windows of the last view are not parsed again.

        Unreadable windows are in `unreadable`.
        """
        unknown = [name for name in names if name in self._parts and name not in self._looked_at]
        values = self._fetched(unknown)
        windows: dict[RecordName, WindowRecord] = {}
        for name in names:
            if name in self._looked_at:
                windows[name] = self._looked_at[name]
            elif name in self._parts:
                try:
                    windows[name] = self._valid(name, values)
                except LedgerCorruptError as error:
                    unreadable[name.name] = error
        return windows

    def _parse_all(self, names: Iterable[RecordName]) -> dict[RecordName, Any]:
        """Return those of the records that there are, each parsed once after every writing."""
        there = [name for name in names if name in self._parts]
        values = self._fetched([name for name in there if name not in self._parsed])
        for name in there:
            if name in self._parsed:
                continue
            self._parsed[name] = self._valid(name, values)
            for number, part in list(self._parts[name].items()):
                if self._fetch is not None and isinstance(part, _Chunk):
                    self._let_go(name, number, part)
        return {name: self._parsed[name] for name in there}

    def _fetched(self, names: Iterable[RecordName]) -> Mapping[int, bytes]:
        """Return the values of records that were let go, by offset."""
        absent = sorted(
            part.offset
            for name in names
            for part in self._parts[name].values()
            if isinstance(part, _Chunk) and part.value is None
        )
        return self._fetch(absent) if absent and self._fetch is not None else {}

    def _valid(self, record: RecordName, values: Mapping[int, bytes]) -> Any:
        """Return a record that belongs under its name; `values` has the parts that were let go."""
        try:
            if record.kind == "times":
                partition_of(record.name)
            found = self._parse(record, values)
            if record.kind == "state":
                check_state(found, self.group_id)
            elif record.kind == "window":
                check_window(found, self.group_id, record.name)
        except JsonError as error:
            raise self._corrupt(record, error) from error
        return found

    def _parse(self, record: RecordName, values: Mapping[int, bytes]) -> Any:
        """Return a record from its parts; `values` has those that were let go."""
        parts = self._parts[record]
        damaged = [part for part in parts.values() if isinstance(part, _Damaged)]
        if damaged:
            raise self._corrupt(record, f"offset {damaged[0].offset} lacks the headers of a part")
        whole = {number: part for number, part in parts.items() if isinstance(part, _Chunk)}
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
            content = strict_json.loads(data, limit_bytes=RECORD_BYTES_MAX)
            return _KINDS[record.kind].from_json(Fields(content, record.kind))
        except JsonVersionError as error:
            raise version_error(
                self.where, self.group_id, record, self._newest(record), str(error)
            ) from error
        except UNREADABLE as error:
            raise self._corrupt(record, error) from error

    def _corrupt(self, record: RecordName, why: object) -> LedgerCorruptError:
        return damage_error(self.where, self.group_id, record, self._newest(record), str(why))

    def _newest(self, record: RecordName) -> int:
        return max(part.offset for part in self._parts[record].values())
