"""An Airflow for tests that runs their scenarios and the example DAGs beside a broker, and what they have in common."""

from __future__ import annotations

import json
import random
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.airflow_support import Airflow, free_ports, standalone
from tests.support.delivered import Records, committed, ms_of, times
from tests.support.spark_support import _java_home as java_home

ROOT: Final = Path(__file__).parents[2]
SCENARIOS: Final = ROOT / "tests" / "host_airflow"
T0: Final = datetime(2025, 3, 1, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
PARTITIONS: Final = 3

#: In the folder of outputs: what OpenLineage was told, one event a line.
LINEAGE: Final = "openlineage.json"


@dataclass(frozen=True)
class House:
    """An Airflow with the DAGs of the tests and the examples, beside a broker."""

    airflow: Airflow
    bootstrap: str
    run: str
    output: Path
    dags: Path
    #: Where the examples look for a server of the relay, which a test starts.
    relay_address: str

    def name(self, dag_id: str) -> str:
        """A scenario's topic and group."""
        return f"{dag_id}-{self.run}"

    def windows(self, group_id: str) -> OrderedWindows:
        """The service for a group."""
        return OrderedWindows({"bootstrap.servers": self.bootstrap}, group_id, timeout_s=60)

    def statuses(self, dag_id: str) -> list[WindowStatus]:
        """What has become of a scenario's windows, by cutoff."""
        with self.windows(self.name(dag_id)) as windows:
            return [record.status for record in windows.list()]

    def committed(self, dag_id: str) -> dict[int, tuple[int, str] | None]:
        """A scenario's committed offsets, with their offset maps, by partition."""
        with self.windows(self.name(dag_id)) as windows:
            return committed(windows, self.name(dag_id), PARTITIONS)

    def signal(self, dag_id: str, name: str) -> Path:
        """A file by which a held task and its test talk."""
        return self.output / f"{dag_id}.signals" / name

    def told(self, dag_id: str, name: str) -> str:
        """Waits for what a held task says."""
        path = self.signal(dag_id, name)
        self.airflow.until(path.exists, lambda: f"{name}:\n{self.airflow.stories(dag_id)}")
        return path.read_text()

    def let_go(self, dag_id: str, attempt: int) -> None:
        """Has a held task go on."""
        self.signal(dag_id, f"{attempt}.go").touch()

    def lineage_of(self, job: str) -> list[dict[str, Any]]:
        """What OpenLineage was told of a job, in order."""
        file = self.output / LINEAGE
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        # The last one may be on its way.
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event["job"]["name"] == job]

    def ends_of(self, job: str, count: int) -> list[dict[str, Any]]:
        """What OpenLineage was told of the ends of a task's runs, once there are so many."""

        def found() -> list[dict[str, Any]]:
            ends = [event for event in self.lineage_of(job) if event["inputs"]]
            return ends if len(ends) == count else []

        return self.airflow.until(found, lambda: f"the end of {job}: {self.lineage_of(job)}")


@pytest.fixture(scope="module")
def house(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One Airflow for all tests here; its start takes longer than most of them."""
    root = tmp_path_factory.mktemp("airflow")
    dags = root / "dags"
    shutil.copytree(SCENARIOS / "scenarios", dags / "scenarios")
    shutil.copytree(ROOT / "example_dags", dags / "examples")
    for file in (dags / "examples").glob("*.py"):
        # By the clock there would be one more run for tests that begin just after the hour.
        file.write_text(re.sub(r'schedule="@\w+"', "schedule=None", file.read_text()))
    with airflow_house(bootstrap, root, dags) as found:
        yield found


@contextmanager
def airflow_house(
    bootstrap: str, root: Path, dags: Path, variables: Mapping[str, str] | None = None
) -> Iterator[House]:
    """An Airflow beside a broker.

    Args:
        bootstrap: of the broker.
        root: a folder for all that is written.
        dags: the folder with DAG files.
        variables: more of the environment of Airflow and all tasks.
    """
    run, home, output = uuid.uuid4().hex[:8], root / "home", root / "output"
    home.mkdir()
    output.mkdir(exist_ok=True)
    java = java_home()
    nobody, relay_port = free_ports(2)
    relay_address = f"127.0.0.1:{relay_port}"
    environment = {
        "SCENARIO_RUN": run,
        "SCENARIO_OUTPUT": str(output),
        "ORDERS_TOPIC": f"orders-{run}",
        "ORDERS_OUTPUT": str(output),
        "ORDERS_POKE_S": "2",
        "ORDERS_RELAY": f"http://{relay_address}",
        "KAFKA_BOOTSTRAP": bootstrap,
        "SPARK_MASTER": "local[1]",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # How long a worker listens to what a dead task has started, before it tells of the death.
        "AIRFLOW__WORKERS__SOCKET_CLEANUP_TIMEOUT": "5",
        # By default 5 s, which a busy machine takes now and then: the executor would fail the task.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
        # Of one DAG alone: each event costs the task a moment.
        "AIRFLOW__OPENLINEAGE__EMISSION_POLICY": json.dumps(
            [
                {"scope": {}, "controls": {"emit": False}},
                {"scope": {"dag_id": "lineage"}, "controls": {"emit": True}},
            ]
        ),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
            {"type": "file", "log_file_path": str(output / LINEAGE), "append": True}
        ),
        **({} if java is None else {"JAVA_HOME": str(java)}),
        **(variables or {}),
    }
    with standalone(home, dags, environment) as airflow:
        airflow.connect("kafka_default", "kafka", _extra(bootstrap))
        airflow.connect("kafka_away", "kafka", _extra(f"127.0.0.1:{nobody}"))
        yield House(airflow, bootstrap, run, output, dags, relay_address)


def _extra(bootstrap: str) -> dict[str, Any]:
    """As people have it for the Kafka provider: with a group and automatic commits, too."""
    return {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": True}


@pytest.fixture
def fill(house: House, topic: MakeTopic, produce: Produce) -> Callable[..., Records]:
    """Makes a scenario's topic, with records of these times in no order."""

    def write(dag_id: str, times: Iterable[datetime]) -> Records:
        name = topic(house.name(dag_id), partitions=PARTITIONS)
        return scatter(produce, name, times)

    return write


def scatter(produce: Produce, topic: str, times: Iterable[datetime]) -> Records:
    """Writes records of these times to a topic, in no order, each to a partition by chance."""
    rng = random.Random(topic)
    placed = [(rng.randrange(PARTITIONS), time) for time in times]
    rng.shuffle(placed)
    offsets = produce((topic, n, None, b"x", ms_of(time), ()) for n, time in placed)
    return {(n, offset): time for (n, time), offset in zip(placed, offsets, strict=True)}


def up_to(cutoff: datetime) -> dict[str, Any]:
    """What a run is told of its time, beside its schedule."""
    return {"conf": {"cutoff": cutoff.isoformat()}}


@pytest.fixture(scope="module")
def hour() -> datetime:
    """The end of the window that the examples ask for."""
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - HOUR


@pytest.fixture(scope="module")
def orders(house: House, hour: datetime) -> Records:
    """The examples' topic, with the same records for all of them."""
    name, records = f"orders-{house.run}", Records()
    admin = AdminClient({"bootstrap.servers": house.bootstrap})
    new = NewTopic(name, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin.create_topics([new])[name].result(30)
    producer = Producer({"bootstrap.servers": house.bootstrap, "enable.idempotence": True})
    for place, time in enumerate(times(hour - 2 * HOUR, hour + HOUR)):
        offset, partition = divmod(place, PARTITIONS)
        producer.produce(name, b"x", partition=partition, timestamp=ms_of(time))
        records[partition, offset] = time
    assert producer.flush(30) == 0
    return records
