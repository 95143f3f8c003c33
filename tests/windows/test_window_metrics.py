"""Measurements of windows, as an SDK of OpenTelemetry exports them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import opentelemetry.metrics
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from kafka_ordered_ops import Earliest, Window, WindowSupersededError
from kafka_ordered_ops.delivery.ordered_windows import OrderedWindows
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import metrics
from tests.support.windows_support import BASE_MS, at

PREFIX = "kafka_ordered_ops.windows."


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


def points_of(reader: InMemoryMetricReader) -> dict[tuple[str, ...], float]:
    """The values, and counts of durations, by name and further attributes."""
    found = {}
    data: Any = reader.get_metrics_data()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            attributes = dict(point.attributes)
            assert attributes.pop("messaging.system") == "kafka"
            assert attributes.pop("messaging.consumer.group.name") == "g"
            value = point.count if hasattr(point, "count") else point.value
            found[metric.name.removeprefix(PREFIX), *map(str, attributes.values())] = value
    return found


@pytest.mark.slow
def test_windows_and_their_records_are_counted_once(
    exported: InMemoryMetricReader, tmp_path: Path
) -> None:
    """A published window, one that is taken up and abandoned, a late record, and an attempt that came too late."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for second in (0, 10, 20, 5, 30):
            kafka.produce("orders", timestamp_ms=BASE_MS + second * 1000)
        with OrderedWindows(kafka.settings, "g") as windows:
            first = Window("orders", at(15), starting_offsets=Earliest())
            for _ in range(2):
                windows.run(first, tmp_path)
            kafka.produce("orders", timestamp_ms=BASE_MS + 1_000)
            windows.run(Window("orders", at(25)), tmp_path)
            old = windows.plan(Window("orders", at(40)), "w")
            windows.plan(Window("orders", at(40)), "w")
            with pytest.raises(WindowSupersededError):
                windows.commit(old)
            windows.abandon("w")
    points = points_of(exported)
    durations = {key[1:]: value for key, value in points.items() if key[0] == "operation.duration"}
    counts = {key[1:]: value for key, value in points.items() if key[0] != "operation.duration"}
    assert counts == {
        ("planned",): 3,
        ("resumed",): 1,
        ("committed",): 2,
        ("published",): 2,
        ("abandoned",): 1,
        ("delivered",): 5,
        ("late",): 1,
        ("out_of_order",): 2,
    }
    assert durations.pop(("commit", "WindowSupersededError")) == 1
    assert durations == {("plan",): 5, ("commit",): 2, ("publish",): 2, ("abandon",): 1}
