"""Measurements, as an SDK of OpenTelemetry exports them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import opentelemetry.metrics
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from kafka_ordered_ops import Window
from kafka_ordered_ops.processing import Processor, metrics
from tests.support.processing_groups import Worker, wait_until
from tests.support.windows_support import at
from tests.support.worlds import World

PREFIX = "kafka_ordered_ops.processing."
RECORDS = 40
#: (Name, outcome or topic and partition if it is of one) to value or count.
Points = dict[tuple[str, ...], float]


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """What an exporter would get."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(opentelemetry.metrics, "get_meter", provider.get_meter)
    metrics._instruments.cache_clear()
    yield reader
    metrics._instruments.cache_clear()
    provider.shutdown()


def points_of(reader: InMemoryMetricReader, world: World, group_id: str = "live") -> Points:
    """Exports now; every point is of the group."""
    found: Points = {}
    data: Any = reader.get_metrics_data()
    for scope in data.resource_metrics[0].scope_metrics if data else ():
        assert scope.scope.name == PREFIX.rstrip(".")
        for metric in scope.metrics:
            for point in metric.data.data_points:
                attributes = dict(point.attributes)
                assert attributes.pop("messaging.system") == "kafka"
                group = attributes.pop("messaging.consumer.group.name")
                assert group == world.named(group_id)
                value = point.count if hasattr(point, "count") else point.value
                found[metric.name.removeprefix(PREFIX), *map(str, attributes.values())] = value
    return found


def test_a_group_is_measured_while_it_runs(world: World, exported: InMemoryMetricReader) -> None:
    """Gauges show a record in flight and what waits; they are gone when it ends, and counters stay."""
    world.create("orders")
    world.write("orders", 0, *range(10))
    topic = world.named("orders")
    with Worker(world, holds=lambda one: one.offset == 4) as worker:
        worker.until(lambda: len(worker.done) == 9)
        expected = {
            ("in_flight",): 1,
            ("held",): 1,
            ("lag", topic, "0"): 1,
            ("incomplete_ranges", topic, "0"): 1,
            ("records", "succeeded"): 9,
        }
        wait_until(
            lambda: expected.items() <= points_of(exported, world).items(),
            lambda: points_of(exported, world),
        )
        worker.release()
    points = points_of(exported, world)
    assert points.pop(("records", "succeeded")) == 10
    assert points.pop(("function.duration", topic)) == 10
    assert points.pop(("commit.duration",)) >= 1
    assert not points


def test_outcomes_are_counted(world: World, exported: InMemoryMetricReader) -> None:
    """Records that fail for good, and attempts that are repeated."""
    world.create("orders")
    world.write("orders", 0, *range(RECORDS))
    window = Window(world.named("orders"), cutoff=at(RECORDS), starting_offsets="earliest")
    plan = world.windows().plan(window)

    def function(record: Any) -> None:
        if record.offset == 1 or (record.offset == 2 and record.attempt == 1):
            raise ValueError("no")

    processor = Processor(world.settings, retries=2, backoff=lambda *_: 0.0, when_exhausted="skip")
    for runs in (1, 2):
        assert len(list(processor.run(plan, function))) == RECORDS
        points = points_of(exported, world, "g")
        outcomes = {name[1]: value for name, value in points.items() if name[0] == "records"}
        assert outcomes == {
            "succeeded": runs * (RECORDS - 1),
            "failed": runs,
            "retried": runs * 3,
        }


def test_runs_of_one_group_are_added_up(world: World, exported: InMemoryMetricReader) -> None:
    """Two members in one process are one group."""
    world.create("orders", partitions=2)
    for number in range(2):
        world.write("orders", number, 1)
    hold = threading.Event()
    window = Window(world.named("orders"), cutoff=at(RECORDS), starting_offsets="earliest")
    plan = world.windows().plan(window)
    processor = Processor(world.settings)
    runs = [processor.run(plan, lambda _: hold.wait(60)) for _ in range(2)]
    threads = [threading.Thread(target=list, args=(one,)) for one in runs]
    for thread in threads:
        thread.start()
    wait_until(
        lambda: points_of(exported, world, "g").get(("in_flight",)) == 4,
        lambda: (points_of(exported, world, "g"), processor.counts),
    )
    hold.set()
    for thread in threads:
        thread.join()
    assert ("in_flight",) not in points_of(exported, world, "g")


def test_nothing_is_measured_without_the_package() -> None:
    """It is an extra."""
    script = """
import sys
sys.modules["opentelemetry"] = None
from kafka_ordered_ops.processing import metrics
assert metrics._instruments() is None
one = metrics.RunMetrics("g", None)
one.begin(), one.count(), one.turn(None, 0.1), one.committed(0.1, None), one.end()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
