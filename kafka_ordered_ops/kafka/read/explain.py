"""Requests that explain a stalled or failed read: the range of the log, and whether the topics still exist."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import confluent_kafka as ck

from kafka_ordered_ops.core.cluster.reading import position_in_log
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, ReadTimeoutError, RecordsLostError
from kafka_ordered_ops.core.types import INT64_MAX, Isolation
from kafka_ordered_ops.kafka.client.answers import no_answer
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.read.progress import Progress
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The maximum number of partitions that one error names.
_NAMED_MAX: Final = 8
#: The client reports a truncation with the code of any position outside of the log, and this text after the reason.
_TRUNCATED: Final = ck.KafkaError(ck.KafkaError._LOG_TRUNCATION).str()


def where_to_go_on(settings: ClientSettings, progress: Progress, *, timeout_s: float) -> int:
    """Return the offset to continue at, for a position outside of the log; see `position_in_log` for the error."""
    with Lookup(settings, timeout_s=timeout_s) as lookup:
        start = lookup.log_starts([progress.tp])[progress.tp]
        end = lookup.end_offsets([progress.tp], Isolation.READ_UNCOMMITTED)[progress.tp]
    if end < start:
        raise no_answer("reading", str(progress.tp), f"the log starts at {start} and ends at {end}")
    return position_in_log(
        progress.tp, progress.wanted, progress.position, log_start=start, log_end=end
    )


def check_not_truncated(progress: Progress, error: ck.KafkaError) -> None:
    """Raise `RecordsLostError` if the client reports that the log of an open read was truncated.

    The offsets alone do not show that a log was truncated and has grown again.
    """
    if progress.wanted.end == INT64_MAX and _TRUNCATED in error.str():
        raise truncated(progress, error.str())


def truncated(progress: Progress, why: str) -> RecordsLostError:
    """Return the error for a log that was truncated after it was read."""
    return RecordsLostError(
        f"{progress.tp}: the log was truncated below offset {progress.position}, up to which it was read, and holds other "
        f"records there now. Find out which are missing, and continue from where it was truncated: {why}",
        lost={str(progress.tp): ()},
    )


def check_topics(settings: ClientSettings, topics: Collection[str], *, timeout_s: float) -> None:
    """Raise if topics are deleted, or if a right is missing: the client does not report that itself."""
    try:
        with Lookup(settings, timeout_s=timeout_s) as lookup:
            lookup.topics(topics)
    except KafkaOrderedOpsError as error:
        if not error.retriable:
            raise


def stalled(
    settings: ClientSettings,
    unfinished: Collection[Progress],
    isolation: Isolation,
    *,
    quiet_s: float,
    throttled: str | None,
    timeout_s: float,
) -> KafkaOrderedOpsError:
    """Raise the cluster's error; if there is none, return a timeout error, with the reason why a broker throttles the client."""
    partitions = [progress.tp for progress in unfinished]
    with Lookup(settings, timeout_s=timeout_s) as lookup:
        lookup.topics({tp.topic for tp in partitions})
        ends = lookup.end_offsets(partitions, isolation)
    positions = ", ".join(
        f"{progress.tp} at {progress.position} of {progress.wanted.end} (the log ends at {ends[progress.tp]})"
        for progress in list(unfinished)[:_NAMED_MAX]
    )
    advice = (
        f"A broker answers, but {throttled}: raise the quota, or use another client.id"
        if throttled
        else "A log that ends below the wanted end has an open transaction, or lost records in a failover; otherwise check "
        "the brokers' health, and run this window again"
    )
    return ReadTimeoutError(
        f"no position moved for {quiet_s:g} s: {positions}. {advice}",
        positions={
            str(progress.tp): (progress.position, progress.wanted.end) for progress in unfinished
        },
    )


def check_led(
    settings: ClientSettings,
    unmoved: Collection[Progress],
    isolation: Isolation,
    *,
    quiet_s: float,
    timeout_s: float,
) -> None:
    """Raise `ReadTimeoutError` if the leader of a partition that has not moved for `quiet_s` does not answer."""
    try:
        with Lookup(settings, timeout_s=timeout_s) as lookup:
            lookup.end_offsets([progress.tp for progress in unmoved], isolation)
    except KafkaOrderedOpsError as error:
        if not error.retriable:
            raise
        raise ReadTimeoutError(
            f"no position of {named(unmoved)} moved for {quiet_s:g} s, while other partitions were read: {error}",
            positions={
                str(progress.tp): (progress.position, progress.wanted.end) for progress in unmoved
            },
        ) from error


def named(unfinished: Collection[Progress]) -> str:
    """Return partitions and positions for a message."""
    names = [f"{progress.tp}@{progress.position}" for progress in unfinished]
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more
