"""Dies where a test asks for it: a crash cannot be tried in any other way.

The environment variable names one point. There the process kills itself with SIGKILL, so that no handler,
no ``finally`` and no buffer softens it, exactly as the kernel's out-of-memory killer would. Only the command
line has these points: the library knows nothing of them.
"""

from __future__ import annotations

import builtins
import os
import signal
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.windows import OrderedWindows, Policy, Staged
from kafka_ordered_ops.windows.service import DEFAULT_POLICY

CRASH_AT: Final = "KAFKA_ORDERED_OPS_CRASH_AT"


class CrashPoint(StrEnum):
    """Between any two steps of a window's way."""

    #: The plan is in the ledger, nothing is read.
    AFTER_PLAN = "after_plan"
    #: Some records are read, and some may be written.
    IN_READ = "in_read"
    #: The stage is complete, and the ledger does not know it.
    AFTER_WRITE = "after_write"
    #: The ledger knows the stage, and the group's progress has not moved.
    BEFORE_COMMIT = "before_commit"
    #: The progress has moved, and nobody sees the output.
    BEFORE_PUBLISH = "before_publish"


def crash(point: CrashPoint) -> None:
    """Ends the process if this is the point that the environment names."""
    if _chosen() is point:
        os.kill(os.getpid(), signal.SIGKILL)


def windows_class() -> type[OrderedWindows]:
    """The service; one that dies at its points where the environment names any."""
    return OrderedWindows if _chosen() is None else _MortalWindows


class _MortalWindows(OrderedWindows):
    def plan_many(
        self,
        windows: Sequence[Window],
        window_ids: Sequence[str | None] | None = None,
        policy: Policy = DEFAULT_POLICY,
    ) -> builtins.list[WindowPlan]:
        plans = super().plan_many(windows, window_ids, policy)
        crash(CrashPoint.AFTER_PLAN)
        return plans

    def commit_many(
        self, plans: Sequence[WindowPlan], staged: Sequence[Staged] | None = None
    ) -> builtins.list[WindowPlan]:
        if staged is not None and _chosen() is CrashPoint.BEFORE_COMMIT:
            # As a commit that is refused leaves it.
            self.write_down_many(plans, [one.to_json() for one in staged])
            crash(CrashPoint.BEFORE_COMMIT)
        return super().commit_many(plans, staged)

    def publish_many(
        self, plans: Sequence[WindowPlan], staged: Sequence[Staged]
    ) -> builtins.list[WindowPlan]:
        crash(CrashPoint.BEFORE_PUBLISH)
        return super().publish_many(plans, staged)


def _chosen() -> CrashPoint | None:
    text = os.environ.get(CRASH_AT)
    if not text:
        return None
    try:
        return CrashPoint(text)
    except ValueError:
        raise ConfigError(f"{CRASH_AT} is {text!r}: use one of {', '.join(CrashPoint)}") from None
