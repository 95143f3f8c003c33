"""What the catalogue says of a table, and whether several drivers can write to it safely."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.spark.write.table_errors import beside_others, told_by
from kafka_ordered_ops.spark.write.table_rules import quoted as quoted
from kafka_ordered_ops.spark.write.table_rules import required, required_inside

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

#: A name's part in SQL: quoted, or as it is.
_PART: Final = re.compile(r"`(?:[^`]|``)+`|[^`.\s]+")
_SESSION_CATALOG: Final = "spark_catalog"

#: What Delta's log says of a column that it generates.
_GENERATED: Final = "delta.generationExpression"
_GENERATING: Final = frozenset({"generatedColumns", "identityColumns"})

#: Some ten thousand columns.
_SCHEMA_BYTES_MAX: Final = 16 * 1024**2

#: How EXPLAIN says that a statement is invalid.
INVALID: Final = "Error occurred during query planning"

#: What Spark says of a statement of an extension that it lacks: of some, it takes the words for others.
_NOT_TAKEN: Final = (
    "PARSE_SYNTAX_ERROR",
    "UNSUPPORTED",
    "not supported",
    "TABLE_OR_VIEW_NOT_FOUND",
)

_SINGLE_DRIVER: Final = "S3SingleDriverLogStore"


@dataclass(frozen=True)
class TableFacts:
    """A table as the catalogue has it."""

    spark: SparkSession
    #: As the user named it, in full: in sessions like this one with another schema it is the same table.
    table: str
    #: ``delta`` or ``iceberg``.
    format: str
    location: str
    #: With its catalogue, where the catalogue says so.
    full_name: str
    #: The session in which the user reads the table.
    own: SparkSession | None = None

    @classmethod
    def of(cls, spark: SparkSession, table: str, own: SparkSession | None = None) -> TableFacts:
        """Ask the catalogue.

        Args:
            spark: the session that writes.
            table: the table, as the user named it.
            own: the user's session, if it is another one.

        Raises:
            ConfigError: there is no such table, or it is neither a Delta nor an Iceberg table.
        """
        try:
            # Another session, with its own cache, may have changed it.
            spark.sql(f"REFRESH TABLE {table}")
            # In the user's, a temporary view may have this name.
            rows = (own or spark).sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
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
        full = _in_full(spark, table.strip())
        return cls(spark, full, provider, told.get("Location", ""), name, own)

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
        rules = required(self._schema)
        if self.format == "delta":
            for name, text in self.properties.items():
                if name.startswith(_CHECK):
                    rules[f"CHECK {name.removeprefix(_CHECK)} ({text})"] = text
            for name, metadata in self.delta_columns.items():
                if (made_by := metadata.get(_GENERATED)) is not None:
                    rule = f"{quoted(name)} <=> ({made_by})"
                    rules[f"{name} GENERATED ALWAYS AS ({made_by})"] = rule
        return rules

    @cached_property
    def required_inside(self) -> list[str]:
        """What is NOT NULL within columns."""
        return required_inside(self._schema)

    @cached_property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        if self.format == "delta":
            # As they are: SHOW TBLPROPERTIES hides those that speak of a URL or a token.
            return {str(name): str(text) for name, text in (self._detail.properties or {}).items()}
        rows = self.spark.sql(f"SHOW TBLPROPERTIES {self.table}").collect()
        return {str(row[0]): str(row[1]) for row in rows}

    @cached_property
    def inherited(self) -> dict[str, str]:
        """The properties without which a table of this format cannot have the same columns."""
        # Of Iceberg, types that are newer; of Delta, names with blanks, say, also within a struct.
        name = "format-version" if self.format == "iceberg" else "delta.columnMapping.mode"
        return {name: self.properties[name]} if name in self.properties else {}

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
        text = log.unsafeVolatileSnapshot().metadata().schemaString()
        try:
            schema = strict_json.loads(text, limit_bytes=_SCHEMA_BYTES_MAX)
            return {one["name"]: one["metadata"] for one in schema["fields"]}
        except (strict_json.JsonError, LookupError, TypeError) as error:
            raise SinkError(
                f"the schema of table {self.table} in its Delta log cannot be read: {error}. Another program wrote it: "
                "repair the table"
            ) from error

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

    def may_show(self, window_id: str) -> bool:
        """Return whether readers may see rows of a window id; without our column, nobody can tell."""
        return not self.has_window_id or self._rows_of(window_id, limit=1) > 0

    def rows_shown(self, window_id: str) -> int:
        """Return how many rows of a window id readers see, in a table with our column."""
        return self._rows_of(window_id, limit=None)

    def _rows_of(self, window_id: str, limit: int | None) -> int:
        from pyspark.sql import functions as f

        self.refresh(self.table)
        is_mine = f.col(quoted(self.columns["window_id"])) == f.lit(window_id)

        def counted() -> int:
            rows = self.spark.table(self.table).where(is_mine)
            return (rows if limit is None else rows.limit(limit)).count()

        return beside_others(counted)

    def refresh(self, name: str) -> None:
        """Refresh the session's view of a table: before it is read, and after each change.

        Iceberg's catalogue caches a table for half a minute. What is committed through one copy of it is missing from
        a copy that another thread has put into the cache meanwhile.
        """
        if self.format == "iceberg":
            self.spark.sql(f"REFRESH TABLE {name}")

    def refresh_for_user(self) -> None:
        """Refresh the table in the user's own session, after what its readers see has changed."""
        if self.format != "iceberg" or self.own is None:
            return
        # By now the name may mean another table there, or none. What is shown is shown.
        with suppress(Exception):
            self.own.sql(f"REFRESH TABLE {self.table}")

    def check_columns(self, own: Sequence[str]) -> None:
        """Raise `ConfigError` for columns that differ only by case in this session, or that are `own` ones."""
        twice = [name for name in self.fields if self.columns[self.folded(name)] != name]
        if twice:
            raise ConfigError(
                f"{self.table} has columns whose names differ from others by their case only, as {twice[0]}: set "
                "spark.sql.caseSensitive=true in this session, or rename them"
            )
        if clash := [name for folded, name in self.columns.items() if folded in own]:
            raise ConfigError(
                f"{self.table} has the column {clash[0]}, whose name is used where rows wait: name another table, or rename "
                "the column"
            )

    def check_sql(self, what: str, extension: str, statement: str) -> None:
        """Raise `ConfigError` where the session does not take a statement that a mode needs.

        Args:
            what: the mode, for the message.
            extension: what brings the statement, unless the runtime has the format built in: then Spark is asked.
            statement: changes nothing.
        """
        found = self.spark.conf.get("spark.sql.extensions", "") or ""
        if extension in found:
            return
        try:
            told = [str(row[0]) for row in self.spark.sql(statement).collect()]
            why = told[1] if told and told[0].startswith(INVALID) else None
        except Exception as error:
            if not any(word in str(error) for word in _NOT_TAKEN):
                raise
            why = told_by(error)
        if why is not None:
            raise ConfigError(
                f"{what} of the {self.format} table {self.table} needs SQL that this session does not take ({why}): add "
                f"{extension} to spark.sql.extensions, which is {found or 'not set'}, before the session starts"
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


def _in_full(spark: SparkSession, table: str) -> str:
    """Return a table's name with the current schema and catalogue, where it does not name them."""
    parts = _PART.findall(table)
    if ".".join(parts) != table:
        return table
    catalog = spark.catalog.currentCatalog()
    first = parts[0].strip("`")
    if len(parts) == 1:
        # Quoted where it needs to be, of several parts, and empty where a catalogue has no default one.
        table = ".".join(filter(None, (spark.catalog.currentDatabase(), table)))
    elif (
        first.lower() in (_SESSION_CATALOG, *_FORMATS)
        or spark.conf.get(f"spark.sql.catalog.{first}", None) is not None
    ):
        return table
    return table if catalog == _SESSION_CATALOG else f"{quoted(catalog)}.{table}"


def literal(text: str) -> str:
    """Return a text for a statement."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def listed(names: Sequence[str], *, of: str = "") -> str:
    """Return columns for a statement."""
    return ", ".join(f"{of}{quoted(name)}" for name in names)
