"""Takes the documentation's pictures of Dagster: ``python -m tests.support.dagster_screenshots``.

A whole Dagster runs the assets below on a real broker, and a real browser looks at them. It needs what
`screenshots` says, that there is no folder ``/tmp/lake``, and a few minutes. Look at the pictures before they are kept.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import dagster as dg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import Window
from kafka_ordered_ops.dagster import KafkaResource, build_ordered_window_asset
from kafka_ordered_ops.embedded import EmbeddedKafka
from tests.support.dagster_real import Dagster, dagster_dev
from tests.support.screenshots import await_text, chromium, keep_picture

ROOT: Final = Path(__file__).parents[2]
#: It is seen in a picture.
LAKE: Final = Path("/tmp/lake")
LOCATION: Final = "lake"
TOPIC: Final = "orders"
ASSET: Final = "orders"
PARTITIONS: Final = 3
T0: Final = datetime(2026, 3, 1, 6, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
MINUTE: Final = timedelta(minutes=1)
#: Of a backfill; the hour after them is the one that is looked at.
HOURS: Final = 6
#: So many records come up to half an hour after what is stamped later.
OUT_OF_ORDER: Final = 0.02

_WORKSPACE: Final = f"""load_from:
  - python_module: {{module_name: tests.support.dagster_screenshots, location_name: {LOCATION}}}
"""


@dg.definitions
def defs() -> dg.Definitions:
    """What Dagster loads from this file."""
    asset = build_ordered_window_asset(
        key=ASSET,
        window=Window([TOPIC], starting_offsets="earliest"),
        group_id=f"lake-{ASSET}",
        output=str(LAKE / ASSET),
        partitions_def=dg.HourlyPartitionsDefinition("2026-01-01-00:00"),
    )
    kafka = KafkaResource(config={"bootstrap.servers": dg.EnvVar("KAFKA_BOOTSTRAP")})
    return dg.Definitions(assets=[asset], resources={"kafka": kafka})


def main(folder: Path) -> None:
    """Takes all pictures, into a folder."""
    with _house() as (dagster, bootstrap), chromium() as page:
        page.goto(dagster.url)
        await_text(page, "Catalog")
        # Or it asks for an e-mail address first.
        page.evaluate("localStorage.setItem('communityNux', 1)")
        _run_backfill(dagster, bootstrap)
        _run_an_hour_more(dagster, bootstrap)
        _take_metadata(dagster, page, folder)
        _take_check(dagster, page, folder)


@contextmanager
def _house() -> Iterator[tuple[Dagster, str]]:
    """A whole Dagster with the assets, and the address of the broker beside it."""
    LAKE.mkdir()
    try:
        with tempfile.TemporaryDirectory() as home, EmbeddedKafka() as broker:
            environment = {"PYTHONPATH": str(ROOT), "KAFKA_BOOTSTRAP": broker.bootstrap}
            with dagster_dev(Path(home), _WORKSPACE, environment) as dagster:
                yield dagster, broker.bootstrap
    finally:
        shutil.rmtree(LAKE)


# --- what there is to see --------------------------------------------------------------------------


def _run_backfill(dagster: Dagster, bootstrap: str) -> None:
    """The first hours, in one run."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # Nothing expires in it: records with old timestamps would, within seconds.
    new = NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin.create_topics([new])[TOPIC].result(30)
    rng = random.Random(TOPIC)
    for partition in range(PARTITIONS):
        last = T0 + HOURS * HOUR + 10 * MINUTE
        _write(bootstrap, partition, T0, last, timedelta(seconds=2), rng)
    keys = [_key(hour) for hour in range(HOURS)]
    dagster.await_backfill(dagster.backfill(ASSET, keys))


def _run_an_hour_more(dagster: Dagster, bootstrap: str) -> None:
    """The next hour; some records of the one before it are late, and one partition has not come to its end."""
    rng, first = random.Random(HOURS), T0 + HOURS * HOUR
    for partition in range(PARTITIONS):
        late = first - 40 * MINUTE
        _write(bootstrap, partition, late, late + 30 * MINUTE, timedelta(seconds=60), rng)
        last = first + (50 if partition == PARTITIONS - 1 else 75) * MINUTE
        _write(bootstrap, partition, first + 10 * MINUTE, last, timedelta(seconds=2), rng)
    dagster.await_run(dagster.launch(LOCATION, ASSET, _key(HOURS)))


def _write(
    bootstrap: str,
    partition: int,
    first: datetime,
    last: datetime,
    step: timedelta,
    rng: random.Random,
) -> None:
    """Writes records over a time, some of them behind what is stamped later."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    time = first
    while time < last:
        is_out_of_order = rng.random() < OUT_OF_ORDER
        stamp = max(first, time - rng.random() * 30 * MINUTE) if is_out_of_order else time
        producer.produce(
            TOPIC,
            f'{{"amount": {rng.randrange(1, 500)}}}'.encode(),
            partition=partition,
            timestamp=round(stamp.timestamp() * 1000),
        )
        time += rng.uniform(0.5, 1.5) * step
    assert producer.flush(30) == 0


def _key(hour: int) -> str:
    return f"{T0 + hour * HOUR:%Y-%m-%d-%H:%M}"


# --- the pictures ----------------------------------------------------------------------------------


def _take_metadata(dagster: Dagster, page: Any, folder: Path) -> None:
    """What is told of the hour that was run last."""
    page.set_viewport_size({"width": 1300, "height": 2000})
    page.goto(f"{dagster.url}/assets/{ASSET}?view=partitions&partition={quote(_key(HOURS))}")
    await_text(page, "[Show Markdown]")
    _await_still(page)
    left, top = _edge(page, "Latest materialization", "left"), _edge(page, "Materialized", "top")
    bottom = _edge(page, "Tags", "top")
    keep_picture(page, folder / "dagster-metadata.png", left=left - 14, top=top - 16, bottom=bottom)


def _take_check(dagster: Dagster, page: Any, folder: Path) -> None:
    """Why the check has warned."""
    page.set_viewport_size({"width": 1420, "height": 1000})
    page.goto(f"{dagster.url}/assets/{ASSET}?view=checks")
    await_text(page, "waiting")
    _await_still(page)
    left, top = _edge(page, "Latest execution", "left"), _edge(page, "About", "top")
    bottom = _edge(page, "Plots", "top") - 16
    keep_picture(page, folder / "dagster-check.png", left=left - 14, top=top - 8, bottom=bottom)


def _await_still(page: Any) -> None:
    """Waits until nothing on the page moves any more, so that places can be measured."""
    tops = "[...document.querySelectorAll('*')].map(e => e.getBoundingClientRect().top).join()"
    page.wait_for_function(f"(before => (window.before = {tops}) == before)(window.before)")


def _last(text: str) -> str:
    """Script for the last and innermost thing on the page that says just this."""
    return f"[...document.querySelectorAll('*')].filter(e => e.innerText?.trim() == '{text}').pop()"


def _edge(page: Any, text: str, side: str) -> int:
    """Where what says just this begins or ends, in pixels."""
    script = f"{_last(text)}?.getBoundingClientRect().{side}"
    return round(float(page.wait_for_function(script).json_value()))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "images")
