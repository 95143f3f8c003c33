"""The operator's policies on a real broker, and what it tells others of a window."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import confluent_kafka as ck
import pytest
from airflow.sdk import Asset, AssetAlias

from kafka_ordered_ops import (
    ConfigError,
    CutoffInFutureError,
    Earliest,
    OpenClaimError,
    PlanTooLargeError,
)
from kafka_ordered_ops.airflow.compat import AirflowFailException, AirflowSkipException
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic
from tests.support.airflow_context import (
    DagRun,
    Make,
    Sink,
    committed,
    context_of,
    offsets_in,
    rows_in,
)
from tests.support.airflow_context import kafka_connection as kafka_connection
from tests.support.airflow_context import make as make
from tests.support.airflow_versions import needs_event_partitions
from tests.support.windows_support import BASE_MS, at, before, delete_before

# --- policies ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_without_records(make: Make, windows: OrderedWindows, orders: str) -> None:
    """It succeeds with an output that has none, and the next one begins where it should."""
    make().execute(context_of(12, run_id="1"))
    facts = make().execute(context_of(14, run_id="2"))
    assert (facts["content"], facts["records"], rows_in(facts["output"])) == ("empty", 0, [])
    with pytest.raises(AirflowSkipException, match="has no records"):
        make(window_id="w", on_empty="skip").execute(context_of(15, run_id="3"))
    assert windows.show("w").status is WindowStatus.COMMITTED
    assert make().execute(context_of(100, run_id="4"))["records"] == 3


@pytest.mark.slow
def test_a_run_that_leaves_all_records_to_a_failed_one_is_not_green(
    make: Make, windows: OrderedWindows
) -> None:
    """It is skipped, its window is done, and the reason names the window that holds the records, and the command."""
    with pytest.raises(OSError, match="disk is full"):
        make(window_id="failed", job=Sink(failures=1)).execute(context_of(100, run_id="1"))
    with pytest.raises(AirflowSkipException) as skipped:
        make(window_id="next").execute(context_of(101, run_id="2"))
    assert "up to 6 offsets of its times are held by 1 open window: failed" in str(skipped.value)
    assert f"windows abandon -g {windows.group_id} failed" in str(skipped.value)
    assert windows.show("next").status is WindowStatus.COMMITTED
    assert make(window_id="failed").execute(context_of(100, run_id="1"))["records"] == 6


def test_offsets_without_records_are_skipped_after_the_commit(
    make: Make, windows: OrderedWindows, topic: MakeTopic, bootstrap: str
) -> None:
    """Of markers and aborted records only the job finds out that there is nothing."""
    name = topic()
    producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"x", partition=0, timestamp=BASE_MS)
    producer.flush()
    producer.abort_transaction(30)
    with pytest.raises(AirflowSkipException, match="has no records"):
        make(topics=name, on_empty="skip").execute(context_of(12))
    assert committed(windows, name) == [2]


@pytest.mark.slow
def test_a_window_over_the_limit_is_refused(
    make: Make, windows: OrderedWindows, orders: str
) -> None:
    """For good, before the job, and its offsets are free: smaller steps take them."""
    with pytest.raises(
        AirflowFailException, match=rf"6 offsets.* max_offsets is 4.*{orders}"
    ) as caught:
        make(window_id="w", max_offsets=4).execute(context_of(100))
    assert isinstance(caught.value.__context__, PlanTooLargeError)
    assert windows.list() == []
    assert make(max_offsets=4).execute(context_of(12, run_id="step"))["records"] == 3
    assert make(window_id="w", max_offsets=3).execute(context_of(100))["records"] == 3


def test_a_window_over_the_limit_that_an_earlier_try_planned_stays(
    make: Make, windows: OrderedWindows
) -> None:
    """The limit came later: what was planned may have been written."""
    with pytest.raises(OSError, match="disk is full"):
        make(window_id="w", job=Sink(failures=1)).execute(context_of(100))
    with pytest.raises(AirflowFailException, match="It stays planned"):
        make(window_id="w", job=Sink(), max_offsets=5).execute(context_of(100))
    assert windows.show("w").status is WindowStatus.PLANNED


def test_what_retention_took(
    make: Make, windows: OrderedWindows, bootstrap: str, orders: str
) -> None:
    """It fails for good; or the loss is written down, and the rest delivered."""
    make().execute(context_of(2, run_id="1"))
    delete_before(bootstrap, orders, 2)
    with pytest.raises(AirflowFailException, match="RecordsLostError"):
        make(window_id="w").execute(context_of(100))
    facts = make(window_id="w", on_data_loss="warn").execute(context_of(100))
    assert offsets_in(facts["output"]) == [3, 5, 2, 4]


@pytest.mark.slow
def test_open_windows_of_others(make: Make, windows: OrderedWindows, orders: str) -> None:
    """Their offsets are stepped around; or it fails or waits, to be tried again; or takes over what is old."""
    windows.plan(before(orders, 2, Earliest()), "open")
    for options in ({"on_open_claim": "fail"}, {"on_open_claim": "wait", "claim_wait": "PT0.1S"}):
        with pytest.raises(OpenClaimError, match="open"):
            make(window_id="w", **options).execute(context_of(12))
    around = make(window_id="around").execute(context_of(12))
    assert offsets_in(around["output"]) == [3, 1]
    over = make(window_id="over", on_open_claim="take_over", claim_age="PT0.001S")
    assert 0 in offsets_in(over.execute(context_of(100))["output"])


@pytest.mark.slow
def test_a_foreign_commit(make: Make, windows: OrderedWindows, bootstrap: str, orders: str) -> None:
    """It fails for good and names the cure, or adopts what was moved."""
    make().execute(context_of(2, run_id="1"))
    other = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": windows.group_id})
    other.commit(offsets=[ck.TopicPartition(orders, 0, 3)], asynchronous=False)
    other.close()
    with pytest.raises(AirflowFailException, match=r"ForeignCommitError: .*on_foreign_commit"):
        make(window_id="w").execute(context_of(100))
    facts = make(window_id="w", on_foreign_commit="adopt").execute(context_of(100))
    assert offsets_in(facts["output"]) == [3, 5, 4]


def test_what_may_go_away_by_itself_is_tried_again(make: Make) -> None:
    """A cutoff that has not passed is an error of this package's own, for Airflow's retries."""
    with pytest.raises(CutoffInFutureError):
        make(cutoff="2999-01-01T00:00:00Z").execute(context_of())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topics": "no-such-topic"}, "UnknownTopicError"),
        ({"starting_offsets": None}, "StartingOffsetsRequiredError"),
        ({"starting_offsets": "yesterday"}, "ConfigError"),
        ({"cutoff": "2026-11-20T12:00:00"}, "ConfigError"),
        ({"max_offsets": "many"}, "ConfigError: max_offsets is 'many'"),
        ({"topics": [1]}, "ConfigError"),
    ],
)
def test_what_a_person_has_to_mend_fails_for_good(
    make: Make, given: dict[str, Any], told: str
) -> None:
    """By the error's name, when the DAG is parsed or at the run: more attempts would only cost time."""
    with pytest.raises((AirflowFailException, ConfigError)) as raised:
        make(**given).execute(context_of(12))
    assert told in f"{type(raised.value).__name__}: {raised.value}"


@pytest.mark.slow
def test_a_partition_whose_date_is_not_told_needs_a_cutoff(make: Make) -> None:
    """Airflow 3.2 tells tasks the key alone: the time when somebody started the run is no substitute."""
    of_partition = DagRun(run_after=at(100), partition_key="2026-11-20T00:00:00")
    context = context_of(dag_run=of_partition)
    with pytest.raises(AirflowFailException, match=r"2026-11-20T00:00:00'.*give cutoff="):
        make().execute(context)
    facts = make(cutoff=at(12)).execute(context)
    assert facts["records"] == 3
    assert facts["window_id"].startswith("2026-11-20T00-00-00-dag.task-")
    # Airflow 3.3 says so where a partition has no date.
    context["partition_date"] = None
    assert make(window_id="rest").execute(context)["records"] == 3


# --- what is told ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_assets_are_told(make: Make, orders: str) -> None:
    """A window's facts without its ranges; a task that waits for it finds the cutoff there."""
    asset, alias = Asset("kafka://localhost:9092/orders"), AssetAlias("orders")
    context = context_of(12, partition_key="2026-11-20")
    task = make(outlets=[asset, alias, "something else"], cutoff=at(12))
    task.execute(context)
    event = context["outlet_events"][asset]
    told = json.loads(json.dumps(event.extra))
    assert (told["records"], told["offsets"], told["empty"]) == (3, 3, False)
    assert told["topics"] == [orders]
    assert datetime.fromisoformat(told["cutoff"]) == at(12)
    assert "ranges" not in told


@needs_event_partitions
def test_assets_are_told_the_partition(make: Make) -> None:
    """So that tasks that wait for all of an asset's partitions see this one."""
    asset, context = Asset("kafka://localhost:9092/orders"), context_of(12, partition_key="11-20")
    make(outlets=[asset], cutoff=at(12)).execute(context)
    assert context["outlet_events"][asset].partition_keys == {"11-20"}


def test_a_skipped_window_tells_no_assets(make: Make) -> None:
    """Nothing happened that anybody waits for."""
    asset, context = Asset("kafka://localhost:9092/orders"), context_of(-10)
    with pytest.raises(AirflowSkipException):
        make(outlets=[asset], on_empty="skip").execute(context)
    assert context["outlet_events"][asset].extra == {}


def test_the_link_of_a_try_that_failed(
    make: Make, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window is known as soon as it is planned."""
    monkeypatch.setenv(
        "AIRFLOW__KAFKA_ORDERED_OPS__WINDOW_URL", "https://kafka/{topic}?w={window_id}"
    )
    task = make(job=Sink(failures=1))
    with pytest.raises(OSError, match="disk is full"):
        task.execute(context_of(12))
    assert task.link_facts is not None
    link, _ = task.operator_extra_links
    assert link.get_link(task, ti_key=None).startswith(
        f"https://kafka/{orders}?w=2023-11-14T22-13-32Z-dag.task-"
    )


@pytest.mark.slow
def test_tasks_map_indexes_and_groups_have_windows_of_their_own(
    make: Make, windows: OrderedWindows
) -> None:
    """By ids that stay the same for every attempt."""
    contexts = (context_of(12), context_of(12, task_id="b"), context_of(12, map_index=1))
    make().execute(contexts[0])
    for context in contexts[1:]:
        with pytest.raises(AirflowSkipException):
            # The second task is another owner of the group.
            make(on_covered="skip", redefine=True).execute(context)
    ids = {record.plan.window_id.rpartition("-")[0] for record in windows.list()}
    assert ids == {f"2023-11-14T22-13-32Z-{name}" for name in ("dag.task", "dag.b", "dag.task-1")}
