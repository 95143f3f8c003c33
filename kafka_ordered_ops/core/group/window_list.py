"""The list of a group's windows, by cutoff and id, kept while records change: a page of it costs a page."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import Final

from kafka_ordered_ops.core.group.summaries import WindowSummary, cutoff_in

#: Most changes are about one window or two.
_CHANGES_SORTED_IN: Final = 100


class WindowList:
    """The windows of a group as a list shows them.

    Their summaries come from the headers of their records. Only the cutoff is read from each header; the rest is parsed
    when a page has the window.
    """

    def __init__(self) -> None:
        self._told: dict[str, bytes | WindowSummary] = {}
        #: Windows without a usable header: their records must be read.
        self._untold: dict[str, None] = {}
        #: The place of each window in the list, and all places in their order, as of the last look.
        self._places: dict[str, tuple[int, str]] = {}
        self._order: list[tuple[int, str]] = []
        #: Windows that changed since, with the place they had.
        self._changed: dict[str, tuple[int, str] | None] = {}

    def __contains__(self, window_id: str) -> bool:
        return window_id in self._places or window_id in self._untold

    def put(self, window_id: str, header: bytes | None) -> None:
        """Take in a window that was written, with the header of its summary."""
        cutoff_ms = None if header is None else cutoff_in(header)
        if header is None or cutoff_ms is None:
            self.drop(window_id)
            self._untold[window_id] = None
        else:
            self._tell(window_id, cutoff_ms, header)

    def tell(self, summary: WindowSummary) -> None:
        """Take in the summary of a window whose record was read."""
        self._tell(summary.window_id, summary.cutoff_ms, summary)

    def drop(self, window_id: str) -> None:
        """Take a window off the list."""
        self._untold.pop(window_id, None)
        self._told.pop(window_id, None)
        place = self._places.pop(window_id, None)
        if place is not None:
            self._changed.setdefault(window_id, place)

    def untold(self) -> list[str]:
        """Return the ids of windows whose records must be read, in no order."""
        return list(self._untold)

    def page(
        self, limit: int | None, before: str | None, *, without: Collection[str]
    ) -> list[WindowSummary] | None:
        """Return the last windows before one of the list; None if more are `untold` now: some headers were none."""
        order = self._sorted()
        end = len(order) if before is None else bisect_left(order, self._places[before])
        page: list[WindowSummary] = []
        known = len(self._untold)
        while end and len(page) != limit:
            end -= 1
            window_id = order[end][1]
            if window_id not in without and (summary := self._summary(window_id)) is not None:
                page.append(summary)
        page.reverse()
        return page if len(self._untold) == known else None

    def _tell(self, window_id: str, cutoff_ms: int, told: bytes | WindowSummary) -> None:
        self._untold.pop(window_id, None)
        self._told[window_id] = told
        place, before = (cutoff_ms, window_id), self._places.get(window_id)
        if place != before:
            self._places[window_id] = place
            self._changed.setdefault(window_id, before)

    def _summary(self, window_id: str) -> WindowSummary | None:
        told = self._told[window_id]
        if isinstance(told, WindowSummary):
            return told
        summary = WindowSummary.from_text(window_id, told)
        if summary is None:
            self.put(window_id, None)
        else:
            self._told[window_id] = summary
        return summary

    def _sorted(self) -> list[tuple[int, str]]:
        if len(self._changed) > _CHANGES_SORTED_IN:
            self._order = sorted(self._places.values())
        else:
            for window_id, before in self._changed.items():
                if before is not None:
                    del self._order[bisect_left(self._order, before)]
                if (place := self._places.get(window_id)) is not None:
                    self._order.insert(bisect_left(self._order, place), place)
        self._changed.clear()
        return self._order
