"""Read the progress in a committed offset, whichever program wrote the metadata.

A map is a claim about one offset of one topic. It is accepted only if it is complete, about this offset, and within the
log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kafka_ordered_ops.core.errors import OffsetMapDecodeError, OffsetMapFault
from kafka_ordered_ops.core.offset_map.ours import OffsetMap, decode_offset_map, is_offset_map
from kafka_ordered_ops.core.offset_map.packing import unbase64, unreadable
from kafka_ordered_ops.core.offset_map.parallel_consumer import (
    decode_parallel_consumer_map,
    encoding_of,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet

#: The first byte of the metadata of Kafka Streams, in base64: the version of its format.
_STREAMS_VERSIONS = (1, 2)


class MetadataKind(StrEnum):
    """The program that wrote commit metadata."""

    NONE = "none"
    OURS = "ours"
    PARALLEL_CONSUMER = "parallel-consumer"
    KAFKA_STREAMS = "kafka-streams"
    #: Text of another program.
    OTHER = "other"


class DecodePolicy(StrEnum):
    """What to do with metadata that cannot be used: damaged, unknown, or about another log."""

    FAIL = "fail"
    #: Continue from the committed offset: done offsets above it may be processed again.
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class CommittedProgress:
    """The progress in one committed offset."""

    #: The committed offset: all offsets below it are done.
    base: int
    #: Done offsets at or above the base; None if they did not fit, and only the ledger has them.
    done: OffsetSet | None
    kind: MetadataKind
    #: The name of the map's encoding.
    encoding: str | None
    #: Why the metadata was ignored; None if it was not ignored.
    problem: str | None


def metadata_kind(metadata: bytes) -> MetadataKind:
    """Return which program wrote the metadata, damaged or not."""
    if not metadata:
        return MetadataKind.NONE
    if is_offset_map(metadata):
        return MetadataKind.OURS
    try:
        # Some clients append a NUL, which makes the map unreadable for its own program.
        body = unbase64(metadata.rstrip(b"\0"))
    except OffsetMapDecodeError:
        return MetadataKind.OTHER
    if not body:
        return MetadataKind.OTHER
    if body[0] in _STREAMS_VERSIONS:
        return MetadataKind.KAFKA_STREAMS
    return MetadataKind.OTHER if encoding_of(body) is None else MetadataKind.PARALLEL_CONSUMER


def read_committed_progress(
    offset: int,
    metadata: bytes,
    *,
    end: int | None,
    policy: DecodePolicy,
    where: str,
    topic_id: bytes | None = None,
) -> CommittedProgress:
    """Return the progress in a committed offset.

    Args:
        offset: the committed offset.
        metadata: the exact bytes that the broker returns.
        end: the partition's end offset; None if unknown, and not checked.
        policy: what to do with metadata that cannot be used.
        where: group and partition, for messages.
        topic_id: the 16 bytes of the topic's id; None if unknown, and not checked.

    Raises:
        OffsetMapDecodeError: policy `FAIL`, and the metadata is not a usable map.
    """
    kind = metadata_kind(metadata)
    try:
        encoding, done = _read(kind, offset, metadata, topic_id)
        if end is not None and done and done.end > end:
            raise unreadable(
                OffsetMapFault.PAST_END,
                f"commit metadata of offset {offset} has done offsets up to {done.end - 1}, and the log ends at {end}: "
                "the topic was recreated or cut, or the commit copied from another group",
            )
    except OffsetMapDecodeError as error:
        if policy is DecodePolicy.FAIL:
            raise OffsetMapDecodeError(
                f"{where}: {error.message}. To continue from offset {offset} alone, and process again what was done "
                "above it, ignore the metadata",
                reason=error.reason,
            ) from error
        return CommittedProgress(offset, EMPTY_SET, kind, None, error.message)
    return CommittedProgress(offset, done, kind, encoding, None)


def _read(
    kind: MetadataKind, offset: int, metadata: bytes, topic_id: bytes | None
) -> tuple[str | None, OffsetSet | None]:
    """Return the name of the encoding, and the done offsets."""
    if kind is MetadataKind.NONE:
        return None, EMPTY_SET
    if (ours := decode_offset_map(metadata)) is not None:
        _check_about(ours, offset, topic_id)
        return ours.encoding, ours.beyond
    if kind is MetadataKind.PARALLEL_CONSUMER:
        parsed = decode_parallel_consumer_map(metadata, offset)
        return parsed.encoding and parsed.encoding.label, parsed.done
    streams = kind is MetadataKind.KAFKA_STREAMS
    raise unreadable(
        OffsetMapFault.UNKNOWN_FORMAT,
        f"commit metadata {metadata[:24]!r} ({len(metadata)} bytes) of offset {offset} "
        f"{'belongs to Kafka Streams' if streams else 'is text of another program'}",
    )


def _check_about(ours: OffsetMap, offset: int, topic_id: bytes | None) -> None:
    if ours.base != offset:
        raise unreadable(
            OffsetMapFault.OTHER_BASE,
            f"commit metadata of offset {offset} is an offset map about offset {ours.base}: another program moved the "
            "offset and kept the metadata",
        )
    if topic_id is not None and ours.topic_id != topic_id:
        raise unreadable(
            OffsetMapFault.OTHER_TOPIC,
            f"commit metadata of offset {offset} is an offset map about a topic with another id: the topic was "
            "recreated",
        )
