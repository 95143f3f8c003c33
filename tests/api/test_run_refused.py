"""Calls of `OrderedWindows.run` that cannot be: refused by name, before anything is planned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import (
    Application,
    ConfigError,
    Copy,
    Folder,
    Function,
    KafkaOrderedOpsError,
    OpenWindow,
    OrderedWindows,
    Policy,
    Table,
    Window,
)
from kafka_ordered_ops.spark import SparkSubmit, TableSink
from tests.support.run_support import face as face
from tests.support.run_support import hour
from tests.support.run_support import kafka as kafka
from tests.support.submit_support import application

_READS = """
    import json, sys
    from pathlib import Path
    print("never run by Spark here")
"""


async def _async(window: OpenWindow) -> None: ...


def _application(tmp: Path, *given: Any, **more: Any) -> dict[str, Any]:
    return {"job": Application(tmp / "job.py", *given, **more)}


def _table(*given: Any, **more: Any) -> dict[str, Any]:
    return {"output": Table(*given, **more), "spark": _Session()}


BAD: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "nothing to do": (lambda _: {}, "give output"),
    "s3: bare bucket": (lambda _: {"output": "s3://lake"}, "bare bucket"),
    "s3: an option": (
        lambda _: {"output": Folder("s3://lake/orders", storage_options={"aws_regoin": "x"})},
        "aws_regoin",
    ),
    "options without a store": (
        lambda tmp: {"output": Folder(tmp, storage_options={})},
        "object store",
    ),
    "options: text": (lambda tmp: {"output": Folder(tmp, storage_options="x")}, "is a str"),  # type: ignore[arg-type]
    "a connection of Airflow": (
        lambda _: {"output": Folder("s3://lake/orders", storage_conn_id="lake")},
        "not an Airflow task",
    ),
    "two credentials": (
        lambda _: {"output": Folder("s3://b/k", storage_options={}, storage_conn_id="lake")},
        "give the credentials once",
    ),
    "output: number": (lambda _: {"output": 5}, "output is 5"),
    "output: class": (lambda _: {"output": TableSink}, "TableSink"),
    "output: empty": (lambda _: {"output": " "}, "name a folder"),
    "output: a file": (lambda tmp: {"output": str(tmp / "job.py")}, "cannot be written"),
    "output: a template": (lambda _: {"output": "/lake/{{ ds }}"}, "path of the output .*template"),
    "job: async": (lambda _: {"job": _async}, "async function"),
    "job: text": (lambda _: {"job": "job.py"}, "give Application"),
    "job: number": (lambda _: {"job": 5}, "give a function of the window"),
    "job: class": (lambda _: {"job": Copy}, "give a function of the window"),
    "function: text": (lambda _: {"job": Function("job")}, "function of window"),  # type: ignore[arg-type]
    "job: two arguments": (lambda _: {"job": lambda a, b: None}, "called with window"),
    "function: keywords": (
        lambda _: {"job": Function(lambda window: None, {"least": 1})},
        "called with window and least",
    ),
    "function: no keywords": (
        lambda _: {"job": Function(lambda window: None, 5)},  # type: ignore[arg-type]
        "keywords is a int",
    ),
    "function: conf": (
        lambda _: {"job": Function(print, conf={"spark.x": "1"})},
        "set them on the session",
    ),
    "conf: no setting": (lambda tmp: {"output": tmp, "job": Copy(conf={"x": "1"})}, "begin with"),
    "application: missing": (lambda tmp: {"job": Application(tmp / "gone.py")}, "no application"),
    "application: number": (lambda _: {"job": Application(5)}, "application is the path"),  # type: ignore[arg-type]
    "application: memory": (lambda tmp: _application(tmp), "another process"),
    "application: spark": (
        lambda tmp: {**_application(tmp), "spark": _Session()},
        "creates its own session",
    ),
    "application: bytes": (
        lambda _: {"job": Application(_Path(b"job.py"))},
        "application is the path",
    ),
    "application: no path": (lambda _: {"job": Application(_Path(5))}, "application is the path"),
    "output: bytes": (lambda _: {"output": _Path(b"out")}, "name a folder"),
    "output: no path": (lambda _: {"output": _Path(5)}, "name a folder"),
    "arguments: number": (lambda tmp: _application(tmp, 5), "give a list"),
    "arguments: generator": (lambda tmp: _application(tmp, map(str, [1])), "give a list"),
    "arguments: NUL": (lambda tmp: _application(tmp, ["a\0b"]), "NUL"),
    "arguments: text": (lambda tmp: _application(tmp, "--slow"), "give a list"),
    "submit": (
        lambda tmp: _application(tmp, submit={"mastre": "local"}),
        "'mastre'.*did you mean 'master'",
    ),
    "submit: class": (lambda tmp: _application(tmp, submit=SparkSubmit), "submit"),
    "spark: class": (lambda tmp: {"output": tmp, "spark": _Session}, "spark is .*SparkSession"),
    "spark: text": (lambda tmp: {"output": tmp, "spark": "local[2]"}, "spark is 'local"),
    "engine": (lambda tmp: {"output": tmp, "job": Copy("jvm")}, "'jvm'.*connector"),
    "engine without Spark": (lambda tmp: {"output": tmp, "job": Copy("python")}, "give spark="),
    "ordered": (lambda tmp: {"output": tmp, "job": Copy(ordered="yes")}, "ordered is 'yes'"),  # type: ignore[arg-type]
    "table: no Spark": (lambda _: {"output": Table("lake.orders")}, "give spark="),
    "table: conf": (
        lambda _: _table("t", conf={"spark.sql.catalog.lake": "x"}),
        "set them on the session",
    ),
    "table: number": (lambda _: _table(5), "table is 5"),
    "table: mode": (lambda _: _table("t", "upsert"), "one of 'append', 'replace', 'merge'"),
    "table: near mode": (lambda _: _table("t", "repalce"), "did you mean 'replace'"),
    "table: no keys": (lambda _: _table("t", "merge"), "needs keys"),
    "table: keys twice": (lambda _: _table("t", "merge", keys=["a", "a"]), "twice"),
    "table: keys": (lambda _: _table("t", keys="a"), "keys is for mode 'merge'"),
    "table: tombstones": (
        lambda _: _table("t", delete_tombstones=True),
        "delete_tombstones is for mode 'merge'",
    ),
    "table: driver in the cluster": (
        lambda tmp: {
            "output": Table("t"),
            **_application(tmp, submit={"master": "yarn", "deploy_mode": "cluster"}),
        },
        "the table t has none: use client mode",
    ),
    "store: driver in the cluster": (
        lambda tmp: {
            "output": "s3://bucket/lake",
            **_application(tmp, submit={"master": "yarn", "deploy_mode": "cluster"}),
        },
        "the output s3://bucket/lake is none: use client mode",
    ),
    "policy": (lambda tmp: {"output": tmp, "policy": Policy}, "policy is"),
    "policy: a template": (
        lambda tmp: {"output": tmp, "policy": Policy("{{ params.x }}")},
        "on_covered of the policy .*template",
    ),
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
        face.run(window, "/tmp")
    with pytest.raises(ConfigError, match="give a Window"), face.open(window):
        pass


def test_a_window_that_cannot_be_planned_leaves_nothing(
    face: OrderedWindows, tmp_path: Path
) -> None:
    """The service's own errors pass as they are."""
    with pytest.raises(KafkaOrderedOpsError, match="nowhere"):
        face.run(hour("nowhere"), tmp_path)
