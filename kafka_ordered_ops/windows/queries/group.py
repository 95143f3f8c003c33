"""Query a group: its windows, its progress, its gaps, and whether a window is live."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from kafka_ordered_ops.core.arguments import as_names, as_span, check_count, check_function, shown
from kafka_ordered_ops.core.errors import ConfigError, LedgerUnavailableError
from kafka_ordered_ops.core.group.checks import known_window
from kafka_ordered_ops.core.group.gaps import Gap, gaps_of
from kafka_ordered_ops.core.group.group_state import GroupState, WindowRecord
from kafka_ordered_ops.core.group.summaries import Summaries
from kafka_ordered_ops.core.liveness.liveness import Liveness
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.core.window.ownership import OutputOwner
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY
from kafka_ordered_ops.core.window.window import Window, check_window
from kafka_ordered_ops.core.window.window_id import check_window_id
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.ports import LedgerDoor, LookupDoor
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.windows.checks import (
    check_list,
    check_plan,
    check_plan_of,
    check_plans,
    left_notes,
)
from kafka_ordered_ops.windows.gate import Gated
from kafka_ordered_ops.windows.planner import Planner
from kafka_ordered_ops.windows.queries.group_offsets import GroupOffsets, read_offsets
from kafka_ordered_ops.windows.queries.live import check_live

_log = logging.getLogger("kafka_ordered_ops.windows")


class GroupQueries(Gated):
    """The calls of `OrderedWindows` that change nothing."""

    settings: ClientSettings
    group_id: str
    _lookup: LookupDoor
    _ledger: LedgerDoor
    _planner: Planner
    _clock: Callable[[], float]

    def show(self, window_id: str) -> WindowRecord:
        """Return a window's record from the ledger; raise `UnknownWindowError` if it does not exist."""
        return self.show_many([window_id])[0]

    def show_many(self, window_ids: Sequence[str]) -> builtins.list[WindowRecord]:
        """Return windows' records from the ledger; raise `UnknownWindowError` if one does not exist."""
        check_list(window_ids, what="window_ids")
        for window_id in window_ids:
            check_window_id(window_id)
        view = self._ledger.read(self.group_id, window_ids)
        return [known_window(view, name) for name in window_ids]

    def unpublished(self) -> builtins.list[WindowRecord]:
        """Return the readable, committed windows whose output readers do not see yet."""
        names = view.state.unpublished if (view := self._ledger.read(self.group_id)).state else ()
        if not names:
            return []
        view = self._ledger.read(self.group_id, names)
        waiting = view.state.unpublished if view.state else ()
        return [view.windows[name] for name in names if name in waiting and name in view.windows]

    def left_notes(
        self,
        age: timedelta | str = DEFAULT_POLICY.claim_age,
        *,
        beside: Sequence[WindowPlan] = (),
    ) -> tuple[str, ...]:
        """Return notes about windows that hold records and that no attempt works on, as the notes of each plan do.

        Args:
            age: how long an open window may stay untouched. Committed windows that are not published have no age.
            beside: plans, whose open windows (`WindowPlan.held_by_open`) are left out.

        Raises:
            ConfigError: an invalid argument.
        """
        span = as_span(age, what="age")
        check_plans(beside)
        view = self._ledger.read(self.group_id)
        return left_notes(view, beside, span, now_ms=self._now_ms())

    def needed_outputs(self, outputs: Sequence[OutputOwner]) -> set[OutputOwner]:
        """Return the outputs that may still be published: of windows that are open, or committed and unpublished.

        The outputs may be of any group of this ledger. Outputs of unreadable windows are returned as well.
        """
        check_list(outputs, what="outputs")
        values: Sequence[object] = outputs
        for value in values:
            if not isinstance(value, OutputOwner):
                raise ConfigError(f"{shown(value)} is not the owner of an output")
        needed: set[OutputOwner] = set()
        for group_id in sorted({output.group_id for output in outputs}):
            of_group = [output for output in outputs if output.group_id == group_id]
            view = self._ledger.read(group_id, [output.window_id for output in of_group])
            needed.update(
                output for output in of_group if view.needs(output.window_id, output.claim_id)
            )
        return needed

    def processed(self, plan: WindowPlan) -> dict[TopicPartition, OffsetSet]:
        """Return the offsets of a plan that attempts of its claim have recorded as processed (`mark_processed`).

        The result is empty if the window is written or committed, or has another claim by now.

        Raises:
            WindowMismatchError: the plan belongs to another group.
            UnknownWindowError: the window does not exist.
        """
        check_plan_of(self.group_id, plan)
        names = [plan.window_id]
        view = self._ledger.read(self.group_id, names, processed=names)
        known_window(view, plan.window_id)
        return view.processed_offsets(plan)

    def check_readable(self, plan: WindowPlan) -> None:
        """Raise `RecordsLostError` if a committed window can no longer be read from Kafka."""
        check_plan(plan)
        self._planner.check_still_there(plan)

    def list(
        self, keep: Callable[[WindowRecord], bool] = lambda _: True
    ) -> builtins.list[WindowRecord]:
        """Return every window of the group with its plan and result, sorted by cutoff and id.

        Windows whose records cannot be read are left out, with a warning in the log; `summaries` has their ids.
        """
        check_function(keep, what="keep", takes=1)
        view = self._ledger.read(self.group_id, keep=keep)
        for error in view.unreadable.values():
            _log.warning("the list leaves out a window: %s", error)
        # The view has open windows even if `keep` does not select them.
        records = [record for record in view.windows.values() if keep(record)]
        return sorted(records, key=lambda record: (record.plan.cutoff_ms, record.plan.window_id))

    def summaries(self, *, limit: int | None = None, before: str | None = None) -> Summaries:
        """Return the group's windows as summaries, by cutoff, then by id: without plans, and therefore fast.

        Args:
            limit: return at most the last `limit` windows; None returns all.
            before: the id of a window; only windows before it are returned, as the page before the page that begins
                with it.

        Raises:
            ConfigError: the limit is out of range, or `before` is not an id.
            UnknownWindowError: the window `before` does not exist.
        """
        if limit is not None:
            check_count(limit, what="limit", least=1, greatest=INT64_MAX)
        if before is not None:
            check_window_id(before)
        return self._ledger.summaries(self.group_id, limit=limit, before=before)

    def existing_ledger_id(self) -> str:
        """Return the id that distinguishes this ledger from others, as ``cluster id/topic id``.

        Raises:
            LedgerUnavailableError: there is no ledger yet.
        """
        ledger_id = self._ledger.ledger_id()
        if ledger_id is None:
            raise LedgerUnavailableError(
                f"group {self.group_id}: the ledger does not exist yet: plan a window first"
            )
        return ledger_id

    def state(self) -> GroupState | None:
        """Return the group's progress; None before its first plan."""
        return self._ledger.read(self.group_id).state

    def gaps(self) -> builtins.list[Gap]:
        """Return the times that no interval of the group covers and in which records wait for a sweep.

        It only reads the ledger, where earlier plans recorded the gaps.
        """
        return gaps_of(self._ledger.read(self.group_id))

    def offsets(self, topics: str | Sequence[str] = ()) -> GroupOffsets:
        """Return which offsets the group has done, whether windows, a consumer or Parallel Consumer keep its progress.

        Args:
            topics: names or patterns. By default the topics of the group's windows, or for a group without windows every
                topic that this principal may describe.

        Raises:
            UnknownTopicError: a topic does not exist.
        """
        names = as_names(topics, what="topics")
        return read_offsets(self._lookup, self._ledger, self.group_id, names, timeout_s=TIMEOUT_S)

    def live(
        self,
        window: Window,
        *,
        grace: timedelta | str | None = None,
        before: Liveness | None = None,
    ) -> Liveness:
        """Return whether all partitions of a window have reached its cutoff, with the reason for each.

        Live: there is a record stamped at or after the cutoff (plus the maximum out-of-orderness). Idle: there is no such
        record, the clock has passed cutoff + `grace`, and no transaction is open; never without a grace.
        Records read for the answer `before` are not read again. The call changes nothing.

        Raises:
            UnknownTopicError, BrokerError, ReadError, LedgerError
        """
        check_window(window)
        if grace is not None:
            grace = as_span(grace, what="grace")
        if not isinstance(before, Liveness | None):
            raise ConfigError(f"before is {shown(before)}: give an earlier answer, or None")
        return check_live(
            self._lookup,
            self.settings,
            self.group_id,
            window,
            grace=grace,
            now_ms=self._now_ms(),
            view=self._ledger.read(self.group_id),
            before=before,
        )

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
