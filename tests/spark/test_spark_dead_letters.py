"""Records that Spark's tasks cannot decode: each becomes one dead letter, however often its task runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import Application, ConfigError, Copy, DecodeError
from kafka_ordered_ops.delivery.host import Host, Stop
from kafka_ordered_ops.delivery.open_windows import OpenWindows
from kafka_ordered_ops.spark import read_windows
from kafka_ordered_ops.spec.destination import Folder
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.windows import OrderedWindows as Service
from tests.support.both_worlds import broker as broker
from tests.support.dead_letters import BAD, die_at_commit, fill, ids, places, service, window
from tests.support.spark_support import ENGINES, java_home, spark
from tests.support.submit_support import COPY, application, small
from tests.support.windows_support import at
from tests.support.worlds import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]  # a fixture

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_leaves_out_the_same(
    broker: World, spark: SparkSession, tmp_path: Path, engine: Engine, ordered: bool
) -> None:
    """The good records are published, the bad ones are in the topic, and the result counts both."""
    fill(broker)
    windows, lake, job = service(broker), tmp_path / "lake", Copy(engine, ordered=ordered)
    result = windows.run(window(broker), lake, job=job, spark=spark, window_id="w")
    assert (result.records, result.dead_letters) == (4, 3)
    assert places(broker) == BAD
    assert sorted(ids(lake), key=str) == [1, 1, 6, None]
    again = windows.run(window(broker), lake, job=job, spark=spark, window_id="w")
    assert (again.ran, again.dead_letters, places(broker)) == (False, 3, BAD)


def test_a_function_reads_only_good_records(
    broker: World, spark: SparkSession, tmp_path: Path
) -> None:
    """Each read leaves out the same, with Spark and without; a job that reads nothing commits nothing."""
    fill(broker)
    windows, lake = service(broker), tmp_path / "lake"

    def counts(opened: Any) -> None:
        frame = opened.read()
        assert (frame.count(), opened.read(ordered=True).count()) == (4, 4)
        assert opened.to_arrow().num_rows == 4
        opened.write(frame.where("partition = 1"))

    with pytest.raises(ConfigError, match="not read to their end"):
        windows.run(window(broker), job=lambda _: None, spark=spark, window_id="w")
    assert places(broker) == []
    windows.run(window(broker), lake, job=counts, spark=spark, window_id="w")
    assert (ids(lake), places(broker)) == ([1], BAD)


def test_windows_of_one_pass_each_have_theirs(
    broker: World, spark: SparkSession, tmp_path: Path
) -> None:
    """As a step of Dagster reads them, together, and the limit is that of each window."""
    fill(broker)
    limited = f"dead_letter:{broker.named('bad')}:2"
    asked = [window(broker, before, on_bad=limited) for before in (2.5, 100)]
    with Service(broker.settings, broker.named("g")) as steps:
        plans = steps.plan_many(asked, ["early", "late"])
        host = Host(Stop("the test"), "", print)
        opened = OpenWindows(plans, steps.settings, Folder(tmp_path / "lake"), host)
        opened.spark = spark
        opened.write(opened.read())
        steps.commit_many(plans, opened.outputs(None))
    assert places(broker) == BAD
    assert sorted(ids(tmp_path / "lake"), key=str) == [1, 1, 6, None]


@pytest.mark.parametrize(("limit", "told"), [("2", "2"), ("0.1", "0.1 of [0-9]+ offsets")])
def test_too_many_stop_the_window(
    broker: World, spark: SparkSession, tmp_path: Path, limit: str, told: str
) -> None:
    """Before its job runs; the error names the first one, and the number or the share that is allowed."""
    fill(broker)
    windows = service(broker)
    limited = window(broker, on_bad=f"dead_letter:{broker.named('bad')}:{limit}")
    with pytest.raises(DecodeError, match=rf"max_bad is {told}.*\[0\] at offset 1"):
        windows.run(limited, tmp_path / "lake", spark=spark, window_id="w")
    assert (places(broker), ids(tmp_path / "lake")) == ([], [])


def test_a_read_that_reports_nothing_is_refused(broker: World, spark: SparkSession) -> None:
    """The caller of `read_windows` would not know which records are missing."""
    fill(broker)
    with Service(broker.settings, broker.named("g")) as steps:
        plan = steps.plan(window(broker), "w")
        with pytest.raises(ConfigError, match="cannot report which records"):
            read_windows(spark, [plan], broker.settings)


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.long)])
def test_a_driver_that_is_killed_at_the_commit_leaves_each_once(
    broker: World, spark: SparkSession, tmp_path: Path, when: str
) -> None:
    """Before it is committed, and after; the next run completes the window."""
    fill(broker)
    die_at_commit(broker, tmp_path / "lake", when, 2, {"java_home": java_home()})
    service(broker).run(window(broker), tmp_path / "lake", spark=spark, window_id="w")
    assert places(broker) == BAD
    assert sorted(ids(tmp_path / "lake"), key=str) == [1, 1, 6, None]


@pytest.mark.long
def test_executors_that_are_killed_leave_each_once(broker: World, tmp_path: Path) -> None:
    """One in the pass that finds the bad records, one in the job's own, with speculative tasks beside."""
    fill(broker)
    names = [broker.named(name) for name in ("g", "orders", "bad")]
    arguments = [broker.settings.bootstrap_servers, *names, at(100).isoformat(), str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.lost_executors_script", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env={**os.environ, "JAVA_HOME": java_home(), "PYSPARK_PYTHON": sys.executable},
    )
    assert run.returncode == 0, run.stderr
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == ["finds", "job"]
    assert places(broker) == BAD
    assert sorted(ids(tmp_path / "lake"), key=str) == [1, 1, 6, None]


@pytest.mark.long
def test_an_application_reports_them(broker: World, tmp_path: Path) -> None:
    """With the files that it has written."""
    fill(broker)
    windows, lake = service(broker), tmp_path / "lake"
    job = Application(application(tmp_path, COPY), submit=small())
    result = windows.run(window(broker), lake, job=job, window_id="w")
    assert (result.records, result.dead_letters, places(broker)) == (4, 3, BAD)
    assert sorted(ids(lake), key=str) == [1, 1, 6, None]
