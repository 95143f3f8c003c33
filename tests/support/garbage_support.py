"""A window of some hundred records, and a job that writes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from kafka_ordered_ops import Earliest, StagedOutput, Window, WindowPlan, stage_window
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows

RECORDS = 300


@pytest.fixture
def windows() -> Iterator[OrderedWindows]:
    """A group on a topic with some hundred records of a kilobyte that cannot be compressed."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", 1)
        for n in range(RECORDS):
            kafka.produce("orders", value=os.urandom(1000), timestamp_ms=1000 * n)
        with OrderedWindows(kafka.settings, "g") as service:
            yield service


@pytest.fixture
def plan(windows: OrderedWindows) -> WindowPlan:
    """A window of all of them."""
    cutoff = datetime.fromtimestamp(RECORDS, UTC)
    return windows.plan(Window(["orders"], cutoff, starting_offsets=Earliest()), "w")


def staged(windows: OrderedWindows, plan: WindowPlan, root: Any) -> StagedOutput:
    """What a job of it has written, in files of some ten kilobytes."""
    return stage_window(plan, windows.settings, root, rows_per_file=30)
