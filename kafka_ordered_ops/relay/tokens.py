"""Tokens of leases: signed, with everything a server needs, so that any server can process them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final, NamedTuple

from kafka_ordered_ops.core.errors import LeaseError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition

#: Offset ranges in one lease, which keeps a token below 4 KB.
RANGES_MAX: Final = 256
#: Longer texts are not tokens.
TOKEN_CHARACTERS_MAX: Final = 8_192

LEASE_ID_BYTES: Final = 16
SECRET_BYTES: Final = 32
#: Version of the token's body.
_VERSION: Final = 1
_SIGNATURE_BYTES: Final = 32
_VARINT_BYTES_MAX: Final = 10


class Lease(NamedTuple):
    """Records of one partition that a client holds until a time."""

    tp: TopicPartition
    #: In Kafka's text form: the offsets are meaningless in a recreated topic.
    topic_id: str
    group: str
    #: Random hexadecimal digits.
    lease_id: str
    offsets: OffsetSet
    #: When the lease ends, unless it was extended.
    until_ms: int


class TokenSigner:
    """Create and parse tokens with the relay's secret."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = hmac.new(secret, digestmod=hashlib.sha256)

    def token_of(self, lease: Lease) -> str:
        """Return the token of a lease."""
        body = bytearray([_VERSION])
        body += bytes.fromhex(lease.lease_id)
        for text in (lease.tp.topic, lease.topic_id, lease.group):
            encoded = text.encode()
            _put(body, len(encoded))
            body += encoded
        _put(body, lease.tp.partition)
        _put(body, lease.until_ms)
        edges = lease.offsets.edges
        _put(body, len(edges))
        before = 0
        for edge in edges:
            _put(body, edge - before)
            before = edge
        return base64.urlsafe_b64encode(self._signature(bytes(body)) + body).decode().rstrip("=")

    def lease_of(self, token: str) -> Lease:
        """Return the lease of a token; raise `LeaseError` unless a server of this relay made it."""
        if len(token) > TOKEN_CHARACTERS_MAX or not token.isascii():
            raise _invalid(token)
        try:
            data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid(token) from None
        signature, body = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
        if not body or not hmac.compare_digest(signature, self._signature(body)):
            raise _invalid(token)
        if body[0] != _VERSION:
            raise LeaseError(
                f"this lease has version {body[0]}; this server reads version {_VERSION}: a newer server of this relay made "
                "it. Upgrade this server, or read again"
            )
        return _parsed(body)

    def _signature(self, body: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(body)
        return keyed.digest()


def _parsed(body: bytes) -> Lease:
    """Return the lease of a body whose signature was checked."""
    at = 1 + LEASE_ID_BYTES
    lease_id = body[1:at].hex()
    texts = []
    for _ in range(3):
        length, at = _take(body, at)
        texts.append(body[at : at + length].decode())
        at += length
    partition, at = _take(body, at)
    until_ms, at = _take(body, at)
    count, at = _take(body, at)
    edges, edge = [], 0
    for _ in range(count):
        step, at = _take(body, at)
        edge += step
        edges.append(edge)
    topic, topic_id, group = texts
    return Lease(
        TopicPartition(topic, partition),
        topic_id,
        group,
        lease_id,
        OffsetSet.from_edges(edges),
        until_ms,
    )


def _put(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _take(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for byte in data[at : at + _VARINT_BYTES_MAX]:
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    return min(number, INT64_MAX), at


def _invalid(token: str) -> LeaseError:
    return LeaseError(
        f"no server of this relay made this lease ({len(token)} characters). Pass the lease of a read unchanged"
    )
