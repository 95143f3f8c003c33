"""Metrics of windows, reported through the OpenTelemetry API. Without it, nothing is measured.

Only calls of this process are measured. What a group holds at any time is in the ledger: `kafka-ordered-ops watch` reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.core.window.plan import WindowPlan

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

_SCOPE: Final = "kafka_ordered_ops.windows"
#: A change of the ledger takes tenths of a second, a plan with a long scan minutes.
_DURATION_BUCKETS_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
#: The calls that change a window.
_STEPS: Final = frozenset({"plan", "mark_written", "commit", "publish", "abandon"})
#: The counts of a window's output, and the kinds of records that they are.
_KINDS: Final = {
    "records": "delivered",
    "late": "late",
    "out_of_order": "out_of_order",
    "dead_letters": "dead_letter",
}


class WindowMetrics:
    """The metrics of one group's calls. Safe for threads.

    Args:
        group_id: the group of the windows.
    """

    def __init__(self, group_id: str) -> None:
        self._attributes = {
            "messaging.system": "kafka",
            "messaging.consumer.group.name": group_id,
        }

    def called(
        self,
        step: str,
        about: Sequence[object],
        returned: object,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Record a call: its duration, the windows that it changed, and their records.

        Args:
            step: the name of the called method; others than those that change windows are ignored.
            about: its arguments.
            returned: what it returned.
            seconds: how long it took.
            error: what it raised.
        """
        if step not in _STEPS or (instruments := _instruments()) is None:
            return
        attributes = {**self._attributes, "messaging.operation.name": step}
        if error is not None:
            attributes["error.type"] = type(error).__name__
        instruments.duration.record(seconds, attributes)
        if error is not None:
            return
        for status, plan in _changed(step, about, returned):
            instruments.windows.add(1, {**self._attributes, "status": status})
            if status == WindowStatus.PLANNED and (lost := sum(part.lost.count for part in plan)):
                instruments.records.add(lost, {**self._attributes, "kind": "lost"})
        for kind, count in _records(step, about):
            instruments.records.add(count, {**self._attributes, "kind": kind})


def _changed(
    step: str, about: Sequence[object], returned: object
) -> Iterable[tuple[str, WindowPlan]]:
    """Yield the windows that a call changed, with what they are now."""
    if step == "abandon":
        yield "abandoned", returned.plan  # type: ignore[attr-defined]
        return
    plans: Sequence[WindowPlan] = returned  # type: ignore[assignment]
    if step == "plan":
        for plan in plans:
            if not plan.status.is_done:
                yield ("resumed" if plan.attempt > 1 else plan.status.value), plan
        return
    before: Sequence[WindowPlan] = about[0]  # type: ignore[assignment]
    for old, new in zip(before, plans, strict=True):
        # A commit with an output returns what its publication, a call of its own, has made of the window.
        if step == "commit" and not old.status.is_done:
            yield WindowStatus.COMMITTED.value, new
        elif step != "commit" and old.status is not new.status:
            yield new.status.value, new


def _records(step: str, about: Sequence[object]) -> Iterable[tuple[str, int]]:
    """Yield the counts of outputs that a call published for the first time."""
    if step != "publish":
        return
    plans: Sequence[WindowPlan] = about[0]  # type: ignore[assignment]
    outputs: Sequence[Any] = about[1]  # type: ignore[assignment]
    for plan, staged in zip(plans, outputs, strict=True):
        facts = staged.to_json().get("facts")
        if plan.status is WindowStatus.PUBLISHED or not isinstance(facts, Mapping):
            continue
        for name, kind in _KINDS.items():
            if type(count := facts.get(name)) is int and count:
                yield kind, count


class _Instruments:
    """The instruments of this process."""

    def __init__(self, meter: Meter) -> None:
        self.duration = meter.create_histogram(
            "kafka_ordered_ops.windows.operation.duration",
            unit="s",
            description="How long a call that changes windows takes.",
            explicit_bucket_boundaries_advisory=_DURATION_BUCKETS_S,
        )
        self.windows = meter.create_counter(
            "kafka_ordered_ops.windows.windows",
            unit="{window}",
            description="Windows planned, resumed, written, committed, published or abandoned.",
        )
        self.records = meter.create_counter(
            "kafka_ordered_ops.windows.records",
            unit="{record}",
            description="Records of published windows; offsets lost to retention before delivery.",
        )


@cache
def _instruments() -> _Instruments | None:
    try:
        from opentelemetry.metrics import get_meter
    except ImportError:
        return None
    return _Instruments(get_meter(_SCOPE, version("kafka-ordered-ops")))
