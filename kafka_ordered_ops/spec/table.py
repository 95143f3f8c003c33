"""A table as the output of windows: arguments of callers, checked without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from kafka_ordered_ops.core.arguments import as_names, check_choice, check_flag, shown
from kafka_ordered_ops.core.cluster.names import check_whole
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.masked import masked, shown_fields
from kafka_ordered_ops.core.strict_json import JsonError, Stored, Text, Texts
from kafka_ordered_ops.core.templates import if_literal, is_literal
from kafka_ordered_ops.spec.spark_conf import conf_of


class TableMode(StrEnum):
    """How a window's rows are written to an existing table."""

    #: Append the rows, exactly once.
    APPEND = "append"
    #: Replace all rows with the same ``window_id``.
    REPLACE = "replace"
    #: Replace the rows with the same keys by the newest record of each key.
    MERGE = "merge"


class SchemaEvolution(StrEnum):
    """What happens to columns of the rows that the table does not have."""

    #: They are refused, before the window is planned where its records are copied.
    NONE = "none"
    #: They are added to the table, and may be null.
    ADD = "add"


@dataclass(frozen=True, repr=False)
class Table:
    """An existing Delta or Iceberg table, and how a window's rows are written to it.

    Args:
        name: in SQL syntax: ``lake.orders``, or ``delta.`/folder```.
        mode: ``append`` adds a window's rows, exactly once. ``replace`` replaces all rows with the same ``window_id``,
            a column of type string that the table must have. ``merge`` updates or inserts by `keys`; the newest record
            of a key by (timestamp, topic, partition, offset) wins.
        keys: the columns that identify a row, for ``merge``.
        delete_tombstones: with ``merge``, a row whose ``value`` is null, or that `Debezium` marks as ``__deleted``, deletes the
            row with its key.
        schema_evolution: ``add`` adds columns and nested fields that the table does not have, and leaves those null that rows do
            not have. Types of columns never change. ``none`` refuses both.
        conf: settings of the Spark session that is started to write the table if the caller does not pass one, such as
            its catalog.

    Raises:
        ConfigError: no name, an unknown mode, keys that do not fit the mode, or an invalid setting.
    """

    name: str
    mode: TableMode | str = TableMode.APPEND
    keys: str | Sequence[str] = ()
    delete_tombstones: bool = False
    schema_evolution: SchemaEvolution | str = SchemaEvolution.NONE
    # Not part of the table's identity: another process may need other settings.
    conf: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "conf", if_literal(self.conf, conf_of))
        if is_literal((self.name, self.mode, self.keys)):
            self._check()

    def _check(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not name.strip() or "\0" in name:
            raise ConfigError(
                f"table is {shown(self.name)}: give the name of an existing Delta or Iceberg table"
            )
        check_whole(name, what="table")
        object.__setattr__(self, "mode", _mode_of(self.mode))
        keys = as_names(self.keys, what="keys") if self.keys else ()
        for key in keys:
            check_whole(key, what="keys")
        if len(set(keys)) != len(keys):
            raise ConfigError(f"keys names a column twice: {', '.join(keys)}")
        object.__setattr__(self, "keys", keys)
        check_flag(self.delete_tombstones, what="delete_tombstones")
        evolution = check_choice(self.schema_evolution, SchemaEvolution, what="schema_evolution")
        object.__setattr__(self, "schema_evolution", evolution)
        is_merge = self.mode is TableMode.MERGE
        if is_merge and not keys:
            raise ConfigError(
                "mode 'merge' needs keys: the columns that identify a row, for example keys=['order_id']"
            )
        if not is_merge and (keys or self.delete_tombstones):
            argument = "keys" if keys else "delete_tombstones"
            raise ConfigError(
                f"{argument} is for mode 'merge', and the mode is '{self.mode}': omit one of them"
            )

    def __repr__(self) -> str:
        return shown_fields(
            self,
            name=self.name,
            mode=str(self.mode),
            keys=self.keys,
            delete_tombstones=self.delete_tombstones or None,
            schema_evolution=str(self.schema_evolution) if self.adds_columns else None,
            conf=masked(self.conf),
        )

    @property
    def adds_columns(self) -> bool:
        """Whether columns are added that the table does not have."""
        return self.schema_evolution == SchemaEvolution.ADD

    def names(self, full_name: str) -> bool:
        """Return whether a table's full name, which only a session knows, may be the full form of this name."""
        name = self.name.strip()
        return full_name == name or full_name.endswith(f".{name}")

    def may_be(self, other: Table) -> bool:
        """Return whether another table is this one, with its full name."""
        return self.names(other.name) and replace(other, name=self.name) == self

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        return {
            "table": self.name,
            "mode": str(self.mode),
            "keys": list(self.keys),
            "delete_tombstones": self.delete_tombstones,
            "schema_evolution": str(self.schema_evolution),
        }


class StoredTable(Stored, frozen=True):
    """The JSON of a `Table`, which other JSON contains among its own fields."""

    table: Text
    mode: Text
    keys: Texts
    delete_tombstones: bool
    schema_evolution: Text

    @property
    def target(self) -> Table:
        """The table; raises `JsonError` for an invalid one."""
        try:
            return Table(
                self.table, self.mode, self.keys, self.delete_tombstones, self.schema_evolution
            )
        except ConfigError as error:
            raise JsonError(str(error)) from error


class TableLocation(Stored, frozen=True):
    """Where a table's files are, and how its catalogue names it."""

    #: A path or the address of a folder, as the catalogue has it.
    files: Text
    #: The address of the catalogue, and the table's name there; `None` if the session does not have the address.
    catalog: Text | None = None
    name: Text | None = None


def table_of(result: Mapping[str, Any] | None) -> str | None:
    """Return the table of a window's output, from the result in the ledger; None for another output."""
    table = result.get("table") if isinstance(result, Mapping) and "write" in result else None
    return table if isinstance(table, str) else None


def location_of(result: Mapping[str, Any] | None) -> TableLocation | None:
    """Return the location of a table, from the result in the ledger; None for another output, or an unknown location."""
    stored = result.get("location") if isinstance(result, Mapping) and table_of(result) else None
    if stored is None:
        return None
    try:
        return TableLocation.parse(stored, "location")
    except JsonError:
        return None


def _mode_of(value: object) -> TableMode:
    if isinstance(value, str):
        try:
            return TableMode(value)
        except ValueError:
            near = get_close_matches(value, list(TableMode), n=1)
            if near:
                raise ConfigError(
                    f"the table's mode is {value!r}: did you mean {str(near[0])!r}?"
                ) from None
    names = ", ".join(repr(mode.value) for mode in TableMode)
    raise ConfigError(f"the table's mode is {shown(value)}: give one of {names}")
