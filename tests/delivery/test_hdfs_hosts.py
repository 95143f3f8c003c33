"""Outputs in a real HDFS from every host: command line, Airflow, Dagster, and an application by spark-submit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops import Application, Earliest, Folder, OrderedWindows, Window, stage_window
from kafka_ordered_ops.airflow import (
    AbandonWindowOperator,
    CommitWindowOperator,
    OrderedWindowOperator,
    PlanWindowOperator,
    WindowPartOperator,
)
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.dagster import build_ordered_window_asset
from kafka_ordered_ops.delivery.lineage import place_of
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.airflow_context import context_of
from tests.support.hdfs_support import hdfs, staged_names
from tests.support.hosts_support import GROUP, executed
from tests.support.hosts_support import kafka as kafka
from tests.support.objects_support import named_rows
from tests.support.submit_support import COPY, application, small
from tests.support.windows_support import BASE_MS, at, before

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running HDFS."""
    with hdfs(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


def test_the_command_line_writes_and_cleans(
    address: str, kafka: InMemoryKafka, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the whole address, and by that of the default file system, which an option names."""
    root = f"{address}/cli/orders"
    where = ["-b", kafka.bootstrap, "-g", GROUP]
    question = ["-t", "t", "--cutoff", at(60).isoformat(), "--starting-offsets", "earliest"]
    words = ["run", *where, *question, "--engine", "local", "--window-id", "w", "--json"]
    for _ in range(2):
        assert main([*words, "--output", root]) == 0
        told = json.loads(capfd.readouterr().out)
        assert told["output"].startswith(f"{root}/window_id=")
    assert len(named_rows(root)) == 10

    kafka.produce("t", value=b"x", timestamp_ms=BASE_MS + 61_000)
    with OrderedWindows(kafka.settings, GROUP) as windows:
        plan = windows.plan(before("t", 120), "left")
        stage_window(plan, kafka.settings, root)
        assert staged_names(root)
        windows.abandon("left")
    option = ["--storage-option", f"fs.defaultFS={address}"]
    assert main(["clean", "hdfs:///cli/orders", "--older-than", "PT0S", *where, *option]) == 0
    assert staged_names(root) == []


def test_airflow_s_tasks_write_commit_and_abandon(address: str, kafka: InMemoryKafka) -> None:
    """One task alone, again after it was cleared, and the tasks of a split window."""
    given: dict[str, Any] = {
        "window": Window("t", starting_offsets="earliest"),
        "group_id": GROUP,
        "mode": "catch_up",
    }
    root = f"{address}/airflow/orders"
    for number in (1, 2):
        task = OrderedWindowOperator(task_id="task", window_id="w", output=root, **given)
        facts = task.execute(context_of(30, try_number=number))
        assert (facts["status"], facts["ran"]) == ("published", True)
        namespace, path = place_of(facts["output"]) or ("", "")
        assert (namespace, path.partition("=")[0]) == (address, "/airflow/orders/window_id")

    more = given | {"window": Window("t")}
    kafka.produce("t", value=b"x", timestamp_ms=BASE_MS + 31_000)
    plan = PlanWindowOperator(task_id="plan", window_id="parts", parts=2, **more)
    told: Any = plan.execute(context_of(60))
    for number, one in enumerate(told):
        part = WindowPartOperator(task_id=f"part{number}", window=one, output=root)
        part.execute(context_of(60))
    commit = CommitWindowOperator(task_id="commit", window=told, output=root)
    assert commit.execute(context_of(60))["records"] == 1
    assert len(named_rows(root)) == 11

    kafka.produce("t", value=b"x", timestamp_ms=BASE_MS + 61_000)
    left = PlanWindowOperator(task_id="left", window_id="left", **more).execute(context_of(120))
    with OrderedWindows(kafka.settings, GROUP) as windows:
        stage_window(windows.show("left").plan, kafka.settings, root)
    assert staged_names(root)
    AbandonWindowOperator(task_id="stop", window=left, output=root).execute(context_of())
    assert staged_names(root) == []


def test_dagster_s_asset_writes(
    address: str, kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the default file system, which a variable of the step names."""
    monkeypatch.setenv("LAKE", address)
    orders = build_ordered_window_asset(
        key="orders",
        window=Window(["t"], starting_offsets="earliest"),
        group_id=GROUP,
        output=Folder(
            "hdfs:///dagster/orders", storage_options={"fs.defaultFS": dg.EnvVar("LAKE")}
        ),
        on_not_live="ignore",
    )
    result = executed(orders, kafka)
    assert result.success
    [event] = result.asset_materializations_for_node("orders")
    assert "dagster/column_schema" in event.metadata
    root = f"{address}/dagster/orders"
    assert len(named_rows(root)) == 10
    assert staged_names(root) == []


@pytest.mark.spark
def test_a_submitted_application_writes(
    address: str, bootstrap: str, group_id: str, orders: str, tmp_path: Path
) -> None:
    """By Spark's own client of HDFS; the files of its run are on this machine."""
    root = f"{address}/submitted/orders"
    job = application(tmp_path, COPY)
    window = before(orders, 25, Earliest())
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
        for ran in (True, False):
            done = windows.run(window, root, job=Application(job, submit=small()), window_id="w")
            assert (done.records, done.ran) == (5, ran)
    assert sorted(named_rows(root)) == [0, 1, 2, 3, 5]
    assert staged_names(root) == []
