"""All engines give the same rows, on random logs, plans and cuts, by a hash over every column."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from kafka_ordered_ops.spark import read_windows
from kafka_ordered_ops.spark.read import connector, engines
from kafka_ordered_ops.spark.read.engines import Engine
from tests.support.spark_support import (
    ENGINES,
    Case,
    Log,
    Row,
    on_spark41,
    settings_of,
    spark,
    spark41_jars,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]  # a fixture

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    # Of pyspark 4.1's own results.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

MakeTopic = Callable[..., str]


@dataclass(frozen=True, order=True)
class Seen:
    """One row as Spark gave it: its window and place, and a hash over all its columns.

    A null by itself leaves a hash as it is, so whether a column is null is hashed as well.
    """

    window_id: str
    timestamp_ms: int
    topic: str
    partition: int
    offset: int
    late: bool
    hash: int


def seen(frame: DataFrame) -> list[Seen]:
    """All rows, in Spark's order, in one pass."""
    from pyspark.sql import functions as f

    rows = frame.select(
        "window_id",
        f.unix_millis("timestamp"),
        "topic",
        "partition",
        "offset",
        "late",
        f.xxhash64(*frame.columns, *map(f.isnull, frame.columns)),
    )
    return [Seen(*row) for row in rows.collect()]


def places(cases: Sequence[Case]) -> list[tuple[object, ...]]:
    """Window, place and lateness of each row by the oracle: window after window, each in total order."""
    return [
        (case.plan.window_id, *place, place[1:] in case.late)
        for case in cases
        for place in map(_place, case.rows)
    ]


def _place(row: Row) -> tuple[int, str, int, int]:
    return row.timestamp_ms, row.topic, row.partition, row.offset


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "windows"), [(1, 1), (2, 2), (3, 6)])
def test_all_engines_give_the_same_rows(
    bootstrap: str,
    topic: MakeTopic,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    windows: int,
) -> None:
    """Aborts, markers, holes, headers, nulls, late records, several windows: count and hash are equal."""
    rng = random.Random(seed)
    # Small enough that there are several slices, loads, and tasks.
    monkeypatch.setattr(engines, "SLICE_OFFSETS_MIN", 20)
    monkeypatch.setattr(connector, "SLICE_OFFSETS_MIN", 20)
    monkeypatch.setattr(connector, "HOLE_OFFSETS_MIN", rng.choice([1, 10, 1_000]))
    monkeypatch.setattr(connector, "LOADS_MAX", rng.choice([1, 3]))
    log = Log.fill(bootstrap, {topic(partitions=3): 3, topic(): 1}, rng)
    cases = log.cases(rng, windows)
    plans = [case.plan for case in cases]
    settings = settings_of(bootstrap)
    found: dict[tuple[Engine, bool], list[Seen]] = {}
    types = set()
    for engine in ENGINES:
        for ordered in (False, True):
            frame = read_windows(spark, plans, settings, ordered=ordered, engine=engine)
            types.add(tuple(frame.dtypes))
            found[engine, ordered] = seen(frame)
    assert len(types) == 1
    first = found[ENGINES[0], True]
    assert [astuple(row)[:-1] for row in first] == places(cases)
    for (_, ordered), rows in found.items():
        assert (rows if ordered else sorted(rows)) == (first if ordered else sorted(first))


def test_the_hash_tells_rows_apart(spark: SparkSession) -> None:
    """What the proof above rests on: a null, an empty value, a header's value and a flag make a difference."""
    values = ["null", "X''", "X'00'"]
    headers = ["null", "array()", *(f"array(struct('a', {value}))" for value in values)]
    rows = ", ".join(
        f"({value}, {header}, {late})"
        for value in values
        for header in headers
        for late in ("true", "false")
    )
    table = f"values {rows} as t(value, headers, late)"
    hashes = spark.sql(f"select xxhash64(*, isnull(value), isnull(headers)) from {table}").collect()
    assert len({row[0] for row in hashes}) == len(hashes)


_ASK_FOR_JVM: Final = """
import sys
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.spark import read_window
from kafka_ordered_ops.spark.session import local_session
from tests.support.spark_support import _java_home, plan_of, settings_of

spark = local_session("ask", cores=1, java_home=_java_home(), conf={"spark.jars": sys.argv[1]})
try:
    print("read", read_window(spark, plan_of([]), settings_of("127.0.0.1:1"), engine="connector").count())
except ConfigError as error:
    print("refused:", error)
spark.stop()
"""


@pytest.mark.long
@pytest.mark.parametrize("jars", [False, True], ids=["absent", "of Spark 4.1"])
def test_the_jvm_engine_asks_for_the_connector_of_its_own_spark(jars: bool) -> None:
    """Absent, or of another Spark's version: refused by what the session's own Java says, before any reading."""
    paths = ",".join(str(path) for path in spark41_jars() if "kafka" in path.name) if jars else ""
    done = subprocess.run(
        [sys.executable, "-c", _ASK_FOR_JVM, paths],
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
        cwd=Path(__file__).parents[2],
    )
    if not jars:
        assert "refused: engine 'connector'" in done.stdout
        assert "this session lacks" in done.stdout
    elif on_spark41():
        assert done.stdout == "read 0\n"
    else:
        assert "refused: engine 'connector'" in done.stdout
        assert "this session has the one of Spark 4.1" in done.stdout
