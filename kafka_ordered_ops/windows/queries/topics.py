"""Look up topics and the start and end of their logs, without reading records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.facts.log_spans import log_spans
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.kafka.settings import ClientSettings


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """The start and end of one partition's log."""

    partition: int
    #: The first offset in the log; for an empty log, its end.
    log_start: int
    #: The end of reading, exclusive.
    end_offset: int


@dataclass(frozen=True, slots=True)
class TopicEnds:
    """A topic at one moment."""

    name: str
    #: Distinguishes a topic from a deleted topic of the same name.
    topic_id: str
    #: Sorted by number.
    partitions: tuple[PartitionEnds, ...]


def topic_names(
    settings: ClientSettings,
    topics: Sequence[str],
    *,
    exclude: Sequence[str] = (),
    timeout_s: float = TIMEOUT_S,
) -> list[str]:
    """Return the topics that names and patterns match now, sorted, among those that this principal may describe.

    Args:
        settings: how to reach the cluster.
        topics: names, or patterns that begin with ``^``; patterns never match internal topics.
        exclude: names or patterns to leave out.
        timeout_s: time limit for the request.

    Raises:
        UnknownTopicError: a topic does not exist, or no topic matches.
        BrokerError: the cluster refuses the request, or cannot be reached.
        ConfigError: a pattern is not a regular expression.
    """
    with open_lookup(settings, timeout_s=timeout_s) as lookup:
        return lookup.matching(topics, exclude)


def topic_ends(
    settings: ClientSettings,
    topics: Sequence[str],
    *,
    isolation: Isolation = Isolation.READ_COMMITTED,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, TopicEnds]:
    """Return the starts and ends of topics' logs, by name; a few requests for all of them.

    Args:
        settings: how to reach the cluster.
        topics: names, not patterns.
        isolation: ``read_committed`` returns last stable offsets, ``read_uncommitted`` high watermarks.
        timeout_s: time limit for all requests.

    Raises:
        UnknownTopicError: a topic does not exist.
        BrokerError: the cluster refuses a request, or cannot be reached.
    """
    with (
        calls.call("looking up where topics end", timeout_s),
        open_lookup(settings, timeout_s=timeout_s) as lookup,
    ):
        facts = lookup.topics(topics)
        every = [
            TopicPartition(name, number)
            for name, topic in facts.items()
            for number in topic.partitions
        ]
        spans = log_spans(lookup, every, isolation)
    return {
        name: TopicEnds(
            name,
            topic.topic_id,
            tuple(
                PartitionEnds(tp.partition, spans[tp].start, spans[tp].end)
                for tp in (TopicPartition(name, number) for number in topic.partitions)
            ),
        )
        for name, topic in facts.items()
    }
