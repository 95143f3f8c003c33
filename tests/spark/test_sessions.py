"""The Spark that runs in this process: in other threads, in second sessions, and after its Java has ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import Earliest
from kafka_ordered_ops.spark import read_window, write_window
from kafka_ordered_ops.spark.environment import has_session, running_session
from kafka_ordered_ops.spark.job_session import job_session
from kafka_ordered_ops.spark.session import local_session
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.spark_support import plan_of, spark
from tests.support.submit_support import script_environment
from tests.support.windows_support import before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]  # fixtures

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

T = TypeVar("T")


def _in_thread(call: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_a_session_of_another_thread_is_used_and_left_alone(spark: SparkSession) -> None:
    """A host's task in a thread gets it, ends none of it, and sets nothing but what it was asked to."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert _in_thread(has_session)
        assert _in_thread(running_session) is spark

        def task() -> bool:
            conf = {"spark.sql.shuffle.partitions": "7"}
            with job_session("task", conf, lambda: False) as found:
                return found.range(3).count() == 3 and found is spark

        assert _in_thread(task)
        assert _in_thread(lambda: local_session("other", cores=1)) is spark
        assert spark.range(3).count() == 3
        assert spark.conf.get("spark.sql.session.timeZone") == "America/New_York"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.unset("spark.sql.shuffle.partitions")


@pytest.mark.long
def test_times_are_read_as_they_are_in_any_session(
    spark: SparkSession, windows: OrderedWindows, orders: str
) -> None:
    """In a second session of the same Spark, and where TIMESTAMP in a statement means one without a zone."""
    plan = windows.plan(before(orders, 100, Earliest()), "w")
    other = spark.newSession()
    other.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    other.conf.set("spark.sql.session.timeZone", "America/New_York")
    other.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    found = []
    for session in (spark, other, spark):
        for engine in ("python", "local"):
            df = read_window(session, plan, windows.settings, engine=engine)
            assert dict(df.dtypes)["timestamp"] == "timestamp"
            found.append(sorted(df.selectExpr("offset", "unix_millis(timestamp)").collect()))
    assert len(found[0]) == 6
    assert all(one == found[0] for one in found)


def test_files_hold_what_the_job_made(spark: SparkSession, tmp_path: Path) -> None:
    """No setting of the session moves an old date, or writes a time without its zone; and all stay as they were."""
    odd = spark.newSession()
    conf = {
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
    }
    for key, value in conf.items():
        odd.conf.set(key, value)
    df = odd.sql("SELECT DATE'1500-01-01' AS day, timestamp_millis(1) AS time")
    output = write_window(df, tmp_path / "out", plan_of([]))
    assert output.facts["records"] == 1
    [file] = Path(output.stage_path).glob("part-*.parquet")
    table = pq.read_table(file)
    assert table.to_pylist() == [
        {"day": date(1500, 1, 1), "time": datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)}
    ]
    assert str(table.schema.field("time").type) == "timestamp[us, tz=UTC]"
    assert {key: odd.conf.get(key) for key in conf} == conf


def test_a_session_that_was_built_again_with_core_settings_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As a notebook cell does that is run twice: the builder gives them to the session, whose `conf.set` refuses them."""
    conf = {"spark.driver.memory": "512m", "spark.executor.cores": "1"}
    try:
        with job_session("task", conf, lambda: False) as found:
            assert found is spark
            assert {key: spark.conf.get(key) for key in conf} == conf
            output = write_window(found.range(3).toDF("n"), tmp_path / "out", plan_of([]))
            assert output.facts["records"] == 3
    finally:
        java: Any = spark
        for key in conf:
            java._jsparkSession.sessionState().conf().unsetConf(key)
    output = write_window(spark.range(2).toDF("n"), tmp_path / "next", plan_of([]))
    assert output.facts["records"] == 2


_DEAD = """
import os, signal, sys
from pyspark import SparkContext
from kafka_ordered_ops import OrderedWindows
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.spark.session import local_session
from tests.support.spark_support import _java_home
from tests.support.table_sides import T0_MS, TOPIC, hour

spark = local_session("dead", cores=1, memory="512m", java_home=_java_home())
process = SparkContext._gateway.proc

def job(window):
    df = spark.range(1)
    os.kill(process.pid, signal.SIGKILL)
    window.write(df)

with InMemoryKafka() as kafka:
    kafka.create_topic(TOPIC, 1)
    kafka.produce(TOPIC, value=b"x", partition=0, timestamp_ms=T0_MS)
    with OrderedWindows(kafka.settings, "group") as windows:
        for _ in range(2):
            try:
                windows.run(hour(), sys.argv[1], job=job, window_id="w", spark=spark)
            except Exception as error:
                print(type(error).__name__, error.retriable, "signal 9" in str(error))
"""


def test_a_dead_java_is_named(tmp_path: Path) -> None:
    """Another process may try again; in this one, each attempt is refused at once."""
    done = subprocess.run(
        [sys.executable, "-c", _DEAD, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=tmp_path,
        env=script_environment(),
    )
    assert done.stdout.splitlines() == ["JobFailedError True True", "ConfigError False True"], (
        done.stderr
    )
