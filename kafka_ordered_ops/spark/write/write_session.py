"""The session for writes: like the user's, without the settings that change or redirect a write.

Spark, Delta and Iceberg read about a hundred settings from the session of a DataFrame. A few of them determine which
values are written, to which branch, and whether there is a commit at all. All of these are in this module.
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

#: Spark's own default is INT96, which other readers read as nanoseconds without a zone.
_TIMESTAMP_TYPE: Final = "spark.sql.parquet.outputTimestampType"

#: Settings of the Parquet writer that exist only in the session, not as options.
_FILES: Final = {
    _TIMESTAMP_TYPE: "TIMESTAMP_MICROS",
    # LEGACY shifts dates before 1582 and times before 1900, which readers do not expect.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}

#: Further settings of a session that writes, whatever the user's session has.
_SETTINGS: Final = {
    **_FILES,
    # The meaning of TIMESTAMP in a statement: with NTZ, times are shifted by the session's zone.
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # LEGACY writes another number, or null, if a value does not fit the column.
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.legacy.charVarcharAsString": "false",
    # With true, rows of missing or damaged files would be left out.
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.sources.partitionOverwriteMode": "STATIC",
    # With more than 0, the rows of a window are written to its file in another order.
    "spark.sql.maxConcurrentOutputFileWriters": "0",
    # How our statements are parsed.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.variable.substitute": "false",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    # Above 0, Delta may read an older state of the table.
    "spark.databricks.delta.stalenessLimit": "0",
    "spark.databricks.delta.replaceWhere.dataColumns.enabled": "true",
    "spark.sql.iceberg.merge-schema": "false",
    "spark.sql.iceberg.check-nullability": "true",
    "spark.sql.iceberg.check-ordering": "true",
}

#: With these settings, Iceberg commits to another branch, or to none, if the table has the property.
_AUDITS: Final = ("spark.wap.id", "spark.wap.branch")
_AUDITED: Final = "write.wap.enabled"

#: Settings that are removed from a session that writes.
_WITHOUT: Final = (
    # Delta skips a commit with a transaction id that it has seen.
    "spark.databricks.delta.write.txnAppId",
    "spark.databricks.delta.write.txnVersion",
    "spark.databricks.delta.write.txnVersion.autoReset.enabled",
    *_AUDITS,
)
#: Delta would apply these defaults to the staging table, from which rows must be deleted.
_WITHOUT_PREFIX: Final = "spark.databricks.delta.properties.defaults."

#: The created sessions, by the id of the user's: each has its own catalogue clients.
_made: Final[dict[str, SparkSession]] = {}
_making: Final = threading.Lock()


def write_session(spark: SparkSession) -> SparkSession:
    """Return a session with the current state of this one that writes exactly the given rows to the given table.

    Temporary views are not copied. A session of Spark Connect is returned unchanged.

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
            for name, session in [*_made.items()]:
                if _is_stopped(session):
                    del _made[name]
            like = _made[key] = own.newSession()
        _take_over(own, like)
    return like


def in_write_session(df: DataFrame) -> DataFrame:
    """Return the same DataFrame in the session that writes; raise as `write_session` does."""
    return in_session(df, write_session(df.sparkSession))


def in_session(df: DataFrame, spark: SparkSession) -> DataFrame:
    """Return the same DataFrame in another session: its plan as analysed by its own session."""
    if is_connect(spark):
        return df
    from pyspark.sql import DataFrame as Frame

    session: Any = spark
    java: Any = df
    datasets = session._jvm.org.apache.spark.sql.classic.Dataset
    moved = datasets.ofRows(session._jsparkSession, java._jdf.logicalPlan())
    return Frame(moved, session)


def session_with(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return a session like this one with more settings, which do not affect other threads of this one.

    Statements have no options: the metadata of their commits comes from the session's settings.
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

    A session of Spark Connect has the settings until the end of the block.
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
    """Raise `ConfigError` if Iceberg would hold back what the user's session writes to a table."""
    for name in _AUDITS:
        if (value := spark.conf.get(name, None)) is None:
            continue
        properties = spark.sql(f"SHOW TBLPROPERTIES {table} ('{_AUDITED}')").collect()
        if any(str(row[1]).lower() == "true" for row in properties):
            raise ConfigError(
                f"{table} has {_AUDITED}=true, and this session has {name}={value}: Iceberg would hold the rows back for an "
                f"audit, and a published window must show. Unset {name}, or write to a table without that property"
            )


def _take_over(own: Any, like: Any) -> None:
    """Copy the state of a session to another one, except for our own settings."""
    known = {
        key: value
        for key, value in own.conf.getAll.items()
        if key not in _SETTINGS and key not in _WITHOUT and not key.startswith(_WITHOUT_PREFIX)
    }
    there = like.conf.getAll
    for key in there:
        if key not in known and key not in _SETTINGS:
            like._jsparkSession.sessionState().conf().unsetConf(key)
    settings = {**known, **_SETTINGS}
    # Reading a single setting costs a call to Java, so unchanged ones are left out.
    _copy(own, like, {key: value for key, value in settings.items() if there.get(key) != value})


def _copy(own: Any, like: Any, settings: Mapping[str, str]) -> None:
    # A builder also sets settings on a running session that `conf.set` refuses, such as spark.driver.memory.
    conf = like._jsparkSession.sessionState().conf()
    for key, value in settings.items():
        if like.conf.get(key, None) != value:
            conf.setConfString(key, value)
    if (current := own.catalog.currentCatalog()) != like.catalog.currentCatalog():
        like.catalog.setCurrentCatalog(current)
    # The name is quoted where necessary, may have several parts, and is empty if the catalogue has no default.
    if (name := own.catalog.currentDatabase()) and name != like.catalog.currentDatabase():
        like.catalog.setCurrentDatabase(name)


def _is_stopped(spark: Any) -> bool:
    return spark._sc._jsc is None or spark._jsparkSession.sparkContext().isStopped()


def _check_connect(spark: SparkSession) -> None:
    """Raise `ConfigError` for a setting that cannot be removed: the server's session is the user's own."""
    settings: Any = spark.conf.getAll
    for name, value in settings.items():
        required = _SETTINGS.get(name, value)
        is_left_out = name in _WITHOUT or name.startswith(_WITHOUT_PREFIX)
        if name == _TIMESTAMP_TYPE or (required.lower() == value.lower() and not is_left_out):
            continue
        cure = "unset it" if is_left_out else f"set it to {required}"
        raise ConfigError(
            f"this session of Spark Connect has {name}={value}, which changes or redirects what is written to a table: {cure}"
        )
