"""The list of a group's windows, by cutoff and id, kept while records change: a page of it costs a page."""

from __future__ import annotations

from bisect import bisect_left, insort
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
        self._entries: dict[str, bytes | WindowSummary] = {}
        #: Windows without a usable header: their records must be read.
        self._incomplete: dict[str, None] = {}
        #: The places of all windows in their order, as of the last look; None before the first.
        self._order: list[tuple[int, str]] | None = None
        #: Windows that changed since the last look, with the places they had.
        self._changed: dict[str, tuple[int, str] | None] = {}

    def __contains__(self, window_id: str) -> bool:
        return window_id in self._entries or window_id in self._incomplete

    def put(self, window_id: str, header: bytes | None) -> None:
        """Take in a window that was written, with the header of its summary."""
        self.drop(window_id)
        if header is None or cutoff_in(header) is None:
            self._incomplete[window_id] = None
        else:
            self._entries[window_id] = header

    def complete(self, summary: WindowSummary) -> None:
        """Take in the summary of a window whose record was read."""
        self.drop(summary.window_id)
        self._entries[summary.window_id] = summary

    def drop(self, window_id: str) -> None:
        """Take a window off the list."""
        if self._order is not None:
            self._changed.setdefault(window_id, self._place(window_id))
        self._incomplete.pop(window_id, None)
        self._entries.pop(window_id, None)

    def incomplete(self) -> list[str]:
        """Return the ids of windows whose records must be read, in no order."""
        return list(self._incomplete)

    def page(
        self, limit: int | None, before: str | None, *, without: Collection[str]
    ) -> list[WindowSummary] | None:
        """Return the last windows before one of the list; None if more are `incomplete` now: some headers were none."""
        order = self._sorted()
        place = None if before is None else self._place(before)
        end = len(order) if place is None else bisect_left(order, place)
        page: list[WindowSummary] = []
        known = len(self._incomplete)
        while end and len(page) != limit:
            end -= 1
            window_id = order[end][1]
            if window_id not in without and (summary := self._summary(window_id)) is not None:
                page.append(summary)
        page.reverse()
        return page if len(self._incomplete) == known else None

    def _summary(self, window_id: str) -> WindowSummary | None:
        entry = self._entries[window_id]
        if isinstance(entry, WindowSummary):
            return entry
        summary = WindowSummary.from_text(window_id, entry)
        if summary is None:
            self.put(window_id, None)
        else:
            self._entries[window_id] = summary
        return summary

    def _place(self, window_id: str) -> tuple[int, str] | None:
        entry = self._entries.get(window_id)
        if entry is None:
            return None
        cutoff_ms = entry.cutoff_ms if isinstance(entry, WindowSummary) else cutoff_in(entry)
        return None if cutoff_ms is None else (cutoff_ms, window_id)

    def _sorted(self) -> list[tuple[int, str]]:
        if self._order is None or len(self._changed) > _CHANGES_SORTED_IN:
            places = (self._place(window_id) for window_id in self._entries)
            self._order = sorted(place for place in places if place is not None)
        else:
            for window_id, before in self._changed.items():
                if before is not None:
                    del self._order[bisect_left(self._order, before)]
                if (place := self._place(window_id)) is not None:
                    insort(self._order, place)
        self._changed.clear()
        return self._order
