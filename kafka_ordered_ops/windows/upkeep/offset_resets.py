"""Reset a group's offsets: in the ledger for a group of windows, and only in Kafka for any other group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from kafka_ordered_ops.core.arguments import as_names, check_count, shown
from kafka_ordered_ops.core.cluster.cluster_facts import (
    CommittedOffsets,
    TopicFacts,
    check_group_empty,
    partitions_of,
)
from kafka_ordered_ops.core.cluster.names import check_topic_names
from kafka_ordered_ops.core.errors import (
    CommittedOffsetMissingError,
    ConfigError,
    LedgerCorruptError,
)
from kafka_ordered_ops.core.group.decisions import resetting
from kafka_ordered_ops.core.group.decisions.resetting import OffsetReset, ResetPartition
from kafka_ordered_ops.core.group.group_state import Change, GroupState, GroupView
from kafka_ordered_ops.core.group.others import is_readable, others_commit
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.planning.planning import bound_time_ms, resolve_start
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.core.window.bounds import Bound, as_bound
from kafka_ordered_ops.kafka.facts.log_spans import LogSpan, log_spans
from kafka_ordered_ops.kafka.ports import set_committed_offsets
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.windows.group_facts import GroupFacts, GroupMover

_log = logging.getLogger("kafka_ordered_ops.windows")

#: The new offsets of a group: starting offsets for all partitions, or an offset for each.
NewOffsets = Bound | str | datetime | Mapping[TopicPartition, int]


class OffsetResets:
    """Reset the offsets of one group."""

    def __init__(
        self, mover: GroupMover, settings: ClientSettings, *, clock: Callable[[], float]
    ) -> None:
        self._mover = mover
        self._group = mover.group_id
        self._lookup = mover.lookup
        self._settings = settings
        self._clock = clock

    def reset(
        self, to: NewOffsets, topics: str | Sequence[str] | None, *, dry_run: bool
    ) -> OffsetReset:
        """See `OrderedWindows.reset_offsets`."""
        # 1. Check the arguments before anything is touched.
        bound = _checked(to)
        names = None if topics is None else as_names(topics, what="topics")
        if isinstance(bound, Mapping) and names is not None:
            raise ConfigError("topics and an offset for each partition are given: give one of them")
        # 2. The partitions: of the group in the ledger, or of topics.
        view, damage = self._read()
        state = view.state
        selected = self._topics(bound, names, state)
        partitions = list(bound) if isinstance(bound, Mapping) else partitions_of(selected)
        if state is not None:
            # New partitions start at earliest, whatever the others are reset to.
            partitions = [tp for tp in partitions if state.partition(tp) is not None]
        # 3. The new offsets in their logs.
        isolation = Isolation.READ_COMMITTED if state is None else state.definition.isolation
        spans = log_spans(self._lookup, partitions, isolation)
        committed = self._mover.ledger.committed_offsets(
            self._group, partitions, timeout_s=self._mover.lookup_timeout_s
        )
        if state is None and damage is None:
            # A group of windows whose ledger is lost, or has another name, is not a plain group. A reset removes
            # damaged maps.
            readable = {
                tp: commit for tp, commit in committed.items() if commit and is_readable(commit)
            }
            self._mover.ledger.check_not_lost(view, readable)
        starts = {tp: commit.offset for tp, commit in committed.items() if commit is not None}
        if state is not None:
            # The ledger has expired offsets.
            starts = {tp: known.base for tp, known in state} | starts
        offsets = self._resolved(bound, spans, starts, isolation)
        # 4. One transaction with the ledger, or only the commits.
        if state is not None:
            return self._in_ledger(offsets, dry_run=dry_run)
        done = self._in_kafka(offsets, spans, committed, dry_run=dry_run)
        if damage is not None and not dry_run:
            # Remove the records after the commits: until then, they show that this is a group of windows.
            _log.warning(
                "group %s: its records are removed from the ledger: %s", self._group, damage
            )
            self._mover.ledger.remove(self._group)
        return done

    def _read(self) -> tuple[GroupView, LedgerCorruptError | None]:
        """Return the group's view, and None; for an unreadable state, an empty view and the error."""
        try:
            return self._mover.ledger.read(self._group), None
        except LedgerCorruptError as error:
            return GroupView(self._group), error

    def _in_ledger(self, offsets: Mapping[TopicPartition, int], *, dry_run: bool) -> OffsetReset:
        def decide(facts: GroupFacts) -> tuple[Change | None, OffsetReset]:
            return resetting.reset(facts.view, offsets, facts.others, facts.logs, facts.topics)

        return self._mover.move("a reset of offsets", decide, dry_run=dry_run, takes_unknown=True)

    def _in_kafka(
        self,
        offsets: Mapping[TopicPartition, int],
        spans: Mapping[TopicPartition, LogSpan],
        committed: CommittedOffsets,
        *,
        dry_run: bool,
    ) -> OffsetReset:
        self._lookup.check_kind(self._group)
        partitions = []
        for tp, offset in offsets.items():
            commit = committed[tp]
            log = (spans[tp].start, spans[tp].end)
            done, before = EMPTY_SET, None
            if commit is not None:
                before = commit.offset
                other = others_commit(commit, where=str(tp), end=spans[tp].log_end.offset)
                done = OffsetSet.of((0, before)) | other.done
            partitions.append(
                ResetPartition.of(tp, before=before, after=offset, done=done, log=log)
            )
        if not dry_run:
            check_group_empty(self._group, self._lookup.group_members(self._group))
            set_committed_offsets(
                self._settings, self._group, offsets, timeout_s=self._mover.lookup_timeout_s
            )
        return OffsetReset(self._group, tuple(partitions))

    def _topics(
        self,
        bound: Bound | Mapping[TopicPartition, int],
        names: Sequence[str] | None,
        state: GroupState | None,
    ) -> Mapping[str, TopicFacts]:
        """Return the topics whose partitions are reset."""
        if isinstance(bound, Mapping):
            names = sorted({tp.topic for tp in bound})
        elif names is None and state is None:
            raise ConfigError(
                f"the ledger has no progress of group {self._group}, and so no topics: name the topics whose committed "
                "offsets are reset"
            )
        if names is None:
            # Deleted topics have no offsets to set.
            return self._lookup.existing(state.topics if state else ())
        selected = self._lookup.selected(names)
        if state is not None and (unknown := sorted(selected.keys() - state.topics.keys())):
            raise ConfigError(
                f"group {self._group} has no progress on topic {', '.join(unknown)}: its first window that selects "
                "the topic sets where it starts (starting_offsets)"
            )
        return selected

    def _resolved(
        self,
        bound: Bound | Mapping[TopicPartition, int],
        spans: Mapping[TopicPartition, LogSpan],
        committed: Mapping[TopicPartition, int],
        isolation: Isolation,
    ) -> dict[TopicPartition, int]:
        if isinstance(bound, Mapping):
            if unknown := [tp for tp in bound if tp not in spans]:
                raise ConfigError(
                    f"group {self._group} has no progress on {unknown[0]}: new partitions start at earliest"
                )
            return {tp: _within(tp, offset, spans[tp]) for tp, offset in bound.items()}
        time_ms = bound_time_ms(bound, int(self._clock() * 1000))
        # The index counts markers and aborted records too: it may answer too early, never too late.
        first = (
            {}
            if time_ms is None
            else self._lookup.first_at_or_after(list(spans), time_ms, isolation)
        )
        offsets: dict[TopicPartition, int] = {}
        missing: list[TopicPartition] = []
        for tp, span in spans.items():
            start = resolve_start(
                bound,
                log_start=span.start,
                end=span.end,
                committed=committed.get(tp),
                index_offset=first.get(tp),
            )
            if start is None:
                missing.append(tp)
            else:
                # An offset past the end would skip records that are written later.
                offsets[tp] = min(start, span.end)
        if missing:
            raise CommittedOffsetMissingError(
                f"group {self._group} has no committed offset for {len(missing)} of {len(spans)} partitions, the first "
                f"{missing[0]}: it never committed there, or the offsets expired. Reset it to other offsets",
                partitions=[str(tp) for tp in missing],
            )
        return offsets


def _checked(to: NewOffsets) -> Bound | Mapping[TopicPartition, int]:
    """Return the new offsets, checked; raise `ConfigError` for invalid ones."""
    if not isinstance(to, Mapping):
        bound = as_bound(to)
        if bound is None:
            raise ConfigError(
                "starting_offsets is None: give the offsets to which the group is reset"
            )
        return bound
    if not to:
        raise ConfigError("no partition is given: there is nothing to reset")
    for tp, offset in to.items():
        if not isinstance(tp, TopicPartition):
            raise ConfigError(f"{shown(tp)} is not a partition: give a TopicPartition")
        check_topic_names([tp.topic])
        check_count(offset, what=f"the offset of {tp}", least=0, greatest=INT64_MAX)
    return to


def _within(tp: TopicPartition, offset: int, span: LogSpan) -> int:
    if not span.start <= offset <= span.end:
        raise ConfigError(
            f"{tp} cannot be reset to offset {offset}, as its log holds [{span.start}, {span.end}): give an offset in it, "
            "or its end"
        )
    return offset
