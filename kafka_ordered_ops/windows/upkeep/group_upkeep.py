"""Change a group's progress other than by windows: accept others' commits, hand it over, reset, prune or repair it."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from datetime import timedelta

from kafka_ordered_ops.core.arguments import check_choice, check_count, check_flag
from kafka_ordered_ops.core.errors import ConfigError, ForeignCommitError
from kafka_ordered_ops.core.group.decisions.adoption import Adoption
from kafka_ordered_ops.core.group.decisions.failing_over import FailOver
from kafka_ordered_ops.core.group.decisions.migrating import Migration
from kafka_ordered_ops.core.group.decisions.resetting import OffsetReset
from kafka_ordered_ops.core.group.ledger.repair import RestoredRecord
from kafka_ordered_ops.core.types import INT64_MAX, ProgressFormat
from kafka_ordered_ops.windows.gate import Gated
from kafka_ordered_ops.windows.upkeep.fail_over import FailOvers
from kafka_ordered_ops.windows.upkeep.maintenance import Maintenance
from kafka_ordered_ops.windows.upkeep.offset_resets import NewOffsets, OffsetResets


class GroupUpkeep(Gated):
    """The calls of `OrderedWindows` that change a group's progress."""

    _keeper: Maintenance
    _resets: OffsetResets
    _fail_overs: FailOvers

    def adopt(self, *, dry_run: bool = False) -> Adoption:
        """Accept changes by other programs as the group's progress.

        If another program moved an offset forward, offsets below it count as done. If it moved an offset back, later
        offsets are open again, and committed windows with records there are *rewound*. A recreated topic starts at its
        beginning, and open windows of the old topic are abandoned. If a log was truncated, progress ends where the log
        ends. Commits about a state that the ledger does not have (`LedgerLostError`) count as commits of other programs.
        With `dry_run`, the call only reports the changes.

        Raises:
            UnknownWindowError: the group has no state.
        """
        return self._keeper.adopt(dry_run=dry_run)

    def migrate(
        self,
        to: ProgressFormat | str,
        *,
        dual: bool = False,
        adopt: bool = False,
        dry_run: bool = False,
    ) -> Migration:
        """Hand the group over to Confluent's Parallel Consumer, share it, or take it back.

        To ``parallel-consumer``: the commits include the exact done offsets beyond the committed offsets, in Parallel
        Consumer's format, and no window is planned any more. To ``ledger``: the progress that Parallel Consumer has made
        becomes the group's progress, and windows continue with the rest. With `dual`, windows continue, and their commits
        include Parallel Consumer's maps: both may run in turn, never at the same time. Each plan and commit then first
        takes over the progress of Parallel Consumer.

        The change is one transaction, and the commits are read back and compared byte for byte. After an error, run it
        again: repeating a finished migration changes nothing. With `dry_run`, the call only reports the change.

        Args:
            to: ``parallel-consumer`` or ``ledger``.
            dual: write both formats from now on.
            adopt: accept changes by other programs, as `adopt` does.
            dry_run: change nothing; the group may have live members.

        Raises:
            UnknownWindowError: the group has no progress in the ledger.
            GroupInUseError, OpenClaimError: the group has live members or open windows.
            OffsetMapTooLargeError: done offsets do not fit into the maps; the message names partitions and sizes.
            RecordsLostError: retention removed offsets that no window has delivered.
            ForeignCommitError, TopicRecreatedError, LogTruncatedError: the group or a log was changed in another way, and
                `adopt` is False.
            OffsetMapDecodeError: a map of Parallel Consumer is damaged, or reaches past the end of the log.
        """
        target = check_choice(to, ProgressFormat, what="to")
        if target is ProgressFormat.DUAL:
            raise ConfigError("to is 'dual': give 'parallel-consumer' or 'ledger', and dual=True")
        if check_flag(dual, what="dual"):
            target = ProgressFormat.DUAL
        adopts = check_flag(adopt, what="adopt")
        return self._keeper.migrate(
            target, adopts=adopts, dry_run=check_flag(dry_run, what="dry_run")
        )

    def reset_offsets(
        self,
        starting_offsets: NewOffsets,
        *,
        topics: str | Sequence[str] | None = None,
        dry_run: bool = False,
    ) -> OffsetReset:
        """Set the group's progress: everything below an offset counts as done, and nothing at or above it.

        Records in between are skipped or delivered again; the result counts their offsets. Committed windows with offsets
        that are open again are *rewound*. It works for any consumer group: if the ledger has no progress of the group,
        only its committed offsets are set, without metadata. If the group's state in the ledger cannot be read, all of its
        records are removed as well.

        Args:
            starting_offsets: for all partitions, as for a `Window`: ``earliest``, ``latest``, ``committed`` (keeps the
                committed offset, and nothing beyond it), a time, ``-PT1H`` (before now) or ``offset:N``; or a mapping from
                partitions to offsets within their logs.
            topics: names or patterns; None means all topics of the group's progress. Required if the ledger has none.
            dry_run: change nothing; the group may have live members.

        Raises:
            ConfigError: an invalid argument, or an offset outside the log.
            GroupInUseError, OpenClaimError: the group has live members or open windows.
            CommittedOffsetMissingError: a partition has no committed offset to keep.
            ForeignCommitError: another program moved offsets of partitions that are not reset.
            LedgerLostError: the commits are of windows that this ledger does not have.
            TopicRecreatedError, LogTruncatedError: the progress is about another log: call `adopt` first.
        """
        return self._resets.reset(
            starting_offsets, topics, dry_run=check_flag(dry_run, what="dry_run")
        )

    def fail_over(
        self,
        topics: str | Sequence[str] | None = None,
        *,
        offset_syncs: str | None = None,
        dry_run: bool = False,
    ) -> FailOver:
        """Continue the group on this cluster, to which MirrorMaker 2 has copied its topics and its committed offsets.

        Everything below a mirrored committed offset counts as done; everything else is open, so no record is missed. Open
        records that are stamped before the greatest cutoff delivered on the other cluster come with the next window, as late
        ones. Those that the other cluster's windows may have delivered come twice: the result has their offsets. If the
        group has progress here from an earlier time, it stays done, and windows that were open here are abandoned.

        Args:
            topics: names or patterns of the mirrored topics; None means all topics with a mirrored commit.
            offset_syncs: the topic on this cluster with the pairs of offsets of the mirror's records, such as
                ``mm2-offset-syncs.A.internal``. Records that the pairs show to be delivered then do not come twice.
            dry_run: change nothing; the group may have live members.

        Raises:
            ConfigError: an invalid argument, or the pairs of offsets contradict the commits.
            UnknownTopicError: no such topic.
            CommittedOffsetMissingError: the cluster has neither mirrored commits nor a state of the group.
            GroupInUseError: the group has live members.
            ReadError, BrokerError: Kafka cannot be read.
        """
        return self._fail_overs.fail_over(
            topics, offset_syncs, dry_run=check_flag(dry_run, what="dry_run")
        )

    def prune(self, older_than: timedelta | str, *, forget: bool = False) -> builtins.list[str]:
        """Reduce windows that ended longer ago than a duration; return their ids.

        A pruned window keeps its id, definition, status and counts: it still counts as done, and cannot be replayed. With
        `forget`, the windows are removed, including windows pruned before. Open windows and the group's progress do not
        change.
        """
        return self._keeper.prune(older_than, forget=forget)

    def restore_record(self, offset: int, *, dry_run: bool = False) -> RestoredRecord:
        """Replace an unreadable ledger record by its last readable version, or remove it.

        Use it for a record of another program (`LedgerCorruptError`, or `LedgerVersionError` if no newer version of this
        package works on the group). If the ledger has no readable version any more, the record is removed; a group's state
        is left damaged then. With `dry_run`, the call only reports the change.

        Args:
            offset: the record's offset in the group's partition of the ledger, from the error.
            dry_run: change nothing.

        Raises:
            ConfigError: there is no such record at the offset, or it can be read.
        """
        at = check_count(offset, what="offset", least=0, greatest=INT64_MAX)
        return self._keeper.restore(at, dry_run=check_flag(dry_run, what="dry_run"))

    def _accept(self, error: ForeignCommitError, adopts: bool) -> None:
        """Adopt other programs' commits if `adopts`, or if the group is shared with the program; otherwise raise."""
        if adopts:
            self.adopt()
        elif error.by_parallel_consumer:
            self._keeper.take_over()
        else:
            raise error
