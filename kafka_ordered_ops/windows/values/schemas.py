"""The schemas by which windows are decoded: looked up once for a plan, and kept by its later attempts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from kafka_ordered_ops.core.group.decisions.claiming import ClaimWish
from kafka_ordered_ops.core.group.group_state import GroupView, WindowRecord
from kafka_ordered_ops.core.types import OnCovered, WindowStatus
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.core.window.window import Window

_log = logging.getLogger("kafka_ordered_ops.windows")


class Schemas:
    """The schemas of one group's windows.

    Args:
        fixed: returns a window with the schemas that the registry has now.
        inferred: returns a draft whose windows have the columns that are inferred.
    """

    def __init__(
        self,
        fixed: Callable[[Window], Window],
        inferred: Callable[[GroupView, ClaimWish], ClaimWish],
    ) -> None:
        self._fixed = fixed
        #: Called outside the fence, as soon as the draft says which records the windows have.
        self.inferred = inferred

    def of(self, windows: Iterable[Window]) -> Iterator[Window]:
        """Yield windows with the schemas that the registry has now; those of one call are read alike."""
        first: Window | None = None
        for window in windows:
            first = first or self._fixed(window)
            yield replace(window, values=first.values, keys=first.keys)

    def asked_now(self, record: WindowRecord, asked: Window) -> Window:
        """Return a request for a window that exists, with the schemas that its next attempt reads with."""
        if record.status is not WindowStatus.PLANNED:
            return asked
        window = self._fixed(record.plan.window.read_like(asked))
        return replace(asked, values=window.values, keys=window.keys)

    def asked_again(self, plan: WindowPlan, asked: Window, policy: Policy) -> WindowPlan:
        """Return `read_like`, with a note if the window's output was written in another way and stays as it is."""
        again = self.read_like(plan, asked)
        if plan.status is WindowStatus.PLANNED or policy.on_covered is OnCovered.REPLAY:
            return again
        differences = plan.window.decoding_differences(again.window)
        if not differences:
            return again
        note = (
            f"window {plan.window_id} is {plan.status} with {'; '.join(differences)}. Its output stays as it is: use "
            "on_covered='replay' to read the same records again, and write them in this way"
        )
        _log.info("group %s: %s", plan.group_id, note)
        return replace(again, notes=(*again.notes, note))

    def read_like(self, plan: WindowPlan, asked: Window) -> WindowPlan:
        """Return a plan with its formats as they are asked for now, and the schemas that were looked up for it."""
        window = plan.window.read_like(asked)
        if window == plan.window:
            return plan
        return replace(plan, window=self._fixed(window))
