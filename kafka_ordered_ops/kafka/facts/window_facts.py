"""Gather the facts of a window and draft it: all work outside the fence.

The order of the requests matters: topics, log starts and end offsets first, times after them. A record that arrives in
between is then either below the end offset and seen, or above it and left for the next window, and "no record at or after
the cutoff" is an answer about all records below the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kafka_ordered_ops.core.cluster.cluster_facts import (
    CommittedOffset,
    LogEnd,
    TopicFacts,
    is_pattern,
    partitions_of,
)
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
    WindowsRequest,
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
from kafka_ordered_ops.core.window.bounds import Bound, Committed, Earliest, Latest, bound_of
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.facts.log_spans import log_spans
from kafka_ordered_ops.kafka.facts.plan_facts import find_cuts
from kafka_ordered_ops.kafka.facts.skipping import Skipping
from kafka_ordered_ops.kafka.facts.time_index import first_at_or_after
from kafka_ordered_ops.kafka.ports import LookupDoor, open_reader
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Called with (offsets scanned, offsets to scan).
ScanProgress = Callable[[int, int], None]

#: The number of batches between two reports, because a report visits every partition.
_PROGRESS_BATCHES: Final = 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The part of a window that can be decided without the fence."""

    drafts: tuple[PartitionDecision, ...]
    #: Topics and partitions without a state in the group.
    newcomers: Mapping[str, TopicState]
    patterns: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def records_scanned(self) -> int:
        """The number of records whose timestamps were read."""
        return sum(decision.records_scanned for decision in self.drafts)


def check_identity(view: GroupView, topics: Mapping[str, TopicFacts]) -> None:
    """Raise if a topic is not the one in the group's state."""
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
            StartingOffsetsRequiredError, CommittedOffsetMissingError: the starting offset is unknown.
            OffsetMapDecodeError: a map of Parallel Consumer at the starting offset cannot be used.
            ReadError, BrokerError: the scan failed.
        """
        check_identity(view, topics)
        known = known_logs(view)
        facts = self._facts(windows, topics, known)
        ends = {fact.tp: LogEnd(fact.high_watermark, fact.leader_epoch) for fact in facts}
        check_not_cut(self._group, known, find_cuts(self._lookup, self._group, known, ends, topics))
        newcomers, notes = self._newcomers(view, windows[0], topics, facts, committed)
        state = view.state and with_newcomers(view.state, newcomers, windows[0])
        claims = replace(view, state=state).claims()
        is_known = knows_times(view.state, windows[0])
        questions = []
        # Most partitions have seen the same windows, so the same questions apply to them.
        requests: dict[tuple[TimeRange, ...], WindowsRequest] = {}
        for fact in facts:
            here = state.partition(fact.tp) if state else None
            partition = here or newcomers[fact.tp.topic].partitions[fact.tp.partition]
            frozen = claims.late(fact.tp, partition.late).times
            if frozen not in requests:
                requests[frozen] = WindowsRequest.of(windows, frozen)
            questions.append(
                ask(
                    fact,
                    requests[frozen],
                    origin=partition.origin,
                    done=partition.done,
                    claimed=claims.offsets(fact.tp),
                    time_map=view.time_map(fact.tp, fact.topic_id) if is_known else EMPTY_MAP,
                    now_ms=now_ms,
                )
            )
        scans, unreadable = self._scan(questions, windows[0])
        return Snapshot(
            drafts=tuple(
                draft(
                    question,
                    scans.get(question.facts.tp),
                    unreadable.get(question.facts.tp, EMPTY_SET),
                )
                for question in questions
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
        starts = {tp: span.start for tp, span in spans.items()}
        times = {floor_ms(windows), *(window.cutoff_ms for window in windows)}
        lookups = {time: at_ms for time in times if (at_ms := lookup_time_ms(time)) is not None}
        heads = first_at_or_after(self._lookup, starts, lookups.values())
        floor, cutoffs = floor_ms(windows), [window.cutoff_ms for window in windows]

        def head(tp: TopicPartition, time_ms: int) -> int:
            offset = heads[lookups[time_ms]][tp].offset if time_ms in lookups else None
            return head_end(time_ms, log_start=starts[tp], end=spans[tp].end, index_offset=offset)

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
        """Return the first offset from a time on; if the index proves nothing, find it by reading."""
        if time_ms is None:
            return dict.fromkeys(fact.tp for fact in facts)
        starts = {fact.tp: fact.log_start for fact in facts}
        answers = first_at_or_after(self._lookup, starts, [time_ms])[time_ms]
        doubtful = {
            fact.tp: OffsetSet.of((fact.log_start, fact.end))
            for fact in facts
            if not answers[fact.tp].is_proven
        }
        offsets = {tp: answer.offset for tp, answer in answers.items()}
        return {**offsets, **self._first_by_reading(doubtful, time_ms, window)}

    def _first_by_reading(
        self, to_read: Mapping[TopicPartition, OffsetSet], time_ms: int, window: Window
    ) -> dict[TopicPartition, int | None]:
        first: dict[TopicPartition, int | None] = dict.fromkeys(to_read)
        to_read = {tp: offsets for tp, offsets in to_read.items() if offsets}
        with open_reader(
            self._settings,
            self._group,
            window.isolation,
            to_read,
            stall_timeout_s=self._stall_timeout_s,
        ) as reader:
            is_lossy = window.on_data_loss is OnDataLoss.WARN
            skipping = Skipping(reader, to_read)
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
        """Return states for topics and partitions that are new to the group, and notes about them."""
        known_topics = view.state.topics if view.state else {}
        new = [
            fact
            for fact in facts
            if (topic := known_topics.get(fact.tp.topic)) is None
            or fact.tp.partition not in topic.partitions
        ]
        begin = {name for name in topics if is_first_plan(view.state, window, name)}
        first = [fact for fact in new if fact.tp.topic in begin]
        later = [fact for fact in new if fact.tp.topic not in begin]
        origins = {fact.tp: fact.log_start for fact in later}
        started, beyond = self._origins(window, first, committed)
        origins |= started
        # Parallel Consumer may have processed new partitions before.
        shared = later if view.state and view.state.format.is_shared else []
        others = self._others(
            [*shared, *(fact for fact in first if _bound(window, fact) == Committed())], committed
        )
        states: dict[str, dict[int, PartitionState]] = {}
        for fact in new:
            commit = committed.get(fact.tp)
            state = PartitionState(
                origin=origins[fact.tp],
                done=OffsetSet.of((0, origins[fact.tp])),
                committed=None if commit is None else commit.offset,
            )
            states.setdefault(fact.tp.topic, {})[fact.tp.partition] = (
                begun(others[fact.tp]) if fact.tp in others else state
            )
        newcomers = {
            name: TopicState(topics[name].topic_id, settled=False, partitions=partitions)
            for name, partitions in states.items()
        }
        notes = [
            f"{fact.tp} is new to the group and starts at earliest"
            for fact in later
            if fact.tp not in others
        ]
        if len(notes) > 5:
            notes = [f"{len(notes)} partitions are new to the group and start at earliest"]
        return newcomers, (*notes, *beyond)

    def _others(
        self,
        facts: Sequence[PartitionFacts],
        committed: Mapping[TopicPartition, CommittedOffset | None],
    ) -> dict[TopicPartition, OthersCommit]:
        """Return the commits at which new partitions begin, with the offsets that Parallel Consumer has done beyond them.

        Raises:
            OffsetMapDecodeError: a map is damaged, or reaches past the end of the log.
        """
        commits = {
            fact.tp: others_commit(
                commit, where=f"group {self._group}, {fact.tp}", end=fact.high_watermark
            )
            for fact in facts
            if (commit := committed.get(fact.tp)) is not None
        }
        check_usable(self._group, commits)
        return commits

    def _origins(
        self,
        window: Window,
        facts: Sequence[PartitionFacts],
        committed: Mapping[TopicPartition, CommittedOffset | None],
    ) -> tuple[dict[TopicPartition, int], tuple[str, ...]]:
        """Return the starting offsets of partitions, and notes about them."""
        if not facts:
            return {}, ()
        by_bound: dict[Bound | None, list[PartitionFacts]] = {}
        for fact in facts:
            by_bound.setdefault(_bound(window, fact), []).append(fact)
        if (unbound := by_bound.pop(None, None)) is not None:
            raise self._bound_required(unbound, committed)
        origins: dict[TopicPartition, int] = {}
        missing: list[TopicPartition] = []
        notes: list[str] = []
        for bound, own in by_bound.items():
            if bound is None:
                continue
            time_ms = bound_time_ms(bound, window.cutoff_ms)
            firsts = self._first_at(own, time_ms, window)
            for fact in own:
                start = _resolve(bound, fact, committed, firsts[fact.tp])
                if start is None:
                    missing.append(fact.tp)
                else:
                    origins[fact.tp] = start
            notes += beyond_notes(bound, time_ms, own, firsts)
        if missing:
            raise CommittedOffsetMissingError(
                f"group {self._group} has no committed offset for {len(missing)} of {len(facts)} partitions, "
                f"the first {missing[0]}: it never committed there, or the offsets expired. Choose other "
                "starting_offsets, such as earliest",
                partitions=[str(tp) for tp in missing],
            )
        return origins, tuple(notes)

    def _bound_required(
        self,
        facts: Sequence[PartitionFacts],
        committed: Mapping[TopicPartition, CommittedOffset | None],
    ) -> StartingOffsetsRequiredError:
        def offsets_from(bound: Bound) -> str:
            starts = [_resolve(bound, fact, committed, None) for fact in facts]
            if any(start is None for start in starts):
                return "not possible: some partitions have no committed offset"
            left = sum(
                max(fact.end - (start or 0), 0) for fact, start in zip(facts, starts, strict=True)
            )
            return f"{left:,} offsets"

        topics = sorted({fact.tp.topic for fact in facts})
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
        self, to_read: Mapping[TopicPartition, OffsetSet], isolation: Isolation
    ) -> dict[TopicPartition, OffsetSet]:
        """Return which offsets cannot be read, by reading the timestamps of all.

        Raises:
            RecordsLostError, ReadTimeoutError, BrokerError: the read failed for another reason.
        """
        with open_reader(
            self._settings, self._group, isolation, to_read, stall_timeout_s=self._stall_timeout_s
        ) as reader:
            skipping = Skipping(reader, to_read)
            for _ in skipping.through(reader.timestamps):
                continue
        return skipping.unreadable

    def _scan(
        self, questions: Sequence[PartitionQuestion], window: Window
    ) -> tuple[dict[TopicPartition, ScanResult], Mapping[TopicPartition, OffsetSet]]:
        """Return the results by partition, and the unreadable offsets, if their loss is accepted."""
        by_tp = {question.facts.tp: question for question in questions if question.to_scan}
        logs = {tp: _log_of(question.facts, window.isolation) for tp, question in by_tp.items()}
        known = {tp: self._kept.of(tp, log) for tp, log in logs.items()}
        scans = {
            tp: Scan(question.fold(), question.to_scan, known[tp].within(question.to_scan))
            for tp, question in by_tp.items()
        }
        unreadable = self._read(scans, window)
        for tp, scan in scans.items():
            scan.finish()
            if tp not in unreadable:
                # No later plan needs the times of offsets that are done or claimed.
                times = known[tp].joined(scan.learned()).within(by_tp[tp].open)
                self._kept.keep(tp, logs[tp], times)
        return {tp: scan.fold.finish() for tp, scan in scans.items()}, unreadable

    def _read(
        self, scans: Mapping[TopicPartition, Scan], window: Window
    ) -> Mapping[TopicPartition, OffsetSet]:
        """Read the unknown times; return the unreadable offsets, if their loss is accepted."""
        to_read = {tp: scan.to_read for tp, scan in scans.items() if scan.to_read}
        if not to_read:
            return {}
        total, records = sum(offsets.count for offsets in to_read.values()), 0
        reader = open_reader(
            self._settings,
            self._group,
            window.isolation,
            to_read,
            stall_timeout_s=self._stall_timeout_s,
        )
        with reader:
            skipping = Skipping(reader, to_read)
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
                    self._progress(_scanned(to_read, reader.positions), total)
        if self._progress:
            self._progress(total, total)
        return skipping.unreadable


def _log_of(facts: PartitionFacts, isolation: Isolation) -> Log | None:
    """Return the log that a partition's facts are about; None if its leader does not identify it."""
    if facts.leader_epoch is None or not facts.topic_id:
        return None
    return Log(facts.topic_id, facts.leader_epoch, isolation)


def _bound(window: Window, facts: PartitionFacts) -> Bound | None:
    """Return the starting bound of a window's new group for a partition; None if there is none."""
    return bound_of(window.starting_offsets, facts.tp.topic)


def _resolve(
    bound: Bound,
    facts: PartitionFacts,
    committed: Mapping[TopicPartition, CommittedOffset | None],
    first: int | None,
) -> int | None:
    offset = committed.get(facts.tp)
    return resolve_start(
        bound,
        log_start=facts.log_start,
        end=facts.end,
        committed=None if offset is None else offset.offset,
        index_offset=first,
    )


def _scanned(
    to_read: Mapping[TopicPartition, OffsetSet], positions: Mapping[TopicPartition, int]
) -> int:
    # An estimate by position within the whole span, because the number of ranges varies: enough for a progress bar.
    done = 0
    for tp, offsets in to_read.items():
        span = offsets.end - offsets.first
        reached = min(max(positions.get(tp, offsets.first) - offsets.first, 0), span)
        done += offsets.count * reached // span if span else 0
    return done
