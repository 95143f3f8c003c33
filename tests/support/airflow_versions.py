"""What the tests use of Airflow, by one name for each version that has it elsewhere; and what older ones lack.

Features are looked for; versions are not compared.
"""

from __future__ import annotations

import inspect
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from airflow import providers_manager
from airflow.models.connection import Connection as StoredConnection
from airflow.sdk import Connection
from airflow.sdk.execution_time.context import OutletEventAccessor
from airflow.triggers.base import BaseTrigger

try:
    from airflow.sdk.exceptions import TaskDeferred as TaskDeferred
except ImportError:  # before Airflow 3.2
    from airflow.exceptions import TaskDeferred as TaskDeferred  # type: ignore[no-redef]

#: Whether tasks can have a policy that says which errors are worth another attempt.
HAS_RETRY_POLICIES = find_spec("airflow.sdk.definitions.retry_policy") is not None

needs_retry_policies = pytest.mark.skipif(
    not HAS_RETRY_POLICIES, reason="needs the retry policies of Airflow 3.3"
)

#: Whether a provider can describe the form of its connections without code.
HAS_CONNECTION_FORMS = '"conn-fields"' in inspect.getsource(providers_manager)

needs_connection_forms = pytest.mark.skipif(
    not HAS_CONNECTION_FORMS,
    reason="needs the connection forms of Airflow 3.2, which a provider describes",
)

#: Whether an event of an asset can name partitions of it.
HAS_EVENT_PARTITIONS = hasattr(OutletEventAccessor, "add_partitions")

needs_event_partitions = pytest.mark.skipif(
    not HAS_EVENT_PARTITIONS, reason="needs the partitions of asset events of Airflow 3.3"
)

#: Whether a trigger is told that its task was cleared or marked.
HAS_TRIGGER_KILLS = hasattr(BaseTrigger, "on_kill")

needs_trigger_kills = pytest.mark.skipif(
    not HAS_TRIGGER_KILLS, reason="needs the trigger's `on_kill` of Airflow 3.3"
)


def provider_hooks() -> Any:
    """The hooks of connections by their type, as the tasks of this Airflow find them."""
    if find_spec("airflow.sdk.providers_manager_runtime") is None:  # before Airflow 3.2
        return import_module("airflow.providers_manager").ProvidersManager().hooks
    runtime = import_module("airflow.sdk.providers_manager_runtime")
    return runtime.ProvidersManagerTaskRuntime().hooks


def button_test(monkeypatch: pytest.MonkeyPatch, **given: Any) -> tuple[bool, str]:
    """What the web page's button "Test" comes to for a connection that is stored nowhere."""
    if hasattr(Connection, "test_connection"):
        return Connection(conn_id="unsaved", **given).test_connection()
    # Before Airflow 3.3 the page's server does it itself, and hands the connection on by its environment.
    connection: Any = StoredConnection(conn_id="unsaved", **given)
    monkeypatch.setenv("AIRFLOW_CONN_UNSAVED", connection.get_uri())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"ProvidersManager\.hooks")
        works, told = connection.test_connection()
    return works, told
