"""A Dagster for tests that runs their scenarios and the example beside a broker, and what they have in common."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.dagster import window_id_of
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.airflow_support import free_ports
from tests.support.dagster_real import Dagster, dagster_dev
from tests.support.delivered import Records, committed, delivered, ms_of, within
from tests.support.spark_support import _java_home as java_home

ROOT: Final = Path(__file__).parents[2]
T0: Final = datetime(2025, 3, 1, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
PARTITIONS: Final = 3
KEYS: Final = [f"2025-03-01-{hour:02}:00" for hour in range(8)]


@dataclass(frozen=True)
class House:
    """A Dagster with the definitions of the tests and the example, beside a broker."""

    dagster: Dagster
    bootstrap: str
    run: str
    output: Path
    #: The run of the asset whose broker is away, if there is one.
    away: str = ""
    #: What was written into each scenario's topic.
    records: dict[str, Records] = field(default_factory=dict)

    def name(self, asset: str) -> str:
        """A scenario's topic and group."""
        return f"{asset}-{self.run}"

    def fill(self, asset: str, times: Iterable[datetime]) -> None:
        """Makes a scenario's topic, with records of these times in no order."""
        make_topic(self.bootstrap, self.name(asset))
        self.records[asset] = write(self.bootstrap, self.name(asset), times)

    def windows(self, asset: str) -> OrderedWindows:
        """The service for a scenario's group."""
        return OrderedWindows({"bootstrap.servers": self.bootstrap}, self.name(asset), timeout_s=60)

    def statuses(self, asset: str) -> list[WindowStatus]:
        """What has become of a scenario's windows, by cutoff."""
        with self.windows(asset) as windows:
            return [record.status for record in windows.list()]

    def committed(self, asset: str) -> dict[int, tuple[int, str] | None]:
        """A scenario's committed offsets, with their offset maps, by partition."""
        with self.windows(asset) as windows:
            return committed(windows, self.name(asset), PARTITIONS)

    def signalled(self, asset: str, what: str) -> str:
        """Waits for what a held step says."""
        path = self.output / f"{asset}.signals" / what
        self.dagster.until(path.exists, lambda: f"{what}:\n{self.dagster.log_tail()}")
        return path.read_text()

    def let_go(self, asset: str, attempt: int) -> None:
        """Has a held step go on."""
        (self.output / f"{asset}.signals" / f"{attempt}.go").touch()

    def check_delivered(self, asset: str, hours: Iterable[int]) -> None:
        """Each partition holds its own hour, once, and was told its own numbers; nothing else is there."""
        told, every = self.dagster.told(asset), []
        assert set(told) == {KEYS[hour] for hour in hours}
        for hour in hours:
            wanted = within(self.records[asset], T0 + (hour + 1) * HOUR, T0 + hour * HOUR)
            newest = told[KEYS[hour]][0]
            assert delivered(newest["dagster/uri"]) == wanted
            assert newest["dagster/partition_row_count"] == len(wanted)
            assert newest["kafka_ordered_ops/window_id"] == window_id_of(asset, KEYS[hour])
            every += wanted
        assert delivered(self.output / asset) == sorted(every)
        assert self.statuses(asset) == [WindowStatus.PUBLISHED] * len(list(hours))

    def mark(self, asset: str, time: datetime, partitions: Iterable[int]) -> None:
        """Writes one record of a time into each of these partitions of a topic."""
        for partition in partitions:
            self.records[asset] |= write(self.bootstrap, self.name(asset), [time], partition)

    # --- sensors ---------------------------------------------------------------------------------

    def looks(self, sensor: str) -> list[dict[str, Any]]:
        """A sensor's looks, the newest first; none of them may have failed."""
        found = self.dagster.ticks("scenarios", sensor)
        assert {one["status"] for one in found} <= {"STARTED", "SKIPPED", "SUCCESS"}, found
        return found

    def asked(self, sensor: str) -> list[str]:
        """What a sensor has asked for, the first first: runs, or backfills."""
        return [one for look in reversed(self.looks(sensor)) for one in look["runIds"]]

    def await_asked(self, sensor: str, count: int) -> list[str]:
        """Waits until a sensor has asked so often."""
        self.dagster.until(
            lambda: len(self.asked(sensor)) >= count, lambda: str(self.looks(sensor)[:5])
        )
        found = self.asked(sensor)
        assert len(found) == count
        return found

    def runs_asked(self, sensor: str, count: int) -> list[dict[str, Any]]:
        """Waits until a sensor has asked for so many runs, and all are done; the first one first."""
        return [self.dagster.await_run(run_id) for run_id in self.await_asked(sensor, count)]

    def await_told(self, sensor: str, what: str) -> None:
        """Waits until the newest look of a sensor says this of what it waits for."""

        def told() -> bool:
            return what in str([look["skipReason"] for look in self.looks(sensor)[:1]])

        self.dagster.until(told, lambda: str(self.looks(sensor)[:5]))

    def await_looks(self, sensor: str, count: int) -> None:
        """Waits until a sensor has looked so many times more."""
        wanted = len(self.looks(sensor)) + count
        self.dagster.until(lambda: len(self.looks(sensor)) >= wanted, lambda: f"{wanted} looks")


@pytest.fixture(scope="module")
def house(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One Dagster for all tests here; its start takes longer than most of them."""
    modules = {
        "scenarios": "tests.support.dagster_scenarios",
        "example": "orders_project.definitions",
    }
    with dagster_house(bootstrap, tmp_path_factory.mktemp("dagster"), modules) as found:
        # It takes half a minute to give up.
        yield replace(
            found, away=found.dagster.launch("scenarios", "away", KEYS[0], in_process=True)
        )


@contextmanager
def dagster_house(
    bootstrap: str,
    root: Path,
    modules: Mapping[str, str],
    variables: Mapping[str, str] | None = None,
) -> Iterator[House]:
    """A Dagster beside a broker.

    Args:
        bootstrap: of the broker.
        root: a folder for all that is written.
        modules: with definitions, by the names of their code locations.
        variables: more of the environment of Dagster and all runs.
    """
    run, home, output = uuid.uuid4().hex[:8], root / "home", root / "output"
    home.mkdir()
    output.mkdir(exist_ok=True)
    project = ROOT / "example_dags" / "dagster_project" / "src"
    java, [nobody] = java_home(), free_ports(1)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(project), str(ROOT)]),
        "SCENARIO_RUN": run,
        "SCENARIO_OUTPUT": str(output),
        "SCENARIO_NOBODY": f"127.0.0.1:{nobody}",
        "ORDERS_TOPIC": f"orders-{run}",
        "ORDERS_OUTPUT": str(output),
        "KAFKA_BOOTSTRAP": bootstrap,
        "SPARK_MASTER": "local[1]",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **({} if java is None else {"JAVA_HOME": str(java)}),
        **(variables or {}),
    }
    workspace = "load_from:\n" + "".join(
        f"  - python_module: {{module_name: {module}, location_name: {name}}}\n"
        for name, module in modules.items()
    )
    with dagster_dev(home, workspace, environment) as dagster:
        yield House(dagster, bootstrap, run, output)


def make_topic(bootstrap: str, name: str) -> None:
    """A topic in which nothing expires: records with old timestamps would, within seconds."""
    new = NewTopic(name, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([new])[name].result(30)


def write(
    bootstrap: str, topic: str, times: Iterable[datetime], partition: int | None = None
) -> Records:
    """Writes records of these times in no order, into one partition or any of them."""
    producer, rng, found = (
        Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True}),
        random.Random(topic),
        {},
    )

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None
        stamp = datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
        found[message.partition(), message.offset()] = stamp

    shuffled = list(times)
    rng.shuffle(shuffled)
    for time in shuffled:
        producer.produce(
            topic,
            b"x",
            partition=rng.randrange(PARTITIONS) if partition is None else partition,
            timestamp=ms_of(time),
            on_delivery=on_delivery,
        )
    assert producer.flush(30) == 0
    assert len(found) == len(shuffled)
    return found


def tag(run: Mapping[str, Any], name: str) -> str | None:
    """A run's tag."""
    return next((one["value"] for one in run["tags"] if one["key"] == name), None)


def hours_of(run: Mapping[str, Any]) -> list[int]:
    """The hours of a run's partitions."""
    first, last = (
        tag(run, f"dagster/asset_partition_range_{end}") or tag(run, "dagster/partition")
        for end in ("start", "end")
    )
    assert first is not None
    assert last is not None
    return list(range(KEYS.index(first), KEYS.index(last) + 1))
