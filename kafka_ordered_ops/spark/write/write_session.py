"""The session that the package writes in: the user's, without the settings that change or redirect a write.

Spark, Delta and Iceberg read some hundred settings from the session of a DataFrame. A few of them decide which values
are written, to which branch, and whether a commit is made at all. This is the one place that knows these.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.spark.read.reading import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Spark's own default is INT96, which other readers take for nanoseconds without a zone.
_TIMESTAMP_TYPE: Final = "spark.sql.parquet.outputTimestampType"

#: What a writer of Parquet takes from the session only; there are no options for these.
_FILES: Final = {
    _TIMESTAMP_TYPE: "TIMESTAMP_MICROS",
    # LEGACY moves dates before 1582 and times before 1900, for readers that do not know of it.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}

#: Further settings of a session that writes, whatever the user's has.
_SETTINGS: Final = {
    **_FILES,
    # What TIMESTAMP means in a statement: with NTZ, times move by the session's zone.
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # LEGACY writes another number, or null, where a value does not fit the column.
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.legacy.charVarcharAsString": "false",
    # Rows of files that are gone or damaged would be left out.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.sources.partitionOverwriteMode": "STATIC",
    # With more of them, rows of one window come to its file in another order.
    "spark.sql.maxConcurrentOutputFileWriters": "0",
    # How the text of our statements is understood.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.variable.substitute": "false",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    # Above 0, the table is looked at as it was.
    "spark.databricks.delta.stalenessLimit": "0",
    "spark.databricks.delta.replaceWhere.dataColumns.enabled": "true",
    "spark.sql.iceberg.merge-schema": "false",
    "spark.sql.iceberg.check-nullability": "true",
    "spark.sql.iceberg.check-ordering": "true",
}

#: With these, Iceberg commits to another branch, or to none, if the table has the property.
_AUDITS: Final = ("spark.wap.id", "spark.wap.branch")
_AUDITED: Final = "write.wap.enabled"

#: Settings that a session that writes does not have.
_WITHOUT: Final = (
    # Delta skips a commit with a transaction id that it has seen.
    "spark.databricks.delta.write.txnAppId",
    "spark.databricks.delta.write.txnVersion",
    "spark.databricks.delta.write.txnVersion.autoReset.enabled",
    *_AUDITS,
)
#: Delta gives these to the staging table, from which rows must be deleted.
_WITHOUT_PREFIX: Final = "spark.databricks.delta.properties.defaults."

#: The sessions made here, by the id of the user's: each has its own clients of catalogues.
_made: Final[dict[str, SparkSession]] = {}
_making: Final = threading.Lock()


def write_session(spark: SparkSession) -> SparkSession:
    """Return a session like this one, as it is now, that writes exactly the given rows to the given table.

    Temporary views are not taken over. A session of Spark Connect is returned as it is.

    Raises:
        ConfigError: a session of Spark Connect has a setting that would change or redirect a write.
    """
    if is_connect(spark):
        _check_connect(spark)
        return spark
    own: Any = spark
    key = own._jsparkSession.sessionUUID()
    with _making:
        like = _made.get(key)
        if like is None:
            for name, one in [*_made.items()]:
                if _is_stopped(one):
                    del _made[name]
            like = _made[key] = own.newSession()
        _take_over(own, like)
    return like


def in_write_session(df: DataFrame) -> DataFrame:
    """Return the same DataFrame in the session that writes; raises as `write_session` does."""
    return in_session(df, write_session(df.sparkSession))


def in_session(df: DataFrame, spark: SparkSession) -> DataFrame:
    """Return the same DataFrame in another session: its plan, as its own session has analysed it."""
    if is_connect(spark):
        return df
    from pyspark.sql import DataFrame as Frame

    session: Any = spark
    java: Any = df
    datasets = session._jvm.org.apache.spark.sql.classic.Dataset
    moved = datasets.ofRows(session._jsparkSession, java._jdf.logicalPlan())
    return Frame(moved, session)


def session_with(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return a session like this one, with more settings: what other threads do in this one is not stamped.

    Statements have no options: what their commits carry comes from the session's settings.
    """
    own: Any = spark
    like: Any
    if is_connect(spark):
        like = own.cloneSession()
    else:
        like = own.newSession()
        _copy(own, like, own.conf.getAll)
    for key, value in conf.items():
        like.conf.set(key, value)
    return like  # type: ignore[no-any-return]


@contextmanager
def written_as_given(df: DataFrame) -> Iterator[DataFrame]:
    """Yield the DataFrame for a writer of Parquet inside the block, in the session that writes.

    A session of Spark Connect gets the settings for as long as the block lasts.
    """
    spark = df.sparkSession
    if not is_connect(spark):
        yield in_write_session(df)
        return
    before = {key: spark.conf.get(key, None) for key in _FILES}
    for key, value in _FILES.items():
        spark.conf.set(key, value)
    try:
        yield df
    finally:
        for key, known in before.items():
            if known is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, known)


def check_not_audited(spark: SparkSession, table: str) -> None:
    """Raise `ConfigError` where the user's session has Iceberg hold back what is written to a table."""
    for name in _AUDITS:
        if (value := spark.conf.get(name, None)) is None:
            continue
        told = spark.sql(f"SHOW TBLPROPERTIES {table} ('{_AUDITED}')").collect()
        if any(str(row[1]).lower() == "true" for row in told):
            raise ConfigError(
                f"{table} has {_AUDITED}=true, and this session has {name}={value}: Iceberg would hold the rows back for an "
                f"audit, and a published window must show. Unset {name}, or write to a table without that property"
            )


def _take_over(own: Any, like: Any) -> None:
    """Give a session the state of another one, but for the settings that are ours."""
    known = {
        key: value
        for key, value in own.conf.getAll.items()
        if key not in _SETTINGS and key not in _WITHOUT and not key.startswith(_WITHOUT_PREFIX)
    }
    there = like.conf.getAll
    for key in there:
        if key not in known and key not in _SETTINGS:
            like._jsparkSession.sessionState().conf().unsetConf(key)
    wanted = {**known, **_SETTINGS}
    # Each setting that is asked for by its name is a call of Java.
    _copy(own, like, {key: value for key, value in wanted.items() if there.get(key) != value})


def _copy(own: Any, like: Any, settings: Mapping[str, str]) -> None:
    # A builder that finds a running session also gives it settings that `conf.set` refuses, such as spark.driver.memory.
    conf = like._jsparkSession.sessionState().conf()
    for key, value in settings.items():
        if like.conf.get(key, None) != value:
            conf.setConfString(key, value)
    if (current := own.catalog.currentCatalog()) != like.catalog.currentCatalog():
        like.catalog.setCurrentCatalog(current)
    # It is quoted where it needs to be, may have several parts, and is empty where the catalogue has no default one.
    if (name := own.catalog.currentDatabase()) and name != like.catalog.currentDatabase():
        like.catalog.setCurrentDatabase(name)


def _is_stopped(spark: Any) -> bool:
    return spark._sc._jsc is None or spark._jsparkSession.sparkContext().isStopped()


def _check_connect(spark: SparkSession) -> None:
    """Raise `ConfigError` for a setting that cannot be left out: the server's session is the user's own."""
    told: Any = spark.conf.getAll
    for name, value in told.items():
        wanted = _SETTINGS.get(name, value)
        is_left_out = name in _WITHOUT or name.startswith(_WITHOUT_PREFIX)
        if name == _TIMESTAMP_TYPE or (wanted.lower() == value.lower() and not is_left_out):
            continue
        cure = "unset it" if is_left_out else f"set it to {wanted}"
        raise ConfigError(
            f"this session of Spark Connect has {name}={value}, which changes or redirects what is written to a table: {cure}"
        )
