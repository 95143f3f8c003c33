"""Tables that have forgotten their commits: what readers see stays, nothing comes twice, and errors name a cure."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import FewerRecordsError, OrderedWindows, OutputOwnedError, SinkError
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.spark.write.table_output import TableOutput
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.spark_support import Crash, spark
from tests.support.table_sides import (
    FORMATS,
    GROUP,
    MODES,
    ROW,
    Dying,
    Side,
    eu,
    hour,
    rows_in,
    shown,
    us,
)
from tests.support.tables_support import CATALOG, Lake, lake_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["eu", "lake_spark", "spark", "us"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(600)]

#: What orders the records of a key, so that the newest one wins whatever comes when.
_ORDERED = f"{ROW}, timestamp timestamp, topic string, partition int"

OPEN_MODES = pytest.mark.parametrize("mode", ["append", "replace"])


def lake_of(spark: SparkSession, format_: str, folder: Path, mode: str, rows: str = ROW) -> Lake:
    """A fresh table whose history can be cut at once."""
    properties = "'delta.checkpointInterval' = '1'" if format_ == "delta" else ""
    columns = f"{rows}, window_id string"
    return Lake.make(spark, format_, folder, mode=mode, columns=columns, properties=properties)


def forget_commits(lake: Lake) -> None:
    """Leave the newest commit alone, which is another program's."""
    names = [one for one in lake.spark.table(lake.table).columns if one != "window_id"]
    nulls = ", ".join(["NULL"] * len(names))
    lake.spark.sql(
        f"INSERT INTO {lake.table} ({', '.join(names)}, window_id) VALUES ({nulls}, 'x')"
    )
    lake.spark.sql(f"DELETE FROM {lake.table} WHERE window_id = 'x'")
    if lake.format == "delta":
        log = Path(lake.table.split("`")[1]) / "_delta_log"
        newest = sorted(log.glob("*.json"))[-1]
        assert list(log.glob(f"{newest.stem}.checkpoint*.parquet"))
        for one in log.iterdir():
            if one.is_file() and not one.name.removeprefix(".").startswith(
                (newest.stem, "_last_checkpoint")
            ):
                one.unlink()
        return
    name = lake.table.removeprefix(f"{CATALOG}.")
    lake.spark.sql(
        f"CALL {CATALOG}.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)"
    ).collect()
    lake.spark.sql(f"REFRESH TABLE {lake.table}")


def die_before_the_ledger_hears_it(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table shows the window, its rows are staged as well, and the ledger has it as committed."""

    def killed(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(type(side.lake.sink_for(**_words(side)).format.stage), "clear", killed)
        with pytest.raises(Exception) as died:  # noqa: PT011 - the crash, or an error that it causes
            side.run()
    assert isinstance(died.value, Crash) or isinstance(died.value.__cause__, Crash)
    assert side.status() is WindowStatus.COMMITTED


def _words(side: Side) -> dict[str, Any]:
    table = side.table()
    return {"mode": table.mode, "keys": table.keys}


def replay(side: Side, *values: tuple[str, int]) -> None:
    """Deliver a committed window again, as the errors advise."""
    with side.windows() as windows:
        plan = windows.replay("w")
        rows = side.lake.spark.createDataFrame(list(values), ROW)
        windows.publish(plan, side.lake.sink_for(**_words(side)).write(rows, plan))


@FORMATS
@MODES
def test_a_published_window_is_done(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, format_: str, mode: str
) -> None:
    """By the ledger, whatever the table remembers; forgotten there as well, its id is covered."""
    side = Side(eu, lake_of(lake_spark, format_, tmp_path, mode))
    side.produce("a", "b")
    side.run()
    forget_commits(side.lake)
    assert side.run().ran is False
    with OrderedWindows(eu.settings, GROUP, clock=lambda: time.time() + 3600) as windows:
        assert windows.prune(timedelta(0), forget=True) == ["w"]
    side.produce("late")
    assert side.run().content is PlanContent.COVERED
    assert rows_in(side.lake) == shown("a", "b")


@FORMATS
@MODES
def test_a_window_that_shows_already_is_not_shown_twice(
    lake_spark: SparkSession,
    tmp_path: Path,
    eu: InMemoryKafka,
    monkeypatch: pytest.MonkeyPatch,
    format_: str,
    mode: str,
) -> None:
    """Its process died before the ledger heard of it: rows come once, or an error names a cure, and the cure helps."""
    side = Side(eu, lake_of(lake_spark, format_, tmp_path, mode))
    side.produce("a", "b")
    die_before_the_ledger_hears_it(side, monkeypatch)
    forget_commits(side.lake)
    if (format_, mode) == ("delta", "append"):
        # The table skips what was appended before.
        assert (side.run().ran, side.status()) == (False, WindowStatus.PUBLISHED)
        assert rows_in(side.lake) == shown("a", "b")
        return
    for _ in range(2):
        with pytest.raises(SinkError, match=r"have expired: .*windows\.replay"):
            side.run(fails=True)
        assert rows_in(side.lake) == shown("a", "b")
        assert side.status() is WindowStatus.COMMITTED
    if mode == "append":
        lake_spark.sql(f"DELETE FROM {side.lake.table} WHERE window_id = 'w'")
    replay(side, ("a", 0), ("b", 1))
    assert (side.status(), rows_in(side.lake)) == (WindowStatus.PUBLISHED, shown("a", "b"))
    assert side.run().ran is False


@FORMATS
@OPEN_MODES
def test_a_window_that_does_not_show_is_published_from_the_stage(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, format_: str, mode: str
) -> None:
    """No row has its id, so nothing could come twice, and nothing is taken away: also when Kafka has lost its records."""
    side = Side(eu, lake_of(lake_spark, format_, tmp_path, mode))
    side.produce("a", "b")
    with pytest.raises(Crash):
        side.run(kind=Dying)
    forget_commits(side.lake)
    eu.delete_records("orders", 0, 2)
    assert (side.run().ran, side.status()) == (False, WindowStatus.PUBLISHED)
    assert rows_in(side.lake) == shown("a", "b")


@FORMATS
@pytest.mark.parametrize("ordered", [True, False])
def test_merging_late_brings_no_older_value_back(
    lake_spark: SparkSession,
    tmp_path: Path,
    eu: InMemoryKafka,
    monkeypatch: pytest.MonkeyPatch,
    format_: str,
    ordered: bool,
) -> None:
    """Another window has changed the key since: rows that tell older from newer are merged again, others by a word."""
    lake = lake_of(lake_spark, format_, tmp_path, "merge", _ORDERED if ordered else ROW)
    side = Side(eu, lake, columns=_ORDERED if ordered else ROW)
    side.produce("k")
    die_before_the_ledger_hears_it(side, monkeypatch)
    lake_spark.sql(f"UPDATE {lake.table} SET offset = 7")
    if ordered:
        lake_spark.sql(f"UPDATE {lake.table} SET timestamp = now()")
    forget_commits(lake)
    if ordered:
        assert (side.run().ran, side.status()) == (False, WindowStatus.PUBLISHED)
    else:
        with pytest.raises(SinkError, match="bring back older values"):
            side.run(fails=True)
    assert [row.offset for row in lake_spark.table(lake.table).collect()] == [7]


@FORMATS
@MODES
def test_a_rewound_window_is_refused_or_replaces_its_own(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, format_: str, mode: str
) -> None:
    """Append cannot take the rows back, and replace takes no more than it brings, unless it is told."""
    side = Side(eu, lake_of(lake_spark, format_, tmp_path, mode))
    side.produce("a", "b")
    side.run()
    forget_commits(side.lake)
    side.move_back()
    if mode == "append":
        with pytest.raises(
            OutputOwnedError, match=r"or may have been, by an earlier claim.*delete the rows"
        ):
            side.run(fails=True)
        assert (rows_in(side.lake), side.open_windows()) == (shown("a", "b"), [])
        return
    if mode == "replace":
        with pytest.raises(FewerRecordsError, match="2 rows of it, and the new output has 1"):
            side.run(kept=slice(1))
        assert rows_in(side.lake) == shown("a", "b")
    side.produce("late")
    side.run()
    assert rows_in(side.lake) == shown("a", "b", "late")


@FORMATS
@pytest.mark.parametrize("other", ["ledger", "group"])
def test_rows_of_others_are_not_replaced(
    lake_spark: SparkSession,
    tmp_path: Path,
    eu: InMemoryKafka,
    us: InMemoryKafka,
    format_: str,
    other: str,
) -> None:
    """Nobody knows whose they are any more: refused before the job, and when they came while the rows were staged."""
    lake = lake_of(lake_spark, format_, tmp_path, "replace")
    first = Side(eu, lake)
    second = Side(us, lake) if other == "ledger" else Side(eu, lake, "daily")
    first.produce("a", "b", "c")
    us.produce("orders", value=b"d", partition=0, timestamp_ms=1)
    with pytest.raises(Crash):
        second.run(kind=Dying)
    first.run()
    forget_commits(lake)
    for _ in range(2):
        with pytest.raises(SinkError, match=r"have expired: .*another ledger's.*windows\.replay"):
            second.run(fails=True)
        assert rows_in(lake) == shown("a", "b", "c")
        assert (second.status(), first.run().ran) == (WindowStatus.COMMITTED, False)
    third = Side(us, lake, "third")
    with pytest.raises(OutputOwnedError, match="no commit that it remembers says whose"):
        third.run(fails=True)
    assert (rows_in(lake), third.open_windows()) == (shown("a", "b", "c"), [])
    # As the error advises.
    lake_spark.sql(f"DELETE FROM {lake.table} WHERE window_id = 'w'")
    second.run()
    theirs = ["d"] if other == "ledger" else ["a", "b", "c"]
    assert rows_in(lake) == shown(*theirs)


@FORMATS
def test_rows_that_came_before_the_commit_are_not_replaced(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, us: InMemoryKafka, format_: str
) -> None:
    """A window is not committed where it could not be published."""
    lake = lake_of(lake_spark, format_, tmp_path, "replace")
    first, second = Side(eu, lake), Side(us, lake)
    first.produce("a", "b")
    second.produce("d")
    with second.windows() as windows:
        plan = windows.plan(hour(), "w")
        output = lake.sink_for("replace").write(lake_spark.createDataFrame([("d", 0)], ROW), plan)
        assert isinstance(output, TableOutput)
        first.run()
        forget_commits(lake)
        with pytest.raises(SinkError, match="abandon it first"):
            windows.commit(plan, output)
        windows.abandon("w")
    assert rows_in(lake) == shown("a", "b")
