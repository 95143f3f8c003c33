"""What the fields of a connection say to a store: each form, the hooks' credentials, and fields that are wrong."""

from __future__ import annotations

import sys
import types
from typing import Any

import boto3
import pytest

from kafka_ordered_ops import ConfigError, SinkError
from kafka_ordered_ops.airflow.storage import storage_options_of
from tests.support.airflow_connections import CANARY, connect

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
    told = "connection role: the hook of .* returned no credentials .LookupError."
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
            "the account's address is not a valid URL",
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
