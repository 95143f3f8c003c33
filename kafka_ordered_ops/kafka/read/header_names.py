"""Detect names of headers that the client truncates: it returns them as text that ends at the first NUL.

The client knows their true size: it stores how many bytes a record's headers take in the log. A record whose headers
are smaller than that has lost a part of a name.
"""

from __future__ import annotations

import ctypes as c
import functools
from collections.abc import Sequence
from typing import Any, Final

import confluent_kafka as ck
import numpy as np
import pyarrow.compute as pc
from confluent_kafka import Message

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.kafka.client.librdkafka import library
from kafka_ordered_ops.kafka.client.lines import CLIENT_LOG

_WORD: Final = c.sizeof(c.c_void_p)
#: The place of librdkafka's headers in a `Message` of confluent-kafka: after topic, value, key, and Python's headers.
_HEADERS_AT: Final = object.__basicsize__ + 4 * _WORD
#: The place of the size in the log in librdkafka's headers: after their list.
_SIZE_AT: Final = 5 * _WORD
#: From these lengths on, a length takes one more byte in the log.
_LONGER_FROM: Final = np.array([2**6, 2**13, 2**20, 2**27], dtype=np.int64)

_word_at = c.c_size_t.from_address


def logged_sizes(records: Sequence[Message]) -> Int64Array | None:
    """Return the size of each record's headers in the log, in bytes; `None` if this client does not expose it.

    Call this before you read the headers: then the client frees its own copy.
    """
    if not _is_known():
        return None
    addresses = [_word_at(id(record) + _HEADERS_AT).value for record in records]
    return np.array(
        [_word_at(at + _SIZE_AT).value if at else 0 for at in addresses], dtype=np.int64
    )


def first_cut(logged: Int64Array, headers: Any) -> int | None:
    """Return the index of the first record whose headers are smaller than in the log."""
    pairs: Any = headers.flatten()
    lengths = [
        np.asarray(pc.fill_null(pc.binary_length(pairs.field(part)), 0), dtype=np.int64)
        for part in ("key", "value")
    ]
    sizes = sum(
        np.searchsorted(_LONGER_FROM, length, side="right") + 1 + length for length in lengths
    )
    ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(headers), 0), dtype=np.int64))
    until = np.concatenate(([0], np.cumsum(sizes)))[np.concatenate(([0], ends))]
    cut = np.flatnonzero(np.diff(until) < logged)
    return int(cut[0]) if cut.size else None


@functools.cache
def _is_known() -> bool:
    """Return whether the structures have the expected layout, by a test with our own objects."""
    try:
        is_known = _has_message_layout() and _has_headers_layout()
    except (TypeError, AttributeError):
        is_known = False
    if not is_known:
        CLIENT_LOG.warning(
            "confluent-kafka %s stores headers in an unexpected layout: header names with a NUL are truncated without an "
            "error",
            ck.version(),
        )
    return is_known


def _has_message_layout() -> bool:
    parts: list[Any] = ["topic", b"value", b"key", [("name", b"header")]]
    topic, value, key, headers = parts
    error = ck.KafkaError(ck.KafkaError._FAIL)
    message = Message(topic=topic, value=value, key=key, headers=headers, error=error)
    at = id(message) + object.__basicsize__
    words = [_word_at(at + number * _WORD).value for number in range(6)]
    # Only librdkafka's headers are between Python's headers and the error.
    return words == [*map(id, parts), 0, id(error)]


def _has_headers_layout() -> bool:
    client = library()
    headers = client.rd_kafka_headers_new(1)
    try:
        client.rd_kafka_header_add(headers, b"n\0m", 3, b"v", 1)
        return bool(_word_at(headers + _SIZE_AT).value == len(b"\x06n\0m\x02v"))
    finally:
        client.rd_kafka_headers_destroy(headers)
