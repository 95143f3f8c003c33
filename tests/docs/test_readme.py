"""What the README shows of Python runs as written, on a real broker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest

from kafka_ordered_ops import Window
from tests.conftest import MakeTopic, Produce
from tests.support.spark_support import spark

__all__ = ["spark"]  # a fixture

README = Path(__file__).parents[2] / "README.md"
_NOON_MS = 1_700_481_600_000  # 2023-11-20T12:00:00Z


def block(heading: str, number: int = 0) -> str:
    """A block of Python below a heading."""
    section = README.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    blocks: list[str] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return blocks[number]


@pytest.fixture
def run(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path
) -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs a block in one namespace: with this test's broker, topic, group and folder, and on a day that is over."""
    orders = topic(partitions=2)
    produce(
        (orders, n % 2, b"k%d" % (n % 3), b"x", _NOON_MS + (n * 37 % 200 - 100) * 60_000, ())
        for n in range(200)
    )
    names = {"localhost:9092": bootstrap, '"orders"': repr(orders), "orders-hourly": group_id}
    names |= {"/lake": str(tmp_path), "2026-11-20T": "2023-11-20T"}
    space: dict[str, Any] = {"Window": Window}

    def run(code: str, **more: Any) -> dict[str, Any]:
        for shown, own in names.items():
            code = code.replace(shown, own)
        space.update(more)
        exec(code, space)
        return space

    yield run
    space["windows"].close()


def test_one_call_and_arrow(run: Any, tmp_path: Path) -> None:
    """The first call publishes all before noon; the block has the next hour, in order."""
    run(block("One call"))
    assert len(list((tmp_path / "orders").glob("window_id=*/part-*.parquet"))) == 1
    space = run(block("From Python"), duckdb=duckdb, polars=polars)
    times = space["orders"]["timestamp"].to_pylist()
    assert times == sorted(times)
    assert 0 < len(times) < 100
    assert {one.hour for one in times} == {12}
    assert [one.status for one in space["windows"].list()] == ["published"] * 2


@pytest.mark.slow
@pytest.mark.spark
def test_a_function_with_spark(run: Any, spark: Any, tmp_path: Path) -> None:
    """Its own result, published below the folder."""
    run(block("One call"))
    run(block("From Python", 1), spark=spark)
    [folder] = (tmp_path / "totals").glob("window_id=*")
    assert spark.read.parquet(f"file://{folder}").count() == 3
