"""The rows that one attempt staged for a table, and their publication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kafka_ordered_ops.core.errors import SinkError, WindowSupersededError
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.output.staged_output import Facts
from kafka_ordered_ops.spark.table_target import TableMode, TableTarget
from kafka_ordered_ops.spark.write.table_errors import (
    TURNS_MAX,
    beside_others,
    is_conflict,
    table_errors,
)
from kafka_ordered_ops.spark.write.table_formats import TableFormat, TableState
from kafka_ordered_ops.spark.write.table_write import TableWrite

#: Version of the JSON that the ledger keeps.
TABLE_VERSION: Final = 2


@dataclass
class TableOutput:
    """The rows that one attempt staged for a table; a `Staged` for `OrderedWindows.commit`."""

    format: TableFormat = field(repr=False, compare=False)
    write: TableWrite
    #: ``records`` and ``elapsed_ms``.
    facts: Facts
    #: What the table showed before anything was staged; its meaning is the format's.
    basis: int | None = None
    #: Whether this output has shown in the table. The ledger keeps it: the table's own memory of its commits
    #: ends with the retention of its log or snapshots.
    published: bool = False

    @property
    def table(self) -> str:
        """The table's name."""
        return self.format.facts.table

    def is_staged(self) -> bool:
        """Return whether all of its rows are in the stage; raise `SinkError`."""
        with table_errors(f"{self.format.stage.name} cannot be read"):
            # Of nothing, all is there.
            return not self._records or self.format.stage.count(self.write) == self._records

    def is_shown(self) -> bool:
        """Return whether the table shows these rows.

        Raises:
            SinkError: the table cannot be asked, or remembers too little to know.
        """
        state = self._look(0)
        if state.shown is None:
            self._check_memory(state)
        return self._is_mine(state.shown)

    def check_ready(self) -> None:
        """Look, before the window is committed, whether `publish` could show it; raises what that raises."""
        if self.published or self.is_nothing:
            return
        state = self._look(0)
        if self._is_mine(state.shown):
            return
        self._check_newer(state.shown, 0)
        with table_errors(f"{self.format.stage.name} cannot be read"):
            self._check_count(self.format.stage.count(self.write) if self._records else 0)

    def publish(self) -> None:
        """Make the rows visible in the table, in one commit. Repeating it changes nothing.

        Raises:
            SinkError: the rows are neither staged nor shown; the window in the table is another group's; or the
                table cannot be written.
            WindowSupersededError: the table shows a newer attempt's rows of this window.
        """
        if self.published:
            return
        window_id = self.write.window_id
        with table_errors(f"window {window_id} cannot be published to {self.table}"):
            if not self.is_nothing and not self._show():
                raise SinkError(
                    f"window {window_id} cannot be published to {self.table}: {TURNS_MAX} attempts lost to other "
                    "commits, or were skipped by the table. Run the same window again",
                    window_id=window_id,
                )
            # Before the staged rows go: from here on, they are not needed.
            self.published = True
            self.format.stage.clear(self.write)

    def discard(self) -> None:
        """Remove the staged rows. Repeating it changes nothing. Raises `SinkError`."""
        with table_errors(f"the staged rows of window {self.write.window_id} cannot be removed"):
            self.format.stage.remove(self.write)

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON: what the ledger keeps, enough to publish from another process."""
        return self.kept.to_json()

    @property
    def kept(self) -> KeptOutput:
        """What the ledger keeps."""
        target, kind = self.format.target, self.format.facts.format
        return KeptOutput(target, kind, self.write, self.facts, self.basis, self.published)

    # --- publishing ----------------------------------------------------------------------------------

    @property
    def _records(self) -> int:
        return self.facts["records"] or 0

    @property
    def _mode(self) -> TableMode | str:
        return self.format.target.mode

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to add; only a replacement by nothing takes rows away."""
        return not self._records and self._mode is not TableMode.REPLACE

    def _is_mine(self, shown: TableWrite | None) -> bool:
        if shown is None:
            return False
        if self._mode is TableMode.APPEND:
            # Every attempt of a claim has the same records.
            return shown.claim_id == self.write.claim_id
        return shown == self.write

    def _look(self, turn: int) -> TableState:
        with table_errors(f"{self.table} cannot be asked for window {self.write.window_id}"):
            return beside_others(partial(self.format.look, self.write, turn=turn, since=self.basis))

    def _show(self) -> bool:
        """Return whether the table shows these rows in the end."""
        for turn in range(TURNS_MAX + 1):
            # Before the look: rows that are gone by then may have been published by another process.
            count = self.format.stage.count(self.write) if self._records else 0
            state = self._look(turn)
            if self._is_mine(state.shown):
                return True
            self._check_newer(state.shown, turn)
            self._check_memory(state)
            self._check_count(count)
            if turn == TURNS_MAX:
                break
            try:
                if self.format.show(self.write, self._records, state.basis):
                    return True
            except Exception as error:
                if not is_conflict(error):
                    raise
        return False

    def _check_count(self, count: int) -> None:
        if count != self._records:
            raise SinkError(
                f"window {self.write.window_id} cannot be published: {self.format.stage.name} holds {count:,} of "
                f"{self._records:,} rows of attempt {self.write.attempt} of claim {self.write.claim_id}: the "
                "others were deleted. Run the window again to write them again",
                window_id=self.write.window_id,
            )

    def _check_memory(self, state: TableState) -> None:
        """Raise where the window may have been appended, and the table has forgotten it."""
        if state.is_whole or self._mode is not TableMode.APPEND:
            return
        raise SinkError(
            f"window {self.write.window_id} was committed, but it is not known whether it was appended to {self.table}: "
            "the table's snapshots since then have expired. Appending could add its rows twice. Look for its rows "
            "in the table. If they are there, nothing is left to do. If not, deliver the window by windows.replay",
            window_id=self.write.window_id,
        )

    def _check_newer(self, shown: TableWrite | None, turn: int) -> None:
        if shown is None:
            return
        if shown.group_id != self.write.group_id:
            raise SinkError(
                f"{self.table} shows window {shown.window_id} of group {shown.group_id}, but this window is of "
                f"group {self.write.group_id}: each would replace the other. Give each group its own table",
                window_id=self.write.window_id,
            )
        if self._mode is TableMode.APPEND:
            raise SinkError(
                f"window {shown.window_id} was appended to {self.table} before, by claim {shown.claim_id}, and this is "
                f"claim {self.write.claim_id}: mode 'append' cannot take rows back. Delete them and use another window "
                "id, or use mode 'replace'",
                window_id=self.write.window_id,
            )
        # The ledger has just said that this claim is the window's: another one in the table is older, unless it
        # has come while this publish was at work.
        newer = (
            turn > 0
            if shown.claim_id != self.write.claim_id
            else shown.attempt > self.write.attempt
        )
        if newer:
            raise WindowSupersededError(
                f"attempt {self.write.attempt} of window {shown.window_id} comes too late: {self.table} "
                f"shows attempt {shown.attempt} of claim {shown.claim_id}. There is nothing to do",
                window_id=self.write.window_id,
            )


@dataclass(frozen=True)
class PublishedTable:
    """Rows that show in a table, as the ledger records; a `Staged` that has nothing left to do."""

    kept: KeptOutput

    def to_json(self) -> dict[str, Any]:
        """Return what the ledger keeps."""
        return self.kept.to_json()

    def publish(self) -> None:
        """Do nothing."""

    def discard(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class KeptOutput:
    """What the ledger keeps of a `TableOutput`."""

    target: TableTarget
    format: str
    write: TableWrite
    facts: Facts
    basis: int | None
    published: bool

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON."""
        return {
            "version": TABLE_VERSION,
            **self.target.to_json(),
            "format": self.format,
            "basis": self.basis,
            "write": self.write.to_json(),
            "facts": dict(self.facts),
            "published": self.published,
        }

    @classmethod
    def from_json(cls, result: Mapping[str, Any]) -> KeptOutput | None:
        """Return the inverse of `to_json`; None for the result of another sink or version."""
        fields = Fields(dict(result), "result")
        try:
            if fields.integer("version") != TABLE_VERSION:
                return None
            target = TableTarget.from_json(fields)
            basis = fields.integer_or_none("basis")
            kind = fields.text("format")
            write = TableWrite.from_json(fields.object("write"))
            facts = fields.object("facts")
            kept = {name: facts.integer(name, least=0) for name in ("records", "elapsed_ms")}
            facts.done()
            published = fields.boolean("published")
            fields.done()
        except JsonError:
            return None
        return cls(target, kind, write, kept, basis, published)
