"""OpenLineage's events of a plain run, by its own client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.delivery.lineage import FACET
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
