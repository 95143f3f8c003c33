"""Assets of windows, in this process and on a real broker: once each, in their own partitions, told when done."""

from __future__ import annotations

import itertools
import shutil
from typing import Any

import dagster as dg
import pytest

from kafka_ordered_ops import (
    Application,
    ConfigError,
    Copy,
    Folder,
    OpenWindow,
    OrderedWindows,
    Policy,
    Window,
)
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.dagster import (
    AssetWindows,
    KafkaResource,
    build_ordered_window_asset,
    ordered_window_asset,
    window_id_of,
)
from kafka_ordered_ops.dagster.step.times import first_of
from kafka_ordered_ops.spark import environment
from tests.conftest import Produce
from tests.support.dagster_support import (
    FIRST,
    HOUR,
    HOURLY,
    KEYS,
    House,
    check_of,
    copied,
    expected,
    failure_of,
    serial,
    windows_of,
)
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house
from tests.support.host_words import words

pytestmark = pytest.mark.timeout(300)


@pytest.mark.slow
def test_partitions_in_any_order(house: House, hours: str, group_id: str) -> None:
    """Each holds its own hour, in order; the metadata is its own; the committed offset follows."""
    asset = copied(house, hours, group_id)
    for hour in (3, 0, 5):
        result = house.materialize(asset, KEYS[hour])
        assert check_of(result).passed
        assert check_of(result, "windows_complete").passed
    told = house.told("orders")
    assert told.keys() == {KEYS[0], KEYS[3], KEYS[5]}
    for hour in (0, 3, 5):
        values = told[KEYS[hour]]
        assert house.offsets(values["dagster/uri"]) == expected(hour)
        assert values["dagster/partition_row_count"] == 4
        assert values["kafka_ordered_ops/cutoff"] == (FIRST + HOUR * (hour + 1)).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
        assert values["kafka_ordered_ops/window_id"] == window_id_of("orders", KEYS[hour])
        # What is delivered does not count, though nothing can be committed before the log's other end is.
        assert values["kafka_ordered_ops/lag_offsets"] == {3: 21, 0: 17, 5: 13}[hour]
        assert values["kafka_ordered_ops/status"] == "published"
        [row] = values["kafka_ordered_ops/ranges"].records
        assert row.data["topic"] == hours


@pytest.mark.slow
def test_the_columns_are_told(house: House, hours: str, group_id: str) -> None:
    """Those of the files, as any table's; a sink of one's own has none, and one that is gone is no failure."""
    told = "dagster/column_schema"
    house.materialize(copied(house, hours, group_id), (KEYS[0], KEYS[1]))
    columns = {
        one.name: (one.type, one.constraints.nullable)
        for one in house.told("orders")[KEYS[1]][told].columns
    }
    assert columns["offset"] == ("int64", False)
    assert columns["value"] == ("binary", True)
    assert columns["timestamp"][0] == "timestamp[ms, tz=UTC]"

    @ordered_window_asset(**{**windows_of(house, hours, group_id), "output": None})
    def own(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        pass

    house.materialize(own, KEYS[2])
    assert told not in house.told("orders")[KEYS[2]]
    shutil.rmtree(house.output)
    house.materialize(copied(house, hours, group_id, on_covered="skip"), KEYS[0])
    assert told not in house.told("orders")[KEYS[0]]


@pytest.mark.slow
def test_a_function_of_one_window_is_called_for_each(
    house: House, hours: str, group_id: str
) -> None:
    """By time, without Spark; it is the same function as in `run`, and all of its windows are committed together."""
    calls: list[str] = []

    def enrich(window: OpenWindow) -> None:
        calls.append(window.window_id)
        if len(calls) == 3:
            raise OSError("the third fails")
        window.write(window.to_arrow().slice(1))

    def windows_of_group() -> OrderedWindows:
        return OrderedWindows(house.bootstrap, group_id)

    asset = ordered_window_asset(**windows_of(house, hours, group_id))(enrich)
    house.materialize(asset, (KEYS[1], KEYS[4]), fails=True)
    with windows_of_group() as windows:
        assert [one.status for one in windows.list()] == [WindowStatus.PLANNED] * 4
    house.materialize(asset, (KEYS[1], KEYS[4]))
    told = house.told("orders")
    assert calls[3:] == [window_id_of("orders", key) for key in KEYS[1:5]]
    for hour in range(1, 5):
        assert house.offsets(told[KEYS[hour]]["dagster/uri"]) == expected(hour)[1:]


@pytest.mark.slow
def test_a_function_may_take_a_window_a_context_and_resources(
    house: House, hours: str, group_id: str
) -> None:
    """What it returns is kept with its window."""

    @ordered_window_asset(**{**windows_of(house, hours, group_id), "output": None})
    def orders(
        context: dg.AssetExecutionContext, window: OpenWindow, factor: dg.ResourceParam[int]
    ) -> dict[str, int]:
        context.log.info("window %s", window.window_id)
        return {"rows": factor * window.to_arrow().num_rows}

    house.materialize(orders, (KEYS[1], KEYS[2]), factor=10)
    for key in KEYS[1:3]:
        assert house.told("orders")[key]["kafka_ordered_ops/returned"] == {"rows": 40}


@pytest.mark.slow
def test_a_function_adds_metadata_to_the_partition_of_its_window(
    house: House, hours: str, group_id: str
) -> None:
    """By Dagster's own context, beside the window's numbers."""

    @ordered_window_asset(**windows_of(house, hours, group_id))
    def orders(context: dg.AssetExecutionContext, window: OpenWindow) -> None:
        orders = window.to_arrow()
        window.write(orders)
        [key] = [key for key in KEYS if window_id_of("orders", key) == window.window_id]
        context.add_asset_metadata({"largest": orders["offset"][-1].as_py()}, partition_key=key)

    house.materialize(orders, (KEYS[1], KEYS[2]))
    for hour in (1, 2):
        told = house.told("orders")[KEYS[hour]]
        assert (told["largest"], told["dagster/partition_row_count"]) == (expected(hour)[-1], 4)


def test_a_function_of_one_window_whose_java_ends(
    house: House, hours: str, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is that of a job, as in `run`: py4j says that somebody refuses a connection."""

    @ordered_window_asset(**windows_of(house, hours, group_id))
    def orders(window: OpenWindow) -> None:
        # Only a process that has loaded PySpark can have a Java of its own.
        import pyspark  # noqa: F401

        monkeypatch.setattr(environment, "ended_java", lambda *_: "Spark's Java was killed")
        raise ConnectionError("refused")

    told = failure_of(house.materialize(orders, KEYS[1], fails=True))
    assert "JobFailedError: Spark's Java was killed" in told


@pytest.mark.slow
def test_a_range_is_one_pass(house: House, hours: str, group_id: str) -> None:
    """The function is called once for all windows; each partition is told its own numbers."""
    calls: list[list[str]] = []

    @ordered_window_asset(**windows_of(house, hours, group_id))
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        calls.append([str(windows.partition_keys[plan.window_id]) for plan in windows.plans])
        windows.copy()

    house.materialize(orders, (KEYS[1], KEYS[4]))
    assert calls == [KEYS[1:5]]
    told = house.told("orders")
    assert list(told) == KEYS[1:5] or set(told) == set(KEYS[1:5])
    for hour in range(1, 5):
        values = told[KEYS[hour]]
        assert (values["dagster/partition_row_count"], values["kafka_ordered_ops/windows"]) == (
            4,
            4,
        )
        assert house.offsets(values["dagster/uri"]) == expected(hour)
    every = sorted(
        itertools.chain.from_iterable(house.offsets(one["dagster/uri"]) for one in told.values())
    )
    assert every == list(range(4, 20))


@pytest.mark.slow
@pytest.mark.parametrize("on_covered", ["auto", "skip", "fail"])
def test_a_partition_that_is_materialised_again(
    house: House, hours: str, group_id: str, on_covered: str
) -> None:
    """Read again, told again, or refused; with a new one beside it the pass is still one. Nothing moves."""
    calls: list[int] = []

    @ordered_window_asset(
        **windows_of(house, hours, group_id), policy=Policy(on_covered=on_covered)
    )
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        calls.append(len(windows.plans))
        windows.copy()

    house.materialize(orders, KEYS[1])
    first = house.told("orders")[KEYS[1]]
    result = house.materialize(orders, (KEYS[1], KEYS[2]), fails=on_covered == "fail")
    if on_covered == "fail":
        assert "WindowCoveredError" in failure_of(result)
        assert calls == [1]
        return
    assert calls == ([1, 2] if on_covered == "auto" else [1, 1])
    told = house.told("orders")
    assert told[KEYS[1]]["dagster/partition_row_count"] == 4
    assert told[KEYS[1]]["kafka_ordered_ops/ran"] is (on_covered == "auto")
    assert told[KEYS[1]]["dagster/uri"] == first["dagster/uri"]
    for hour in (1, 2):
        assert house.offsets(told[KEYS[hour]]["dagster/uri"]) == expected(hour)
    house.materialize(orders, KEYS[1])
    assert house.offsets(house.told("orders")[KEYS[1]]["dagster/uri"]) == expected(1)


@pytest.mark.slow
def test_a_late_record_goes_to_a_later_partition(
    house: House, hours: str, group_id: str, produce: Produce
) -> None:
    """Flagged there; the partition that it is too late for stays as it was."""
    asset = copied(house, hours, group_id)
    house.materialize(asset, KEYS[0])
    late = FIRST + HOUR / 8
    [offset] = produce([(hours, 0, None, b"x", round(late.timestamp() * 1000), ())])
    house.materialize(asset, KEYS[1])
    told = house.told("orders")[KEYS[1]]
    assert (told["dagster/partition_row_count"], told["kafka_ordered_ops/late"]) == (5, 1)
    assert house.offsets(told["dagster/uri"]) == [offset, *expected(1)]
    house.materialize(asset, KEYS[0])
    assert house.offsets(house.told("orders")[KEYS[0]]["dagster/uri"]) == expected(0)


@pytest.mark.slow
def test_a_step_that_fails_commits_nothing(house: House, hours: str, group_id: str) -> None:
    """Nothing is told of it; the next run takes up the same plan."""
    broken = [True]

    @ordered_window_asset(**windows_of(house, hours, group_id))
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        windows.copy()
        if broken[0]:
            raise OSError("no")

    result = house.materialize(orders, KEYS[0], fails=True)
    assert "OSError: no" in failure_of(result)
    assert house.told("orders") == {}
    assert not list(house.output.glob("window_id=*"))
    with OrderedWindows({"bootstrap.servers": house.bootstrap}, group_id) as windows:
        [record] = windows.list()
    assert (record.status, record.plan.attempt) == (WindowStatus.PLANNED, 1)
    broken[0] = False
    house.materialize(orders, KEYS[0])
    with OrderedWindows({"bootstrap.servers": house.bootstrap}, group_id) as windows:
        [after] = windows.list()
    assert (after.plan.attempt, after.plan.claim_id) == (2, record.plan.claim_id)
    assert house.offsets(house.told("orders")[KEYS[0]]["dagster/uri"]) == expected(0)


@pytest.mark.slow
def test_an_orphan_step_commits_nothing(house: House, hours: str, group_id: str) -> None:
    """Its run was given up and run again; what it tells Dagster in the end is its error."""
    inner: list[dg.ExecuteInProcessResult] = []

    @ordered_window_asset(**windows_of(house, hours, group_id))
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        windows.copy()
        if not inner:
            inner.append(house.materialize(copied(house, hours, group_id), KEYS[0]))

    result = house.materialize(orders, KEYS[0], fails=True)
    assert "WindowSupersededError" in failure_of(result)
    told = house.told("orders")
    assert house.offsets(told[KEYS[0]]["dagster/uri"]) == expected(0)


@pytest.mark.slow
def test_without_partitions_everything_before_the_run(
    house: House, hours: str, group_id: str, produce: Produce
) -> None:
    """Each run takes what the group has not been given; what a failed one holds waits for its retry."""
    asset = copied(house, hours, group_id, partitions_def=None)
    first = house.materialize(asset)
    told = house.told("orders")[None]
    assert told["dagster/row_count"] == 25
    assert told["kafka_ordered_ops/window_id"] == window_id_of("orders", first.run_id)
    produce([(hours, 0, None, b"x", round(FIRST.timestamp() * 1000), ())])
    house.materialize(asset)
    assert house.told("orders")[None]["dagster/row_count"] == 1
    house.materialize(asset)
    assert house.told("orders")[None]["dagster/row_count"] == 0


@pytest.mark.parametrize("tag", ["is_resume_retry", "is_asset_resume_retry"])
def test_a_run_that_goes_on_asks_for_its_first_ones_window(house: House, tag: str) -> None:
    """A retry of a retry, too; one that runs everything anew asks for a window of its own."""
    job = "orders"
    first = house.instance.add_run(dg.DagsterRun(job, run_id="1"))
    resumed = {f"dagster/{tag}": "true"}
    second = house.instance.add_run(
        dg.DagsterRun(job, run_id="2", parent_run_id="1", root_run_id="1", tags=resumed)
    )
    third = house.instance.add_run(
        dg.DagsterRun(job, run_id="3", parent_run_id="2", root_run_id="1", tags=resumed)
    )
    anew = house.instance.add_run(
        dg.DagsterRun(job, run_id="4", parent_run_id="3", root_run_id="1")
    )
    assert [first_of(house.instance, run).run_id for run in (first, second, third, anew)] == [
        "1",
        "1",
        "1",
        "4",
    ]


@pytest.mark.slow
def test_a_sink_of_ones_own(house: House, hours: str, group_id: str) -> None:
    """What the function returns is kept with the windows, and shown."""

    @ordered_window_asset(
        key="orders",
        window=Window([hours], starting_offsets="earliest"),
        group_id=group_id,
        partitions_def=HOURLY,
    )
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> dict[str, int]:
        return {"rows": sum(plan.offsets for plan in windows.plans)}

    house.materialize(orders, KEYS[2])
    told = house.told("orders")[KEYS[2]]
    assert told["kafka_ordered_ops/returned"] == {"rows": 4}
    assert "dagster/uri" not in told


@pytest.mark.slow
def test_partitions_that_are_not_live(house: House, hours: str, group_id: str) -> None:
    """Warned of, or the step fails before anything is planned; or nobody looks."""
    definition = dg.HourlyPartitionsDefinition("2026-01-05-00:00")
    late = "2026-01-05-06:00"
    result = house.materialize(
        copied(house, hours, group_id, partitions_def=definition, on_not_live="fail"),
        late,
        fails=True,
    )
    assert "is not live" in failure_of(result)
    with OrderedWindows({"bootstrap.servers": house.bootstrap}, group_id) as windows:
        assert windows.list() == []
    warns = copied(house, hours, group_id, partitions_def=definition)
    assert "only warns" in str(next(iter(warns.check_specs)).description)
    result = house.materialize(warns, late)
    said = [record.user_message for record in house.instance.all_logs(result.run_id)]
    assert any("is delivered nevertheless (on_not_live='warn')" in line for line in said)
    check = check_of(result)
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    table = check.metadata["partitions"]
    assert isinstance(table, dg.TableMetadataValue)
    assert [row.data["state"] for row in table.records] == ["waiting"]
    quiet = copied(house, hours, group_id, partitions_def=definition, on_not_live="ignore")
    result = house.materialize(quiet, late)
    names = [check.check_name for check in result.get_asset_check_evaluations()]
    assert names == ["windows_complete"]


@pytest.mark.slow
def test_the_same_offsets_are_the_same_version(house: House, hours: str, group_id: str) -> None:
    """Replayed or not; another partition is another version."""
    asset = copied(house, hours, group_id)

    def version(key: str) -> str:
        result = house.materialize(asset, key)
        [event] = result.asset_materializations_for_node("orders")
        return str((event.tags or {})["dagster/data_version"])

    assert version(KEYS[0]) == version(KEYS[0]) != version(KEYS[1])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"partitions_def": dg.StaticPartitionsDefinition(["a"])}, "StaticPartitionsDefinition"),
        ({"group_id": ""}, "0 characters"),
        ({"on_covered": "again"}, "one of 'skip', 'replay', 'fail'"),
        ({"starting_offsets": "yesterday"}, "starting_offsets"),
        ({"job": print}, "give a Copy or an Application"),
        (
            {"window": Window("t", "2026-01-01T00:00Z"), "topics": None},
            "its times come from the run",
        ),
        ({"window": Window("t")}, "both given"),
        ({"output": Folder("s3://b/k", storage_conn_id="c")}, "an Airflow connection"),
        ({"topics": "{{ var.value.topic }}"}, "a template"),
        ({"output": "/lake/{{ ds }}"}, "a template"),
        ({"job": Application("/job.py", ["{{ ds }}"])}, "a template"),
        ({"job": Copy(engine="{{ params.engine }}")}, "a template"),
        ({"policy": Policy(claim_age="{{ params.age }}")}, "a template"),
    ],
)
def test_what_cannot_be_is_named_before_anything_runs(wrong: dict[str, Any], told: str) -> None:
    """When the asset is defined."""
    given: dict[str, Any] = {"key": "a", "topics": ["t"], "group_id": "g", "output": "/tmp"}
    with pytest.raises(ConfigError, match=told):
        build_ordered_window_asset(**words(**{**given, **wrong}))


def test_functions_that_cannot_be_jobs_are_named() -> None:
    """One that yields would do nothing, and its windows would be committed."""
    decorate = ordered_window_asset(key="a", topics=["t"], group_id="g")

    def yields(context: Any, windows: Any) -> Any:
        yield windows

    async def waits(context: Any, windows: Any) -> None: ...

    def asks_for_nothing(context: Any) -> None: ...

    def has_another_name(context: Any, hour: Any) -> None: ...

    def asks_too_late(context: Any, spark: Any, window: Any) -> None: ...

    def asks_by_name(context: Any, *, window: Any) -> None: ...

    for function, told in (
        (yields, "generator"),
        (waits, "async"),
        (asks_for_nothing, "takes no windows"),
        (has_another_name, "takes no windows"),
        (asks_too_late, "takes no windows"),
        (asks_by_name, "takes no windows"),
    ):
        with pytest.raises(ConfigError, match=told):
            decorate(function)


def test_definitions_load_while_the_broker_is_away(house: House) -> None:
    """Nothing is asked of Kafka then; a step names what is wrong."""
    asset = build_ordered_window_asset(
        key="orders", topics=["t"], group_id="g", output=str(house.output)
    )
    away = KafkaResource(config={"bootstrap.servers": "127.0.0.1:1"})
    dg.Definitions(assets=[asset], resources={"kafka": away})
    assert "password" not in repr(KafkaResource(config={"sasl.password": "password"}))


@pytest.mark.slow
def test_a_serial_asset_is_downstream_of_itself(house: House, hours: str, group_id: str) -> None:
    """Of the partition before it, in runs of one partition each; a run takes no more than its own."""
    asset = copied(house, hours, group_id, key=serial("orders"))
    graph = dg.Definitions([asset], resources={"kafka": house.kafka}).resolve_asset_graph()
    node = graph.get(asset.key)
    assert asset.key in node.parent_keys
    mapping = node.partition_mappings[asset.key]
    assert mapping == dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    assert asset.backfill_policy == dg.BackfillPolicy.multi_run(1)
    for hour in (0, 1):
        house.materialize(asset, KEYS[hour])
        told = house.told("orders")[KEYS[hour]]
        assert house.offsets(told["dagster/uri"]) == expected(hour)
    with pytest.raises(ConfigError, match="give partitions_def="):
        copied(house, hours, group_id, key=serial("orders"), partitions_def=None)
