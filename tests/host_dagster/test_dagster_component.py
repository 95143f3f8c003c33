"""Assets of windows from YAML: a file is enough, and what it says wrong is named when it is loaded."""

# Annotations are values here: Dagster reads them of a component.

import json
import shutil
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pyarrow.parquet as pq
import pytest
from dagster.components.testing.utils import DefsFolderSandbox
from dagster_shared.libraries import DagsterLibraryRegistry

from kafka_ordered_ops import (
    Application,
    ConfigError,
    Copy,
    Folder,
    OpenWindow,
    Policy,
    Table,
    Window,
    __version__,
)
from kafka_ordered_ops.dagster import (
    AssetWindows,
    KafkaResource,
    OnNotLive,
    OrderedWindowComponent,
    WindowSettings,
)
from kafka_ordered_ops.dagster.assets.registry import window_asset
from tests.support.dagster_support import KEYS, House, expected
from tests.support.dagster_support import hours as hours
from tests.support.dagster_support import house as house
from tests.support.dagster_yaml import (
    HOURLY,
    READS_YAML,
    TYPE,
    asset_in,
    attributes,
    loaded,
    run_dg,
)
from tests.support.dagster_yaml import sandbox as sandbox
from tests.support.submit_support import application, small

pytestmark = [pytest.mark.timeout(300), *READS_YAML]

PROJECT: Final = Path(__file__).parents[2] / "example_dags" / "dagster_project"
#: An application that writes what it was called with into every row.
TAGGED: Final = """
    import sys
    from pyspark.sql import SparkSession, functions
    from kafka_ordered_ops import current_windows

    spark = SparkSession.builder.getOrCreate()
    windows = current_windows(spark)
    told = functions.lit(" ".join(sys.argv[1:]))
    windows.write(windows.read().withColumn("arguments", told))
"""


def check_hour(house: House, hour: int) -> None:
    """One partition holds its hour, as it was told."""
    told = house.told("orders")[KEYS[hour]]
    assert told["dagster/partition_row_count"] == 4
    assert house.offsets(told["dagster/uri"]) == expected(hour)


# --- what delivers ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_yaml_file_is_enough(
    house: House,
    hours: str,
    group_id: str,
    sandbox: DefsFolderSandbox,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two partitions in one pass; the address is in the environment of the run, not of the definitions."""
    monkeypatch.delenv("ORDERS_BROKER", raising=False)
    kafka = {"config": {"bootstrap.servers": "{{ env.ORDERS_BROKER }}", "socket.timeout.ms": 9000}}
    with loaded(sandbox, attributes(house, hours, group_id, kafka=kafka)) as defs:
        monkeypatch.setenv("ORDERS_BROKER", house.bootstrap)
        asset = asset_in(defs, "orders")
        assert "Copies the windows" in (asset.get_asset_spec().description or "")
        house.materialize(asset, (KEYS[1], KEYS[2]), **(defs.resources or {}))
    for hour in (1, 2):
        check_hour(house, hour)
        assert house.told("orders")[KEYS[hour]]["kafka_ordered_ops/windows"] == 2


@pytest.mark.slow
def test_a_function_beside_the_file(
    house: House, hours: str, group_id: str, sandbox: DefsFolderSandbox
) -> None:
    """By its module's name after a dot, or by its whole name; it takes resources, and no output is needed."""
    folder = sandbox.defs_folder_path / "orders"
    folder.mkdir()
    (folder / "jobs.py").write_text(
        "from dagster import ResourceParam\n"
        "def rows(context, windows, suffix: ResourceParam[str]):\n"
        "    return {'rows' + suffix: sum(plan.offsets for plan in windows.plans)}\n"
    )
    for hour, name in enumerate([".jobs.rows", f"{sandbox.project_name}.defs.orders.jobs.rows"]):
        given = attributes(house, hours, group_id, output=None, function=name)
        with loaded(sandbox, given) as defs:
            house.materialize(asset_in(defs, "orders"), KEYS[hour], suffix="-here")
        assert house.told("orders")[KEYS[hour]]["kafka_ordered_ops/returned"] == {"rows-here": 4}


@pytest.mark.long
@pytest.mark.spark
def test_an_application_beside_the_file(
    house: House, hours: str, group_id: str, sandbox: DefsFolderSandbox
) -> None:
    """Really submitted, with its arguments, for two partitions at once; its path is seen from the file."""
    folder = sandbox.defs_folder_path / "orders"
    folder.mkdir()
    application(folder, TAGGED)
    how = small()
    submit = {"master": how.master, "conf": dict(how.conf), "timeout_s": how.timeout_s}
    job = {"application": "job.py", "arguments": ["--country", "DE"], "submit": submit}
    with loaded(sandbox, attributes(house, hours, group_id, job=job)) as defs:
        house.materialize(asset_in(defs, "orders"), (KEYS[1], KEYS[2]))
    for hour in (1, 2):
        check_hour(house, hour)
        [file] = Path(house.told("orders")[KEYS[hour]]["dagster/uri"]).glob("part-*")
        assert pq.read_table(file)["arguments"].to_pylist() == ["--country DE"] * 4


@dataclass(kw_only=True)
class Greeting(OrderedWindowComponent):
    """A component of somebody's own, with a field of its own."""

    owner: str

    def execute(
        self,
        context: dg.AssetExecutionContext,
        windows: AssetWindows,
        greeting: dg.ResourceParam[str],
    ) -> None:
        """Greets, and does what is usual."""
        super().execute(context, windows)
        windows.tell({"greeting": f"{greeting} {self.owner}"})

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """With an owner."""
        return spec.replace_attributes(owners=[self.owner])


def test_a_component_of_ones_own(house: House, hours: str, group_id: str) -> None:
    """It says what a step does, with resources, and what the asset looks like."""
    text = json.dumps(attributes(house, hours, group_id, owner="someone@example.com"))
    component = Greeting.resolve_from_yaml(text)
    asset = asset_in(dg.component_defs(component=component), "orders")
    assert asset.get_asset_spec().owners == ["someone@example.com"]
    house.materialize(asset, KEYS[0], greeting="hello")
    check_hour(house, 0)
    assert house.told("orders")[KEYS[0]]["greeting"] == "hello someone@example.com"


# --- what a file says ------------------------------------------------------------------------------


def resolved(**more: Any) -> OrderedWindowComponent:
    """A component from YAML."""
    given = {"key": "lake/orders", "topics": ["orders"], "group_id": "lake", "output": "/lake"}
    found = OrderedWindowComponent.resolve_from_yaml(json.dumps({**given, **more}))
    assert isinstance(found, OrderedWindowComponent)
    return found


def asset_of(component: OrderedWindowComponent) -> dg.AssetsDefinition:
    """Its asset."""
    return asset_in(dg.component_defs(component=component), component.key.to_user_string())


def take(window: OpenWindow) -> None:
    """A function of a file."""
    window.write(window)


@pytest.mark.parametrize(
    ("job", "wanted"),
    [
        (
            {"engine": "connector", "ordered": False, "conf": {"spark.jars": "/kafka.jar"}},
            Copy("connector", False, {"spark.jars": "/kafka.jar"}),
        ),
        (
            {"application": "/job.py", "arguments": ["007"], "engine": "local", "ordered": False},
            Application("/job.py", ["007"], None, "local", False),
        ),
    ],
)
def test_a_job_is_an_application_or_a_copy(job: dict[str, Any], wanted: Copy | Application) -> None:
    """By the fields of either."""
    assert resolved(job=job).job == wanted


def test_every_setting_of_an_asset_can_be_given() -> None:
    """And comes to be what it says; the fewest fields are the defaults of an asset in Python."""
    window: dict[str, Any] = {
        "topics": ["orders", "rates"],
        "starting_offsets": {"orders": "earliest", "rates": "-PT1H"},
        "max_out_of_orderness": "PT5M",
        "isolation": "read_uncommitted",
        "exclude": ["orders-old"],
        "on_data_loss": "warn",
        "values": {"format": "avro", "subject": "orders"},
        "keys": "json:id int64",
        "on_bad": "keep",
        "flatten": True,
    }
    policy: dict[str, Any] = {
        "redefine": True,
        "on_covered": "skip",
        "on_open_claim": "fail",
        "on_foreign_commit": "adopt",
        "max_offsets": 1_000,
        "claim_age": "P2D",
    }
    given = {
        "topics": None,
        "window": window,
        "policy": policy,
        "grace": "P1D",
        "open_lag": "PT10M",
        "on_not_live": "fail",
        "output": {
            "path": "s3://lake/elsewhere",
            "partition_by": "date",
            "storage_options": {"aws_region": "eu-west-1", "port": 9000},
        },
        "engine": "connector",
        # An engine is a function's.
        "function": f"{__name__}.take",
    }
    settings = window_asset(asset_of(resolved(partitions=HOURLY, **given))).settings
    assert {one.name for one in fields(WindowSettings)} == {*given, "group_id"} - {"function"}
    assert settings.window == Window(**window)
    assert settings.policy == Policy(**policy)
    assert (settings.grace, settings.open_lag) == (timedelta(days=1), timedelta(minutes=10))
    assert (settings.on_not_live, settings.engine) == (OnNotLive.FAIL, "connector")
    options = {"aws_region": "eu-west-1", "port": "9000"}
    assert settings.output == Folder("s3://lake/elsewhere", "date", options)
    # In place of an output.
    table = {
        "name": "lake.orders",
        "mode": "merge",
        "keys": ["key"],
        "delete_tombstones": True,
        "schema_evolution": "add",
        "conf": {"spark.sql.catalog.lake.type": "hadoop"},
    }
    into = window_asset(asset_of(resolved(output=None, table=table))).settings.output
    assert into == Table("lake.orders", "merge", ["key"], True, "add")
    assert isinstance(into, Table)
    assert into.conf == table["conf"]
    plain = window_asset(asset_of(resolved())).settings
    assert plain == WindowSettings(topics=["orders"], group_id="lake", output="/lake")


@pytest.mark.parametrize(
    ("partitions", "wanted"),
    [
        (None, None),
        (HOURLY, dg.HourlyPartitionsDefinition("2026-01-05-00:00")),
        (
            {"type": "daily", "start_date": "2026-01-05", "timezone": "Europe/Berlin"},
            dg.DailyPartitionsDefinition("2026-01-05", timezone="Europe/Berlin"),
        ),
    ],
)
def test_partitions_are_dagsters_own(partitions: Any, wanted: Any) -> None:
    """Hours, days, or none."""
    asset = asset_of(resolved(partitions=partitions))
    assert asset.partitions_def == wanted


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        (None, dg.BackfillPolicy.single_run()),
        ({"type": "single_run"}, dg.BackfillPolicy.single_run()),
        (
            {"type": "multi_run", "max_partitions_per_run": 24},
            dg.BackfillPolicy.multi_run(24),
        ),
    ],
)
def test_a_backfill_policy(given: Any, policy: dg.BackfillPolicy) -> None:
    """Dagster's own; one run for all by default."""
    op = None if given is None else {"backfill_policy": given}
    assert asset_of(resolved(partitions=HOURLY, op=op)).backfill_policy == policy


def test_a_sensor_from_the_same_file() -> None:
    """It looks at the asset, by the file's cluster."""
    kafka = {"config": {"bootstrap.servers": "localhost:9092"}}
    sensor = {"lookback": "P7D", "minimum_interval_seconds": 30, "running": True}
    component = resolved(partitions=HOURLY, kafka=kafka, sensor=sensor)
    defs = dg.component_defs(component=component)
    [made] = defs.sensors or []
    assert isinstance(made, dg.SensorDefinition)
    assert made.name == "lake__orders_partitions_live"
    assert made.minimum_interval_seconds == 30
    assert made.default_status is dg.DefaultSensorStatus.RUNNING
    assert made.required_resource_keys == set(defs.resources or {}) == {"kafka__lake__orders"}


def test_each_file_has_a_cluster_of_its_own(sandbox: DefsFolderSandbox) -> None:
    """Two files may name two, and a third the resource that is there already."""
    given: dict[str, Any] = {"topics": ["t"], "output": "/lake"}
    for name in ("here", "there", "shared"):
        folder = sandbox.defs_folder_path / name
        folder.mkdir()
        own = {"kafka": {"config": {"bootstrap.servers": f"{name}:9092"}}}
        body = {**given, "key": name, "group_id": name, **({} if name == "shared" else own)}
        (folder / "defs.yaml").write_text(json.dumps({"type": TYPE, "attributes": body}))
    with sandbox.build_all_defs() as defs:
        assert set(defs.resources or {}) == {"kafka__here", "kafka__there"}
        used = {
            name: window_asset(asset_in(defs, name)).kafka_resource
            for name in ("here", "there", "shared")
        }
    assert used == {"here": "kafka__here", "there": "kafka__there", "shared": "kafka"}


def test_secrets_stay_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions hold the variable's name; what is text is text, and booleans are librdkafka's."""
    monkeypatch.setenv("ORDERS_PASSWORD", "hunter2")
    monkeypatch.setenv("ORDERS_HOST", "broker-1")
    kafka = {
        "config": {
            "bootstrap.servers": "{{ env.ORDERS_HOST }}:9092",
            "sasl.password": "{{ env.ORDERS_PASSWORD }}",
            "socket.keepalive.enable": True,
        },
        "ledger_topic": "plans",
    }
    component = resolved(kafka=kafka)
    assert "hunter2" not in repr(component)
    resource = component.kafka
    assert resource is not None
    assert resource.config["sasl.password"] == dg.EnvVar("ORDERS_PASSWORD")
    ready = resource.process_config_and_initialize()
    assert ready.config == {
        "bootstrap.servers": "broker-1:9092",
        "sasl.password": "hunter2",
        "socket.keepalive.enable": "true",
    }
    assert (ready.ledger_topic, type(ready)) == ("plans", KafkaResource)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"group": "lake"}, "group"),
        ({"policy": {"on_covered": "again"}}, "skip.*replay.*fail"),
        ({"policy": {"on_coverd": "skip"}}, "on_coverd"),
        (
            {"topics": None, "window": {"topics": ["t"], "starting_offsets": "yesterday"}},
            "starting_offsets",
        ),
        (
            {"job": {"application": "job.py", "submit": {"masters": "local"}}},
            "masters.*did you mean .master.",
        ),
        ({"job": {"arguments": ["x"]}}, "without an application has no parameter .arguments."),
        (
            {"job": {"application": "job.py", "conf": {"spark.ui.port": "1"}}},
            "with an application has no parameter .conf.",
        ),
        ({"job": "job.py"}, "job is a mapping of fields"),
        ({"topics": None, "window": {"starting_offsets": "earliest"}}, "topics"),
        ({"output": {"path": "/lake", "partition_by": "week"}}, "partition_by is .week."),
        ({"engine": "flink"}, "python.*connector.*local"),
        ({"partitions": {"type": "static", "partition_keys": ["a"]}}, "partitions"),
        ({"grace": "soon"}, "grace .soon. is not an ISO 8601"),
        ({"sensor": {"lookback": "soon"}}, "lookback .soon."),
        ({"op": {"retry_policy": {"max_retries": 1, "delay": "soon"}}}, "delay .soon."),
        ({"function": "no_such_module.f"}, "no_such_module"),
        ({"function": "os.path.no_such_name"}, "no_such_name"),
        ({"kafka": {"bootstrap.servers": "localhost:9092"}}, "config"),
    ],
)
def test_what_cannot_be_read(wrong: dict[str, Any], told: str) -> None:
    """Is named with its field, when the file is loaded."""
    with pytest.raises(Exception, match=rf"(?s){told}"):
        asset_of(resolved(**wrong))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"output": None}, "has no output"),
        ({"group_id": ""}, "0 characters"),
        ({"function": "os.path.join", "job": {"application": "job.py"}}, "give one of them"),
        ({"table": "lake.orders"}, "an output and a table"),
        ({"engine": "connector"}, "an engine, which only a function reads with"),
        ({"sensor": {}}, "every"),
    ],
)
def test_what_cannot_be(wrong: dict[str, Any], told: str) -> None:
    """Is this package's own error, before anything runs."""
    with pytest.raises(ConfigError, match=told):
        asset_of(resolved(**wrong))


def test_dagster_is_told_the_version() -> None:
    """Of this package, which is none of Dagster's own."""
    assert DagsterLibraryRegistry.get()["kafka-ordered-ops"] == __version__


# --- Dagster's command line ------------------------------------------------------------------------


def test_a_scaffolded_file_loads(sandbox: DefsFolderSandbox) -> None:
    """It is an hourly asset of its folder's name, that waits for the partitions to be live."""
    path = sandbox.scaffold_component(component_cls=OrderedWindowComponent, defs_path="payments")
    with sandbox.load_component_and_build_defs(path) as (component, defs):
        assert isinstance(component, OrderedWindowComponent)
        asset = asset_in(defs, "payments")
    assert isinstance(asset.partitions_def, dg.HourlyPartitionsDefinition)
    settings = window_asset(asset).settings
    assert settings.window == Window("payments", starting_offsets="earliest")
    assert settings.group_id == "dagster-payments"
    assert (settings.on_not_live, settings.grace) == (OnNotLive.FAIL, timedelta(minutes=15))
    assert settings.output == Folder("/tmp/lake/payments")


@pytest.mark.long
def test_the_command_line_knows_it(tmp_path: Path) -> None:
    """One more component is scaffolded into the example project, and all of that is checked; no broker is there."""
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    run_dg(project, project.parent, "scaffold", "defs", TYPE, "payments")
    told = run_dg(project, project.parent, "check", "defs")
    assert "All component YAML validated successfully" in told
    assert "All definitions loaded successfully" in told
    # A choice that there is not is found before anything is loaded, with those that there are.
    [file] = project.rglob("payments/defs.yaml")
    file.write_text(file.read_text().replace("on_not_live: fail", "on_not_live: fial"))
    told = run_dg(project, project.parent, "check", "yaml", fails=True)
    assert "on_not_live" in told
    assert "warn|fail|ignore" in told
