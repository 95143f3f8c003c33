"""The service that every host calls: plan a window, commit it, and what lies between.

A window's way: `OrderedWindows.plan` writes the exact offsets down in the ledger; a job reads exactly
these; `OrderedWindows.commit` adds them to the group's progress in one fenced transaction. A process may
die anywhere in between: the same call with the same window id takes the same plan up again.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any, Final

from kafka_ordered_ops.core.arguments import (
    check_choice,
    check_group,
    check_owner_name,
    check_run_id,
    check_timeout_s,
    checked_clock,
    shown,
)
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.group.adoption import Adoption
from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.types import OnForeignCommit
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
from kafka_ordered_ops.windows.checks import check_function, check_list
from kafka_ordered_ops.windows.committer import Committer
from kafka_ordered_ops.windows.delivery import Delivery, deliver
from kafka_ordered_ops.windows.gate import Gate
from kafka_ordered_ops.windows.maintenance import Maintenance
from kafka_ordered_ops.windows.planner import Planner
from kafka_ordered_ops.windows.queries.group import GroupQueries
from kafka_ordered_ops.windows.queries.rights import all_rights_named
from kafka_ordered_ops.windows.sink import Reopen, Staged, Write, WriteMany, check_jobs, told_by

#: Calls that need no right to change anything, nor one on the group.
_LOOKS: Final = frozenset({*vars(GroupQueries), "replay"})

#: Steps around open windows, plans nothing where all is taken, changes nothing of the group.
DEFAULT_POLICY: Final = Policy()


class OrderedWindows(GroupQueries, in_steps={"deliver", "deliver_many"}):
    """Windows of one consumer group.

    Every call raises `ClosedError` after `close`, and `NotShareableError` in a forked process. Threads take turns.

    Args:
        settings: the brokers as ``host:port,...``, a mapping of librdkafka settings, or `ClientSettings`.
        group_id: the consumer group whose progress the windows are. It has no live members.
        ledger_topic: the compacted topic that holds plans and progress; made on demand.
        timeout_s: bound for each call: for all that it waits for, questions and tries together. What fails
            meanwhile is tried again until then. Not counted: reading timestamps, which `stall_timeout_s` bounds,
            `publish` of an output, and a policy's `claim_wait`. A broker that hangs inside a transaction may hold
            a call up to ``socket.timeout.ms`` (10 s) longer.
        lookup_timeout_s: bound for one question to the cluster, which is then asked over a new connection.
        stall_timeout_s: bound for a scan's position to stand still.
        run_id: who plans, for people: a host's run id.
        owner: who plans the group's windows: one task or asset of a host. A group that was planned by another owner
            is refused, unless the policy redefines it. None: nobody in particular, which is never refused.
        on_foreign_commit: stop when somebody else moved the group's committed offset, or `adopt` it.
        progress: told how far a scan is, as (offsets done, offsets in all).
        clock: the time in seconds since the epoch; for tests.

    Raises:
        ConfigError: a value of another type or out of range: the group and the run id have at most 512 printable
            characters, the bounds are more than 0 and at most 31 days.
        SettingNotAllowedError: a client setting outside the allow-list.
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
            check_function(progress, what="progress")
        settings = ClientSettings.of(settings)
        self.settings = settings
        self.group_id = group_id
        self._clock = clock
        self._on_foreign_commit = check_choice(
            on_foreign_commit, OnForeignCommit, what="on_foreign_commit"
        )
        self._lookup = open_lookup(settings, timeout_s=lookup_timeout_s)
        self._ledger = open_ledger(settings, self._lookup, topic=ledger_topic, timeout_s=timeout_s)
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
        )
        self._committer = Committer(group_id, self._lookup, self._ledger, clock=clock)
        self._keeper = Maintenance(
            group_id,
            self._lookup,
            self._ledger,
            lookup_timeout_s=lookup_timeout_s,
            clock=clock,
        )
        super().__init__(
            Gate(
                f"the windows of group {group_id}",
                timeout_s,
                is_patient=outages_pass(settings),
                rights_named=partial(_rights_named, settings, group_id, ledger_topic),
            ),
            closes=(self._ledger, self._lookup),
        )

    # --- planning -------------------------------------------------------------------------------

    def preview(
        self,
        window: Window,
        window_id: str | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> WindowPlan:
        """Return the plan that `plan` would make now; nothing is written, and no ledger is made.

        Raises what `plan` raises, but for the group's live members.
        """
        named = {self._window_id(window, window_id): window}
        return self._planner.preview(named, check_policy(policy))[0]

    def plan(
        self,
        window: Window,
        window_id: str | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> WindowPlan:
        """Decide a window and claims its offsets, or takes up the plan that its id has already.

        The plan's `status` tells what is left to do: run the job (planned), commit (written), publish
        (committed), nothing (published). Taking up a window makes this the only try that may commit it.
        `policy` says what to do when others stand in its way.

        Raises:
            WindowCoveredError: they have taken everything, and it is to fail, or nothing can be replayed.
            OpenClaimError: open windows may hold some of it, and it is not to step around them.
            ConfigError: the id or the window cannot be.
            PlanError: and its kinds; see `core.errors`.
            RecordsLostError: retention took records of the window.
            GroupInUseError, ForeignCommitError: somebody else uses the group.
            LedgerError, BrokerError, ReadError, CommitError: the cluster, or the way to it.
        """
        return self.plan_many([window], [window_id], policy)[0]

    def plan_many(
        self,
        windows: Sequence[Window],
        window_ids: Sequence[str | None] | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> builtins.list[WindowPlan]:
        """Plan several windows in one pass: one look at the logs, one scan, one transaction.

        A record that several ask for goes to the first of them. The windows differ in nothing but their
        times. Those that exist are taken up.

        Raises:
            ConfigError: they differ otherwise, or an id stands twice.
            PlanError: and all that `plan` raises; then none of them is planned.
        """
        check_policy(policy)
        check_list(windows, what="windows")
        if window_ids is not None:
            check_list(window_ids, what="window_ids")
        names = window_ids or [None] * len(windows)
        if len(names) != len(windows):
            raise ConfigError(f"{len(windows)} windows and {len(names)} window ids")
        named = {
            self._window_id(window, name): window
            for window, name in zip(windows, names, strict=True)
        }
        if len(named) != len(windows):
            raise ConfigError("a window id stands twice among the windows to be planned")
        return self._planner.plan(named, policy, self._adopting())

    def replay(self, window_id: str) -> WindowPlan:
        """Return the plan of a committed window, to read the same records again; committing it changes nothing.

        Raises:
            UnknownWindowError: there is no such window, or it was never committed.
            WindowPrunedError: its plan is gone.
            RecordsLostError: retention has taken some of its records.
        """
        return self._planner.replay(self.show(window_id))

    def split(self, plan: WindowPlan, count: int) -> tuple[WindowPlan, ...]:
        """Shares of a planned window for tasks that run in parallel, of about equal weight.

        Each task reads its share and calls `report`; when all have, the window is written, and `commit`
        with the whole plan commits it once. The same plan and count give the same shares.

        Raises:
            ConfigError: the count cannot be.
            WindowMismatchError: this attempt was split otherwise.
            WindowSupersededError: another attempt took the window over.
        """
        return self._committer.split(plan, count)

    def report(self, part: WindowPlan, result: Staged | Mapping[str, Any]) -> WindowRecord:
        """Write down that one share of a split window is delivered; the first report of a share counts.

        Raises:
            WindowMismatchError: the window was not split like that.
            WindowSupersededError: another attempt took the window over.
        """
        if not isinstance(part, WindowPlan):
            raise ConfigError(f"{shown(part)} is no part: give one of those that `split` returned")
        return self._committer.report(
            part, result if isinstance(result, Mapping) else told_by(part, result)
        )

    # --- what follows a plan --------------------------------------------------------------------

    def mark_written(self, plan: WindowPlan, result: Mapping[str, Any]) -> WindowPlan:
        """Record that the sink holds all of the window, hidden: a retry then only commits.

        Raises:
            WindowSupersededError: another attempt took the window over.
            SinkError: the result is nothing that JSON can hold.
        """
        return self.mark_written_many([plan], [result])[0]

    def commit(self, plan: WindowPlan, staged: Staged | None = None) -> WindowPlan:
        """Add the window's offsets to the group's progress; with `staged`, then makes that visible.

        Without `staged`, call it after the sink has taken everything. Committing again is a no-op.

        Raises:
            WindowSupersededError: another attempt, a new plan or an abandonment owns the window.
            PartsMissingError: the window was split, and not all parts have reported.
            GroupInUseError, ForeignCommitError: somebody else uses the group.
            CommitUnknownError, WindowFencedError, LedgerError, BrokerError: run the same window again.
        """
        return self.commit_many([plan], None if staged is None else [staged])[0]

    def commit_many(
        self, plans: Sequence[WindowPlan], staged: Sequence[Staged] | None = None
    ) -> builtins.list[WindowPlan]:
        """Commit several windows in one transaction: all of them, or none.

        With `staged` the same transaction records the outputs as written. If the commit is refused, that is recorded
        alone, so that the next attempt need not run the job again.

        Raises what `commit` raises, for the first window that it finds wrong.
        """
        done = self._committer.commit(plans, staged, self._adopting())
        return done if staged is None else self.publish_many(done, staged)

    def publish(self, plan: WindowPlan, staged: Staged) -> WindowPlan:
        """Make a committed window's output visible, and write that down.

        Raises:
            ConfigError: the window is not committed yet.
            WindowSupersededError: another claim owns the window.
        """
        return self.publish_many([plan], [staged])[0]

    def mark_written_many(
        self, plans: Sequence[WindowPlan], results: Sequence[Mapping[str, Any]]
    ) -> builtins.list[WindowPlan]:
        """`mark_written` for several windows in one transaction; those that are done stay as they are."""
        return self._committer.mark_written(plans, results)

    def publish_many(
        self, plans: Sequence[WindowPlan], staged: Sequence[Staged]
    ) -> builtins.list[WindowPlan]:
        """`publish` for several windows; one transaction writes it down."""
        return self._committer.publish(plans, staged)

    def abandon(self, window: str | WindowPlan) -> WindowRecord:
        """Return an open window's offsets free for others; its attempts can no longer commit.

        By its id, a window whose record cannot be read is removed from the ledger. What is returned then has
        nothing but the id, and says in its notes what was wrong.

        Raises:
            LedgerCorruptError: of a plan: the window's record cannot be read.
            UnknownWindowError: there is no such window.
            WindowSupersededError: it is committed already. Of a plan also: another attempt has taken it up.
        """
        owner = None if isinstance(window, str) else window
        if not isinstance(window, str | WindowPlan):
            raise ConfigError(f"{shown(window)} is no window: give its id, or its plan")
        window_id = window if isinstance(window, str) else window.window_id
        return self._committer.abandon(window_id, owner)

    def deliver(self, plan: WindowPlan, write: Write, reopen: Reopen) -> Delivery:
        """Bring a window from wherever it stands to published.

        `write` runs the job into a hidden place; `reopen` finds the output of an earlier attempt from what it
        said of itself, or returns None where it is gone. A written window whose output is gone is written
        again; a committed one is replayed.
        """
        check_jobs(write, reopen)
        return self.deliver_many([plan], lambda plans: [write(one) for one in plans], reopen)[0]

    def deliver_many(
        self, plans: Sequence[WindowPlan], write: WriteMany, reopen: Reopen
    ) -> builtins.list[Delivery]:
        """Bring several windows to published: one job for all that need one, one commit for all.

        `write` is given the plans that have to be read, in their order, and returns an output for each.
        """
        with self._gate.rights_named("deliver_many", [plans]):
            return deliver(self, plans, write, reopen)

    # --- keeping ---------------------------------------------------------------------------------

    def adopt(self, *, dry_run: bool = False) -> Adoption:
        """Take for the group's progress what happened behind its back.

        Offsets that somebody else committed: forward, they count as done; back, what lies behind them is
        open again, and committed windows with records there are *rewound*. A topic that was recreated
        begins at its start, and open windows that asked for the old one are abandoned. A log that ends
        before the group's progress cuts it there. With `dry_run` it only says what it would do.

        Raises:
            UnknownWindowError: the group has no state.
        """
        return self._keeper.adopt(dry_run=dry_run)

    def prune(self, older_than: timedelta | str, *, forget: bool = False) -> builtins.list[str]:
        """Cut windows down that ended longer ago than a span; return their ids.

        A stub keeps the id, the question, the state and the counts: the id stays known as done, and cannot
        be replayed. With `forget` nothing is kept of them, stubs included. Open windows and the group's
        progress are not touched.
        """
        return self._keeper.prune(older_than, forget=forget)

    # --- inside ----------------------------------------------------------------------------------

    def _window_id(self, window: Window, window_id: str | None) -> str:
        check_window(window)
        return check_window_id(
            default_window_id(self.group_id, window) if window_id is None else window_id
        )

    def _adopting(self) -> Callable[[], object] | None:
        return self.adopt if self._on_foreign_commit is OnForeignCommit.ADOPT else None


def _rights_named(
    settings: ClientSettings, group_id: str, ledger_topic: str, what: str, about: Sequence[object]
) -> AbstractContextManager[None]:
    """Of the calls that change nothing, only a preview asks for the group's offsets."""
    changes = what != "preview" and what not in _LOOKS
    return all_rights_named(
        settings,
        group_id if changes or what == "preview" else None,
        ledger_topic=ledger_topic,
        about=about,
        changes=changes,
    )
