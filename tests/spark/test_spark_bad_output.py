"""Records that Spark's tasks cannot decode, in a folder beside the output: each once, however often a task runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import Application, ConfigError, Copy, Policy
from kafka_ordered_ops.spec.engine import Engine
from tests.support.both_worlds import broker as broker
from tests.support.dead_letters import (
    BESIDE,
    bad_places,
    bad_rows,
    die_at_commit,
    fill,
    ids,
    service,
    window,
)
from tests.support.spark_support import ENGINES, java_home, spark
from tests.support.submit_support import COPY, application, small
from tests.support.worlds import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]  # a fixture

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_leaves_out_the_same(
    broker: World, spark: SparkSession, tmp_path: Path, engine: Engine
) -> None:
    """The bytes and reasons are those of an engine without Spark; a replay replaces them."""
    fill(broker)
    asked = window(broker, on_bad="dead_letter")
    windows, lake, job = service(broker), tmp_path / "lake", Copy(engine)
    result = windows.run(asked, lake, job=job, spark=spark, window_id="w")
    assert (result.records, result.dead_letters) == (4, 3)
    assert result.dead_letters_to == f"{lake}__bad/window_id=w"
    assert (sorted(ids(lake), key=str), bad_places(lake)) == ([1, 1, 6, None], BESIDE)
    with_spark = bad_rows(lake)
    windows.run(asked, lake, window_id="w", policy=Policy(on_covered="replay"))
    assert bad_rows(lake) == with_spark


def test_a_function_reads_only_good_records(
    broker: World, spark: SparkSession, tmp_path: Path
) -> None:
    """What it writes is its own; the bad records are all beside it. One without an output is refused."""
    fill(broker)
    windows, lake = service(broker), tmp_path / "lake"
    asked = window(broker, on_bad="dead_letter")

    def half(opened: Any) -> None:
        opened.write(opened.read().where("partition = 1"))

    with pytest.raises(ConfigError, match="there is no output"):
        windows.run(asked, job=half, spark=spark, window_id="w")
    windows.run(asked, lake, job=half, spark=spark, window_id="w")
    assert (ids(lake), bad_places(lake)) == ([1], BESIDE)


@pytest.mark.long
@pytest.mark.parametrize(("step", "fatal"), [("commit", 2), ("publish", 2)])
def test_a_driver_that_is_killed_leaves_each_once(
    broker: World, spark: SparkSession, tmp_path: Path, step: str, fatal: int
) -> None:
    """At the commit, and between both publications; the next run completes the window."""
    fill(broker)
    lake = tmp_path / "lake"
    session = {"java_home": java_home()}
    die_at_commit(broker, lake, "before", fatal, session, on_bad="dead_letter", step=step)
    assert bad_places(lake) == ([] if step == "commit" else BESIDE)
    asked = window(broker, on_bad="dead_letter")
    service(broker).run(asked, lake, spark=spark, window_id="w")
    assert (sorted(ids(lake), key=str), bad_places(lake)) == ([1, 1, 6, None], BESIDE)


@pytest.mark.long
def test_an_application_writes_them(broker: World, tmp_path: Path) -> None:
    """In its own process, with the files that it has written."""
    fill(broker)
    windows, lake = service(broker), tmp_path / "lake"
    job = Application(application(tmp_path, COPY), submit=small())
    result = windows.run(window(broker, on_bad="dead_letter"), lake, job=job, window_id="w")
    assert (result.records, result.dead_letters, bad_places(lake)) == (4, 3, BESIDE)
    assert sorted(ids(lake), key=str) == [1, 1, 6, None]
