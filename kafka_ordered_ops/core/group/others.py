"""Committed offsets that other programs wrote for a group, and the progress in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import OffsetMapDecodeError
from kafka_ordered_ops.core.offset_map.ours import decode_offset_map
from kafka_ordered_ops.core.offset_map.reading import (
    DecodePolicy,
    MetadataKind,
    metadata_kind,
    read_committed_progress,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import TopicPartition


@dataclass(frozen=True, slots=True)
class OthersCommit:
    """A committed offset of another program."""

    offset: int
    #: Done offsets above it, by the offset map of Parallel Consumer. Text of other programs names none.
    done: OffsetSet = EMPTY_SET
    #: Whether Parallel Consumer may have written it. It commits without metadata if nothing above the offset is done.
    by_parallel_consumer: bool = False
    #: Why the map cannot be used: Parallel Consumer's, or a damaged one of this package. None: it can, or there is none.
    problem: OffsetMapDecodeError | None = None
    #: Whether it is in this package's format, about a state that the ledger does not have.
    is_of_unknown_state: bool = False

    @property
    def end(self) -> int:
        """The offset after the last one that is done."""
        return self.done.end if self.done else self.offset


#: By partition.
OthersCommits = Mapping[TopicPartition, OthersCommit]


def others_commit(commit: CommittedOffset, *, where: str, end: int | None = None) -> OthersCommit:
    """Return the progress in a commit of another program.

    Args:
        commit: the commit, as the broker has it.
        where: group and partition, for messages.
        end: the end of the log: a map that reaches past it is about another log. None: unknown, and not checked.
    """
    kind = metadata_kind(commit.metadata)
    if kind is MetadataKind.OURS:
        # About another offset, it says nothing: another program has moved the offset and kept the text.
        return OthersCommit(commit.offset, problem=_damage(commit.metadata, where))
    if kind is not MetadataKind.PARALLEL_CONSUMER:
        return OthersCommit(commit.offset, by_parallel_consumer=kind is MetadataKind.NONE)
    try:
        read = read_committed_progress(
            commit.offset, commit.metadata, end=end, policy=DecodePolicy.FAIL, where=where
        )
    except OffsetMapDecodeError as error:
        return OthersCommit(commit.offset, by_parallel_consumer=True, problem=error)
    return OthersCommit(commit.offset, read.done or EMPTY_SET, by_parallel_consumer=True)


def _damage(metadata: bytes, where: str) -> OffsetMapDecodeError | None:
    """Return why a map in this package's format cannot be read; None: it can."""
    try:
        decode_offset_map(metadata)
    except OffsetMapDecodeError as error:
        return OffsetMapDecodeError(f"{where}: {error.message}", reason=error.reason)
    return None


def is_readable(commit: CommittedOffset) -> bool:
    """Return whether a commit has no damaged map of this package."""
    return metadata_kind(commit.metadata) is not MetadataKind.OURS or not _damage(
        commit.metadata, ""
    )


def unknown_commit(commit: CommittedOffset, *, end: int | None = None) -> OthersCommit:
    """Return the progress in a commit in this package's format, about a state that the ledger does not have.

    The ledger has lost that state, or another program wrote the commit: a map that cannot be used says nothing.
    """
    read = read_committed_progress(
        commit.offset, commit.metadata, end=end, policy=DecodePolicy.IGNORE, where=""
    )
    return OthersCommit(commit.offset, read.done or EMPTY_SET, is_of_unknown_state=True)


def check_usable(group_id: str, others: OthersCommits) -> None:
    """Raise `OffsetMapDecodeError` if a map cannot be used: the records that it has as done would be read twice."""
    wrong = sorted(
        (tp, commit.problem) for tp, commit in others.items() if commit.problem is not None
    )
    for _, problem in wrong:
        raise OffsetMapDecodeError(
            f"{problem.message}: `offsets reset --to committed` keeps the committed offsets of group {group_id} and drops "
            f"the maps ({len(wrong)} partitions have such a map)",
            reason=problem.reason,
        ) from problem
