"""An output in an object store from every host: killed at work, run again, and cleared, without anything more to say."""

from __future__ import annotations

import json

import pytest

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.airflow import OrderedWindowOperator
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.dagster import build_ordered_window_asset
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.published import published
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.airflow_context import context_of
from tests.support.hosts_support import GROUP, executed
from tests.support.hosts_support import kafka as kafka
from tests.support.objects_support import (
    hooked_stores,
    killed_at,
    named_rows,
    staged_names,
)
from tests.support.objects_support import server as server
from tests.support.windows_support import at

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _environment(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The credentials are where hosts have them: in the environment."""
    for name, value in server.items():
        monkeypatch.setenv(name.upper(), value)
    hooked_stores(monkeypatch)


def check(root: str, *, window_id: str | None = None) -> None:
    """Each record once, for readers of manifests, and nothing left."""
    assert sorted(named_rows(root)) == sorted([*range(5)] * 2)
    assert staged_names(root) == []
    if window_id is not None:
        assert list(published(root)) == [window_id]


@pytest.mark.parametrize("step", [6, 9, 11])
def test_the_command_line_delivers_after_a_kill(
    kafka: InMemoryKafka, capfd: pytest.CaptureFixture[str], step: int
) -> None:
    """In the middle of writing, and of publishing; the last run says where the window is."""
    root = f"s3://bucket/cli/{step}"
    words = ["-b", kafka.bootstrap, "-g", GROUP, "-t", "t", "--cutoff", at(60).isoformat()]
    command = ["run", *words, "--starting-offsets", "earliest", "--engine", "local", "--json"]
    with killed_at(step) as kills:
        main([*command, "--output", root])
    assert kills
    capfd.readouterr()
    assert main([*command, "--output", root]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["records"], told["status"]) == (10, "published")
    check(root)


@pytest.mark.parametrize("step", [6, 9, 11])
def test_airflow_delivers_after_a_kill_and_replays_when_cleared(
    kafka: InMemoryKafka, step: int
) -> None:
    """A cleared task writes the window again, and readers see the new files only."""
    root = f"s3://bucket/airflow/{step}"
    task = OrderedWindowOperator(
        task_id="task",
        window=Window("t", starting_offsets="earliest"),
        group_id=GROUP,
        mode="catch_up",
        window_id="w",
        output=root,
    )
    with killed_at(step) as kills:
        task.execute(context_of(60))
    assert kills
    assert task.execute(context_of(60, try_number=2))["status"] == "published"
    check(root, window_id="w")
    before = files(root)
    task.execute(context_of(60, try_number=3))
    check(root, window_id="w")
    assert not set(before) & set(files(root))


def test_dagster_delivers(kafka: InMemoryKafka) -> None:
    """The asset's files are where they were asked for."""
    root = "s3://bucket/dagster"

    orders = build_ordered_window_asset(
        key="orders",
        window=Window(["t"], starting_offsets="earliest"),
        group_id=GROUP,
        output=root,
        on_not_live="ignore",
    )
    result = executed(orders, kafka)
    assert result.success
    with OrderedWindows(kafka.settings, GROUP) as windows:
        [record] = windows.list()
    assert list(published(root)) == [record.plan.window_id]
