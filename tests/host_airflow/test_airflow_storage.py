"""Outputs in an object store by an Airflow connection: every form, every task, and a secret that nothing shows."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath

from kafka_ordered_ops import ConfigError, Folder, OrderedWindows, stage_window
from kafka_ordered_ops.airflow import (
    AbandonWindowOperator,
    CommitWindowOperator,
    OrderedWindowOperator,
    PlanWindowOperator,
    WindowPartOperator,
)
from kafka_ordered_ops.airflow.compat import AirflowFailException, AirflowNotFoundException
from kafka_ordered_ops.airflow.support.places import place_of, text_of
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.airflow_connections import CANARY, connect
from tests.support.airflow_context import context_of
from tests.support.host_words import words
from tests.support.hosts_support import GROUP
from tests.support.hosts_support import kafka as kafka
from tests.support.objects_support import named_rows, staged_names
from tests.support.objects_support import server as server
from tests.support.windows_support import BASE_MS


@pytest.fixture(autouse=True)
def connections(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ``lake``, where a test has the server."""
    if "server" in request.fixturenames:
        given = request.getfixturevalue("server")
        connect(
            monkeypatch,
            "lake",
            login=given["aws_access_key_id"],
            password=CANARY,
            extra={"region_name": "us-east-1", "endpoint_url": given["aws_endpoint"]},
        )


def task_for(kind: type[Any] = OrderedWindowOperator, **more: Any) -> Any:
    """A task in catch-up."""
    given = {"task_id": "task", "topics": "t", "group_id": GROUP, "mode": "catch_up"}
    return kind(**words(**{**given, "starting_offsets": "earliest", "window_id": "w", **more}))


FORMS: dict[str, Any] = {
    "parameter": lambda root: {"output": root, "storage_conn_id": "lake"},
    "text": lambda root: {"output": root.replace("//", "//lake@")},
    "path": lambda root: {"output": ObjectStoragePath(root.replace("//", "//lake@"))},
    "path and conn_id": lambda root: {"output": ObjectStoragePath(root, conn_id="lake")},
    "s3a and both": lambda root: {
        "output": root.replace("s3://", "s3a://lake@"),
        "storage_conn_id": "lake",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_connection_reaches_the_store_and_nothing_shows_its_secret(
    kafka: InMemoryKafka, server: dict[str, str], caplog: pytest.LogCaptureFixture, form: str
) -> None:
    """Neither XCom, rendered fields, the log nor the ledger; a cleared task reads the window again."""
    root = f"s3://bucket/airflow/{form.replace(' ', '-')}"
    caplog.set_level(logging.DEBUG, logger="kafka_ordered_ops")
    task = task_for(**FORMS[form](root))
    context = context_of(60)
    facts = task.execute(context)
    assert facts["output"].startswith(f"{root}/window_id=")
    again = task_for(**FORMS[form](root)).execute(context_of(60, try_number=2))
    assert (again["status"], again["ran"]) == ("published", True)
    assert sorted(named_rows(root, server)) == sorted([*range(5)] * 2)
    assert staged_names(root, server) == []
    with OrderedWindows(kafka.settings, GROUP) as windows:
        ledger = repr([(one.plan.to_text(), one.result) for one in windows.list()])
    rendered = repr([getattr(task, name) for name in task.template_fields])
    for shown in (facts, context["ti"].pushed, rendered, caplog.text, ledger, repr(task._work())):
        assert CANARY not in repr(shown)


@pytest.mark.slow
def test_parts_are_committed_and_abandoned_with_the_connection(
    kafka: InMemoryKafka, server: dict[str, str]
) -> None:
    """By templates, rendered on the worker."""
    root = "s3://bucket/airflow/parts"
    told = task_for(PlanWindowOperator, parts=2).execute(context_of(60))
    for number, one in enumerate(told):
        job = WindowPartOperator(
            task_id=f"part{number}", window=one, output=Folder(root, storage_conn_id="lake")
        )
        job.execute(context_of(60))
    commit = CommitWindowOperator(
        task_id="commit", window=told, output="s3://{{ run_id }}@bucket/airflow/parts"
    )
    commit.render_template_fields({"run_id": "lake"})
    assert commit.execute(context_of(60))["records"] == 10
    assert len(named_rows(root, server)) == 10

    kafka.produce("t", value=b"x", timestamp_ms=BASE_MS + 61_000)
    left = task_for(PlanWindowOperator, window_id="left").execute(context_of(120))
    with OrderedWindows(kafka.settings, GROUP) as windows:
        plan = windows.show("left").plan
    stage_window(plan, kafka.settings, root, storage_options=server)
    assert staged_names(root, server)
    AbandonWindowOperator(
        task_id="stop", window=left, output=Folder(root, storage_conn_id="lake")
    ).execute(context_of())
    assert staged_names(root, server) == []


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no such connection": ({"storage_conn_id": "nowhere"}, AirflowNotFoundException, "nowhere"),
    "another type": ({"storage_conn_id": "kafka_default"}, AirflowFailException, "of type 'kafka'"),
    "another store": ({"output": "gs://lake@bucket/x"}, AirflowFailException, "of type 'aws'"),
    "no bucket": ({"output": "s3://lake@nothing/x"}, AirflowFailException, "no bucket nothing"),
    "a role": (
        {"storage_conn_id": "role"},
        AirflowFailException,
        "apache-airflow-providers-amazon",
    ),
    "no certificates": (
        {"storage_conn_id": "verify"},
        AirflowFailException,
        "verify is not a readable certificate file",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_connection_is_refused_before_the_plan(
    kafka: InMemoryKafka,
    server: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """By an error with its name, and without its secret."""
    connect(monkeypatch, "role", password=CANARY, extra={"role_arn": "arn:aws:iam::1:role/r"})
    connect(monkeypatch, "verify", password=CANARY, extra={"verify": "/nowhere/ca.pem"})
    given, kind, told = REFUSED[name]
    task = task_for(**{"output": "s3://bucket/airflow/x", **given})
    with pytest.raises(kind, match=told) as raised:
        task.execute(context_of(60))
    assert CANARY not in str(raised.value)
    with OrderedWindows(kafka.settings, GROUP) as windows:
        assert windows.list() == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"output": "/lake", "storage_conn_id": "lake"}, "the output is /lake"),
        ({"output": "s3://a@bucket/x", "storage_conn_id": "b"}, "two connections"),
        ({"output": f"s3://AKIA:{CANARY}@bucket/x"}, "credentials belong in the connection"),
        ({"output": "s3://lake@bucket"}, "bare bucket"),
        ({"output": "abfss://container/x", "storage_conn_id": None}, "names no container"),
    ],
)
def test_a_wrong_output_is_an_import_error_of_the_dag(given: dict[str, Any], told: str) -> None:
    """It does not show what may be a password; templates are left to the run."""
    with pytest.raises(ConfigError, match=told) as raised:
        task_for(**given)
    assert CANARY not in str(raised.value)
    task_for(output="s3://{{ var.value.conn }}@bucket/x", storage_conn_id="{{ x }}")
    task_for(output="s3://lake@bucket/x", storage_conn_id="{{ x }}")


@pytest.mark.parametrize(
    ("output", "root", "conn_id"),
    [
        ("s3://bucket/a", "s3://bucket/a", None),
        ("gcs://google@bucket/a", "gs://bucket/a", "google"),
        ("abfss://c@acc.dfs.core.windows.net/a", "abfss://c@acc.dfs.core.windows.net/a", None),
        ("abfss://az@c@acc.dfs.core.windows.net/a", "abfss://c@acc.dfs.core.windows.net/a", "az"),
        (ObjectStoragePath("abfss://az@c/a"), "abfss://c@mine.dfs.core.windows.net/a", "az"),
        (ObjectStoragePath("file:///lake/a"), "/lake/a", None),
        ("/lake/a", "/lake/a", None),
    ],
)
def test_outputs_and_their_connections(
    monkeypatch: pytest.MonkeyPatch, output: Any, root: str, conn_id: str | None
) -> None:
    """An account that Airflow's path cannot name is the connection's."""
    connect(monkeypatch, "az", conn_type="wasb", login="mine", password="a2V5")
    connect(monkeypatch, "google", conn_type="google_cloud_platform")
    place = place_of(text_of(output), None)
    assert place is not None
    assert (place.opened(travels=False)[0], place.conn_id) == (root, conn_id)


def test_a_path_that_a_task_returned_is_taken(tmp_path: Path) -> None:
    """Rendered as an object, not as text."""
    place = place_of(ObjectStoragePath("s3://lake@bucket/x"), None)
    assert place is not None
    assert (place.root, place.conn_id) == ("s3://bucket/x", "lake")
