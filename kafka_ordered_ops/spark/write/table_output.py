"""The rows that one attempt staged for a table, and their publication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, TypeVar

from kafka_ordered_ops.core.errors import FewerRecordsError, OutputOwnedError, SinkError
from kafka_ordered_ops.core.strict_json import Count, JsonError, Stored, Text, Texts
from kafka_ordered_ops.core.window.dead_letters import (
    DeadLetters,
    StoredDeadLetters,
    with_dead_letters,
)
from kafka_ordered_ops.core.window.ownership import check_may_replace, check_newest, fewer_error
from kafka_ordered_ops.output.versions import check_output_version
from kafka_ordered_ops.output.writing.staged_output import Facts
from kafka_ordered_ops.spark.write.table_errors import (
    TURNS_MAX,
    beside_others,
    is_conflict,
    table_errors,
)
from kafka_ordered_ops.spark.write.table_evolution import StoredAddition
from kafka_ordered_ops.spark.write.table_formats import TableFormat, TableState, is_repeatable
from kafka_ordered_ops.spark.write.table_write import StoredWrite, TableWrite
from kafka_ordered_ops.spec.table import StoredTable, Table, TableLocation, TableMode

#: Version of the JSON in the ledger.
TABLE_VERSION: Final = 1

#: How to get rid of rows that nobody needs.
_REMEDY: Final = "delete its rows"

_Decision = TypeVar("_Decision")


@dataclass
class TableOutput:
    """The rows that one attempt staged for a table; a `Staged` for `OrderedWindows.commit`."""

    format: TableFormat = field(repr=False, compare=False)
    write: TableWrite
    #: ``records`` and ``elapsed_ms``.
    facts: Facts
    #: The table's state before staging: the table must remember its commits from there on. Its meaning depends on the format.
    basis: int | None = None
    #: Whether this output has been published to the table. The ledger records it, because the table forgets its commits
    #: when the retention of its log or snapshots ends.
    published: bool = False
    #: The records that the job has left out, if the window's bad records become dead letters.
    dead_letters: DeadLetters | None = None
    #: Those for a table beside this one, which is published first; None if there are none, or another place for them.
    bad: TableOutput | None = None

    @property
    def table(self) -> str:
        """The table's name."""
        return self.format.facts.table

    def is_staged(self) -> bool:
        """Return whether all of its rows are in the stage, and its bad records in theirs or published; raise `SinkError`."""
        with table_errors(f"{self.format.stage.name} cannot be read"):
            # An empty output needs no staged rows.
            is_whole = not self._records or self.format.stage.count(self.write) == self._records
        return is_whole and (self.bad is None or self.bad.is_staged() or self.bad.is_shown())

    def is_shown(self) -> bool:
        """Return whether the table shows these rows.

        Raises:
            SinkError: the table cannot be read, or has forgotten too much to know.
        """

        def is_shown(state: TableState) -> bool:
            if state.shown is None:
                self._check_memory(state)
            return self._is_mine(state)

        return self._decided(is_shown)

    def check_place(self, *, is_first: bool) -> None:
        """Check, before the job runs, that its rows can be shown at all.

        Args:
            is_first: whether the ledger knows no rows of the window that the table may show.

        Raises:
            OutputOwnedError: readers see rows that these must not replace, or rows of this window already.
            WindowSupersededError: the table shows a newer attempt's rows of this window.
            SinkError: the table cannot be read.
        """

        def check(state: TableState) -> None:
            self._check_owned(state)
            if state.shown is None:
                self._check_unexplained(state, is_first)

        self._decided(check)

    def check_ready(self) -> None:
        """Check, before the window is committed, that `publish` can show it; raise what `publish` raises."""
        if self.published:
            return
        if self.bad is not None:
            self.bad.check_ready()
        if self.is_nothing:
            return

        def check(state: TableState) -> None:
            if self._is_mine(state):
                return
            self._check_owned(state)
            self._check_not_fewer(state)
            if self._mode is TableMode.REPLACE:
                # Others may have committed since these rows were staged. Appended or merged rows do not exist before
                # their own commit.
                self._check_memory(state)
            with table_errors(f"{self.format.stage.name} cannot be read"):
                self._check_count()

        self._decided(check)

    def publish(self) -> None:
        """Make the rows visible in the table, in one commit, after those of its bad records. Repeating it changes nothing.

        Raises:
            OutputOwnedError: readers see rows that these must not replace: of another ledger, group or claim.
            FewerRecordsError: these rows are fewer than those of the window's earlier claim.
            WindowSupersededError: the table shows a newer attempt's rows of this window.
            SinkError: the rows are neither staged nor shown; or the table cannot be written.
        """
        if self.published:
            return
        if self.bad is not None:
            self.bad.publish()
        window_id = self.write.window_id
        with table_errors(f"window {window_id} cannot be published to {self.table}"):
            if not self.is_nothing and not self._show():
                raise SinkError(
                    f"window {window_id} cannot be published to {self.table}: {TURNS_MAX} attempts lost to other "
                    "commits, or were skipped by the table. Run the same window again",
                    window_id=window_id,
                )
            # Before the staged rows are removed: they are not needed any more.
            self.published = True
            self.format.stage.clear(self.write)
            # An earlier process may have shown the rows, and the stage may be a branch of the table.
            self.format.facts.refresh_for_user()

    def discard(self) -> None:
        """Remove the staged rows. Repeating it changes nothing. Raises `SinkError`."""
        with table_errors(f"the staged rows of window {self.write.window_id} cannot be removed"):
            self.format.stage.remove(self.write)
        if self.bad is not None:
            self.bad.discard()

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON for the ledger, enough to publish from another process."""
        return self.entry.to_json()

    @property
    def entry(self) -> KeptOutput:
        """The output as the ledger stores it."""
        return KeptOutput(
            self.format.target,
            self.format.facts.format,
            self.write,
            self.facts,
            self.basis,
            self.published,
            self.dead_letters,
            None if self.bad is None else self.bad.entry,
            self.format.facts.at,
        )

    # --- publishing ----------------------------------------------------------------------------------

    @property
    def _records(self) -> int:
        return self.facts["records"] or 0

    @property
    def _mode(self) -> TableMode | str:
        return self.format.target.mode

    @property
    def is_nothing(self) -> bool:
        """Whether publishing has nothing to do: no rows, and no mode in which an empty output removes rows."""
        return not self._records and self._mode is not TableMode.REPLACE

    def _is_mine(self, state: TableState) -> bool:
        if self._mode is TableMode.APPEND:
            # All attempts of a claim have the same records.
            return any(commit.write.claim_id == self.write.claim_id for commit in state.commits)
        # Rows that others have added since do not remove any of these.
        return any(commit.write == self.write for commit in state.commits)

    def _look(self, turn: int) -> TableState:
        with table_errors(f"{self.table} cannot be read for window {self.write.window_id}"):
            return beside_others(partial(self.format.look, self.write, turn=turn, since=self.basis))

    def _decided(self, decide: Callable[[TableState], _Decision], turn: int = 0) -> _Decision:
        """Return the decision based on the window's commits in the table, and on its rows there and in the stage.

        They are read one after the other. An error counts only if the window's commits are unchanged after it: otherwise
        another process has published the window in between, and removed its staged rows.
        """
        state = self._look(turn)
        for _ in range(TURNS_MAX):
            try:
                return decide(state)
            except (SinkError, FewerRecordsError):
                before, state = state, self._look(turn)
                if state.commits == before.commits:
                    raise
        return decide(state)

    def _to_show(self, state: TableState) -> TableState | None:
        """Return the state to change; None if the table shows these rows already; raise what `publish` raises."""
        if self._is_mine(state):
            return None
        self._check_owned(state)
        self._check_not_fewer(state)
        self._check_memory(state)
        self._check_count()
        return state

    def _show(self) -> bool:
        """Commit the rows; return whether the table shows them in the end."""
        for turn in range(TURNS_MAX + 1):
            if (state := self._decided(self._to_show, turn)) is None:
                return True
            if turn == TURNS_MAX:
                break
            try:
                self.format.show(self.write, self._records, state.basis)
            except Exception as error:
                if not is_conflict(error):
                    raise
                continue
            # A commit may be skipped silently, or go to another branch.
            state = self._look(turn + 1)
            if self._is_mine(state) or state.is_skipped:
                return True
        return False

    def _check_count(self) -> None:
        count = self.format.stage.count(self.write) if self._records else 0
        if count != self._records:
            raise SinkError(
                f"window {self.write.window_id} cannot be published: {self.format.stage.name} holds {count:,} of "
                f"{self._records:,} rows of attempt {self.write.attempt} of claim {self.write.claim_id}: the "
                "others were deleted. Run the window again to write them again",
                window_id=self.write.window_id,
            )

    def _check_memory(self, state: TableState) -> None:
        """Raise `SinkError` if the table has forgotten commits since these rows were staged, and that matters."""
        if state.is_whole or state.commits:
            return
        match self._mode:
            case TableMode.MERGE:
                if is_repeatable(self.format.facts, self.format.target):
                    return
                risk = "merging its rows again could bring back older values, or rows that were deleted"
                cure = "To merge them nevertheless, deliver the window by windows.replay"
            case TableMode.APPEND:
                if not self._may_show:
                    return
                risk = (
                    "it is not known whether its rows were appended, and they could be there twice"
                )
                cure = "Delete its rows from the table, if they are there, and deliver the window by windows.replay"
            case _:
                if not self._may_show:
                    return
                risk = "the rows with its window_id may be its own, or another ledger's, group's or replay's"
                cure = "If they may be replaced, delete them and run the window again, or deliver it by windows.replay"
        window_id = self.write.window_id
        raise SinkError(
            f"window {window_id} was staged for {self.table}, and the table's commits since then have expired: {risk}. Nothing "
            f"was changed. {cure}. If the window is not committed yet, abandon it first, and run it again",
            window_id=window_id,
        )

    def _check_owned(self, state: TableState) -> None:
        """Raise `OutputOwnedError` for rows that these must not replace, `WindowSupersededError` for newer ones."""
        for commit in state.commits:
            if self._mode is TableMode.APPEND:
                self._check_not_appended(f"by the earlier claim {commit.write.claim_id}")
                continue
            try:
                check_may_replace(
                    self.write.publisher, commit.write.owner, self.table, remedy=_REMEDY
                )
            except OutputOwnedError:
                # Nobody owns rows that were deleted since. Merging compares keys, not the window's rows.
                if self._mode is TableMode.MERGE or self._may_show:
                    raise
            check_newest(self.write.owner, commit.write.owner, self.table)

    def _check_unexplained(self, state: TableState, is_first: bool) -> None:
        """Raise `OutputOwnedError` for rows with the window's id whose owner the table does not know."""
        if self._mode is TableMode.APPEND and not state.knows_all:
            self._check_not_appended("or may have been, by an earlier claim")
        if self._mode is TableMode.REPLACE and is_first and self._may_show:
            raise OutputOwnedError(
                f"{self.table} holds rows of window {self.write.window_id}, no commit that it remembers says whose they are, "
                f"and group {self.write.group_id} has not delivered this window: it would replace rows of another program, "
                "ledger or group. Nothing was changed. Write to another table, give the window another id, or, if these "
                f"rows are not needed, {_REMEDY}",
                ledger_id="",
                group_id=None,
                window_id=self.write.window_id,
            )

    def _check_not_appended(self, by: str) -> None:
        """Raise `OutputOwnedError` while readers may see rows that an earlier claim of the window has appended."""
        if not self._may_show:
            return
        window_id = self.write.window_id
        raise OutputOwnedError(
            f"window {window_id} was appended to {self.table} before, {by}: mode 'append' cannot take these rows back, and a "
            "second time they would be there twice. Nothing was changed. To deliver the window again, use mode "
            "'replace' or 'merge'. To add what is open beside these rows, give the window another id. To append all of it "
            "again with this id, first delete the rows with its window_id by hand",
            ledger_id=self.write.ledger_id,
            group_id=self.write.group_id,
            window_id=window_id,
        )

    @property
    def _may_show(self) -> bool:
        with table_errors(f"{self.table} cannot be read"):
            return self.format.facts.may_show(self.write.window_id)

    def _check_not_fewer(self, state: TableState) -> None:
        """Raise `FewerRecordsError` if an earlier claim of the window shows more rows.

        Another attempt of the same claim has the same records, and its job may produce fewer rows from them.
        """
        current = state.shown
        is_same = current is not None and current.claim_id == self.write.claim_id
        may_replace = self._mode is TableMode.REPLACE and self.write.replaces
        if not may_replace or is_same or self.write.allow_fewer:
            return
        counts = [commit.records for commit in state.commits if commit.records is not None]
        # If all of them are known, their sum is an upper limit: rows may have been deleted since.
        if counts and len(counts) == len(state.commits) and sum(counts) <= self._records:
            return
        with table_errors(f"{self.table} cannot be read"):
            rows = self.format.facts.rows_shown(self.write.window_id)
        if rows > self._records:
            raise fewer_error(
                self.write.window_id,
                self.write.group_id,
                f"{self.table} shows {rows:,} rows of it, and the new output has {self._records:,}",
            )


@dataclass(frozen=True)
class PublishedTable:
    """Rows that a table shows according to the ledger; a `Staged` with nothing left to do."""

    entry: KeptOutput

    def to_json(self) -> dict[str, Any]:
        """Return JSON for the ledger."""
        return self.entry.to_json()

    def publish(self) -> None:
        """Do nothing."""

    def discard(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class KeptOutput:
    """A `TableOutput` as the ledger stores it."""

    target: Table
    format: str
    write: TableWrite
    facts: Facts
    basis: int | None
    published: bool
    dead_letters: DeadLetters | None = None
    bad: KeptOutput | None = None
    location: TableLocation | None = None

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON."""
        result = {
            "version": TABLE_VERSION,
            **self.target.to_json(),
            "format": self.format,
            "basis": self.basis,
            "write": self.write.to_json(),
            "replaces": list(self.write.replaces),
            "allow_fewer": self.write.allow_fewer,
            "adds": [each.to_json() for each in self.write.adds],
            "facts": dict(self.facts),
            "published": self.published,
            **({} if self.bad is None else {"bad": self.bad.to_json()}),
            **({} if self.location is None else {"location": self.location.to_json()}),
        }
        return with_dead_letters(result, self.dead_letters)

    @classmethod
    def from_json(cls, result: Mapping[str, Any]) -> KeptOutput | None:
        """Parse the JSON of `to_json`; return None for the result of another sink.

        Raises:
            OutputVersionError: a newer version of this package wrote it.
        """
        what = f"the ledger's record of rows for table {result.get('table')}"
        check_output_version(result, TABLE_VERSION, ("table", "write", "basis"), what)
        try:
            stored = _Stored.parse(dict(result), "result")
            write = replace(
                stored.write.write,
                replaces=stored.replaces,
                allow_fewer=stored.allow_fewer,
                adds=tuple(each.value for each in stored.adds),
            )
            letters = None if stored.dead_letters is None else stored.dead_letters.value
            bad = None if stored.bad is None else cls.from_json(stored.bad)
            if bad is None and stored.bad is not None:
                return None
            return cls(
                stored.target,
                stored.format,
                write,
                stored.facts.fields(),
                stored.basis,
                stored.published,
                letters,
                bad,
                stored.location,
            )
        except JsonError:
            return None


class _StoredFacts(Stored, frozen=True):
    records: Count
    elapsed_ms: Count


class _Stored(StoredTable, frozen=True):
    what = "the output"

    version: Literal[1]
    format: Text
    basis: int | None
    write: StoredWrite
    replaces: Texts
    allow_fewer: bool
    adds: tuple[StoredAddition, ...]
    facts: _StoredFacts
    published: bool
    dead_letters: StoredDeadLetters | None = None
    bad: dict[str, Any] | None = None
    location: TableLocation | None = None
