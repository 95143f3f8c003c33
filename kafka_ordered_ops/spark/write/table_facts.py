"""What the catalogue says of a table, and whether several drivers can write to it safely."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.spark.write.table_errors import told_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_FORMATS: Final = ("delta", "iceberg")

_SCHEME: Final = re.compile(r"([a-z0-9]+)://")
_S3: Final = frozenset({"s3", "s3a", "s3n"})
#: Stores whose rename is not atomic, so that a Hadoop catalogue loses commits there.
_STORES: Final = _S3 | {"gs", "abfs", "abfss", "wasb", "wasbs", "oss", "cos"}

#: Before the name of a constraint, in a Delta table's properties.
_CHECK: Final = "delta.constraints."

#: What Iceberg's Spark catalogue takes behind a table's name.
_SELECTOR: Final = re.compile(r"\.`?((?:branch|tag)_[^.`]+)`?$")

#: What Delta's log says of a column that it generates.
_GENERATED: Final = "delta.generationExpression"
_GENERATING: Final = frozenset({"generatedColumns", "identityColumns"})

_SINGLE_DRIVER: Final = "S3SingleDriverLogStore"


@dataclass(frozen=True)
class TableFacts:
    """A table as the catalogue has it."""

    spark: SparkSession
    #: As the user named it.
    table: str
    #: ``delta`` or ``iceberg``.
    format: str
    location: str
    #: With its catalogue, where the catalogue says so.
    full_name: str

    @classmethod
    def of(cls, spark: SparkSession, table: str) -> TableFacts:
        """Ask the catalogue.

        Raises:
            ConfigError: there is no such table, or it is neither a Delta nor an Iceberg table.
        """
        try:
            rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
        except Exception as error:
            raise ConfigError(
                f"there is no table {table} that this session can read: {told_by(error)}. Create it before the first "
                "window, or correct the name"
            ) from error
        told = {str(row[0]): str(row[1]) for row in rows}
        provider = told.get("Provider", "").lower()
        if provider not in _FORMATS:
            kind = provider or told.get("Type", "of an unknown kind").lower()
            raise ConfigError(
                f"{table} is {kind}, and neither a Delta nor an Iceberg table: only their commits are atomic. Use "
                "output= for a folder of Parquet files"
            )
        name = told.get("Name", table)
        selector = _SELECTOR.search(table)
        if provider == "iceberg" and selector and not name.endswith(selector[1]):
            raise ConfigError(
                f"{table} names a branch or a tag of an Iceberg table: windows are published to the table itself. Leave "
                f"{selector[1]} out"
            )
        return cls(spark, table, provider, told.get("Location", ""), name)

    @property
    def catalog(self) -> str:
        """The catalogue's name."""
        return self.full_name.partition(".")[0]

    @cached_property
    def _schema(self) -> Any:
        return self.spark.table(self.table).schema

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The table's columns with their types, in order."""
        return {field.name: field.dataType for field in self._schema.fields}

    @cached_property
    def rules(self) -> dict[str, str]:
        """What each row must satisfy, as conditions by their names: columns that are NOT NULL, and Delta's CHECKs."""
        rules = dict(_not_null(self._schema.fields, ()))
        if self.format == "delta":
            for name, text in self.delta_properties.items():
                if name.startswith(_CHECK):
                    rules[f"CHECK {name.removeprefix(_CHECK)} ({text})"] = text
            for name, metadata in self.delta_columns.items():
                if (made_by := metadata.get(_GENERATED)) is not None:
                    rule = f"{quoted(name)} <=> ({made_by})"
                    rules[f"{name} GENERATED ALWAYS AS ({made_by})"] = rule
        return rules

    @cached_property
    def delta_properties(self) -> dict[str, str]:
        """The properties of a Delta table, as they are: SHOW TBLPROPERTIES hides those that speak of a URL or a token."""
        return {str(name): str(text) for name, text in (self._detail.properties or {}).items()}

    @cached_property
    def _detail(self) -> Any:
        [row] = self.spark.sql(f"DESCRIBE DETAIL {self.table}").collect()
        return row

    @cached_property
    def delta_columns(self) -> dict[str, Mapping[str, Any]]:
        """What a Delta table's log says of columns that it generates, which Spark's schema leaves out.

        Empty on Spark Connect, which does not lead to the log.
        """
        features = self._detail.tableFeatures or ()
        may_generate = not _GENERATING.isdisjoint(features)
        # Older tables name no features: this version, and those above it, have all of them.
        if not (may_generate or 4 <= (self._detail.minWriterVersion or 0) < 7):
            return {}
        session: Any = self.spark
        if not hasattr(session, "_jsparkSession"):
            return {}
        logs = session._jvm.org.apache.spark.sql.delta.DeltaLog
        # It is as new as the statement above, which looked for newer commits.
        log = logs.forTable(session._jsparkSession, self._detail.location)
        schema = json.loads(log.unsafeVolatileSnapshot().metadata().schemaString())
        return {one["name"]: one["metadata"] for one in schema["fields"]}

    @cached_property
    def is_case_sensitive(self) -> bool:
        """Whether the session distinguishes ``Key`` from ``key``."""
        return self.spark.conf.get("spark.sql.caseSensitive", "false") == "true"

    def folded(self, name: str) -> str:
        """Return a column's name as names are compared."""
        return name if self.is_case_sensitive else name.lower()

    @cached_property
    def columns(self) -> dict[str, str]:
        """The table's columns by their folded names."""
        return {self.folded(name): name for name in self.fields}

    @cached_property
    def has_window_id(self) -> bool:
        """Whether the table has our column ``window_id``; one of another type is the user's own."""
        name = self.columns.get("window_id")
        return name is not None and self.fields[name].simpleString() == "string"

    def refresh(self, name: str) -> None:
        """Refresh the session's view of a table: before it is read, and after each change.

        Iceberg's catalogue caches a table for half a minute. What is committed through one copy of it is missing from
        a copy that another thread has put into the cache meanwhile.
        """
        if self.format == "iceberg":
            self.spark.sql(f"REFRESH TABLE {name}")

    def check_extensions(self, what: str, extension: str) -> None:
        """Raise `ConfigError` where the session lacks the SQL that a mode needs."""
        found = self.spark.conf.get("spark.sql.extensions", "") or ""
        if extension not in found:
            raise ConfigError(
                f"{what} of the {self.format} table {self.table} needs spark.sql.extensions to contain {extension}, and "
                f"this session has {found or 'none'}: set it before the session starts"
            )

    def warn_of_unsafe_store(self) -> None:
        """Log a warning where the configuration shows that two drivers could lose a commit of each other."""
        found = _SCHEME.match(self.location)
        scheme = found[1] if found else ""
        conf = self.spark.conf
        if self.format == "delta" and scheme in _S3:
            store = conf.get(f"spark.delta.logStore.{scheme}.impl", None) or _SINGLE_DRIVER
            if _SINGLE_DRIVER in store:
                _log.warning(
                    "%s is on S3 with %s: commits of two drivers at the same time can overwrite each other. Write from "
                    "one driver only, or set spark.delta.logStore.%s.impl=io.delta.storage.S3DynamoDBLogStore in all.",
                    self.table,
                    _SINGLE_DRIVER,
                    scheme,
                )
        if self.format == "iceberg" and scheme in _STORES:
            prefix = f"spark.sql.catalog.{self.catalog}"
            kind = conf.get(f"{prefix}.type", None) or conf.get(f"{prefix}.catalog-impl", "") or ""
            if kind == "hadoop" or kind.endswith("HadoopCatalog"):
                _log.warning(
                    "%s is in a Hadoop catalogue on %s: commits of two drivers at the same time can overwrite each "
                    "other. Write from one driver only, or use a REST, Hive, JDBC, Glue or Nessie catalogue.",
                    self.table,
                    scheme,
                )


def _not_null(fields: Sequence[Any], above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for field in fields:
        path = (*above, field.name)
        name = ".".join(map(quoted, path))
        if not field.nullable:
            parent = f"{'.'.join(map(quoted, above))} IS NULL OR " if above else ""
            yield f"{'.'.join(path)} NOT NULL", f"{parent}{name} IS NOT NULL"
        if field.dataType.typeName() == "struct":
            yield from _not_null(field.dataType.fields, path)


def quoted(name: str) -> str:
    """Return a column's name for a statement."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """Return a text for a statement."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def listed(names: Sequence[str], *, of: str = "") -> str:
    """Return columns for a statement."""
    return ", ".join(f"{of}{quoted(name)}" for name in names)


def session_with(spark: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    """Return a session like this one, with more settings: what other threads do in this one is not stamped.

    Statements have no options: what their commits carry comes from the session's settings.
    """
    own: Any = spark
    if not hasattr(own, "_jsparkSession"):
        like = own.cloneSession()
    else:
        like = own.newSession()
        for key, value in own.conf.getAll.items():
            # What differs was set on the running session, so it can be set here.
            if like.conf.get(key, None) != value:
                like.conf.set(key, value)
        if (current := own.catalog.currentCatalog()) != like.catalog.currentCatalog():
            like.catalog.setCurrentCatalog(current)
        # It is quoted where it needs to be, may have several parts, and is empty where the catalogue has no default one.
        if name := own.catalog.currentDatabase():
            like.catalog.setCurrentDatabase(name)
    for key, value in conf.items():
        like.conf.set(key, value)
    return like  # type: ignore[no-any-return]
