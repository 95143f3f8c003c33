"""Which topics there are, for hosts that need to know before they plan: nothing is read of them."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.kafka.settings import ClientSettings


def topic_names(
    settings: ClientSettings,
    topics: Sequence[str],
    *,
    exclude: Sequence[str] = (),
    timeout_s: float = TIMEOUT_S,
) -> list[str]:
    """The topics that names and patterns mean now, sorted; those that this principal may describe.

    Args:
        settings: how to reach the cluster.
        topics: names, or patterns that begin with ``^``; a pattern means no internal topic.
        exclude: names or patterns to leave out.
        timeout_s: bound for the question.

    Raises:
        UnknownTopicError: a topic does not exist, or no topic matches.
        BrokerError: the cluster refuses, or cannot be reached.
        ConfigError: a pattern is no regular expression.
    """
    with open_lookup(settings, timeout_s=timeout_s) as lookup:
        return lookup.matching(topics, exclude)
