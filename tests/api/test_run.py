"""The simple case is one call: `OrderedWindows.run`, on a Kafka in memory and on a real broker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import OpenWindow, OrderedWindows, Policy, Window
from kafka_ordered_ops.api import RunResult
from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError, SinkError
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.spark import SparkSubmit, TableSink
from kafka_ordered_ops.testing import InMemoryKafka
from tests.conftest import MakeTopic, Produce
from tests.support.spark_support import spark
from tests.support.submit_support import application, small
from tests.support.windows_support import BASE_MS, at

__all__ = ["spark"]  # a fixture

#: Seconds of the records at offsets 0 to 5 of the one partition; see the fixture `orders`.
SECONDS = [0, 10, 20, 5, 30, 15]
#: What is stamped before second 25, by time.
IN_ORDER = [0, 5, 10, 15, 20]


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """A Kafka in memory with the topic `orders`, as the fixture of that name makes it on a broker."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for second in SECONDS:
            kafka.produce("orders", value=b"x", timestamp_ms=BASE_MS + second * 1000)
        yield kafka


@pytest.fixture
def face(kafka: InMemoryKafka) -> Iterator[OrderedWindows]:
    """The public service, for a fresh group."""
    with OrderedWindows(kafka.bootstrap, group_id="g") as windows:
        yield windows


def hour(topic: str = "orders", before: float = 25, **more: Any) -> Window:
    """All that is stamped before a second."""
    return Window(topic, cutoff=at(before), starting_offsets="earliest", **more)


def seconds_in(folder: Path | str | None) -> list[int]:
    """The seconds of the records in a window's folder, file by file."""
    assert folder is not None
    tables = [pq.read_table(path) for path in sorted(Path(folder).glob("part-*.parquet"))]
    return [round((time - at(0)).total_seconds()) for one in tables for time in times_of(one)]


def times_of(table: Any) -> list[Any]:
    """The timestamps of a table."""
    return table["timestamp"].to_pylist()  # type: ignore[no-any-return]


def test_the_first_call_of_the_readme_runs_as_written(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path
) -> None:
    """Brokers as text, times as text: it plans, reads, orders, stages, commits and publishes; then says it is done."""
    orders = topic()
    noon_ms = 1_700_481_600_000  # 2023-11-20T12:00:00Z
    produce((orders, 0, None, b"x", noon_ms - s * 1000, ()) for s in (30, 10, 20, -5, 40))

    windows = OrderedWindows(bootstrap, group_id=group_id)
    question = Window(orders, cutoff="2023-11-20T12:00:00Z", starting_offsets="earliest")
    first = windows.run(question, output=tmp_path / "lake")
    again = windows.run(question, output=tmp_path / "lake")
    windows.close()

    assert (first.ran, first.status, first.records) == (True, WindowStatus.PUBLISHED, 4)
    assert (again.ran, again.status, again.records) == (False, WindowStatus.PUBLISHED, 4)
    assert "already published" in again.outcome
    assert first.output == again.output
    [file] = Path(str(first.output)).glob("part-*.parquet")
    assert pq.read_table(file)["offset"].to_pylist() == [4, 0, 2, 1]


def test_a_window_of_thousands_of_topics_is_published(
    kafka: InMemoryKafka, face: OrderedWindows, tmp_path: Path
) -> None:
    """Whatever is stored beside its files stays small enough to be read again."""
    names = [f"orders-{number:04}-{'x' * 40}" for number in range(2_000)]
    for name in names:
        kafka.create_topic(name)
    kafka.produce(names[-1], value=b"x", timestamp_ms=BASE_MS)
    asked = Window(names, cutoff=at(25), starting_offsets="earliest")
    assert [face.run(asked, output=tmp_path).ran for _ in range(2)] == [True, False]
    assert face.run(asked, output=tmp_path).to_arrow()["topic"].to_pylist() == [names[-1]]


def test_a_result_reads_its_files_back(face: OrderedWindows, tmp_path: Path) -> None:
    """In order, also when nothing was left to do; not where the window's files are elsewhere, or there are none."""
    first, again = (face.run(hour(), output=tmp_path / "a") for _ in range(2))
    for result in (first, again):
        assert [
            round((one - at(0)).total_seconds()) for one in times_of(result.to_arrow())
        ] == IN_ORDER
    with pytest.raises(ConfigError, match="published before to another place"):
        face.run(hour(), output=tmp_path / "b").to_arrow()
    with pytest.raises(ConfigError, match="no files in a folder"):
        face.run(hour(before=40), function=lambda window: None).to_arrow()


def test_a_later_call_takes_what_the_first_one_left(face: OrderedWindows, tmp_path: Path) -> None:
    """Each record once, and the result says which and how many."""
    first = face.run(hour(before=12), output=tmp_path)
    second = face.run(hour(before=25), output=tmp_path)
    assert (first.records, second.records) == (3, 2)
    assert (first.out_of_order, second.out_of_order) == (1, 1)
    assert (second.first, second.last) == (at(15), at(20))
    assert seconds_in(second.output) == [15, 20]
    assert first.window_id != second.window_id


def test_a_result_is_frozen_and_shows_itself(face: OrderedWindows, tmp_path: Path) -> None:
    """A line that says it all, and a table for notebooks in which nothing is taken for HTML."""
    result = face.run(hour(), "<b>w</b>", output=tmp_path)
    assert repr(result) == f"<RunResult g/<b>w</b>: published, 5 records, {result.output}>"
    html = result._repr_html_()
    assert "<td style='text-align:left'>&lt;b&gt;w&lt;/b&gt;</td>" in html
    assert "<b>w</b>" not in html
    assert "2023-11-14T22:13:45Z" in html
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.records = 3  # type: ignore[misc]
    assert isinstance(result, RunResult)


def test_a_window_in_another_folder_is_named(face: OrderedWindows, tmp_path: Path) -> None:
    """The second call names another folder: nothing is done, and the result says where the files should be."""
    face.run(hour(), output=tmp_path / "a")
    again = face.run(hour(), output=tmp_path / "b")
    assert (again.ran, again.output) == (False, None)
    assert again.outcome == "published before to another place; nothing was done"
    assert str(tmp_path / "a") in again.notes[0]


def test_files_that_are_gone_are_written_again(face: OrderedWindows, tmp_path: Path) -> None:
    """The same records, though they are committed; the result says so."""
    first = face.run(hour(), output=tmp_path)
    for file in Path(str(first.output)).glob("part-*"):
        file.unlink()
    again = face.run(hour(), output=tmp_path)
    assert again.ran
    assert "committed before" in again.outcome
    assert seconds_in(again.output) == IN_ORDER


def test_a_covered_window_delivers_nothing_and_says_so(
    face: OrderedWindows, tmp_path: Path
) -> None:
    """Others have all its records: no sink sees it, unless it is to be replayed."""
    whole = face.run(hour(), "whole", output=tmp_path)
    asked: list[OpenWindow] = []
    covered = face.run(hour(before=11), "covered", function=asked.append)
    assert (covered.content, covered.ran, asked) == (PlanContent.COVERED, False, [])
    assert "covered" in covered.outcome
    stand_in = face.run(hour(), "again", Policy(on_covered="replay"), output=tmp_path)
    assert (stand_in.window_id, stand_in.ran, stand_in.output) == ("whole", False, whole.output)
    assert "window whole holds its records" in stand_in.notes[-1]


def test_a_function_is_handed_the_window(face: OrderedWindows) -> None:
    """Its normal return is the delivery, and what it returned is kept; a second call does not call it again."""
    calls: list[list[int]] = []

    def job(window: OpenWindow) -> dict[str, int]:
        calls.append(
            [round((time - at(0)).total_seconds()) for time in times_of(window.to_arrow())]
        )
        return {"rows": 5}

    first, again = face.run(hour(), function=job), face.run(hour(), function=job)
    assert calls == [IN_ORDER]
    assert (first.ran, first.records, first.returned) == (True, 5, {"rows": 5})
    assert (again.ran, again.records, again.returned) == (False, 5, {"rows": 5})


def test_a_function_that_fails_commits_nothing(face: OrderedWindows) -> None:
    """Its own error passes; the next call takes the same records up."""
    with pytest.raises(ZeroDivisionError):
        face.run(hour(), "w", function=lambda window: 1 / 0)
    assert face.show("w").status is WindowStatus.PLANNED
    result = face.run(hour(), "w", function=lambda window: window.to_arrow().num_rows)
    assert (result.attempt, result.returned) == (2, 5)


@pytest.mark.parametrize(
    "job",
    [
        lambda window: window.to_batches(),
        lambda window: map(len, window.to_batches()),
        lambda window: (batch for batch in window.to_batches()),
        lambda window: _async(window),
    ],
    ids=["batches", "map", "generator", "coroutine"],
)
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_a_function_that_leaves_its_work_to_others_commits_nothing(
    face: OrderedWindows, job: Callable[[OpenWindow], Any]
) -> None:
    """What it has returned would read the records only when somebody iterates it, and nobody does."""
    with pytest.raises(SinkError, match="Nothing was committed: do the work inside"):
        face.run(hour(), "w", function=job)
    assert face.show("w").status is WindowStatus.PLANNED
    assert face.run(hour(), "w", function=lambda window: window.to_arrow().num_rows).returned == 5


def test_a_function_with_an_output_must_write(face: OrderedWindows, tmp_path: Path) -> None:
    """One that returns without writing would publish nothing in the place of the records."""
    with pytest.raises(SinkError, match="neither written nor reported"):
        face.run(hour(), "w", function=lambda window: None, output=tmp_path)
    assert face.show("w").status is WindowStatus.PLANNED


def test_a_sink_that_nobody_knows_is_not_run_twice(face: OrderedWindows) -> None:
    """What is published is published, also where the output cannot be found again by its description."""

    class Own:
        """A sink's output."""

        def to_json(self) -> Mapping[str, Any]:
            return {"mine": 1}

        def publish(self) -> None:
            published.append(1)

        def discard(self) -> None: ...

    published: list[int] = []
    calls: list[int] = []

    def job(window: OpenWindow) -> Own:
        calls.append(1)
        return Own()

    face.run(hour(), function=job)
    again = face.run(hour(), function=job)
    assert (calls, published, again.ran) == ([1], [1], False)


def test_a_sink_takes_the_place_of_a_folder(face: OrderedWindows) -> None:
    """Of a function's result; the next call asks the sink what it has, and does nothing."""

    class Table:
        """A sink as `TableSink` is one."""

        def write(self, df: Any, plan: Any) -> Reported:
            rows.append(df)
            return Reported({"facts": {"records": df}})

        def found(self, result: Mapping[str, Any]) -> Reported | None:
            return Reported.found(result)

    rows: list[Any] = []
    sink = Table()
    first = face.run(
        hour(), function=lambda window: window.write(window.to_arrow().num_rows), output=sink
    )
    again = face.run(hour(), function=lambda window: 1 / 0, output=sink)
    assert (rows, first.records, again.ran) == ([5], 5, False)


_READS = """
    import json, sys
    from pathlib import Path
    print("never run by Spark here")
"""

BAD: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "nothing to do": (lambda _: {}, "give output="),
    "s3: bare bucket": (lambda _: {"output": "s3://lake"}, "bare bucket"),
    "s3: an option": (
        lambda _: {"output": "s3://lake/orders", "storage_options": {"aws_regoin": "x"}},
        "aws_regoin",
    ),
    "options without a store": (
        lambda tmp: {"output": str(tmp), "storage_options": {}},
        "object store",
    ),
    "output: number": (lambda _: {"output": 5}, "output is 5"),
    "output: class": (lambda _: {"output": TableSink}, "TableSink"),
    "output: empty": (lambda _: {"output": " "}, "name a folder"),
    "output: a file": (lambda tmp: {"output": str(tmp / "job.py")}, "cannot be written"),
    "function: async": (lambda _: {"function": _async}, "async function"),
    "function: text": (lambda _: {"function": "job"}, "function of window"),
    "function: two arguments": (lambda _: {"function": lambda a, b: None}, "called with window"),
    "both": (lambda tmp: {"function": len, "application": tmp / "job.py"}, "give one of them"),
    "application: missing": (lambda tmp: {"application": tmp / "gone.py"}, "no application"),
    "application: number": (lambda _: {"application": 5}, "application is the path"),
    "application: memory": (lambda tmp: {"application": tmp / "job.py"}, "another process"),
    "application: spark": (
        lambda tmp: {"application": tmp / "job.py", "spark": _Session()},
        "creates its own session",
    ),
    "arguments": (lambda _: {"output": "/tmp", "arguments": ["--slow"]}, "give application="),
    "application: bytes": (lambda _: {"application": _Path(b"job.py")}, "application is the path"),
    "application: no path": (lambda _: {"application": _Path(5)}, "application is the path"),
    "output: bytes": (lambda _: {"output": _Path(b"out")}, "name a folder"),
    "output: no path": (lambda _: {"output": _Path(5)}, "name a folder"),
    "arguments: number": (
        lambda tmp: {"application": tmp / "job.py", "arguments": 5},
        "give a list",
    ),
    "arguments: generator": (
        lambda tmp: {"application": tmp / "job.py", "arguments": map(str, [1])},
        "give a list",
    ),
    "arguments: NUL": (
        lambda tmp: {"application": tmp / "job.py", "arguments": ["a\0b"]},
        "NUL",
    ),
    "arguments: text": (
        lambda tmp: {"application": tmp / "job.py", "arguments": "--slow"},
        "give a list",
    ),
    "submit": (
        lambda tmp: {"application": tmp / "job.py", "submit": {"mastre": "local"}},
        "'mastre'.*did you mean 'master'",
    ),
    "submit: class": (
        lambda tmp: {"application": tmp / "job.py", "submit": SparkSubmit},
        "submit",
    ),
    "spark: class": (lambda tmp: {"output": tmp, "spark": _Session}, "spark is .*SparkSession"),
    "spark: text": (lambda tmp: {"output": tmp, "spark": "local[2]"}, "spark is 'local"),
    "engine": (lambda tmp: {"output": tmp, "engine": "jvm"}, "'jvm'.*connector"),
    "engine without Spark": (lambda tmp: {"output": tmp, "engine": "python"}, "give spark="),
    "ordered": (lambda tmp: {"output": tmp, "ordered": "yes"}, "ordered is 'yes'"),
    "table: output": (lambda tmp: {"output": tmp, "table": "lake.orders"}, "both given"),
    "table: no Spark": (lambda _: {"table": "lake.orders"}, "give spark="),
    "table: number": (lambda _: {"table": 5, "spark": _Session()}, "table is 5"),
    "table: mode": (
        lambda _: {"table": "t", "mode": "upsert", "spark": _Session()},
        "one of 'append', 'replace', 'merge'",
    ),
    "table: near mode": (
        lambda _: {"table": "t", "mode": "repalce", "spark": _Session()},
        "did you mean 'replace'",
    ),
    "table: no keys": (
        lambda _: {"table": "t", "mode": "merge", "spark": _Session()},
        "needs keys",
    ),
    "table: keys twice": (
        lambda _: {"table": "t", "mode": "merge", "keys": ["a", "a"], "spark": _Session()},
        "twice",
    ),
    "table: keys": (
        lambda _: {"table": "t", "keys": "a", "spark": _Session()},
        "keys is for mode 'merge'",
    ),
    "table: tombstones": (
        lambda _: {"table": "t", "delete_tombstones": True, "spark": _Session()},
        "delete_tombstones is for mode 'merge'",
    ),
    "table: driver in the cluster": (
        lambda tmp: {
            "table": "t",
            "application": tmp / "job.py",
            "submit": {"master": "yarn", "deploy_mode": "cluster"},
        },
        "the table t has none: use client mode",
    ),
    "store: driver in the cluster": (
        lambda tmp: {
            "output": "s3://bucket/lake",
            "application": tmp / "job.py",
            "submit": {"master": "yarn", "deploy_mode": "cluster"},
        },
        "the output s3://bucket/lake is none: use client mode",
    ),
    "mode: no table": (lambda tmp: {"output": tmp, "mode": "append"}, "also give table="),
    "keys: no table": (lambda tmp: {"output": tmp, "keys": ["a"]}, "also give table="),
    "policy": (lambda tmp: {"output": tmp, "policy": Policy}, "policy is"),
    "window id": (lambda tmp: {"output": tmp, "window_id": ""}, "window id"),
}


class _Path:
    """A path as it should not be."""

    def __init__(self, text: Any) -> None:
        self._text = text

    def __fspath__(self) -> Any:
        return self._text


class _Session:
    """As much of a session as is looked at."""

    createDataFrame = read = print


async def _async(window: OpenWindow) -> None: ...


@pytest.mark.parametrize("wrong", BAD)
def test_a_call_that_cannot_be_is_refused_before_anything_is_planned(
    face: OrderedWindows, tmp_path: Path, wrong: str
) -> None:
    """Each by name; the group does not even have a state."""
    application(tmp_path, _READS)
    given, words = BAD[wrong]
    with pytest.raises(ConfigError, match=words):
        face.run(hour(), **given(tmp_path))
    assert face.state() is None


@pytest.mark.parametrize("window", [None, Window, "orders", {"topics": "orders"}])
def test_what_is_no_window_is_refused(face: OrderedWindows, window: Any) -> None:
    """The class of one, too."""
    with pytest.raises(ConfigError, match="give a Window"):
        face.run(window, output="/tmp")
    with pytest.raises(ConfigError, match="give a Window"), face.open(window):
        pass


def test_a_window_that_cannot_be_planned_leaves_nothing(
    face: OrderedWindows, tmp_path: Path
) -> None:
    """The service's own errors pass as they are."""
    with pytest.raises(KafkaOrderedOpsError, match="nowhere"):
        face.run(hour("nowhere"), output=tmp_path)


def test_settings_may_be_anything_that_leads_to_brokers(kafka: InMemoryKafka) -> None:
    """Text, a mapping, or settings."""
    for settings in (kafka.bootstrap, kafka.settings, ClientSettings.of(kafka.bootstrap)):
        with OrderedWindows(settings, "g") as windows:
            assert windows.settings.bootstrap_servers == kafka.bootstrap


def test_a_grace_and_an_age_may_be_text(face: OrderedWindows) -> None:
    """As everywhere."""
    assert not face.live(hour(before=100), grace="PT1M").waiting
    assert face.prune("P7D") == face.prune(timedelta(days=7)) == []


# --- with Spark ------------------------------------------------------------------------------------


#: Asks for its window, and says what it has done with it; no Spark is needed to say so.
_REPORTS = """
    import sys
    from kafka_ordered_ops.spark.applications.context import current_window
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.getOrCreate()
    window = current_window(spark)
    window.report({"counted": window.read().count(), "with": sys.argv[1:]})
"""


@pytest.mark.slow
@pytest.mark.spark
def test_an_application_is_handed_the_window(
    bootstrap: str, orders: str, group_id: str, tmp_path: Path
) -> None:
    """Without an output: what it reports is kept, and a second call runs nothing."""
    job = application(tmp_path, _REPORTS)
    with OrderedWindows(bootstrap, group_id) as windows:
        first = windows.run(hour(orders), application=job, arguments=["a"], submit=small())
        assert (first.ran, first.returned) == (True, {"counted": 5, "with": ["a"]})
        again = windows.run(hour(orders), application=job, submit=small())
        assert (again.ran, again.returned) == (False, first.returned)


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_reads_and_writes(
    spark: Any, bootstrap: str, orders: str, group_id: str, tmp_path: Path
) -> None:
    """A copy, and a function's own result, each on the session that was given."""

    def totals(window: OpenWindow) -> None:
        assert window.spark is spark
        window.write(window.read().groupBy("topic").count())

    with OrderedWindows(bootstrap, group_id) as windows:
        copied = windows.run(hour(orders), output=tmp_path / "copies", spark=spark)
        assert (copied.ran, copied.records) == (True, 5)
        assert seconds_in(copied.output) == IN_ORDER
        rest = windows.run(
            hour(orders, 100), function=totals, spark=spark, output=tmp_path / "totals"
        )
        assert (rest.ran, rest.records) == (True, 1)
        again = windows.run(
            hour(orders, 100), function=totals, spark=spark, output=tmp_path / "totals"
        )
        assert not again.ran
