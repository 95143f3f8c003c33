"""Ops that call a function for each record: what they report, and how the next run goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.dagster import build_process_window_op, window_id_of
from kafka_ordered_ops.processing import Record
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.dagster_support import FIRST, HOUR, HOURLY, KEYS, House, expected, failure_of
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house
from tests.support.host_words import process_words
from tests.support.processing_groups import wait_until
from tests.support.windows_support import TIMEOUT_S

pytestmark = pytest.mark.timeout(300)

_WORKER = Path(__file__).parents[1] / "support" / "process_step.py"


def op_of(topic: str, group_id: str, function: Any, **more: Any) -> dg.OpDefinition:
    """An op for the hours of a topic."""
    given: dict[str, Any] = {
        "name": "charges",
        "topics": [topic],
        "group_id": group_id,
        "starting_offsets": "earliest",
        "partitions_def": HOURLY,
        "record_retries": 0,
    }
    return build_process_window_op(**process_words(function=function, **{**given, **more}))


def run(
    house: House, charges: dg.OpDefinition, key: str | None, *, fails: bool = False
) -> dg.ExecuteInProcessResult:
    """A job of one op."""
    hourly = None if key is None else HOURLY

    @dg.job(partitions_def=hourly, resource_defs={"kafka": house.kafka})
    def pipeline() -> None:
        charges()

    result = pipeline.execute_in_process(
        partition_key=key, instance=house.instance, raise_on_error=False
    )
    assert result.success is not fails, [event.message for event in result.all_events][-5:]
    return result


def told(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """The metadata of the op's output."""
    [event] = [event for event in result.all_events if event.is_successful_output]
    return {name: one.value for name, one in event.step_output_data.metadata.items()}


def window_id(key: str) -> str:
    """Of the op's window of an hour."""
    return window_id_of("charges", key)


@pytest.mark.slow
def test_an_hour_of_a_job(house: House, hours: str, group_id: str) -> None:
    """The function gets the hour's records; the output and its metadata have the counts."""
    seen: list[int] = []

    async def charge(record: Record) -> None:
        seen.append(record.offset)

    result = run(house, op_of(hours, group_id, charge), KEYS[2])
    assert sorted(seen) == sorted(expected(2))
    [window] = result.output_for_node("charges")
    counts = {"succeeded": 4, "failed": 0, "earlier_offsets": 0}
    assert window == {
        "window_id": window_id(KEYS[2]),
        "since": "2026-01-05T02:00:00Z",
        "cutoff": "2026-01-05T03:00:00Z",
        "records": 4,
        "output": None,
        "returned": counts,
    }
    metadata = told(result)
    assert metadata["dagster/partition_row_count"] == 4
    for name, count in counts.items():
        assert metadata[f"kafka_ordered_ops/{name}"] == count


@pytest.mark.slow
def test_the_function_gets_decoded_records(
    house: House, topic: MakeTopic, group_id: str, produce: Produce
) -> None:
    """As the op's window says."""
    name, values = topic(), list[Any]()
    produce([(name, 0, None, b'{"id": 7}', 1_000 * number, ()) for number in range(3)])

    def charge(record: Record) -> None:
        values.append(record.value)

    charges = op_of(name, group_id, charge, partitions_def=None, values="json:id int64")
    run(house, charges, None)
    assert values == [{"id": 7}] * 3


@pytest.mark.slow
def test_a_job_without_partitions_in_batches(
    house: House, hours: str, group_id: str, produce: Produce
) -> None:
    """Each run takes what is new; the function gets lists."""
    sizes: list[int] = []

    def charge(records: list[Record]) -> None:
        sizes.append(len(records))

    charges = op_of(
        hours, group_id, charge, partitions_def=None, batch_size=10, ordering="unordered"
    )
    run(house, charges, None)
    assert sum(sizes) == 25
    assert max(sizes) <= 10
    produce([(hours, 0, None, b"x", round((FIRST + HOUR * 7).timestamp() * 1000), ())])
    run(house, charges, None)
    assert sum(sizes) == 26


@pytest.mark.slow
def test_the_next_run_does_only_what_is_missing(
    house: House, hours: str, group_id: str, bootstrap: str
) -> None:
    """After a record failed: Dagster may retry the step, and nothing was committed before."""
    seen: Counter[int] = Counter()
    broken = True

    def charge(record: Record) -> None:
        if broken and record.offset == expected(1)[2]:
            raise ValueError("the service is away")
        seen[record.offset] += 1

    failed = run(house, op_of(hours, group_id, charge, max_concurrency=1), KEYS[1], fails=True)
    assert "the service is away" in failure_of(failed)
    [event] = [event for event in failed.all_events if event.is_step_failure]
    assert event.step_failure_data.user_failure_data is None
    with OrderedWindows(bootstrap, group_id) as windows:
        assert windows.show(window_id(KEYS[1])).status is WindowStatus.PLANNED
    broken = False
    before = len(seen)
    [window] = run(house, op_of(hours, group_id, charge), KEYS[1]).output_for_node("charges")
    assert window["returned"] == {
        "succeeded": 4 - before,
        "failed": 0,
        "earlier_offsets": before,
    }
    assert before > 0
    assert seen == Counter(expected(1))


@pytest.mark.slow
def test_a_retry_policy_goes_on_in_the_same_run(house: House, hours: str, group_id: str) -> None:
    """The step is tried again by Dagster itself."""
    seen: Counter[int] = Counter()
    away = [True]

    def charge(record: Record) -> None:
        if record.offset == expected(3)[1] and away and away.pop():
            raise ValueError("the service is away")
        seen[record.offset] += 1

    policy = {"retry_policy": dg.RetryPolicy(max_retries=1)}
    run(house, op_of(hours, group_id, charge, options=policy, max_concurrency=1), KEYS[3])
    assert seen == Counter(expected(3))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ordering": "random"}, "ordering"),
        ({"workers": "fibres"}, "workers"),
        ({"function": lambda: None}, "record"),
        ({"function": None}, "function"),
        ({"batch_size": 0}, "batch_size"),
        ({"when_exhausted": "dead-letter"}, "dead_letter_topic"),
        ({"dead_letter_topic": "{{ params.topic }}"}, "a template"),
        ({"topics": []}, "at least one of them"),
    ],
)
def test_what_cannot_be_is_named(more: dict[str, Any], message: str) -> None:
    """Before anything runs."""
    given: dict[str, Any] = {
        "name": "o",
        "topics": ["t"],
        "group_id": "g",
        "function": lambda record: None,
    }
    with pytest.raises(ConfigError, match=message):
        build_process_window_op(**process_words(**{**given, **more}))


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_step_process_that_is_killed(
    bootstrap: str,
    topic: MakeTopic,
    produce: Produce,
    group_id: str,
    tmp_path: Path,
    how: signal.Signals,
) -> None:
    """A step in its own process, as Dagster runs jobs: the next run does what was not kept."""
    name = topic()
    stamp = round(FIRST.timestamp() * 1000)
    produce((name, 0, None, b"x", stamp + n, ()) for n in range(200))
    # What shows that the hour is over.
    produce([(name, 0, None, b"x", stamp + 3_600_000, ())])
    log = tmp_path / "calls"
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(tmp_path),
        "STEP_BOOTSTRAP": bootstrap,
        "STEP_TOPIC": name,
        "STEP_GROUP": group_id,
        "STEP_LOG": str(log),
    }
    command = [sys.executable, str(_WORKER)]
    first = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with OrderedWindows(bootstrap, group_id) as windows:

        def kept() -> int:
            plan = windows.show(window_id(KEYS[0])).plan
            return sum(one.count for one in windows.processed(plan).values())

        def calls() -> list[str]:
            return log.read_text().split()[1:] if log.exists() else []

        try:
            wait_until(lambda: len(calls()) > 50)
            if how is signal.SIGKILL:
                wait_until(lambda: kept() > 20)
            # The process of the step, which is not that of the run.
            os.kill(int(log.read_text().split()[0]), how)
            said, _ = first.communicate(timeout=60)
        finally:
            first.kill()
            first.wait(TIMEOUT_S)
        assert first.returncode == 1, said
        before, saved = calls(), kept()
        assert 20 < saved <= len(before) < 200
        if how is signal.SIGTERM:
            assert saved == len(before)
        second = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert second.returncode == 0, second.stderr
        again = [one for one in calls()[len(before) :] if one.isdigit()]
        assert len(again) == 200 - saved
        assert {*before, *again} == set(map(str, range(200)))
        assert windows.show(window_id(KEYS[0])).status is WindowStatus.PUBLISHED
