"""Committed offsets with their metadata, exact to the byte.

confluent-kafka appends a NUL to metadata on every path that commits, and reads past its end on every path
that returns it. Its own commit of a member has no time limit. librdkafka's C interface is exact. So the calls that
matter go there by ctypes, through the library that confluent-kafka is linked with and on the client that
confluent-kafka made: one configuration, one producer, one transaction.

The only thing taken on trust is where confluent-kafka keeps its client: in the first field after the object
header. That is checked before its first use, on each client.
"""

from __future__ import annotations

import ctypes as c
import functools
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import cimpl

from kafka_ordered_ops.core.cluster_facts import CommittedOffset as CommittedOffset
from kafka_ordered_ops.core.errors import (
    ConfigError,
    LedgerUnavailableError,
    OffsetMapTooLargeError,
    invariant,
)
from kafka_ordered_ops.core.offset_map.ours import METADATA_BYTES_MAX as METADATA_BYTES_MAX
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.answers import UNANSWERED, NoAnswerError, committed_offset
from kafka_ordered_ops.kafka.client.asking import RETRY_PAUSE_S
from kafka_ordered_ops.kafka.client.calls import waits_for, within
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client, translate
from kafka_ordered_ops.kafka.client.forks import Home
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Reading committed offsets: longer than an abandoned transaction can hold them back.
TIMEOUT_S: Final = 30.0
#: The time of one of many attempts: the error callback, which reports a wrong password, runs only between them.
TRY_S: Final = 1.0
#: The client ignores signals while it waits: a Ctrl-C during a member's commit is felt this late.
COMMIT_SLICE_S: Final = 0.1
#: For the question why there is no answer, asked at the deadline.
EXPLAIN_TIMEOUT_S: Final = 2.0

#: Answers that pass by themselves: no coordinator yet, or an open transaction holds the offset back.
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


class TransactionCallError(ck.KafkaException):
    """A failed transactional call, with everything that the client reports about it."""

    def __init__(
        self, code: int, name: str, text: str, fatal: bool, retriable: bool, abortable: bool
    ) -> None:
        super().__init__(ck.KafkaError(code, text, fatal, retriable, abortable))
        self.code = code
        self.name = name
        self.text = text
        #: The producer is of no more use.
        self.fatal = fatal
        #: The same call may be made again.
        self.retriable = retriable
        #: The transaction must be aborted.
        self.abortable = abortable


def read_committed_offsets(
    settings: ClientSettings,
    group_id: str,
    partitions: Sequence[TopicPartition],
    *,
    timeout_s: float = TIMEOUT_S,
) -> dict[TopicPartition, CommittedOffset | None]:
    """Return a group's committed offsets, asked once; see `OffsetsReader.read`."""
    with OffsetsReader(settings, group_id) as reader:
        return reader.read(partitions, timeout_s=timeout_s)


class OffsetsReader:
    """Asks for a group's committed offsets, again and again over one connection. Does not join the group."""

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
        """Return the committed offsets; None where the group has none.

        Waits while another process's open transaction delays an offset of the group, so that the result cannot change
        by itself.

        Raises the `BrokerError` family, and `LedgerUnavailableError` when such a transaction is still open
        at the deadline.
        """
        self._home.check(f"a connection of group {self._group}")
        if not partitions:
            return {}
        if self._consumer is None:
            config = self._settings.consumer(
                group_id=self._group, isolation=Isolation.READ_COMMITTED
            )
            self._consumer = open_client(ck.Consumer, config, self._reasons)
        return _read(
            self._consumer, self._settings, self._group, partitions, timeout_s, self._reasons
        )


def send_offsets_to_transaction(
    producer: ck.Producer,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    timeout_s: float,
) -> None:
    """Put offsets into the producer's open transaction, metadata exactly as given.

    Not as a member of the group: the caller makes sure that it is empty. `timeout_s` is the client's timeout; a hung
    broker can delay it by up to ``socket.timeout.ms``.

    Raises `OffsetMapTooLargeError` before anything is sent, and `TransactionCallError`.
    """
    for tp, committed in offsets.items():
        _check_metadata(tp, committed)
    library = _library()
    handle = library.handle_of(producer, "producer")
    metadata = library.rd_kafka_consumer_group_metadata_new(group_id.encode())
    try:
        with library.partition_list(offsets) as partition_list:
            error = library.rd_kafka_send_offsets_to_transaction(
                handle, partition_list, metadata, _milliseconds(timeout_s)
            )
            library.raise_and_free(error)
    finally:
        library.rd_kafka_consumer_group_metadata_destroy(metadata)


def commit_as_member(
    consumer: ck.Consumer, offsets: Mapping[TopicPartition, int], *, timeout_s: float
) -> ck.KafkaError | None:
    """Commit offsets with the generation of a live member; return the client's error, or None if all are stored.

    With an error, some may be stored: the client reports one for all. Without an answer in time it is `_TIMED_OUT`, and
    the offsets may still be stored later.
    """
    library, deadline = _library(), within(timeout_s)
    handle = library.handle_of(consumer, "consumer")
    wanted = {tp: CommittedOffset(offset) for tp, offset in offsets.items()}
    queue = library.rd_kafka_queue_new(handle)
    try:
        with library.partition_list(wanted) as partition_list:
            code = library.rd_kafka_commit_queue(handle, partition_list, queue, None, None)
        event = None
        while not (code or event or deadline.is_over):
            # In slices: a signal is felt between them.
            slice_s = min(COMMIT_SLICE_S, deadline.left_s)
            event = library.rd_kafka_queue_poll(queue, _milliseconds(slice_s))
        if event is not None:
            code = library.rd_kafka_event_error(event)
            library.rd_kafka_event_destroy(event)
        elif not code:
            code = ck.KafkaError._TIMED_OUT
        return ck.KafkaError(code) if code else None
    finally:
        # An answer that is still to come is dropped with it.
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
    # The broker stores text: it would replace what is not UTF-8, and a NUL ends it for other clients.
    try:
        committed.metadata.decode()
    except UnicodeDecodeError:
        invariant(False, f"commit metadata of {tp} is not UTF-8")


def _read(
    consumer: ck.Consumer,
    settings: ClientSettings,
    group_id: str,
    partitions: Sequence[TopicPartition],
    timeout_s: float,
    reasons: FaultReasons,
) -> dict[TopicPartition, CommittedOffset | None]:
    library = _library()
    handle = library.handle_of(consumer, "consumer")
    doing, where = "reading committed offsets", f"group {group_id}"
    # The rest of the time is for the query why there was no answer.
    deadline = within(timeout_s - min(EXPLAIN_TIMEOUT_S, timeout_s / 4))
    asked = False
    while True:
        waits_for(f"{doing} ({where})")
        left_s = deadline.left_s
        code, found = _asked(library, handle, partitions, min(TRY_S, left_s))
        # Runs the error callback; a consumer without an assignment returns no record.
        consumer.poll(0)
        failed = {tp: error for tp, (_, error) in found.items() if error}
        if not code and not failed:
            return {tp: committed for tp, (committed, _) in found.items()}
        reasons.raise_if_hopeless(doing=doing, where=where)
        # When the call as a whole failed, the partitions hold no answer.
        for tp, error in {None: code}.items() if code else failed.items():
            if error not in _PASSING:
                at = where if tp is None else f"{where}, {tp}"
                raise translate(ck.KafkaError(error), doing=doing, where=at, reasons=reasons)
        left_s = deadline.left_s
        if left_s <= 0:
            raise _held_back(settings, group_id, timeout_s)
        if not asked:
            # Without the right to the group the client retries silently for ever; this query reports it.
            _ask_members(settings, group_id, left_s)
            asked = True


def _asked(
    library: _Library, handle: int, partitions: Sequence[TopicPartition], timeout_s: float
) -> tuple[int, dict[TopicPartition, tuple[CommittedOffset | None, int]]]:
    """Return `_Library.committed`, with None if there was no answer in time."""
    try:
        return library.committed(handle, partitions, timeout_s)
    except NoAnswerError:
        time.sleep(min(RETRY_PAUSE_S, timeout_s))
        return ck.KafkaError._TIMED_OUT, {}


def _ask_members(settings: ClientSettings, group_id: str, timeout_s: float) -> None:
    with Lookup(settings, timeout_s=timeout_s) as lookup:
        lookup.group_members(group_id)


def _held_back(settings: ClientSettings, group_id: str, timeout_s: float) -> LedgerUnavailableError:
    """Raise the broker's error; without one, report an open transaction."""
    _ask_members(settings, group_id, EXPLAIN_TIMEOUT_S)
    return LedgerUnavailableError(
        f"committed offsets of group {group_id} cannot be read within {timeout_s:g} s: the group's "
        "coordinator answers, so another process's open transaction holds them back. It ends "
        "at its transaction.timeout.ms; `kafka-transactions.sh list` shows its owner",
        group_id=group_id,
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1_000))


class _Partition(c.Structure):
    """librdkafka's ``rd_kafka_topic_partition_t``."""

    _fields_ = (
        ("topic", c.c_char_p),
        ("partition", c.c_int32),
        ("offset", c.c_int64),
        ("metadata", c.c_void_p),
        ("metadata_size", c.c_size_t),
        ("opaque", c.c_void_p),
        ("err", c.c_int),
        ("_private", c.c_void_p),
    )


class _PartitionList(c.Structure):
    """librdkafka's ``rd_kafka_topic_partition_list_t``."""

    _fields_ = (
        ("cnt", c.c_int),
        ("size", c.c_int),
        ("elems", c.POINTER(_Partition)),
    )


_ListPointer = c.POINTER(_PartitionList)
#: name -> (result type, argument types)
_FUNCTIONS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "rd_kafka_version": (c.c_int, ()),
    "rd_kafka_name": (c.c_char_p, (c.c_void_p,)),
    "rd_kafka_mem_malloc": (c.c_void_p, (c.c_void_p, c.c_size_t)),
    "rd_kafka_topic_partition_list_new": (_ListPointer, (c.c_int,)),
    "rd_kafka_topic_partition_list_add": (
        c.POINTER(_Partition),
        (_ListPointer, c.c_char_p, c.c_int32),
    ),
    "rd_kafka_topic_partition_list_destroy": (None, (_ListPointer,)),
    "rd_kafka_committed": (c.c_int, (c.c_void_p, _ListPointer, c.c_int)),
    "rd_kafka_queue_new": (c.c_void_p, (c.c_void_p,)),
    "rd_kafka_queue_destroy": (None, (c.c_void_p,)),
    "rd_kafka_queue_poll": (c.c_void_p, (c.c_void_p, c.c_int)),
    "rd_kafka_commit_queue": (
        c.c_int,
        (c.c_void_p, _ListPointer, c.c_void_p, c.c_void_p, c.c_void_p),
    ),
    "rd_kafka_event_error": (c.c_int, (c.c_void_p,)),
    "rd_kafka_event_destroy": (None, (c.c_void_p,)),
    "rd_kafka_consumer_group_metadata_new": (c.c_void_p, (c.c_char_p,)),
    "rd_kafka_consumer_group_metadata_destroy": (None, (c.c_void_p,)),
    "rd_kafka_send_offsets_to_transaction": (
        c.c_void_p,
        (c.c_void_p, _ListPointer, c.c_void_p, c.c_int),
    ),
    "rd_kafka_error_code": (c.c_int, (c.c_void_p,)),
    "rd_kafka_error_name": (c.c_char_p, (c.c_void_p,)),
    "rd_kafka_error_string": (c.c_char_p, (c.c_void_p,)),
    "rd_kafka_error_is_fatal": (c.c_int, (c.c_void_p,)),
    "rd_kafka_error_is_retriable": (c.c_int, (c.c_void_p,)),
    "rd_kafka_error_txn_requires_abort": (c.c_int, (c.c_void_p,)),
    "rd_kafka_error_destroy": (None, (c.c_void_p,)),
}


class _Library:
    """The librdkafka that confluent-kafka runs on. Calls release the interpreter lock."""

    def __init__(self) -> None:
        # The extension module is linked with the library, so its symbols are found through it, wherever
        # the wheel has put the file.
        try:
            loaded = c.CDLL(str(cimpl.__file__))
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(loaded, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
        except (OSError, AttributeError) as error:
            raise _unfit(str(error)) from error
        found, expected = self.rd_kafka_version(), ck.libversion()[1]
        if found != expected:
            raise _unfit(f"version {found:#010x} is loaded, {expected:#010x} was built against")

    def __getattr__(self, name: str) -> Any:
        """Return the C functions, set by `__init__`; here for the type checker, and for a clear mistake."""
        raise AttributeError(name)

    def handle_of(self, client: ck.Producer | ck.Consumer, kind: str) -> int:
        """Return the address of a client's ``rd_kafka_t``; `kind` is ``producer`` or ``consumer``.

        Raises `ConfigError` if the client's internals differ from those expected.
        """
        size = object.__basicsize__
        if type(client).__basicsize__ < size + c.sizeof(c.c_void_p):
            raise _unfit(f"a {kind} object of {type(client).__basicsize__} bytes holds no client")
        handle = c.c_void_p.from_address(id(client) + size).value
        name = self.rd_kafka_name(handle) if handle else None
        if handle is None or name is None or not re.search(rb"#%b-\d+$" % kind.encode(), name):
            raise _unfit(f"no {kind} where one was expected, but {name!r}")
        return handle

    @contextmanager
    def partition_list(
        self, offsets: Mapping[TopicPartition, CommittedOffset | None]
    ) -> Iterator[Any]:
        """Yield a native list of these partitions, freed with all that it then holds."""
        partition_list = self.rd_kafka_topic_partition_list_new(len(offsets))
        try:
            for tp, committed in offsets.items():
                added = self.rd_kafka_topic_partition_list_add(
                    partition_list, tp.topic.encode(), tp.partition
                ).contents
                if committed is None:
                    # Otherwise a missing answer would read as "nothing is committed".
                    added.offset = UNANSWERED
                    continue
                added.offset = committed.offset
                if size := len(committed.metadata):
                    # The list frees it, so the library's own allocator must provide it.
                    added.metadata = self.rd_kafka_mem_malloc(None, size)
                    c.memmove(added.metadata, committed.metadata, size)
                    added.metadata_size = size
            yield partition_list
        finally:
            self.rd_kafka_topic_partition_list_destroy(partition_list)

    def committed(
        self, handle: int, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> tuple[int, dict[TopicPartition, tuple[CommittedOffset | None, int]]]:
        """Return the call's error code, and each partition's committed offset and error code."""
        found: dict[TopicPartition, tuple[CommittedOffset | None, int]] = {}
        with self.partition_list(dict.fromkeys(partitions)) as partition_list:
            code = self.rd_kafka_committed(handle, partition_list, _milliseconds(timeout_s))
            elements = partition_list.contents
            for index in range(elements.cnt):
                element = elements.elems[index]
                tp = TopicPartition(element.topic.decode(), element.partition)
                if code or element.err:
                    found[tp] = None, element.err
                    continue
                committed = None
                if (offset := committed_offset(element.offset)) is not None:
                    size = element.metadata_size if element.metadata else 0
                    metadata = c.string_at(element.metadata, size) if size else b""
                    committed = CommittedOffset(offset, metadata)
                found[tp] = committed, element.err
        return code, found

    def raise_and_free(self, error: int | None) -> None:
        """Raise `TransactionCallError` for an ``rd_kafka_error_t``, and free it; do nothing for NULL."""
        if not error:
            return
        try:
            raise TransactionCallError(
                self.rd_kafka_error_code(error),
                self.rd_kafka_error_name(error).decode(),
                self.rd_kafka_error_string(error).decode(errors="replace"),
                bool(self.rd_kafka_error_is_fatal(error)),
                bool(self.rd_kafka_error_is_retriable(error)),
                bool(self.rd_kafka_error_txn_requires_abort(error)),
            )
        finally:
            self.rd_kafka_error_destroy(error)


@functools.cache
def _library() -> _Library:
    return _Library()


def _unfit(found: str) -> ConfigError:
    return ConfigError(
        f"the librdkafka of confluent-kafka {ck.version()} (librdkafka {ck.libversion()[0]}, Python "
        f"{sys.version.split()[0]}) cannot be used for exact commit metadata: {found}. Install a version "
        "of confluent-kafka that this package names in its requirements"
    )
