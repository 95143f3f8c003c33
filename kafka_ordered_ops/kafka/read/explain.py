"""Questions to the cluster about a read that does not go on: where the log is, and whether the topics still exist."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import confluent_kafka as ck

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, ReadTimeoutError, RecordsLostError
from kafka_ordered_ops.core.reading import position_in_log
from kafka_ordered_ops.core.types import INT64_MAX, Isolation
from kafka_ordered_ops.kafka.client.answers import no_answer
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.read.progress import Progress
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Partitions named in one error.
_NAMED_MAX: Final = 8
#: The client reports it with the code of any position outside of the log, and this text behind the reason.
_TRUNCATED: Final = ck.KafkaError(ck.KafkaError._LOG_TRUNCATION).str()


def where_to_go_on(settings: ClientSettings, one: Progress, *, timeout_s: float) -> int:
    """Return where to read on from, for a position outside of the log; see `position_in_log` for the error."""
    with Lookup(settings, timeout_s=timeout_s) as lookup:
        start = lookup.log_starts([one.tp])[one.tp]
        end = lookup.end_offsets([one.tp], Isolation.READ_UNCOMMITTED)[one.tp]
    if end < start:
        raise no_answer("reading", str(one.tp), f"the log starts at {start} and ends at {end}")
    return position_in_log(one.tp, one.wanted, one.position, log_start=start, log_end=end)


def check_not_truncated(one: Progress, error: ck.KafkaError) -> None:
    """Raise `RecordsLostError` if the client found the log of an open read truncated.

    By its look alone, a log that was truncated and has grown again is whole.
    """
    if one.wanted.end == INT64_MAX and _TRUNCATED in error.str():
        raise RecordsLostError(
            f"{one.tp}: the log was truncated below offset {one.position}, up to which it was read, and holds other "
            f"records there now. Find out which are missing, and read on from where it was cut: {error.str()}",
            lost={str(one.tp): ()},
        )


def check_topics(settings: ClientSettings, topics: Collection[str], *, timeout_s: float) -> None:
    """Raise if topics are deleted or forbidden, which the client itself does not report."""
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
    """Raise the cluster's error; return a timeout error if it reports none, with what throttles the client."""
    partitions = [one.tp for one in unfinished]
    with Lookup(settings, timeout_s=timeout_s) as lookup:
        lookup.topics({tp.topic for tp in partitions})
        ends = lookup.end_offsets(partitions, isolation)
    shown = ", ".join(
        f"{one.tp} at {one.position} of {one.wanted.end} (the log ends at {ends[one.tp]})"
        for one in list(unfinished)[:_NAMED_MAX]
    )
    advice = (
        f"A broker answers, but {throttled}: raise the quota, or use another client.id"
        if throttled
        else "A log that ends below what is wanted has an open transaction, or lost records in a failover; otherwise see "
        "the brokers' health, and run this window again"
    )
    return ReadTimeoutError(
        f"no position moved for {quiet_s:g} s: {shown}. {advice}",
        positions={str(one.tp): (one.position, one.wanted.end) for one in unfinished},
    )


def named(unfinished: Collection[Progress]) -> str:
    """Return partitions and positions for a message."""
    names = [f"{one.tp}@{one.position}" for one in unfinished]
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more
