"""The plan of a window without a group."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.group.decisions.claiming import ClaimWish, WindowWish, build_plans
from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.core.types import OnCovered
from kafka_ordered_ops.core.window.bounds import Committed, bounds_of
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.core.window.window import Window, check_cutoff
from kafka_ordered_ops.kafka.facts.window_facts import ScanProgress, SnapshotReader
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings

_WINDOW_ID: Final = "read"


def unclaimed(
    settings: ClientSettings,
    window: Window,
    name: str,
    *,
    now_ms: int,
    progress: ScanProgress | None = None,
) -> WindowPlan:
    """Return exactly the offsets of a window, without any group's progress. No right on a group or ledger is needed.

    Args:
        settings: how to reach the cluster.
        window: the window to plan.
        name: the client's group id for quotas and logs; no group is joined.
        now_ms: the current time, in ms.
        progress: called with (offsets done, all offsets) during a scan.

    Raises:
        ConfigError: the window starts at committed offsets.
        CutoffInFutureError: records before the cutoff may still be written.
        UnknownTopicError: a topic does not exist.
        RecordsLostError: retention removed records of the window.
        PlanTooLargeError: the plan has too many ranges.
        ReadError, BrokerError: the logs cannot be read.
    """
    if Committed() in bounds_of(window.starting_offsets):
        raise ConfigError(
            "starting_offsets is 'committed', and there is no group with committed offsets: choose others"
        )
    check_cutoff(window, now_ms)
    view = GroupView(name)
    with open_lookup(settings) as lookup:
        topics = lookup.selected(window.topics, window.exclude)
        reader = SnapshotReader(
            lookup, settings, name, stall_timeout_s=STALL_TIMEOUT_S, progress=progress
        )
        snapshot = reader.read(view, [window], topics, {}, now_ms=now_ms)
    wish = ClaimWish(
        windows=[WindowWish(_WINDOW_ID, "", window)],
        drafts=snapshot.drafts,
        newcomers=snapshot.newcomers,
        patterns=snapshot.patterns,
        now_ms=now_ms,
        policy=Policy(OnCovered.SKIP),
        notes=snapshot.notes,
    )
    plans = build_plans(view, wish)
    if plans is None:
        raise AssertionError("a draft suffices for the view that it was made from")
    return replace(plans[0], attempt=0)
