"""Histories whose windows go to Delta and Iceberg tables: the same steps and the same judge, in one Spark session.

``python -m tests.support.oracle.outputs.tables SEED...``, or ``FIRST-LAST``, repeats them; the seed decides the format.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import pyarrow.parquet as pq

from kafka_ordered_ops import ClientSettings, Function, Table, WindowPlan
from kafka_ordered_ops.output.writing.window_batches import read_batches
from kafka_ordered_ops.spark import TableSink
from kafka_ordered_ops.spark.write.table_delta import Delta
from kafka_ordered_ops.spark.write.table_iceberg import Iceberg
from kafka_ordered_ops.spark.write.table_stages import Branches, StagingTable
from tests.support.oracle.outputs import choices, verbs
from tests.support.oracle.outputs.judge import Heard, Judge
from tests.support.oracle.outputs.life import Told, live
from tests.support.oracle.outputs.memory import _cluster, _seeded
from tests.support.oracle.outputs.processes import Processes
from tests.support.oracle.outputs.roots import Roots, Seen, SeenRow
from tests.support.oracle.outputs.steps import History, Step, history
from tests.support.oracle.outputs.world import Place
from tests.support.tables_support import CATALOG, WAREHOUSE, tables_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kafka_ordered_ops import OpenWindow

MODES: Final = ("append", "replace", "merge")

_ROW: Final = (
    "name string, topic string, partition int, offset bigint, time_ms bigint, late boolean"
)
_NAMES: Final = [one.split()[0] for one in _ROW.split(", ")]
#: Two ledgers or groups may add windows of the same id: whose a row is, the job says, and not the package.
_DDL: Final = f"{_ROW}, owner string, window_id string"
_KEYS: Final = ("owner", "window_id", "topic", "partition", "offset")

#: What tables do not have: parts, several windows in one pass by files' words, owners, stages to clean, folders to carry.
_INSTEAD: Final = {
    "parts": "run",
    "many": "again",
    "take_root": "replay",
    "clean": "prune",
    "carry": "finish_staged",
    "remove": "again",
}
#: Changes of a table in one phase of a run: staged, shown, cleared by up to three statements.
_CHANGES: Final = 4
_STEPS_MAX: Final = 12

_numbers = itertools.count()


class TableRoots(Roots):
    """Tables; a reader takes the files that their newest version names, and asks no catalogue that caches it."""

    def __init__(self, spark: SparkSession, base: str, format_: str, mode: str, by: str) -> None:
        self.spark = spark
        self._base, self._format, self._mode, self._by = base, format_, mode, by
        #: Files never change.
        self._read: dict[str, dict[str, tuple[SeenRow, ...]]] = {}

    def new(self) -> str:
        name = f"t{next(_numbers)}"
        table = (
            f"delta.`{self._base}/{name}`" if self._format == "delta" else f"{CATALOG}.db.{name}"
        )
        by = f"PARTITIONED BY ({self._by})" if self._by else ""
        self.spark.sql(f"CREATE TABLE {table} ({_DDL}) USING {self._format} {by}")
        return table

    def seen(self, root: str) -> Seen:
        found: Seen = {}
        for path in self._delta_files(root) if self._format == "delta" else self._files(root):
            if path not in self._read:
                self._read[path] = _rows_of(path)
            for window, rows in self._read[path].items():
                found[window] = found.get(window, ()) + rows
        return found

    def carry(self, root: str, target: str, *, moves: bool, with_control: bool) -> None:
        raise NotImplementedError

    def remove(self, root: str, folder: str | None) -> None:
        raise NotImplementedError

    def run_words(self, root: str, partition_by: str | None) -> dict[str, Any]:
        def job(window: OpenWindow) -> None:
            window.write(self._frame(window.plan, window.settings))

        return {
            "output": Table(root, self._mode, self._keys),
            "job": Function(job, engine="local"),
            "spark": self.spark,
        }

    def stage(
        self,
        plans: Sequence[WindowPlan],
        settings: ClientSettings,
        root: str,
        partition_by: str | None,
    ) -> list[Any]:
        sink = TableSink(self.spark, root, self._mode, keys=self._keys)
        return [sink.write(self._frame(plan, settings), plan) for plan in plans]

    @property
    def _keys(self) -> Sequence[str]:
        return _KEYS if self._mode == "merge" else ()

    def _frame(self, plan: WindowPlan, settings: ClientSettings) -> DataFrame:
        rows = [
            (
                *(one["value"].decode(), one["topic"], one["partition"], one["offset"]),
                *(round(one["timestamp"].timestamp() * 1000), one["late"]),
                *(f"{plan.ledger_id} {plan.group_id}", plan.window_id),
            )
            for batch in read_batches(plan, settings, tempfile.mkdtemp)
            for one in batch.to_pylist()
        ]
        return self.spark.createDataFrame(rows, _DDL).coalesce(1)

    def _delta_files(self, root: str) -> list[str]:
        folder, found = root.split("`")[1], dict[str, None]()
        for commit in sorted(Path(folder, "_delta_log").glob("*.json")):
            for line in commit.read_text().splitlines():
                action = json.loads(line)
                if "remove" in action:
                    found.pop(action["remove"]["path"], None)
                elif "add" in action:
                    assert not action["add"].get("deletionVector")
                    found[action["add"]["path"]] = None
        return [f"{folder}/{_unquoted(path)}" for path in found]

    def _files(self, root: str) -> list[str]:
        session: Any = self.spark
        tables = session._jvm.org.apache.iceberg.hadoop.HadoopTables(
            session._jsparkSession.sessionState().newHadoopConf()
        )
        warehouse = self.spark.conf.get(WAREHOUSE)
        name = root.removeprefix(f"{CATALOG}.").replace(".", "/")
        tasks = tables.load(f"{warehouse}/{name}").newScan().planFiles().iterator()
        found = []
        while tasks.hasNext():
            task = tasks.next()
            assert task.deletes().isEmpty()
            found.append(task.file().location().removeprefix("file:"))
        return found


def _unquoted(path: str) -> str:
    from urllib.parse import unquote

    return unquote(path)


def _rows_of(path: str) -> dict[str, tuple[SeenRow, ...]]:
    found: dict[str, tuple[SeenRow, ...]] = {}
    # Columns by which Delta's files are kept apart are in their folders' names alone.
    above = dict(part.split("=", 1) for part in path.split("/") if "=" in part)
    above = {name: _unquoted(_unquoted(value)) for name, value in above.items()}
    with pq.ParquetFile(path) as file:
        for one in file.read().to_pylist():
            row = {**above, **one}
            window = f"{row['owner']} {row['window_id']}"
            found[window] = (*found.get(window, ()), SeenRow(*(row[name] for name in _NAMES)))
    return found


class TableJudge(Judge):
    """The promises to readers of tables, as far as they are others than those to readers of folders."""

    merges = False

    def _errors_change_nothing(self, heard: Heard) -> Iterator[str]:
        """A run that is refused in the end may have published the group's other windows."""
        if heard.unpublished_before:
            heard = replace(heard, window_ids=(*heard.window_ids, *heard.unpublished_before))
        return super()._errors_change_nothing(heard)

    def _roots_have_one_ledger(self, heard: Heard) -> Iterator[str]:
        """Several ledgers may add to a table."""
        return iter(())

    def _each_folder_is_a_committed_window(self, place: Place) -> Iterator[str]:
        """Merging takes nothing back: of a window that was rewound, the rows of all of its claims stay."""
        if not self.merges:
            yield from super()._each_folder_is_a_committed_window(place)
            return
        committed = [one for one in self._account.claims() if one.was_committed]
        for window, rows in self._account.seen[place].items():
            promised = {
                name
                for one in committed
                if window.endswith(f" {one.window_id}")
                for name in one.taken
            }
            if wrong := {row.name for row in rows} - promised:
                yield f"(whole) {place} shows {sorted(wrong)[:8]} of {window}, which nobody has committed"


def table_history(seed: int) -> tuple[History, str, str, str]:
    """Return the history of a seed, with what its tables are: format, mode, and the columns that keep files apart."""
    told, random = history(seed, in_store=False), Random(seed)
    format_ = ("iceberg", "delta")[seed % 2]
    by = random.choice(["window_id", ""])
    steps = tuple(_for_tables(one) for one in told.steps)[:_STEPS_MAX]
    return replace(told, partition_by=None, steps=steps), format_, MODES[seed // 2 % 3], by


def _for_tables(step: Step) -> Step:
    kill = step.kill
    if kill is not None:
        kill = replace(kill, change=1 + kill.change % _CHANGES)
    return replace(step, what=_INSTEAD.get(step.what, step.what), kill=kill)


def live_in_tables(spark: SparkSession, seed: int, base: str) -> Told:
    """Live through the history of a seed."""
    told, format_, mode, by = table_history(seed)
    roots = TableRoots(spark, base, format_, mode, by)
    with ExitStack() as stack:
        stack.enter_context(_seeded(seed))
        judge = type("_Judge", (TableJudge,), {"merges": mode == "merge"})
        stack.enter_context(patch.object(choices, "Judge", judge))
        # There are no files to clean.
        stack.enter_context(patch.object(verbs, "clean", lambda *_: None))
        stack.enter_context(patch.object(choices, "Processes", _TableProcesses))
        return live(told, _cluster, roots, "memory")


class _TableProcesses(Processes):
    """Processes that may die before any change of a table as well."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        opened = self.ports.opened
        self.ports.opened = partial(self._opened, opened)  # type: ignore[method-assign]

    @contextmanager
    def _opened(self, opened: Any) -> Iterator[None]:
        seen: Mapping[type, Sequence[str]] = {Delta: ["show"], Iceberg: ["show"]}
        hidden = {StagingTable: ["put", "_remove"], Branches: ["put", "_drop"]}
        with opened(), ExitStack() as stack:
            for is_seen, changes in ((True, seen), (False, hidden)):
                for kind, names in changes.items():
                    for name in names:
                        counted = self.ports._counted(getattr(kind, name), is_seen=is_seen)
                        stack.enter_context(patch.object(kind, name, counted))
            yield


def main(words: list[str]) -> int:
    """Live through the histories of some seeds; return 1 if one of them fails."""
    from kafka_ordered_ops.spark.session import local_session
    from tests.support.spark_support import spark41_conf

    logging.disable(logging.CRITICAL)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="koo-tables-") as base:
        conf = {**spark41_conf(), "spark.sql.warehouse.dir": f"{base}/other"}
        spark = local_session("histories", cores=1, memory="1g", conf=conf)
        for name, value in tables_conf(Path(base, "lake")).items():
            spark.conf.set(name, value)
        for word in words:
            first, _, last = word.partition("-")
            for seed in range(int(first), int(last or first) + 1):
                began = time.monotonic()
                found = live_in_tables(spark, seed, base)
                failed += bool(found.problems)
                told = found.problems[0][:400] if found.problems else "right"
                what = " ".join(table_history(seed)[1:])
                print(f"{seed} ({what}, {time.monotonic() - began:.0f} s): {told}", flush=True)
                if not last:
                    print(table_history(seed)[0], *found.transcript, *found.problems, sep="\n")
        spark.stop()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
