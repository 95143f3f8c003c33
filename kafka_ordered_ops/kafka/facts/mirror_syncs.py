"""Read the pairs of offsets that MirrorMaker 2 notes for the records it copies: its topic of offset syncs."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.group.decisions.failing_over import OffsetSync
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.facts.log_spans import log_spans
from kafka_ordered_ops.kafka.ports import LookupDoor, open_reader
from kafka_ordered_ops.kafka.settings import ClientSettings

#: MirrorMaker 2 writes one partition, and compacts it.
_PARTITION: Final = 0
#: Enough for 100,000 partitions with the 50 newest pairs of each; 40 bytes each.
_SYNCS_MAX: Final = 5_000_000
_LENGTH: Final = struct.Struct(">H")
_NUMBER: Final = struct.Struct(">i")
_OFFSETS: Final = struct.Struct(">qq")


def read_syncs(
    settings: ClientSettings,
    group_id: str,
    lookup: LookupDoor,
    topic: str,
    partitions: Collection[TopicPartition],
) -> dict[TopicPartition, Sequence[OffsetSync]]:
    """Return the pairs of offsets of mirrored partitions, in the order of their offsets on this cluster.

    Args:
        settings: how to reach the cluster.
        group_id: the group to read for.
        lookup: a look-up on the same cluster.
        topic: the topic of offset syncs, which MirrorMaker 2 writes on the target cluster if it is configured to.
        partitions: the mirrored partitions, by their names on this cluster.

    Raises:
        UnknownTopicError: the topic does not exist.
        ConfigError: it is not a topic of offset syncs, or is too large.
    """
    lookup.topics([topic])
    where = TopicPartition(topic, _PARTITION)
    span = log_spans(lookup, [where], Isolation.READ_COMMITTED)[where]
    if span.end - span.start > _SYNCS_MAX:
        raise ConfigError(
            f"{topic} has {span.end - span.start:,} offsets, and at most {_SYNCS_MAX:,} are read: leave it out"
        )
    found: dict[tuple[str, int], list[OffsetSync]] = defaultdict(list)
    wanted, hole, before = {where: OffsetSet.of((span.start, span.end))}, -1, span.start - 1
    #: Where the newest note of each partition is, in the topic of syncs.
    last: dict[tuple[str, int], int] = {}
    columns = ("topic", "partition", "offset", "key", "value")
    with open_reader(
        settings, group_id, Isolation.READ_COMMITTED, wanted, columns=columns
    ) as reader:
        for batch in reader.batches():
            rows = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
            for offset, key, value in zip(*rows, strict=True):
                if offset != before + 1:
                    hole = offset
                before = offset
                if (name := _partition(key)) is None or value is None or len(value) != 16:
                    raise ConfigError(
                        f"{topic} at offset {offset}: this is not an offset sync of MirrorMaker 2: name the topic "
                        "mm2-offset-syncs.ALIAS.internal"
                    )
                source, here = _OFFSETS.unpack(value)
                follows = last.get(name, -1) >= hole
                last[name] = offset
                found[name].append(OffsetSync(source, here, follows))
    # A pair "follows" if nothing was removed between it and the one before it, so that order counts.
    names = _source_names({tp.topic for tp in partitions}, {name for name, _ in found})
    return {
        tp: sorted(found[at], key=lambda sync: sync.here)
        for tp in partitions
        if (at := (names.get(tp.topic, ""), tp.partition)) in found
    }


def _partition(key: bytes | None) -> tuple[str, int] | None:
    """Return the source's partition that a key names: a text with its length, and a number."""
    if key is None or len(key) < _LENGTH.size:
        return None
    [length] = _LENGTH.unpack_from(key)
    if len(key) != _LENGTH.size + length + _NUMBER.size:
        return None
    try:
        name = key[_LENGTH.size : _LENGTH.size + length].decode()
    except UnicodeDecodeError:
        return None
    return name, _NUMBER.unpack_from(key, _LENGTH.size + length)[0]


def _source_names(topics: Collection[str], known: Collection[str]) -> Mapping[str, str]:
    """Return the name of each topic on the source: the same, or, after the source's alias and a separator, the longest."""
    names = {}
    for topic in topics:
        fitting = [name for name in known if topic == name or topic[1:].endswith(name)]
        if fitting:
            names[topic] = max(fitting, key=len)
    return names
