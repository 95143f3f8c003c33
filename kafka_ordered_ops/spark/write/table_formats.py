"""The common part of the formats: a window gets into a table in one commit that records whose rows it shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.output.versions import check_output_version
from kafka_ordered_ops.spark.write.table_errors import GONE
from kafka_ordered_ops.spark.write.table_evolution import Addition
from kafka_ordered_ops.spark.write.table_facts import TableFacts, listed, literal, quoted
from kafka_ordered_ops.spark.write.table_stages import (
    DELETED_COLUMN,
    Stage,
    StagingTable,
)
from kafka_ordered_ops.spark.write.table_write import (
    COMMIT_VERSION,
    METADATA_BYTES_MAX,
    TableCommit,
    TableWrite,
)
from kafka_ordered_ops.spec.table import Table, TableMode

#: The columns that determine the newest record of a key, in this order.
ORDER_COLUMNS: Final = ("timestamp", "topic", "partition", "offset")

_MARK: Final = "_koo_mark"


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of one window in a table."""

    #: The known commits whose rows may be the window's, newest first; see `commits_of`.
    commits: tuple[TableCommit, ...] = ()
    #: The state that the next commit must be based on; its meaning depends on the format.
    basis: int | None = None
    #: Whether the table remembers all commits since `since`; otherwise, the window may have been shown.
    is_whole: bool = True
    #: Whether the table remembers all of its commits that matter for the window.
    knows_all: bool = True
    #: Whether a commit that did not fail and is unknown was skipped: the table forgets its commits before the
    #: transaction ids by which it skips them.
    is_skipped: bool = False

    @property
    def shown(self) -> TableWrite | None:
        """The write whose rows are visible; None if no commit with visible rows is known."""
        return self.commits[0].write if self.commits else None


class TableFormat(Protocol):
    """The operations of a table format that publishing needs."""

    @property
    def facts(self) -> TableFacts:
        """The table."""

    @property
    def target(self) -> Table:
        """The table and the mode, as requested."""

    @property
    def stage(self) -> Stage:
        """The stage for rows that are not visible yet."""

    def check(self) -> None:
        """Raise `ConfigError` for a table or a session that does not support the request."""

    def look(self, write: TableWrite, *, turn: int = 0, since: int | None = None) -> TableState:
        """Return whose rows of a window are visible: with mode replace, of any ledger and group that has used its id.

        Args:
            write: one write of the window.
            turn: 0 if nothing was tried before.
            since: the basis at the time of staging: the table must remember its commits from there on.
        """

    def add_early(self, added: Sequence[Addition]) -> tuple[Addition, ...]:
        """Add columns, unless the format adds them in the commit of the rows; return those that `show` adds."""

    def basis(self) -> int | None:
        """Return the state that a later `look` needs to reach back to."""

    def show(self, write: TableWrite, records: int, basis: int | None) -> None:
        """Make a write's staged rows visible in one commit, if the window has not changed since `look`.

        A late commit fails, or is skipped silently: call `look` again.
        """


def commits_of(
    write: TableWrite, target: Table, commits: Iterable[TableCommit | None]
) -> tuple[TableCommit, ...]:
    """Return those of a table's commits, newest first, whose rows may be a window's.

    Mode replace finds rows by the window's id alone. So the commits of all ledgers and groups with this id count, back to
    the newest replacement, which has left no other rows. In the other modes, the newest commit of the window is enough.
    """
    relevant: list[TableCommit] = []
    for commit in commits:
        if commit is None or not is_relevant(write, target, commit.write):
            continue
        relevant.append(commit)
        if not is_replacing(target) or commit.mode is TableMode.REPLACE:
            break
    return tuple(relevant)


def is_relevant(write: TableWrite, target: Table, other: TableWrite) -> bool:
    """Return whether the rows of another write may be those of a window; see `commits_of`."""
    if is_replacing(target):
        return other.window_id == write.window_id
    return other.is_same_window(write)


def told_by(text: str, table: str, key: str | None = None) -> Any:
    """Return what a commit of a table says of itself, under a key if there is one.

    Raises:
        JsonError: the text is another program's.
        OutputVersionError: a newer version of this package wrote the commit.
    """
    value = strict_json.loads(text, limit_bytes=METADATA_BYTES_MAX)
    if key is not None:
        value = value.get(key) if isinstance(value, dict) else None
    check_output_version(value, COMMIT_VERSION, ("write",), f"a commit of table {table}")
    return value


def merge_statement(
    facts: TableFacts, target: Table, rows: str, names: Sequence[str] | None = None
) -> str:
    """Return the statement that upserts rows by key, but keeps newer rows of the table.

    Args:
        facts: the table.
        target: the mode's options.
        rows: the staged rows, in SQL.
        names: the columns of these rows, if the table does not have all of them yet.
    """
    names = names or list(facts.fields)
    keys = [facts.columns[facts.folded(key)] for key in target.keys]
    same = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in keys)
    newer = _newer(facts)
    changed = [name for name in names if name not in keys]
    # Unqualified: Delta does not find a column that it adds in `t`.
    update = ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in changed or keys)
    return (
        f"MERGE INTO {facts.table} t USING {rows} s ON {same} "
        f"WHEN MATCHED AND s.{DELETED_COLUMN}{newer} THEN DELETE "
        f"WHEN MATCHED AND NOT s.{DELETED_COLUMN}{newer} THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED AND NOT s.{DELETED_COLUMN} "
        f"THEN INSERT ({listed(names)}) VALUES ({listed(names, of='s.')})"
    )


def order_columns(facts: TableFacts) -> list[str]:
    """Return the table's columns that distinguish older from newer records; none without a timestamp."""
    if ORDER_COLUMNS[0] not in facts.columns:
        return []
    return [facts.columns[name] for name in ORDER_COLUMNS if name in facts.columns]


def is_repeatable(facts: TableFacts, target: Table) -> bool:
    """Return whether merging the same rows again, at any later time, changes nothing."""
    return not target.delete_tombstones and len(order_columns(facts)) == len(ORDER_COLUMNS)


def _newer(facts: TableFacts) -> str:
    order = order_columns(facts)
    if not order:
        return ""
    staged, existing = (
        "struct(" + ", ".join(f"{side}.{quoted(name)}" for name in order) + ")" for side in "st"
    )
    return f" AND {staged} >= {existing}"


def replace_statement(
    facts: TableFacts, stage: StagingTable, write: TableWrite, records: int
) -> str:
    """Return the statement that replaces a window's rows, whatever the table is partitioned by.

    One marker row of the source matches all rows of the window, which are deleted; all other rows match nothing, and are
    added. The marker row exists only as long as all staged rows exist.
    """
    names, rows = list(facts.fields), stage.statement(write)
    window = quoted(facts.columns["window_id"])
    nulls = ", ".join(f"NULL {quoted(n)}" for n in names)
    mark = (
        f"CASE WHEN count(*) = {records} THEN {literal(write.window_id)} "
        f"ELSE CAST(raise_error({literal(GONE)}) AS STRING) END"
    )
    source = (
        f"(SELECT CAST(NULL AS STRING) {_MARK}, {listed(names)} FROM {rows} "
        f"UNION ALL SELECT {mark} {_MARK}, {nulls} FROM {rows})"
    )
    return (
        f"MERGE INTO {facts.table} t USING {source} s "
        f"ON t.{window} = s.{_MARK} AND t.{window} = {literal(write.window_id)} "
        "WHEN MATCHED THEN DELETE "
        f"WHEN NOT MATCHED AND s.{_MARK} IS NULL "
        f"THEN INSERT ({listed(names)}) VALUES ({listed(names, of='s.')})"
    )


def is_replacing(target: Table) -> bool:
    """Return whether a window's rows are found by its id alone, regardless of the group."""
    return target.mode is TableMode.REPLACE
