"""What the functions for Spark are given by mistake is refused by name, before a session or a folder is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_ordered_ops import ConfigError, Earliest, WindowPlan
from kafka_ordered_ops import spark as room
from kafka_ordered_ops.output.writing import stage as stages
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import ClientSettings, OrderedWindows
from tests.support.windows_support import BASE_MS, before

#: Given what their types would not allow.
spark: Any = room
stage: Any = stages
settings: Any = ClientSettings


class _Session:
    """As much of a session as is looked at."""

    createDataFrame = print


@pytest.fixture
def given() -> Iterator[tuple[dict[str, str], WindowPlan]]:
    """Settings, and a plan of five records."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("t")
        for number in range(5):
            kafka.produce("t", value=b"x", timestamp_ms=BASE_MS + number)
        with OrderedWindows(kafka.settings, "g") as windows:
            question = before("t", 10, Earliest())
            yield kafka.settings, windows.plan(question, "w")


_TABLE = pa.table({"secret": ["hunter2"]})

#: Each with the settings, the plan and a folder; and what is said.
CASES: dict[str, tuple[Callable[[Any, Any, Path], object], str]] = {
    "read: session": (lambda s, p, _: spark.read_window(None, p, s), "spark is None"),
    "read: class": (lambda s, p, _: spark.read_window(_Session, p, s), "spark is <class"),
    "read: one": (lambda s, p, _: spark.read_windows(_Session(), p, s), "list of window plans"),
    "read: generator": (
        lambda s, p, _: spark.read_windows(_Session(), iter([p]), s),
        "list of window plans",
    ),
    "write: table": (
        lambda s, p, to: spark.write_window(_TABLE, to, p),
        "DataFrame, and not a Table",
    ),
    "write: none": (lambda s, p, to: spark.write_window(None, to, p), "and not a NoneType"),
    "write: plan": (
        lambda s, p, to: spark.write_window(_TABLE, to, "w"),
        "list of window plans",
    ),
    "write: many": (lambda s, p, to: spark.write_windows(_TABLE, to, [p]), "and not a Table"),
    "stage: none": (lambda s, p, to: stage.stage_window(None, s, to), "list of window plans"),
    "stage: generator": (
        lambda s, p, to: stage.stage_windows(iter([p]), s, to),
        "list of window plans",
    ),
    "stage: rows": (
        lambda s, p, to: stage.stage_window(p, s, to, rows_per_file=1.5),
        "rows_per_file",
    ),
    "stage: bytes": (
        lambda s, p, to: stage.stage_window(p, s, to, limit_bytes="5"),
        "limit_bytes is '5'",
    ),
    "stage: ordered": (
        lambda s, p, to: stage.stage_window(p, s, to, ordered="no"),
        "ordered is 'no'",
    ),
    "sink: session": (lambda *_: spark.TableSink(None, "t"), "spark is None"),
    "sink: table": (lambda *_: spark.TableSink(_Session(), 5), "table is 5"),
    "sink: mode": (lambda *_: spark.TableSink(_Session(), "t", "apend"), "did you mean 'append'"),
    "sink: no keys": (lambda *_: spark.TableSink(_Session(), "t", "merge"), "needs keys"),
    "sink: keys": (
        lambda *_: spark.TableSink(_Session(), "t", keys=["k"]),
        "keys is for mode 'merge'",
    ),
    "settings: key": (lambda s, *_: settings.from_mapping({**s, 5: "x"}), "setting is 5"),
    "settings: allowed": (
        lambda s, *_: settings.from_mapping(s, extra_allowed=[5]),
        "extra_allowed contains 5",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_odd_input_is_refused_by_name(
    given: tuple[dict[str, str], WindowPlan], tmp_path: Path, case: str
) -> None:
    """Without what is in it, where that is data."""
    call, words = CASES[case]
    with pytest.raises(ConfigError, match=words) as refused:
        call(*given, tmp_path / "out")
    assert "hunter2" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_one_more_allowed_setting_is_one() -> None:
    """And not its letters."""
    mapping = {"bootstrap.servers": "h:1", "foo.bar": "b"}
    for allowed in ("foo.bar", ["foo.bar"], {"foo.bar"}):
        settings.from_mapping(mapping, extra_allowed=allowed)
