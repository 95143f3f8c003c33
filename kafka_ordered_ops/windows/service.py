"""The service that every host calls: plan a window, commit it, and everything in between.

`OrderedWindows.plan` stores the exact offsets of a window in the ledger. A job reads exactly these offsets.
`OrderedWindows.commit` adds them to the group's progress in one fenced transaction. A process may die anywhere in
between: the same call with the same window id resumes the same plan.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from kafka_ordered_ops.core.arguments import (
    check_count,
    check_function,
    check_owner_name,
    check_run_id,
    check_timeout_s,
    checked_clock,
    shown,
)
from kafka_ordered_ops.core.cluster.names import check_group
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import (
    TopicPartition,
)
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy, check_policy
from kafka_ordered_ops.core.window.window import Window, check_window
from kafka_ordered_ops.core.window.window_id import check_window_id, default_window_id
from kafka_ordered_ops.kafka.facts.window_facts import ScanProgress, SnapshotReader
from kafka_ordered_ops.kafka.ledger.ledger import UPDATE_TIMEOUT_S
from kafka_ordered_ops.kafka.ledger.topic import LEDGER_TOPIC
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.ports import open_ledger, open_lookup, outages_pass
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings
from kafka_ordered_ops.ordered.sample import Sample, sample_of
from kafka_ordered_ops.windows.checks import check_list
from kafka_ordered_ops.windows.committer import Committer
from kafka_ordered_ops.windows.delivery import Delivery, deliver
from kafka_ordered_ops.windows.gate import Gate
from kafka_ordered_ops.windows.group_facts import GroupMover
from kafka_ordered_ops.windows.metrics import WindowMetrics
from kafka_ordered_ops.windows.needed_rights import rights_named
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
from kafka_ordered_ops.windows.upkeep.fail_over import FailOvers
from kafka_ordered_ops.windows.upkeep.group_upkeep import GroupUpkeep
from kafka_ordered_ops.windows.upkeep.maintenance import Maintenance
from kafka_ordered_ops.windows.upkeep.offset_resets import OffsetResets
from kafka_ordered_ops.windows.values.dead_letters import check_topic, letters_reader
from kafka_ordered_ops.windows.values.inference import with_inferred
from kafka_ordered_ops.windows.values.schemas import Schemas

#: Records of a sample: by default, and at most.
SAMPLE_RECORDS: Final = 1_000
SAMPLE_RECORDS_MAX: Final = 100_000

#: Methods that call other methods, each of which passes the gate.
_IN_STEPS: Final = frozenset(
    {"plan", "mark_written", "commit", "publish", "deliver", "deliver_many"}
)


class OrderedWindows(GroupQueries, GroupUpkeep, in_steps=_IN_STEPS):
    """Windows of one consumer group.

    Every call raises `ClosedError` after `close`, and `NotShareableError` in a forked process. Threads take turns.

    Args:
        settings: the brokers as ``host:port,...``, a mapping of librdkafka settings, or `ClientSettings`.
        group_id: the consumer group that stores the progress of the windows. It must have no live members.
        ledger_topic: the compacted topic that stores plans and progress; created on demand.
        timeout_s: time limit for each call, including all requests and attempts. Failures within this time are
            retried. By default, a call gives up after 7 s if every bootstrap address refuses connections and none has
            answered this process. The limit does not cover reading timestamps (`stall_timeout_s`),
            `publish` of an output, or a policy's `claim_wait`. A broker that hangs inside a transaction may delay
            a call up to ``socket.timeout.ms`` (10 s) longer.
        lookup_timeout_s: time limit for one request; after it, the request is repeated over a new connection.
        stall_timeout_s: how long a scan waits while no position moves.
        run_id: a host's run id, shown to people.
        owner: the task or asset of a host that plans the group's windows. A group of another owner is refused, unless
            the policy redefines it. None means that the owner is not checked.
        progress: called with (offsets done, all offsets) during a scan.
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
        self._stall_timeout_s = stall_timeout_s
        self._check_dead_letters = partial(
            check_topic, settings=settings, ledger_topic=ledger_topic, timeout_s=lookup_timeout_s
        )
        self._lookup = open_lookup(settings, timeout_s=lookup_timeout_s)
        self._ledger = open_ledger(settings, self._lookup, topic=ledger_topic, timeout_s=timeout_s)
        gate = Gate(
            f"the windows of group {group_id}",
            timeout_s,
            is_patient=outages_pass(settings),
            rights_named=partial(rights_named, settings, group_id, ledger_topic),
            observe=WindowMetrics(group_id).called,
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
            schemas=Schemas(
                self._fixed,
                partial(with_inferred, settings=settings, stall_timeout_s=stall_timeout_s),
                settings,
            ),
        )
        self._committer = Committer(
            group_id,
            self._lookup,
            self._ledger,
            read_letters=letters_reader(settings, stall_timeout_s),
            clock=clock,
        )
        mover = GroupMover(group_id, self._lookup, self._ledger, lookup_timeout_s=lookup_timeout_s)
        self._keeper = Maintenance(mover, clock=clock)
        self._resets = OffsetResets(mover, settings, clock=clock)
        self._fail_overs = FailOvers(mover, settings, stall_timeout_s=stall_timeout_s)
        super().__init__(gate, closes=(self._ledger, self._lookup))

    # --- planning -------------------------------------------------------------------------------

    def preview(
        self,
        window: Window,
        window_id: str | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> WindowPlan:
        """Return the plan that `plan` would make now, without writing anything or creating a ledger.

        Raises the errors of `plan`, except for live members of the group.
        """
        named = {self._window_id(window, window_id): window}
        return self._planner.preview(named, check_policy(policy))[0]

    def sample(self, plan: WindowPlan, *, records: int = SAMPLE_RECORDS) -> Sample:
        """Read some records of a plan, or of a preview, decoded as its window says; change nothing.

        Args:
            plan: the result of `preview` or `plan`.
            records: how many at most: the first and the last ones of each partition.

        Raises:
            ConfigError: a schema is missing or invalid.
            RegistryError, AuthenticationError: the schema registry fails, or refuses the credentials.
            ReadError, RecordsLostError, BrokerError: Kafka cannot be read.
        """
        check_count(records, what="records", least=1, greatest=SAMPLE_RECORDS_MAX)
        return sample_of(
            plan,
            self.settings,
            records,
            now_ms=int(self._clock() * 1000),
            stall_timeout_s=self._stall_timeout_s,
        )

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
        `policy` sets what to do if other windows are in the way. `place` is where the output will be published. It refuses
        the window before it is claimed if the window must not replace the published output there.

        Raises:
            OutputOwnedError: the place belongs to another ledger, group, window or claim.
            WindowCoveredError: other windows have taken all records, and the policy fails or nothing can be replayed.
            OpenClaimError: open windows may hold some of the records, and the policy does not step around them.
            ConfigError: invalid window id or window.
            PlanError: one of its subclasses; see `core.errors`.
            RecordsLostError: retention removed records of the window.
            GroupInUseError, ForeignCommitError: another program uses the group.
            OffsetMapTooLargeError: the group shares its progress with Parallel Consumer, whose maps cannot store it.
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

        If several windows ask for a record, the first one takes it. The windows may differ only in their times.
        Existing windows are resumed.

        Raises:
            ConfigError: windows differ in more than their times, or an id is duplicated.
            PlanError: as for `plan`; none of the windows is planned then.
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

    def _fixed(self, window: Window) -> Window:
        """Return a window with the schemas of now; raise if its dead letters could not be written."""
        self._check_dead_letters(window, lookup=self._lookup)
        return _with_schemas(window, self.settings)

    # --- after planning --------------------------------------------------------------------

    def mark_processed(self, plan: WindowPlan, done: Mapping[TopicPartition, OffsetSet]) -> None:
        """Record that offsets of an open window are processed, so that a later attempt does not process them again.

        They are added to the offsets recorded before, in any order; see `processed`. A part of a split window adds its
        share. For a written or committed window, nothing is recorded.

        A call also renews the claim, with or without offsets: `Policy.claim_age` counts from the last call, with a
        precision of 30 s.

        Raises:
            ConfigError, WindowMismatchError: the plan does not take all of the offsets, or belongs to another group.
            UnknownWindowError, WindowSupersededError: only the newest attempt of a live claim may record offsets.
            LedgerRecordError: the offsets have too many ranges for the ledger.
        """
        self._committer.mark_processed(plan, done)

    def mark_written(self, plan: WindowPlan, result: Mapping[str, Any]) -> WindowPlan:
        """Record that the sink has the complete, hidden output of the window: a retry then only commits.

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

        With `staged`, the same transaction records the outputs as written. If the commit is refused, only the outputs are
        recorded, so that the next attempt does not run the job again.

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
            WindowSupersededError: the window is already committed; with a plan, also if another attempt has taken it up.
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
        return self.deliver_many([plan], lambda plans: [*map(write, plans)], reopen)[0]

    def deliver_many(
        self, plans: Sequence[WindowPlan], write: WriteMany, reopen: Reopen
    ) -> builtins.list[Delivery]:
        """Bring several windows to published: one job for all windows that need it, and one commit for all.

        `write` gets the plans that must be read, in order, and returns an output for each. Windows that were planned with
        different formats or schemas are separate calls of it.
        """
        with self._gate.rights_named("deliver_many", [plans]):
            return deliver(self, plans, write, reopen)

    # --- internals -------------------------------------------------------------------------------

    def _window_id(self, window: Window, window_id: str | None) -> str:
        check_window(window)
        return check_window_id(
            default_window_id(self.group_id, window) if window_id is None else window_id
        )


def _with_schemas(window: Window, settings: ClientSettings) -> Window:
    """Return a window whose formats have their schemas; see `decoding.decoder.fixed`."""
    if not window.is_decoded:
        return window
    # Imported late: most windows need no decoders.
    from kafka_ordered_ops.decoding.decoder import fixed

    return fixed(window, settings)
