"""What Airflow sees of the package: the provider, cheap imports, DAG files, links, and the retry policy."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from importlib.metadata import distribution, entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import airflow
import jsonschema
import pytest
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.providers_manager import ProvidersManager

import kafka_ordered_ops
import kafka_ordered_ops.airflow as public
from kafka_ordered_ops.airflow import KafkaWindowsHook, OrderedWindowOperator, window_retry_policy
from kafka_ordered_ops.airflow.provider_info import get_provider_info
from kafka_ordered_ops.airflow.support.links import WindowLink, url_of
from kafka_ordered_ops.core import errors
from tests.support.airflow_versions import (
    HAS_CONNECTION_FORMS,
    HAS_EVENT_PARTITIONS,
    HAS_RETRY_POLICIES,
    HAS_TRIGGER_KILLS,
    needs_connection_forms,
    needs_event_partitions,
    needs_retry_policies,
    provider_hooks,
)
from tests.support.lazy_names import seen_by_type_checkers

NAME = "kafka-ordered-ops"


def run_python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints; its errors fail the test."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def stored_dag(folder: Path, facts: str, **environment: str) -> dict[str, Any]:
    """The one DAG in a folder, as Airflow stores it: items of a dict, of its text and of what is read `back`."""
    code = (
        "import json, sys\n"
        "try:\n"
        "    from airflow.dag_processing.dagbag import DagBag\n"
        "    from airflow.serialization.serialized_objects import DagSerialization\n"
        "except ImportError:  # before Airflow 3.2\n"
        "    from airflow.models.dagbag import DagBag\n"
        "    from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization\n"
        f"bag = DagBag({str(folder)!r})\n"
        "assert not bag.import_errors, bag.import_errors\n"
        "[dag] = bag.dags.values()\n"
        "text = json.dumps(DagSerialization.to_dict(dag))\n"
        "back = DagSerialization.from_dict(json.loads(text))\n"
        f"print(json.dumps({{{facts}}}))"
    )
    printed = run_python(code, **{"AIRFLOW_HOME": str(folder / "home"), **environment})
    told: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return told


def test_airflow_has_all_that_came_with_its_version() -> None:
    """Where one feature is not found by its name any more, the tests that need it would be left out silently."""
    assert HAS_RETRY_POLICIES == HAS_EVENT_PARTITIONS == HAS_TRIGGER_KILLS
    assert HAS_CONNECTION_FORMS or not HAS_RETRY_POLICIES


@needs_event_partitions
@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parent.glob("*scenarios/*.py")), ids=lambda path: path.stem
)
def test_the_dag_files_of_a_whole_airflow_load(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A parameter that is no more is found here, and not by the last and slowest of all tests."""
    for name, value in {
        "SCENARIO_RUN": "run",
        "SCENARIO_OUTPUT": str(tmp_path),
        "SCENARIO_STORE_CONF": "{}",
        "KAFKA_BOOTSTRAP": "broker:9092",
    }.items():
        monkeypatch.setenv(name, value)
    runpy.run_path(str(path))


# --- the provider ------------------------------------------------------------------------------------


def test_the_provider_info_is_what_airflow_asks_for() -> None:
    """A name that is not the distribution's, or a key of the wrong kind, would break all of Airflow."""
    info = get_provider_info()
    schema = json.loads((Path(airflow.__path__[0]) / "provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    assert info["package-name"] == distribution(NAME).metadata["Name"] == NAME
    assert info["versions"][0] == kafka_ordered_ops.__version__
    assert json.loads(json.dumps(info)) == info


def test_the_provider_info_costs_nothing() -> None:
    """Airflow asks for it in each of its processes: neither Airflow nor what this package's rooms do is loaded."""
    printed = run_python(
        "import sys\n"
        "from kafka_ordered_ops.airflow.provider_info import get_provider_info\n"
        "get_provider_info()\n"
        "print(sorted({name.split('.')[0] for name in sys.modules}"
        " & {'airflow', 'numpy', 'pyarrow', 'pyspark', 'confluent_kafka'}))\n"
        "print({n for n in sys.modules if n.startswith('kafka_ordered_ops.') and '.airflow' not in n}"
        " - {'kafka_ordered_ops.core', 'kafka_ordered_ops.core.lazy_face'})"
    )
    assert printed.split("\n")[:2] == ["[]", "set()"]


def test_airflow_discovers_the_provider() -> None:
    """By the entry point of the installed distribution: its hook, link and configuration."""
    [entry] = [
        one
        for one in entry_points(group="apache_airflow_provider")
        if one.dist is not None and one.dist.name == NAME
    ]
    assert entry.load()() == get_provider_info()
    manager = ProvidersManager()  # type: ignore[no-untyped-call]
    assert manager.providers[NAME].version == kafka_ordered_ops.__version__
    assert f"{WindowLink.__module__}.{WindowLink.__name__}" in manager.extra_links_class_names
    hook = provider_hooks()["kafka_windows"]
    assert hook is not None
    assert resolve_name(hook.hook_class_name) is KafkaWindowsHook
    assert hook.connection_id_attribute_name == "kafka_conn_id"
    assert hook.connection_testable


@needs_connection_forms
def test_the_connection_has_a_form() -> None:
    """With the password as one, and the extra field for all other settings."""
    manager = ProvidersManager()  # type: ignore[no-untyped-call]
    widgets = manager.connection_form_widgets
    secret = {
        widget.field_name: widget.is_sensitive
        for name, widget in widgets.items()
        if name.startswith("extra__kafka_windows__")
    }
    assert secret.pop("sasl.password") is True
    assert not any(secret.values())
    assert {"bootstrap.servers", "group.id"} <= secret.keys()
    assert "extra" not in manager.field_behaviours["kafka_windows"]["hidden_fields"]


def test_the_type_kafka_is_left_to_its_provider() -> None:
    """Two providers of one type would be a matter of luck."""
    types = [one["connection-type"] for one in get_provider_info()["connection-types"]]
    assert types == ["kafka_windows"]


def test_every_class_that_the_provider_names_is_there() -> None:
    """Modules of operators, sensors, triggers and hooks, and the classes."""
    info = get_provider_info()
    for kind in ("operators", "sensors", "triggers", "hooks"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                __import__(module)
    links = [resolve_name(name)().name for name in info["extra-links"]]
    assert links == ["Spark job", "Window"]


# --- importing ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_importing_every_name_loads_nothing_heavy() -> None:
    """Neither Kafka, nor Spark, nor numpy, in a fresh interpreter: a DAG's file is parsed again and again."""
    printed = run_python(
        "import sys\n"
        "import kafka_ordered_ops.airflow as room\n"
        "assert 'airflow' not in sys.modules\n"
        "for name in room.__all__:\n"
        "    getattr(room, name)\n"
        "import contextlib, kafka_ordered_ops.core.errors as errors\n"
        "with contextlib.suppress(errors.ConfigError):  # Airflow before 3.3 has no policies.\n"
        "    room.window_retry_policy()\n"
        "import kafka_ordered_ops.airflow.support.links, kafka_ordered_ops.airflow.hooks.hook\n"
        "print({'pyspark', 'confluent_kafka', 'numpy', 'pyarrow'} & set(sys.modules))"
    )
    assert printed.splitlines()[-1] == "set()"


def test_the_lazy_names_are_exact_and_type_checkers_see_them() -> None:
    """The table, what is imported for type checkers alone, and what `dir` gives."""
    seen = seen_by_type_checkers(public)
    homes = {(name, f"kafka_ordered_ops.{home}") for name, home in public._HOMES.items()}
    assert seen == homes
    for name in public.__all__:
        assert getattr(public, name) is not None
    assert dir(public) == public.__all__
    with pytest.raises(AttributeError, match="no attribute"):
        _ = public.NoSuchOperator  # type: ignore[attr-defined]


DAG_FILE = """
from datetime import UTC, datetime

from airflow.sdk import DAG, Asset

from kafka_ordered_ops import Application, Function, Process, Window
from kafka_ordered_ops.airflow import (
    AbandonWindowOperator,
    CommitWindowOperator,
    OrderedWindowOperator,
    PartitionsLiveSensor,
    PlanWindowOperator,
    ProcessWindowOperator,
    WindowPartOperator,
    window_retry_policy,
)
from kafka_ordered_ops.core.errors import ConfigError

try:
    retries = {"retry_policy": window_retry_policy()}
except ConfigError:  # before Airflow 3.3
    retries = {}


def job(window):
    window.write(window.read())


async def charge(record, table):
    pass


orders = Window("orders", starting_offsets={"orders": "earliest"})
window = dict(window=orders, group_id="g", kafka_conn_id="away")
with DAG("every_operator", schedule="@hourly", start_date=datetime(2026, 11, 1, tzinfo=UTC)):
    wait = PartitionsLiveSensor(task_id="wait", deferrable=True, grace="PT10M", **window)
    group = PartitionsLiveSensor(task_id="group", until="caught_up", mode="reschedule", **window)
    copy = OrderedWindowOperator(
        mode="auto", task_id="copy", output="/o", outlets=[Asset("kafka://away/orders")], **window
    )
    spark = OrderedWindowOperator(mode="auto", task_id="spark", job=Function(job, engine="python"), **{**window, "group_id": "spark"})
    submit = OrderedWindowOperator(
        mode="auto", task_id="submit", job=Application("/dags/job.py", submit={"master": "local[1]"}), output="/o",
        **{**window, "group_id": "submit"}
    )
    process = ProcessWindowOperator(
        mode="auto", task_id="process",
        job=Process(charge, {"table": "{{ ds }}"}, max_concurrency=64, dead_letter_topic="dead"), **{**window, "group_id": "process"}
    )
    plan = PlanWindowOperator(
        mode="auto", task_id="plan", parts=4, cutoff="{{ dag_run.run_after }}", **retries,
        **{**window, "group_id": "plan"}
    )
    part = WindowPartOperator.partial(task_id="part", output="/o").expand(window=plan.output)
    commit = CommitWindowOperator(task_id="commit", window=plan.output, output="/o")
    let_go = AbandonWindowOperator(task_id="let_go", window=plan.output)
    wait >> group >> [copy, spark, submit]
    part >> commit >> let_go.as_teardown(setups=plan)
"""


@pytest.mark.slow
def test_a_dag_with_every_operator_parses_without_asking_anybody(tmp_path: Path) -> None:
    """The connection leads nowhere and a second one is broken; nothing is even loaded that could ask."""
    (tmp_path / "every_operator.py").write_text(DAG_FILE)
    code = (
        "    'tasks': sorted(back.task_ids),\n"
        "    'links': back.get_task('copy').extra_links,\n"
        "    'loaded': sorted({'pyspark', 'confluent_kafka', 'numpy'} & set(sys.modules)),\n"
    )
    broken = {"AIRFLOW_CONN_AWAY": "no connection at all"}
    told = stored_dag(tmp_path, code, **broken)
    assert told == {
        "tasks": sorted(
            [
                *("wait", "group", "copy", "spark", "submit"),
                *("process", "plan", "part", "commit", "let_go"),
            ]
        ),
        "links": ["Spark job", "Window"],
        "loaded": [],
    }


# --- links -------------------------------------------------------------------------------------------


FACTS: dict[str, Any] = {
    "window_id": "dag.task[1]@2026-11-20T00:00:00Z~ab/c?d",
    "group": "a group & more",
    "topics": ["orders", "others"],
    "since": None,
    "cutoff": "2026-11-20T00:00:00+00:00",
}


def test_each_fact_is_one_part_of_the_address() -> None:
    """Nothing in a name can change the rest of it; braces that mean nothing here stay."""
    url = url_of(
        "https://console/{topic}?g={group}&w={window_id}&s={since}&c={cutoff}&x={x.__class__}",
        FACTS,
    )
    assert url == (
        "https://console/orders?g=a%20group%20%26%20more"
        "&w=dag.task%5B1%5D%402026-11-20T00%3A00%3A00Z~ab%2Fc%3Fd&s="
        "&c=2026-11-20T00%3A00%3A00%2B00%3A00&x={x.__class__}"
    )
    assert url_of("{topic}", {"topics": ["{group}"], "group": "g"}) == "%7Bgroup%7D"
    assert url_of("{topic}/{group}", {"topics": []}) == "/"


def test_the_link_is_by_airflows_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a template, Airflow's page of the attempt's XComs; empty for an attempt that planned no window."""
    task = OrderedWindowOperator(
        mode="auto", task_id="t", topics="orders", group_id="g", output="/o"
    )
    link = WindowLink()
    task.link_facts = FACTS
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.org/team/")
    key = TaskInstanceKey("d", "t", "scheduled__2026-11-20T00:00:00+00:00", map_index=-1)
    page = "https://airflow.example.org/team/dags/d/runs/scheduled__2026-11-20T00%3A00%3A00%2B00%3A00/tasks/t"
    assert link.get_link(task, ti_key=key) == f"{page}/xcom"
    mapped = TaskInstanceKey("d", "t", key.run_id, map_index=3)
    assert link.get_link(task, ti_key=mapped) == f"{page}/mapped/3/xcom"
    monkeypatch.setenv("AIRFLOW__KAFKA_ORDERED_OPS__WINDOW_URL", "https://all/{topic}")
    assert link.get_link(task, ti_key=None) == "https://all/orders"
    task.link_facts = None
    assert link.get_link(task, ti_key=None) == ""


# --- the retry policy --------------------------------------------------------------------------------


KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.KafkaOrderedOpsError)
]


@needs_retry_policies
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_policy_fails_what_is_final_and_leaves_the_rest(
    kind: type[errors.KafkaOrderedOpsError],
) -> None:
    """For each error of the tree: as its `retriable` says; and the same after Airflow has stored the policy."""
    from airflow.sdk import ExceptionRetryPolicy, RetryAction

    policy = window_retry_policy()
    stored = ExceptionRetryPolicy.deserialize(json.loads(json.dumps(policy.serialize())))
    busy = kind.__name__ in ("GroupInUseError", "OpenClaimError", "WindowFencedError")
    expected = RetryAction.RETRY if busy else RetryAction.DEFAULT
    for one in (policy, stored):
        decision = one.evaluate(kind("told"), 1, 3)
        assert decision.action is (expected if kind.retriable else RetryAction.FAIL)
        assert (decision.retry_delay is not None) == busy


@needs_retry_policies
def test_the_policy_leaves_others_errors_to_the_task() -> None:
    """It knows this package alone."""
    from airflow.sdk import RetryAction

    assert window_retry_policy().evaluate(OSError(), 1, 3).action is RetryAction.DEFAULT


@pytest.mark.skipif(
    HAS_RETRY_POLICIES, reason="is about Airflow before 3.3, without retry policies"
)
def test_without_policies_it_says_so_by_name() -> None:
    """And that the operators do without."""
    with pytest.raises(
        errors.ConfigError, match=r"came with Airflow 3\.3.*operators.*fail at once"
    ):
        window_retry_policy()
