"""The records of a window that no group takes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.group.decisions.claiming import ClaimWish, WindowWish, build_plans
from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.core.types import OnCovered
from kafka_ordered_ops.core.window.bounds import Committed
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.facts.window_facts import ScanProgress, SnapshotReader
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.windows.checks import check_cutoff

_WINDOW_ID: Final = "read"


def unclaimed(
    settings: ClientSettings,
    window: Window,
    name: str,
    *,
    progress: ScanProgress | None = None,
) -> WindowPlan:
    """Return exactly the offsets of a window, whatever groups have taken: no right on a group or a ledger is needed.

    Args:
        settings: how to reach the cluster.
        window: which records.
        name: what the client is called by, instead of a group.
        progress: called with (offsets done, offsets in all) during a scan.

    Raises:
        ConfigError: it starts at committed offsets.
        CutoffInFutureError: records before the cutoff may still be written.
        UnknownTopicError: a topic does not exist.
        RecordsLostError: retention took records of the window.
        PlanTooLargeError: too many ranges.
        ReadError, BrokerError: the logs cannot be read.
    """
    if window.starting_offsets == Committed():
        raise ConfigError(
            "starting_offsets is 'committed', and there is no group whose commits could be meant: choose others"
        )
    now_ms = int(time.time() * 1_000)
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
        on_covered=OnCovered.SKIP,
        notes=snapshot.notes,
    )
    plans = build_plans(view, wish)
    if plans is None:
        raise AssertionError("a draft suffices for the view that it was made from")
    return replace(plans[0], attempt=0)
