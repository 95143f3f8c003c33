"""Every session with every table in every mode: right by a SELECT of a fresh session, or refused by name before the plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.spark_support import spark, spark41_conf, spark41_jars
from tests.support.submit_support import script_environment
from tests.support.table_matrix import CONNECT, SECOND, SESSIONS, TABLES, Session, wrong
from tests.support.tables_support import WAREHOUSE, lake_spark, tables_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lake_spark", "spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(1_800)]

#: Every day: what differs most. All others by night.
_DAILY = {
    ("defaults", "iceberg nested NOT NULL"),
    ("NTZ", "iceberg plain"),
    ("wap branch", "iceberg audited"),
    ("txnAppId", "delta plain"),
    (SECOND, "iceberg variant"),
}


@pytest.mark.parametrize(
    ("session", "table"),
    [
        pytest.param(name, table, marks=() if (name, table) in _DAILY else pytest.mark.long)
        for name in (*SESSIONS, SECOND)
        for table in TABLES
    ],
)
def test_a_session_and_a_table_in_every_mode(
    bootstrap: str, orders: str, lake_spark: SparkSession, session: str, table: str
) -> None:
    """A window by each mode; nothing is in between right and refused."""

    def fresh() -> SparkSession:
        one = lake_spark.newSession()
        for key, value in tables_conf(Path(lake_spark.conf.get(WAREHOUSE) or "")).items():
            one.conf.set(key, value)
        return one

    kind = SESSIONS.get(session, Session())
    users = lake_spark if session == "other thread" else fresh()
    for key, value in kind.conf:
        users.conf.set(key, value)
    jvm: Any = users._jvm
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    if session != SECOND and session != "other thread":
        # As in a process with one session.
        sessions.setActiveSession(users._jsparkSession)
    try:
        assert wrong(users, fresh, bootstrap, orders, kind, TABLES[table]) == []
    finally:
        # The tests after this one run in the same process.
        own: Any = lake_spark
        sessions.setActiveSession(own._jsparkSession)


@pytest.mark.long
def test_every_table_over_connect(bootstrap: str, orders: str, tmp_path: Path) -> None:
    """The same in a process of its own; generated columns aside, Connect has all that is needed."""
    task = {
        "bootstrap": bootstrap,
        "topic": orders,
        "tables": list(TABLES),
        "conf": {
            **spark41_conf(),
            **tables_conf(tmp_path / "warehouse"),
            "spark.driver.extraClassPath": ":".join(map(str, spark41_jars())),
        },
    }
    (tmp_path / "task.json").write_text(json.dumps(task))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.table_matrix", "task.json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=1_700,
        # A server keeps its tables below the folder in which it was started.
        cwd=tmp_path,
        env=script_environment(),
    )
    assert done.returncode == 0, done.stderr[-6_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: told for name, told in found.items() if told} == {}, CONNECT
