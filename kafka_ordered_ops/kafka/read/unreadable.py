"""Batches of records that the client cannot unpack: which offsets they hold, and why.

The client unpacks a batch as a whole, and reports only its first offset. It stays there: every later read of the
batch fails as well. Where the next batch begins is found by reading from further and further on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import Message

from kafka_ordered_ops.core.errors import (
    CorruptRecordError,
    KafkaOrderedOpsError,
    ReadError,
    RecordTooLargeError,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.kafka.client.answers import position as client_position
from kafka_ordered_ops.kafka.client.errors import (
    FaultReasons,
    is_corrupt,
    is_out_of_range,
    is_too_large,
    open_client,
)

#: What the client unpacks a zstd batch to at most, unless it is told otherwise.
UNPACKED_BYTES_DEFAULT: Final = 100_000_000
#: The setting of that limit. Batches of other codecs have none.
UNPACKED_SETTING: Final = "receive.message.max.bytes"

#: The client's own lines about a zstd batch that is beyond the limit, which its error does not tell from damage.
_BEYOND_LIMIT: Final = re.compile(r"output buffer (\d+)\): output would exceed")
#: One answer of a broker on the way to the next batch.
_ANSWER_TIMEOUT_S: Final = 2.0
_WAIT_S: Final = 0.1
_DIGITS_MAX: Final = 19


def is_unreadable(code: int) -> bool:
    """Return whether a read failed because of a batch in the log."""
    return is_corrupt(code) or is_too_large(code)


def without_passed_over(messages: Sequence[Message]) -> list[Message]:
    """Return the records among messages, without those that follow an unreadable batch of their partition."""
    records: list[Message] = []
    stuck: set[tuple[str | None, int | None]] = set()
    for message in messages:
        if (error := message.error()) is None:
            if not stuck or (message.topic(), message.partition()) not in stuck:
                records.append(message)
        elif is_unreadable(error.code()):
            stuck.add((message.topic(), message.partition()))
    return records


def unreadable_error(
    config: Mapping[str, str],
    tp: TopicPartition,
    at: int,
    wanted: OffsetSet,
    fault: ck.KafkaError,
    reasons: FaultReasons,
    *,
    timeout_s: float,
) -> KafkaOrderedOpsError:
    """Return the error of a batch that begins at an offset, with its offsets.

    Args:
        config: of the consumer that failed.
        tp: the partition.
        at: the batch's first offset, by the client.
        wanted: the offsets that are read.
        fault: the client's error.
        reasons: the consumer's.
        timeout_s: bound for finding the batch's end.
    """
    probe = _Probe(config, tp, at, reasons)
    end = probe.end(time.monotonic() + timeout_s)
    told = f"{reasons.scrub(fault.str())} ({fault.name()})"
    if end is None:
        offsets = f"the batch at offset {at}"
        cure = f"read again: where the batch ends was not found within {timeout_s:g} s"
        facts: dict[str, Any] = {"unreadable": {}}
    else:
        offsets = f"offsets [{at}, {end})"
        cure = (
            f"accept the loss by reading on from offset {end}"
            if wanted.end == INT64_MAX
            else "accept the loss: run the window again with on_data_loss='warn'"
        )
        facts = {"unreadable": {str(tp): (OffsetSet.of((at, end)) & wanted).ranges}}
    if probe.unpacked_bytes is None:
        kind: type[ReadError] = (
            RecordTooLargeError if is_too_large(fault.code()) else CorruptRecordError
        )
        return kind(
            f"{tp} {offsets} cannot be read: {told}. The log is damaged there, or was written in a way that this client "
            f"does not know. Restore the partition from a replica, or {cure}",
            **facts,
        )
    limit = int(config.get(UNPACKED_SETTING, UNPACKED_BYTES_DEFAULT))
    return RecordTooLargeError(
        f"{tp} {offsets}: this batch (zstd) takes more than {limit:,} bytes when it is unpacked, the limit of the client "
        f"({UNPACKED_SETTING}). To read it, set {UNPACKED_SETTING} to {probe.unpacked_bytes:,} or more, and have that much "
        f"memory free; or {cure}. {told}",
        **facts,
    )


class _Probe:
    """A reader of one partition that only looks where records can be read. Also the client's ``logger``."""

    def __init__(
        self, config: Mapping[str, str], tp: TopicPartition, at: int, reasons: FaultReasons
    ) -> None:
        self._config = config
        self._tp = tp
        self._at = at
        self._reasons = reasons
        #: What the batch was to be unpacked to, if that is beyond the limit; None: it is not, or is not zstd.
        self.unpacked_bytes: int | None = None
        self._is_past = False
        self._log_end = INT64_MAX

    def log(self, _level: int, message: str, *args: object) -> None:
        """Take a line of the client; later batches may be beyond the limit as well."""
        if self._is_past:
            return
        if match := _BEYOND_LIMIT.search(message % args if args else message):
            self.unpacked_bytes = int(match[1][:_DIGITS_MAX])

    def end(self, deadline_s: float) -> int | None:
        """Return the first offset after the batch; None if there was no answer in time."""
        config = {
            **self._config,
            # After an error the client would wait half a second before it fetches again.
            "fetch.error.backoff.ms": "0",
            "fetch.message.max.bytes": "65536",
            "debug": "msg",
            "log_level": "7",
        }
        consumer = open_client(ck.Consumer, config, self._reasons, lines=self)
        try:
            return self._found(consumer, deadline_s)
        except ck.KafkaException:
            return None
        finally:
            consumer.close()

    def _found(self, consumer: ck.Consumer, deadline_s: float) -> int | None:
        # The batch itself: now its error is explained by the client's lines.
        tp = ck.TopicPartition(self._tp.topic, self._tp.partition)
        _, high = consumer.get_watermark_offsets(tp, timeout=_ANSWER_TIMEOUT_S)
        if (end := client_position(high)) is None:
            return None
        self._log_end = end
        if self._reads(consumer, self._at, deadline_s) is not False:
            return None
        self._is_past = True
        unread, step = self._at, 1
        while (reads := self._reads(consumer, self._at + step, deadline_s)) is False:
            unread, step = self._at + step, step * 2
        read = self._at + step
        while reads is not None and read - unread > 1:
            middle = (read + unread) // 2
            reads = self._reads(consumer, middle, deadline_s)
            unread, read = (middle, read) if reads is False else (unread, middle)
        return None if reads is None else read

    def _reads(self, consumer: ck.Consumer, offset: int, deadline_s: float) -> bool | None:
        """Return whether an offset is outside of the batch; None if there was no answer in time."""
        if offset >= self._log_end:
            return True
        start = [ck.TopicPartition(self._tp.topic, self._tp.partition, offset)]
        consumer.assign(start)
        until_s = min(time.monotonic() + _ANSWER_TIMEOUT_S, deadline_s)
        while time.monotonic() < until_s:
            for message in consumer.consume(1, _WAIT_S):
                error, found = message.error(), client_position(message.offset())
                if error is None or error.code() == ck.KafkaError._PARTITION_EOF:
                    return True
                # After a wrong checksum the client takes what follows for batches at any offsets. It reports those, and may
                # even go on from there.
                if is_out_of_range(error.code()):
                    consumer.assign(start)
                elif (
                    is_unreadable(error.code())
                    and found is not None
                    and self._at <= found < self._log_end
                ):
                    return found > self._at
        return None
