"""What whoever may write the ledger topic can forge in the record of a window, and how little a run believes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import KafkaOrderedOpsError, LedgerCorruptError, OrderedWindows, Window
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC, ledger_partition
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.windows_support import BASE_MS, at

GROUP = "g"
VALUES = [b"a", b"b", b"c"]
ASKED = Window("orders", cutoff=at(100), starting_offsets="earliest")
WINDOW = "w"


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """A topic that is asked for, and one that is not."""
    with InMemoryKafka() as made:
        for topic, values in (("orders", VALUES), ("secret", [b"s"] * 3)):
            made.create_topic(topic)
            for second, value in enumerate(values):
                made.produce(topic, value=value, timestamp_ms=BASE_MS + second * 1_000)
        yield made


@pytest.fixture
def windows(kafka: InMemoryKafka) -> Iterator[OrderedWindows]:
    """The group, with the window planned."""
    with OrderedWindows(kafka.bootstrap, group_id=GROUP) as opened:
        opened.plan(ASKED, WINDOW)
        yield opened


def forge(kafka: InMemoryKafka, change: Callable[[dict[str, Any]], object]) -> None:
    """Writes over the record of the window."""
    place = ledger_partition(LEDGER_TOPIC, GROUP)
    key = json.dumps([GROUP, "window", WINDOW, 0], separators=(",", ":")).encode()
    newest = [one for one in kafka.records(LEDGER_TOPIC, place.partition) if one.key == key][-1]
    fields = json.loads(newest.value or b"")
    change(fields)
    kafka.produce(
        LEDGER_TOPIC,
        value=json.dumps(fields).encode(),
        key=key,
        partition=place.partition,
        headers=newest.headers,
    )


def values_in(folder: Any) -> list[Any]:
    """The values that readers find."""
    files = sorted(Path(folder).rglob("*.parquet"))
    return [value for one in files for value in pq.read_table(one)["value"].to_pylist()]


def run(windows: OrderedWindows, output: Path) -> Any:
    """Runs the window as its owner does."""
    return windows.run(ASKED, output, window_id=WINDOW)


def secret_partition(record: dict[str, Any]) -> None:
    """The plan takes a topic that its window does not ask for."""
    record["plan"]["partitions"][0]["topic"] = "secret"


def secret_window(record: dict[str, Any]) -> None:
    """The window asks for it, too."""
    record["plan"]["window"]["topics"] = ["orders", "secret"]
    secret_partition(record)


def another_group(record: dict[str, Any]) -> None:
    """The plan is another group's."""
    record["plan"]["group"] = "other"


def another_window(record: dict[str, Any]) -> None:
    """The plan is another window's."""
    record["plan"]["window_id"] = "other"


@pytest.mark.parametrize("change", [secret_partition, another_group, another_window])
def test_a_plan_that_is_not_its_window_s_is_refused_and_restored(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path, change: Any
) -> None:
    """The error names the record; the command that it names puts the plan back, and the run has its own records."""
    forge(kafka, change)
    with pytest.raises(LedgerCorruptError, match=f"'{WINDOW}' at offset") as caught:
        run(windows, tmp_path / "out")
    assert not values_in(tmp_path)
    found = re.search(rf"`windows restore-record --group {GROUP} (\d+)`", str(caught.value))
    assert found is not None
    windows.restore_record(int(found[1]))
    assert values_in(run(windows, tmp_path / "out").output) == VALUES


def test_a_window_that_asks_for_more_is_not_the_one_that_is_run(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path
) -> None:
    """What is asked for is compared with what the ledger has, before anything is read."""
    forge(kafka, secret_window)
    with pytest.raises(KafkaOrderedOpsError, match="secret"):
        run(windows, tmp_path / "out")
    assert not values_in(tmp_path)


@pytest.mark.parametrize("field", ["root", "window_id", "claim_id", "group"])
def test_a_result_that_is_not_the_window_s_own_is_not_taken_for_its_output(
    kafka: InMemoryKafka, windows: OrderedWindows, tmp_path: Path, field: str
) -> None:
    """Another root, window, claim or group: the window is written by its own job, and the other folder stays."""
    with OrderedWindows(kafka.bootstrap, group_id="other") as other:
        theirs = other.run(ASKED, tmp_path / "theirs", window_id="theirs")
        result = other.show("theirs").result
    plan = windows.show(WINDOW).plan
    own = {
        "root": str(tmp_path / "out"),
        "window_id": WINDOW,
        "claim_id": plan.claim_id,
        "group": GROUP,
    }
    forged_result = {
        **result,
        **{name: own[name] for name in own if name in result and name != field},
    }

    def written(record: dict[str, Any]) -> None:
        record["plan"]["status"] = "written"
        record["result"] = forged_result

    forge(kafka, written)
    before = sorted((one, one.stat().st_mtime_ns) for one in (tmp_path / "theirs").rglob("*"))
    assert values_in(run(windows, tmp_path / "out").output) == VALUES
    assert before == sorted(
        (one, one.stat().st_mtime_ns) for one in (tmp_path / "theirs").rglob("*")
    )
    assert values_in(theirs.output) == VALUES
