"""Progress in a committed offset, whoever wrote its metadata."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import OffsetMapDecodeError
from kafka_ordered_ops.core.errors import OffsetMapFault
from kafka_ordered_ops.core.offset_map.ours import OffsetMap, encode_offset_map
from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.offset_map.reading import (
    CommittedProgress,
    DecodePolicy,
    MetadataKind,
    read_committed_progress,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from tests.support.strategies import offset_sets

DONE = OffsetSet.of((12, 14), (20, 30))
TOPIC_ID = b"t" * 16


def ours(base: int, done: OffsetSet | None) -> bytes:
    """Metadata of this package."""
    return encode_offset_map(OffsetMap(TOPIC_ID, b"l" * 16, 7, base, done))


def read(
    metadata: bytes,
    *,
    end: int | None = None,
    policy: DecodePolicy = DecodePolicy.IGNORE,
    topic_id: bytes | None = None,
) -> CommittedProgress:
    """The progress in a commit of offset 10."""
    return read_committed_progress(
        10, metadata, end=end, policy=policy, where="group g, orders[3]", topic_id=topic_id
    )


@pytest.mark.parametrize(
    ("metadata", "done", "kind", "encoding"),
    [
        (b"", EMPTY_SET, MetadataKind.NONE, None),
        (ours(10, DONE), DONE, MetadataKind.OURS, "bits"),
        (ours(10, EMPTY_SET), EMPTY_SET, MetadataKind.OURS, "nothing"),
        (ours(10, None), None, MetadataKind.OURS, "in ledger"),
        (
            encode_parallel_consumer_map(10, DONE),
            DONE,
            MetadataKind.PARALLEL_CONSUMER,
            "BitSet",
        ),
        (b"bgAA", EMPTY_SET, MetadataKind.PARALLEL_CONSUMER, "RunLength"),
    ],
)
@pytest.mark.parametrize("policy", DecodePolicy)
def test_a_whole_map_is_used(
    metadata: bytes,
    done: OffsetSet | None,
    kind: MetadataKind,
    encoding: str | None,
    policy: DecodePolicy,
) -> None:
    """By either policy."""
    found = read(metadata, end=30, policy=policy, topic_id=TOPIC_ID)
    assert found == CommittedProgress(10, done, kind, encoding, None)


@pytest.mark.parametrize(
    ("metadata", "kind", "fault", "found"),
    [
        (b"host-1:pid", MetadataKind.OTHER, OffsetMapFault.UNKNOWN_FORMAT, "host-1:pid"),
        (b"meta", MetadataKind.OTHER, OffsetMapFault.UNKNOWN_FORMAT, "another program"),
        (b"AQAAAAAAAAAJ", MetadataKind.KAFKA_STREAMS, OffsetMapFault.UNKNOWN_FORMAT, "Streams"),
        (b"bgAC\0", MetadataKind.PARALLEL_CONSUMER, OffsetMapFault.NOT_BASE64, r"bgAC\\x00"),
        (b"bP//AA==", MetadataKind.PARALLEL_CONSUMER, OffsetMapFault.NEGATIVE, "-1 offsets"),
        (b"YQECAwQ=", MetadataKind.PARALLEL_CONSUMER, OffsetMapFault.NOT_ZSTD, "zstd"),
        (ours(10, DONE)[:-4], MetadataKind.OURS, OffsetMapFault.CUT_SHORT, "cut short"),
        (ours(9, DONE), MetadataKind.OURS, OffsetMapFault.OTHER_BASE, "about offset 9"),
        (ours(10, OffsetSet.of((12, 31))), MetadataKind.OURS, OffsetMapFault.PAST_END, "up to 30"),
        (
            encode_parallel_consumer_map(10, OffsetSet.of((12, 31))),
            MetadataKind.PARALLEL_CONSUMER,
            OffsetMapFault.PAST_END,
            "the log ends at 30",
        ),
    ],
)
def test_other_metadata_is_refused_or_ignored_with_what_was_found(
    metadata: bytes, kind: MetadataKind, fault: OffsetMapFault, found: str
) -> None:
    """Ignored: nothing above the committed offset is done."""
    ignored = read(metadata, end=30)
    assert (ignored.base, ignored.done, ignored.kind) == (10, EMPTY_SET, kind)
    with pytest.raises(OffsetMapDecodeError, match=rf"^group g, orders\[3\]: .*{found}") as refused:
        read(metadata, end=30, policy=DecodePolicy.FAIL)
    assert refused.value.reason is fault
    assert ignored.problem is not None
    assert ignored.problem in str(refused.value)


def test_a_map_about_another_topic_is_not_used() -> None:
    """A topic of the same name was recreated: its offsets are other records."""
    found = read(ours(10, DONE), topic_id=b"o" * 16)
    assert (found.done, found.kind) == (EMPTY_SET, MetadataKind.OURS)
    assert "recreated" in str(found.problem)


@given(offset_sets, st.booleans(), st.integers(0, 100))
def test_a_map_is_used_exactly_when_the_log_reaches_as_far(
    shape: OffsetSet, is_ours: bool, end: int
) -> None:
    """Whoever wrote it."""
    done = OffsetSet.of(*((11 + start, 11 + stop) for start, stop in shape))
    found = read(ours(10, done) if is_ours else encode_parallel_consumer_map(10, done), end=end)
    fits = not done or done.end <= end
    assert found.done == (done if fits else EMPTY_SET)
    assert (found.problem is None) == fits


@given(st.binary(max_size=60), st.integers(0, 40))
def test_any_metadata_has_progress(metadata: bytes, end: int) -> None:
    """Fuzz: ignoring raises nothing, and never goes past the end of the log."""
    for one in (metadata, b"~koo1:" + metadata):
        found = read(one, end=end)
        assert found.done is not None
        assert not found.done or found.done.end <= end
