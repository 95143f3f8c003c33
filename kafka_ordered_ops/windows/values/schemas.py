"""The schemas by which windows are decoded: looked up once for a plan, and kept by its later attempts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.group.decisions.claiming import ClaimWish
from kafka_ordered_ops.core.group.group_state import GroupView, WindowRecord
from kafka_ordered_ops.core.types import OnCovered, WindowStatus
from kafka_ordered_ops.core.window.formats import has_columns
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.settings import ClientSettings

_log = logging.getLogger("kafka_ordered_ops.windows")


class Schemas:
    """The schemas of one group's windows.

    Args:
        fixed: returns a window with the schemas that the registry has now.
        inferred: returns a draft whose windows have the columns that are inferred, as far as its records have any.
        settings: the client settings.
    """

    def __init__(
        self,
        fixed: Callable[[Window], Window],
        inferred: Callable[[GroupView, ClaimWish], ClaimWish],
        settings: ClientSettings,
    ) -> None:
        self._fixed = fixed
        self._inferred = inferred
        self._settings = settings

    def drafted(
        self,
        view: GroupView,
        wish: ClaimWish,
        check: Callable[[Window, ClientSettings], object] | None,
    ) -> ClaimWish:
        """Return a draft whose windows have columns; `check` gets one of them if they are known.

        To be called outside the fence, as soon as the draft says which records the windows have.
        """
        wish = self._inferred(view, wish)
        # Windows of one draft have the same columns.
        window = wish.windows[0].window
        is_known = has_columns(window.values) and has_columns(window.keys)
        if check is not None and window.is_decoded and is_known:
            check(window, self._settings)
        return wish

    def of(
        self,
        fresh: Mapping[str, Window],
        existing: Mapping[str, WindowRecord],
        asked: Mapping[str, Window],
        policy: Policy,
    ) -> dict[str, Window]:
        """Return new windows with the schemas that the registry has now; those of one call are read alike.

        Raises `ConfigError` as `as_asked` does for an existing window of the call.
        """
        for name, record in existing.items():
            as_asked(record.plan, asked[name], policy)
        fixed: dict[str, Window] = {}
        first: Window | None = None
        for name, window in fresh.items():
            first = first or self._fixed(window)
            fixed[name] = replace(window, values=first.values, keys=first.keys)
        return fixed

    def asked_now(self, record: WindowRecord, asked: Window) -> Window:
        """Return a request for a window that exists, with the schemas that its next attempt reads with."""
        if record.status is not WindowStatus.PLANNED:
            return asked
        window = self._fixed(record.plan.window.read_like(asked))
        return replace(asked, values=window.values, keys=window.keys)

    def asked_again(self, plan: WindowPlan, asked: Window, policy: Policy) -> WindowPlan:
        """Return `read_like`, with a note if the window's output was written in another way and stays as it is."""
        again = self.read_like(plan, asked, policy)
        if _is_read(plan, policy):
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

    def read_like(self, plan: WindowPlan, asked: Window, policy: Policy) -> WindowPlan:
        """Return a plan with its formats as they are asked for now, and the schemas that were looked up for it.

        Raises `ConfigError` as `as_asked` does.
        """
        window = as_asked(plan, asked, policy)
        return plan if window == plan.window else replace(plan, window=self._fixed(window))


def as_asked(plan: WindowPlan, asked: Window, policy: Policy) -> Window:
    """Return a planned window with its formats as they are asked for now.

    Raises `ConfigError` if it is to be read, and its columns would have to be inferred: that is done when a window is planned.
    """
    window = plan.window.read_like(asked)
    if window.is_open and _is_read(plan, policy):
        differences = "; ".join(plan.window.decoding_differences(window))
        is_open = plan.status is WindowStatus.PLANNED
        raise ConfigError(
            f"window {plan.window_id} of group {plan.group_id} was planned with {differences}: columns are inferred when a window "
            "is planned, and only then. Give the columns: Json(pyarrow.schema(...))"
            f"{'. Or abandon the window, and plan it again' if is_open else ''}"
        )
    return window


def _is_read(plan: WindowPlan, policy: Policy) -> bool:
    """Return whether the records of an existing window are to be read."""
    return plan.status is WindowStatus.PLANNED or policy.on_covered is OnCovered.REPLAY
