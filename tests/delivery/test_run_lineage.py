"""OpenLineage's events of a plain run, by its own client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import OrderedWindows, Table, Window, WindowCoveredError
from kafka_ordered_ops.delivery.lineage import FACET, outputs_of, window_facts
from kafka_ordered_ops.spark.write.table_output import KeptOutput
from kafka_ordered_ops.spark.write.table_write import TableWrite
from kafka_ordered_ops.spec.table import TableLocation
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.windows_support import BASE_MS, at


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the client writes its events, by its usual variables."""
    file = tmp_path / "events"
    for name, value in {
        "TYPE": "file",
        "LOG_FILE_PATH": str(file),
        "APPEND": "true",
    }.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "lake")
    return file


def read(file: Path) -> list[dict[str, Any]]:
    """The events, one a line."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_sends_its_topics_window_and_files(events: Path, tmp_path: Path) -> None:
    """START when it is planned, COMPLETE with the files, FAIL with the error; the same run throughout."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for second in (0, 10):
            kafka.produce("orders", timestamp_ms=BASE_MS + second * 1000)
        with OrderedWindows(kafka.settings, "hourly") as windows:
            windows.run(
                Window("orders", at(5), starting_offsets="earliest"),
                str(tmp_path / "out"),
                window_id="one",
            )

            def fails(window: Any) -> None:
                raise OSError("the disk is full")

            with pytest.raises(OSError, match="disk"):
                windows.run(Window("orders", at(20)), job=fails, window_id="two")
        brokers = kafka.settings["bootstrap.servers"]
    start, complete, again, fail = read(events)
    kinds = [one["eventType"] for one in (start, complete, again, fail)]
    assert kinds == ["START", "COMPLETE", "START", "FAIL"]
    assert start["run"]["runId"] == complete["run"]["runId"] != fail["run"]["runId"]
    assert {(one["job"]["namespace"], one["job"]["name"]) for one in (start, fail)} == {
        ("lake", "hourly")
    }
    assert [one["name"] for one in start["inputs"]] == ["orders"]
    assert start["inputs"][0]["namespace"] == f"kafka://{brokers}"
    assert (start["outputs"], fail["outputs"]) == ([], [])
    [output] = complete["outputs"]
    assert (output["namespace"], output["name"]) == ("file", str(tmp_path / "out/window_id=one"))
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 1
    window = complete["run"]["facets"][FACET]
    assert (window["window_id"], window["status"], window["offsets"]) == ("one", "published", 1)
    assert window["partitions"] == {"orders[0]": {"from": 0, "up_to": 1, "offsets": 1, "ranges": 1}}
    assert fail["run"]["facets"]["errorMessage"]["message"] == "OSError: the disk is full"


def test_a_block_sends_what_it_has_written(events: Path, tmp_path: Path) -> None:
    """START with its window, COMPLETE with its files; FAIL if it raises, and nothing where there is nothing to do."""
    with InMemoryKafka() as kafka, OrderedWindows(kafka.settings, "hourly") as windows:
        kafka.create_topic("orders")
        kafka.produce("orders", timestamp_ms=BASE_MS)
        window = Window("orders", at(5), starting_offsets="earliest")
        with (
            pytest.raises(OSError, match="disk"),
            windows.open(window, str(tmp_path / "out"), window_id="w"),
        ):
            raise OSError("the disk is full")
        with windows.open(window, str(tmp_path / "out"), window_id="w") as opened:
            opened.write(opened.to_arrow())
        with pytest.raises(WindowCoveredError), windows.open(window, window_id="again"):
            pass
    told = read(events)
    assert [one["eventType"] for one in told] == ["START", "FAIL", "START", "COMPLETE"]
    [output] = told[-1]["outputs"]
    assert output["name"] == str(tmp_path / "out/window_id=w")
    assert told[-1]["run"]["facets"][FACET]["status"] == "published"


def test_a_window_is_delivered_whether_others_hear_of_it_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A transport that does not exist is a warning; without configuration nothing is loaded."""
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "carrier-pigeon")
    with InMemoryKafka() as kafka, OrderedWindows(kafka.settings, "hourly") as windows:
        kafka.create_topic("orders")
        kafka.produce("orders", timestamp_ms=BASE_MS)
        window = Window("orders", at(5), starting_offsets="earliest")
        assert windows.run(window, str(tmp_path / "out")).records == 1
    assert "OpenLineage: no events are sent" in caplog.text


@pytest.mark.parametrize(
    ("location", "place", "symlink"),
    [
        (
            TableLocation("/lake/orders", "/lake", "db.orders"),
            ("file", "/lake/orders"),
            ("file:/lake", "db.orders"),
        ),
        (
            TableLocation("s3://lake/db/orders", "s3a://lake/", "db.orders"),
            ("s3://lake", "db/orders"),
            ("s3://lake", "db.orders"),
        ),
        (
            TableLocation("gs://lake/orders", "http://catalog:8181/api/", "db.orders"),
            ("gs://lake", "orders"),
            ("http://catalog:8181/api/", "db.orders"),
        ),
        (
            TableLocation("hdfs://nn/lake/orders", "thrift://metastore:9083", "db.orders"),
            ("hdfs://nn", "/lake/orders"),
            ("hive://metastore:9083", "db.orders"),
        ),
        (TableLocation("file:/lake/orders"), ("file", "/lake/orders"), None),
        (None, None, None),
    ],
)
def test_a_table_is_named_by_its_files_and_by_its_catalogue(
    location: TableLocation | None, place: tuple[str, str] | None, symlink: tuple[str, str] | None
) -> None:
    """As the ledger has it, and as Spark's listener names it; an output without a location is in the facet only."""
    with InMemoryKafka() as kafka, OrderedWindows(kafka.settings, "hourly") as windows:
        kafka.create_topic("orders")
        kafka.produce("orders", timestamp_ms=BASE_MS)
        plan = windows.plan(Window("orders", at(5), starting_offsets="earliest"), "w")
        kept = KeptOutput(
            Table("lake.db.orders"),
            "iceberg",
            TableWrite.of(plan),
            {"records": 1, "elapsed_ms": 1},
            None,
            True,
            location=location,
        )
        windows.mark_written(plan, kept.to_json())
        facts = window_facts(windows.show("w"))
    assert facts["output"] == "lake.db.orders"
    outputs = outputs_of(facts)
    assert [(one.namespace, one.name) for one in outputs] == ([] if place is None else [place])
    for output in outputs:
        assert output.outputFacets["outputStatistics"].rowCount == 1
        links = output.facets["symlinks"].identifiers if "symlinks" in output.facets else []
        found = [(one.namespace, one.name, one.type) for one in links]
        assert found == ([] if symlink is None else [(*symlink, "TABLE")])
