"""What hosts hand over: Airflow's connections, YAML of Dagster's components, and arguments of the command line."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import Any, Final

from kafka_ordered_ops import KafkaOrderedOpsError
from kafka_ordered_ops.testing import InMemoryKafka
from tests.fuzz.borders import Border, Text
from tests.support.dagster_yaml import HOURLY

_CONN_ID: Final = "FUZZED"


# --- Airflow -------------------------------------------------------------------------------------


def _connected(fields: dict[str, Any]) -> None:
    os.environ[f"AIRFLOW_CONN_{_CONN_ID}"] = json.dumps(fields)


def _kafka_connection() -> Border:
    """The extra field of a connection of type ``kafka``."""
    from kafka_ordered_ops.airflow.compat import AirflowNotFoundException
    from kafka_ordered_ops.airflow.connection import settings_of

    def read(data: bytes) -> None:
        _connected({"conn_type": "kafka", "extra": Text(data).decode()})
        settings_of(_CONN_ID.lower(), quiet=True)

    extras: tuple[dict[str, Any], ...] = (
        {
            "bootstrap.servers": "a:9092,b:9092",
            "group.id": "g",
            "enable.auto.commit": True,
            "socket.timeout.ms": 20_000,
            "reconnect.backoff.ms": 100.5,
            "error_cb": "my.module.f",
            "default.topic.config": {"acks": "all"},
            "client.id": None,
        },
        {
            "bootstrap.servers": "a:9092",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "p",
            "ssl.ca.location": "/etc/ca.pem",
            "schema.registry.url": "https://u:p@registry",
            "reader": "auto",
        },
    )
    errors = (KafkaOrderedOpsError, AirflowNotFoundException)
    return Border([json.dumps(extra).encode() for extra in extras], read, errors, cost=20)


def _storage_connection() -> Border:
    """A line with the scheme of an output, and a connection for it."""
    from kafka_ordered_ops.airflow.compat import AirflowNotFoundException
    from kafka_ordered_ops.airflow.storage import storage_options_of

    schemes = ("s3", "gs", "abfss")

    def read(data: bytes) -> None:
        scheme, _, text = Text(data).decode().partition("\n")
        _connected({"extra": text, "login": "key", "password": "canary", "conn_type": ""})
        storage_options_of(_CONN_ID.lower(), scheme if scheme in schemes else "s3", travels=True)

    extras: dict[str, dict[str, Any]] = {
        "s3": {
            "region_name": "eu-west-1",
            "service_config": {"s3": {"endpoint_url": "http://s3:9000"}},
            "config_kwargs": {
                "s3": {"addressing_style": "virtual"},
                "proxies": {"https": "http://p"},
            },
            "aws_session_token": "t",
            "verify": True,
        },
        "gs": {
            "keyfile_dict": json.dumps({"type": "service_account", "private_key": "k"}),
            "project": "p",
        },
        "abfss": {
            "account_url": "https://account.blob.core.windows.net",
            "sas_token": "s",
            "tenant_id": "t",
        },
    }
    valid = [f"{scheme}\n{json.dumps(extra)}".encode() for scheme, extra in extras.items()]
    return Border(valid, read, (KafkaOrderedOpsError, AirflowNotFoundException), cost=20)


# --- Dagster -------------------------------------------------------------------------------------


def _component() -> Border:
    """The attributes of a component, in YAML's subset JSON, up to its definitions."""
    import dagster as dg
    from dagster_shared.error import DagsterError
    from pydantic import ValidationError
    from yaml import YAMLError  # type: ignore[import-untyped]

    from kafka_ordered_ops.dagster import OrderedWindowComponent

    def read(data: bytes) -> None:
        component = OrderedWindowComponent.resolve_from_yaml(Text(data).decode())
        dg.component_defs(component=component)

    attributes: dict[str, Any] = {
        "key": "lake/orders",
        "window": {"topics": ["orders"], "starting_offsets": {"orders": "-PT1H"}, "keys": "avro"},
        "group_id": "lake",
        "partitions": HOURLY,
        "output": {"path": "/lake", "partition_by": "hour"},
        "job": {"engine": "local", "ordered": False, "conf": {"spark.a": "b"}},
        "policy": {"on_covered": "skip", "claim_age": "PT1H"},
        "grace": "PT5M",
        "open_lag": "PT1H",
        "on_not_live": "fail",
        "serial": True,
        "deps": ["a/b"],
        "tags": {"a": "b"},
        "op": {"retry_policy": {"max_retries": 2, "delay": "PT1M", "backoff": "linear"}},
        "kafka": {"config": {"bootstrap.servers": "a:9092", "socket.timeout.ms": 9000}},
        "sensor": {"lookback": "P1D", "minimum_interval_seconds": 30},
        "check": {"lag": "PT5M", "blocking": False},
    }
    errors = (KafkaOrderedOpsError, DagsterError, ValidationError, YAMLError)
    return Border([json.dumps(attributes).encode()], read, errors, cost=500, cpu_s=2)


# --- the command line ----------------------------------------------------------------------------


def _arguments() -> Border:
    """Arguments, one a line, of commands that need no broker but one in memory: an exit code, and never a traceback."""
    from kafka_ordered_ops.cli.app import run

    running = ExitStack()
    kafka = running.enter_context(InMemoryKafka())
    kafka.create_topic("orders", 2)
    kafka.produce("orders", key=b"k", value=b"v", timestamp_ms=1_700_000_000_000)
    where, cutoff = ["-b", kafka.bootstrap], ["--cutoff", "2026-11-20T12:00:00Z"]
    commands = (
        ["offsets", "decode", "bgABAAk=", "--base", "100", "--json"],
        ["offsets", "encode", "--base", "100", "--done", "101:111", "--done", "120"],
        ["preview", *where, "-t", "orders", "-g", "g", *cutoff, "--starting-offsets", "earliest"],
        ["windows", "list", *where, "-g", "g", "--json"],
        ["live", *where, "-t", "orders", *cutoff, "--grace", "PT5M"],
        ["lag", *where, "-g", "g"],
    )
    known = {command[0] for command in commands}

    def read(data: bytes) -> None:
        arguments = Text(data).decode().split("\n")
        # Nothing that waits, serves or writes files; a program's arguments have no NUL.
        if arguments[0] not in known or "\0" in "".join(arguments):
            return
        output, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            code = run([word for word in arguments if not word.startswith(("--wa", "--ou"))])
        assert 0 <= code <= 130
        assert "Traceback" not in errors.getvalue(), errors.getvalue()

    valid = ["\n".join(command).encode() for command in commands]
    return Border(valid, read, cost=200, cpu_s=1, close=running.close)


BORDERS: Final[dict[str, Callable[[], Border]]] = {
    "Airflow: connection of Kafka": _kafka_connection,
    "Airflow: connection of a store": _storage_connection,
    "Dagster: attributes of a component": _component,
    "command line": _arguments,
}
