"""List offsets before a time, newest first, as getOffsetsBefore of Kafka's first API did.

That API listed the starts of a log's segment files, which no broker reports since Kafka 4.0. Here, equal steps in time
replace the files.
"""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kafka_ordered_ops.core.arguments import as_moment, as_names, as_span, check_count, shown
from kafka_ordered_ops.core.cluster.names import check_topic
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import SPAN_MS_MAX, time_ms
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.facts.log_spans import log_spans
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.ports import LookupDoor, open_lookup
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings

#: Offsets of one partition, by default.
MAX_OFFSETS: Final = 10
_MAX_OFFSETS_MAX: Final = 1_000
#: Steps back in time of one call: each is a look-up in every partition.
STEPS_MAX: Final = 10_000

#: Times that are looked up together.
_TIMES_AT_ONCE: Final = 20
_MS: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class OffsetAtTime:
    """The first offset stamped at or after a time; for a time after all records, the end of the log."""

    #: `None` for the start or the end of the log, if that was requested.
    time_ms: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class OffsetsBefore:
    """Offsets of one partition before a time."""

    tp: TopicPartition
    log_start: int
    #: The end of reading, exclusive.
    end_offset: int
    #: Newest first, strictly descending.
    offsets: tuple[OffsetAtTime, ...]


def offsets_before(
    settings: GivenSettings,
    topics: str | Sequence[str],
    time: datetime | str,
    max_offsets: int = MAX_OFFSETS,
    *,
    every: timedelta | str = "PT1H",
    timeout_s: float = TIMEOUT_S,
) -> list[OffsetsBefore]:
    """Return, for each partition, the first offsets stamped at or after a time and after equal steps back from it.

    A step without records adds no offset. There are fewer than `max_offsets` offsets if the log starts later, or if
    10,000 steps were not enough.

    Args:
        settings: the brokers as ``host:port,...``, a mapping of librdkafka settings, or `ClientSettings`.
        topics: names, or patterns that begin with ``^``.
        time: the newest time; ``latest`` for the end of each log, and steps back from the newest record; ``earliest`` for
            the start of each log only.
        max_offsets: the maximum number of offsets for each partition, from 1 to 1,000.
        every: the step.
        timeout_s: time limit for all requests.

    Raises:
        ConfigError: an invalid argument.
        UnknownTopicError: a topic does not exist.
        BrokerError: the cluster refuses a request, or cannot be reached.
    """
    names = as_names(topics, what="topics")
    if not names:
        raise ConfigError("topics is empty: give a name or pattern, or a list of at least one")
    for name in names:
        check_topic(name, what="topics")
    newest_ms = _newest_ms(time)
    check_count(max_offsets, what="max_offsets", least=1, greatest=_MAX_OFFSETS_MAX)
    every_ms = as_span(every, what="every") // _MS
    check_count(every_ms, what="every", least=1, greatest=SPAN_MS_MAX)
    checked = ClientSettings.of(settings)
    with (
        calls.call("listing offsets before a time", timeout_s),
        open_lookup(checked, timeout_s=timeout_s) as lookup,
    ):
        partitions = [
            TopicPartition(name, number)
            for name, facts in sorted(lookup.selected(names).items())
            for number in facts.partitions
        ]
        spans = log_spans(lookup, partitions, Isolation.READ_COMMITTED)
        offsets: dict[TopicPartition, list[OffsetAtTime]] = {tp: [] for tp in partitions}
        if newest_ms is None:
            for tp, span in spans.items():
                at = span.start if time == "earliest" else span.end
                offsets[tp].append(OffsetAtTime(None, at))
            newest_ms = _greatest_ms(lookup, partitions)
        if time != "earliest":
            _step_back(lookup, offsets, newest_ms, every_ms, max_offsets)
        spans = log_spans(lookup, partitions, Isolation.READ_COMMITTED)
    return [
        OffsetsBefore(tp, spans[tp].start, spans[tp].end, tuple(offsets[tp])) for tp in partitions
    ]


def _newest_ms(time: object) -> int | None:
    """Return the newest time; `None` for an end of the logs."""
    if time in ("latest", "earliest"):
        return None
    if not isinstance(time, datetime | str):
        raise ConfigError(f"time is {shown(time)}: give a time, 'latest' or 'earliest'")
    # Brokers take negative times as something else, and no clock stamps a record before zero.
    return check_count(
        time_ms(as_moment(time, what="time"), what="time"), what="time", least=0, greatest=INT64_MAX
    )


def _greatest_ms(lookup: LookupDoor, partitions: list[TopicPartition]) -> int:
    """Return the greatest timestamp of all partitions; the current time if no broker reports one."""
    known = lookup.greatest_timestamps(partitions).values() if partitions else ()
    now_ms = int(clock.time() * 1_000)
    return max(
        (greatest_ms for greatest_ms in known if greatest_ms is not None and greatest_ms >= 0),
        default=now_ms,
    )


def _step_back(
    lookup: LookupDoor,
    offsets: dict[TopicPartition, list[OffsetAtTime]],
    newest_ms: int,
    every_ms: int,
    max_offsets: int,
) -> None:
    """Add the offset of each step that is below the previous one, until there are enough, or the log starts."""
    partitions = [*offsets]
    spans = log_spans(lookup, partitions, Isolation.READ_COMMITTED)
    times = [newest_ms - n * every_ms for n in range(min(STEPS_MAX, newest_ms // every_ms + 1))]
    for batch in _batches(times):
        # A partition needs no look-up once it has all of its offsets, or its log starts.
        left = [
            tp for tp in partitions if not _is_complete(offsets[tp], spans[tp].start, max_offsets)
        ]
        if not left:
            return
        answers = lookup.first_at_or_after_each(left, batch, Isolation.READ_COMMITTED)
        for at_ms in batch:
            for tp in left:
                answer = answers[at_ms][tp]
                offset = spans[tp].end if answer is None else answer
                listed = offsets[tp]
                if len(listed) < max_offsets and (not listed or offset < listed[-1].offset):
                    listed.append(OffsetAtTime(at_ms, offset))


def _is_complete(offsets: Sequence[OffsetAtTime], log_start: int, max_offsets: int) -> bool:
    return bool(offsets) and (len(offsets) >= max_offsets or offsets[-1].offset <= log_start)


def _batches(times: list[int]) -> Iterable[list[int]]:
    """Return the times in order, in batches."""
    return (times[at : at + _TIMES_AT_ONCE] for at in range(0, len(times), _TIMES_AT_ONCE))
