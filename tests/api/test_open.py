"""A window for a ``with`` block: `OrderedWindows.open`, on a Kafka in memory and on a real broker."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_ordered_ops import (
    ClosedError,
    ConfigError,
    OrderedWindows,
    Policy,
    RecordsLostError,
    SinkError,
    Window,
    WindowCoveredError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.ordered.records.columns import STAGE_SCHEMA
from kafka_ordered_ops.output.writing import window_batches
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows.open_claims import OpenClaims
from tests.conftest import MakeTopic, Produce
from tests.support.spark_support import random_case, settings_of, spark
from tests.support.windows_support import BASE_MS, at, delete_before

__all__ = ["spark"]  # a fixture

#: Of the fixture `orders`, what is stamped before second 25, by time: its offsets.
IN_ORDER = [0, 3, 1, 5, 2]
_TIMEOUT_S = 120.0


@pytest.fixture(params=["memory", pytest.param("broker", marks=pytest.mark.slow)])
def face(request: pytest.FixtureRequest) -> Iterator[tuple[OrderedWindows, Window]]:
    """The public service of a fresh group, and a window over five of the six records of a topic."""
    if request.param == "broker":
        orders = request.getfixturevalue("orders")
        where = request.getfixturevalue("bootstrap"), request.getfixturevalue("group_id")
        with OrderedWindows(*where, timeout_s=60) as windows:
            yield windows, _window(orders)
        return
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for second in (0, 10, 20, 5, 30, 15):
            kafka.produce("orders", value=b"x", timestamp_ms=BASE_MS + second * 1000)
        with OrderedWindows(kafka.bootstrap, "g") as windows:
            yield windows, _window("orders")


def _window(topic: str, before: float = 25) -> Window:
    return Window(topic, cutoff=at(before), starting_offsets="earliest")


def offsets(table: pa.Table) -> list[int]:
    """Of a window of one partition."""
    return table["offset"].to_pylist()  # type: ignore[return-value]


def test_the_block_reads_in_order_and_commits(face: tuple[OrderedWindows, Window]) -> None:
    """As the README has it; then the window is done, with its counts."""
    windows, question = face
    with windows.open(question, window_id="w") as window:
        table = window.to_arrow()
        assert not window.is_replay
        assert windows.show("w").status is WindowStatus.PLANNED
    assert offsets(table) == IN_ORDER
    assert table.schema == STAGE_SCHEMA
    assert windows.show("w").status is WindowStatus.PUBLISHED
    assert windows.run(question, job=lambda window: 1 / 0, window_id="w").records == 5


def test_a_block_that_raises_commits_nothing(face: tuple[OrderedWindows, Window]) -> None:
    """The next open takes the same plan up."""
    windows, question = face
    with pytest.raises(ZeroDivisionError), windows.open(question, window_id="w") as window:
        raise ZeroDivisionError(offsets(window.to_arrow()) == IN_ORDER)
    assert windows.show("w").status is WindowStatus.PLANNED
    with windows.open(question, window_id="w") as window:
        assert window.plan.attempt == 2
        assert offsets(window.to_arrow()) == IN_ORDER
    assert windows.show("w").status is WindowStatus.PUBLISHED
    assert [record.plan.window_id for record in windows.list()] == ["w"]


def test_a_block_that_was_overtaken_is_told(face: tuple[OrderedWindows, Window]) -> None:
    """A newer attempt has delivered and committed the same records: this one's are a second copy."""
    windows, question = face

    def overtaken() -> None:
        with windows.open(question, window_id="w") as older:
            with windows.open(question, window_id="w") as newer:
                newer.to_arrow()
            older.to_arrow()

    with pytest.raises(WindowSupersededError, match="Another attempt took over the window"):
        overtaken()
    before = windows.show("w")
    assert (before.status, before.plan.attempt) == (WindowStatus.PUBLISHED, 2)
    with windows.open(question, window_id="w") as again:
        assert again.is_replay
    assert windows.show("w") == before


def test_a_window_that_is_done_gives_its_records_again(
    face: tuple[OrderedWindows, Window],
) -> None:
    """And says so; nothing in the ledger changes, an error in the block included."""
    windows, question = face
    with windows.open(question, window_id="w") as window:
        window.to_arrow()
    before = windows.show("w")
    with windows.open(question, window_id="w") as window:
        assert window.is_replay
        assert offsets(window.to_arrow()) == IN_ORDER
    with pytest.raises(ZeroDivisionError), windows.open(question, window_id="w"):
        raise ZeroDivisionError
    after = windows.show("w")
    assert (after.status, after.result) == (before.status, before.result)


def test_a_covered_window_never_gets_to_the_block(face: tuple[OrderedWindows, Window]) -> None:
    """An empty table in the place of records that others deliver would hide theirs; a replay has them."""
    windows, question = face
    with windows.open(question, window_id="whole"):
        pass
    for _ in range(2):
        with pytest.raises(WindowCoveredError, match="on_covered='replay'"):
            windows.open(question, window_id="other").__enter__()
    with windows.open(question, window_id="again", policy=Policy(on_covered="replay")) as window:
        assert (window.window_id, window.is_replay) == ("whole", True)
        assert offsets(window.to_arrow()) == IN_ORDER


def test_an_empty_window_is_a_table_without_rows(face: tuple[OrderedWindows, Window]) -> None:
    """Nothing happened, and the columns are there; that is committed as well."""
    windows, question = face
    with windows.open(
        Window(question.topics, at(-5), starting_offsets="earliest"), window_id="w"
    ) as window:
        table = window.to_arrow()
        assert list(window.to_batches()) == []
    assert (table.num_rows, table.schema) == (0, STAGE_SCHEMA)
    assert windows.show("w").status.is_done


def test_arrow_takes_the_window_itself(face: tuple[OrderedWindows, Window]) -> None:
    """As a stream, by the protocol that Polars and DuckDB know too; and pandas takes its table."""
    windows, question = face
    with windows.open(question) as window:
        assert offsets(pa.table(window)) == IN_ORDER
        frame = window.to_arrow().to_pandas()
        assert list(frame["offset"]) == IN_ORDER
        assert frame["timestamp"].is_monotonic_increasing
        unordered = window.to_arrow(ordered=False)
    assert offsets(unordered) == [0, 1, 2, 3, 5]


def test_a_stream_does_not_outlive_its_block(face: tuple[OrderedWindows, Window]) -> None:
    """It does not end early without a word: that would look like all of the window."""
    windows, question = face
    with windows.open(question) as window:
        begun = window.to_batches()
        next(begun)
        untouched = window.to_batches()
    for stream in (begun, untouched):
        with pytest.raises(ClosedError, match="open it again"):
            next(stream)
    for late in (window.to_batches, window.to_arrow, lambda: window.write(None)):
        with pytest.raises(ClosedError):
            late()
    assert windows.show(window.window_id).status.is_done


@pytest.mark.slow
def test_a_thread_that_waits_for_a_window_lets_its_block_end(
    face: tuple[OrderedWindows, Window], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same object: the call that waits would else keep out the commit that it waits for."""
    windows, question = face
    policy = Policy(on_open_claim="wait", claim_wait="PT1M")
    later = Window(question.topics, at(100))
    looks, heed = threading.Event(), OpenClaims.heed

    def looked(self: OpenClaims, *given: Any) -> bool:
        looks.set()
        return heed(self, *given)

    with ThreadPoolExecutor(1) as pool:
        with windows.open(question, window_id="w") as window:
            window.to_arrow()
            monkeypatch.setattr(OpenClaims, "heed", looked)
            waiting = pool.submit(windows.plan, later, "later", policy)
            assert looks.wait(_TIMEOUT_S)
        plan = waiting.result(timeout=_TIMEOUT_S)
    assert windows.show("w").status is WindowStatus.PUBLISHED
    assert [one.ranges for one in plan.taken.values()] == [[(4, 5)]]


def test_batches_that_have_failed_do_not_end_as_if_they_were_complete(
    face: tuple[OrderedWindows, Window], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes on after the error gets another one; a new stream has all of the records."""
    windows, question = face
    with windows.open(question) as window:
        handle = window.windows
        with monkeypatch.context() as patch:
            patch.setattr(handle, "progress", lambda: lambda done, total: 1 / 0)
            stream = window.to_batches(ordered=False)
        with pytest.raises(ZeroDivisionError):
            list(stream)
        with pytest.raises(
            ClosedError, match=r"the rest is missing \(ZeroDivisionError.*to_batches again"
        ):
            list(stream)
        assert offsets(window.to_arrow()) == IN_ORDER


def test_what_waits_on_disk_goes_with_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of each, and not only at that of the block: several readings take no more room than one."""
    read_batches = functools.partial(window_batches.read_batches, held_bytes_max=1)
    monkeypatch.setattr(window_batches, "read_batches", read_batches)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", 3)
        for number in range(9):
            kafka.produce("orders", value=b"x", partition=number % 3, timestamp_ms=BASE_MS)
        with (
            OrderedWindows(kafka.bootstrap, "g") as windows,
            windows.open(_window("orders")) as window,
        ):
            for _ in range(2):
                stream = window.to_batches()
                first = next(stream)
                assert len(list(tmp_path.iterdir())) == 1
                assert sum(one.num_rows for one in (first, *stream)) == 9
                assert list(tmp_path.iterdir()) == []
            next(window.to_batches())
    assert list(tmp_path.iterdir()) == []


def test_without_a_session_the_window_says_what_to_give(
    face: tuple[OrderedWindows, Window],
) -> None:
    """And what needs none."""
    windows, question = face
    with windows.open(question) as window:
        with pytest.raises(ConfigError, match="to_arrow"):
            window.read()
        with pytest.raises(ConfigError, match="ordered is 1"):
            window.to_batches(ordered=1)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no folder"):
            window.write(window.to_arrow())
        assert repr(window).endswith(" offsets>")


def test_a_block_with_an_output_must_write(
    face: tuple[OrderedWindows, Window], tmp_path: Path
) -> None:
    """Else nothing is committed."""
    windows, question = face
    with (
        pytest.raises(SinkError, match="neither written nor reported"),
        windows.open(question, tmp_path, window_id="w") as window,
    ):
        assert window.plan.offsets
    assert windows.show("w").status is WindowStatus.PLANNED


def test_records_that_are_gone_are_an_error_before_the_block(
    bootstrap: str, orders: str, group_id: str
) -> None:
    """A window that was committed can be read again until retention takes its records."""
    with OrderedWindows(bootstrap, group_id) as windows:
        with windows.open(_window(orders), window_id="w"):
            pass
        delete_before(bootstrap, orders, 2)
        with pytest.raises(RecordsLostError):
            windows.open(_window(orders), window_id="w").__enter__()


@pytest.mark.slow
def test_the_batches_are_exactly_the_plans_records_in_order(
    bootstrap: str, topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random records of four partitions with aborts and holes, also where memory holds almost none of them."""
    case = random_case(bootstrap, {topic(partitions=3): 3, topic(): 1}, seed=1)
    wanted = [(row.topic, row.partition, row.offset, row.value) for row in case.rows]
    asked: list[str] = []

    def folder() -> str:
        asked.append("asked")
        return str(tmp_path)

    for held_bytes_max in (1 << 30, 2_000):
        assert asked == []
        facts: list[Any] = []
        batches = window_batches.read_batches(
            case.plan,
            settings_of(bootstrap),
            folder,
            held_bytes_max=held_bytes_max,
            finished=facts.append,
        )
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert [(r["topic"], r["partition"], r["offset"], r["value"]) for r in rows] == wanted
        assert facts[0]["records"] == len(wanted)
        assert facts[0]["out_of_order"] == case.out_of_order
    assert asked == ["asked"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_killed_block_leaves_the_window_planned(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """`kill -9` in the middle of the records; the next process takes the same ones up."""
    orders = topic(partitions=2)
    produce((orders, n % 2, None, b"x", BASE_MS + n, ()) for n in range(5_000))
    script = f"""
        import os, signal
        from kafka_ordered_ops import OrderedWindows, Window

        windows = OrderedWindows({bootstrap!r}, group_id={group_id!r})
        question = Window({orders!r}, cutoff={at(25).isoformat()!r}, starting_offsets="earliest")
        with windows.open(question, window_id="w") as window:
            next(window.to_batches())
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=_TIMEOUT_S
    )
    assert done.returncode == -signal.SIGKILL
    produce([(orders, 0, None, b"later", BASE_MS, ())])
    with OrderedWindows(bootstrap, group_id) as windows:
        assert windows.show("w").status is WindowStatus.PLANNED
        with windows.open(_window(orders), window_id="w") as window:
            table = window.to_arrow()
        assert (window.plan.attempt, table.num_rows) == (2, 5_000)
        times = table["timestamp"].cast(pa.int64()).to_numpy()
        assert (times[:-1] <= times[1:]).all()
        with windows.open(_window(orders, 26)) as rest:
            assert rest.to_arrow()["value"].to_pylist() == [b"later"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("engine", ["python", "local"])
def test_a_session_reads_the_window_and_writes_its_output(
    spark: Any, bootstrap: str, orders: str, group_id: str, tmp_path: Path, engine: str
) -> None:
    """Hidden in the block, published after the commit; with either engine."""
    with OrderedWindows(bootstrap, group_id) as windows:
        with windows.open(_window(orders), tmp_path, spark=spark, engine=engine) as window:
            frame = window.read(ordered=True)
            assert [row.offset for row in frame.select("offset").collect()] == IN_ORDER
            staged = window.write(frame)
            assert not os.path.exists(staged.final_path)  # type: ignore[attr-defined]
        assert os.path.exists(staged.final_path)  # type: ignore[attr-defined]
        result = windows.run(_window(orders), tmp_path)
        assert (result.ran, result.records) == (False, 5)
