"""Offset maps and the real Parallel Consumer: what it writes is read, and it reads what is written for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random

import numpy as np
import pytest

from kafka_ordered_ops.core.offset_map.ours import OffsetMap, encode_offset_map
from kafka_ordered_ops.core.offset_map.parallel_consumer import (
    Encoding,
    decode_parallel_consumer_map,
    encode_parallel_consumer_map,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.kafka.offsets.committed_offsets import METADATA_BYTES_MAX, CommittedOffset
from tests.conftest import MakeTopic, Produce
from tests.interop.conftest import Consume
from tests.support.parallel_consumer import (
    CommitMode,
    Ordering,
    Processed,
    commit_exactly,
    offsets_done,
)
from tests.support.wire import stored_offset

pytestmark = pytest.mark.long

_KEYS = 7
#: A bit set of so many offsets takes exactly the 4,096 characters that a broker stores.
_LARGEST = 24_544


def _write(produce: Produce, topic: str, counts: Sequence[int]) -> None:
    """Writes so many records to each partition, with some keys in turn."""
    produce(
        (topic, partition, b"%d" % (offset % _KEYS), b"x", None, ())
        for partition, count in enumerate(counts)
        for offset in range(count)
    )


def _stopped_by(held: Collection[int], ordering: Ordering) -> Callable[[int], bool]:
    """Returns whether an offset is held, or waits for one that is."""
    match ordering:
        case Ordering.UNORDERED:
            return lambda offset: offset in held
        case Ordering.PARTITION:
            return lambda offset: offset >= min(held)
        case Ordering.KEY:
            return lambda offset: any(
                one <= offset and one % _KEYS == offset % _KEYS for one in held
            )


def _sets(processed: Processed) -> dict[int, OffsetSet]:
    return {
        partition: OffsetSet.from_offsets(np.array(sorted(offsets)))
        for partition, offsets in processed.items()
    }


@pytest.mark.parametrize(
    ("ordering", "commit_mode"),
    [
        (Ordering.UNORDERED, CommitMode.SYNC),
        (Ordering.KEY, CommitMode.ASYNC),
        (Ordering.UNORDERED, CommitMode.TRANSACTIONAL),
        (Ordering.PARTITION, CommitMode.SYNC),
    ],
)
def test_a_killed_library_has_committed_what_it_processed(
    bootstrap: str,
    group_id: str,
    consume: Consume,
    topic: MakeTopic,
    produce: Produce,
    ordering: Ordering,
    commit_mode: CommitMode,
) -> None:
    """Its maps name exactly the processed offsets, and the next process takes exactly the rest."""
    name, counts, rng = topic(partitions=3), (400, 250, 90), Random(18)
    _write(produce, name, counts)
    held = {number: rng.sample(range(3, count), 6) for number, count in enumerate(counts)}
    rest = {
        number: [one for one in range(count) if _stopped_by(held[number], ordering)(one)]
        for number, count in enumerate(counts)
    }
    consumer = consume(
        name,
        held=[(number, offset) for number, offsets in held.items() for offset in offsets],
        ordering=ordering,
        commit_mode=commit_mode,
    )
    processed = _sets(
        consumer.wait_processed(
            lambda found: (
                sum(map(len, found.values())) == sum(counts) - sum(map(len, rest.values()))
            )
        )
    )
    committed = consumer.wait_committed(lambda found: offsets_done(found) == processed)
    consumer.kill()
    for number, one in committed.items():
        stored = stored_offset(bootstrap, group_id, name, number)
        assert stored == (one.offset, one.metadata)

    following = consume(name, ordering=ordering, commit_mode=commit_mode)
    taken = following.wait_processed(
        lambda found: sum(map(len, found.values())) >= sum(map(len, rest.values()))
    )
    following.close()
    assert {number: sorted(offsets) for number, offsets in taken.items()} == rest


def test_the_library_takes_the_rest_of_every_encoding(
    bootstrap: str, group_id: str, consume: Consume, topic: MakeTopic, produce: Produce
) -> None:
    """A partition for each encoding that it reads, and one for the encoding of our choice."""
    encodings = [*(one for one in Encoding if one.is_written), None]
    counts, rng = [1_000] * len(encodings), Random(8)
    name = topic(partitions=len(encodings))
    _write(produce, name, counts)
    commits, rest = dict[int, CommittedOffset](), dict[int, list[int]]()
    for number, encoding in enumerate(encodings):
        base = rng.randrange(100)
        # The base itself is not done, or another base would be committed.
        done = sorted(rng.sample(range(base + 1, 900), 500))
        metadata = encode_parallel_consumer_map(
            base, OffsetSet.from_offsets(np.array(done)), encoding=encoding
        )
        commits[number] = CommittedOffset(base, metadata)
        rest[number] = sorted(set(range(base, 1_000)) - set(done))
    commit_exactly(bootstrap, group_id, name, commits)

    consumer = consume(name)
    processed = consumer.wait_processed(
        lambda found: sum(map(len, found.values())) >= sum(map(len, rest.values()))
    )
    consumer.close()
    assert {number: sorted(offsets) for number, offsets in processed.items()} == rest
    assert consumer.committed() == dict.fromkeys(rest, CommittedOffset(1_000, b""))


@pytest.mark.parametrize(("held", "size"), [((0,), 8), ((3, 5, 700), 20), (range(0, 992, 31), 172)])
def test_the_library_and_this_package_store_the_same_bytes(
    bootstrap: str,
    group_id: str,
    consume: Consume,
    topic: MakeTopic,
    produce: Produce,
    held: Sequence[int],
    size: int,
) -> None:
    """What it wrote is read to the byte; the same written by this package is the same in the broker, without a NUL."""
    name = topic()
    _write(produce, name, [1_000])
    consumer = consume(name, held=[(0, offset) for offset in held])
    rest = OffsetSet.from_offsets(np.array(held))
    committed = consumer.wait_committed(
        lambda found: offsets_done(found) == {0: OffsetSet.of((0, 1_000)) - rest}
    )[0]
    consumer.kill()
    assert len(committed.metadata) == size
    stored = (committed.offset, committed.metadata)
    assert stored_offset(bootstrap, group_id, name, 0) == stored

    found = decode_parallel_consumer_map(committed.metadata, committed.offset)
    written = encode_parallel_consumer_map(found.base, found.done, encoding=found.encoding)
    commit_exactly(bootstrap, group_id, name, {0: CommittedOffset(found.base, written)})
    assert stored_offset(bootstrap, group_id, name, 0) == stored


def test_a_map_of_nothing_is_read_and_never_written(
    bootstrap: str, group_id: str, consume: Consume, topic: MakeTopic, produce: Produce
) -> None:
    """With nothing done beyond the base the library writes four characters; this package writes none."""
    name = topic()
    _write(produce, name, [10])
    consumer = consume(name, held=[(0, 5)], ordering=Ordering.PARTITION)
    committed = consumer.wait_committed(
        lambda found: offsets_done(found) == {0: OffsetSet.of((0, 5))}
    )
    consumer.kill()
    assert committed == {0: CommittedOffset(5, b"bgAA")}
    assert stored_offset(bootstrap, group_id, name, 0) == (5, b"bgAA")

    commit_exactly(
        bootstrap,
        group_id,
        name,
        {0: CommittedOffset(5, encode_parallel_consumer_map(5, EMPTY_SET))},
    )
    assert stored_offset(bootstrap, group_id, name, 0) == (5, b"")
    following = consume(name)
    processed = following.wait_processed(lambda found: len(found.get(0, [])) >= 5)
    following.close()
    assert sorted(processed[0]) == [5, 6, 7, 8, 9]


def test_the_library_begins_at_the_base_of_a_map_of_ours(
    bootstrap: str, group_id: str, consume: Consume, topic: MakeTopic, produce: Produce
) -> None:
    """In a group that nobody has handed over it processes again what is done beyond the base, and goes on."""
    name = topic()
    _write(produce, name, [100])
    ours = OffsetMap(b"t" * 16, b"l" * 16, 7, 40, OffsetSet.of((50, 90)))
    commit_exactly(bootstrap, group_id, name, {0: CommittedOffset(40, encode_offset_map(ours))})
    consumer = consume(name)
    processed = consumer.wait_processed(lambda found: len(found.get(0, [])) >= 60)
    consumer.close()
    assert sorted(processed[0]) == [*range(40, 100)]


@pytest.mark.long
def test_the_largest_map_is_read_and_written_by_both(
    bootstrap: str, group_id: str, consume: Consume, topic: MakeTopic, produce: Produce
) -> None:
    """With 4,096 characters the library begins with the rest, writes as many, and takes all of the rest."""
    name, rng = topic(), Random(4_096)
    _write(produce, name, [_LARGEST])
    done = {*rng.sample(range(1, _LARGEST - 1), _LARGEST // 2), _LARGEST - 1}
    rest = sorted(set(range(_LARGEST)) - done)
    metadata = encode_parallel_consumer_map(0, OffsetSet.from_offsets(np.array(sorted(done))))
    assert len(metadata) == METADATA_BYTES_MAX
    commit_exactly(bootstrap, group_id, name, {0: CommittedOffset(0, metadata)})
    assert stored_offset(bootstrap, group_id, name, 0) == (0, metadata)

    # One thread for the base, one for the next record and then the one after it.
    consumer = consume(name, held=[(0, rest[0]), (0, rest[2])], spare_threads=0)
    consumer.wait_processed(lambda found: found == {0: [rest[1]]})
    expected = OffsetSet.from_offsets(np.array(sorted({*done, rest[1]})))
    committed = consumer.wait_committed(lambda found: offsets_done(found) == {0: expected})[0]
    assert len(committed.metadata) == METADATA_BYTES_MAX
    assert stored_offset(bootstrap, group_id, name, 0) == (0, committed.metadata)
    consumer.release()
    processed = consumer.wait_processed(lambda found: len(found[0]) >= len(rest))
    consumer.close()
    assert sorted(processed[0]) == rest
    assert consumer.committed() == {0: CommittedOffset(_LARGEST)}
