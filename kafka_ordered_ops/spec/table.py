"""A table as the place of windows: what every caller names, checked without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from kafka_ordered_ops.core.arguments import as_names, check_flag, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.names import check_whole
from kafka_ordered_ops.core.strict_json import Fields, JsonError


class TableMode(StrEnum):
    """How a window's rows get into a table that exists."""

    #: Added, exactly once.
    APPEND = "append"
    #: In place of all rows with the same ``window_id``.
    REPLACE = "replace"
    #: In place of the rows with the same keys, the newest record of each key.
    MERGE = "merge"


@dataclass(frozen=True)
class Table:
    """An existing Delta or Iceberg table, and how a window's rows get into it.

    Args:
        name: in SQL syntax: ``lake.orders``, or ``delta.`/folder```.
        mode: ``append`` adds a window's rows, exactly once. ``replace`` puts them in the place of all rows with the
            same ``window_id``, a column of type string that the table must have. ``merge`` updates or inserts by
            `keys`; the newest record of a key by (timestamp, topic, partition, offset) wins.
        keys: the columns that identify a row, for ``merge``.
        delete_tombstones: with ``merge``, a row whose ``value`` is null deletes the row with its key.

    Raises:
        ConfigError: no name, an unknown mode, or keys that do not go with the mode.
    """

    name: str
    mode: TableMode | str = TableMode.APPEND
    keys: str | Sequence[str] = ()
    delete_tombstones: bool = False

    def __post_init__(self) -> None:
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
        is_merge = self.mode is TableMode.MERGE
        if is_merge and not keys:
            raise ConfigError(
                "mode 'merge' needs keys: the columns that identify a row, for example keys=['order_id']"
            )
        if not is_merge and (keys or self.delete_tombstones):
            given = "keys" if keys else "delete_tombstones"
            raise ConfigError(
                f"{given} is for mode 'merge', and the mode is '{self.mode}': omit one of them"
            )

    def names(self, full_name: str) -> bool:
        """Return whether a table's full name, which only a session knows, may be the one that is named here."""
        name = self.name.strip()
        return full_name == name or full_name.endswith(f".{name}")

    def may_be(self, other: Table) -> bool:
        """Return whether another table is this one, with its full name."""
        return self.names(other.name) and replace(other, name=self.name) == self

    def to_json(self) -> dict[str, Any]:
        """Return its fields as JSON."""
        return {
            "table": self.name,
            "mode": str(self.mode),
            "keys": list(self.keys),
            "delete_tombstones": self.delete_tombstones,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Table:
        """Take the fields of `to_json`; raise `JsonError` if they are invalid."""
        name, mode = fields.text("table"), fields.text("mode")
        keys, deletes = fields.texts("keys"), fields.boolean("delete_tombstones")
        try:
            return cls(name, mode, keys, deletes)
        except ConfigError as error:
            raise JsonError(str(error)) from error


def table_of_parameters(
    table: object,
    mode: TableMode | str | None,
    keys: str | Sequence[str],
    delete_tombstones: bool,
    *,
    output: object = None,
    prefix: str = "",
) -> Table | None:
    """Return the table that a host's parameters name; None without one.

    Args:
        table: the table's name, or None.
        mode: how rows get into it; None: append.
        keys: the columns of mode merge.
        delete_tombstones: whether a record without a value deletes its row.
        output: the folder that was given instead, or None.
        prefix: of the host's names for mode and keys.

    Raises:
        ConfigError: both a table and an output, arguments of a table without one, or an invalid value.
    """
    if table is None:
        given = {
            f"{prefix}mode": mode is not None,
            f"{prefix}keys": keys,
            "delete_tombstones": delete_tombstones,
        }
        if named := [name for name, value in given.items() if value]:
            raise ConfigError(f"{' and '.join(named)} is for a table: also give table=")
        return None
    if output is not None:
        raise ConfigError(
            "output and table are both given: a window goes to one place, give one of them"
        )
    return Table(
        table,  # type: ignore[arg-type]
        TableMode.APPEND if mode is None else mode,
        keys,
        delete_tombstones,
    )


def table_of(result: Mapping[str, Any] | None) -> str | None:
    """Return the table that a window went to, from what the ledger keeps of its output; None for another output."""
    table = result.get("table") if isinstance(result, Mapping) and "write" in result else None
    return table if isinstance(table, str) else None


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
    names = ", ".join(repr(one.value) for one in TableMode)
    raise ConfigError(f"the table's mode is {shown(value)}: give one of {names}")
