"""The service that every host calls: plan a window, commit it, and what lies between.

A window's way: `OrderedWindows.plan` writes the exact offsets down in the ledger; a job reads exactly
these; `OrderedWindows.commit` adds them to the group's progress in one fenced transaction. A process may
die anywhere in between: the same call with the same window id takes the same plan up again.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Final

from kafka_ordered_ops.core import decisions
from kafka_ordered_ops.core.decisions import ClaimWish
from kafka_ordered_ops.core.errors import (
    ConfigError,
    RecordsLostError,
    UnknownWindowError,
    WindowCoveredError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group_state import Change, GroupState, GroupView, WindowRecord
from kafka_ordered_ops.core.offset_set import EMPTY_SET
from kafka_ordered_ops.core.plan import WindowPlan
from kafka_ordered_ops.core.types import (
    OnCovered,
    OnDataLoss,
    PlanContent,
    WindowStatus,
)
from kafka_ordered_ops.core.window import Window, check_window_id, default_window_id
from kafka_ordered_ops.kafka.ledger import UPDATE_TIMEOUT_S, Ledger
from kafka_ordered_ops.kafka.ledger_topic import LEDGER_TOPIC
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S, Lookup
from kafka_ordered_ops.kafka.offsets import read_committed_offsets
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.kafka.survey import (
    ScanProgress,
    Survey,
    Surveyor,
    check_plan_identity,
    partitions_of,
    select_topics,
)
from kafka_ordered_ops.windows.checks import (
    Committed,
    check_committable,
    check_cutoff,
    commits_of_others,
    covering,
    expired_notes,
)
from kafka_ordered_ops.windows.delivery import Delivery, Staged

_log = logging.getLogger("kafka_ordered_ops.windows")

#: A read whose position stands still for this long is over.
STALL_TIMEOUT_S: Final = 60.0

#: Drafts made anew because the group changed meanwhile: each time others made progress.
_DRAFTS_MAX: Final = 50


class OrderedWindows:
    """Windows of one consumer group.

    Args:
        settings: client settings, or a mapping of librdkafka keys; ``bootstrap.servers`` at least.
        group: the consumer group whose progress the windows are. It has no live members.
        ledger_topic: the compacted topic that holds plans and progress; made on demand.
        timeout_s: bound for one change of the group's state, all tries together.
        lookup_timeout_s: bound for one question to the cluster.
        stall_timeout_s: bound for a scan's position to stand still.
        run_id: who plans, for people: a host's run id.
        progress: told how far a scan is, as (offsets done, offsets in all).
        clock: the time in seconds since the epoch; for tests.
    """

    def __init__(
        self,
        settings: ClientSettings | Mapping[str, str | int | float | bool],
        group: str,
        *,
        ledger_topic: str = LEDGER_TOPIC,
        timeout_s: float = UPDATE_TIMEOUT_S,
        lookup_timeout_s: float = TIMEOUT_S,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        run_id: str | None = None,
        progress: ScanProgress | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not group or not group.isprintable():
            raise ConfigError(f"group {group!r} is not a consumer group's name")
        if not isinstance(settings, ClientSettings):
            settings = ClientSettings.from_mapping(settings)
        self.settings = settings
        self.group = group
        self._timeout_s = timeout_s
        self._run_id = run_id
        self._clock = clock
        self._lookup = Lookup(settings, timeout_s=lookup_timeout_s)
        self._lookup_timeout_s = lookup_timeout_s
        self._ledger = Ledger(settings, self._lookup, topic=ledger_topic, timeout_s=timeout_s)
        self._surveyor = Surveyor(
            self._lookup, settings, group, stall_timeout_s=stall_timeout_s, progress=progress
        )

    def __enter__(self) -> OrderedWindows:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._ledger.close()
        self._lookup.close()

    # --- planning -------------------------------------------------------------------------------

    def preview(self, window: Window, window_id: str | None = None) -> WindowPlan:
        """The plan that `plan` would make now; nothing is written, and no ledger is made.

        Raises what `plan` raises, but for the group's live members.
        """
        window_id = self._window_id(window, window_id)
        check_cutoff(window, self._now_ms())
        view = self._ledger.read(self.group, [window_id])
        existing = view.windows.get(window_id)
        if existing is not None and existing.status is not WindowStatus.ABANDONED:
            decisions.check_same_question(existing.plan, window)
            return existing.plan
        _, view, wish = self._draft(window, window_id, OnCovered.SKIP)
        plan = decisions.build_plan(view, wish)
        if plan is None:
            raise AssertionError("a draft suffices for the view that it was made from")
        return replace(plan, claim_id="", attempt=0)

    def plan(
        self,
        window: Window,
        window_id: str | None = None,
        *,
        on_covered: OnCovered = OnCovered.SKIP,
    ) -> WindowPlan:
        """Decides a window and claims its offsets, or takes up the plan that its id has already.

        The plan's `status` tells what is left to do: run the job (planned), commit (written), publish
        (committed), nothing (published). Taking up a window makes this the only try that may commit it.
        `on_covered` says what to do when other windows have taken everything it asks for.

        Raises:
            WindowCoveredError: they have, and it is to fail, or none of them can be replayed in its place.
            ConfigError: the id or the window cannot be.
            PlanError: and its kinds; see `core.errors`.
            RecordsLostError: retention took records of the window.
            GroupInUseError, ForeignCommitError: somebody else uses the group.
            LedgerError, BrokerError, ReadError, CommitError: the cluster, or the way to it.
        """
        window_id = self._window_id(window, window_id)
        check_cutoff(window, self._now_ms())
        for _ in range(_DRAFTS_MAX):
            view = self._ledger.read(self.group, [window_id], settle=True)
            existing = view.windows.get(window_id)
            if existing is not None and existing.status is not WindowStatus.ABANDONED:
                return self._take_up(existing, window)
            self._lookup.check_no_members(self.group)
            survey, _, wish = self._draft(window, window_id, on_covered)
            try:
                record = self._claim(wish)
            except WindowCoveredError:
                holder = covering(window, self.list()) if on_covered is OnCovered.REPLAY else None
                if holder is None:
                    raise
                return self.replay(holder)
            if record is None:
                _log.info(
                    "group %s: the group changed while %s was drafted, again", self.group, window_id
                )
            elif record.plan.claim_id == wish.claim_id:
                _log.info(
                    "group %s: planned %s, %d offsets, %d timestamps read",
                    self.group,
                    window_id,
                    record.plan.offsets,
                    survey.records_scanned,
                )
                return record.plan
            else:
                return self._take_up(record, window)
        raise WindowSupersededError(
            f"group {self.group}: the group changed under each of {_DRAFTS_MAX} drafts of window {window_id}: "
            "windows are abandoned and planned again in a loop somewhere. Stop that, and plan again",
            window_id=window_id,
        )

    def replay(self, window_id: str) -> WindowPlan:
        """The plan of a committed window, to read the same records again; committing it changes nothing.

        Raises:
            UnknownWindowError: there is no such window, or it was never committed.
            RecordsLostError: retention has taken some of its records.
        """
        record = self.show(window_id)
        if not record.status.is_done:
            raise UnknownWindowError(
                f"window {window_id} of group {self.group} is {record.status} and not committed: plan it to "
                "take it up",
                window_id=window_id,
            )
        self._check_still_there(record.plan)
        return record.plan

    # --- what follows a plan --------------------------------------------------------------------

    def write_down(self, plan: WindowPlan, result: Mapping[str, Any]) -> WindowPlan:
        """Records that the sink holds all of the window, hidden: a retry then only commits.

        Raises:
            WindowSupersededError: another try took the window over.
        """
        return self._update(
            plan, lambda view, _: decisions.write_down(view, plan, dict(result))
        ).plan

    def commit(self, plan: WindowPlan, staged: Staged | None = None) -> WindowPlan:
        """Adds the window's offsets to the group's progress; with `staged`, then makes that visible.

        Without `staged`, call it after the sink has taken everything. Committing again is a no-op.

        Raises:
            WindowSupersededError: another try, a new plan or an abandonment owns the window.
            GroupInUseError, ForeignCommitError: somebody else uses the group.
            CommitUnknownError, WindowFencedError, LedgerError, BrokerError: run the same window again.
        """
        check_committable(self.group, plan)
        if staged is not None and plan.status.is_open:
            plan = self.write_down(plan, staged.to_json())
        now_ms = self._now_ms()

        def decide(view: GroupView, committed: Committed) -> Change | WindowRecord:
            outcome = decisions.commit(
                view, plan, now_ms=now_ms, others=commits_of_others(committed)
            )
            if isinstance(outcome, Change):
                self._check_topics(plan)
            return outcome

        plan = self._update(plan, decide).plan
        return plan if staged is None else self.publish(plan, staged)

    def publish(self, plan: WindowPlan, staged: Staged) -> WindowPlan:
        """Makes a committed window's output visible, and writes that down."""
        staged.publish()
        result = dict(staged.to_json())
        return self._update(plan, lambda view, _: decisions.publish(view, plan, result)).plan

    def abandon(self, window_id: str) -> WindowRecord:
        """Gives an open window's offsets free for others; its tries can no longer commit.

        Raises:
            UnknownWindowError: there is no such window.
            WindowSupersededError: it is committed already.
        """
        record = self._ledger.update(
            self.group, lambda view, _: decisions.abandon(view, window_id), wanted=[window_id]
        )
        return _present(record)

    def deliver(
        self,
        plan: WindowPlan,
        write: Callable[[WindowPlan], Staged],
        reopen: Callable[[Mapping[str, Any]], Staged | None],
    ) -> Delivery:
        """Brings a window from wherever it stands to published.

        `write` runs the job into a hidden place; `reopen` finds the output of an earlier try from what it
        said of itself, or returns None where it is gone. A written window whose output is gone is written
        again; a committed one is replayed.
        """
        if plan.content is PlanContent.COVERED:
            # Others deliver what it asks for: no sink ever sees it.
            self.commit(plan)
            return Delivery(self.show(plan.window_id), ran=False)
        ran = False
        staged: Staged | None = None
        if plan.status is not WindowStatus.PLANNED:
            staged = reopen(self.show(plan.window_id).result or {})
        if plan.status is WindowStatus.PUBLISHED and staged is not None:
            return Delivery(self.show(plan.window_id), ran=False)
        if staged is None:
            if plan.status.is_done:
                self._check_still_there(plan)
            staged, ran = write(plan), True
        finish = self.commit if plan.status.is_open else self.publish
        try:
            finish(plan, staged)
        except WindowSupersededError:
            # Another try owns the window now, and will never ask for what this one wrote.
            staged.discard()
            raise
        return Delivery(self.show(plan.window_id), ran=ran)

    @contextlib.contextmanager
    def open(
        self,
        window: Window,
        window_id: str | None = None,
        *,
        on_covered: OnCovered = OnCovered.SKIP,
    ) -> Iterator[WindowPlan]:
        """Plans a window, and commits it if the block ends well; an exception leaves it planned."""
        plan = self.plan(window, window_id, on_covered=on_covered)
        yield plan
        self.commit(plan)

    # --- looking ---------------------------------------------------------------------------------

    def show(self, window_id: str) -> WindowRecord:
        """A window as the ledger has it; raises `UnknownWindowError`."""
        view = self._ledger.read(self.group, [window_id])
        return decisions.known_window(view, window_id)

    def list(self) -> list[WindowRecord]:
        """Every window of the group, by cutoff, then by id."""
        view = self._ledger.read(self.group, everything=True)
        return sorted(
            view.windows.values(), key=lambda record: (record.plan.cutoff_ms, record.plan.window_id)
        )

    def state(self) -> GroupState | None:
        """The group's progress; None before its first plan."""
        return self._ledger.read(self.group).state

    # --- inside ----------------------------------------------------------------------------------

    def _window_id(self, window: Window, window_id: str | None) -> str:
        return check_window_id(
            default_window_id(self.group, window) if window_id is None else window_id
        )

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _check_topics(self, plan: WindowPlan) -> None:
        """The topics that are still there must be those that were planned."""
        check_plan_identity(plan, self._ledger.existing(plan.topics))

    def _check_still_there(self, plan: WindowPlan) -> None:
        self._check_topics(plan)
        starts = self._lookup.log_starts(list(plan.taken))
        strict = replace(plan.window, on_data_loss=OnDataLoss.FAIL)
        gone = decisions.with_losses(
            replace(
                plan,
                window=strict,
                partitions=tuple(replace(part, lost=EMPTY_SET) for part in plan),
            ),
            starts,
        )
        try:
            decisions.check_loss(gone)
        except RecordsLostError as error:
            raise RecordsLostError(
                f"window {plan.window_id} of group {self.group} cannot be replayed: retention has taken some of "
                "its offsets. What was delivered then is delivered; it cannot be read from Kafka again",
                lost=error.lost,
            ) from error

    def _draft(
        self, window: Window, window_id: str, on_covered: OnCovered
    ) -> tuple[Survey, GroupView, ClaimWish]:
        topics = select_topics(self._lookup, window)
        committed = read_committed_offsets(
            self.settings, self.group, partitions_of(topics), timeout_s=self._lookup_timeout_s
        )
        # After the offsets, never before: a commit of another try in between would look like one that
        # the ledger has lost.
        view = self._ledger.read(self.group, [window_id])
        self._ledger.check_not_lost(view, committed)
        now_ms = self._now_ms()
        survey = self._surveyor.survey(view, window, topics, committed, now_ms=now_ms)
        wish = ClaimWish(
            window_id=window_id,
            claim_id=uuid.uuid4().hex[:16],
            window=window,
            drafts=survey.drafts,
            newcomers=survey.newcomers,
            patterns=survey.patterns,
            now_ms=now_ms,
            run_id=self._run_id,
            on_covered=on_covered,
            notes=(*survey.notes, *expired_notes(view, committed)),
        )
        return survey, view, wish

    def _claim(self, wish: ClaimWish) -> WindowRecord | None:
        def decide(view: GroupView, committed: Committed) -> Change | WindowRecord | None:
            if view.state is not None:
                decisions.check_foreign(view.state, commits_of_others(committed))
            return decisions.claim(view, wish)

        partitions = [draft.facts.tp for draft in wish.drafts]
        return self._ledger.update(
            self.group, decide, wanted=[wish.window_id], partitions=partitions
        )

    def _take_up(self, existing: WindowRecord, window: Window) -> WindowPlan:
        decisions.check_same_question(existing.plan, window)
        if not existing.status.is_open:
            return existing.plan
        self._lookup.check_no_members(self.group)
        self._check_topics(existing.plan)
        starts = self._lookup.log_starts([part.tp for part in existing.plan])
        attempt = existing.plan.attempt

        def decide(view: GroupView, _: Committed) -> Change | WindowRecord:
            return decisions.take_up(
                view,
                existing.plan.window_id,
                window,
                log_starts=starts,
                run_id=self._run_id,
            )

        record = self._ledger.update(self.group, decide, wanted=[existing.plan.window_id])
        _log.info(
            "group %s: took up %s after attempt %d", self.group, existing.plan.window_id, attempt
        )
        return _present(record).plan

    def _update(
        self,
        plan: WindowPlan,
        decide: Callable[[GroupView, Committed], Change | WindowRecord | None],
    ) -> WindowRecord:
        return _present(self._ledger.update(self.group, decide, wanted=[plan.window_id]))


def _present(record: WindowRecord | None) -> WindowRecord:
    if record is None:
        raise AssertionError("this decision always finds or makes a record")
    return record
