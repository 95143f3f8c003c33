"""What readers of a table see, they keep: rows of other ledgers, groups and claims, and of windows that were forgotten."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafka_ordered_ops import (
    ConfigError,
    FewerRecordsError,
    OrderedWindows,
    OutputOwnedError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.spark_support import Crash, spark
from tests.support.table_sides import (
    FORMATS,
    GROUP,
    MODES,
    ROW,
    TOPIC,
    Dying,
    Side,
    eu,
    hour,
    make,
    rows_in,
    shown,
    us,
)
from tests.support.tables_support import lake_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["eu", "lake_spark", "spark", "us"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(600)]


@FORMATS
@MODES
def test_a_forgotten_window_s_rows_stay(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, format_: str, mode: str
) -> None:
    """Run again with a late record, its id is covered; the late record comes once, with the next window."""
    side = Side(eu, make(lake_spark, format_, tmp_path, mode))
    side.produce("a", "b", "c")
    side.run()
    with OrderedWindows(eu.settings, GROUP, clock=lambda: time.time() + 3600) as windows:
        assert windows.prune(timedelta(0), forget=True) == ["w"]
    side.produce("late")
    for _ in range(2):
        again = side.run()
        assert (again.content, again.ran) == (PlanContent.COVERED, False)
        assert rows_in(side.lake) == shown("a", "b", "c")
    side.produce("d", number=1)
    side.run("next", number=1)
    assert rows_in(side.lake) == sorted(
        [*shown("a", "b", "c"), *shown("d", "late", window_id="next")]
    )


@FORMATS
@MODES
@pytest.mark.parametrize("other", ["ledger", "group"])
def test_rows_of_another_ledger_or_group_stay(
    lake_spark: SparkSession,
    tmp_path: Path,
    eu: InMemoryKafka,
    us: InMemoryKafka,
    format_: str,
    mode: str,
    other: str,
) -> None:
    """The same topic and window id: added, they are another window's rows; to replace them is refused before the job runs."""
    lake = make(lake_spark, format_, tmp_path, mode)
    first = Side(eu, lake)
    second = Side(us, lake) if other == "ledger" else Side(eu, lake, "daily")
    first.produce("a", "b", "c")
    if other == "ledger":
        second.produce("d")
    theirs = ["d"] if other == "ledger" else [] if mode == "merge" else ["a", "b", "c"]
    first.run()
    if mode != "replace":
        for ran in (True, False):
            again = second.run()
            assert (again.ran, again.status) == (ran, WindowStatus.PUBLISHED)
            assert first.run().ran is False
            assert rows_in(lake) == shown("a", "b", "c", *theirs)
        assert lake.staged_count() == 0
        return
    told = "in ledger" if other == "ledger" else "of group hourly"
    for _ in range(2):
        with pytest.raises(OutputOwnedError, match=told) as refused:
            second.run(fails=True)
        assert (refused.value.group_id, refused.value.facts["window_id"]) == (GROUP, "w")
        assert rows_in(lake) == shown("a", "b", "c")
        assert (lake.staged_count(), second.open_windows()) == (0, [])
    # The ways on: another id; or rows that nobody needs are deleted.
    second.run("mine")
    mine = shown(*theirs, window_id="mine")
    assert rows_in(lake) == sorted([*shown("a", "b", "c"), *mine])
    assert first.run().ran is False
    lake_spark.sql(f"DELETE FROM {lake.table}")
    second.produce("e", number=1)
    second.run("w", number=1)
    assert rows_in(lake) == shown("e")


@FORMATS
@MODES
def test_a_rewound_window_takes_the_place_of_its_own_rows(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, format_: str, mode: str
) -> None:
    """Planned again with a late record; append cannot take rows back, and says so before the job runs, with nothing claimed."""
    lake = make(lake_spark, format_, tmp_path, mode)
    side = Side(eu, lake)
    side.produce("a", "b", "c")
    side.run()
    side.move_back()
    assert side.status() is WindowStatus.REWOUND
    side.produce("late")
    if mode != "append":
        again = side.run()
        assert (again.ran, again.status) == (True, WindowStatus.PUBLISHED)
        assert rows_in(lake) == shown("a", "b", "c", "late")
        assert side.run().ran is False
        assert lake.staged_count() == 0
        return
    for _ in range(2):
        with pytest.raises(OutputOwnedError, match=r"was appended to .* before") as refused:
            side.run(fails=True)
        words = str(refused.value)
        ways = [words.index(way) for way in ("'replace' or 'merge'", "another id", "delete")]
        assert ways == sorted(ways)
        assert rows_in(lake) == shown("a", "b", "c")
        assert (lake.staged_count(), side.open_windows()) == (0, [])
    lake_spark.sql(f"DELETE FROM {lake.table}")
    side.run()
    assert rows_in(lake) == shown("a", "b", "c", "late")
    assert side.run().ran is False


def test_what_was_appended_is_replaced_by_another_mode(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, us: InMemoryKafka
) -> None:
    """As the refused append advises; and not where another ledger has appended rows with the same window id."""
    lake = make(lake_spark, "iceberg", tmp_path, "append")
    side, other = Side(eu, lake), Side(us, lake)
    side.produce("a", "b")
    side.run()
    side.move_back()
    side.produce("late")
    side.run(mode="replace")
    assert rows_in(lake) == shown("a", "b", "late")
    other.produce("d")
    other.run()
    side.move_back()
    with pytest.raises(OutputOwnedError, match="in ledger"):
        side.run(mode="replace", fails=True)
    assert rows_in(lake) == shown("a", "b", "d", "late")
    assert side.open_windows() == []


@FORMATS
def test_fewer_rows_of_a_rewound_window_need_a_word(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, format_: str
) -> None:
    """Readers keep what they see, and nothing stays claimed; with allow_fewer they get less. A replay may make fewer rows."""
    lake = make(lake_spark, format_, tmp_path, "replace")
    side = Side(eu, lake)
    side.produce("a", "b", "c")
    side.run()
    side.move_back()
    for kept in (slice(2), slice(0)):
        with pytest.raises(FewerRecordsError, match="3 rows of it, and the new output has"):
            side.run(kept=kept)
        assert rows_in(lake) == shown("a", "b", "c")
        assert (lake.staged_count(), side.open_windows()) == (0, [])
    side.run(kept=slice(2), allow_fewer=True)
    assert rows_in(lake) == shown("a", "b")
    with side.windows() as windows:
        plan = windows.replay("w")
        sink = lake.sink_for("replace")
        rows = lake_spark.createDataFrame([("b", 1)], ROW)
        windows.publish(plan, sink.write(rows, plan))
    assert rows_in(lake) == shown("b")


@FORMATS
@pytest.mark.parametrize("mode", ["append", "merge"])
def test_staged_rows_of_another_ledger_stay(
    lake_spark: SparkSession,
    tmp_path: Path,
    eu: InMemoryKafka,
    us: InMemoryKafka,
    format_: str,
    mode: str,
) -> None:
    """Committed, and not published yet: another ledger's publication of the same id clears its own rows alone."""
    lake = make(lake_spark, format_, tmp_path, mode)
    first, second = Side(eu, lake), Side(us, lake)
    first.produce("a")
    second.produce("b")
    with pytest.raises(Crash):
        second.run(kind=Dying)
    first.run()
    assert rows_in(lake) == shown("a")
    # Nobody can read them from Kafka again.
    us.delete_records(TOPIC, 0, 1)
    again = second.run()
    assert (again.ran, again.status) == (False, WindowStatus.PUBLISHED)
    assert rows_in(lake) == shown("a", "b")
    assert lake.staged_count() == 0


@FORMATS
@MODES
def test_a_committed_window_is_published_by_the_group_s_next_run(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, format_: str, mode: str
) -> None:
    """Its process died after Kafka's commit: the ledger names it, and the next hour's run shows its rows as well."""
    lake = make(lake_spark, format_, tmp_path, mode)
    side = Side(eu, lake)
    side.produce("a", "b")
    with pytest.raises(Crash):
        side.run(kind=Dying)
    with side.windows() as windows:
        assert [one.plan.window_id for one in windows.unpublished()] == ["w"]
    assert rows_in(lake) == []
    side.produce("c", number=1)
    following = side.run("next", number=1)
    assert any("readers do not see yet: w" in note for note in following.notes)
    assert rows_in(lake) == sorted([*shown("a", "b"), *shown("c", window_id="next")])
    assert side.status() is WindowStatus.PUBLISHED
    with side.windows() as windows:
        assert windows.unpublished() == []


@FORMATS
def test_rows_that_no_commit_explains_stay(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, us: InMemoryKafka, format_: str
) -> None:
    """Of another program; or of another ledger, in a table that was copied: a window's first delivery replaces none of them."""
    lake = make(lake_spark, format_, tmp_path, "replace", partitions="")
    side = Side(eu, lake)
    side.produce("a")
    lake_spark.sql(f"INSERT INTO {lake.table} VALUES ('theirs', 7L, 'w'), ('more', 8L, 'v')")
    for _ in range(2):
        with pytest.raises(OutputOwnedError, match="no commit that it remembers says whose"):
            side.run(fails=True)
        assert rows_in(lake) == [("v", "more"), ("w", "theirs")]
        assert side.open_windows() == []
    lake_spark.sql(f"DELETE FROM {lake.table} WHERE window_id = 'w'")
    side.run()
    assert rows_in(lake) == [("v", "more"), ("w", "a")]


def test_a_block_that_is_refused_claims_nothing(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, us: InMemoryKafka
) -> None:
    """`open` gives the window back as `run` does, in the block and at its commit; a replay is refused as such."""
    lake = make(lake_spark, "iceberg", tmp_path, "replace")
    first, second = Side(eu, lake), Side(us, lake)
    first.produce("a", "b")
    second.produce("d")
    first.run()

    def write(side: Side, values: list[tuple[str, int]]) -> None:
        with (
            side.windows() as windows,
            windows.open(hour(), side.table(), window_id="w", spark=lake_spark) as window,
        ):
            window.write(lake_spark.createDataFrame(values, ROW))

    with pytest.raises(OutputOwnedError):
        write(second, [("d", 0)])
    first.move_back()
    with pytest.raises(FewerRecordsError):
        write(first, [("a", 0)])
    assert rows_in(lake) == shown("a", "b")
    assert (first.open_windows(), second.open_windows(), lake.staged_count()) == ([], [], 0)
    write(first, [("a", 0), ("b", 1)])
    with first.windows() as windows:
        plan = windows.replay("w")
        with pytest.raises(ConfigError, match="mode 'append' adds a window once"):
            lake.sink_for("append").write(lake.frame(1), plan)


def test_an_attempt_of_an_older_claim_comes_too_late(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka
) -> None:
    """Its process went on after its window was rewound and delivered again: the newer claim's rows stay."""
    lake = make(lake_spark, "iceberg", tmp_path, "replace")
    side = Side(eu, lake)
    side.produce("a", "b")
    sink = lake.sink_for("replace")
    with side.windows() as windows:
        plan = windows.plan(hour(), "w")
        old = sink.write(lake_spark.createDataFrame([("a", 0), ("b", 1)], ROW), plan)
        windows.commit(plan, old)
    slow = sink.reopened(old.entry)
    side.move_back()
    side.produce("late")
    side.run()
    slow.published = False
    with pytest.raises(OutputOwnedError, match="is not an earlier claim"):
        slow.publish()
    with side.windows() as windows, pytest.raises(WindowSupersededError):
        windows.publish(plan, slow)
    assert rows_in(lake) == shown("a", "b", "late")
