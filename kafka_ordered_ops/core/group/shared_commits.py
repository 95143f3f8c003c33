"""Commits of a group that shares its progress with Parallel Consumer: the base, and the done offsets beyond it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset, TopicFacts
from kafka_ordered_ops.core.errors import OffsetMapTooLargeError
from kafka_ordered_ops.core.group.group_state import GroupState, PartitionState
from kafka_ordered_ops.core.offset_map.packing import METADATA_BYTES_MAX
from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.types import TopicPartition

#: Partitions named in one error.
_NAMED_MAX = 8


def shared_commit(tp: TopicPartition, partition: PartitionState) -> CommittedOffset:
    """Return the commit of a partition in Parallel Consumer's format; base and map are of one state.

    Raises `OffsetMapTooLargeError` with the partition.
    """
    try:
        metadata = encode_parallel_consumer_map(partition.base, partition.beyond)
    except OffsetMapTooLargeError as error:
        raise OffsetMapTooLargeError(f"{tp}: {error.message}", **error.facts) from error
    return CommittedOffset(partition.base, metadata)


def shared_commits(
    state: GroupState, present: Mapping[str, TopicFacts]
) -> dict[TopicPartition, CommittedOffset]:
    """Return the commits of all partitions in Parallel Consumer's format, but for topics that are gone or recreated.

    Raises:
        OffsetMapTooLargeError: maps exceed the metadata of a commit; the message names partitions and sizes.
    """
    there = {
        name
        for name, topic in state.topics.items()
        if name in present and present[name].topic_id == topic.topic_id
    }
    return check_maps_fit(
        state.group_id, ((tp, partition) for tp, partition in state if tp.topic in there)
    )


def check_maps_fit(
    group_id: str, partitions: Iterable[tuple[TopicPartition, PartitionState]]
) -> dict[TopicPartition, CommittedOffset]:
    """Return the commits of some partitions; raise the error of `shared_commits`."""
    commits: dict[TopicPartition, CommittedOffset] = {}
    too_large: dict[TopicPartition, OffsetMapTooLargeError] = {}
    for tp, partition in partitions:
        try:
            commits[tp] = shared_commit(tp, partition)
        except OffsetMapTooLargeError as error:
            too_large[tp] = error
    if too_large:
        raise _too_large(group_id, too_large)
    return commits


def _too_large(
    group_id: str, errors: Mapping[TopicPartition, OffsetMapTooLargeError]
) -> OffsetMapTooLargeError:
    largest = max(errors.values(), key=lambda error: error.size)
    named = ", ".join(f"{tp} ({error.size:,})" for tp, error in sorted(errors.items())[:_NAMED_MAX])
    more = f" and {len(errors) - _NAMED_MAX} more" if len(errors) > _NAMED_MAX else ""
    return OffsetMapTooLargeError(
        f"group {group_id}: what is done beyond the committed offsets of {len(errors)} partitions does not fit the "
        f"{METADATA_BYTES_MAX:,} bytes of a commit's metadata in Parallel Consumer's format: {named}{more}. Nothing was "
        "changed. Commit windows that hold the records in between, then repeat it; or keep the progress in the ledger "
        "(`offsets migrate --to ledger`)",
        size=largest.size,
        limit=METADATA_BYTES_MAX,
    )
