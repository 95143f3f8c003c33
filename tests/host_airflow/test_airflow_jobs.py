"""The jobs that a task can run: functions with and without Spark, and applications by spark-submit."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, XComArg

from kafka_ordered_ops import ConfigError, JobFailedError, OpenWindow
from kafka_ordered_ops.airflow import OrderedWindowOperator
from kafka_ordered_ops.airflow.compat import AirflowFailException
from kafka_ordered_ops.airflow.support.links import SparkJobLink
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.output.writing.reported import RESULT_BYTES_MAX, Reported
from kafka_ordered_ops.spark import SparkSubmit
from kafka_ordered_ops.spark.applications.process import processes_of
from kafka_ordered_ops.spec.spark_submit import submit_of
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.airflow_context import (
    Make,
    committed,
    context_of,
    offsets_in,
    operator_for,
    outputs_of,
    small_json,
)
from tests.support.airflow_context import kafka_connection as kafka_connection
from tests.support.stages import control_of, stages_of
from tests.support.submit_support import (
    COPY,
    LINGER,
    application,
    end_all,
    fake,
    ready,
    runs,
    small,
)
from tests.support.windows_support import BASE_MS

# Starting Spark takes its time on a busy machine.
pytestmark = pytest.mark.timeout(600)

#: A small Spark in this process.
SMALL = {"spark.master": "local[1]", "spark.driver.memory": "512m"}


@pytest.fixture
def make(orders: str, group_id: str, tmp_path: Path) -> Make:
    """An operator for one window over `orders`, with its outputs below `out`."""
    return partial(
        operator_for, orders, group_id, tmp_path, window_id="w", output=str(tmp_path / "out")
    )


def check_nothing_was_committed(windows: OrderedWindows, topic: str) -> None:
    """The window is still to be delivered, and no tool sees any progress."""
    assert windows.show("w").status is WindowStatus.PLANNED
    assert committed(windows, topic) == [None]


# --- which job ---------------------------------------------------------------------------------------


def yielding(window: OpenWindow) -> Iterator[Any]:
    """Calling it does nothing: the window would be committed without any work."""
    yield from window.to_batches()


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ({"job": "a.py"}, "give Application"),
        ({"output": None}, "output= is missing"),
        ({"application": "/a.py", "output": None}, "output= is missing"),
        ({"job": yielding}, "yielding is a generator"),
    ],
)
def test_a_task_runs_one_job_and_has_a_place_for_its_output(
    make: Make, jobs: dict[str, Any], told: str
) -> None:
    """What cannot work is an import error of the DAG, and no failure in the night."""
    with pytest.raises(ConfigError, match=told):
        make(**jobs)


def test_a_copy_of_an_operator_is_a_task_of_its_own(make: Make) -> None:
    """Airflow copies operators: a copy is not ended with the one that it was made of."""
    with DAG("dag"):
        task = make()
    other = copy.deepcopy(task)
    task.on_kill()
    assert (bool(task._stop), bool(other._stop)) == (True, False)
    # The parameter is not the attribute: that one is the task's XCom.
    assert isinstance(task.output, XComArg)


# --- without Spark -----------------------------------------------------------------------------------


def test_batches_come_in_order(make: Make, windows: OrderedWindows) -> None:
    """A function reads Arrow batches with all columns, and has its own arguments."""
    rows: list[dict[str, Any]] = []

    def take(window: OpenWindow, *, table: str) -> str:
        rows.extend(row for batch in window.to_batches() for row in batch.to_pylist())
        return f"{table}: {window.window_id}"

    facts = make(output=None, function=take, keywords={"table": "t"}).execute(context_of(25))
    assert [row["offset"] for row in rows] == [0, 3, 1, 5, 2]
    assert [row["timestamp"].timestamp() * 1000 - BASE_MS for row in rows[:2]] == [0, 5000]
    assert (facts["result"], facts["records"], facts["output"]) == ("t: w", 5, None)
    assert windows.show("w").status is WindowStatus.PUBLISHED


@pytest.mark.parametrize(
    "returned",
    [object(), 2**70, float("nan"), {1: "a", "1": "b"}, "\ud800", ["x" * RESULT_BYTES_MAX]],
    ids=["object", "65 bits", "nan", "equal keys", "surrogate", "large"],
)
def test_what_json_cannot_hold_is_not_kept(
    make: Make, windows: OrderedWindows, returned: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The records are delivered all the same, the log says so, and the ledger can still be read."""
    facts = make(job=lambda window: returned, output=None).execute(context_of(25))
    assert (facts["result"], facts["status"]) == (None, "published")
    assert "is not stored with the window" in caplog.text
    assert windows.show("w").status is WindowStatus.PUBLISHED


@pytest.mark.parametrize("returned", [None, 0, [], "text", {"facts": 1, "rows": [1, 2]}])
def test_what_a_job_returns_is_found_again(returned: Any) -> None:
    """By the attempt that only commits."""
    reported = Reported.of(returned, {"records": 1})
    assert Reported.found(dict(reported.to_json())) == reported
    assert reported.result.get("returned") == returned


@pytest.mark.slow
def test_a_kill_ends_the_taking_of_batches(
    make: Make, windows: OrderedWindows, orders: str
) -> None:
    """At the next batch; and what the function makes of the error is no success."""
    tasks: list[OrderedWindowOperator] = []

    def take(window: OpenWindow) -> str:
        batches = window.to_batches()
        killer = threading.Thread(target=tasks[0].on_kill)
        killer.start()
        killer.join()
        with pytest.raises(JobFailedError, match="Airflow ended this attempt"):
            next(batches)
        return "well"

    tasks.append(make(job=take, output=None))
    with pytest.raises(JobFailedError, match="Airflow ended this attempt"):
        tasks[0].execute(context_of(25))
    check_nothing_was_committed(windows, orders)


@pytest.mark.slow
def test_a_kill_ends_a_copy(
    make: Make,
    windows: OrderedWindows,
    orders: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the midst of reading: nothing is staged, and the next attempt takes the same plan."""
    from kafka_ordered_ops.delivery.open_windows import OpenWindows

    task, said = make(), OpenWindows.progress

    def killed_while_reading(windows: OpenWindows) -> Callable[[int, int], None]:
        progress = said(windows)

        def then(done: int, total: int) -> None:
            task.on_kill()
            progress(done, total)

        return then

    with monkeypatch.context() as patch:
        patch.setattr(OpenWindows, "progress", killed_while_reading)
        with pytest.raises(JobFailedError, match="Airflow ended this attempt"):
            task.execute(context_of(25))
    check_nothing_was_committed(windows, orders)
    assert not list(stages_of(tmp_path / "out").glob("*/*"))
    assert offsets_in(make().execute(context_of(25))["output"]) == [0, 3, 1, 5, 2]


# --- a function with Spark ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("engine", ["python", "local"])
def test_a_function_with_spark_writes_the_window(
    make: Make, windows: OrderedWindows, orders: str, tmp_path: Path, engine: str
) -> None:
    """It reads exactly the window, and what it writes is published with the commit; nothing else is left."""
    seen: list[Any] = []

    def job(window: OpenWindow, *, least: int) -> None:
        rows = window.read().where(f"offset >= {least}")
        staged: Any = window.write(rows)
        seen.append((window.plan.window_id, Path(staged.final_path).exists()))
        with pytest.raises(ConfigError, match="one output"):
            window.write(rows)

    task = make(function=job, keywords={"least": 1}, engine=engine, conf=SMALL)
    facts = task.execute(context_of(25))
    assert seen == [("w", False)]
    assert offsets_in(facts["output"]) == [3, 1, 5, 2]
    assert (facts["records"], facts["offsets"]) == (4, 5)
    assert small_json(facts) < 2_000
    assert committed(windows, orders) == [4]
    assert outputs_of(tmp_path / "out") == [Path(facts["output"]).name]
    assert not list(control_of(tmp_path / "out").glob("read*"))


@pytest.mark.long
@pytest.mark.spark
def test_a_function_with_a_sink_of_its_own(make: Make, windows: OrderedWindows) -> None:
    """What it returns is kept with the window; no folder is needed."""

    def job(window: OpenWindow) -> dict[str, int]:
        return {"rows": window.read(ordered=False).count()}

    facts = make(function=job, output=None, conf=SMALL).execute(context_of(25))
    assert (facts["result"], facts["output"]) == ({"rows": 5}, None)
    assert windows.show("w").status is WindowStatus.PUBLISHED


@pytest.mark.slow
@pytest.mark.spark
def test_a_function_that_writes_without_a_folder(
    make: Make, windows: OrderedWindows, orders: str
) -> None:
    """The task says what it lacks, for good."""
    task = make(
        function=lambda window: window.write(window.read()),
        output=None,
        conf=SMALL,
    )
    with pytest.raises(AirflowFailException, match="ConfigError: this task needs output="):
        task.execute(context_of(25))
    check_nothing_was_committed(windows, orders)


@pytest.mark.long
@pytest.mark.spark
def test_an_error_in_a_function_with_spark(
    make: Make, windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """Its own is raised as it is, Spark's by this package's name; both are tried again, and nothing is left."""
    from pyspark.sql import functions as f

    def own(window: OpenWindow) -> None:
        window.write(window.read())
        raise LookupError("no such table")

    def sparks(window: OpenWindow) -> None:
        window.write(window.read().withColumn("bad", f.raise_error(f.lit("a bad row"))))

    with pytest.raises(LookupError, match="no such table"):
        make(function=own, conf=SMALL).execute(context_of(25))
    check_nothing_was_committed(windows, orders)
    with pytest.raises(JobFailedError, match="a bad row"):
        make(function=sparks, conf=SMALL).execute(context_of(25))
    check_nothing_was_committed(windows, orders)
    assert offsets_in(make().execute(context_of(25))["output"]) == [0, 3, 1, 5, 2]
    assert not list(stages_of(tmp_path / "out").glob("*/*"))


@pytest.mark.long
@pytest.mark.spark
def test_a_kill_ends_what_spark_computes(
    make: Make, windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """The function waits for a job that would take minutes; it ends now, and nothing is committed."""
    tasks: list[OrderedWindowOperator] = []

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        for batch in batches:
            time.sleep(600)
            yield batch

    def job(window: OpenWindow) -> None:
        def kill() -> None:
            while not window.spark.sparkContext.statusTracker().getActiveStageIds():
                threading.Event().wait(0.05)
            tasks[0].on_kill()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            window.write(window.read(ordered=False).mapInArrow(slow, window.read().schema))
        finally:
            killer.join()

    tasks.append(make(function=job, conf=SMALL))
    with pytest.raises(JobFailedError, match="Airflow ended this attempt"):
        tasks[0].execute(context_of(25))
    check_nothing_was_committed(windows, orders)
    assert not list(stages_of(tmp_path / "out").glob("*/*"))
    facts = make(function=lambda window: window.write(window.read()), conf=SMALL).execute(
        context_of(25, try_number=2)
    )
    assert offsets_in(facts["output"]) == [0, 3, 1, 5, 2]


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_that_was_there_before_goes_on(make: Make) -> None:
    """A task ends only what it has started."""
    from kafka_ordered_ops.spark.session import local_session

    spark = local_session("before", cores=1, memory="512m")
    try:
        made: list[Any] = []
        task = make(function=lambda window: made.append(window.read().sparkSession), output=None)
        task.execute(context_of(25))
        assert made == [spark]
        assert spark.range(3).count() == 3
    finally:
        spark.stop()


# --- an application ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spark
def test_an_application_by_spark_submit(
    make: Make,
    windows: OrderedWindows,
    orders: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It gets its arguments, its lines are in the task's log, its page is linked, and its output is published."""
    caplog.set_level("INFO")
    job = application(
        tmp_path, f"{COPY}\n    import sys; print('given', 100 * 1, '%', sys.argv[1:])"
    )
    how = small()
    task = make(
        application=str(job),
        arguments=["--table", 7],
        submit={
            "master": how.master,
            "conf": {**how.conf, "spark.ui.enabled": "true"},
            "java_home": how.java_home,
        },
    )
    context = context_of(25)
    facts = task.execute(context)
    assert str(context["ti"].pushed[SparkJobLink().xcom_key]).startswith("http://")
    assert "given 100 % ['--table', '7']" in caplog.text
    assert offsets_in(facts["output"]) == [0, 3, 1, 5, 2]
    assert committed(windows, orders) == [4]


@pytest.mark.long
@pytest.mark.spark
def test_a_kill_ends_an_application(
    make: Make, windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """Java, driver and Python workers are gone when the task is; what had been written is not taken."""
    job = application(tmp_path, LINGER)
    task, tokens = make(application=str(job), submit=small()), list[str]()

    def kill() -> None:
        tokens.append(ready(job)[0])
        task.on_kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(JobFailedError, match="was cancelled"):
            task.execute(context_of(25))
        killer.join()
        assert processes_of(tokens[0]) == []
    finally:
        killer.join()
        end_all(tokens[0])
    check_nothing_was_committed(windows, orders)
    assert runs(tmp_path / "out") == []
    assert not job.with_suffix(".went-on").exists()
    assert not list(stages_of(tmp_path / "out").glob("*/*"))
    again = application(tmp_path, COPY)
    facts = make(application=str(again), submit=small()).execute(context_of(25, try_number=2))
    assert (facts["attempt"], offsets_in(facts["output"])) == (2, [0, 3, 1, 5, 2])


@pytest.mark.parametrize(
    ("code", "told"), [("sys.exit(3)", "exit code 3"), ("", "without a result")]
)
def test_an_application_that_fails(
    make: Make, windows: OrderedWindows, orders: str, tmp_path: Path, code: str, told: str
) -> None:
    """A failure is tried again; an application that never asks for its window fails for good."""
    job = application(tmp_path, "")
    task = make(application=str(job), submit=fake(tmp_path, code))
    expected = JobFailedError if code else AirflowFailException
    with pytest.raises(expected, match=told):
        task.execute(context_of(25))
    check_nothing_was_committed(windows, orders)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"submit": {"mastre": "local"}}, "submit has .mastre"),
        ({"submit": {"deploy_mode": "cluster", "master": "local"}}, "no cluster"),
        ({"submit": {"deploy_mode": "clustered"}}, "clustered"),
        ({"arguments": "--table 7"}, "give a list"),
        ({"application": "/no-such-file.py"}, "there is no application"),
        ({"engine": "java", "submit": {}}, "engine is 'java', not one of"),
    ],
)
def test_what_cannot_be_submitted_fails_for_good(
    make: Make, tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    """When the DAG is parsed, or before anything is started."""
    job = application(tmp_path, COPY)
    with pytest.raises((AirflowFailException, ConfigError), match=told):
        make(**{"application": str(job), **given}).execute(context_of(25))


def test_a_way_to_submit_is_taken_as_it_is(make: Make, tmp_path: Path) -> None:
    """An object, or its arguments by name."""
    how = SparkSubmit(master="yarn", timeout_s=5)
    assert submit_of(make(application="/a.py", submit=how).job.submit) is how
    given = {"master": "yarn", "timeout_s": 5}
    assert submit_of(make(application="/a.py", submit=given).job.submit) == how
    assert submit_of(make(application="/a.py").job.submit) is None
