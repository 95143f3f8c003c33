"""Sessions, tables and modes as users have them: each cell is right by a SELECT of a fresh session, or refused by name.

A cell is one session with one table: a window by each mode. `main` runs cells in a process of its own, over Spark Connect.
"""

from __future__ import annotations

import json
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import kafka_ordered_ops as values
from kafka_ordered_ops import ConfigError, Earliest, OrderedWindows
from tests.support.windows_support import BASE_MS, before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ICEBERG: Final = "koo_lake.matrix"
_DELTA: Final = "koo_matrix"


@dataclass(frozen=True)
class Session:
    """A session of a user."""

    conf: tuple[tuple[str, str], ...] = ()
    #: Whether the table is named by one part, after USE.
    is_short: bool = False
    in_thread: bool = False
    #: The setting that a `ConfigError` may name instead of a right result.
    refusal: str | None = None


SESSIONS: Final = {
    "defaults": Session(),
    "New York": Session((("spark.sql.session.timeZone", "America/New_York"),)),
    "NTZ": Session(
        (
            ("spark.sql.session.timeZone", "America/New_York"),
            ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
        )
    ),
    "ANSI off": Session(
        (("spark.sql.ansi.enabled", "false"), ("spark.sql.storeAssignmentPolicy", "LEGACY"))
    ),
    "wap id": Session((("spark.wap.id", "job-7"),), refusal="spark.wap.id"),
    "wap branch": Session((("spark.wap.branch", "audit"),), refusal="spark.wap.branch"),
    "txnAppId": Session(
        (
            ("spark.databricks.delta.write.txnAppId", "mine"),
            ("spark.databricks.delta.write.txnVersion", "5"),
        ),
        refusal="txnAppId",
    ),
    "range distribution": Session((("spark.sql.iceberg.distribution-mode", "range"),)),
    "short names": Session(is_short=True),
    "other thread": Session(in_thread=True),
}
#: In the process of the other sessions, and in one of its own.
SECOND, CONNECT = "second session", "Connect"


@dataclass(frozen=True)
class Table:
    """A table of a user, and what a row of a window has in it."""

    format: str
    columns: str = ""
    #: Of `columns`, in SQL, from the columns of records.
    values: str = ""
    partitions: str = ""
    properties: str = ""
    #: Statements on the table.
    then: tuple[str, ...] = ()
    #: Behind the columns.
    more: str = ""
    #: What a `ConfigError` of mode merge names instead of a right result.
    not_merged: str | None = None


_NESTED: Final = (
    "a array<struct<n: int NOT NULL>>, m map<string, struct<n: int NOT NULL>>, r struct<n: int NOT NULL, `o p`: string> NOT NULL",
    "array(named_struct('n', 1), null) a, map('k', named_struct('n', 2)) m, named_struct('o p', 'x', 'n', 3) r",
)
_VARIANT: Final = ("j variant", "parse_json(concat('{\"a\":', offset, '}')) j")
_ODD: Final = ("`a b` string, `c.d` struct<`e f`: int>", "'x' `a b`, named_struct('e f', 4) `c.d`")

TABLES: Final = {
    "iceberg plain": Table("iceberg"),
    "iceberg by day": Table("iceberg", partitions="days(ts)"),
    "iceberg by window": Table("iceberg", partitions="window_id"),
    "iceberg sorted": Table("iceberg", then=("ALTER TABLE {} WRITE ORDERED BY v DESC",)),
    "iceberg nested NOT NULL": Table("iceberg", *_NESTED),
    "iceberg v1": Table("iceberg", properties="'format-version'='1'"),
    "iceberg v3": Table(
        "iceberg",
        partitions="bucket(4, v)",
        properties="'format-version'='3','write.merge.mode'='merge-on-read','write.delete.mode'='merge-on-read'",
    ),
    "iceberg audited": Table("iceberg", properties="'write.wap.enabled'='true'"),
    "iceberg variant": Table("iceberg", *_VARIANT, properties="'format-version'='3'"),
    "delta plain": Table("delta"),
    "delta by day": Table("delta", "day date", "date(timestamp) day", partitions="day"),
    "delta NOT NULL": Table(
        "delta",
        "r struct<n: int NOT NULL> NOT NULL",
        "named_struct('n', 3) r",
        not_merged="r.n, which is NOT NULL within a column",
    ),
    "delta CHECK": Table("delta", then=("ALTER TABLE {} ADD CONSTRAINT few CHECK (v < 100)",)),
    "delta clustered": Table("delta", more="CLUSTER BY (v, window_id)"),
    "delta column mapping": Table("delta", *_ODD, properties="'delta.columnMapping.mode'='name'"),
    "delta deletion vectors": Table(
        "delta",
        properties="'delta.enableDeletionVectors'='true','delta.enableChangeDataFeed'='true','delta.enableRowTracking'='true'",
    ),
    "delta variant": Table("delta", *_VARIANT),
}

#: By mode: the second at which its window ends, and the offsets in it of `orders`.
MODES: Final = {"append": (7, (0, 3)), "replace": (12, (1,)), "merge": (40, (2, 4, 5))}
_SECONDS: Final = (0, 10, 20, 5, 30, 15)


def make(spark: SparkSession, table: Table) -> str:
    """Create the table; return its full name."""
    schema = _ICEBERG if table.format == "iceberg" else _DELTA
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    name = f"{schema}.t_{uuid.uuid4().hex[:8]}"
    columns = ", ".join(
        filter(None, ("v bigint, ts timestamp_ltz", table.columns, "window_id string"))
    )
    by = f" PARTITIONED BY ({table.partitions})" if table.partitions else ""
    properties = f" TBLPROPERTIES ({table.properties})" if table.properties else ""
    spark.sql(f"CREATE TABLE {name} ({columns}) USING {table.format}{by} {table.more}{properties}")
    for statement in table.then:
        spark.sql(statement.format(name))
    return name


def wrong(
    spark: SparkSession,
    fresh: Callable[[], SparkSession],
    bootstrap: str,
    topic: str,
    session: Session,
    table: Table,
) -> list[str]:
    """Run a cell: return what is neither right nor refused by name before the plan."""
    found = list[str]()
    name = make(fresh(), table)
    shown = name
    if session.is_short:
        schema, _, shown = name.rpartition(".")
        spark.sql(f"USE {schema}")
    wanted = dict[int, str]()

    def job(window: Any) -> None:
        window.write(_result(window, table))

    with OrderedWindows(bootstrap, group_id=f"matrix-{uuid.uuid4().hex}") as windows:
        for mode, (seconds, offsets) in MODES.items():
            try:
                run = partial(
                    windows.run,
                    before(topic, seconds, Earliest()),
                    values.Table(shown, mode, keys=["v"] if mode == "merge" else ()),
                    job=values.Function(job, engine="local"),
                    window_id=mode,
                    spark=spark,
                )
                _in_thread(run) if session.in_thread else run()
            except ConfigError as error:
                is_planned = any(one.plan.window_id == mode for one in windows.list())
                named = [session.refusal, table.not_merged if mode == "merge" else None]
                if is_planned or not any(one is not None and one in str(error) for one in named):
                    found.append(f"{mode}: {type(error).__name__}: {error}")
                continue
            except Exception as error:  # noqa: BLE001 - reported
                found.append(f"{mode}: {type(error).__name__}: {error}")
                continue
            wanted |= dict.fromkeys(offsets, mode)
    return found + _differences(fresh(), name, table, wanted)


def _result(window: Any, table: Table) -> Any:
    values = f", {table.values}" if table.values else ""
    return window.read().selectExpr("offset AS v", "timestamp AS ts", *_split(values))


def _split(values: str) -> list[str]:
    """The expressions of a list: a comma at depth 0 is between two of them."""
    parts, depth = [""], 0
    for char in values.removeprefix(", "):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part.strip()]


def _differences(spark: SparkSession, name: str, table: Table, wanted: dict[int, str]) -> list[str]:
    if table.format == "iceberg":
        spark.sql(f"REFRESH TABLE {name}")
    rows = spark.sql(f"SELECT v, unix_millis(ts), window_id, * FROM {name}").collect()
    seen = sorted((row[0], row[1], row[2]) for row in rows)
    right = sorted((v, BASE_MS + _SECONDS[v] * 1000, mode) for v, mode in wanted.items())
    found = [] if seen == right else [f"shows {seen} instead of {right}"]
    nulls = [name for row in rows for name, value in row.asDict().items() if value is None]
    return found + ([f"nulls in {sorted(set(nulls))}"] if nulls else [])


def _in_thread(call: Callable[[], object]) -> None:
    errors = list[BaseException]()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised where the caller is
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def main(task: dict[str, Any]) -> dict[str, list[str]]:
    """Run the cells of a session over Spark Connect."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]")
    for key, value in task["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        return {
            name: wrong(
                spark, lambda: spark, task["bootstrap"], task["topic"], Session(), TABLES[name]
            )
            for name in task["tables"]
        }
    finally:
        spark.stop()


if __name__ == "__main__":
    print("\n" + json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
