"""Kafka's protocol by hand, for what no client library will send: odd timestamps, odd metadata.

Plain text, one broker, one request at a time. Only for tests that must get past a client's own care.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
import uuid
from collections.abc import Mapping, Sequence

_TIMEOUT_S = 30.0
_PRODUCE, _OFFSET_COMMIT, _OFFSET_FETCH, _FIND_COORDINATOR = 0, 8, 9, 10
_JOIN_GROUP, _LEAVE_GROUP, _OFFSET_DELETE = 11, 13, 47
_SHARE_HEARTBEAT, _STREAMS_HEARTBEAT, _ALTER_QUOTAS = 76, 88, 49
_NO_LEADER_YET = frozenset({3, 5, 6})
_NO_COORDINATOR_YET = frozenset({14, 15, 16})
_UNKNOWN_MEMBER = 25
_NONE = 0
#: In flexible versions: null for a text or a list, and no tagged fields.
_NULL, _NO_TAGS = b"\0", b"\0"


class WireError(Exception):
    """The broker answered with an error code."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: error {code}")
        self.code = code


def write_batch(
    bootstrap: str,
    topic: str,
    times_ms: Sequence[int],
    *,
    partition: int = 0,
    keys: Sequence[bytes] | None = None,
    header: bytes | None = None,
) -> int:
    """Writes one batch with exactly these timestamps, zero among them; the offset of its first record.

    `header` is the name of a header that each record has, of any bytes.
    """
    batch = _record_batch(times_ms, keys or [None] * len(times_ms), header)
    body = struct.pack(">hhi", -1, -1, int(_TIMEOUT_S * 1000))  # No transaction; all replicas.
    body += struct.pack(">i", 1) + _text(topic) + struct.pack(">ii", 1, partition)
    body += struct.pack(">i", len(batch)) + batch
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        answer = _call(bootstrap, _PRODUCE, 7, body)
        code, offset = struct.unpack_from(">hq", answer, 4 + 2 + len(topic.encode()) + 4 + 4)
        if code == _NONE:
            return int(offset)
        # A new topic's leaders learn of it one after another.
        if code not in _NO_LEADER_YET or time.monotonic() > deadline:
            raise WireError(f"writing to {topic}[{partition}]", code)
        time.sleep(0.1)


def set_quota(bootstrap: str, client_id: str, key: str, value: float | None) -> None:
    """Sets a client quota of all clients with an id; None removes it."""
    entity = struct.pack(">i", 1) + _text("client-id") + _text(client_id)
    change = struct.pack(">i", 1) + _text(key) + struct.pack(">d?", value or 0.0, value is None)
    body = struct.pack(">i", 1) + entity + change + struct.pack(">?", False)
    answer = _call(bootstrap, _ALTER_QUOTAS, 0, body)
    # Throttle time, one entry: its error.
    [code] = struct.unpack_from(">h", answer, 8)
    if code != _NONE:
        raise WireError(f"setting {key} of {client_id}", code)


def commit_offsets(
    bootstrap: str, group_id: str, topic: str, offsets: Mapping[int, tuple[int, bytes | None]]
) -> None:
    """Commits (offset, metadata) for each partition as a program outside the group; any bytes, or null."""
    body = _text(group_id) + struct.pack(">i", -1) + _text("") + struct.pack(">q", -1)
    body += struct.pack(">i", 1) + _text(topic) + struct.pack(">i", len(offsets))
    for partition, (offset, metadata) in offsets.items():
        body += struct.pack(">iq", partition, offset) + _nullable(metadata)
    _await_coordinator(bootstrap, group_id)
    deadline = time.monotonic() + _TIMEOUT_S
    at = 4 + 2 + len(topic.encode()) + 4
    while True:
        answer = _call(bootstrap, _OFFSET_COMMIT, 2, body)
        told = [struct.unpack_from(">ih", answer, at + 6 * one) for one in range(len(offsets))]
        failed = [(partition, code) for partition, code in told if code != _NONE]
        if not failed:
            return
        partition, code = failed[0]
        # The coordinator is known before it has loaded its part of the topic.
        if code not in _NO_COORDINATOR_YET or time.monotonic() > deadline:
            raise WireError(f"committing {topic}[{partition}] for {group_id}", code)
        time.sleep(0.1)


def stored_offset(
    bootstrap: str, group_id: str, topic: str, partition: int
) -> tuple[int, bytes | None]:
    """Returns what a group has committed, offset and metadata, as the broker has it."""
    body = _text(group_id) + struct.pack(">i", 1) + _text(topic) + struct.pack(">ii", 1, partition)
    answer = _call(bootstrap, _OFFSET_FETCH, 1, body)
    at = 4 + 2 + len(topic.encode()) + 4
    _, offset, size = struct.unpack_from(">iqh", answer, at)
    at += struct.calcsize(">iqh")
    metadata = None if size < 0 else answer[at : at + size]
    [code] = struct.unpack_from(">h", answer, len(answer) - 2)
    if code != _NONE:
        raise WireError(f"reading the offset of {topic}[{partition}] of {group_id}", code)
    return offset, metadata


def delete_offset(bootstrap: str, group_id: str, topic: str, partition: int) -> None:
    """Removes one committed offset of a group, as its expiry does."""
    body = _text(group_id) + struct.pack(">i", 1) + _text(topic) + struct.pack(">ii", 1, partition)
    answer = _call(bootstrap, _OFFSET_DELETE, 0, body)
    [whole] = struct.unpack_from(">h", answer)
    [single] = struct.unpack_from(">h", answer, len(answer) - 2)
    if whole or single:
        raise WireError(
            f"deleting the offset of {topic}[{partition}] of {group_id}", whole or single
        )


def join_as(bootstrap: str, group_id: str, kind: str, topic: str) -> None:
    """Makes a group of another kind, with one member that is never heard of again: streams, share, or any other program's.

    The latter is a classic group with this name as its protocol type.
    """
    _await_coordinator(bootstrap, group_id)
    if kind == "share":
        body = _compact(group_id) + _compact(str(uuid.uuid4())) + struct.pack(">i", 0)
        body += _NULL + _compact_list([_compact(topic)]) + _NO_TAGS
        answer = _call(bootstrap, _SHARE_HEARTBEAT, 1, body, flexible=True)
        at = 1 + 4  # Tags of the header, throttle time.
    elif kind == "streams":
        subtopology = _compact("0") + _compact_list([_compact(topic)])
        subtopology += _compact_list([]) * 5 + _NO_TAGS
        body = _compact(group_id) + _compact(str(uuid.uuid4())) + struct.pack(">ii", 0, 0)
        body += _NULL * 2 + struct.pack(">i", 300_000)
        body += struct.pack(">bi", 1, 0) + _compact_list([subtopology]) + _NO_TAGS
        body += _compact_list([]) * 3 + _compact("process-1") + struct.pack(">b", -1)
        body += _compact_list([]) + _NULL * 2 + b"\0" + _NO_TAGS
        answer = _call(bootstrap, _STREAMS_HEARTBEAT, 0, body, flexible=True)
        at = 1 + 4
    else:
        body = _text(group_id) + struct.pack(">i", 30_000) + _text("") + _text(kind)
        body += struct.pack(">i", 1) + _text("default") + struct.pack(">i", 0)
        answer, at = _call(bootstrap, _JOIN_GROUP, 0, body), 0
    [code] = struct.unpack_from(">h", answer, at)
    if code != _NONE:
        raise WireError(f"joining {group_id} as {kind}", code)


def leave_group(bootstrap: str, group_id: str, member_id: str) -> None:
    """Removes a member from a group, as the end of its session does."""
    answer = _call(bootstrap, _LEAVE_GROUP, 0, _text(group_id) + _text(member_id))
    [code] = struct.unpack_from(">h", answer)
    if code not in (_NONE, _UNKNOWN_MEMBER):
        raise WireError(f"removing {member_id} from {group_id}", code)


def _await_coordinator(bootstrap: str, group_id: str) -> None:
    """A broker that has just made its offsets topic has no coordinator at first."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        answer = _call(bootstrap, _FIND_COORDINATOR, 0, _text(group_id))
        [code] = struct.unpack_from(">h", answer)
        if code == _NONE:
            return
        if code not in _NO_COORDINATOR_YET or time.monotonic() > deadline:
            raise WireError(f"finding the coordinator of {group_id}", code)
        time.sleep(0.1)


def _call(bootstrap: str, api: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    host, _, port = bootstrap.rpartition(":")
    head = struct.pack(">hhi", api, version, 1) + _text("wire") + (_NO_TAGS if flexible else b"")
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as broker:
        broker.sendall(struct.pack(">i", len(head + body)) + head + body)
        with broker.makefile("rb") as answers:
            [size] = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    return answer[4:]


def _record_batch(
    times_ms: Sequence[int], keys: Sequence[bytes | None], header: bytes | None
) -> bytes:
    base_ms = times_ms[0]
    headers = _varint(0) if header is None else _varint(1) + _sized(header) + _sized(b"x")
    records = b""
    for number, (time_ms, key) in enumerate(zip(times_ms, keys, strict=True)):
        record = b"\0" + _varint(time_ms - base_ms) + _varint(number)
        record += _sized(key) + _sized(b"x") + headers
        records += _varint(len(record)) + record
    count = len(times_ms)
    checked = struct.pack(
        ">hiqqqhii", 0, count - 1, base_ms, max(times_ms), -1, -1, -1, count
    )  # No producer id.
    checked += records
    tail = struct.pack(">ibI", -1, 2, _crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(tail)) + tail


def _compact(value: str) -> bytes:
    """Text in flexible versions; short ones only."""
    return bytes([len(value.encode()) + 1]) + value.encode()


def _compact_list(items: Sequence[bytes]) -> bytes:
    return bytes([len(items) + 1]) + b"".join(items)


def _text(value: str) -> bytes:
    return _nullable(value.encode())


def _nullable(value: bytes | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value


def _sized(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Zigzag, then seven bits a byte."""
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in itertools.repeat(None, 8):
            byte = (byte >> 1) ^ 0x82F63B78 if byte & 1 else byte >> 1
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()
