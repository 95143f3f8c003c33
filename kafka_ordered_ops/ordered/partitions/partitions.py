"""The partitions of an ordered read: positions, held records, and remaining offsets."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kafka_ordered_ops.core.cluster.out_of_range import OnOutOfRange
from kafka_ordered_ops.core.errors import RecordsLostError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.release.ordered_release import OrderedRelease
from kafka_ordered_ops.core.release.sorting import Batch
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.ports import LookupDoor, ReaderDoor, Turn
from kafka_ordered_ops.ordered.partitions.moves import Moves
from kafka_ordered_ops.ordered.partitions.starts import in_log
from kafka_ordered_ops.ordered.partitions.state import PartitionState
from kafka_ordered_ops.ordered.records.columns import judged
from kafka_ordered_ops.ordered.records.pieces import Piece, pieces_of

_log = logging.getLogger(__name__)


class Partitions:
    """The partitions that are read; for one thread, except `states`.

    Args:
        release: holds their records.
        follow: whether reading continues beyond their ends.
    """

    def __init__(self, release: OrderedRelease, *, follow: bool) -> None:
        self._release = release
        self._follow = follow
        self._reader: ReaderDoor
        self._states: dict[TopicPartition, PartitionState] = {}
        #: The pieces of a plan.
        self._pieces: dict[TopicPartition, Piece] = {}
        #: An offset and a time: once the position reaches the offset, no earlier timestamps are expected.
        self._settled: dict[TopicPartition, tuple[int, int]] = {}
        #: The first unprocessed offset of each partition, as of the last call of `done_up_to`.
        self._done: dict[TopicPartition, int] = {}
        #: The paused and moved partitions.
        self.moves: Moves

    def open(self, reader: ReaderDoor) -> None:
        """Use a reader, which was opened with the partitions so far."""
        self._reader = reader
        self.moves = Moves(self._states, self._release, reader, self.wanted_from)

    def __contains__(self, tp: object) -> bool:
        return tp in self._states

    def __getitem__(self, tp: TopicPartition) -> PartitionState:
        return self._states[tp]

    @property
    def names(self) -> frozenset[TopicPartition]:
        """The partitions that are read."""
        return frozenset(self._states)

    @property
    def is_finished(self) -> bool:
        """Whether all partitions have been read up to their ends."""
        return all(state.is_finished for state in self._states.values())

    @property
    def is_live(self) -> bool:
        """Whether all partitions have been read up to their ends at the time when they were found."""
        return all(state.is_live for state in self._states.values())

    @property
    def progress(self) -> tuple[int, int]:
        """The number of offsets that were read, and of known offsets."""
        states = self._states.values()
        return (
            sum(state.position - state.start for state in states),
            sum(max(state.end, state.position) - state.start for state in states),
        )

    def plan(self, plan: WindowPlan) -> dict[TopicPartition, OffsetSet]:
        """Read a plan's records; return its offsets."""
        self._pieces = {piece.tp: piece for piece in pieces_of([plan])}
        wanted = {tp: piece.wanted for tp, piece in self._pieces.items()}
        for tp, offsets in wanted.items():
            self.add(tp, offsets.first, offsets.end)
        return wanted

    def add(self, tp: TopicPartition, start: int, end: int) -> None:
        """Read a partition from an offset on."""
        state = PartitionState(tp, start=start, position=start, end=end, live_at=end)
        state.is_live = start >= end
        self._release.add(tp)
        if start >= end and not self._follow:
            state.is_finished = True
            self._release.finish(tp)
        self._states[tp] = state

    def wanted_from(self, tp: TopicPartition, offset: int) -> OffsetSet:
        """Return the offsets of a partition that are wanted from an offset on."""
        if (piece := self._pieces.get(tp)) is not None:
            return piece.wanted.within(offset, piece.wanted.end)
        end = INT64_MAX if self._follow else self._states[tp].end
        return OffsetSet.of((offset, end)) if offset < end else OffsetSet()

    def unread(self) -> dict[TopicPartition, OffsetSet]:
        """Return the remaining offsets of each partition that has any."""
        return {
            tp: self.wanted_from(tp, state.position)
            for tp, state in self._states.items()
            if not state.is_finished
        }

    def leave(self, tp: TopicPartition) -> None:
        """Stop reading a partition; its held records are still released."""
        self._reader.stop(tp)
        self._release.finish(tp)
        self.forget(tp)

    def lose(self, tp: TopicPartition) -> None:
        """Stop reading a partition, and drop its held records."""
        self._reader.stop(tp)
        self._release.drop(tp)
        self.forget(tp)

    def forget(self, tp: TopicPartition) -> None:
        """Forget the state of a partition."""
        for mapping in (self._states, self._settled, self._done):
            mapping.pop(tp, None)
        self.moves.forget(tp)

    def take(self, turns: Sequence[Turn], *, newest_ms: int | None) -> tuple[int, bool]:
        """Hold new records; return their number, and whether any position moved.

        Args:
            turns: the turns of the reader.
            newest_ms: records that are stamped later come from wrong clocks, and do not advance the order.
        """
        count, moved = 0, False
        for turn in turns:
            state = self._states.get(turn.tp)
            if state is None:
                continue
            if turn.records is not None and turn.records.num_rows:
                count += turn.records.num_rows
                piece = self._pieces.get(turn.tp)
                rows = turn.records if piece is None else judged(turn.records, piece)[0]
                self._release.feed(turn.tp, rows, newest_ms=newest_ms)
            moved = moved or turn.position > state.position
            state.position = max(state.position, turn.position)
            if state.position >= state.live_at:
                state.is_live = True
            if not self._follow and state.position >= state.end:
                state.is_finished = True
                self._release.finish(turn.tp)
        for tp, (offset, time_ms) in list(self._settled.items()):
            if self._states[tp].position >= offset:
                self._release.advance(tp, time_ms)
                del self._settled[tp]
        return count, moved

    def saw_end(self, tp: TopicPartition, end: int, settled_ms: int | None) -> None:
        """Update the end of a log; with a time, no more records that are stamped before it are expected up to there."""
        if (state := self._states.get(tp)) is None:
            return
        state.end = max(state.end, end)
        if settled_ms is not None and tp not in self.moves.paused:
            self._settled[tp] = end, settled_ms

    def unsettle(self, tp: TopicPartition) -> None:
        """Forget the time that was known for a partition's end."""
        self._settled.pop(tp, None)

    def continue_in_log(
        self, error: RecordsLostError, policy: OnOutOfRange, lookup: LookupDoor
    ) -> bool:
        """Continue in partitions whose position is out of range; return whether there are any."""
        lost = [tp for tp in self._states if str(tp) in error.lost]
        log_starts, ends = lookup.log_starts(lost), lookup.log_ends(lost)
        for tp in lost:
            state = self._states[tp]
            start, end = log_starts[tp], ends[tp].offset
            if start <= state.position <= end:
                # The log was truncated and has grown again: by its offsets alone, nothing is lost.
                _log.warning("%s. Reading continues, because on_data_loss is '%s'", error, policy)
                places = {OnOutOfRange.EARLIEST: start, OnOutOfRange.LATEST: end}
                position = places.get(policy, state.position)
            else:
                position = in_log(tp, state.position, policy, start, end)
            self._reader.stop(tp)
            self.unsettle(tp)
            state.position = position
            if wanted := self.wanted_from(tp, position):
                self._reader.add(tp, wanted)
            else:
                state.is_finished = True
                self._release.finish(tp)
        return bool(lost)

    def done_up_to(self, returned: Batch | None, *, is_even: bool) -> Mapping[TopicPartition, int]:
        """Return the first unprocessed offset of each partition.

        Args:
            returned: the last returned batch, which the caller may still be processing.
            is_even: whether positions, held records and `returned` agree; otherwise the last result is returned again.
        """
        if is_even:
            self._done = {
                tp: self._first_left(state, returned) for tp, state in self._states.items()
            }
        return self._done

    def _first_left(self, state: PartitionState, returned: Batch | None) -> int:
        left = (
            self._release.held_from(state.tp),
            None if returned is None else self._release.offset_min_of(state.tp, returned),
        )
        return min([state.position, *(offset for offset in left if offset is not None)])

    def states(self) -> list[PartitionState]:
        """Return the state of each partition, by name; for any thread."""
        holding_back = self._release.holding_back()
        states = [state for _, state in sorted(dict(self._states).items())]
        for state in states:
            source = self._release.source(state.tp)
            state.timestamp_ms, state.late = source.greatest_ms, source.late
            state.held = self._release.held_of(state.tp)
            state.is_paused = state.tp in self.moves.paused
            is_first = state.tp == holding_back
            state.holds_back = is_first and self._release.held.records > state.held
        return states
