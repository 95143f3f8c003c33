"""Check that plans are still about the cluster's topics and logs: requested outside the fence, checked where it matters."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kafka_ordered_ops.core.cluster.cluster_facts import LogEnd, TopicFacts
from kafka_ordered_ops.core.errors import UnknownTopicError
from kafka_ordered_ops.core.group.checks import check_topic_id
from kafka_ordered_ops.core.group.decisions.truncation import (
    KnownLogs,
    check_not_cut,
    cut_logs,
    doubtful,
    planned_logs,
    seen_epochs,
)
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.client.asking import RETRY_PAUSE_S
from kafka_ordered_ops.kafka.client.calls import within
from kafka_ordered_ops.kafka.facts.log_spans import AGREE_TIMEOUT_S, log_ends
from kafka_ordered_ops.kafka.ports import LookupDoor


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """The cluster's facts about the topics and logs of plans."""

    group_id: str
    #: The requested topics, and those of them that exist.
    requested: frozenset[str]
    topics: Mapping[str, TopicFacts]
    #: The ends of logs that the plans know, and the logs that were cut below them.
    cuts: Sequence[tuple[KnownLogs, Mapping[TopicPartition, int]]]

    @classmethod
    def ask(
        cls,
        lookup: LookupDoor,
        group_id: str,
        plans: Sequence[WindowPlan],
        others: Collection[str] = (),
    ) -> PlanFacts:
        """Request the topics of plans and `others`, and the logs of the plans."""
        names = frozenset({name for plan in plans for name in plan.topics}.union(others))
        deadline = within(AGREE_TIMEOUT_S)
        while True:
            topics = lookup.existing(names)
            try:
                return cls(group_id, names, topics, _cuts(lookup, group_id, plans, topics))
            except UnknownTopicError:
                # Deleted between the two requests.
                if deadline.is_over:
                    raise
                time.sleep(RETRY_PAUSE_S)

    def check(self, plans: Sequence[WindowPlan]) -> None:
        """Check that the existing topics are those that were planned, and that their logs were not cut since.

        Raises:
            TopicRecreatedError: a topic has another id.
            LogTruncatedError: a log ends below a planned offset, or was filled again from there.
        """
        for plan in plans:
            for name, topic_id in plan.topic_ids.items():
                if name in self.topics:
                    check_topic_id(plan.group_id, self.topics[name], topic_id)
        for known, cuts in self.cuts:
            check_not_cut(self.group_id, known, cuts)


def find_cuts(
    lookup: LookupDoor,
    group_id: str,
    known: KnownLogs,
    ends: Mapping[TopicPartition, LogEnd],
    topics: Mapping[str, TopicFacts],
) -> dict[TopicPartition, int]:
    """Return the logs that were cut below their known end, each with the offset of the cut.

    The ends of the logs must have been requested after the known ends were read, and after the topics.

    Raises:
        TopicRecreatedError, UnknownTopicError: a log that seems to be cut is not that of the topic any more.
    """
    cuts = cut_logs(known, ends, lookup.diverged(group_id, doubtful(known, ends)))
    if cuts:
        for name, facts in lookup.topics({tp.topic for tp in cuts}).items():
            check_topic_id(group_id, facts, topics[name].topic_id)
    return cuts


def _cuts(
    lookup: LookupDoor,
    group_id: str,
    plans: Sequence[WindowPlan],
    topics: Mapping[str, TopicFacts],
) -> list[tuple[KnownLogs, Mapping[TopicPartition, int]]]:
    logs = planned_logs(plans)
    partitions = {
        part.tp
        for plan in plans
        for part in plan
        # For a recreated topic the id is enough, and it may have fewer partitions.
        if (topic := topics.get(part.tp.topic)) is not None and topic.topic_id == part.topic_id
    }
    ends = log_ends(lookup, sorted(partitions), seen_epochs(*logs))
    return [(known, find_cuts(lookup, group_id, known, ends, topics)) for known in logs]
