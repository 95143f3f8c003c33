"""Outputs in an object store by an Airflow connection: every form, every task, and a secret that nothing shows."""

from __future__ import annotations

import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

import boto3
import pytest
from airflow.sdk import ObjectStoragePath

from kafka_ordered_ops import OrderedWindows
from kafka_ordered_ops.airflow import (
    AbandonWindowOperator,
    CommitWindowOperator,
    OrderedWindowOperator,
    PlanWindowOperator,
    WindowPartOperator,
)
from kafka_ordered_ops.airflow.compat import AirflowFailException, AirflowNotFoundException
from kafka_ordered_ops.airflow.storage import storage_options_of
from kafka_ordered_ops.airflow.support.places import place_of, text_of
from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.output.stage import stage_window
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.airflow_context import context_of
from tests.support.hosts_support import GROUP
from tests.support.hosts_support import kafka as kafka
from tests.support.objects_support import named_rows, staged_names
from tests.support.objects_support import server as server
from tests.support.windows_support import BASE_MS

CANARY = "canary-s3cret"


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


def connect(monkeypatch: pytest.MonkeyPatch, conn_id: str, **fields: Any) -> None:
    """Make a connection, by default of type ``aws``."""
    text = json.dumps({"conn_type": "aws", **fields})
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", text)


def task_for(kind: type[Any] = OrderedWindowOperator, **more: Any) -> Any:
    """A task in catch-up."""
    given = {"task_id": "task", "topics": "t", "group_id": GROUP, "mode": "catch_up"}
    return kind(**{**given, "starting_offsets": "earliest", "window_id": "w", **more})


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
    for shown in (facts, context["ti"].pushed, rendered, caplog.text, ledger, repr(task._job())):
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
            task_id=f"part{number}", window=one, output=root, storage_conn_id="lake"
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
    AbandonWindowOperator(task_id="stop", window=left, output=root, storage_conn_id="lake").execute(
        context_of()
    )
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
        "verify names no file",
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
        ({"output": f"s3://AKIA:{CANARY}@bucket/x"}, "credentials belong into the connection"),
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


_STRING = (
    "DefaultEndpointsProtocol=http;AccountName=acc;AccountKey=a2V5==;BlobEndpoint=http://h:1/acc;"
)

FIELDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "aws keys": (
        "s3",
        {"login": "id", "password": "s", "extra": {"region_name": "r", "aws_session_token": "t"}},
        {
            "aws_access_key_id": "id",
            "aws_secret_access_key": "s",
            "aws_session_token": "t",
            "aws_region": "r",
        },
    ),
    "aws extra": (
        "s3",
        {
            "extra": {
                "aws_access_key_id": "id",
                "aws_secret_access_key": "s",
                "endpoint_url": "http://all",
                "service_config": {"s3": {"endpoint_url": "http://s3"}},
                "config_kwargs": {"s3": {"addressing_style": "virtual"}},
                "verify": False,
            }
        },
        {
            "aws_access_key_id": "id",
            "aws_secret_access_key": "s",
            "aws_endpoint": "http://s3",
            "aws_virtual_hosted_style_request": "true",
            "allow_invalid_certificates": "true",
        },
    ),
    "aws older, and a proxy": (
        "s3",
        {
            "login": "without a password",
            "extra": {
                "aws_access_key_id": "without a secret",
                "session_kwargs": {
                    "aws_access_key_id": "id",
                    "aws_secret_access_key": "s",
                    "aws_session_token": "t",
                },
                "config_kwargs": {"region_name": "r", "proxies": {"https": "http://u:p@proxy"}},
                "assume_role_method": "assume_role",
            },
        },
        {
            "aws_access_key_id": "id",
            "aws_secret_access_key": "s",
            "aws_session_token": "t",
            "aws_region": "r",
            "proxy_url": "http://u:p@proxy",
        },
    ),
    "aws without a type": (
        "s3",
        {"conn_type": None, "login": "id", "password": "s"},
        {"aws_access_key_id": "id", "aws_secret_access_key": "s"},
    ),
    "aws chain": ("s3", {}, {}),
    "aws unsigned": (
        "s3",
        {"extra": {"config_kwargs": {"signature_version": "unsigned"}}},
        {"aws_skip_signature": "true"},
    ),
    "google path": (
        "gs",
        {"extra": {"extra__google_cloud_platform__key_path": "/key.json"}},
        {"service_account_path": "/key.json"},
    ),
    "google key": (
        "gs",
        {"extra": {"keyfile_dict": {"private_key": "s"}}},
        {"service_account_key": '{"private_key": "s"}'},
    ),
    "google key whose ends of lines are escaped twice": (
        "gs",
        {"extra": {"keyfile_dict": '{"private_key": "a\\\\nb"}', "gcs.endpoint": "http://gcs"}},
        {"service_account_key": '{"private_key": "a\\nb"}', "base_url": "http://gcs"},
    ),
    "google for all": (
        "gs",
        {"extra": {"is_anonymous": True, "key_path": "/key.json"}},
        {"skip_signature": "true"},
    ),
    "google chain": ("gs", {"extra": {"project": "p", "scope": "", "key_path": ""}}, {}),
    "azure key": (
        "abfss",
        {"login": "acc", "password": "s"},
        {"account_name": "acc", "account_key": "s"},
    ),
    "azure principal": (
        "abfss",
        {
            "conn_type": "adls",
            "host": "https://acc.dfs.core.windows.net",
            "login": "id",
            "password": "s",
            "extra": {"tenant_id": "t"},
        },
        {"account_name": "acc", "client_id": "id", "client_secret": "s", "tenant_id": "t"},
    ),
    "azure token": (
        "abfss",
        {"login": "acc", "extra": {"sas_token": "https://acc.blob.core.windows.net/?sv=1&sig=s"}},
        {"account_name": "acc", "sas_key": "sv=1&sig=s"},
    ),
    "azure host elsewhere": (
        "abfss",
        {"host": "acc.dfs.core.chinacloudapi.cn", "login": "x", "extra": {"account_key": "s"}},
        {
            "account_name": "acc",
            "account_key": "s",
            "endpoint": "https://acc.blob.core.chinacloudapi.cn",
        },
    ),
    "azure host of an emulator": (
        "abfss",
        {"host": "http://h:1/acc/", "login": "acc", "extra": {"shared_access_key": "s"}},
        {"account_name": "acc", "account_key": "s", "endpoint": "http://h:1/acc"},
    ),
    "azure host of one's own": (
        "abfss",
        {"host": "lake.example.com", "login": "acc", "password": "s"},
        {"account_name": "acc", "account_key": "s", "endpoint": "https://lake.example.com"},
    ),
    "azure host that is none": (
        "abfss",
        {"host": "something", "login": "acc", "password": "s"},
        {"account_name": "acc", "account_key": "s"},
    ),
    "azure lake": (
        "abfss",
        {"conn_type": "adls", "host": "acc", "login": "client", "password": "s"},
        {"account_name": "acc", "account_key": "s"},
    ),
    "azure identity": (
        "abfss",
        {
            "login": "acc",
            "extra": {"managed_identity_client_id": "i", "workload_identity_tenant_id": "n"},
        },
        {"account_name": "acc", "client_id": "i", "tenant_id": "n"},
    ),
    "azure token with its account": (
        "abfss",
        {"extra": {"sas_token": "https://acc.blob.core.windows.net/?sv=1&sig=s"}},
        {"account_name": "acc", "sas_key": "sv=1&sig=s"},
    ),
    "azure string of another cloud": (
        "abfss",
        {"extra": {"connection_string": "AccountName=acc;AccountKey=s;EndpointSuffix=core.cn"}},
        {"account_name": "acc", "account_key": "s", "endpoint": "https://acc.blob.core.cn"},
    ),
    "azure emulator": (
        "abfss",
        {"extra": {"connection_string": "UseDevelopmentStorage=true"}},
        {"account_name": "devstoreaccount1", "use_emulator": "true"},
    ),
    "azure string": (
        "abfss",
        {"extra": {"connection_string": _STRING}},
        {"account_name": "acc", "account_key": "a2V5==", "endpoint": "http://h:1/acc"},
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_fields_of_connections(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As the providers' hooks read them; empty fields of a form are none."""
    scheme, fields, options = FIELDS[name]
    kind = {"s3": "aws", "gs": "google_cloud_platform", "abfss": "wasb"}[scheme]
    connect(monkeypatch, "given", **{"conn_type": kind, **fields})
    assert storage_options_of("given", scheme, travels=False) == options


def test_a_role_s_credentials_are_the_hook_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are asked for again and again; an application gets those of now."""
    connect(monkeypatch, "role", extra={"role_arn": "arn:aws:iam::1:role/r", "region_name": "r"})

    class S3Hook:
        def __init__(self, aws_conn_id: str) -> None:
            assert aws_conn_id == "role"

        def get_session(self) -> boto3.Session:
            return boto3.Session("id", CANARY, "token", region_name="other")

    package = "airflow.providers.amazon"
    for name in ("", ".aws", ".aws.hooks", ".aws.hooks.s3"):
        monkeypatch.setitem(sys.modules, f"{package}{name}", types.ModuleType(f"{package}{name}"))
    setattr(sys.modules[f"{package}.aws.hooks.s3"], "S3Hook", S3Hook)  # noqa: B010
    found = storage_options_of("role", "s3", travels=False)
    assert found.pop("credential_provider")()["token"] == "token"
    assert found == {"aws_region": "r"}
    assert storage_options_of("role", "s3", travels=True) == {
        "aws_access_key_id": "id",
        "aws_secret_access_key": CANARY,
        "aws_session_token": "token",
        "aws_region": "r",
    }


def test_google_s_credentials_are_the_hook_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A submitted application gets their token of now: an object cannot be sent to it."""
    chain = {"impersonation_chain": "one@project.iam"}
    connect(monkeypatch, "chain", conn_type="google_cloud_platform", extra=chain)

    class GoogleBaseHook:
        def __init__(self, gcp_conn_id: str) -> None:
            assert gcp_conn_id == "chain"

        def get_credentials(self) -> str:
            return "credentials"

    package = "airflow.providers.google"
    for name in ("", ".common", ".common.hooks", ".common.hooks.base_google"):
        monkeypatch.setitem(sys.modules, f"{package}{name}", types.ModuleType(f"{package}{name}"))
    hooks = sys.modules[f"{package}.common.hooks.base_google"]
    setattr(hooks, "GoogleBaseHook", GoogleBaseHook)  # noqa: B010
    taken = "kafka_ordered_ops.airflow.storage.google_credentials"
    monkeypatch.setattr(taken, lambda found: lambda: {"token": found})
    found = storage_options_of("chain", "gs", travels=False)
    assert found["credential_provider"]() == {"token": "credentials"}
    assert storage_options_of("chain", "gs", travels=True) == {"bearer_token": "credentials"}


@pytest.mark.parametrize(
    ("package", "hook", "scheme", "given"),
    [
        (
            "airflow.providers.amazon.aws.hooks.s3",
            "S3Hook",
            "s3",
            {"extra": {"role_arn": "arn:aws:iam::1:role/r"}},
        ),
        (
            "airflow.providers.google.common.hooks.base_google",
            "GoogleBaseHook",
            "gs",
            {
                "conn_type": "google_cloud_platform",
                "extra": {"impersonation_chain": "one@project.iam"},
            },
        ),
    ],
)
@pytest.mark.parametrize("travels", [False, True])
def test_a_hook_that_gives_no_credentials_is_named_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    hook: str,
    scheme: str,
    given: dict[str, Any],
    travels: bool,
) -> None:
    """Its text may have a secret in it; some errors pass, so a retry may help."""
    connect(monkeypatch, "role", **given)

    class Hook:
        def __init__(self, **_: str) -> None:
            raise LookupError(f"no access with {CANARY}")

    parts = package.split(".")
    for name in (".".join(parts[:n]) for n in range(3, len(parts) + 1)):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    setattr(sys.modules[package], hook, Hook)
    told = "connection role: the hook of .* gave no credentials .LookupError."
    with pytest.raises(SinkError, match=told) as raised:
        storage_options_of("role", scheme, travels=travels)
    assert CANARY not in str(raised.value)


@pytest.mark.parametrize(
    ("scheme", "given", "told"),
    [
        ("s3", {"extra": {"service_config": {"s3": "http://minio"}}}, "service_config.s3 is a str"),
        ("s3", {"extra": {"config_kwargs": {"proxies": "http://p"}}}, "config_kwargs.proxies is a"),
        ("s3", {"extra": {"config_kwargs": {"s3": 7}}}, "config_kwargs.s3 is a int"),
        (
            "abfss",
            {"conn_type": "wasb", "extra": {"account_url": "https://[bad"}},
            "the address of the account is no URL",
        ),
    ],
)
def test_fields_of_the_wrong_kind_are_named(
    monkeypatch: pytest.MonkeyPatch, scheme: str, given: dict[str, Any], told: str
) -> None:
    """With their connection."""
    connect(monkeypatch, "bad", **given)
    with pytest.raises(ConfigError, match=f"connection bad: {told}"):
        storage_options_of("bad", scheme, travels=False)


@pytest.mark.parametrize("key", ["{", "[]", {"no": "key"}, f'"{CANARY}"', 7])
def test_a_key_that_is_none_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, key: Any
) -> None:
    """By the connection's name."""
    connect(monkeypatch, "bad", conn_type="google_cloud_platform", extra={"keyfile_dict": key})
    with pytest.raises(ConfigError, match="connection bad: keyfile_dict is not") as raised:
        storage_options_of("bad", "gs", travels=False)
    assert CANARY not in str(raised.value)


def test_secrets_of_connections_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """In everything that the task logs; regions and ids are not."""
    masked: list[str] = []
    monkeypatch.setattr("kafka_ordered_ops.airflow.storage.mask", masked.append)
    for scheme, fields, _ in FIELDS.values():
        kind = {"s3": "aws", "gs": "google_cloud_platform", "abfss": "wasb"}[scheme]
        connect(monkeypatch, "given", **{"conn_type": kind, **fields})
        storage_options_of("given", scheme, travels=False)
    secrets = {"s", "t", '{"private_key": "s"}', "sv=1&sig=s", "a2V5=="}
    assert set(masked) == secrets | {'{"private_key": "a\\nb"}', "http://u:p@proxy"}


def test_a_path_that_a_task_returned_is_taken(tmp_path: Path) -> None:
    """Rendered as an object, not as text."""
    place = place_of(ObjectStoragePath("s3://lake@bucket/x"), None)
    assert place is not None
    assert (place.root, place.conn_id) == ("s3://bucket/x", "lake")
