"""A function for each record as an Airflow task: what it is given, what it returns, and how the next attempt goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import ConfigError, JobFailedError, ProcessingStoppedError, RecordFailedError
from kafka_ordered_ops.airflow import ProcessWindowOperator
from kafka_ordered_ops.airflow.compat import AirflowFailException, AirflowSkipException
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.processing import Record, window_job
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.airflow_context import committed, context_of, small_json
from tests.support.airflow_context import kafka_connection as kafka_connection
from tests.support.host_words import process_words
from tests.support.processing_groups import wait_until
from tests.support.windows_support import BASE_MS, TIMEOUT_S

MakeTask = Callable[..., ProcessWindowOperator]

_WORKER = Path(__file__).parents[1] / "support" / "process_task.py"
#: A process imports Airflow, and makes its folder, on a busy machine.
_START_TIMEOUT_S = 120.0


@pytest.fixture
def make(orders: str, group_id: str) -> MakeTask:
    """Tasks for `orders`: in catch-up, from the earliest record; as one task of one DAG."""
    return partial(task_for, orders, group_id)


def task_for(topic: str, group_id: str, function: Any, **more: Any) -> ProcessWindowOperator:
    """A task that gives up a record after its first failure."""
    given: dict[str, Any] = {
        "task_id": "task",
        "topics": topic,
        "group_id": group_id,
        "mode": "catch_up",
        "starting_offsets": "earliest",
        "window_id": "w",
        "record_retries": 0,
    }
    return ProcessWindowOperator(**process_words(function=function, **{**given, **more}))


@pytest.fixture
def many(topic: MakeTopic, produce: Produce) -> str:
    """200 records in one partition, each second one."""
    name = topic()
    produce((name, 0, None, b"x", BASE_MS + n * 1000, ()) for n in range(200))
    return name


def processed(windows: OrderedWindows) -> int:
    """How many offsets of the open window are known as processed."""
    return sum(one.count for one in windows.processed(windows.show("w").plan).values())


# --- what it is given, and what it returns -------------------------------------------------------------


def test_one_run_after_the_other(make: MakeTask, windows: OrderedWindows, orders: str) -> None:
    """Each calls the function once for what is stamped before its time and was not taken before."""
    seen: list[int] = []

    def charge(record: Record) -> None:
        seen.append(record.offset)

    first = make(charge, window_id=None).execute(context_of(12, run_id="1"))
    assert sorted(seen) == [0, 1, 3]
    second = make(charge, window_id=None).execute(context_of(100, run_id="2"))
    assert sorted(seen) == list(range(6))
    assert [facts["succeeded"] for facts in (first, second)] == [3, 3]
    assert committed(windows, orders) == [6]


def test_the_function_gets_decoded_records(
    topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """As the window says; what has no meaning for single records is refused before it is planned."""
    name, values = topic(), list[Any]()
    produce([(name, 0, None, b'{"id": 7}', BASE_MS + number, ()) for number in range(3)])

    def charge(record: Record) -> None:
        values.append(record.value)

    refused = task_for(name, group_id, charge, values="json:id int64", on_bad="keep")
    with pytest.raises((ConfigError, AirflowFailException), match="for columns"):
        refused.execute(context_of(12))
    task_for(name, group_id, charge, values="json:id int64").execute(context_of(12))
    assert values == [{"id": 7}] * 3


def test_what_a_task_returns_is_a_small_xcom(make: MakeTask) -> None:
    """The window as other operators tell it, and the counts."""
    facts = make(lambda record: None).execute(context_of(12))
    assert small_json(facts) < 2_000
    told = {"window_id", "status", "ran", "records", "succeeded", "failed", "earlier_offsets"}
    assert {name: facts[name] for name in told} == {
        "window_id": "w",
        "status": "published",
        "ran": True,
        "records": 3,
        "succeeded": 3,
        "failed": 0,
        "earlier_offsets": 0,
    }
    assert facts["result"] == {"succeeded": 3, "failed": 0, "earlier_offsets": 0}


async def _waits(records: list[Record], seen: list[int], factor: int) -> None:
    seen.extend(record.offset * factor for record in records)


def test_an_async_function_of_batches_with_arguments(make: MakeTask) -> None:
    """Rendered, like the topic of dead letters."""
    seen: list[int] = []
    task = make(
        _waits,
        batch_size=2,
        keywords={"seen": seen, "factor": "{{ dag_run.conf['factor'] }}"},
        dead_letter_topic="{{ dag_run.conf.get('dead', '') }}",
        ordering="unordered",
    )
    context: Any = context_of(12)
    context["dag_run"].conf = {"factor": 1}
    task.render_template_fields(context)
    # Rendering copies the list.
    task.job = replace(task.job, keywords={"seen": seen, "factor": 10})
    assert task.execute(context)["succeeded"] == 3
    assert sorted(seen) == [0, 10, 30]


def test_failed_records_are_skipped_if_asked_for(make: MakeTask) -> None:
    """They are counted."""

    def poisoned(record: Record) -> None:
        if record.offset == 3:
            raise ValueError("no")

    facts = make(poisoned, when_exhausted="skip").execute(context_of(100))
    assert (facts["succeeded"], facts["failed"], facts["records"]) == (5, 1, 6)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"ordering": "random"}, "ordering"),
        ({"workers": "fibres"}, "workers"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"when_exhausted": "dead-letter"}, "dead_letter_topic"),
        ({"batch_size": 0}, "batch_size"),
        ({"keywords": {"table": "t"}}, "table"),
        ({"keywords": ["t"]}, "keywords"),
        ({"record_retries": -1}, "retries"),
        ({"function": lambda: None}, "record"),
        ({"function": None}, "function"),
    ],
)
def test_a_mistake_in_a_dags_file_is_an_error_of_its_import(
    more: dict[str, Any], told: str
) -> None:
    """Nothing runs."""
    given: dict[str, Any] = {"function": lambda record: None, **more}
    with pytest.raises(ConfigError, match=told):
        task_for("t", "g", given.pop("function"), **given)


# --- windows with nothing to do ------------------------------------------------------------------------


def test_a_window_without_records(make: MakeTask, windows: OrderedWindows) -> None:
    """It is committed, or skips the task."""
    seen: list[Record] = []
    facts = make(seen.append).execute(context_of(-1))
    assert (facts["content"], facts["succeeded"]) == ("empty", 0)
    with pytest.raises(AirflowSkipException, match="no records"):
        make(seen.append, window_id="v", on_empty="skip").execute(context_of(-0.5))
    assert windows.show("v").status.is_done
    assert not seen


@pytest.mark.parametrize(("on_covered", "calls"), [("auto", 6), ("skip", 3)])
def test_a_task_that_is_cleared(make: MakeTask, on_covered: str, calls: int) -> None:
    """All records of the finished window are processed again, unless that is not wanted."""
    seen: list[int] = []

    def charge(record: Record) -> None:
        seen.append(record.offset)

    make(charge).execute(context_of(12))
    task = make(charge, on_covered=on_covered)
    if on_covered == "skip":
        with pytest.raises(AirflowSkipException):
            task.execute(context_of(12, try_number=2))
    else:
        facts = task.execute(context_of(12, try_number=2))
        assert (facts["ran"], facts["succeeded"]) == (True, 3)
    assert len(seen) == calls


# --- attempt after attempt -----------------------------------------------------------------------------


def test_the_next_attempt_does_only_what_is_missing(
    make: MakeTask, windows: OrderedWindows, orders: str
) -> None:
    """After a record failed, which Airflow tries again; nothing was committed before."""
    seen: Counter[int] = Counter()
    broken = True

    def charge(record: Record) -> None:
        if broken and record.offset == 3:
            raise ValueError("the service is away")
        seen[record.offset] += 1

    task = make(charge, max_concurrency=1)
    with pytest.raises(RecordFailedError, match="the service is away"):
        task.execute(context_of(100))
    assert windows.show("w").status is WindowStatus.PLANNED
    assert committed(windows, orders) in ([None], [0])
    before = len(seen)
    assert processed(windows) == before > 0
    broken = False
    facts = make(charge).execute(context_of(100, try_number=2))
    assert set(seen.values()) == {1}
    assert len(seen) == 6
    assert (facts["succeeded"], facts["earlier_offsets"], facts["attempt"]) == (
        6 - before,
        before,
        2,
    )
    assert facts["records"] is None
    assert committed(windows, orders) == [6]


@pytest.mark.slow
def test_a_kill_ends_the_task_soon_and_keeps_what_is_done(
    many: str, group_id: str, windows: OrderedWindows
) -> None:
    """Though a call hangs; the next attempt does the rest."""
    seen: Counter[int] = Counter()
    gate = threading.Event()

    def charge(record: Record) -> None:
        if record.offset == 20 and not gate.is_set():
            gate.wait(TIMEOUT_S)
        time.sleep(0.01)
        seen[record.offset] += 1

    task = task_for(many, group_id, charge, max_concurrency=2, ordering="unordered")
    began: list[float] = []

    def kill() -> None:
        wait_until(lambda: len(seen) >= 60)
        began.append(time.monotonic())
        task.on_kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ProcessingStoppedError):
        task.execute(context_of(1_000))
    assert time.monotonic() - began[0] < 4
    killer.join()
    gate.set()
    kept = processed(windows)
    assert 50 <= kept < 200
    retry = task_for(many, group_id, charge, max_concurrency=2)
    facts = retry.execute(context_of(1_000, try_number=2))
    assert facts["earlier_offsets"] == kept
    assert facts["succeeded"] == 200 - kept
    assert len(seen) == 200


def test_a_kill_before_the_plan_ends_the_scan(make: MakeTask, windows: OrderedWindows) -> None:
    """Nothing is planned, and no function is called."""
    task = make(lambda record: None)
    task.on_kill()
    with pytest.raises(JobFailedError, match="Airflow ended this attempt"):
        task.execute(context_of(100))
    assert not [one for one in windows.list() if one.status.is_done]


@pytest.mark.slow
def test_progress_is_logged(
    many: str, group_id: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Now and then, and at the end."""
    monkeypatch.setattr(window_job, "SAY_EVERY_S", 0.3)
    task = task_for(many, group_id, lambda record: time.sleep(0.01), max_concurrency=2)
    lines: list[str] = []
    monkeypatch.setattr(task, "_log_line", lines.append)
    task.execute(context_of(1_000))
    assert any("of 200 offsets are done, 0 records have failed" in line for line in lines)
    assert "200 records were processed, and 0 of them failed" in lines[-1]


def test_an_error_that_no_retry_fixes_fails_the_task_for_good(make: MakeTask) -> None:
    """By its name."""
    task = make(lambda record: None, dead_letter_topic="no-such-topic-at-all")
    with pytest.raises(AirflowFailException, match=r"UnknownTopicError.*no-such-topic-at-all"):
        task.execute(context_of(100))


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_a_task_process_that_is_killed(
    bootstrap: str,
    many: str,
    group_id: str,
    windows: OrderedWindows,
    tmp_path: Path,
    how: signal.Signals,
) -> None:
    """As Airflow ends one, or the machine; the next attempt calls the function for what was not kept, and only that."""
    log = tmp_path / "calls"
    command = [sys.executable, str(_WORKER), many, group_id, str(log)]
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    first = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(
            lambda: log.exists() and log.read_text().count("\n") > 50, timeout_s=_START_TIMEOUT_S
        )
        if how is signal.SIGKILL:
            wait_until(lambda: processed(windows) > 20)
        first.send_signal(how)
        _, told = first.communicate(timeout=10)
    finally:
        first.kill()
        first.wait(TIMEOUT_S)
    assert first.returncode != 0
    if how is signal.SIGTERM:
        assert "ProcessingStoppedError" in told
    before, kept = log.read_text().split(), processed(windows)
    assert 20 < kept <= len(before) < 200
    if how is signal.SIGTERM:
        # Only calls that took longer than a second are not kept.
        assert kept == len(before)
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_START_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    again = log.read_text().split()[len(before) :]
    assert len(again) == 200 - kept
    assert {*before, *again} == set(map(str, range(200)))
    assert windows.show("w").status is WindowStatus.PUBLISHED
