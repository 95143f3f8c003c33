"""Batches of records that the client cannot unpack: their offsets, and the reason.

The client unpacks a batch as a whole, and reports only its first offset. It stays there: every later read of the
batch fails as well. A search with reads at growing offsets finds the start of the next batch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

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

#: The default limit of an unpacked zstd batch in the client.
UNPACKED_BYTES_DEFAULT: Final = 100_000_000
#: The setting of that limit. Batches of other codecs have no limit.
UNPACKED_SETTING: Final = "receive.message.max.bytes"

#: The client's log line about a zstd batch above the limit: its error is the same as for a damaged batch.
_BEYOND_LIMIT: Final = re.compile(r"output buffer (\d+)\): output would exceed")
#: The limit of one answer during the search for the next batch.
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
        config: the configuration of the consumer that failed.
        tp: the partition.
        at: the batch's first offset, as the client reported it.
        wanted: the offsets that are read.
        fault: the client's error.
        reasons: the reasons of the consumer.
        timeout_s: the limit of the search for the batch's end.
    """
    probe = _Probe(config, tp, at, reasons)
    end = probe.end(time.monotonic() + timeout_s)
    batch = UnreadableBatch(tp, at, end, wanted, f"{reasons.scrub(fault.str())} ({fault.name()})")
    if probe.unpacked_bytes is not None:
        limit = int(config.get(UNPACKED_SETTING, UNPACKED_BYTES_DEFAULT))
        return batch.beyond(limit, probe.unpacked_bytes)
    return batch.damaged(RecordTooLargeError if is_too_large(fault.code()) else CorruptRecordError)


class UnreadableBatch(NamedTuple):
    """A batch that cannot be read, for its error."""

    tp: TopicPartition
    start: int
    #: `None` if it was not found in time.
    end: int | None
    wanted: OffsetSet
    #: The client's error.
    why: str

    def damaged(self, kind: type[ReadError] = CorruptRecordError) -> ReadError:
        """Return the error of a batch that no client can read."""
        return kind(
            f"{self.tp} {self._offsets} cannot be read: {self.why}. The log is damaged there, or was written in a format "
            f"that this client does not support. Restore the partition from a replica, or {self._cure}",
            **self._facts,
        )

    def beyond(self, limit: int, unpacked_bytes: int) -> ReadError:
        """Return the error of a batch that exceeds the client's limit when it is unpacked."""
        return RecordTooLargeError(
            f"{self.tp} {self._offsets}: this batch (zstd) takes more than {limit:,} bytes when it is unpacked, the limit of "
            f"the client ({UNPACKED_SETTING}). To read it, set {UNPACKED_SETTING} to {unpacked_bytes:,} or more, and provide "
            f"that much free memory; or {self._cure}. {self.why}",
            **self._facts,
        )

    @property
    def _offsets(self) -> str:
        if self.end is None:
            return f"the batch at offset {self.start}"
        return f"offsets [{self.start}, {self.end})"

    @property
    def _cure(self) -> str:
        if self.end is None:
            return "read again: the end of the batch was not found in time"
        if self.wanted.end == INT64_MAX:
            return f"accept the loss and continue from offset {self.end}"
        return "accept the loss: run the window again with on_data_loss='warn'"

    @property
    def _facts(self) -> dict[str, Any]:
        if self.end is None:
            return {"unreadable": {}}
        return {
            "unreadable": {
                str(self.tp): (OffsetSet.of((self.start, self.end)) & self.wanted).ranges
            }
        }


class _Probe:
    """A reader of one partition that only checks which offsets can be read. Also the client's ``logger``."""

    def __init__(
        self, config: Mapping[str, str], tp: TopicPartition, at: int, reasons: FaultReasons
    ) -> None:
        self._config = config
        self._tp = tp
        self._at = at
        self._reasons = reasons
        #: The unpacked size of a zstd batch above the limit; `None` for other batches.
        self.unpacked_bytes: int | None = None
        self._is_past = False
        self._log_end = INT64_MAX

    def log(self, _level: int, message: str, *args: object) -> None:
        """Handle a log line of the client. Lines about later batches are ignored."""
        if self._is_past:
            return
        if match := _BEYOND_LIMIT.search(message % args if args else message):
            self.unpacked_bytes = int(match[1][:_DIGITS_MAX])

    def end(self, deadline_s: float) -> int | None:
        """Return the first offset after the batch; `None` if there was no answer in time."""
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
            return self._find_end(consumer, deadline_s)
        except ck.KafkaException:
            return None
        finally:
            consumer.close()

    def _find_end(self, consumer: ck.Consumer, deadline_s: float) -> int | None:
        # First the batch itself: the client's log lines explain its error.
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
        """Return whether an offset is outside of the batch; `None` if there was no answer in time."""
        if offset >= self._log_end:
            return True
        start = [ck.TopicPartition(self._tp.topic, self._tp.partition, offset)]
        consumer.assign(start)
        until_s = min(time.monotonic() + _ANSWER_TIMEOUT_S, deadline_s)
        while time.monotonic() < until_s:
            for message in consumer.consume(1, _WAIT_S):
                error, batch_start = message.error(), client_position(message.offset())
                if error is None or error.code() == ck.KafkaError._PARTITION_EOF:
                    return True
                # After a wrong checksum, the client interprets the following data as batches at arbitrary offsets. It
                # reports those, and may even continue from there.
                if is_out_of_range(error.code()):
                    consumer.assign(start)
                elif (
                    is_unreadable(error.code())
                    and batch_start is not None
                    and self._at <= batch_start < self._log_end
                ):
                    return batch_start > self._at
        return None
