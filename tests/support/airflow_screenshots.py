"""Takes the documentation's pictures of Airflow: ``python -m tests.support.airflow_screenshots``.

A whole Airflow runs an example DAG on a real broker, and a real browser looks at them. It needs what
`screenshots` says, and two minutes. Look at the pictures before they are kept: Airflow prints some
durations with a rounding error.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops.embedded import EmbeddedKafka
from tests.support.airflow_support import Airflow, standalone
from tests.support.screenshots import await_text, chromium, keep_picture

ROOT: Final = Path(__file__).parents[2]
TOPIC: Final = "orders"
PARTITIONS: Final = 3
HOUR: Final = timedelta(hours=1)


def main(folder: Path) -> None:
    """Takes all pictures, into a folder."""
    with _house() as (airflow, bootstrap), chromium() as page:
        cutoff = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=1)
        _write_orders(bootstrap, cutoff)
        _run_sensor(airflow, bootstrap, cutoff)
        page.goto(airflow.url)
        await_text(page, "Home")
        _take_log(airflow, page, folder / "airflow-sensor.png")


@contextmanager
def _house() -> Iterator[tuple[Airflow, str]]:
    """A whole Airflow with the DAG, and the address of the broker beside it."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka() as broker:
        home, dags = Path(folder) / "home", Path(folder) / "dags"
        home.mkdir()
        dags.mkdir()
        shutil.copy(ROOT / "example_dags" / "airflow_sensor.py", dags)
        environment = {
            "ORDERS_TOPIC": TOPIC,
            "ORDERS_OUTPUT": str(Path(folder) / "output"),
            "ORDERS_POKE_S": "2",
        }
        with standalone(home, dags, environment) as airflow:
            airflow.connect("kafka_default", "kafka", {"bootstrap.servers": broker.bootstrap})
            yield airflow, broker.bootstrap


def _write_orders(bootstrap: str, cutoff: datetime) -> None:
    """Twelve hours of records up to the cutoff, and a little beyond it, but for the last partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin.create_topics([new])[TOPIC].result(30)
    for partition in range(PARTITIONS):
        is_late = partition == PARTITIONS - 1
        last = cutoff + timedelta(seconds=-75 if is_late else 45)
        _produce(bootstrap, partition, cutoff - 12 * HOUR, last, timedelta(seconds=20 + partition))


def _produce(
    bootstrap: str, partition: int, first: datetime, last: datetime, step: timedelta
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    time = first
    while time < last:
        milliseconds = round(time.timestamp() * 1000)
        producer.produce(TOPIC, b"x", partition=partition, timestamp=milliseconds)
        time += step
    assert producer.flush(30) == 0


def _run_sensor(airflow: Airflow, bootstrap: str, cutoff: datetime) -> None:
    """After the run that the schedule makes, one for which a partition is late; then it has come, too."""
    dag_id, run_id = "orders_when_live", "by-hand"
    airflow.unpause(dag_id)
    airflow.await_runs(
        dag_id, 1
    )  # From then on the group is known, and so is each partition's lag.
    airflow.trigger(dag_id, run_id, conf={"cutoff": cutoff.isoformat()})
    airflow.await_task(dag_id, run_id, "live", "deferred")
    later = cutoff + timedelta(seconds=3)
    _produce(bootstrap, PARTITIONS - 1, later, later + HOUR / 60, timedelta(seconds=30))
    airflow.await_run(dag_id, run_id)


def _take_log(airflow: Airflow, page: Any, file: Path) -> None:
    """The sensor's log, with the first table and the last."""
    page.set_viewport_size({"width": 1340, "height": 705})
    _divide(page, 6)
    page.goto(f"{airflow.url}/dags/orders_when_live/runs/by-hand/tasks/live")
    page.wait_for_function(
        "document.body?.innerText.split(/partition +state +lag +why/).length == 3"
    )
    panel = page.evaluate("document.getElementById('details-panel').getBoundingClientRect().x")
    keep_picture(page, file, left=round(panel) + 14, top=60)


def _divide(page: Any, percent: int) -> None:
    """Gives the grid so much of the width, on the pages that come."""
    layout = {"details-panel,main-panel": {"expandToSizes": {}, "layout": [percent, 100 - percent]}}
    text = json.dumps(json.dumps(layout))
    page.evaluate(f"localStorage.setItem('react-resizable-panels:grid-ltr', {text})")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "images")
