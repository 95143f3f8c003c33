"""Read and commit offsets with their metadata, exact to the byte.

confluent-kafka appends a NUL to metadata in every commit, and reads past the end of metadata in every answer. Its own
commit of a member has no timeout. librdkafka's C interface is exact, so the critical calls use it directly
(`client.librdkafka`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import confluent_kafka as ck

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset as CommittedOffset
from kafka_ordered_ops.core.cluster.names import GROUP_LENGTH_MAX
from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    LedgerUnavailableError,
    OffsetMapTooLargeError,
    invariant,
)
from kafka_ordered_ops.core.offset_map.ours import METADATA_BYTES_MAX as METADATA_BYTES_MAX
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client import librdkafka
from kafka_ordered_ops.kafka.client.answers import NoAnswerError
from kafka_ordered_ops.kafka.client.asking import RETRY_PAUSE_S
from kafka_ordered_ops.kafka.client.calls import Deadline, waits_for, within
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client, translate
from kafka_ordered_ops.kafka.client.hanging import call_within
from kafka_ordered_ops.kafka.client.librdkafka import Library, TransactionCallError, milliseconds
from kafka_ordered_ops.kafka.client.lifetime import Home
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The time for reading committed offsets: longer than an abandoned transaction can hold them back.
TIMEOUT_S: Final = 30.0
#: The time of one of many attempts: the error callback, which reports a wrong password, runs only between them.
TRY_S: Final = 1.0
#: The client ignores signals while it waits, so a Ctrl-C during a member's commit is delayed by up to this time.
COMMIT_SLICE_S: Final = 0.1
#: The time, at the deadline, for finding out why there is no answer.
EXPLAIN_TIMEOUT_S: Final = 2.0

#: The size of the offsets in one request. The coordinator appends a request as one batch of at most `message.max.bytes`
#: (1 MiB; less on some clusters), and refuses a larger one as a whole, with an unspecific error.
REQUEST_BYTES_MAX: Final = 128 * 1024
#: What the broker stores for an offset in addition to topic and metadata: at most the group's name, and a few numbers.
_ENTRY_BYTES: Final = GROUP_LENGTH_MAX + 64

#: The brokers' errors for a batch of offsets that is too large.
_MAYBE_TOO_LARGE: Final = frozenset(
    {
        ck.KafkaError.UNKNOWN,
        ck.KafkaError.INVALID_COMMIT_OFFSET_SIZE,
        ck.KafkaError.MSG_SIZE_TOO_LARGE,
    }
)

#: Temporary errors: no coordinator yet, or an open transaction holds the offset back.
_PASSING: Final = frozenset(
    {
        ck.KafkaError._TIMED_OUT,
        ck.KafkaError._TIMED_OUT_QUEUE,
        ck.KafkaError._WAIT_COORD,
        ck.KafkaError._TRANSPORT,
        ck.KafkaError.UNSTABLE_OFFSET_COMMIT,
        ck.KafkaError.COORDINATOR_NOT_AVAILABLE,
        ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        ck.KafkaError.NOT_COORDINATOR,
    }
)


def read_committed_offsets(
    settings: ClientSettings,
    group_id: str,
    partitions: Sequence[TopicPartition],
    *,
    timeout_s: float = TIMEOUT_S,
) -> dict[TopicPartition, CommittedOffset | None]:
    """Return a group's committed offsets, for a single request; see `OffsetsReader.read`."""
    with OffsetsReader(settings, group_id) as reader:
        return reader.read(partitions, timeout_s=timeout_s)


class OffsetsReader:
    """Read a group's committed offsets repeatedly over one connection, without joining the group."""

    def __init__(self, settings: ClientSettings, group_id: str) -> None:
        self._settings = settings
        self._group = group_id
        self._reasons = FaultReasons(settings.secret_values())
        self._consumer: ck.Consumer | None = None
        self._home = Home()

    def __enter__(self) -> OffsetsReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._consumer is not None and self._home.is_here:
            self._consumer.close()
            self._consumer = None

    def read(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float = TIMEOUT_S
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the committed offsets; None for partitions where the group has none.

        Waits while another process's open transaction holds back an offset of the group, so that the result is stable.

        Raises the `BrokerError` family, and `LedgerUnavailableError` if such a transaction is still open at the deadline.
        """
        self._home.check(f"a connection of group {self._group}")
        if not partitions:
            return {}
        if self._consumer is None:
            config = self._settings.consumer(
                group_id=self._group, isolation=Isolation.READ_COMMITTED
            )
            self._consumer = open_client(ck.Consumer, config, self._reasons)
        try:
            return _read(self._consumer, self._group, partitions, timeout_s, self._reasons)
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                # A client reports a missing right only once: the next read needs a new client.
                self.close()
            raise


def send_offsets_to_transaction(
    producer: ck.Producer,
    group: str | ck.Consumer,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    timeout_s: float,
) -> None:
    """Add offsets to the producer's open transaction, with their metadata exactly as given.

    `group` is a live member, whose generation the broker checks, or the name of a group that the caller keeps empty. If
    the group's coordinator becomes unavailable meanwhile, the client may wait forever (librdkafka #5456): such a call is
    abandoned with its producer, which the next producer fences.

    Raises `OffsetMapTooLargeError` before anything is sent, `KafkaException` and `BrokerError`.
    """
    for tp, committed in offsets.items():
        _check_metadata(tp, committed)
    deadline = within(timeout_s)
    # The coordinator holds all of them back until the transaction is committed.
    for batch in batches(offsets):
        left_s = max(deadline.left_s, COMMIT_SLICE_S)
        call_within(
            left_s,
            partial(_send_offsets, producer, group, batch, left_s),
            doing="putting offsets into a transaction",
        )


def batches(
    offsets: Mapping[TopicPartition, CommittedOffset],
) -> Iterator[dict[TopicPartition, CommittedOffset]]:
    """Split offsets into as few requests as a broker accepts."""
    batch: dict[TopicPartition, CommittedOffset] = {}
    free = REQUEST_BYTES_MAX
    for tp, committed in offsets.items():
        size = _size_of(tp, committed)
        if batch and size > free:
            yield batch
            batch, free = {}, REQUEST_BYTES_MAX
        batch[tp] = committed
        free -= size
    if batch:
        yield batch


def _size_of(tp: TopicPartition, committed: CommittedOffset) -> int:
    return _ENTRY_BYTES + len(tp.topic) + len(committed.metadata)


def _refusal(offsets: Mapping[TopicPartition, CommittedOffset], code: int, text: str) -> str:
    """Return the client's text for a refused request, with its size if that may be the reason."""
    if code not in _MAYBE_TOO_LARGE:
        return text
    size = sum(_size_of(tp, committed) for tp, committed in offsets.items())
    return (
        f"{text}; the request has {len(offsets):,} offsets of up to {size:,} bytes in all, and brokers whose "
        "message.max.bytes (of __consumer_offsets: max.message.bytes) is smaller answer like this: raise it to "
        f"{2 * REQUEST_BYTES_MAX:,}"
    )


def _send_offsets(
    producer: ck.Producer,
    group: str | ck.Consumer,
    offsets: Mapping[TopicPartition, CommittedOffset],
    timeout_s: float,
) -> None:
    library = librdkafka.library()
    handle = library.handle_of(producer, "producer")
    if isinstance(group, str):
        metadata = library.rd_kafka_consumer_group_metadata_new(group.encode())
    else:
        metadata = library.rd_kafka_consumer_group_metadata(library.handle_of(group, "consumer"))
        invariant(bool(metadata), "a member has a group")
    try:
        if not (
            isinstance(group, str) or library.rd_kafka_consumer_group_metadata_member_id(metadata)
        ):
            # Without a member id it would be an outsider's commit, which an empty group allows.
            raise TransactionCallError(
                ck.KafkaError.UNKNOWN_MEMBER_ID,
                "UNKNOWN_MEMBER_ID",
                "removed from the group",
                fatal=False,
                retriable=False,
                abortable=True,
            )
        with library.partition_list(offsets) as partition_list:
            error = library.rd_kafka_send_offsets_to_transaction(
                handle, partition_list, metadata, milliseconds(timeout_s)
            )
            library.raise_and_free(error)
    except TransactionCallError as error:
        text = _refusal(offsets, error.code, error.text)
        raise TransactionCallError(
            error.code, error.name, text, error.fatal, error.retriable, error.abortable
        ) from None
    finally:
        library.rd_kafka_consumer_group_metadata_destroy(metadata)


def commit_as_member(
    consumer: ck.Consumer, offsets: Mapping[TopicPartition, CommittedOffset], *, timeout_s: float
) -> ck.KafkaError | None:
    """Commit offsets with the generation of a live member; return the client's error, or None if all are stored.

    Metadata is stored exactly as given; if it is too large, `OffsetMapTooLargeError` is raised before anything is sent.
    After an error, some offsets may be stored: the client reports one error for all. Without an answer in time, the error
    is `_TIMED_OUT`, and the offsets may still be stored later.
    """
    for tp, committed in offsets.items():
        _check_metadata(tp, committed)
    deadline = within(timeout_s)
    errors = (_commit_as_member(consumer, batch, deadline) for batch in batches(offsets))
    return next((error for error in errors if error is not None), None)


def _commit_as_member(
    consumer: ck.Consumer, offsets: Mapping[TopicPartition, CommittedOffset], deadline: Deadline
) -> ck.KafkaError | None:
    library = librdkafka.library()
    handle = library.handle_of(consumer, "consumer")
    queue = library.rd_kafka_queue_new(handle)
    try:
        with library.partition_list(offsets) as partition_list:
            code = library.rd_kafka_commit_queue(handle, partition_list, queue, None, None)
        event = None
        while not (code or event or deadline.is_over):
            # In slices, because signals are handled between them.
            slice_s = min(COMMIT_SLICE_S, deadline.left_s)
            event = library.rd_kafka_queue_poll(queue, milliseconds(slice_s))
        if event is not None:
            code = library.rd_kafka_event_error(event)
            library.rd_kafka_event_destroy(event)
        elif not code:
            code = ck.KafkaError._TIMED_OUT
        if not code:
            return None
        return ck.KafkaError(code, _refusal(offsets, code, ck.KafkaError(code).str()))
    finally:
        # A late answer is dropped with the queue.
        library.rd_kafka_queue_destroy(queue)


def _check_metadata(tp: TopicPartition, committed: CommittedOffset) -> None:
    invariant(committed.offset >= 0, f"offset {committed.offset} for {tp}")
    size = len(committed.metadata)
    if size > METADATA_BYTES_MAX:
        raise OffsetMapTooLargeError(
            f"commit metadata of {tp} takes {size} bytes; a broker stores at most {METADATA_BYTES_MAX} "
            "(offset.metadata.max.bytes)",
            size=size,
            limit=METADATA_BYTES_MAX,
        )
    # The broker stores text: it would replace bytes that are not UTF-8, and a NUL ends the text for other clients.
    try:
        committed.metadata.decode()
    except UnicodeDecodeError:
        invariant(False, f"commit metadata of {tp} is not UTF-8")


def _read(
    consumer: ck.Consumer,
    group_id: str,
    partitions: Sequence[TopicPartition],
    timeout_s: float,
    reasons: FaultReasons,
) -> dict[TopicPartition, CommittedOffset | None]:
    library = librdkafka.library()
    handle = library.handle_of(consumer, "consumer")
    doing, where = "reading committed offsets", f"group {group_id}"
    # The rest of the time is for finding out why there was no answer.
    deadline = within(timeout_s - min(EXPLAIN_TIMEOUT_S, timeout_s / 4))
    while True:
        waits_for(f"{doing} ({where})")
        code, offsets = _read_once(library, handle, partitions, min(TRY_S, deadline.left_s))
        # This runs the error callback; a consumer without an assignment returns no records, but errors.
        message = consumer.poll(0)
        failed = {tp: error for tp, (_, error) in offsets.items() if error}
        if not code and not failed:
            return {tp: committed for tp, (committed, _) in offsets.items()}
        reasons.raise_if_hopeless(doing=doing, where=where)
        # Without the right to the group, the call itself only times out.
        if message is not None and (event_error := message.error()) is not None:
            fault = translate(event_error, doing=doing, where=where, reasons=reasons)
            if not fault.retriable:
                raise fault
        # If the call as a whole failed, the partitions have no answers.
        for tp, error in {None: code}.items() if code else failed.items():
            if error not in _PASSING:
                at = where if tp is None else f"{where}, {tp}"
                raise translate(ck.KafkaError(error), doing=doing, where=at, reasons=reasons)
        if deadline.is_over:
            raise _held_back(consumer, group_id, partitions[0].topic, timeout_s, reasons)


def _read_once(
    library: Library, handle: int, partitions: Sequence[TopicPartition], timeout_s: float
) -> tuple[int, dict[TopicPartition, tuple[CommittedOffset | None, int]]]:
    """Return the result of `Library.committed`, or a timeout without offsets if there was no answer in time."""
    try:
        return library.committed(handle, partitions, timeout_s)
    except NoAnswerError:
        time.sleep(min(RETRY_PAUSE_S, timeout_s))
        return ck.KafkaError._TIMED_OUT, {}


def _held_back(
    consumer: ck.Consumer, group_id: str, topic: str, timeout_s: float, reasons: FaultReasons
) -> KafkaOrderedOpsError:
    """Return the error for a missing answer: no broker answers, or the group's offsets are not available."""
    try:
        # Not a request about the group: that could end the process when brokers come and go (librdkafka #4605).
        consumer.list_topics(topic, timeout=EXPLAIN_TIMEOUT_S)
    except ck.KafkaException as error:
        return translate(
            error.args[0],
            doing="reading committed offsets",
            where=f"group {group_id}",
            reasons=reasons,
        )
    return LedgerUnavailableError(
        f"committed offsets of group {group_id} cannot be read within {timeout_s:g} s: the cluster answers, so another "
        "process's open transaction holds them back, or the group's coordinator is away. A transaction ends at its "
        "transaction.timeout.ms; `kafka-transactions.sh list` shows its owner",
        group_id=group_id,
    )
