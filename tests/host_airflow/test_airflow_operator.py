"""The operator on a real broker: run after run, retries, kills, clears and backfills."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import ConfigError, JobFailedError, OpenWindow, Policy, Window, WindowPlan
from kafka_ordered_ops.airflow import OrderedWindowOperator
from kafka_ordered_ops.airflow.compat import AirflowFailException, AirflowSkipException
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.airflow_context import (
    Make,
    Sink,
    committed,
    context_of,
    offsets_in,
    outputs_of,
    small_json,
)
from tests.support.airflow_context import kafka_connection as kafka_connection
from tests.support.airflow_context import make as make
from tests.support.stages import stages_of
from tests.support.windows_support import BASE_MS, at, delete_before

# --- one run after the other -------------------------------------------------------------------------


def test_hours_one_after_the_other(
    make: Make, windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """Each run's output has exactly what lies before its cutoff and was not delivered yet, in order."""
    first = make().execute(context_of(12, run_id="1"))
    second = make().execute(context_of(100, run_id="2"))
    assert [offsets_in(facts["output"]) for facts in (first, second)] == [[0, 3, 1], [5, 2, 4]]
    assert (first["records"], first["status"], first["ran"]) == (3, "published", True)
    assert [(facts["out_of_order"], facts["late"]) for facts in (first, second)] == [(1, 0), (0, 0)]
    assert len(outputs_of(tmp_path / "out")) == 2
    assert committed(windows, orders) == [6]


def test_what_a_task_returns_is_a_small_xcom(make: Make, group_id: str, orders: str) -> None:
    """Plain JSON: the window, its counts and ranges, by the same words as elsewhere."""
    facts = make(window_id="w").execute(context_of(12))
    assert small_json(facts) < 2_000
    assert {name: facts[name] for name in ("window_id", "group", "topics", "content")} == {
        "window_id": "w",
        "group": group_id,
        "topics": [orders],
        "content": "records",
    }
    assert facts["cutoff_source"] == "data_interval_end"
    assert datetime.fromisoformat(facts["cutoff"]) == at(12)
    taken = {"from": 0, "up_to": 4, "offsets": 3, "ranges": 2}
    assert facts["partitions"] == {f"{orders}[0]": taken}
    assert "ranges" not in facts
    assert datetime.fromisoformat(facts["timestamp_max"]) == at(10)


def test_a_window_of_many_ranges_is_small(make: Make, topic: MakeTopic, produce: Produce) -> None:
    """Its ranges stay in the ledger, whatever their number: an XCom has their bounds and how many they are."""
    name = topic()
    # Every other record is stamped after the cutoff.
    count = 200
    produce((name, 0, None, b"x", BASE_MS + n % 2 * 60_000, ()) for n in range(count))
    facts = make(topics=name).execute(context_of(30))
    taken = {"from": 0, "up_to": count - 1, "offsets": count // 2, "ranges": count // 2}
    assert facts["partitions"] == {f"{name}[0]": taken}
    assert small_json(facts) < 2_000


@pytest.mark.parametrize("values", ["json:id int64", "json-inferred"])
def test_values_become_columns(
    topic: MakeTopic, produce: Produce, group_id: str, tmp_path: Path, values: str
) -> None:
    """As the window says, whose topic may be a template."""
    name = topic()
    produce([(name, 0, None, b'{"id": 7}', BASE_MS, ())])
    task = OrderedWindowOperator(
        task_id="task",
        window=Window(
            "{{ dag_run.conf['topic'] }}",
            starting_offsets="earliest",
            values="{{ dag_run.conf['values'] }}",
            on_bad="{{ dag_run.conf.get('on_bad', '') }}",
            flatten=True,
        ),
        group_id=group_id,
        mode="catch_up",
        output=str(tmp_path / "out"),
    )
    context: Any = context_of(12)
    context["dag_run"].conf = {"topic": name, "values": values}
    task.render_template_fields(context)
    [file] = Path(task.execute(context)["output"]).glob("*.parquet")
    assert pq.read_table(file)["id"].to_pylist() == [7]


def test_templates_are_rendered(make: Make, orders: str, tmp_path: Path) -> None:
    """Topics, group, cutoff, window id, limits and the folder may come from the run."""
    task = make(
        topics=["{{ dag_run.conf['topic'] }}"],
        cutoff="{{ data_interval_end.isoformat() }}",
        window_id="w-{{ run_id }}",
        max_offsets="{{ dag_run.conf['limit'] }}",
        isolation="{{ dag_run.conf.get('isolation', '') }}",
        on_data_loss="{{ dag_run.conf.get('on_data_loss', '') }}",
        on_covered="{{ dag_run.conf.get('on_covered', '') }}",
        on_open_claim="{{ dag_run.conf.get('on_open_claim', 'take_over') }}",
        claim_age="{{ dag_run.conf.get('claim_age', 'P2D') }}",
        claim_wait="{{ dag_run.conf.get('claim_wait', '') }}",
        output=str(tmp_path / "{{ run_id }}"),
    )
    context: Any = context_of(12, run_id="7")
    context["dag_run"].conf = {"topic": orders, "limit": 3}
    task.render_template_fields(context)
    facts = task.execute(context)
    assert facts["window_id"] == "w-7"
    assert facts["output"] == str(tmp_path / "7" / "window_id=w-7")
    assert facts["cutoff_source"] == "the task's cutoff"
    assert task.policy == Policy("auto", "take_over", claim_age="P2D", max_offsets=3)
    assert task.window == Window(orders, starting_offsets="earliest")


@pytest.mark.parametrize("name", ["isolation", "on_covered", "on_open_claim", "claim_age"])
def test_a_template_that_gives_nonsense_fails_the_task_by_name(
    make: Make, orders: str, windows: OrderedWindows, name: str
) -> None:
    """When it is rendered; a literal is an import error of the DAG. Nothing is planned."""
    task = make(window_id="w", **{name: "{{ dag_run.conf['choice'] }}"})
    context: Any = context_of(12)
    context["dag_run"].conf = {"choice": "perhaps"}
    with pytest.raises(AirflowFailException, match=f"ConfigError: {name} .*perhaps"):
        task.render_template_fields(context)
    assert windows.list() == []
    with pytest.raises(ConfigError, match=f"{name} .*perhaps"):
        make(**{name: "perhaps"})


def test_a_run_says_what_is_to_be_done_when_it_is_cleared(make: Make) -> None:
    """By its conf, without an edit of the DAG."""
    choice = "{{ dag_run.conf.get('on_covered', 'auto') }}"
    sink = Sink()
    for number, (conf, runs) in enumerate([({}, 1), ({}, 2), ({"on_covered": "skip"}, 2)]):
        task = make(window_id="w", job=sink, on_covered=choice)
        context: Any = context_of(12, try_number=number + 1)
        context["dag_run"].conf = conf
        task.render_template_fields(context)
        if conf:
            with pytest.raises(AirflowSkipException, match="on_covered='skip'"):
                task.execute(context)
        else:
            task.execute(context)
        assert len(sink.taken) == runs


# --- tries -------------------------------------------------------------------------------------------


def test_a_retry_takes_the_same_records(
    make: Make,
    windows: OrderedWindows,
    orders: str,
    produce: Produce,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The job failed; an out-of-order record that came meanwhile is the next window's, and nothing was committed."""
    sink = Sink(failures=1)
    with pytest.raises(OSError, match="disk is full"):
        make(job=sink).execute(context_of(12))
    last = caplog.messages[-1]
    said = f"group {windows.group_id}, window {sink.plans[0].window_id}, step job: OSError: the sink's disk is full."
    assert last.startswith(said)
    assert committed(windows, orders) == [None]
    produce([(orders, 0, None, b"x", BASE_MS + 1000, ())])
    facts = make(job=sink).execute(context_of(12, try_number=2))
    assert sink.taken == [[0, 3, 1], [0, 3, 1]]
    assert [plan.attempt for plan in sink.plans] == [1, 2]
    assert facts["result"] == {"rows": 3}
    assert committed(windows, orders) == [2]
    rest = Sink()
    make(job=rest).execute(context_of(20, run_id="next"))
    assert rest.taken == [[6, 5]]


@pytest.mark.parametrize("dies_before", ["commit_many", "publish_many"])
@pytest.mark.parametrize("on_covered", ["replay", "skip", "fail"])
def test_a_job_that_is_done_is_not_run_again(
    make: Make,
    windows: OrderedWindows,
    monkeypatch: pytest.MonkeyPatch,
    dies_before: str,
    on_covered: str,
) -> None:
    """The attempt died after its output was complete: the next one commits and publishes what is there.

    That is no clear of a finished window: no policy about those applies.
    """

    def die(self: OrderedWindows, plans: Any, staged: Any) -> Any:
        if dies_before == "commit_many":
            self.mark_written_many(plans, [dict(one.to_json()) for one in staged])
        raise RuntimeError("the try dies here")

    task = make(window_id="w", on_covered=on_covered)
    with monkeypatch.context() as patch:
        patch.setattr(OrderedWindows, dies_before, die)
        with pytest.raises(RuntimeError, match="dies here"):
            task.execute(context_of(12))
    was = WindowStatus.WRITTEN if dies_before == "commit_many" else WindowStatus.COMMITTED
    assert windows.show("w").status is was
    facts = make(window_id="w", on_covered=on_covered).execute(context_of(12, try_number=2))
    assert (facts["ran"], facts["status"], facts["records"]) == (False, "published", 3)
    assert offsets_in(facts["output"]) == [0, 3, 1]


def test_a_sink_of_ones_own_is_not_run_again_either(
    make: Make, windows: OrderedWindows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reported is with the window, and is what the task returns."""
    sink = Sink()

    def die(*_: Any) -> Any:
        raise RuntimeError("the try dies here")

    with monkeypatch.context() as patch:
        patch.setattr(OrderedWindows, "publish_many", die)
        with pytest.raises(RuntimeError, match="dies here"):
            make(window_id="w", job=sink).execute(context_of(12))
    facts = make(window_id="w", job=sink).execute(context_of(12, try_number=2))
    assert (len(sink.taken), facts["ran"], facts["result"]) == (1, False, {"rows": 3})
    assert (facts["records"], windows.show("w").status) == (3, WindowStatus.PUBLISHED)


@pytest.mark.parametrize("newer_is_done", [False, True])
def test_two_tries_at_once(
    make: Make, windows: OrderedWindows, orders: str, tmp_path: Path, newer_is_done: bool
) -> None:
    """The older one goes on beside the newer; it is fenced, ends for good, and its output is seen by nobody."""
    newer: list[dict[str, Any]] = []

    class Overtaken(OrderedWindowOperator):
        def run_job(self, *arguments: Any) -> Any:
            staged = super().run_job(*arguments)
            if newer_is_done:
                newer.append(make(window_id="w").execute(context_of(12, try_number=2)))
            else:
                windows.plan(windows.show("w").plan.window, "w")
            return staged

    older = Overtaken(
        task_id="task",
        window=Window(orders, starting_offsets="earliest"),
        group_id=windows.group_id,
        mode="catch_up",
        window_id="w",
        output=str(tmp_path / "out"),
    )
    with pytest.raises(
        AirflowFailException, match=r"SupersededError: .*attempt 1 of .* attempt 2 of"
    ):
        older.execute(context_of(12))
    assert not list(stages_of(tmp_path / "out").glob("*/*"))
    if not newer_is_done:
        assert committed(windows, orders) == [None]
        newer.append(make(window_id="w").execute(context_of(12, try_number=3)))
    [facts] = newer
    assert (facts["attempt"], facts["ran"]) == (2 if newer_is_done else 3, True)
    assert offsets_in(facts["output"]) == [0, 3, 1]
    assert committed(windows, orders) == [2]


def test_a_kill_before_the_job(make: Make, windows: OrderedWindows, orders: str) -> None:
    """Nothing is read or committed, and the next attempt takes the window up."""
    task = make(window_id="w")
    task.on_kill()
    with pytest.raises(JobFailedError, match="Airflow ended this attempt"):
        task.execute(context_of(12))
    assert committed(windows, orders) == [None]
    assert make(window_id="w").execute(context_of(12, try_number=2))["records"] == 3


def test_a_kill_between_the_job_and_the_commit(
    make: Make, windows: OrderedWindows, orders: str
) -> None:
    """A job that ended all the same is not committed: its try is over for Airflow."""
    tasks: list[OrderedWindowOperator] = []

    def last_moment(window: OpenWindow) -> None:
        list(window.to_batches())
        tasks[0].on_kill()

    tasks.append(make(window_id="w", job=last_moment))
    with pytest.raises(JobFailedError, match="Airflow ended this attempt"):
        tasks[0].execute(context_of(12))
    assert windows.show("w").status is WindowStatus.PLANNED
    assert committed(windows, orders) == [None]


# --- clears and backfills ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cleared_window_is_replayed(
    make: Make, windows: OrderedWindows, orders: str, produce: Produce
) -> None:
    """The same records are published again, by the job as it is now; committed offsets stay where they are."""
    first = make(window_id="w").execute(context_of(12))
    make().execute(context_of(100, run_id="later"))
    produce([(orders, 0, None, b"x", BASE_MS, ())])
    state, before_it = windows.state(), windows.show("w")
    for try_number in (2, 3):
        again = make(window_id="w", ordered=False).execute(context_of(12, try_number=try_number))
        assert (again["ran"], again["records"], again["partitions"]) == (
            True,
            3,
            first["partitions"],
        )
        assert sorted(offsets_in(again["output"])) == [0, 1, 3]
    assert committed(windows, orders) == [6]
    after = windows.state()
    assert after is not None
    assert state is not None
    assert after.topics == state.topics
    assert windows.show("w").plan == before_it.plan


def test_a_replay_of_another_job_replaces_the_output(make: Make, tmp_path: Path) -> None:
    """An attempt of a replay has a folder of its own, and its output takes the place of the older one."""
    made: list[str] = []

    class Watched(OrderedWindowOperator):
        def run_job(self, plan: WindowPlan, *arguments: Any) -> Any:
            staged: Any = super().run_job(plan, *arguments)
            Path(staged.stage_path, "part-99999.txt").write_text(str(plan.attempt))
            made.append(staged.stage_path)
            return staged

    plain = make(window_id="w")
    for try_number in (1, 2, 3):
        task = Watched(
            task_id="task",
            window=plain.window,
            group_id=plain.group_id,
            mode="catch_up",
            window_id="w",
            output=str(tmp_path / "out"),
        )
        facts = task.execute(context_of(12, try_number=try_number))
        number = Path(facts["output"], "part-99999.txt").read_text()
        assert made[-1].endswith(f"-{number}")
    assert len(set(made)) == 3


@pytest.mark.slow
def test_a_cleared_window_can_be_skipped(
    make: Make, windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """Nothing is read and nothing changes."""
    make(window_id="w").execute(context_of(12))
    record = windows.show("w")
    with pytest.raises(AirflowSkipException, match="is published already, and on_covered='skip'"):
        make(window_id="w", on_covered="skip").execute(context_of(12, try_number=2))
    assert windows.show("w") == record


def test_a_cleared_window_can_fail(make: Make, windows: OrderedWindows) -> None:
    """For good: another attempt would find the same."""
    make(window_id="w").execute(context_of(12))
    with pytest.raises(AirflowFailException, match=r"WindowCoveredError: .*on_covered='fail'"):
        make(window_id="w", on_covered="fail").execute(context_of(12, try_number=2))


def test_a_replay_of_what_retention_took_fails(make: Make, bootstrap: str, orders: str) -> None:
    """It says so, for good, and the output of then stays."""
    facts = make(window_id="w").execute(context_of(12))
    delete_before(bootstrap, orders, 1)
    with pytest.raises(AirflowFailException, match=r"RecordsLostError: .*cannot be replayed"):
        make(window_id="w").execute(context_of(12, try_number=2))
    assert offsets_in(facts["output"]) == [0, 3, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"on_empty": "skip"}, {"on_covered": "skip"}],
    ids=["replay", "on_empty", "skip"],
)
def test_running_backwards_in_catch_up(
    make: Make,
    windows: OrderedWindows,
    orders: str,
    tmp_path: Path,
    options: dict[str, Any],
) -> None:
    """The earlier run finds nothing left: it is skipped, and the commit does not move back."""
    later = make().execute(context_of(25, run_id="later"))
    for try_number in (1, 2):
        task, context = make(window_id="w", **options), context_of(12, try_number=try_number)
        with pytest.raises(AirflowSkipException, match="have taken"):
            task.execute(context)
        record = windows.show("w")
        assert record.plan.content is PlanContent.COVERED
        assert record.status is WindowStatus.COMMITTED
    assert outputs_of(tmp_path / "out") == [Path(later["output"]).name]
    assert committed(windows, orders) == [4]


def test_running_backwards_can_fail(make: Make, windows: OrderedWindows) -> None:
    """Where that is not meant to happen; the window is not planned."""
    make().execute(context_of(25, run_id="later"))
    with pytest.raises(AirflowFailException, match="WindowCoveredError"):
        make(window_id="w", on_covered="fail").execute(context_of(12))
    assert [record.plan.cutoff_ms for record in windows.list()] == [BASE_MS + 25_000]


def test_another_run_of_the_same_times_replays_its_records(
    make: Make, windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """Its output is the one that is there, and no second one of the same records."""
    first = make(window_id="first").execute(context_of(12))
    second = make(window_id="second").execute(context_of(12, run_id="again"))
    assert (second["window_id"], second["records"]) == ("first", 3)
    assert outputs_of(tmp_path / "out") == [Path(first["output"]).name]
    assert second["output"] == first["output"]
    assert [record.plan.window_id for record in windows.list()] == ["first"]


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_intervals_in_any_order(
    make: Make,
    windows: OrderedWindows,
    orders: str,
    produce: Produce,
    order: tuple[int, ...],
) -> None:
    """Each gets its own records, whatever ran before; one that comes late is the next run's, and says so."""
    found: dict[int, list[int]] = {}
    for n in order:
        context = context_of(10 * n + 10, since=10 * n, run_id=str(n))
        found[n] = offsets_in(make(mode="auto").execute(context)["output"])
    assert found == {0: [0, 3], 1: [1, 5], 2: [2]}
    produce([(orders, 0, None, b"x", BASE_MS + 7_000, ())])
    facts = make(mode="auto").execute(context_of(40, since=30, run_id="3"))
    assert (offsets_in(facts["output"]), facts["late"]) == ([6, 4], 1)
    assert committed(windows, orders) == [7]


def test_an_edited_dag_and_an_old_run(make: Make, windows: OrderedWindows, orders: str) -> None:
    """Other topics or another cutoff for the same window: it fails at once, and says what differs."""
    make(window_id="w").execute(context_of(12))
    with pytest.raises(AirflowFailException, match=r"WindowMismatchError: .*before_ms|cutoff"):
        make(window_id="w", cutoff=at(11)).execute(context_of(12, try_number=2))
    with pytest.raises(AirflowFailException, match=r"WindowMismatchError: .*topics: planned"):
        make(window_id="w", topics=[orders, "^other"]).execute(context_of(12, try_number=2))
    assert windows.show("w").status is WindowStatus.PUBLISHED
