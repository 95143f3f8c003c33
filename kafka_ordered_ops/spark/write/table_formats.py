"""Delta and Iceberg tables as sinks: how each records whose rows it shows, and commits on top of that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import Fields
from kafka_ordered_ops.spark.write.tables import TableSink, TableState, TableWrite

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Above what a commit says of itself: others write there, too.
_KEY: Final = "kafka_ordered_ops"

#: What a commit says of itself is some hundred bytes.
_METADATA_BYTES_MAX: Final = 64 * 1024

#: The same as properties of an Iceberg snapshot.
_WINDOW_PROPERTY: Final = "kafka-ordered-ops.window"
_WRITE_PROPERTY: Final = "kafka-ordered-ops.write"


class DeltaSink(TableSink):
    """`TableSink` for Delta tables.

    A commit says whose rows it shows in its ``userMetadata``, and counts the window's publications in
    ``txnVersion``, under the window's own ``txnAppId``: Delta skips a version that is not above the last one,
    so that of two publishers that have seen the same, one comes through.
    """

    def __init__(self, spark: SparkSession, table: str, staging: str) -> None:
        super().__init__(spark, table, staging, _Delta(spark))


class IcebergSink(TableSink):
    """`TableSink` for Iceberg tables, which must be partitioned by ``window_id``.

    A snapshot says whose rows it shows in its properties ``kafka-ordered-ops.*``. A commit is validated against
    all that has changed since the snapshot that was looked at.
    """

    def __init__(self, spark: SparkSession, table: str, staging: str) -> None:
        super().__init__(spark, table, staging, _Iceberg(spark))


class _Delta:
    name = "delta"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def check(self, table: str) -> None:
        """Accept any Delta table."""

    def look(self, table: str, window_id: str, *, turn: int) -> TableState:
        from pyspark.sql import functions as f

        mine = f.get_json_object("userMetadata", f"$.{_KEY}.write.window_id") == f.lit(window_id)
        history = self._spark.sql(f"DESCRIBE HISTORY {table}")
        rows = history.where(mine).orderBy(f.desc("version")).select("userMetadata").head(1)
        if rows:
            fields = _fields(rows[0][0]).object(_KEY)
            return TableState(
                TableWrite.from_json(fields.object("write")), fields.integer("txn_version") + 1
            )
        # The first publication, unless it has just been skipped: then the history has forgotten older ones,
        # and only the clock is surely above what they counted to.
        return TableState(None, 1 if turn == 0 else int(time.time() * 1000))

    def replace(self, table: str, rows: DataFrame, write: TableWrite, basis: int | None) -> None:
        told = {_KEY: {"write": write.to_json(), "txn_version": basis}}
        (
            rows.writeTo(table)
            # One id for each window: with one for all, an older window behind a newer one is skipped.
            .option("txnAppId", f"{write.group_id}/{write.window_id}")
            .option("txnVersion", str(basis))
            .option("userMetadata", strict_json.dumps(told))
            .overwrite(_of_window(write))
        )


class _Iceberg:
    name = "iceberg"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def check(self, table: str) -> None:
        schema = self._spark.table(f"{table}.partitions").schema
        partition: Any = schema["partition"].dataType if "partition" in schema.names else None
        if partition is None or "window_id" not in partition.names:
            raise ConfigError(
                f"{table} is not partitioned by window_id: Iceberg replaces whole files, and a file must not "
                "hold rows of two windows. Create the table PARTITIONED BY (window_id)"
            )

    def look(self, table: str, window_id: str, *, turn: int) -> TableState:
        from pyspark.sql import functions as f

        # The snapshot first: what is committed between the two questions is then seen, or refuses the commit.
        basis = self._snapshot(table)
        if basis is None:
            # There is no validating from before the first snapshot.
            self._spark.table(table).limit(0).writeTo(table).append()
            basis = self._snapshot(table)
        current = self._spark.table(f"{table}.history").where("is_current_ancestor")
        shown = (
            self._spark.table(f"{table}.snapshots")
            .where(f.element_at("summary", _WINDOW_PROPERTY) == f.lit(window_id))
            .join(current, "snapshot_id")
            .orderBy(f.desc("made_current_at"))
        )
        rows = shown.select(f.element_at("summary", _WRITE_PROPERTY)).head(1)
        return TableState(TableWrite.from_json(_fields(rows[0][0])) if rows else None, basis)

    def replace(self, table: str, rows: DataFrame, write: TableWrite, basis: int | None) -> None:
        (
            rows.writeTo(table)
            .option(f"snapshot-property.{_WINDOW_PROPERTY}", write.window_id)
            .option(f"snapshot-property.{_WRITE_PROPERTY}", strict_json.dumps(write.to_json()))
            .option("validate-from-snapshot-id", str(basis))
            .option("isolation-level", "serializable")
            # Not overwritePartitions: a result without rows would leave the older rows as they are.
            .overwrite(_of_window(write))
        )

    def _snapshot(self, table: str) -> int | None:
        refs = self._spark.table(f"{table}.refs").where("name = 'main'")
        rows = refs.select("snapshot_id").head(1)
        return int(rows[0][0]) if rows else None


def _fields(text: str) -> Fields:
    return Fields(strict_json.loads(text, limit_bytes=_METADATA_BYTES_MAX), "commit")


def _of_window(write: TableWrite) -> Column:
    from pyspark.sql import functions as f

    return f.col("window_id") == f.lit(write.window_id)
