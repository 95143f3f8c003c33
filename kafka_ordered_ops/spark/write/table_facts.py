"""A table's metadata from its catalogue, and whether several drivers can write to it safely."""

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
from kafka_ordered_ops.spec.table import TableLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_FORMATS: Final = ("delta", "iceberg")

_SCHEME: Final = re.compile(r"([a-z0-9]+)://")
_S3: Final = frozenset({"s3", "s3a", "s3n"})
#: Stores without atomic renames, where a Hadoop catalogue loses commits.
_STORES: Final = _S3 | {"gs", "abfs", "abfss", "wasb", "wasbs", "oss", "cos"}

#: By the kind of an Iceberg catalogue: the setting with its address, without secrets.
_ADDRESSES: Final = {"hadoop": "warehouse", "hive": "uri", "nessie": "uri", "rest": "uri"}

#: The prefix of a constraint's name in a Delta table's properties.
_CHECK: Final = "delta.constraints."

#: A selector that Iceberg's Spark catalogue accepts after a table's name.
_SELECTOR: Final = re.compile(r"\.`?((?:branch|tag)_[^.`]+)`?$")

#: A part of a name in SQL, quoted or not.
_PART: Final = re.compile(r"`(?:[^`]|``)+`|[^`.\s]+")
_SESSION_CATALOG: Final = "spark_catalog"

#: The metadata of a generated column in Delta's log.
_GENERATED: Final = "delta.generationExpression"
_GENERATING: Final = frozenset({"generatedColumns", "identityColumns"})

#: Enough for about ten thousand columns.
_SCHEMA_BYTES_MAX: Final = 16 * 1024**2

#: EXPLAIN's message for an invalid statement.
INVALID: Final = "Error occurred during query planning"

#: Spark's errors for a statement of a missing extension: some statements are parsed as something else.
_NOT_TAKEN: Final = (
    "PARSE_SYNTAX_ERROR",
    "UNSUPPORTED",
    "not supported",
    "TABLE_OR_VIEW_NOT_FOUND",
)

_SINGLE_DRIVER: Final = "S3SingleDriverLogStore"


@dataclass(frozen=True)
class TableFacts:
    """A table's metadata from the catalogue."""

    spark: SparkSession
    #: The user's name with schema and catalogue: it means the same table in sessions with another current schema.
    table: str
    #: ``delta`` or ``iceberg``.
    format: str
    location: str
    #: The name in the catalogue, with the catalogue's own name if the catalogue reports it.
    full_name: str
    #: The session in which the user reads the table.
    own: SparkSession | None = None

    @classmethod
    def of(cls, spark: SparkSession, table: str, own: SparkSession | None = None) -> TableFacts:
        """Read a table's metadata from the catalogue.

        Args:
            spark: the session that writes.
            table: the table, as the user named it.
            own: the user's session, if it is not the one that writes.

        Raises:
            ConfigError: there is no such table, or it is neither a Delta nor an Iceberg table.
        """
        try:
            # Another session, with its own cache, may have changed the table.
            spark.sql(f"REFRESH TABLE {table}")
            # A temporary view of the user's session may have this name.
            rows = (own or spark).sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
        except Exception as error:
            raise ConfigError(
                f"there is no table {table} that this session can read: {told_by(error)}. Create it before the first "
                "window, or correct the name"
            ) from error
        description = {str(row[0]): str(row[1]) for row in rows}
        provider = description.get("Provider", "").lower()
        if provider not in _FORMATS:
            kind = provider or description.get("Type", "of an unknown kind").lower()
            raise ConfigError(
                f"{table} is {kind}, and neither a Delta nor an Iceberg table: only their commits are atomic. Use "
                "output= for a folder of Parquet files"
            )
        name = description.get("Name", table)
        selector = _SELECTOR.search(table)
        if provider == "iceberg" and selector and not name.endswith(selector[1]):
            raise ConfigError(
                f"{table} names a branch or a tag of an Iceberg table: windows are published to the table itself. Leave "
                f"{selector[1]} out"
            )
        full = _in_full(spark, table.strip())
        return cls(spark, full, provider, description.get("Location", ""), name, own)

    @property
    def catalog(self) -> str:
        """The catalogue's name."""
        return self.full_name.partition(".")[0]

    @cached_property
    def at(self) -> TableLocation | None:
        """Where other programs find the table; None if its catalogue does not report the files."""
        if not self.location:
            return None
        setting = _ADDRESSES.get(self._catalog_kind)
        address = None if setting is None else self._catalog_setting(setting)
        if not address or "@" in address:
            # In front of an @ there may be a password.
            return TableLocation(self.location)
        return TableLocation(self.location, address, self.full_name.partition(".")[2])

    @property
    def _catalog_kind(self) -> str:
        """The kind of an Iceberg catalogue, such as ``rest``, also where its class is set instead; empty for others."""
        kind = self._catalog_setting("type") or self._catalog_setting("catalog-impl") or ""
        return kind.rpartition(".")[2].removesuffix("Catalog").lower()

    def _catalog_setting(self, name: str) -> str | None:
        return self.spark.conf.get(f"spark.sql.catalog.{self.catalog}.{name}", None)

    @cached_property
    def schema(self) -> Any:
        """The table's schema in Spark."""
        return self.spark.table(self.table).schema

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The table's columns with their types, in order."""
        return {field.name: field.dataType for field in self.schema.fields}

    @cached_property
    def rules(self) -> dict[str, str]:
        """The conditions for each row, by name: NOT NULL columns, and Delta's CHECK constraints and generated columns."""
        rules = required(self.schema)
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
        """The paths within columns that are NOT NULL."""
        return required_inside(self.schema)

    @cached_property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        if self.format == "delta":
            # Unredacted: SHOW TBLPROPERTIES hides properties that contain a URL or a token.
            return {str(name): str(text) for name, text in (self._detail.properties or {}).items()}
        rows = self.spark.sql(f"SHOW TBLPROPERTIES {self.table}").collect()
        return {str(row[0]): str(row[1]) for row in rows}

    @cached_property
    def inherited(self) -> dict[str, str]:
        """The properties without which a table of this format cannot have the same columns."""
        # For newer types in Iceberg; for names with spaces, even within a struct, in Delta.
        name = "format-version" if self.format == "iceberg" else "delta.columnMapping.mode"
        return {name: self.properties[name]} if name in self.properties else {}

    @cached_property
    def _detail(self) -> Any:
        [row] = self.spark.sql(f"DESCRIBE DETAIL {self.table}").collect()
        return row

    @cached_property
    def delta_columns(self) -> dict[str, Mapping[str, Any]]:
        """The metadata of generated columns in a Delta table's log, which Spark's schema leaves out.

        Empty on Spark Connect, which has no access to the log.
        """
        features = self._detail.tableFeatures or ()
        may_generate = not _GENERATING.isdisjoint(features)
        # Older tables list no features: from this version on, they have all of them.
        if not (may_generate or 4 <= (self._detail.minWriterVersion or 0) < 7):
            return {}
        session: Any = self.spark
        if not hasattr(session, "_jsparkSession"):
            return {}
        logs = session._jvm.org.apache.spark.sql.delta.DeltaLog
        # As new as the statement above, which has looked for newer commits.
        log = logs.forTable(session._jsparkSession, self._detail.location)
        text = log.unsafeVolatileSnapshot().metadata().schemaString()
        try:
            schema = strict_json.loads(text, limit_bytes=_SCHEMA_BYTES_MAX)
            return {field["name"]: field["metadata"] for field in schema["fields"]}
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
        """Return a column's name in the form in which names are compared."""
        return name if self.is_case_sensitive else name.lower()

    @cached_property
    def columns(self) -> dict[str, str]:
        """The table's columns by their folded names."""
        return {self.folded(name): name for name in self.fields}

    @cached_property
    def has_window_id(self) -> bool:
        """Whether the table has our column ``window_id``; a column of another type is the user's own."""
        name = self.columns.get("window_id")
        return name is not None and self.fields[name].simpleString() == "string"

    def may_show(self, window_id: str) -> bool:
        """Return whether readers may see rows of a window id; True without our column, because it is unknown."""
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

    def forget(self) -> None:
        """Forget what was read of the table, whose columns have changed."""
        for name in ("schema", "fields", "columns", "rules", "required_inside", "delta_columns"):
            self.__dict__.pop(name, None)

    def refresh(self, name: str) -> None:
        """Refresh the session's view of a table: before it is read, and after each change.

        Iceberg's catalogue caches a table for half a minute. A commit through one copy of it is missing from a copy
        that another thread has put into the cache in the meantime.
        """
        if self.format == "iceberg":
            self.spark.sql(f"REFRESH TABLE {name}")

    def refresh_for_user(self) -> None:
        """Refresh the table in the user's own session, after a visible change."""
        if self.format != "iceberg" or self.own is None:
            return
        # The name may mean another table there by now, or none. The rows are visible in any case.
        with suppress(Exception):
            self.own.sql(f"REFRESH TABLE {self.table}")

    def check_columns(self, own: Sequence[str]) -> None:
        """Raise `ConfigError` for columns that differ only by case in this session, or that have names in `own`."""
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
        """Raise `ConfigError` if the session does not support a statement that a mode needs.

        Args:
            what: the mode, for the message.
            extension: the extension with the statement; if it is not set, Spark is asked, because a runtime may have the
                format built in.
            statement: a statement that changes nothing.
        """
        extensions = self.spark.conf.get("spark.sql.extensions", "") or ""
        if extension in extensions:
            return
        try:
            answer = [str(row[0]) for row in self.spark.sql(statement).collect()]
            why = answer[1] if answer and answer[0].startswith(INVALID) else None
        except Exception as error:
            if not any(word in str(error) for word in _NOT_TAKEN):
                raise
            why = told_by(error)
        if why is not None:
            raise ConfigError(
                f"{what} of the {self.format} table {self.table} needs SQL that this session does not support ({why}): add "
                f"{extension} to spark.sql.extensions, which is {extensions or 'not set'}, before the session starts"
            )

    def warn_of_unsafe_store(self) -> None:
        """Log a warning if the configuration shows that two drivers could overwrite each other's commits."""
        match = _SCHEME.match(self.location)
        scheme = match[1] if match else ""
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
        if self.format == "iceberg" and scheme in _STORES and self._catalog_kind == "hadoop":
            _log.warning(
                "%s is in a Hadoop catalogue on %s: commits of two drivers at the same time can overwrite each "
                "other. Write from one driver only, or use a REST, Hive, JDBC, Glue or Nessie catalogue.",
                self.table,
                scheme,
            )


def _in_full(spark: SparkSession, table: str) -> str:
    """Return a table's name with the current schema and catalogue, where it has none."""
    parts = _PART.findall(table)
    if ".".join(parts) != table:
        return table
    catalog = spark.catalog.currentCatalog()
    first = parts[0].strip("`")
    if len(parts) == 1:
        # The schema is quoted where necessary, may have several parts, and is empty if a catalogue has no default.
        table = ".".join(filter(None, (spark.catalog.currentDatabase(), table)))
    elif (
        first.lower() in (_SESSION_CATALOG, *_FORMATS)
        or spark.conf.get(f"spark.sql.catalog.{first}", None) is not None
    ):
        return table
    return table if catalog == _SESSION_CATALOG else f"{quoted(catalog)}.{table}"


def literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def listed(names: Sequence[str], *, of: str = "") -> str:
    """Return a list of columns for a statement."""
    return ", ".join(f"{of}{quoted(name)}" for name in names)
