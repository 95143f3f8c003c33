"""Gather the facts of a window and draft it: everything that happens outside the fence.

The order of the questions matters: topics, log starts and end offsets first, times after them. A record
that arrives in between is then either below the end offset and seen, or above it and left for the next
window, and "no record at or after the cutoff" is an answer about everything below the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kafka_ordered_ops.core.cluster_facts import CommittedOffset, LogEnd, TopicFacts, is_pattern
from kafka_ordered_ops.core.errors import (
    CommittedOffsetMissingError,
    PartitionSetChangedError,
    StartingOffsetsRequiredError,
)
from kafka_ordered_ops.core.group.checks import check_topic_id
from kafka_ordered_ops.core.group.decisions.claiming import knows_times
from kafka_ordered_ops.core.group.decisions.newcomers import begun, is_first_plan, with_newcomers
from kafka_ordered_ops.core.group.decisions.truncation import (
    KnownLogs,
    check_not_cut,
    known_logs,
    seen_epochs,
)
from kafka_ordered_ops.core.group.group_state import GroupView, PartitionState, TopicState
from kafka_ordered_ops.core.group.others import OthersCommit, check_usable, others_commit
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.planning.notes import beyond_notes
from kafka_ordered_ops.core.planning.planning import (
    PartitionDecision,
    PartitionFacts,
    PartitionQuestion,
    WindowsAsked,
    ask,
    bound_time_ms,
    draft,
    floor_ms,
    head_end,
    lookup_time_ms,
    resolve_start,
)
from kafka_ordered_ops.core.planning.scan_fold import ScanResult
from kafka_ordered_ops.core.planning.scanned_times import KeptTimes, Log, Scan
from kafka_ordered_ops.core.planning.time_map import EMPTY_MAP
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.types import Isolation, OnDataLoss, TopicPartition
from kafka_ordered_ops.core.window.bounds import Bound, Committed, Earliest, Latest
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.facts.log_spans import log_spans
from kafka_ordered_ops.kafka.facts.plan_facts import find_cuts
from kafka_ordered_ops.kafka.facts.skipping import Skipping
from kafka_ordered_ops.kafka.facts.time_index import first_at_or_after
from kafka_ordered_ops.kafka.ports import LookupDoor, open_reader
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Called with (offsets scanned, offsets to scan).
ScanProgress = Callable[[int, int], None]

#: Batches between two reports: a report visits every partition.
_PROGRESS_BATCHES: Final = 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A window as far as it can be decided without the fence."""

    drafts: tuple[PartitionDecision, ...]
    #: Topics and partitions that the group has no state for yet.
    newcomers: Mapping[str, TopicState]
    patterns: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def records_scanned(self) -> int:
        """How many records' timestamps were read."""
        return sum(one.records_scanned for one in self.drafts)


def partitions_of(topics: Mapping[str, TopicFacts]) -> list[TopicPartition]:
    """Return all partitions of the topics, sorted."""
    return [
        TopicPartition(name, number)
        for name, facts in sorted(topics.items())
        for number in facts.partitions
    ]


def check_identity(view: GroupView, topics: Mapping[str, TopicFacts]) -> None:
    """Raise when a topic is not the one that the group's state is about."""
    for name, facts in topics.items():
        known = view.state.topics.get(name) if view.state else None
        if known is None:
            continue
        check_topic_id(view.group_id, facts, known.topic_id)
        gone = sorted(set(known.partitions) - set(facts.partitions))
        if gone:
            raise PartitionSetChangedError(
                f"group {view.group_id}: topic {name} has {len(facts.partitions)} partitions, and the group knows "
                f"others too ({gone[:5]}). Partitions cannot be removed from a topic: check the cluster",
                topic=name,
            )


class SnapshotReader:
    """Read snapshots of the logs of one group's topics, and draft windows from them."""

    def __init__(
        self,
        lookup: LookupDoor,
        settings: ClientSettings,
        group_id: str,
        *,
        stall_timeout_s: float,
        progress: ScanProgress | None = None,
    ) -> None:
        self._lookup = lookup
        self._settings = settings
        self._group = group_id
        self._stall_timeout_s = stall_timeout_s
        self._progress = progress
        self._kept = KeptTimes()

    def read(
        self,
        view: GroupView,
        windows: Sequence[Window],
        topics: Mapping[str, TopicFacts],
        committed: Mapping[TopicPartition, CommittedOffset | None],
        *,
        now_ms: int,
    ) -> Snapshot:
        """Gather facts, scan once, and draft every partition, for windows over the same topics.

        Raises:
            TopicRecreatedError, PartitionSetChangedError, LogTruncatedError: the state is not about these logs.
            StartingOffsetsRequiredError, CommittedOffsetMissingError: where to start is not known.
            OffsetMapDecodeError: a map of Parallel Consumer, where to start, cannot be used.
            ReadError, BrokerError: the scan failed.
        """
        check_identity(view, topics)
        known = known_logs(view)
        facts = self._facts(windows, topics, known)
        ends = {one.tp: LogEnd(one.high_watermark, one.leader_epoch) for one in facts}
        check_not_cut(self._group, known, find_cuts(self._lookup, self._group, known, ends))
        newcomers, notes = self._newcomers(view, windows[0], topics, facts, committed)
        state = view.state and with_newcomers(view.state, newcomers, windows[0])
        claims = replace(view, state=state).claims()
        is_known = knows_times(view.state, windows[0])
        questions = []
        # Most partitions have seen the same windows, and then these ask the same of all.
        asked: dict[tuple[TimeRange, ...], WindowsAsked] = {}
        for one in facts:
            here = state.partition(one.tp) if state else None
            partition = here or newcomers[one.tp.topic].partitions[one.tp.partition]
            frozen = claims.late(one.tp, partition.late).times
            if frozen not in asked:
                asked[frozen] = WindowsAsked.of(windows, frozen)
            questions.append(
                ask(
                    one,
                    asked[frozen],
                    origin=partition.origin,
                    done=partition.done,
                    claimed=claims.offsets(one.tp),
                    time_map=view.time_map(one.tp, one.topic_id) if is_known else EMPTY_MAP,
                    now_ms=now_ms,
                )
            )
        scans, unreadable = self._scan(questions, windows[0])
        return Snapshot(
            drafts=tuple(
                draft(one, scans.get(one.facts.tp), unreadable.get(one.facts.tp, EMPTY_SET))
                for one in questions
            ),
            newcomers=newcomers,
            patterns=tuple(name for name in windows[0].topics if is_pattern(name)),
            notes=notes,
        )

    def _facts(
        self,
        windows: Sequence[Window],
        topics: Mapping[str, TopicFacts],
        known: KnownLogs,
    ) -> list[PartitionFacts]:
        partitions, isolation = partitions_of(topics), windows[0].isolation
        spans = log_spans(self._lookup, partitions, isolation, seen_epochs(known))
        starts = {tp: one.start for tp, one in spans.items()}
        times = {floor_ms(windows), *(window.cutoff_ms for window in windows)}
        asked = {one: asked_ms for one in times if (asked_ms := lookup_time_ms(one)) is not None}
        heads = first_at_or_after(self._lookup, starts, asked.values())
        floor, cutoffs = floor_ms(windows), [window.cutoff_ms for window in windows]

        def head(tp: TopicPartition, time_ms: int) -> int:
            found = heads[asked[time_ms]][tp].offset if time_ms in asked else None
            return head_end(time_ms, log_start=starts[tp], end=spans[tp].end, found=found)

        return [
            PartitionFacts(
                tp=tp,
                topic_id=topics[tp.topic].topic_id,
                log_start=starts[tp],
                end=spans[tp].end,
                high_watermark=spans[tp].log_end.offset,
                leader_epoch=spans[tp].log_end.leader_epoch,
                checked_end=known[tp][1] if tp in known else 0,
                floor=head(tp, floor),
                head_ends=tuple(head(tp, cutoff_ms) for cutoff_ms in cutoffs),
            )
            for tp in partitions
        ]

    def _first_at(
        self, facts: Sequence[PartitionFacts], time_ms: int | None, window: Window
    ) -> Mapping[TopicPartition, int | None]:
        """Return the first record from a time on; where the index proves nothing, by reading."""
        if time_ms is None:
            return dict.fromkeys(one.tp for one in facts)
        starts = {one.tp: one.log_start for one in facts}
        answers = first_at_or_after(self._lookup, starts, [time_ms])[time_ms]
        doubtful = {
            one.tp: OffsetSet.of((one.log_start, one.end))
            for one in facts
            if not answers[one.tp].is_proven
        }
        found = {tp: answer.offset for tp, answer in answers.items()}
        return {**found, **self._first_by_reading(doubtful, time_ms, window)}

    def _first_by_reading(
        self, wanted: Mapping[TopicPartition, OffsetSet], time_ms: int, window: Window
    ) -> dict[TopicPartition, int | None]:
        first: dict[TopicPartition, int | None] = dict.fromkeys(wanted)
        wanted = {tp: offsets for tp, offsets in wanted.items() if offsets}
        with open_reader(
            self._settings,
            self._group,
            window.isolation,
            wanted,
            stall_timeout_s=self._stall_timeout_s,
        ) as reader:
            is_lossy = window.on_data_loss is OnDataLoss.WARN
            skipping = Skipping(reader, wanted)
            for batch in skipping.through(reader.timestamps) if is_lossy else reader.timestamps():
                hits = np.flatnonzero(batch.timestamps_ms >= time_ms)
                if hits.size and first[batch.tp] is None:
                    first[batch.tp] = int(batch.offsets[hits[0]])
                    reader.stop(batch.tp)
        return first

    def _newcomers(
        self,
        view: GroupView,
        window: Window,
        topics: Mapping[str, TopicFacts],
        facts: Sequence[PartitionFacts],
        committed: Mapping[TopicPartition, CommittedOffset | None],
    ) -> tuple[dict[str, TopicState], tuple[str, ...]]:
        """Return states for topics and partitions that the group has never planned, and notes about them."""
        known_topics = view.state.topics if view.state else {}
        new = [
            one
            for one in facts
            if (topic := known_topics.get(one.tp.topic)) is None
            or one.tp.partition not in topic.partitions
        ]
        begin = {name for name in topics if is_first_plan(view.state, window, name)}
        first = [one for one in new if one.tp.topic in begin]
        later = [one for one in new if one.tp.topic not in begin]
        origins = {one.tp: one.log_start for one in later}
        started, beyond = self._origins(window, first, committed)
        origins |= started
        # Parallel Consumer may have been at new partitions before.
        shared = later if view.state and view.state.format.is_shared else []
        others = self._others(
            [*shared, *(first if window.starting_offsets == Committed() else [])], committed
        )
        states: dict[str, dict[int, PartitionState]] = {}
        for one in new:
            found = committed.get(one.tp)
            state = PartitionState(
                origin=origins[one.tp],
                done=OffsetSet.of((0, origins[one.tp])),
                committed=None if found is None else found.offset,
            )
            states.setdefault(one.tp.topic, {})[one.tp.partition] = (
                begun(others[one.tp]) if one.tp in others else state
            )
        newcomers = {
            name: TopicState(topics[name].topic_id, settled=False, partitions=partitions)
            for name, partitions in states.items()
        }
        notes = [
            f"{one.tp} is new to the group and starts at earliest"
            for one in later
            if one.tp not in others
        ]
        if len(notes) > 5:
            notes = [f"{len(notes)} partitions are new to the group and start at earliest"]
        return newcomers, (*notes, *beyond)

    def _others(
        self,
        facts: Sequence[PartitionFacts],
        committed: Mapping[TopicPartition, CommittedOffset | None],
    ) -> dict[TopicPartition, OthersCommit]:
        """Return the commits at which new partitions begin, with what Parallel Consumer has done beyond them.

        Raises:
            OffsetMapDecodeError: a map is damaged, or reaches past the end of the log.
        """
        found = {
            one.tp: others_commit(
                commit, where=f"group {self._group}, {one.tp}", end=one.high_watermark
            )
            for one in facts
            if (commit := committed.get(one.tp)) is not None
        }
        check_usable(self._group, found)
        return found

    def _origins(
        self,
        window: Window,
        facts: Sequence[PartitionFacts],
        committed: Mapping[TopicPartition, CommittedOffset | None],
    ) -> tuple[dict[TopicPartition, int], tuple[str, ...]]:
        """Return where partitions begin, and notes about that."""
        if not facts:
            return {}, ()
        if window.starting_offsets is None:
            raise self._bound_required(facts, committed)
        time_ms = bound_time_ms(window.starting_offsets, window.cutoff_ms)
        found = self._first_at(facts, time_ms, window)
        origins: dict[TopicPartition, int] = {}
        missing: list[TopicPartition] = []
        for one in facts:
            start = _resolve(window.starting_offsets, one, committed, found[one.tp])
            if start is None:
                missing.append(one.tp)
            else:
                origins[one.tp] = start
        if missing:
            raise CommittedOffsetMissingError(
                f"group {self._group} has no committed offset for {len(missing)} of {len(facts)} partitions, "
                f"the first {missing[0]}: it never committed there, or the offsets expired. Choose other "
                "starting_offsets, such as earliest",
                partitions=[str(tp) for tp in missing],
            )
        return origins, beyond_notes(window.starting_offsets, time_ms, facts, found)

    def _bound_required(
        self,
        facts: Sequence[PartitionFacts],
        committed: Mapping[TopicPartition, CommittedOffset | None],
    ) -> StartingOffsetsRequiredError:
        def offsets_from(bound: Bound) -> str:
            starts = [_resolve(bound, one, committed, None) for one in facts]
            if any(start is None for start in starts):
                return "not possible: some partitions have no committed offset"
            left = sum(
                max(one.end - (start or 0), 0) for one, start in zip(facts, starts, strict=True)
            )
            return f"{left:,} offsets"

        topics = sorted({one.tp.topic for one in facts})
        choices = "; ".join(
            f"{bound}: {offsets_from(bound)}" for bound in (Earliest(), Latest(), Committed())
        )
        return StartingOffsetsRequiredError(
            f"group {self._group} has never planned topic {', '.join(topics)}: pass starting_offsets. Up to the "
            f"ends of the logs each choice would read ({choices}); a time or a duration before the cutoff are "
            "possible too",
            topics=topics,
        )

    def unreadable(
        self, wanted: Mapping[TopicPartition, OffsetSet], isolation: Isolation
    ) -> dict[TopicPartition, OffsetSet]:
        """Return which of some offsets cannot be read, by reading the timestamps of all.

        Raises:
            RecordsLostError, ReadTimeoutError, BrokerError: the read failed otherwise.
        """
        with open_reader(
            self._settings, self._group, isolation, wanted, stall_timeout_s=self._stall_timeout_s
        ) as reader:
            skipping = Skipping(reader, wanted)
            for _ in skipping.through(reader.timestamps):
                continue
        return skipping.unreadable

    def _scan(
        self, questions: Sequence[PartitionQuestion], window: Window
    ) -> tuple[dict[TopicPartition, ScanResult], Mapping[TopicPartition, OffsetSet]]:
        """Return the results by partition, and the offsets that could not be read, where their loss is accepted."""
        asked = {one.facts.tp: one for one in questions if one.to_scan}
        logs = {tp: _log_of(one.facts, window.isolation) for tp, one in asked.items()}
        known = {tp: self._kept.of(tp, log) for tp, log in logs.items()}
        scans = {
            tp: Scan(one.fold(), one.to_scan, known[tp].within(one.to_scan))
            for tp, one in asked.items()
        }
        unreadable = self._read(scans, window)
        for tp, scan in scans.items():
            scan.finish()
            if tp not in unreadable:
                # Of offsets that are done or claimed, no later plan asks.
                times = known[tp].joined(scan.learned()).within(asked[tp].open)
                self._kept.keep(tp, logs[tp], times)
        return {tp: scan.fold.finish() for tp, scan in scans.items()}, unreadable

    def _read(
        self, scans: Mapping[TopicPartition, Scan], window: Window
    ) -> Mapping[TopicPartition, OffsetSet]:
        """Read what is not known; return the offsets that could not be read, where their loss is accepted."""
        wanted = {tp: scan.to_read for tp, scan in scans.items() if scan.to_read}
        if not wanted:
            return {}
        total, records = sum(offsets.count for offsets in wanted.values()), 0
        reader = open_reader(
            self._settings,
            self._group,
            window.isolation,
            wanted,
            stall_timeout_s=self._stall_timeout_s,
        )
        with reader:
            skipping = Skipping(reader, wanted)
            is_lossy = window.on_data_loss is OnDataLoss.WARN
            batches = skipping.through(reader.timestamps) if is_lossy else reader.timestamps()
            for number, batch in enumerate(batches):
                scan = scans[batch.tp]
                records += batch.offsets.size
                if records * 16 > self._kept.bytes_max:
                    scan.keep_no_more()
                scan.take(batch.offsets, batch.timestamps_ms, batch.position)
                if scan.fold.stopped:
                    reader.stop(batch.tp)
                if self._progress and number % _PROGRESS_BATCHES == 0:
                    self._progress(_scanned(wanted, reader.positions), total)
        if self._progress:
            self._progress(total, total)
        return skipping.unreadable


def _log_of(facts: PartitionFacts, isolation: Isolation) -> Log | None:
    """Return the log that a partition's facts are about; None if its leader does not say which it is."""
    if facts.leader_epoch is None or not facts.topic_id:
        return None
    return Log(facts.topic_id, facts.leader_epoch, isolation)


def _resolve(
    bound: Bound,
    facts: PartitionFacts,
    committed: Mapping[TopicPartition, CommittedOffset | None],
    found: int | None,
) -> int | None:
    offset = committed.get(facts.tp)
    return resolve_start(
        bound,
        log_start=facts.log_start,
        end=facts.end,
        committed=None if offset is None else offset.offset,
        found=found,
    )


def _scanned(
    wanted: Mapping[TopicPartition, OffsetSet], positions: Mapping[TopicPartition, int]
) -> int:
    # Ranges differ in number, so an estimate by position within the whole: enough for a progress bar.
    done = 0
    for tp, offsets in wanted.items():
        span = offsets.end - offsets.first
        reached = min(max(positions.get(tp, offsets.first) - offsets.first, 0), span)
        done += offsets.count * reached // span if span else 0
    return done
