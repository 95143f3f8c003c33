"""Plan, job and commit as tasks of their own: handed over, fenced, in parts, abandoned."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Asset

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    Window,
    WindowPrunedError,
    WindowSupersededError,
)
from kafka_ordered_ops.airflow import (
    AbandonWindowOperator,
    CommitWindowOperator,
    OrderedWindowOperator,
    PlanWindowOperator,
    WindowPartOperator,
)
from kafka_ordered_ops.airflow.compat import AirflowFailException, AirflowSkipException
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.spark import planned_window
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import Produce
from tests.support.airflow_context import (
    committed,
    context_of,
    offsets_in,
    outputs_of,
    rows_in,
    small_json,
)
from tests.support.airflow_context import kafka_connection as kafka_connection
from tests.support.airflow_tasks import Tasks
from tests.support.airflow_tasks import tasks as tasks
from tests.support.stages import stages_of
from tests.support.submit_support import small
from tests.support.windows_support import BASE_MS, before, delete_before

pytestmark = pytest.mark.timeout(600)

PLANNED_ORDERS = Path(__file__).parents[2] / "example_dags" / "jobs" / "planned_orders.py"


# --- handing over ------------------------------------------------------------------------------------


def test_plan_job_commit(tasks: Tasks, windows: OrderedWindows) -> None:
    """Nothing is visible or committed before the last task; then all is."""
    told = tasks.plan()
    assert small_json(told) < 2_000
    assert (told["window_id"], told["attempt"], told["conn_id"]) == ("w", 1, "kafka_default")
    tasks.job(told)
    assert committed(windows, tasks.topic) == [None]
    assert outputs_of(tasks.folder / "out") == []
    facts = tasks.commit(told)
    assert (facts["status"], facts["records"]) == ("published", 5)
    assert offsets_in(facts["output"]) == [0, 3, 1, 5, 2]
    assert committed(windows, tasks.topic) == [4]


@pytest.mark.long
@pytest.mark.spark
def test_the_example_job_by_spark_submit(tasks: Tasks, bootstrap: str) -> None:
    """As any Spark operator runs it: with arguments from the XCom, and no other tie to the tasks."""
    told = tasks.plan()
    how = small()
    arguments = [bootstrap, told["group"], told["window_id"], str(told["attempt"]), tasks.output]
    conf = [word for key, value in how.conf.items() for word in ("--conf", f"{key}={value}")]
    command = [how.command, *how.options(), *conf, str(PLANNED_ORDERS), *arguments]
    subprocess.run(command, check=True, timeout=500, env=how.variables())
    facts = tasks.commit(told)
    assert offsets_in(facts["output"]) == [0, 3, 1, 5, 2]


def test_a_plan_for_another_task_takes_no_dead_letters(
    tasks: Tasks, windows: OrderedWindows
) -> None:
    """Nothing tells the commit which records the job in between has left out: refused before the plan."""
    window = Window(
        tasks.topic, starting_offsets=Earliest(), values="json:id int64", on_bad="dead_letter:bad"
    )
    plan = PlanWindowOperator(
        task_id="plan", window=window, group_id=windows.group_id, mode="catch_up"
    )
    with pytest.raises(AirflowFailException, match="a job in another task"):
        plan.execute(context_of(25))
    assert windows.list() == []


@pytest.mark.slow
def test_committing_again_changes_nothing(tasks: Tasks, windows: OrderedWindows) -> None:
    """Also when the first commit died before it published; counts and output stay."""
    told = tasks.plan()
    tasks.job(told)
    first = tasks.commit(told)
    record = windows.show("w")
    assert tasks.commit(told) == first
    assert windows.show("w") == record


def test_a_commit_that_died_before_it_published(tasks: Tasks, windows: OrderedWindows) -> None:
    """The next attempt publishes what was committed."""
    told = tasks.plan()
    staged = tasks.job(told)
    windows.commit(windows.mark_written(windows.show("w").plan, staged.to_json()))
    assert outputs_of(tasks.folder / "out") == []
    assert tasks.commit(told)["records"] == 5
    assert windows.show("w").status is WindowStatus.PUBLISHED


def test_a_job_with_a_sink_of_its_own(tasks: Tasks) -> None:
    """What it says of it is kept with the window."""
    told = tasks.plan()
    facts = tasks.commit(told, output=None, result={"table": "orders"})
    assert (facts["result"], facts["output"], facts["status"]) == (
        {"table": "orders"},
        None,
        "published",
    )


def test_a_job_that_staged_nothing(tasks: Tasks, windows: OrderedWindows) -> None:
    """It is not committed as if it had: the error names the folder."""
    told = tasks.plan()
    with pytest.raises(AirflowFailException, match=rf"SinkError: .*{tasks.output}"):
        tasks.commit(told)
    assert committed(windows, tasks.topic) == [None]


@pytest.mark.parametrize("as_text", [False, True])
def test_windows_come_as_xcoms_or_templates(tasks: Tasks, as_text: bool) -> None:
    """A template has to render JSON."""
    told = tasks.plan()
    tasks.job(told)
    assert tasks.commit(json.dumps(told) if as_text else told)["records"] == 5


@pytest.mark.parametrize("window", [None, "w", {"window_id": "w"}, [], "[]", str({"a": 1})])
def test_what_is_no_window(tasks: Tasks, window: Any) -> None:
    """A skipped planning task, or a template of another kind."""
    for task in (tasks.commit, tasks.part, tasks.abandon):
        with pytest.raises(AirflowFailException, match="ConfigError: window= is"):
            task(window)


def test_tasks_are_wired_by_the_window(tasks: Tasks) -> None:
    """The XCom makes the dependency, also over mapped parts; nothing of it needs Kafka."""
    with DAG("dag") as dag:
        plan = PlanWindowOperator(mode="auto", task_id="plan", topics="t", group_id="g", parts=2)
        part = WindowPartOperator.partial(task_id="part", output="/out").expand(window=plan.output)
        commit = CommitWindowOperator(task_id="commit", window=plan.output, output="/out")
        (
            part
            >> commit
            >> AbandonWindowOperator(task_id="let_go", window=plan.output).as_teardown(setups=plan)
        )
    assert dag.get_task("part").upstream_task_ids == {"plan"}
    assert dag.get_task("commit").upstream_task_ids == {"plan", "part"}
    assert dag.get_task("let_go").is_teardown


# --- tries -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_older_try_is_fenced_at_every_step(tasks: Tasks, windows: OrderedWindows) -> None:
    """The planning task was cleared while its job ran: what that one does is for nobody, and says so."""
    old = tasks.plan()
    tasks.job(old)
    new = tasks.plan(try_number=2)
    assert (new["claim_id"], new["attempt"], new["ranges"]) == (old["claim_id"], 2, old["ranges"])
    with pytest.raises(WindowSupersededError, match="would not be committed"):
        tasks.job(old)
    with pytest.raises(AirflowFailException, match="WindowSupersededError"):
        tasks.commit(old)
    assert committed(windows, tasks.topic) == [None]
    tasks.job(new)
    assert tasks.commit(new)["records"] == 5
    with pytest.raises(WindowSupersededError):
        tasks.job(old)


@pytest.mark.slow
def test_a_cleared_window_is_replayed(
    tasks: Tasks, windows: OrderedWindows, produce: Produce
) -> None:
    """All its tasks were cleared: the same records again, in the place of the older output."""
    first = tasks.plan()
    tasks.job(first)
    tasks.commit(first)
    produce([(tasks.topic, 0, None, b"x", BASE_MS, ())])
    for try_number in (2, 3):
        again = tasks.plan(try_number=try_number)
        assert (again["ranges"], again["claim_id"]) == (first["ranges"], first["claim_id"])
        staged = tasks.job(again)
        Path(staged.stage_path, "part-99999.txt").write_text("again")
        facts = tasks.commit(again)
        assert Path(facts["output"], "part-99999.txt").exists()
        assert (facts["status"], facts["records"]) == ("published", 5)
    assert committed(windows, tasks.topic) == [4]
    assert not list(stages_of(tasks.folder / "out").glob("*/*"))


@pytest.mark.slow
def test_a_cleared_window_can_be_skipped_or_fail(tasks: Tasks, windows: OrderedWindows) -> None:
    """With the planning task its followers are skipped."""
    told = tasks.plan()
    tasks.commit(told, output=None)
    record = windows.show("w")
    with pytest.raises(AirflowSkipException):
        tasks.plan(on_covered="skip")
    with pytest.raises(AirflowFailException, match="WindowCoveredError"):
        tasks.plan(on_covered="fail")
    assert windows.show("w") == record


def test_a_cleared_window_that_retention_took(tasks: Tasks, bootstrap: str) -> None:
    """The planning task says so, before any job is started."""
    tasks.commit(tasks.plan(), output=None)
    delete_before(bootstrap, tasks.topic, 1)
    with pytest.raises(AirflowFailException, match=r"RecordsLostError: .*cannot be replayed"):
        tasks.plan(try_number=2)


def test_a_limit_holds_for_plans(tasks: Tasks, windows: OrderedWindows) -> None:
    """As in the operator."""
    with pytest.raises(AirflowFailException, match="PlanTooLargeError"):
        tasks.plan(max_offsets=4)
    assert windows.list() == []


# --- nothing to deliver ------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [None, 3])
def test_a_covered_window_is_skipped(
    tasks: Tasks,
    windows: OrderedWindows,
    parts: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No job must write an empty output where others deliver the records; the commit does not move back."""
    windows.commit(windows.plan(before(tasks.topic, 25, Earliest()), "later"))
    caplog.set_level(logging.INFO)
    for try_number in (1, 2):
        with pytest.raises(AirflowSkipException, match="other windows have taken its records"):
            tasks.plan(12, try_number=try_number, parts=parts)
    # Airflow logs the reason of the skip.
    assert "have taken its records" not in caplog.text
    record = windows.show("w")
    assert (record.plan.content, record.status) == (PlanContent.COVERED, WindowStatus.COMMITTED)
    assert committed(windows, tasks.topic) == [4]


@pytest.mark.slow
@pytest.mark.parametrize("parts", [None, 3])
def test_an_empty_window(tasks: Tasks, windows: OrderedWindows, parts: int | None) -> None:
    """Its output has no rows; or the planning task is skipped, and the window done."""
    told = tasks.plan(-10, parts=parts)
    if parts is None:
        tasks.job(told)
    else:
        for one in told:
            tasks.part(one)
    facts = tasks.commit(told)
    assert (facts["records"], facts["content"], rows_in(facts["output"])) == (0, "empty", [])
    with pytest.raises(AirflowSkipException, match="has no records"):
        tasks.plan(-9, parts=parts, window_id="next", on_empty="skip")
    assert windows.show("next").status is WindowStatus.COMMITTED


# --- letting go --------------------------------------------------------------------------------------


def test_letting_go_of_an_open_window(tasks: Tasks, windows: OrderedWindows) -> None:
    """Its offsets are the next window's, and what its job had staged is removed."""
    told = tasks.plan()
    tasks.job(told)
    tasks.abandon(told, output=tasks.output)
    assert windows.show("w").status is WindowStatus.ABANDONED
    assert not list(stages_of(tasks.folder / "out").glob("*/*"))
    with pytest.raises(AirflowFailException, match=r"WindowSupersededError: .*abandoned"):
        tasks.commit(told, output=None)
    with pytest.raises(WindowSupersededError, match="abandoned"):
        tasks.job(told)
    tasks.abandon(told)
    assert tasks.plan(window_id="next")["offsets"] == 5


def test_a_window_that_is_done_is_not_let_go_of(tasks: Tasks, windows: OrderedWindows) -> None:
    """A teardown runs after the commit too."""
    told = tasks.plan()
    tasks.job(told)
    facts = tasks.commit(told)
    record = windows.show("w")
    tasks.abandon(told, output=tasks.output)
    assert windows.show("w") == record
    assert offsets_in(facts["output"]) == [0, 3, 1, 5, 2]


def test_a_window_that_another_try_has_is_not_let_go_of(
    tasks: Tasks, windows: OrderedWindows
) -> None:
    """The teardown of an older attempt leaves the newer one alone."""
    old = tasks.plan()
    new = tasks.plan(try_number=2)
    tasks.abandon(old)
    assert windows.show("w").status is WindowStatus.PLANNED
    tasks.abandon(new)
    assert windows.show("w").status is WindowStatus.ABANDONED


# --- planned_window ----------------------------------------------------------------------------------


def test_a_job_gets_the_newest_plan_when_it_is_told_no_attempt(
    tasks: Tasks, bootstrap: str
) -> None:
    """And nothing is changed by its look."""
    tasks.plan()
    told = tasks.plan(try_number=2)
    record = tasks.windows.show("w")
    plan, settings = planned_window({"bootstrap.servers": bootstrap}, told["group"], "w")
    assert plan == record.plan
    assert settings.bootstrap_servers == bootstrap
    assert tasks.windows.show("w") == record


def test_a_window_that_was_pruned_has_no_records_to_read(tasks: Tasks, bootstrap: str) -> None:
    """It is an error, and no empty window."""
    from datetime import timedelta

    told = tasks.plan()
    tasks.commit(told, output=None)
    assert tasks.windows.prune(timedelta(0)) == ["w"]
    with pytest.raises(WindowPrunedError):
        planned_window({"bootstrap.servers": bootstrap}, told["group"], "w")


# --- what is told ------------------------------------------------------------------------------------


def test_the_commit_tells_the_assets(tasks: Tasks) -> None:
    """It, and not the plan, is what others wait for."""
    told = tasks.plan()
    tasks.job(told)
    asset, context = Asset("kafka://localhost:9092/orders"), context_of()
    CommitWindowOperator(
        task_id="commit", window=told, output=tasks.output, outlets=[asset]
    ).execute(context)
    assert context["outlet_events"][asset].extra["records"] == 5


@pytest.mark.slow
def test_a_window_by_the_operator_and_by_tasks_is_the_same(
    tasks: Tasks, windows: OrderedWindows
) -> None:
    """One may go on where the other has failed."""

    def fail(*_: Any) -> None:
        raise OSError("no")

    failing: Callable[..., Any] = OrderedWindowOperator(
        task_id="task",
        window=Window(tasks.topic, starting_offsets="earliest"),
        group_id=windows.group_id,
        mode="catch_up",
        window_id="w",
        job=fail,
    ).execute
    with pytest.raises(OSError, match="no"):
        failing(context_of(25))
    told = tasks.plan()
    assert told["attempt"] == 2
    tasks.job(told)
    assert tasks.commit(told)["records"] == 5


def test_a_number_of_parts_that_cannot_be(tasks: Tasks, windows: OrderedWindows) -> None:
    """It is found when the DAG is read, and nothing is planned."""
    with pytest.raises(ConfigError, match="parts is 0: give a whole number from 1 to 10,000"):
        tasks.plan(parts=0)
    assert windows.list() == []
