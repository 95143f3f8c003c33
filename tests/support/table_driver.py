"""A driver without Spark, for applications whose windows go to a table that is one JSON file.

In the place of spark-submit, by `table_driver`; what it does to the table is what `TableOutput` does. DIES in its
environment names a step at which it is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kafka_ordered_ops import Table
from kafka_ordered_ops.spark import SparkSubmit
from kafka_ordered_ops.spark.applications import orders
from kafka_ordered_ops.spark.applications.protocol import Order, Submission
from kafka_ordered_ops.spark.applications.result import JobError, JobResult
from kafka_ordered_ops.spark.write.table_formats import TableState, commits_of
from kafka_ordered_ops.spark.write.table_output import KeptOutput, TableOutput
from kafka_ordered_ops.spark.write.table_write import StoredWrite, TableCommit, TableWrite
from kafka_ordered_ops.spec.table import TableMode
from tests.support.submit_support import fake


@dataclass(frozen=True)
class FileTable:
    """A table and its stage: what `TableFormat` and `Stage` ask for."""

    path: Path
    target: Table
    name: str = "the stage"

    @property
    def stage(self) -> FileTable:
        return self

    @property
    def facts(self) -> FileFacts:
        return FileFacts(self, self.target.name)

    @contextmanager
    def change(self) -> Iterator[dict[str, Any]]:
        """One commit: all of the change or nothing."""
        with open(self.path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = self.content()
            yield content
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(content))
            new.rename(self.path)

    def content(self) -> dict[str, Any]:
        if not self.path.exists():
            return {"staged": {}, "shown": []}
        content: dict[str, Any] = json.loads(self.path.read_text())
        return content

    def put(self, write: TableWrite, rows: list[int]) -> None:
        with self.change() as content:
            content["staged"][write.name] = {"write": write.to_json(), "rows": rows}

    def count(self, write: TableWrite) -> int:
        return len(self.content()["staged"].get(write.name, {"rows": []})["rows"])

    def look(self, write: TableWrite, *, turn: int = 0, since: int | None = None) -> TableState:
        shown = self.content()["shown"]
        told = [
            TableCommit(
                StoredWrite.parse(one["write"], "write").write,
                TableMode(self.target.mode),
                len(one["rows"]),
            )
            for one in reversed(shown)
        ]
        return TableState(commits_of(write, self.target, told), len(shown))

    def show(self, write: TableWrite, records: int, basis: int | None) -> bool:
        dies("before")
        with self.change() as content:
            one = content["staged"][write.name]
            if self.target.mode is TableMode.REPLACE:
                kept = [o for o in content["shown"] if o["write"]["window_id"] != write.window_id]
                content["shown"] = kept
            content["shown"].append(one)
        dies("shown")
        return True

    def remove(self, write: TableWrite) -> None:
        with self.change() as content:
            content["staged"].pop(write.name, None)

    def clear(self, write: TableWrite) -> None:
        with self.change() as content:
            for name, one in list(content["staged"].items()):
                staged = StoredWrite.parse(one["write"], "write").write
                if staged.is_same_window(write) and write.makes_worthless(name):
                    del content["staged"][name]

    # --- as a sink -------------------------------------------------------------------------------

    def is_of(self, kept: KeptOutput) -> bool:
        return kept.target.name == self.target.name

    def reopened(self, kept: KeptOutput) -> TableOutput:
        table: Any = replace(self, target=kept.target)
        return TableOutput(table, kept.write, kept.facts, kept.basis, kept.published)

    def found(self, result: Mapping[str, Any]) -> TableOutput | None:
        kept = KeptOutput.from_json(result)
        if kept is None:
            return None
        output = self.reopened(kept)
        return output if output.is_staged() or output.is_shown() else None


@dataclass(frozen=True)
class FileFacts:
    """What its catalogue says of it, and what its readers see."""

    of: FileTable
    table: str
    format: str = "iceberg"
    at: None = None

    def rows_shown(self, window_id: str) -> int:
        shown = self.of.content()["shown"]
        return sum(len(o["rows"]) for o in shown if o["write"]["window_id"] == window_id)

    def may_show(self, window_id: str) -> bool:
        return self.rows_shown(window_id) > 0

    def refresh_for_user(self) -> None:
        """Nobody keeps a copy of it."""


def dies(step: str) -> None:
    """Is killed, if this is the step."""
    if os.environ.get("DIES") == step:
        os.kill(os.getpid(), signal.SIGKILL)


def table_driver(folder: Path, table: Path, **environment: str) -> SparkSubmit:
    """A driver in the place of spark-submit."""
    how = fake(
        folder,
        f"""
        sys.path.insert(0, {os.getcwd()!r})
        from tests.support.table_driver import main
        main(folder, job, pathlib.Path({str(table)!r}))
        """,
    )
    return replace(how, environment=environment)


def main(folder: Path, job: Path, path: Path) -> None:
    """What a driver does in a run."""
    submission = Submission.read(folder)
    with open(job.with_suffix(".runs"), "a") as runs:
        runs.write(f"{submission.order.value}\n")
    try:
        _run(submission, folder, path)
    except Exception as error:
        JobError.of(error).write(folder)
        raise


def _run(submission: Submission, folder: Path, path: Path) -> None:
    assert submission.table is not None
    table: Any = FileTable(path, submission.table)
    if submission.order is not Order.WRITE:
        kept = orders._kept(submission)
        if submission.order is Order.FIND:
            told = [orders._found(table, one) for one in kept]
        else:
            told = [orders._done(table, submission.order, one) for one in kept]
        dies("found" if submission.order is Order.FIND else "told")
        JobResult(tuple(told), "app-1").write(folder, submission.token, [one.write for one in kept])
        return
    outputs = []
    for plan in submission.plans:
        write = TableWrite.of(plan)
        TableOutput(table, write, {"records": 0, "elapsed_ms": 0}).check_place(
            is_first=plan.status.is_open and not plan.replaces
        )
        rows = [
            offset for part in plan for start, end in part.taken for offset in range(start, end)
        ]
        table.put(write, rows)
        outputs.append(TableOutput(table, write, {"records": len(rows), "elapsed_ms": 1}, 0))
    dies("staged")
    for one in outputs:
        one.check_ready()
    report = JobResult(tuple(one.to_json() for one in outputs), "app-1")
    report.write(folder, submission.token, submission.plans)
    dies("reported")


def orders_of(job: Path) -> list[str]:
    """What the application was run for so far."""
    return job.with_suffix(".runs").read_text().split()


def rows_of(path: Path) -> list[tuple[str, list[int]]]:
    """What the table shows: rows by window, doubles kept."""
    shown = FileTable(path, Table("t")).content()["shown"]
    return sorted((one["write"]["window_id"], one["rows"]) for one in shown)


def staged_in(path: Path) -> int:
    """How many writes wait in the stage."""
    return len(FileTable(path, Table("t")).content()["staged"])
