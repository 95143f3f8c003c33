"""Dead letters: records that failed in their last attempt, written to a separate topic with the error."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kafka_ordered_ops.core.dead_letter_headers import headers_about
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.processing.new_record import NewRecord, as_records
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.kafka.rights import check_may_write
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.processing.work_queue import Result


def dead_letter(topic: str, result: Result) -> NewRecord:
    """Return the record for the dead-letter topic: the original key, value and headers, and headers about the failure.

    The added headers are ``koo.topic``, ``koo.partition``, ``koo.offset``, ``koo.timestamp_ms``, ``koo.attempts``, ``koo.error_type`` and
    ``koo.error``, all of them text.
    """
    record, error = result.record, result.error
    facts = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp_ms": str(record.timestamp_ms),
        "attempts": str(record.attempt),
        "error_type": type(error).__qualname__,
        "error": _text_of(error),
    }
    headers = (*record.headers, *headers_about(facts))
    return NewRecord(topic, record.key, record.value, headers)


def outputs_with_dead_letters(
    topic: str | None, *, produces: bool = True
) -> Callable[[Result], Sequence[NewRecord]]:
    """Return a function that maps a result to the records to write: the function's outputs, or a dead letter.

    Without a topic, a failed record writes nothing. Without `produces`, a successful record writes nothing.
    """

    def outputs_of(result: Result) -> Sequence[NewRecord]:
        if result.error is None:
            return as_records(result.value) if produces else ()
        return () if topic is None else (dead_letter(topic, result),)

    return outputs_of


def check_dead_letter_topic(
    settings: ClientSettings, topic: str, is_read: Callable[[str], bool], *, timeout_s: float
) -> None:
    """Check the topic before any record is processed.

    Raises:
        ConfigError: the topic is one of those that are processed.
        UnknownTopicError: the topic does not exist. It is not created.
        AuthorizationError: this principal may not write to the topic.
        BrokerError: the cluster refuses the request or cannot be reached.
    """
    if is_read(topic):
        raise ConfigError(
            f"dead_letter_topic {topic!r} is one of the topics that are processed: a failed record would be processed "
            "again and again. Name another topic"
        )
    # First, so that a principal without any right gets the error that names the missing right.
    check_may_write(settings, topic, timeout_s=timeout_s)
    with open_lookup(settings, timeout_s=timeout_s) as lookup:
        lookup.topics([topic])


def _text_of(error: BaseException | None) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - the user's class; its name is in another header
        return ""
