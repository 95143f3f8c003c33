"""A Kafka in memory for hosts: what their tasks and assets do, without brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import Earliest, OrderedWindows, Window
from kafka_ordered_ops.delivery.host import Host, Stop
from kafka_ordered_ops.delivery.job import WindowJob
from kafka_ordered_ops.delivery.open_windows import OpenWindows
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.host_words import words
from tests.support.windows_support import BASE_MS, at

if TYPE_CHECKING:
    import dagster as dg

    from kafka_ordered_ops import WindowPlan
    from kafka_ordered_ops.windows import Staged

GROUP = "group"


@pytest.fixture
def kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryKafka]:
    """Ten records of topic ``t``, a connection that leads to them, and a file."""
    (tmp_path / "file").write_text("a file")
    (tmp_path / "job.py").write_text("")
    with InMemoryKafka() as made:
        made.create_topic("t", 2)
        for number in range(10):
            made.produce(
                "t", value=b"x", partition=number % 2, timestamp_ms=BASE_MS + 1_000 * number
            )
        connection = {"conn_type": "kafka", "extra": made.settings}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(connection))
        yield made


@pytest.fixture
def windows(kafka: InMemoryKafka) -> Iterator[OrderedWindows]:
    """The group, for those who look."""
    with OrderedWindows(kafka.settings, GROUP) as service:
        yield service


def asked(until: float = 60) -> Window:
    """Everything before a moment of the tests' time."""
    return Window(["t"], cutoff=at(until), starting_offsets=Earliest())


def task_of(folder: Path, **more: Any) -> dict[str, Any]:
    """The arguments of a task."""
    given: dict[str, Any] = {"task_id": "task", "window": Window("t", starting_offsets="earliest")}
    given |= {"group_id": GROUP, "mode": "catch_up", "window_id": "w"}
    return words(**{**given, "output": str(folder / "out"), **more})


def executed(
    made: Any, kafka: InMemoryKafka, partition_key: str | None = None
) -> dg.ExecuteInProcessResult:
    """One run of an asset or an op, in this process."""
    # Spark 4.1's environment has no Dagster, and other users of this file.
    import dagster as dg

    from kafka_ordered_ops.dagster import KafkaResource

    resources = {"kafka": KafkaResource(config=kafka.settings)}
    with dg.DagsterInstance.ephemeral() as instance:
        if isinstance(made, dg.AssetsDefinition):
            return dg.materialize(
                [made],
                instance=instance,
                resources=resources,
                partition_key=partition_key,
                raise_on_error=False,
            )

        @dg.job(resource_defs=resources)
        def job() -> None:
            made()

        return job.execute_in_process(instance=instance, raise_on_error=False)


def writing(
    job: WindowJob, windows: OrderedWindows
) -> Callable[[Sequence[WindowPlan]], list[Staged]]:
    """What a host gives to ``deliver_many`` for a job that writes to a table."""

    def write(plans: Sequence[WindowPlan]) -> list[Staged]:
        host = Host(Stop("the test"), "")
        return job.deliver(OpenWindows(plans, windows.settings, job.to, host))

    return write
