"""The schemas by which windows are decoded: looked up once for a plan, and kept by its later attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window


class Schemas:
    """The schemas of one group's windows.

    Args:
        fixed: returns a window with the schemas that the registry has now.
    """

    def __init__(self, fixed: Callable[[Window], Window]) -> None:
        self._fixed = fixed

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

    def read_like(self, plan: WindowPlan, asked: Window) -> WindowPlan:
        """Return a plan with its formats as they are asked for now, and the schemas that were looked up for it."""
        window = plan.window.read_like(asked)
        if window == plan.window:
            return plan
        return replace(plan, window=self._fixed(window))
