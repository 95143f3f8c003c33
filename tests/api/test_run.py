"""The simple case is one call: `OrderedWindows.run`, on a Kafka in memory and on a real broker."""

from __future__ import annotations

import dataclasses
import io
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import (
    Application,
    ClientSettings,
    ConfigError,
    OpenWindow,
    OrderedWindows,
    Policy,
    SinkError,
    Window,
    WindowCoveredError,
    WindowMismatchError,
)
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.delivery.run_result import RunResult
from kafka_ordered_ops.output.filesystem import LocalFiles
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.testing import InMemoryKafka
from tests.conftest import MakeTopic, Produce
from tests.support.run_support import face as face
from tests.support.run_support import hour
from tests.support.run_support import kafka as kafka
from tests.support.spark_support import spark
from tests.support.submit_support import application, small
from tests.support.windows_support import BASE_MS, at

__all__ = ["spark"]  # a fixture

#: What is stamped before second 25, by time.
IN_ORDER = [0, 5, 10, 15, 20]


async def _async(window: OpenWindow) -> None: ...


def seconds_in(folder: Path | str | None) -> list[int]:
    """The seconds of the records in a window's folder, file by file."""
    assert folder is not None
    tables = [pq.read_table(path) for path in sorted(Path(folder).glob("part-*.parquet"))]
    return [round((time - at(0)).total_seconds()) for one in tables for time in times_of(one)]


def times_of(table: Any) -> list[Any]:
    """The timestamps of a table."""
    return table["timestamp"].to_pylist()  # type: ignore[no-any-return]


class _ReadBy(io.FileIO):
    """A file that notes the threads that use it."""

    threads: ClassVar[set[int]] = set()

    def read(self, size: int | None = -1, /) -> Any:
        """Read, as the base class does."""
        self.threads.add(threading.get_ident())
        return super().read(-1 if size is None else size)


def test_results_are_read_by_the_callers_thread(
    face: OrderedWindows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of Arrow's threads that lets go of a file of Python's while the interpreter ends would abort the process."""
    result = face.run(hour(), tmp_path / "lake")
    monkeypatch.setattr(LocalFiles, "open", lambda _, path: _ReadBy(path))
    _ReadBy.threads.clear()
    assert result.to_arrow().num_rows == len(IN_ORDER)
    assert _ReadBy.threads == {threading.get_ident()}


def test_the_first_call_of_the_readme_runs_as_written(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path
) -> None:
    """Brokers as text, times as text: it plans, reads, orders, stages, commits and publishes; then says it is done."""
    orders = topic()
    noon_ms = 1_700_481_600_000  # 2023-11-20T12:00:00Z
    produce((orders, 0, None, b"x", noon_ms - s * 1000, ()) for s in (30, 10, 20, -5, 40))

    windows = OrderedWindows(bootstrap, group_id=group_id)
    question = Window(orders, cutoff="2023-11-20T12:00:00Z", starting_offsets="earliest")
    first = windows.run(question, tmp_path / "lake")
    again = windows.run(question, tmp_path / "lake")
    windows.close()

    assert (first.ran, first.status, first.records) == (True, WindowStatus.PUBLISHED, 4)
    assert (again.ran, again.status, again.records) == (False, WindowStatus.PUBLISHED, 4)
    assert "already published" in again.outcome
    assert first.output == again.output
    [file] = Path(str(first.output)).glob("part-*.parquet")
    assert pq.read_table(file)["offset"].to_pylist() == [4, 0, 2, 1]


@pytest.mark.slow
def test_a_window_of_thousands_of_topics_is_published(
    kafka: InMemoryKafka, face: OrderedWindows, tmp_path: Path
) -> None:
    """Whatever is stored beside its files stays small enough to be read again."""
    names = [f"orders-{number:04}-{'x' * 40}" for number in range(2_000)]
    for name in names:
        kafka.create_topic(name)
    kafka.produce(names[-1], value=b"x", timestamp_ms=BASE_MS)
    asked = Window(names, cutoff=at(25), starting_offsets="earliest")
    assert [face.run(asked, tmp_path).ran for _ in range(2)] == [True, False]
    assert face.run(asked, tmp_path).to_arrow()["topic"].to_pylist() == [names[-1]]


def test_a_result_reads_its_files_back(face: OrderedWindows, tmp_path: Path) -> None:
    """In order, also when nothing was left to do; not where there are none."""
    first, again = (face.run(hour(), tmp_path / "a") for _ in range(2))
    for result in (first, again):
        assert [
            round((one - at(0)).total_seconds()) for one in times_of(result.to_arrow())
        ] == IN_ORDER
    with pytest.raises(ConfigError, match="no files in a folder"):
        face.run(hour(before=40), job=lambda window: None).to_arrow()


def test_a_later_call_takes_what_the_first_one_left(face: OrderedWindows, tmp_path: Path) -> None:
    """Each record once, and the result says which and how many."""
    first = face.run(hour(before=12), tmp_path)
    second = face.run(hour(before=25), tmp_path)
    assert (first.records, second.records) == (3, 2)
    assert (first.out_of_order, second.out_of_order) == (1, 1)
    assert (second.first, second.last) == (at(15), at(20))
    assert seconds_in(second.output) == [15, 20]
    assert first.window_id != second.window_id


def test_a_result_is_frozen_and_shows_itself(face: OrderedWindows, tmp_path: Path) -> None:
    """A line that says it all, and a table for notebooks in which nothing is taken for HTML."""
    result = face.run(hour(), tmp_path, window_id="w")
    assert repr(result) == f"<RunResult g/w: published, 5 records, {result.output}>"
    html = dataclasses.replace(result, window_id="<b>w</b>")._repr_html_()
    assert "<td style='text-align:left'>&lt;b&gt;w&lt;/b&gt;</td>" in html
    assert "<b>w</b>" not in html
    assert "2023-11-14T22:13:45Z" in html
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.records = 3  # type: ignore[misc]
    assert isinstance(result, RunResult)


def test_a_window_that_was_delivered_elsewhere_is_not_done_silently(
    face: OrderedWindows, tmp_path: Path
) -> None:
    """The error names both outputs, and a replay writes the same records to the new one."""
    first = face.run(hour(), tmp_path / "a")
    jobs: list[OpenWindow] = []
    for output, job in ((tmp_path / "b", None), (None, jobs.append)):
        with pytest.raises(
            WindowMismatchError, match=f"was delivered to {tmp_path / 'a'}"
        ) as raised:
            face.run(hour(), output, job=job)
        assert raised.value.differences["output"][0] == str(tmp_path / "a")
    assert (jobs, [*tmp_path.glob("b/*")]) == ([], [])
    again = face.run(hour(), tmp_path / "b", policy=Policy(on_covered="replay"))
    assert (again.ran, again.window_id) == (True, first.window_id)
    assert seconds_in(again.output) == seconds_in(first.output) == IN_ORDER
    own = face.run(hour(before=40), job=jobs.append)
    with pytest.raises(WindowMismatchError, match="was delivered to no output: its job did"):
        face.run(hour(before=40), tmp_path / "b")
    assert (own.ran, len(jobs)) == (True, 1)


def test_a_finished_window_is_read_again_only_if_asked(
    face: OrderedWindows, tmp_path: Path
) -> None:
    """As every door has it: auto and skip leave it, replay replaces its output, fail is an error."""
    first = face.run(hour(), tmp_path)
    for policy in ("auto", "skip"):
        assert not face.run(hour(), tmp_path, policy=Policy(on_covered=policy)).ran
    again = face.run(hour(), tmp_path, policy=Policy(on_covered="replay"))
    assert (again.ran, again.output, again.records) == (True, first.output, 5)
    assert again.outcome == "delivered again; its offsets had been committed before"
    assert seconds_in(again.output) == IN_ORDER
    with pytest.raises(WindowCoveredError, match="on_covered='fail'"):
        face.run(hour(), tmp_path, policy=Policy(on_covered="fail"))
    for policy in ("skip", "fail"):
        with (
            pytest.raises(WindowCoveredError, match=f"on_covered='{policy}'"),
            face.open(hour(), policy=Policy(on_covered=policy)),
        ):
            raise AssertionError("the block ran")


def test_files_that_are_gone_are_written_again(face: OrderedWindows, tmp_path: Path) -> None:
    """The same records, though they are committed; the result says so."""
    first = face.run(hour(), tmp_path)
    for file in Path(str(first.output)).glob("part-*"):
        file.unlink()
    again = face.run(hour(), tmp_path)
    assert again.ran
    assert "committed before" in again.outcome
    assert seconds_in(again.output) == IN_ORDER


def test_a_covered_window_delivers_nothing_and_says_so(
    face: OrderedWindows, tmp_path: Path
) -> None:
    """Others have all its records: no sink sees it, unless it is to be replayed."""
    whole = face.run(hour(), tmp_path, window_id="whole")
    asked: list[OpenWindow] = []
    covered = face.run(hour(before=11), job=asked.append, window_id="covered")
    assert (covered.content, covered.ran, asked) == (PlanContent.COVERED, False, [])
    assert "covered" in covered.outcome
    stand_in = face.run(hour(), tmp_path, window_id="again", policy=Policy(on_covered="replay"))
    assert (stand_in.window_id, stand_in.ran, stand_in.output) == ("whole", True, whole.output)
    assert "window whole holds its records" in stand_in.notes[-1]


def test_a_function_is_handed_the_window(face: OrderedWindows) -> None:
    """Its normal return is the delivery, and what it returned is kept; a second call does not call it again."""
    calls: list[list[int]] = []

    def job(window: OpenWindow) -> dict[str, int]:
        calls.append(
            [round((time - at(0)).total_seconds()) for time in times_of(window.to_arrow())]
        )
        return {"rows": 5}

    first, again = face.run(hour(), job=job), face.run(hour(), job=job)
    assert calls == [IN_ORDER]
    assert (first.ran, first.records, first.returned) == (True, 5, {"rows": 5})
    assert (again.ran, again.records, again.returned) == (False, 5, {"rows": 5})


def test_a_function_that_fails_commits_nothing(face: OrderedWindows) -> None:
    """Its own error passes; the next call takes the same records up."""
    with pytest.raises(ZeroDivisionError):
        face.run(hour(), job=lambda window: 1 / 0, window_id="w")
    assert face.show("w").status is WindowStatus.PLANNED
    result = face.run(hour(), job=lambda window: window.to_arrow().num_rows, window_id="w")
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
        face.run(hour(), job=job, window_id="w")
    assert face.show("w").status is WindowStatus.PLANNED
    assert (
        face.run(hour(), job=lambda window: window.to_arrow().num_rows, window_id="w").returned == 5
    )


def test_a_function_with_an_output_must_write(face: OrderedWindows, tmp_path: Path) -> None:
    """One that returns without writing would publish nothing in the place of the records."""
    with pytest.raises(SinkError, match="neither written nor reported"):
        face.run(hour(), tmp_path, job=lambda window: None, window_id="w")
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

    face.run(hour(), job=job)
    again = face.run(hour(), job=job)
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
    first = face.run(hour(), sink, job=lambda window: window.write(window.to_arrow().num_rows))
    again = face.run(hour(), sink, job=lambda window: 1 / 0)
    assert (rows, first.records, again.ran) == ([5], 5, False)


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
    from kafka_ordered_ops import current_window
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
        first = windows.run(hour(orders), job=Application(job, arguments=["a"], submit=small()))
        assert (first.ran, first.returned) == (True, {"counted": 5, "with": ["a"]})
        again = windows.run(hour(orders), job=Application(job, submit=small()))
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
        copied = windows.run(hour(orders), tmp_path / "copies", spark=spark)
        assert (copied.ran, copied.records) == (True, 5)
        assert seconds_in(copied.output) == IN_ORDER
        rest = windows.run(hour(orders, 100), tmp_path / "totals", job=totals, spark=spark)
        assert (rest.ran, rest.records) == (True, 1)
        again = windows.run(hour(orders, 100), tmp_path / "totals", job=totals, spark=spark)
        assert not again.ran
