"""OpenLineage's events of the command line, as a server gets them from its client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops.delivery.lineage import FACET
from tests.support.answering import answering
from tests.support.cli_support import NOWHERE, Cluster, Outcome, at, cli
from tests.support.cli_support import cluster as cluster

pytestmark = pytest.mark.slow


@dataclass
class Server:
    """What gets the events."""

    address: str
    bodies: list[bytes]

    def command(self, *words: object) -> tuple[Outcome, list[dict[str, Any]]]:
        """Runs one command; gives its outcome, and the events that it has sent by its end."""
        before = len(self.bodies)
        outcome = cli(*words, "--json", env={"OPENLINEAGE_URL": f"http://{self.address}"})
        assert outcome.code == 0, outcome.stderr
        return outcome, [json.loads(body) for body in self.bodies[before:]]


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that keeps all events."""
    bodies: list[bytes] = []
    with answering((201, b""), bodies) as address:
        yield Server(address, bodies)


def kinds(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Of each event its kind, and the window that it is about."""
    return [(one["eventType"], one["run"]["facets"][FACET]["window_id"]) for one in events]


def test_every_command_that_delivers_sends_its_windows(
    cluster: Cluster, server: Server, tmp_path: Path
) -> None:
    """Of a series each window in a run of its own; a sweep, a replay, and a commit of another job's window."""
    question = ("-t", cluster.topic, "--starting-offsets", "earliest", *cluster.sink())
    series = ("--since", at(15), "--every", "PT15S", "--until", at(45))
    outcome, events = server.command("run", *cluster.where, *question, *series)
    delivered = outcome.json["windows"]
    first, second = (one["window_id"] for one in delivered)
    assert kinds(events) == [
        ("START", first),
        ("START", second),
        ("COMPLETE", first),
        ("COMPLETE", second),
    ]
    runs = [one["run"]["runId"] for one in events]
    assert runs[:2] == runs[2:]
    assert len(set(runs)) == 2
    for event, window in zip(events[2:], delivered, strict=True):
        assert event["job"]["name"] == cluster.group_id
        [topic], [files] = event["inputs"], event["outputs"]
        assert topic == {"namespace": f"kafka://{cluster.bootstrap}", "name": cluster.topic} | {
            "facets": {},
            "inputFacets": {},
        }
        assert (files["namespace"], files["name"]) == ("file", window["output"])
        assert files["outputFacets"]["outputStatistics"]["rowCount"] == window["records"]
    sweep = ("-t", cluster.topic, "--cutoff", at(45), *cluster.sink())
    outcome, events = server.command("windows", "sweep", *cluster.where, *sweep)
    swept = outcome.json["window_id"]
    assert kinds(events) == [("START", swept), ("COMPLETE", swept)]
    assert events[1]["outputs"][0]["name"] == outcome.json["output"]
    again = ("--output", tmp_path / "again", "--engine", "local")
    outcome, events = server.command("windows", "replay", *cluster.where, first, *again)
    assert kinds(events) == [("START", first), ("COMPLETE", first)]
    assert events[1]["outputs"][0]["name"] == outcome.json["output"]
    assert str(tmp_path / "again") in outcome.json["output"]
    planned = ("-t", cluster.topic, "--since", at(45), "--cutoff", at(60), "--window-id", "own")
    assert server.command("windows", "plan", *cluster.where, *planned)[1] == []
    _, events = server.command("windows", "commit", *cluster.where, "own")
    assert kinds(events) == [("START", "own"), ("COMPLETE", "own")]
    assert ([one["name"] for one in events[1]["inputs"]], events[1]["outputs"]) == (
        [cluster.topic],
        [],
    )


def test_a_server_that_is_away_is_asked_twice(cluster: Cluster) -> None:
    """However many windows there are: they are published, the result is on stdout, and the loss is a warning."""
    series = ("--cutoff", at(15), "--every", "PT15S", "--until", at(60))
    question = ("-t", cluster.topic, "--starting-offsets", "earliest", *cluster.sink())
    transport = {"TYPE": "http", "URL": f"http://{NOWHERE}", "RETRY": '{"total": 0}'}
    outcome = cli(
        *("run", *cluster.where, *question, *series, "--json"),
        env={f"OPENLINEAGE__TRANSPORT__{name}": value for name, value in transport.items()},
    )
    assert outcome.code == 0, outcome.stderr
    assert [one["status"] for one in outcome.json["windows"]] == ["published"] * 4
    lost = [line for line in outcome.stderr.splitlines() if "OpenLineage: " in line]
    assert [line.partition("OpenLineage: ")[2].split()[0] for line in lost] == ["START", "COMPLETE"]
