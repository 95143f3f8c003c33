"""The page of a Spark job: known to the host while the job runs, and shown by its own means."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops import Function, Window
from kafka_ordered_ops.airflow import (
    OrderedWindowOperator,
    PlanWindowOperator,
    WindowPartOperator,
)
from kafka_ordered_ops.airflow.support.links import SparkJobLink
from kafka_ordered_ops.dagster import AssetWindows, ordered_window_asset
from kafka_ordered_ops.spark import job_checks, job_session
from kafka_ordered_ops.spark.applications.result import JobProgress
from kafka_ordered_ops.spark.job_page import job_page
from kafka_ordered_ops.spark.read import read as read_room
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.airflow_context import context_of
from tests.support.hosts_support import GROUP, executed, task_of
from tests.support.hosts_support import kafka as kafka

HISTORY = {"spark.yarn.historyServer.address": "history.example.org:18080"}
PROXY = {"spark.ui.reverseProxyUrl": "https://spark.example.org/"}
PAGE = "http://history.example.org:18080/history/app-1/"


def session(conf: dict[str, str], web: str | None = None) -> Any:
    """As much of a session as has a page."""
    context = SimpleNamespace(getConf=lambda: conf, applicationId="app-1", uiWebUrl=web)
    return SimpleNamespace(sparkContext=context)


@pytest.mark.parametrize(
    ("spark", "page"),
    [
        (session({**HISTORY, **PROXY}, "http://driver:4040"), PAGE),
        (
            session({"spark.yarn.historyServer.address": "https://h/"}),
            "https://h/history/app-1/",
        ),
        (
            session(
                {"spark.yarn.historyServer.address": "${hadoopconf-x}:1"}, "http://driver:4040"
            ),
            "http://driver:4040",
        ),
        (session(PROXY, "http://driver:4040"), "https://spark.example.org/proxy/app-1/"),
        (session({}, "http://driver:4040"), "http://driver:4040"),
        (session({}), None),
        (SimpleNamespace(), None),
    ],
)
def test_the_page_that_lasts_comes_first(spark: Any, page: str | None) -> None:
    """The history server's, the master's, the driver's own; of Spark Connect there is none."""
    assert job_page(spark) == page


def test_airflow_has_a_link_while_the_job_runs(
    kafka: InMemoryKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the XCom that its web page reads, and at the end of the attempt; also of a part, and of a failed attempt."""
    monkeypatch.setattr(job_session, "job_session", lambda *_: nullcontext(session(HISTORY)))
    monkeypatch.setattr(job_checks, "check_session", lambda *_, **__: None)
    link, seen = SparkJobLink(), []

    def fails(window: Any) -> None:
        seen.append(dict(context["ti"].pushed))
        raise OSError("the disk is full")

    task = OrderedWindowOperator(**task_of(tmp_path), job=Function(fails, engine="python"))
    assert [one.name for one in task.operator_extra_links] == ["Window", "Spark job"]
    assert link.get_link(task, ti_key=None) == ""
    context = context_of(60)
    with pytest.raises(OSError, match="disk is full"):
        task.execute(context)
    assert seen == [{link.xcom_key: PAGE}]
    assert link.get_link(task, ti_key=None) == PAGE

    given = {**task_of(tmp_path), "group_id": "parts", "window_id": "p"}
    del given["output"]
    planned: Any = PlanWindowOperator(**given, parts=2).execute(context_of(60))
    part = WindowPartOperator(
        task_id="part", window=planned[0], job=Function(fails, engine="python")
    )
    context = context_of(60)
    with pytest.raises(OSError, match="disk is full"):
        part.execute(context)
    assert seen[1:] == [{link.xcom_key: PAGE}]


@pytest.mark.slow
def test_dagster_has_it_among_the_metadata(
    kafka: InMemoryKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a session that reads, and of an application that was submitted."""
    monkeypatch.setattr(read_room, "read_good", lambda *_, **__: (None, None))

    @ordered_window_asset(
        key="a",
        window=Window("t", starting_offsets="earliest"),
        group_id=GROUP,
        on_not_live="ignore",
    )
    def reads(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        windows.read(session(HISTORY))

    @ordered_window_asset(
        key="b",
        window=Window("t", starting_offsets="earliest"),
        group_id="other",
        on_not_live="ignore",
    )
    def submits(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        show = windows._job_progress("job.py")
        assert show is not None
        # As the submitter calls it: first without a page, and then again and again.
        for page in (None, PAGE, PAGE):
            show(JobProgress(1, 2, 3, page))

    for asset in (reads, submits):
        result = executed(asset, kafka)
        assert result.success
        [event] = result.get_asset_materialization_events()
        found = event.materialization.metadata["kafka_ordered_ops/spark_job"]
        assert found == dg.MetadataValue.url(PAGE)


def test_progress_carries_the_page(tmp_path: Path) -> None:
    """From the driver to its submitter."""
    for progress in (JobProgress(1, 2, 3, PAGE), JobProgress()):
        progress.write(tmp_path)
        assert JobProgress.read(tmp_path) == progress
