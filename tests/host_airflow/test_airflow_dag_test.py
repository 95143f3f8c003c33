"""Whole DAGs by ``dag.test()``: templates, XComs, mapping, skips and retries are Airflow's own here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.logs import write_afresh
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_RUN_TIMEOUT_S = 300.0
_DAG_FILES = Path(__file__).parent / "dag_files"


@dataclass(frozen=True)
class Runs:
    """What became of the DAGs, each of which ran once."""

    bootstrap: str
    topic: str
    output: Path
    told: dict[str, Any]

    def states(self, dag_id: str) -> dict[str, str]:
        """How a run and its tasks ended."""
        told = self.told[dag_id]
        return {"run": told["state"], **told["tasks"]}

    def returned(self, dag_id: str, task: str) -> Any:
        """A task's XCom."""
        return self.told[dag_id]["returned"][task]

    def status(self, dag_id: str) -> WindowStatus:
        """Of a DAG's one window."""
        group_id = f"{self.topic}-{dag_id}"
        with OrderedWindows({"bootstrap.servers": self.bootstrap}, group_id) as windows:
            return windows.show(dag_id).status

    def offsets(self, dag_id: str) -> list[int]:
        """What a reader of the output sees, file after file."""
        files = sorted((self.output / dag_id).glob("window_id=*/part-*.parquet"))
        tables = [pq.read_table(file, columns=["offset"]) for file in files]
        return [offset for table in tables for offset in table["offset"].to_numpy().tolist()]


@pytest.fixture(scope="module")
def runs(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A database, a topic with the records of `orders`, and one run of every DAG."""
    folder, topic = tmp_path_factory.mktemp("dag_test"), f"dag-test-{uuid.uuid4().hex[:12]}"
    new = NewTopic(topic, num_partitions=1, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    write_afresh(bootstrap, topic, 0, [BASE_MS + s * 1000 for s in (0, 10, 20, 5, 30, 15)])
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}}
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(folder / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(_DAG_FILES),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(connection),
        "KAFKA_BOOTSTRAP": bootstrap,
        "RECORDS_FROM": at(0).isoformat(),
        "RECORDS_TOPIC": topic,
        "RECORDS_OUTPUT": str(folder / "output"),
    }
    for command in (
        ["-m", "airflow", "db", "migrate"],
        [str(_DAG_FILES / "windows.py"), str(folder / "told.json")],
    ):
        done = subprocess.run(
            [sys.executable, *command],
            env=environment,
            # A folder of its own: nothing is found only because it lies around here.
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_RUN_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-20_000:]}"
    told = json.loads((folder / "told.json").read_text())
    return Runs(bootstrap, topic, folder / "output", told)


def test_plan_job_and_commit_by_xcom(runs: Runs) -> None:
    """Group, window and cutoff are templates; the job is told the window, and the commit publishes it."""
    assert set(runs.states("separate").values()) == {"success"}
    told = runs.returned("separate", "plan")
    assert (told["group"], told["window_id"]) == (f"{runs.topic}-separate", "separate")
    assert told["ranges"] == {f"{runs.topic}[0]": [[0, 2], [3, 4]]}
    assert runs.returned("separate", "commit")["records"] == 3
    assert runs.offsets("separate") == [0, 3, 1]
    assert runs.status("separate") is WindowStatus.PUBLISHED


def test_a_task_is_mapped_over_the_parts(runs: Runs) -> None:
    """Two tasks, and one commit that joins what they have written."""
    states = runs.states("parts")
    assert states.keys() == {"run", "plan", "part[0]", "part[1]", "commit"}
    assert set(states.values()) == {"success"}
    assert [runs.returned("parts", f"part[{n}]")["part"] for n in (0, 1)] == [0, 1]
    assert runs.returned("parts", "commit")["records"] == 5
    assert sorted(runs.offsets("parts")) == [0, 1, 2, 3, 5]


def test_an_empty_window_skips_what_waits_for_it(runs: Runs) -> None:
    """The run is a success, and the window is done."""
    skipped = dict.fromkeys(("plan", "written", "commit"), "skipped")
    assert runs.states("empty") == {"run": "success", **skipped}
    assert runs.status("empty").is_done


def test_a_teardown_lets_go_of_a_window_whose_job_failed(runs: Runs) -> None:
    """Its offsets are free; the run is a failure."""
    assert runs.states("let_go") == {
        "run": "failed",
        "plan": "success",
        "broken": "failed",
        "commit": "upstream_failed",
        "let_go": "success",
    }
    assert runs.status("let_go") is WindowStatus.ABANDONED


def test_a_job_is_tried_again_behind_a_sensor(runs: Runs) -> None:
    """With the same records, and what another task told it."""
    assert set(runs.states("waits").values()) == {"success"}
    assert runs.returned("waits", "live")["live"] is True
    facts = runs.returned("waits", "window")
    assert (facts["attempt"], facts["records"], facts["result"]) == (2, 5, 10 * 11)


def test_a_record_that_fails_is_processed_by_the_next_try(runs: Runs) -> None:
    """And only what the first try left: a second call for a record would fail."""
    assert runs.states("processed") == {"run": "success", "charge": "success"}
    facts = runs.returned("processed", "charge")
    assert (facts["attempt"], facts["failed"], facts["output"]) == (2, 0, None)
    assert facts["succeeded"] + facts["earlier_offsets"] == 5
    assert facts["earlier_offsets"] > 0
    calls = {path.name for path in (runs.output / "processed").iterdir()}
    assert calls == {"failed", "0", "1", "2", "3", "5"}
    assert runs.status("processed") is WindowStatus.PUBLISHED
