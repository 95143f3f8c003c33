"""The service that every host calls: plan a window, commit it, and everything in between.

`OrderedWindows.plan` stores the exact offsets of a window in the ledger. A job reads exactly these offsets.
`OrderedWindows.commit` adds them to the group's progress in one fenced transaction. A process may die anywhere in
between: the same call with the same window id resumes the same plan.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from kafka_ordered_ops.core.arguments import (
    check_choice,
    check_count,
    check_flag,
    check_function,
    check_owner_name,
    check_run_id,
    check_timeout_s,
    checked_clock,
    shown,
)
from kafka_ordered_ops.core.errors import ConfigError, ForeignCommitError
from kafka_ordered_ops.core.group.decisions.adoption import Adoption
from kafka_ordered_ops.core.group.decisions.migrating import Migration
from kafka_ordered_ops.core.group.decisions.resetting import OffsetReset
from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.group.ledger.repair import RestoredRecord
from kafka_ordered_ops.core.names import check_group
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import (
    INT64_MAX,
    OnForeignCommit,
    ProgressFormat,
    TopicPartition,
)
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import Policy, check_policy
from kafka_ordered_ops.core.window.window import (
    Window,
    check_window,
    check_window_id,
    default_window_id,
)
from kafka_ordered_ops.kafka.facts.window_facts import ScanProgress, SnapshotReader
from kafka_ordered_ops.kafka.ledger.ledger import UPDATE_TIMEOUT_S
from kafka_ordered_ops.kafka.ledger.topic import LEDGER_TOPIC
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.ports import open_ledger, open_lookup, outages_pass
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings
from kafka_ordered_ops.windows.checks import check_list
from kafka_ordered_ops.windows.committer import Committer
from kafka_ordered_ops.windows.delivery import Delivery, deliver
from kafka_ordered_ops.windows.gate import Gate
from kafka_ordered_ops.windows.group_facts import GroupMover
from kafka_ordered_ops.windows.maintenance import Maintenance
from kafka_ordered_ops.windows.needed_rights import rights_named
from kafka_ordered_ops.windows.offset_resets import NewOffsets, OffsetResets
from kafka_ordered_ops.windows.planner import Planner
from kafka_ordered_ops.windows.queries.group import GroupQueries
from kafka_ordered_ops.windows.sink import (
    Place,
    Reopen,
    Staged,
    Write,
    WriteMany,
    check_jobs,
    told_by,
)

#: The default: step around open windows, plan a covered window empty, keep the group's definition.
DEFAULT_POLICY: Final = Policy()


#: Methods made of calls to others, each of which passes the gate.
_IN_STEPS: Final = frozenset(
    {"plan", "mark_written", "commit", "publish", "deliver", "deliver_many"}
)


class OrderedWindows(GroupQueries, in_steps=_IN_STEPS):
    """Windows of one consumer group.

    Every call raises `ClosedError` after `close`, and `NotShareableError` in a forked process. Threads take turns.

    Args:
        settings: the brokers as ``host:port,...``, a mapping of librdkafka settings, or `ClientSettings`.
        group_id: the consumer group that stores the progress of the windows. It must have no live members.
        ledger_topic: the compacted topic that stores plans and progress; created on demand.
        timeout_s: time limit for each call: all requests and attempts together. Failures within this time are
            retried. Without it, a call gives up after 7 s where every bootstrap address refuses and none has answered this
            process. It does not cover reading timestamps (`stall_timeout_s`),
            `publish` of an output, or a policy's `claim_wait`. A broker that hangs inside a transaction may delay
            a call up to ``socket.timeout.ms`` (10 s) longer.
        lookup_timeout_s: time limit for one request; after it, the request is repeated over a new connection.
        stall_timeout_s: how long a scan waits while no position moves.
        run_id: who plans, shown to people: a host's run id.
        owner: who plans the group's windows: one task or asset of a host. A group that another owner has planned
            is refused, unless the policy redefines it. None: not checked.
        on_foreign_commit: what to do if another program moved the group's committed offset: fail or `adopt` it.
        progress: called with (offsets done, offsets in all) during a scan.
        clock: returns the time in seconds since the epoch; for tests.

    Raises:
        ConfigError: a value of the wrong type or out of range: group and run id have at most 512 printable
            characters; time limits are more than 0 and at most 31 days.
        SettingNotAllowedError: a client setting that is not on the allow-list.
    """

    def __init__(
        self,
        settings: GivenSettings,
        group_id: str,
        *,
        ledger_topic: str = LEDGER_TOPIC,
        timeout_s: float = UPDATE_TIMEOUT_S,
        lookup_timeout_s: float = TIMEOUT_S,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        run_id: str | None = None,
        owner: str | None = None,
        on_foreign_commit: OnForeignCommit | str = OnForeignCommit.FAIL,
        progress: ScanProgress | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_group(group_id)
        check_run_id(run_id)
        check_owner_name(owner)
        check_timeout_s(timeout_s, what="timeout_s")
        check_timeout_s(lookup_timeout_s, what="lookup_timeout_s")
        check_timeout_s(stall_timeout_s, what="stall_timeout_s")
        clock = checked_clock(clock)
        if progress is not None:
            check_function(progress, what="progress", takes=2)
        settings = ClientSettings.of(settings)
        self.settings = settings
        self.group_id = group_id
        self._clock = clock
        self._on_foreign_commit = check_choice(
            on_foreign_commit, OnForeignCommit, what="on_foreign_commit"
        )
        self._lookup = open_lookup(settings, timeout_s=lookup_timeout_s)
        self._ledger = open_ledger(settings, self._lookup, topic=ledger_topic, timeout_s=timeout_s)
        gate = Gate(
            f"the windows of group {group_id}",
            timeout_s,
            is_patient=outages_pass(settings),
            rights_named=partial(rights_named, settings, group_id, ledger_topic),
        )
        self._planner = Planner(
            group_id,
            self._lookup,
            self._ledger,
            SnapshotReader(
                self._lookup, settings, group_id, stall_timeout_s=stall_timeout_s, progress=progress
            ),
            lookup_timeout_s=lookup_timeout_s,
            run_id=run_id,
            owner=owner,
            clock=clock,
            pause=gate.pause,
        )
        self._committer = Committer(group_id, self._lookup, self._ledger, clock=clock)
        mover = GroupMover(group_id, self._lookup, self._ledger, lookup_timeout_s=lookup_timeout_s)
        self._keeper = Maintenance(mover, clock=clock)
        self._resets = OffsetResets(mover, settings, clock=clock)
        super().__init__(gate, closes=(self._ledger, self._lookup))

    # --- planning -------------------------------------------------------------------------------

    def preview(
        self,
        window: Window,
        window_id: str | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> WindowPlan:
        """Return the plan that `plan` would make now. Nothing is written, and no ledger is created.

        Raises the errors of `plan`, except for live members of the group.
        """
        named = {self._window_id(window, window_id): window}
        return self._planner.preview(named, check_policy(policy))[0]

    def plan(
        self,
        window: Window,
        window_id: str | None = None,
        policy: Policy = DEFAULT_POLICY,
        *,
        place: Place | None = None,
    ) -> WindowPlan:
        """Decide a window and claim its offsets, or resume the existing plan of its id.

        The plan's `status` shows the remaining steps: run the job (planned), commit (written), publish (committed),
        none (published). After this call, only this attempt may commit the window.
        `policy` sets what to do if other windows are in the way. `place`, where the output will be published, refuses the
        window before it is claimed if readers see there what it must not replace.

        Raises:
            OutputOwnedError: the place belongs to another ledger, group, window or claim.
            WindowCoveredError: other windows have taken all records, and the policy fails or nothing can be replayed.
            OpenClaimError: open windows may hold some of the records, and the policy does not step around them.
            ConfigError: invalid window id or window.
            PlanError: one of its subclasses; see `core.errors`.
            RecordsLostError: retention removed records of the window.
            GroupInUseError, ForeignCommitError: another program uses the group.
            OffsetMapTooLargeError: the group shares its progress with Parallel Consumer, whose maps could not store it.
            LedgerError, BrokerError, ReadError, CommitError: the cluster failed or could not be reached.
        """
        return self.plan_many([window], [window_id], policy, place=place)[0]

    def plan_many(
        self,
        windows: Sequence[Window],
        window_ids: Sequence[str | None] | None = None,
        policy: Policy = DEFAULT_POLICY,
        *,
        place: Place | None = None,
    ) -> builtins.list[WindowPlan]:
        """Plan several windows in one pass: one query of the logs, one scan, one transaction.

        The first window takes a record that several ask for. The windows may differ only in their times.
        Existing windows are resumed.

        Raises:
            ConfigError: windows differ in more than their times, or an id is duplicated.
            PlanError: as `plan` raises it; then none of the windows is planned.
        """
        check_policy(policy)
        if place is not None and not callable(getattr(place, "check", None)):
            raise ConfigError(f"place is {shown(place)}: give an OutputPlace, or None")
        check_list(windows, what="windows")
        if window_ids is not None:
            check_list(window_ids, what="window_ids")
        names = window_ids or [None] * len(windows)
        if len(names) != len(windows):
            raise ConfigError(
                f"{len(windows)} windows and {len(names)} window ids: give one id for each window"
            )
        named = {
            self._window_id(window, name): window
            for window, name in zip(windows, names, strict=True)
        }
        if len(named) != len(windows):
            raise ConfigError("a window id is given twice: give each window its own id")
        return self._planner.plan(named, policy, self._accept, place)

    def replay(self, window_id: str) -> WindowPlan:
        """Return the plan of a committed window, to read the same records again. Committing it changes nothing.

        Raises:
            UnknownWindowError: the window does not exist or was never committed.
            WindowPrunedError: the plan was pruned.
            RecordsLostError: retention removed some of its records.
        """
        return self._planner.replay(self.show(window_id))

    def split(self, plan: WindowPlan, count: int) -> tuple[WindowPlan, ...]:
        """Split a planned window into parts of about equal weight for parallel tasks.

        Each task reads its part and calls `report`. After the last report the window is written, and `commit` with the
        whole plan commits it once. The same plan and count give the same parts.

        Raises:
            ConfigError: the count is out of range.
            WindowMismatchError: this attempt was split into another number of parts.
            WindowSupersededError: another attempt took up the window.
        """
        return self._committer.split(plan, count)

    def report(self, part: WindowPlan, result: Staged | Mapping[str, Any]) -> WindowRecord:
        """Record that one part of a split window is delivered. The first report of a part counts.

        Raises:
            WindowMismatchError: the window has no such part.
            WindowSupersededError: another attempt took up the window.
        """
        if not isinstance(part, WindowPlan):
            raise ConfigError(f"{shown(part)} is not a part: give a part that `split` returned")
        return self._committer.report(
            part, result if isinstance(result, Mapping) else told_by(part, result)
        )

    # --- after planning --------------------------------------------------------------------

    def mark_processed(self, plan: WindowPlan, done: Mapping[TopicPartition, OffsetSet]) -> None:
        """Record that offsets of an open window are processed, so that a later attempt need not process them again.

        They are added to those recorded before, in any order; see `processed`. A part of a split window adds its share.
        Of a window that is written or committed nothing is recorded.

        A call also keeps the claim young, with or without offsets: `Policy.claim_age` counts from the last one. The age
        is recorded to within 30 s.

        Raises:
            ConfigError, WindowMismatchError: the plan does not take all of the offsets, or belongs to another group.
            UnknownWindowError, WindowSupersededError: only the newest attempt of a live claim may record offsets.
            LedgerRecordError: they have so many ranges that the ledger cannot hold them.
        """
        self._committer.mark_processed(plan, done)

    def mark_written(self, plan: WindowPlan, result: Mapping[str, Any]) -> WindowPlan:
        """Record that the sink holds the complete window, hidden: a retry then only commits.

        Raises:
            WindowSupersededError: another attempt took up the window.
            SinkError: JSON cannot hold the result.
        """
        return self.mark_written_many([plan], [result])[0]

    def commit(self, plan: WindowPlan, staged: Staged | None = None) -> WindowPlan:
        """Add the window's offsets to the group's progress; with `staged`, then publish the output.

        Without `staged`, call it after the sink has stored everything. Committing again changes nothing.

        Raises:
            WindowSupersededError: the window was abandoned, planned again, or resumed by another attempt.
            PartsMissingError: the window was split, and not all parts have reported.
            GroupInUseError, ForeignCommitError: another program uses the group.
            CommitUnknownError, WindowFencedError, LedgerError, BrokerError: run the same window again.
        """
        return self.commit_many([plan], None if staged is None else [staged])[0]

    def commit_many(
        self, plans: Sequence[WindowPlan], staged: Sequence[Staged] | None = None
    ) -> builtins.list[WindowPlan]:
        """Commit several windows in one transaction: all or none.

        With `staged` the same transaction records the outputs as written. If the commit is refused, that is recorded
        alone, so that the next attempt need not run the job again.

        Raises the errors of `commit`, for the first invalid window.
        """
        done = self._committer.commit(plans, staged, self._accept)
        return done if staged is None else self.publish_many(done, staged)

    def publish(self, plan: WindowPlan, staged: Staged) -> WindowPlan:
        """Make a committed window's output visible, and record that.

        Raises:
            ConfigError: the window is not committed yet.
            WindowSupersededError: the window has another claim.
        """
        return self.publish_many([plan], [staged])[0]

    def mark_written_many(
        self, plans: Sequence[WindowPlan], results: Sequence[Mapping[str, Any]]
    ) -> builtins.list[WindowPlan]:
        """Run `mark_written` for several windows in one transaction. Windows that are done stay unchanged."""
        return self._committer.mark_written(plans, results)

    def publish_many(
        self, plans: Sequence[WindowPlan], staged: Sequence[Staged]
    ) -> builtins.list[WindowPlan]:
        """Run `publish` for several windows, and record them in one transaction."""
        return self._committer.publish(plans, staged)

    def abandon(self, window: str | WindowPlan) -> WindowRecord:
        """Release an open window's offsets to other windows. Its attempts can no longer commit.

        With an id, a window whose record cannot be read is removed from the ledger. The returned record then has only
        the id, and its notes describe the damage.

        Raises:
            LedgerCorruptError: with a plan: the window's record cannot be read.
            UnknownWindowError: the window does not exist.
            WindowSupersededError: the window is already committed. With a plan also: another attempt has taken it up.
        """
        owner = None if isinstance(window, str) else window
        if not isinstance(window, str | WindowPlan):
            raise ConfigError(f"{shown(window)} is not a window: give its id or its plan")
        window_id = window if isinstance(window, str) else window.window_id
        return self._committer.abandon(window_id, owner)

    def deliver(self, plan: WindowPlan, write: Write, reopen: Reopen) -> Delivery:
        """Bring a window from its current status to published.

        `write` runs the job and writes a hidden output. `reopen` finds the output of an earlier attempt from its JSON, or
        returns None if the output is gone. A written window without output is written again; a committed one is
        replayed.
        """
        check_jobs(write, reopen)
        return self.deliver_many([plan], lambda plans: [write(one) for one in plans], reopen)[0]

    def deliver_many(
        self, plans: Sequence[WindowPlan], write: WriteMany, reopen: Reopen
    ) -> builtins.list[Delivery]:
        """Bring several windows to published: one job for all that need one, one commit for all.

        `write` gets the plans that have to be read, in their order, and returns an output for each.
        """
        with self._gate.rights_named("deliver_many", [plans]):
            return deliver(self, plans, write, reopen)

    # --- maintenance ---------------------------------------------------------------------------------

    def adopt(self, *, dry_run: bool = False) -> Adoption:
        """Accept changes that other programs made, as the group's progress.

        Offsets that another program committed: if moved forward, offsets below count as done. If moved back, later offsets
        are open again, and committed windows with records there are *rewound*. A recreated topic starts at its beginning,
        and open windows of the old topic are abandoned. A truncated log cuts progress where the log ends. Commits about a
        state that the ledger does not have (`LedgerLostError`) count like those of other programs. With `dry_run` the call
        only reports the changes.

        Raises:
            UnknownWindowError: the group has no state.
        """
        return self._keeper.adopt(dry_run=dry_run)

    def migrate(
        self, to: ProgressFormat | str, *, dual: bool = False, dry_run: bool = False
    ) -> Migration:
        """Hand the group over to Confluent's Parallel Consumer, share it, or take it back.

        To ``parallel-consumer``: the committed offsets carry the done offsets beyond them in Parallel Consumer's format,
        exactly, and no window is planned any more. To ``ledger``: what Parallel Consumer has done since becomes the
        group's progress, and windows continue with the rest. With `dual`, windows continue, and their commits carry
        Parallel Consumer's maps: both may run in turn, never at the same time. Each plan and commit then first takes over
        what Parallel Consumer has done.

        The change is one transaction, and the commits are read back to the byte. After an error, run it again: a
        migration that is done changes nothing. With `dry_run` the call only reports the change.

        Args:
            to: ``parallel-consumer`` or ``ledger``.
            dual: write both formats from now on.
            dry_run: change nothing; the group may have live members.

        Raises:
            UnknownWindowError: the group has no progress in the ledger.
            GroupInUseError, OpenClaimError: the group has live members or open windows.
            OffsetMapTooLargeError: done offsets do not fit into the maps; the message names partitions and sizes.
            RecordsLostError: retention removed offsets that no window has delivered.
            ForeignCommitError, TopicRecreatedError, LogTruncatedError: the group or a log was changed in another way, and
                `on_foreign_commit` is not ``adopt``.
            OffsetMapDecodeError: a map of Parallel Consumer is damaged, or reaches past the end of the log.
        """
        target = check_choice(to, ProgressFormat, what="to")
        if target is ProgressFormat.DUAL:
            raise ConfigError("to is 'dual': give 'parallel-consumer' or 'ledger', and dual=True")
        if check_flag(dual, what="dual"):
            target = ProgressFormat.DUAL
        adopts = self._on_foreign_commit is OnForeignCommit.ADOPT
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
        that are open again are *rewound*. Works for any consumer group: where the ledger has no progress of it, only its
        committed offsets are set, without metadata. If the group's state in the ledger cannot be read, all of its records
        are removed as well.

        Args:
            starting_offsets: for all partitions, as for a `Window`: ``earliest``, ``latest``, ``committed`` (keeps the
                committed offset, and nothing beyond it), a time, ``-PT1H`` (before now) or ``offset:N``; or a mapping from
                partitions to offsets within their logs.
            topics: names or patterns; None: all topics of the group's progress. Required if the ledger has none.
            dry_run: change nothing; the group may have live members.

        Raises:
            ConfigError: an invalid argument, or an offset outside the log.
            GroupInUseError, OpenClaimError: the group has live members or open windows.
            CommittedOffsetMissingError: a partition has no committed offset to keep.
            ForeignCommitError: another program moved offsets of partitions that are not reset.
            LedgerLostError: the commits are those of windows that this ledger does not know.
            TopicRecreatedError, LogTruncatedError: the progress is about another log: adopt that first.
        """
        return self._resets.reset(
            starting_offsets, topics, dry_run=check_flag(dry_run, what="dry_run")
        )

    def prune(self, older_than: timedelta | str, *, forget: bool = False) -> builtins.list[str]:
        """Reduce windows that ended longer ago than a duration; return their ids.

        A pruned window keeps its id, definition, status and counts: it stays known as done and cannot be replayed. With
        `forget`, the windows are removed, including windows pruned before. Open windows and the group's progress do not
        change.
        """
        return self._keeper.prune(older_than, forget=forget)

    def restore_record(self, offset: int, *, dry_run: bool = False) -> RestoredRecord:
        """Write a ledger record that cannot be read again as it was before, or remove it.

        For a record of another program (`LedgerCorruptError`, or `LedgerVersionError` where no newer version works on the
        group). The newest readable one before it is written again; where the ledger no longer has one, the record is removed,
        and a group's state is left damaged. With `dry_run` the call only reports the change.

        Args:
            offset: the record's offset in the group's partition of the ledger, from the error.
            dry_run: change nothing.

        Raises:
            ConfigError: there is no such record at the offset, or it can be read.
        """
        at = check_count(offset, what="offset", least=0, greatest=INT64_MAX)
        return self._keeper.restore(at, dry_run=check_flag(dry_run, what="dry_run"))

    # --- inside ----------------------------------------------------------------------------------

    def _window_id(self, window: Window, window_id: str | None) -> str:
        check_window(window)
        return check_window_id(
            default_window_id(self.group_id, window) if window_id is None else window_id
        )

    def _accept(self, error: ForeignCommitError) -> None:
        """Take other programs' commits as progress if that was asked for, or if the group is shared with their writer."""
        if self._on_foreign_commit is OnForeignCommit.ADOPT:
            self.adopt()
        elif error.by_parallel_consumer:
            self._keeper.take_over()
        else:
            raise error
