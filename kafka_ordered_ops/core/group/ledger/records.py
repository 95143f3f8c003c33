"""A group's records in the ledger: how they are stored in a compacted topic, and how they are put together again.

Key: the JSON list ``[group, kind, name, part]``; kinds are ``state``, ``window``, ``processed``, ``forgotten`` and
``times`` (and ``turn``, see `kafka.ledger.queue`). Value: a part of a JSON text, at most `ledger_messages.PART_BYTES_MAX` long. Two
headers, ``koo-generation`` and ``koo-parts``, name the write that the part belongs to and the number of parts. Parts of
an older, longer write get tombstones in the same transaction. A record is complete when all parts of its newest
generation exist; a transaction guarantees it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import LedgerCorruptError
from kafka_ordered_ops.core.group.checks import unknown_window
from kafka_ordered_ops.core.group.group_state import (
    Change,
    Forgotten,
    GroupState,
    GroupView,
    WindowRecord,
)
from kafka_ordered_ops.core.group.ledger.damage import (
    check_state,
    check_window,
    count_of,
    partition_of,
    version_error,
)
from kafka_ordered_ops.core.group.ledger.messages import (
    FORGOTTEN,
    GENERATION,
    RECORD_BYTES_MAX,
    STATE,
    SUMMARY,
    UNREADABLE,
    parse_key,
    written,
)
from kafka_ordered_ops.core.group.ledger.messages import LedgerMessage as LedgerMessage
from kafka_ordered_ops.core.group.ledger.messages import RecordName as RecordName
from kafka_ordered_ops.core.group.ledger.messages import record_key as record_key
from kafka_ordered_ops.core.group.ledger.parts import HELD_BYTES_MAX as HELD_BYTES_MAX
from kafka_ordered_ops.core.group.ledger.parts import Fetch, StoredParts
from kafka_ordered_ops.core.group.ledger.parts import StaleFoldError as StaleFoldError
from kafka_ordered_ops.core.group.ledger.window_list import WindowList
from kafka_ordered_ops.core.group.processed import ProcessedOffsets
from kafka_ordered_ops.core.group.summaries import Summaries, WindowSummary
from kafka_ordered_ops.core.planning.time_map import TimeMap
from kafka_ordered_ops.core.strict_json import JsonError, JsonVersionError
from kafka_ordered_ops.core.types import TopicPartition

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

#: Whether a window belongs in a view of all of them.
Keep = Callable[[WindowRecord], bool]


class LedgerFold:
    """One group's records, folded from the messages of its ledger partition in their order.

    Compaction removes no newest record except tombstones: a process that was idle meanwhile never reads that a window
    was forgotten. The state therefore has the number of forgotten windows, and a disagreement counts only after the
    log was folded again (`view`).
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
        self._key_prefix = strict_json.dumps([group_id])[:-1].encode() + b","
        self._parts = StoredParts(where, group_id, fetch, held_bytes_max)
        #: Its windows, for lists.
        self._list = WindowList()
        self._times: dict[RecordName, None] = {}
        #: The parsed records that every view needs; and the windows of the last one.
        self._parsed: dict[RecordName, Any] = {}
        self._looked_at: dict[RecordName, WindowRecord] = {}
        #: The number of forgotten windows: by the state, and by this fold. None: it has just begun.
        self._forgotten_stored = 0
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
            self._forgotten_known = self._forgotten_stored

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
        windows = self._windows([RecordName("window", window_id) for window_id in ids], unreadable)
        self._looked_at = dict(windows)
        if everything or keep is not None:
            for batch in self._in_batches(windows):
                for name, record in self._windows(batch, unreadable).items():
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
        self._confirm(
            [RecordName("window", window_id) for window_id in unreadable], certain=certain
        )
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

    def summaries(
        self, *, limit: int | None = None, before: str | None = None, certain: bool = True
    ) -> Summaries:
        """Return the summaries of windows, without their plans; raise the errors of `view`.

        Of all of them, or of the last `limit`; of those before a window, if one is given.

        Raises:
            UnknownWindowError: the window `before` does not exist, or cannot be read.
        """
        # Open windows are few, and an error in one of them matters.
        view = self.view(certain=certain)
        unreadable = dict(view.unreadable)
        windows: list[WindowSummary] | None = None
        while windows is None:
            self._complete_list(unreadable)
            if before is not None and (before not in self._list or before in unreadable):
                raise unknown_window(self.group_id, before)
            windows = self._list.page(limit, before, without=unreadable)
        self._confirm(
            [RecordName("window", window_id) for window_id in unreadable], certain=certain
        )
        unpublished = frozenset(view.state.unpublished if view.state else ())
        return Summaries(tuple(windows), dict(sorted(unreadable.items())), unpublished)

    def _complete_list(self, unreadable: dict[str, LedgerCorruptError]) -> None:
        """Read the windows whose summaries are not beside their records; those that cannot be read are in `unreadable`."""
        names = [RecordName("window", window_id) for window_id in self._list.incomplete()]
        for at in range(0, len(names), _WINDOWS_AT_ONCE):
            for record in self._windows(names[at : at + _WINDOWS_AT_ONCE], unreadable).values():
                self._list.complete(WindowSummary.of(record))

    def newly_dropped(self) -> list[LedgerCorruptError]:
        """Return the errors of records that were left out since the last call."""
        dropped = list(self._dropped.values())
        self._dropped.clear()
        return dropped

    def _state(self, *, certain: bool) -> GroupState | None:
        forgotten = self._forgotten_stored
        if self._forgotten_known is not None and forgotten != self._forgotten_known and not certain:
            raise StaleFoldError(
                f"{forgotten} windows were forgotten, {self._forgotten_known} known"
            )
        self._forgotten_known = forgotten
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
        others.sort(key=self._parts.first_offset)
        for at in range(0, len(others), _WINDOWS_AT_ONCE):
            yield others[at : at + _WINDOWS_AT_ONCE]

    def _time_maps(self) -> dict[TopicPartition, TimeMap]:
        time_maps: dict[TopicPartition, TimeMap] = {}
        for name in list(self._times):
            try:
                time_map = self._parse_all([name])[name]
            except LedgerCorruptError as error:
                self._leave_out(name, error)
                continue
            if time_map:
                time_maps[partition_of(name.name)] = time_map
        return time_maps

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
        records: dict[str, Any] = {}
        for name in (RecordName(kind, window_id) for window_id in window_ids):
            try:
                records |= {name.name: record for name, record in self._parse_all([name]).items()}
            except LedgerCorruptError as error:
                wrong(name, error)
        return records

    def messages(self, change: Change) -> Iterator[LedgerMessage]:
        """Yield a change as (key, value, headers), leftovers of longer writings as tombstones."""
        generation = {GENERATION: str(change.state.sequence)}
        forgotten = self._forgotten_stored + len(change.forgotten)
        headers = {**generation, FORGOTTEN: str(forgotten)} if forgotten else generation
        yield from self._whole(STATE, change.state.to_json(), headers)
        for record in change.records:
            window = RecordName("window", record.plan.window_id)
            summary = WindowSummary.of(record).to_text()
            headers = generation if summary is None else {**generation, SUMMARY: summary}
            yield from self._whole(window, record.to_json(), headers)
        for window_id in change.forgotten:
            headers = {FORGOTTEN: "1"}
            kinds = (
                ("window",) if window_id in change.forgotten_records else ("window", "forgotten")
            )
            for kind in kinds:
                for key, value, _ in self._tombstones(RecordName(kind, window_id), 0):
                    yield key, value, headers
                    headers = {}
        for window_id, forgotten_record in change.forgotten_records.items():
            name = RecordName("forgotten", window_id)
            yield from self._whole(name, forgotten_record.to_json(), generation)
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
        return self._parts.record_at(offset)

    def numbers_of(self, record: RecordName) -> list[int]:
        """Return the numbers of the parts that a record has now; none where there is no such record."""
        return self._parts.numbers(record)

    def knows_windows(self) -> bool:
        """Return whether the group has records of windows."""
        return any(name.kind in ("window", "forgotten") for name in self._parts)

    def check(self, record: RecordName) -> None:
        """Raise `LedgerCorruptError` or `LedgerVersionError` for a record that cannot be read."""
        self._valid(record, self._parts.fetched([record]))

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
        for number in self._parts.numbers(record):
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
        self._parsed.pop(record, None)
        self._left_out.discard(record)
        self._looked_at.pop(record, None)
        self._confirmed.discard(record)
        if value is None:
            if self._forgotten_known is not None and FORGOTTEN in dict(headers):
                self._forgotten_known += 1
            self._parts.drop(record, number)
            if record not in self._parts:
                self._times.pop(record, None)
            self._list_window(record, number, None)
            return
        data = value.encode() if isinstance(value, str) else value
        fields = dict(headers)
        is_valid = self._parts.put(record, number, offset, data, fields)
        if record == STATE and number == 0:
            self._forgotten_stored = count_of(fields.get(FORGOTTEN))
        if record.kind == "times":
            self._times[record] = None
        self._list_window(record, number, fields.get(SUMMARY) if is_valid else None)

    def _list_window(self, record: RecordName, number: int, header: str | bytes | None) -> None:
        """Keep the list of windows after a part of a record was folded; its first part has the summary."""
        if record.kind != "window":
            return
        if record not in self._parts:
            self._list.drop(record.name)
        elif number == 0 or record.name not in self._list:
            self._list.put(record.name, header.encode() if isinstance(header, str) else header)

    def _windows(
        self, names: Collection[RecordName], unreadable: dict[str, LedgerCorruptError]
    ) -> dict[RecordName, WindowRecord]:
        """Return the windows that exist; windows of the last view are not parsed again.

        Unreadable windows are in `unreadable`.
        """
        unknown = [name for name in names if name in self._parts and name not in self._looked_at]
        values = self._parts.fetched(unknown)
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
        values = self._parts.fetched([name for name in there if name not in self._parsed])
        for name in there:
            if name in self._parsed:
                continue
            self._parsed[name] = self._valid(name, values)
            self._parts.let_go(name)
        return {name: self._parsed[name] for name in there}

    def _valid(self, record: RecordName, values: Mapping[int, bytes]) -> Any:
        """Return a record that belongs under its name; `values` has the parts that were let go."""
        try:
            if record.kind == "times":
                partition_of(record.name)
            content = self._parse(record, values)
            if record.kind == "state":
                check_state(content, self.group_id)
            elif record.kind == "window":
                check_window(content, self.group_id, record.name)
        except JsonError as error:
            raise self._parts.corrupt(record, error) from error
        return content

    def _parse(self, record: RecordName, values: Mapping[int, bytes]) -> Any:
        data = self._parts.text(record, values)
        try:
            content = strict_json.loads(data, limit_bytes=RECORD_BYTES_MAX)
            return _KINDS[record.kind].from_json(content)
        except JsonVersionError as error:
            raise version_error(
                self.where, self.group_id, record, self._parts.newest_offset(record), str(error)
            ) from error
        except UNREADABLE as error:
            raise self._parts.corrupt(record, error) from error
