"""What the formats have in common: how a window gets into a table in one commit that says whose rows it shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.strict_json import Fields
from kafka_ordered_ops.spark.write.table_errors import GONE
from kafka_ordered_ops.spark.write.table_facts import TableFacts, listed, literal, quoted
from kafka_ordered_ops.spark.write.table_stages import (
    DELETED_COLUMN,
    Stage,
    StagingTable,
)
from kafka_ordered_ops.spark.write.table_write import METADATA_BYTES_MAX, TableCommit, TableWrite
from kafka_ordered_ops.spec.table import Table, TableMode

#: By which the newest record of a key is found, in this order.
ORDER_COLUMNS: Final = ("timestamp", "topic", "partition", "offset")

_MARK: Final = "_koo_mark"


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of one window in a table."""

    #: The known commits whose rows the window's may be, from the newest back; see `commits_of`.
    commits: tuple[TableCommit, ...] = ()
    #: What a commit on top of this must be based on; its meaning is the format's.
    basis: int | None = None
    #: Whether the table remembers all commits since `since`; False: the window may have been shown.
    is_whole: bool = True
    #: Whether it remembers all of its commits, as far as they matter for the window.
    knows_all: bool = True
    #: Whether a commit that is not known was skipped, if it did not fail: the table forgets its commits, and not which
    #: of them it skips.
    is_skipped: bool = False

    @property
    def shown(self) -> TableWrite | None:
        """Whose rows show; None where no commit is known that has shown any."""
        return self.commits[0].write if self.commits else None


class TableFormat(Protocol):
    """The operations of a table format that publishing needs."""

    @property
    def facts(self) -> TableFacts:
        """The table."""

    @property
    def target(self) -> Table:
        """What is asked for."""

    @property
    def stage(self) -> Stage:
        """Where rows wait."""

    def check(self) -> None:
        """Raise `ConfigError` for a table or a session that cannot do what is asked."""

    def look(self, write: TableWrite, *, turn: int = 0, since: int | None = None) -> TableState:
        """Return whose rows of a window show: with mode replace, of any ledger and group that has used its id.

        Args:
            write: one write of the window.
            turn: 0 if nothing was tried before.
            since: the basis at the time of staging, from which on the table's memory is needed.
        """

    def basis(self) -> int | None:
        """Return what a later `look` is to reach back to."""

    def show(self, write: TableWrite, records: int, basis: int | None) -> None:
        """Make a write's staged rows visible in one commit, if the window is still as it was seen.

        A commit that comes too late fails, or is skipped without a word: look again.
        """


def commits_of(
    write: TableWrite, target: Table, told: Iterable[TableCommit | None]
) -> tuple[TableCommit, ...]:
    """Return, of a table's commits from the newest back, those whose rows a window's may be.

    Rows are replaced by the window's id alone. So what all ledgers and groups have shown under it counts then, back to the
    newest replacement, which has left no other rows. Otherwise the newest commit of the window itself says enough.
    """
    found: list[TableCommit] = []
    for one in told:
        if one is None or not is_relevant(write, target, one.write):
            continue
        found.append(one)
        if not is_replacing(target) or one.mode is TableMode.REPLACE:
            break
    return tuple(found)


def is_relevant(write: TableWrite, target: Table, shown: TableWrite) -> bool:
    """Return whether shown rows may be those of a window; see `commits_of`."""
    if is_replacing(target):
        return shown.window_id == write.window_id
    return shown.is_same_window(write)


def fields_of(text: str) -> Fields:
    """Return what a commit says of itself; raise `JsonError`."""
    return Fields(strict_json.loads(text, limit_bytes=METADATA_BYTES_MAX), "commit")


def merge_statement(facts: TableFacts, target: Table, rows: str) -> str:
    """Return the statement that upserts rows by key, and leaves newer rows in the table as they are."""
    names = list(facts.fields)
    keys = [facts.columns[facts.folded(key)] for key in target.keys]
    same = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in keys)
    newer = _newer(facts)
    changed = [name for name in names if name not in keys]
    update = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in changed or keys)
    return (
        f"MERGE INTO {facts.table} t USING {rows} s ON {same} "
        f"WHEN MATCHED AND s.{DELETED_COLUMN}{newer} THEN DELETE "
        f"WHEN MATCHED AND NOT s.{DELETED_COLUMN}{newer} THEN UPDATE SET {update} "
        f"WHEN NOT MATCHED AND NOT s.{DELETED_COLUMN} "
        f"THEN INSERT ({listed(names)}) VALUES ({listed(names, of='s.')})"
    )


def order_columns(facts: TableFacts) -> list[str]:
    """Return the table's columns by which an older record is told from a newer one; none without a timestamp."""
    if ORDER_COLUMNS[0] not in facts.columns:
        return []
    return [facts.columns[name] for name in ORDER_COLUMNS if name in facts.columns]


def is_repeatable(facts: TableFacts, target: Table) -> bool:
    """Return whether merging the same rows again, however much later, changes nothing."""
    return not target.delete_tombstones and len(order_columns(facts)) == len(ORDER_COLUMNS)


def _newer(facts: TableFacts) -> str:
    order = order_columns(facts)
    if not order:
        return ""
    mine, theirs = (
        "struct(" + ", ".join(f"{side}.{quoted(name)}" for name in order) + ")" for side in "st"
    )
    return f" AND {mine} >= {theirs}"


def replace_statement(
    facts: TableFacts, stage: StagingTable, write: TableWrite, records: int
) -> str:
    """Return the statement that puts rows in the place of a window's, whatever the table is partitioned by.

    One marking row of the source matches all rows of the window, which go; no other row matches anything, and is
    added. The marking row exists only while all staged rows do.
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
    """Return whether a window's rows are found by its id alone, whichever group it is of."""
    return target.mode is TableMode.REPLACE
