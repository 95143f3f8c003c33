"""Settings of the user's session neither change nor redirect what is written; nor does a table count rows twice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import ConfigError, Copy, SinkError, UnknownWindowError
from kafka_ordered_ops.spark.write.table_facts import TableFacts
from kafka_ordered_ops.spark.write.write_session import session_with
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.spark_support import spark
from tests.support.table_sides import (
    FORMATS,
    MODES,
    T0_MS,
    Side,
    eu,
    hour,
    make,
    rows_in,
    shown,
)
from tests.support.tables_support import Lake, lake_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["eu", "lake_spark", "spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(900)]

#: What a user may have set, each of which has changed or redirected a write.
_ODD = {
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.parser.escapedStringLiterals": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.databricks.delta.write.txnAppId": "mine",
    "spark.databricks.delta.write.txnVersion": "5",
    "spark.databricks.delta.schema.autoMerge.enabled": "true",
    "spark.databricks.delta.properties.defaults.appendOnly": "true",
    "spark.sql.iceberg.distribution-mode": "range",
    # Of a table that is not audited.
    "spark.wap.id": "job-7",
}
_COLUMNS = "partition int, offset bigint, timestamp timestamp, value binary, window_id string"
#: A quote, and what Spark would replace in a statement.
_ID = "it-s.spark.app.name~odd@x"


@FORMATS
@MODES
def test_odd_settings_change_nothing(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, format_: str, mode: str
) -> None:
    """Twice in each mode; a session with other settings finds the records as they were produced."""
    lake = Lake.make(lake_spark, format_, tmp_path, mode=mode, columns=_COLUMNS, partitions="")
    odd = session_with(lake_spark, _ODD)
    side = Side(eu, lake)
    for number, window_id in enumerate((_ID, "next")):
        side.produce("a", "b", number=number)
        with side.windows() as windows:
            for ran in (True, False):
                done = windows.run(
                    hour(number),
                    side.table(),
                    job=Copy(engine="python"),
                    window_id=window_id,
                    spark=odd,
                )
                assert done.ran is ran
    lake_spark.sql(f"REFRESH TABLE {lake.table}")
    found = lake_spark.sql(
        f"SELECT window_id, CAST(value AS string), unix_millis(timestamp) FROM {lake.table}"
    ).collect()
    first, then = T0_MS + 1, T0_MS + 3_600_000 + 1
    assert sorted(map(tuple, found)) == sorted(
        [(_ID, "a", first), (_ID, "b", first), ("next", "a", then), ("next", "b", then)]
        if mode != "merge"
        else [("next", "a", then), ("next", "b", then)]
    )
    # What the user has set stays set, and what shows there is seen there at once.
    assert {key: odd.conf.get(key) for key in _ODD} == _ODD
    assert odd.table(lake.table).count() == len(found)


@pytest.mark.parametrize("name", ["spark.wap.id", "spark.wap.branch"])
def test_a_session_that_holds_rows_back_for_an_audit_is_refused(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, name: str
) -> None:
    """By the setting's name, before anything is planned; without it, the rows show."""
    lake = make(lake_spark, "iceberg", tmp_path, "replace", properties="'write.wap.enabled'='true'")
    side = Side(eu, lake)
    side.produce("a")
    audited = Side(eu, Lake(session_with(lake_spark, {name: "audit"}), "iceberg", lake.table))
    with pytest.raises(ConfigError, match=rf"write\.wap\.enabled=true.*{name}=audit.*Unset"):
        audited.run()
    with pytest.raises(UnknownWindowError):
        side.status()
    assert side.run().ran
    assert rows_in(lake) == shown("a")


@pytest.mark.parametrize("properties", ["'write.distribution-mode'='range'", ""])
def test_rows_that_are_computed_twice_are_counted_once(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, properties: str
) -> None:
    """Spark takes a sample of what it deals out by range: of a table that asks for it, or has a sort order."""
    by = "value" if properties else ""
    lake = make(lake_spark, "iceberg", tmp_path, "append", partitions=by, properties=properties)
    if not properties:
        lake_spark.sql(f"ALTER TABLE {lake.table} WRITE ORDERED BY value")
    side = Side(eu, lake)
    side.produce("a", "b", "c")
    assert side.run().records == 3
    assert rows_in(lake) == shown("a", "b", "c")


@FORMATS
def test_spark_is_asked_what_it_can_do(
    lake_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    """A runtime with a format built in has no extension in its settings; one that lacks the SQL is refused."""
    lake = make(lake_spark, format_, tmp_path, "merge", partitions="")
    kind = type(lake_spark.conf)
    get = kind.get

    def hidden(self: Any, key: str, *default: Any) -> Any:
        is_asked = (key, *default) == ("spark.sql.extensions", "")
        return "" if is_asked else get(self, key, *default)

    monkeypatch.setattr(kind, "get", hidden)
    for mode, keys in (("append", ()), ("replace", ()), ("merge", ("value",))):
        lake.sink_for(mode, keys=keys)
    facts = TableFacts.of(lake_spark, lake.table)
    with pytest.raises(
        ConfigError, match=r"mode 'x' .* add an\.Extension to spark\.sql\.extensions"
    ):
        facts.check_sql("mode 'x'", "an.Extension", f"ALTER TABLE {lake.table} DO ODD THINGS")


def test_a_commit_that_went_elsewhere_is_not_called_published(
    lake_spark: SparkSession, tmp_path: Path, eu: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is looked at after its commit, whatever the format says of that."""
    side = Side(eu, make(lake_spark, "iceberg", tmp_path, "replace"))
    side.produce("a")
    with monkeypatch.context() as patch:
        patch.setattr(type(side.lake.sink.format), "show", lambda *_: None)
        with pytest.raises(SinkError, match="skipped by the table"):
            side.run()
    assert rows_in(side.lake) == []
    side.run()
    assert rows_in(side.lake) == shown("a")
