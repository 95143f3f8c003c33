"""Several assets of one step: what is selected is delivered, and nothing else is read or changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster.components.testing.utils import DefsFolderSandbox

from kafka_ordered_ops import BrokerUnreachableError, ConfigError, OpenWindow, Window
from kafka_ordered_ops.dagster import (
    AssetWindows,
    KafkaResource,
    OrderedWindowMultiComponent,
    WindowOp,
    build_ordered_window_asset,
    build_partitions_live_sensor,
    ordered_window_asset,
    ordered_window_multi_asset,
    partitions_live_check,
)
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.dagster_support import (
    HOURLY,
    KEYS,
    House,
    expected,
    failure_of,
    filled,
    serial,
)
from tests.support.dagster_support import house as house
from tests.support.dagster_yaml import READS_YAML
from tests.support.dagster_yaml import sandbox as sandbox

pytestmark = [pytest.mark.timeout(300), *READS_YAML]

NAMES = ("orders", "payments", "refunds")
RETRIED = WindowOp(retry_policy=dg.RetryPolicy(max_retries=1))


@dataclass
class Lake:
    """Assets of one step, each with its topic, group and folder."""

    house: House
    group_id: str
    topics: dict[str, str]
    #: The assets whose functions were called, in order.
    calls: list[str] = field(default_factory=list)
    #: What the function of an asset raises.
    broken: dict[str, Exception] = field(default_factory=dict)
    #: Whether a function that has failed works the next time.
    is_mended: bool = False
    #: More arguments of all assets.
    more: dict[str, Any] = field(default_factory=dict)

    def asset(self, name: str) -> dg.AssetsDefinition:
        """One of them, which has noted its call before it fails."""

        @ordered_window_asset(**{**self.words(name), **self.more})
        def own(windows: AssetWindows) -> None:
            self.calls.append(name)
            if name in self.broken:
                error = self.broken[name]
                if self.is_mended:
                    del self.broken[name]
                raise error
            windows.copy()

        return own

    def words(self, name: str) -> dict[str, Any]:
        """The arguments of an asset."""
        return {
            "key": name,
            "window": Window([self.topics[name]], starting_offsets="earliest"),
            "group_id": f"{self.group_id}.{name}",
            "partitions_def": HOURLY,
            "output": str(self.house.output / name),
        }

    def step(self, op: WindowOp | None = None) -> dg.AssetsDefinition:
        """All of them."""
        assets = [self.asset(name) for name in NAMES]
        return ordered_window_multi_asset(name="lake", assets=assets, op=op or WindowOp())

    def run(
        self,
        step: dg.AssetsDefinition,
        select: Any,
        keys: str | tuple[str, str] | None,
        *,
        fails: bool = False,
        beside: Sequence[Any] = (),
    ) -> dg.ExecuteInProcessResult:
        """Materializes some of the assets."""
        ends = ("start", "end")
        tags = (
            {
                f"dagster/asset_partition_range_{end}": key
                for end, key in zip(ends, keys, strict=True)
            }
            if isinstance(keys, tuple)
            else {}
        )
        result = dg.materialize(
            [step, *beside],
            selection=select,
            instance=self.house.instance,
            resources={"kafka": self.house.kafka},
            partition_key=keys if isinstance(keys, str) else None,
            tags=tags,
            raise_on_error=False,
        )
        assert result.success is not fails, [event.message for event in result.all_events][-5:]
        return result

    def windows(self, name: str) -> int:
        """How many windows the group of an asset has."""
        bootstrap = {"bootstrap.servers": self.house.bootstrap}
        with OrderedWindows(bootstrap, f"{self.group_id}.{name}") as windows:
            return len(windows.list())

    def delivered(self, name: str) -> dict[str | None, list[int]]:
        """The offsets of each partition of an asset, as Dagster's newest materialization names their folder."""
        told = self.house.told(name)
        return {key: self.house.offsets(one["dagster/uri"]) for key, one in told.items()}


@pytest.fixture
def lake(house: House, topic: MakeTopic, produce: Produce, group_id: str) -> Lake:
    """Three topics of the same hours."""
    return Lake(house, group_id, {name: filled(topic, produce) for name in NAMES})


def checks_of(result: dg.ExecuteInProcessResult) -> set[tuple[str, str, str | None, bool]]:
    """The results of a run's checks: asset, check, partition, and whether it passed."""
    return {
        (one.asset_key.to_user_string(), one.check_name, one.partition, one.passed)
        for one in result.get_asset_check_evaluations()
    }


@pytest.mark.slow
def test_what_is_selected_is_delivered_and_nothing_else(lake: Lake) -> None:
    """One step, with metadata and checks of each asset; the group of the other is not even known."""
    step = lake.step()
    result = lake.run(step, ["orders", "payments"], KEYS[1])
    assert [event.step_key for event in result.all_events if event.is_step_success] == ["lake"]
    for name in ("orders", "payments"):
        assert lake.delivered(name) == {KEYS[1]: expected(1)}
        told = lake.house.told(name)[KEYS[1]]
        assert told["dagster/partition_row_count"] == 4
        assert told["kafka_ordered_ops/group"] == f"{lake.group_id}.{name}"
    assert checks_of(result) == {
        (name, check, KEYS[1], True)
        for name in ("orders", "payments")
        for check in ("partitions_live", "windows_complete")
    }
    assert (lake.house.told("refunds"), lake.windows("refunds")) == ({}, 0)
    # What was not selected lost nothing, and what was is not doubled.
    lake.run(step, "*", (KEYS[1], KEYS[2]))
    for name in NAMES:
        assert lake.delivered(name) == {KEYS[1]: expected(1), KEYS[2]: expected(2)}
        assert lake.windows(name) == 2


@pytest.mark.slow
def test_an_asset_that_fails_holds_back_no_other(lake: Lake) -> None:
    """Those after it are delivered and stay reported; the run fails, and the next one delivers what is missing."""
    lake.broken["payments"] = OSError("the sink is away")
    step = lake.step()
    result = lake.run(step, "*", KEYS[1], fails=True)
    assert "OSError: the sink is away" in failure_of(result)
    assert lake.calls == ["orders", "payments", "refunds"]
    for name in ("orders", "refunds"):
        assert lake.delivered(name) == {KEYS[1]: expected(1)}
    assert lake.house.told("payments") == {}
    lake.broken.clear()
    lake.run(step, ["payments"], KEYS[1])
    assert lake.calls[3:] == ["payments"]
    assert lake.delivered("payments") == {KEYS[1]: expected(1)}
    assert [lake.windows(name) for name in NAMES] == [1, 1, 1]


@pytest.mark.slow
def test_a_retry_delivers_only_what_is_missing(lake: Lake) -> None:
    """In the same run: what the first attempt has delivered is reported again, and not read again."""
    lake.broken["payments"] = OSError("once")
    lake.is_mended = True
    lake.run(lake.step(RETRIED), "*", (KEYS[1], KEYS[2]))
    assert lake.calls == ["orders", "payments", "refunds", "payments"]
    for name in NAMES:
        assert lake.delivered(name) == {KEYS[1]: expected(1), KEYS[2]: expected(2)}
        ran = lake.house.told(name)[KEYS[1]]["kafka_ordered_ops/ran"]
        assert ran is (name == "payments")


@pytest.mark.slow
def test_an_error_that_may_pass_is_retried_beside_one_that_does_not(lake: Lake) -> None:
    """Dagster is told of the one that a retry can help."""
    lake.broken["orders"] = ConfigError("for good")
    lake.broken["payments"] = OSError("for now")
    result = lake.run(lake.step(RETRIED), "*", KEYS[1], fails=True)
    assert "OSError: for now" in failure_of(result)
    assert lake.calls == [*NAMES, "orders", "payments"]
    assert lake.delivered("refunds") == {KEYS[1]: expected(1)}


def test_brokers_that_are_away_are_waited_for_once(lake: Lake) -> None:
    """The step ends with the first asset: the others would wait as long."""
    lake.broken["orders"] = BrokerUnreachableError("no broker answers", code="_TRANSPORT")
    result = lake.run(lake.step(), "*", KEYS[1], fails=True)
    assert "BrokerUnreachableError: no broker answers" in failure_of(result)
    assert lake.calls == ["orders"]


@pytest.mark.slow
def test_without_partitions_each_asset_takes_what_is_new(lake: Lake) -> None:
    """Up to the start of the run, the same for all of them."""
    lake.more = {"partitions_def": None}
    step = lake.step()
    result = lake.run(step, ["orders"], None)
    assert checks_of(result) == {("orders", "windows_complete", None, True)} | {
        one for one in checks_of(result) if one[1] == "partitions_live"
    }
    lake.run(step, "*", None)
    counts = [lake.house.told(name)[None]["dagster/row_count"] for name in NAMES]
    assert counts == [0, 25, 25]


@pytest.mark.slow
def test_an_asset_downstream_gets_the_rows_of_one_of_them(lake: Lake) -> None:
    """Of the partition."""
    found: list[list[Any]] = []

    @dg.asset(partitions_def=HOURLY)
    def report(payments: pa.Table) -> None:
        found.append(payments["offset"].to_pylist())

    step = lake.step()
    lake.run(step, ["payments"], KEYS[2])
    lake.run(step, ["report"], KEYS[2], beside=[report])
    assert found == [expected(2)]
    assert lake.calls == ["payments"]


def test_a_check_without_its_asset_is_refused(lake: Lake) -> None:
    """Its result comes from a delivery."""
    step = lake.step()
    [check, *_] = step.check_keys
    result = lake.run(step, dg.AssetSelection.checks(check), None, fails=True)
    assert "are results of its delivery. Select the asset" in failure_of(result)
    assert [lake.windows(name) for name in NAMES] == [0, 0, 0]


@pytest.mark.slow
def test_functions_have_their_own_resources(lake: Lake) -> None:
    """And clusters: the step requires those of all assets."""

    @ordered_window_asset(**lake.words("orders"), kafka_resource="other")
    def orders(context: Any, window: OpenWindow, suffix: dg.ResourceParam[str]) -> None:
        window.write(window)
        context.add_asset_metadata({"suffix": suffix}, "orders")

    step = ordered_window_multi_asset(name="lake", assets=[orders, lake.asset("payments")])
    assert {"kafka", "other", "suffix"} <= step.required_resource_keys
    resources = {"kafka": lake.house.kafka, "other": lake.house.kafka, "suffix": "here"}
    result = dg.materialize(
        [step], instance=lake.house.instance, resources=resources, partition_key=KEYS[1]
    )
    assert result.success
    assert lake.house.told("orders")[KEYS[1]]["suffix"] == "here"
    assert lake.delivered("payments") == {KEYS[1]: expected(1)}


@pytest.mark.slow
def test_a_sensor_asks_for_assets_of_a_step_in_one_run(lake: Lake) -> None:
    """For the same partitions; an asset that is behind has a run of its own. Checks are of one asset."""
    step, single = lake.step(), lake.asset("orders")
    sensor = build_partitions_live_sensor(step)
    lake.run(step, ["orders"], KEYS[0])
    resources = {"kafka": lake.house.kafka}
    definitions = dg.Definitions([step], sensors=[sensor], resources=resources)
    with dg.build_sensor_context(
        lake.house.instance, resources=resources, definitions=definitions
    ) as context:
        requests = sensor.evaluate_tick(context).run_requests
    span = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
    found = {
        tuple(key.to_user_string() for key in one.asset_selection or ()): tuple(
            one.tags[end] for end in span
        )
        for one in requests or ()
    }
    assert found == {("orders",): (KEYS[1], KEYS[5]), ("payments", "refunds"): (KEYS[0], KEYS[5])}
    assert len({one.run_key for one in requests or ()}) == 2
    checks = partitions_live_check(single)
    assert next(iter(checks.check_keys)).asset_key == dg.AssetKey("orders")
    with pytest.raises(ConfigError, match=r"has several assets \(orders, payments, refunds\)"):
        partitions_live_check(step)


def built(name: str, **more: Any) -> dg.AssetsDefinition:
    """An asset that is never run."""
    given = {"key": name, "topics": name, "group_id": name, "output": "/lake", **more}
    return build_ordered_window_asset(**given)


def with_input() -> dg.AssetsDefinition:
    """An asset whose function takes another one's rows."""

    @ordered_window_asset(
        key=dg.AssetSpec("b", deps=["customers"]), topics="b", group_id="b", output="/lake"
    )
    def asset(window: OpenWindow, customers: Any) -> None:
        window.write(window)

    return asset


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (list, "lake has no assets"),
        (lambda: [built("a"), built("a", group_id="c")], "has a twice"),
        (lambda: [built("a"), built("b", group_id="a")], "lake has two assets of one group"),
        (lambda: [built("a"), built("b", partitions_def=HOURLY)], "b has other partitions than a"),
        (lambda: [built("b", op=RETRIED)], "b has an op of its own"),
        (lambda: [built("b", key=serial("b"), partitions_def=HOURLY)], "its own partition before"),
        (
            lambda: [built("a"), built("b", key=dg.AssetSpec("b", deps=["a"]))],
            "b depends on a, an asset of the same step: give it a step of its own",
        ),
        (lambda: [with_input()], "b takes the inputs customers"),
        (lambda: [dg.AssetKey("a")], "is not an asset of windows"),
    ],
)
def test_what_does_not_fit_in_one_step(make: Callable[[], list[Any]], told: str) -> None:
    """Is named when the step is defined."""
    with pytest.raises(ConfigError, match=told):
        ordered_window_multi_asset(name="lake", assets=make())


def test_the_step_is_the_assets_place_in_definitions() -> None:
    """It keeps what each asset has; a backfill is one run, unless its op says otherwise."""
    spec = dg.AssetSpec("a", owners=["team:data"], description="Orders.")
    assets = [built("a", key=spec), built("b", grace=timedelta(hours=1))]
    step = ordered_window_multi_asset(name="my lake", assets=assets)
    assert (step.op.name, step.can_subset) == ("my_lake", True)
    assert step.backfill_policy == dg.BackfillPolicy.single_run()
    [a, b] = step.specs
    assert (list(a.owners), a.description) == (["team:data"], "Orders.")
    assert b.description == assets[1].get_asset_spec().description
    assert [dep.asset_key.to_user_string() for dep in b.deps] == ["kafka/b"]
    policy = dg.BackfillPolicy.multi_run(2)
    again = ordered_window_multi_asset(
        name="lake", assets=assets, op=WindowOp(backfill_policy=policy)
    )
    assert again.backfill_policy == policy
    dg.Definitions(assets=[step], resources={"kafka": KafkaResource(config={})})


# --- from YAML -------------------------------------------------------------------------------------


def component(**more: Any) -> OrderedWindowMultiComponent:
    """A component of two assets."""
    hourly = {"type": "hourly", "start_date": "2026-01-05-00:00"}
    assets = [
        {"key": name, "topics": [name], "group_id": name, "partitions": hourly, "output": "/lake"}
        for name in ("a", "b")
    ]
    text = json.dumps({"name": "lake", "assets": assets, **more})
    made = OrderedWindowMultiComponent.resolve_from_yaml(text)
    assert isinstance(made, OrderedWindowMultiComponent)
    return made


def test_a_file_of_several_assets() -> None:
    """One step; its sensor, cluster and op are the file's."""
    kafka = {"config": {"bootstrap.servers": "localhost:9092"}}
    op = {"pool": "kafka", "backfill_policy": {"type": "multi_run", "max_partitions_per_run": 24}}
    made = component(kafka=kafka, op=op, sensor={"name": "lake_live"})
    defs = dg.component_defs(component=made)
    [step] = defs.assets or []
    assert isinstance(step, dg.AssetsDefinition)
    assert [spec.key.to_user_string() for spec in step.specs] == ["a", "b"]
    assert (step.op.name, step.op.pool, step.can_subset) == ("lake", "kafka", True)
    assert step.backfill_policy == dg.BackfillPolicy.multi_run(24)
    assert set(defs.resources or {}) == {"kafka__a", "kafka__b"} <= step.required_resource_keys
    [sensor] = defs.sensors or []
    assert isinstance(sensor, dg.SensorDefinition)
    assert sensor.name == "lake_live"
    dg.Definitions.validate_loadable(defs)


def test_an_asset_of_a_file_with_an_op_of_its_own() -> None:
    """Is refused, as in Python."""
    asset = {"key": "a", "topics": ["a"], "group_id": "a", "output": "/lake", "op": {"pool": "x"}}
    with pytest.raises(ConfigError, match="a has an op of its own"):
        dg.component_defs(component=component(assets=[asset]))


def test_a_scaffolded_file_of_a_step_loads(sandbox: DefsFolderSandbox) -> None:
    """With one asset of the folder's name."""
    path = sandbox.scaffold_component(
        component_cls=OrderedWindowMultiComponent, defs_path="payments"
    )
    with sandbox.load_component_and_build_defs(path) as (_, defs):
        [step] = defs.assets or []
    assert isinstance(step, dg.AssetsDefinition)
    assert (step.op.name, list(step.keys)) == ("payments_step", [dg.AssetKey("payments")])
