"""librdkafka's C interface, for data that confluent-kafka does not pass on exactly.

It is called by ctypes, in the library that confluent-kafka is linked with, on the client that
confluent-kafka created: one configuration, one producer, one transaction.

The only assumption is where confluent-kafka stores its client: in the first field after the object
header. That is checked for each client before its first use.
"""

from __future__ import annotations

import ctypes as c
import functools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import cimpl
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.client.answers import UNANSWERED, committed_offset


class TransactionCallError(ck.KafkaException):
    """A failed transactional call, with everything that the client reports about it."""

    def __init__(
        self, code: int, name: str, text: str, fatal: bool, retriable: bool, abortable: bool
    ) -> None:
        super().__init__(ck.KafkaError(code, text, fatal, retriable, abortable))
        self.code = code
        self.name = name
        self.text = text
        #: The producer cannot be used any more.
        self.fatal = fatal
        #: The same call may be repeated.
        self.retriable = retriable
        #: The transaction must be aborted.
        self.abortable = abortable


def milliseconds(seconds: float) -> int:
    """Return a timeout in milliseconds; never 0, which would not wait at all."""
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


class _Group(c.Structure):
    """librdkafka's ``struct rd_kafka_group_info``."""

    _fields_ = (
        ("broker_id", c.c_int32),
        ("broker_host", c.c_char_p),
        ("broker_port", c.c_int),
        ("group", c.c_char_p),
        ("err", c.c_int),
        ("state", c.c_char_p),
        ("protocol_type", c.c_char_p),
        ("protocol", c.c_char_p),
        ("members", c.c_void_p),
        ("member_cnt", c.c_int),
    )


class _GroupList(c.Structure):
    """librdkafka's ``struct rd_kafka_group_list``."""

    _fields_ = (("groups", c.POINTER(_Group)), ("group_cnt", c.c_int))


_ListPointer = c.POINTER(_PartitionList)
_GroupsPointer = c.POINTER(_GroupList)
#: name -> (result type, argument types)
_FUNCTIONS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "rd_kafka_version": (c.c_int, ()),
    "rd_kafka_name": (c.c_char_p, (c.c_void_p,)),
    "rd_kafka_mem_malloc": (c.c_void_p, (c.c_void_p, c.c_size_t)),
    "rd_kafka_metadata": (
        c.c_int,
        (c.c_void_p, c.c_int, c.c_void_p, c.POINTER(c.c_void_p), c.c_int),
    ),
    "rd_kafka_metadata_destroy": (None, (c.c_void_p,)),
    "rd_kafka_topic_partition_list_new": (_ListPointer, (c.c_int,)),
    "rd_kafka_topic_partition_list_add": (
        c.POINTER(_Partition),
        (_ListPointer, c.c_char_p, c.c_int32),
    ),
    "rd_kafka_topic_partition_list_destroy": (None, (_ListPointer,)),
    "rd_kafka_list_groups": (
        c.c_int,
        (c.c_void_p, c.c_char_p, c.POINTER(_GroupsPointer), c.c_int),
    ),
    "rd_kafka_group_list_destroy": (None, (_GroupsPointer,)),
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
    "rd_kafka_consumer_group_metadata": (c.c_void_p, (c.c_void_p,)),
    "rd_kafka_consumer_group_metadata_member_id": (c.c_char_p, (c.c_void_p,)),
    "rd_kafka_consumer_group_metadata_destroy": (None, (c.c_void_p,)),
    "rd_kafka_send_offsets_to_transaction": (
        c.c_void_p,
        (c.c_void_p, _ListPointer, c.c_void_p, c.c_int),
    ),
    "rd_kafka_headers_new": (c.c_void_p, (c.c_size_t,)),
    "rd_kafka_header_add": (
        c.c_int,
        (c.c_void_p, c.c_char_p, c.c_ssize_t, c.c_char_p, c.c_ssize_t),
    ),
    "rd_kafka_headers_destroy": (None, (c.c_void_p,)),
    "rd_kafka_error_code": (c.c_int, (c.c_void_p,)),
    "rd_kafka_error_name": (c.c_char_p, (c.c_void_p,)),
    "rd_kafka_error_string": (c.c_char_p, (c.c_void_p,)),
    "rd_kafka_error_is_fatal": (c.c_int, (c.c_void_p,)),
    "rd_kafka_error_is_retriable": (c.c_int, (c.c_void_p,)),
    "rd_kafka_error_txn_requires_abort": (c.c_int, (c.c_void_p,)),
    "rd_kafka_error_destroy": (None, (c.c_void_p,)),
}


class Library:
    """The librdkafka of confluent-kafka. Calls release the interpreter lock."""

    def __init__(self) -> None:
        # The extension module is linked with the library, so the library's symbols are found through it, wherever
        # the wheel has put the file.
        try:
            loaded = c.CDLL(str(cimpl.__file__))
            for name, (result, arguments) in _FUNCTIONS.items():
                function = getattr(loaded, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
        except (OSError, AttributeError) as error:
            raise _unfit(str(error)) from error
        version, expected = self.rd_kafka_version(), ck.libversion()[1]
        if version != expected:
            raise _unfit(
                f"version {version:#010x} is loaded, but it was built against {expected:#010x}"
            )

    def __getattr__(self, name: str) -> Any:
        """Raise for an unknown name: `__init__` sets the C functions. This method is for the type checker."""
        raise AttributeError(name)

    def handle_of(self, client: ck.Producer | ck.Consumer | AdminClient, kind: str) -> int:
        """Return the address of a client's ``rd_kafka_t``; `kind` is ``producer`` or ``consumer``.

        Raises `ConfigError` if the client's internals differ from those expected.
        """
        size = object.__basicsize__
        if type(client).__basicsize__ < size + c.sizeof(c.c_void_p):
            raise _unfit(f"a {kind} object of {type(client).__basicsize__} bytes holds no client")
        handle = c.c_void_p.from_address(id(client) + size).value
        name = self.rd_kafka_name(handle) if handle else None
        if handle is None or name is None or not re.search(rb"#%b-\d+$" % kind.encode(), name):
            raise _unfit(f"a {kind} was expected, but its name is {name!r}")
        return handle

    def has_member_id(self, consumer: ck.Consumer) -> bool:
        """Return whether a consumer is a member of its group; for any thread, also while another one polls.

        A method of confluent-kafka's consumer would wait until that poll, with all its callbacks, has ended.
        """
        metadata = self.rd_kafka_consumer_group_metadata(self.handle_of(consumer, "consumer"))
        if not metadata:
            return False
        try:
            return bool(self.rd_kafka_consumer_group_metadata_member_id(metadata))
        finally:
            self.rd_kafka_consumer_group_metadata_destroy(metadata)

    def is_answered(self, consumer: ck.Consumer, timeout_s: float) -> bool:
        """Return whether a broker answers a consumer in time; for any thread, like `has_member_id`."""
        answer = c.c_void_p()
        handle, timeout_ms = self.handle_of(consumer, "consumer"), milliseconds(timeout_s)
        code = self.rd_kafka_metadata(handle, False, None, c.byref(answer), timeout_ms)
        if answer.value:
            self.rd_kafka_metadata_destroy(answer)
        return not code

    @contextmanager
    def partition_list(
        self, offsets: Mapping[TopicPartition, CommittedOffset | None]
    ) -> Iterator[Any]:
        """Yield a native list of these partitions; free it, with its contents, at the end."""
        partition_list = self.rd_kafka_topic_partition_list_new(len(offsets))
        try:
            for tp, committed in offsets.items():
                added = self.rd_kafka_topic_partition_list_add(
                    partition_list, tp.topic.encode(), tp.partition
                ).contents
                if committed is None:
                    # Otherwise a missing answer would look like a missing commit.
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
        offsets: dict[TopicPartition, tuple[CommittedOffset | None, int]] = {}
        with self.partition_list(dict.fromkeys(partitions)) as partition_list:
            code = self.rd_kafka_committed(handle, partition_list, milliseconds(timeout_s))
            elements = partition_list.contents
            for index in range(elements.cnt):
                element = elements.elems[index]
                tp = TopicPartition(element.topic.decode(), element.partition)
                if code or element.err:
                    offsets[tp] = None, element.err
                    continue
                committed = None
                if (offset := committed_offset(element.offset)) is not None:
                    size = element.metadata_size if element.metadata else 0
                    metadata = c.string_at(element.metadata, size) if size else b""
                    committed = CommittedOffset(offset, metadata)
                offsets[tp] = committed, element.err
        return code, offsets

    def protocols_of(self, handle: int, group_id: str, timeout_s: float) -> list[str]:
        """Return the protocol type of a group in each broker's list of groups; empty if the broker reports none.

        Other calls omit groups of other programs than consumers. The Python binding of this call is deprecated.
        Raises `KafkaException`, also if only some brokers answered and none of them has the group.
        """
        pointer = _GroupsPointer()
        name, timeout_ms = group_id.encode(), milliseconds(timeout_s)
        code = self.rd_kafka_list_groups(handle, name, c.byref(pointer), timeout_ms)
        protocols = []
        if bool(pointer):
            groups = pointer.contents
            protocols = [groups.groups[at].protocol_type or b"" for at in range(groups.group_cnt)]
            self.rd_kafka_group_list_destroy(pointer)
        if code and not protocols:
            raise ck.KafkaException(ck.KafkaError(code))
        return [protocol.decode(errors="replace") for protocol in protocols]

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
def library() -> Library:
    """Return the loaded library; raise `ConfigError` if confluent-kafka was built against another version."""
    return Library()


def _unfit(reason: str) -> ConfigError:
    return ConfigError(
        f"the librdkafka of confluent-kafka {ck.version()} (librdkafka {ck.libversion()[0]}, Python "
        f"{sys.version.split()[0]}) cannot be used for exact commit metadata: {reason}. Install a version "
        "of confluent-kafka that meets this package's requirements"
    )
