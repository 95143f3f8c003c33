"""What publishing adds to a window, in a local folder, in an object store and in HDFS: staged, committed, then published."""

from __future__ import annotations

import atexit
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from benchmarks.one_window import day_window
from benchmarks.values import Outcome, Place, Work
from kafka_ordered_ops import OrderedWindows
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.publisher import files_of
from kafka_ordered_ops.output.writing.stage import stage_window


class Target(StrEnum):
    """Where the output is."""

    FOLDER = "local folder"
    #: On this machine, over a folder of the same disk.
    S3 = "S3"
    #: A name node and a data node on this machine.
    HDFS = "HDFS"


@dataclass(frozen=True)
class Publish:
    """Plans the window for a new group, stages it by engine local, commits it, and then publishes it."""

    records: int
    target: Target

    def start(self, place: Place) -> Work:
        """Starts the server of the store or of HDFS, which ends with this process."""
        root, options = self._root(place)

        def run(round_: int) -> Outcome:
            out = f"{root}/round-{round_}"
            group_id = f"bench-{uuid.uuid4().hex[:12]}"
            with OrderedWindows({"bootstrap.servers": place.bootstrap}, group_id) as windows:
                plan = windows.plan(day_window(self.records), "day")
                planned = time.perf_counter()
                staged = stage_window(
                    plan, windows.settings, out, ordered=False, storage_options=options
                )
                written = time.perf_counter()
                windows.commit(plan)
                committed = time.perf_counter()
                staged.publish()
                published = time.perf_counter()
            outcome = Outcome(
                seconds=written - planned,
                records=_rows(out, options),
                beyond_s={"commit": committed - written, "publish": published - committed},
            )
            files_of(out, options).remove(out)
            return outcome

        return Work(run)

    def _root(self, place: Place) -> tuple[str, dict[str, Any] | None]:
        if self.target is Target.FOLDER:
            return str(place.folder / "lake"), None
        from tests.support.hdfs_support import hdfs
        from tests.support.object_servers import versitygw

        folder = place.folder / f"store-{uuid.uuid4().hex[:8]}"
        stack = ExitStack()
        atexit.register(stack.close)
        if self.target is Target.HDFS:
            return f"{stack.enter_context(hdfs(folder))}/lake/orders", None
        server = stack.enter_context(versitygw(folder / "data"))
        return server.root, server.options


def _rows(root: str, options: dict[str, Any] | None) -> int:
    import pyarrow.parquet as pq

    where, rows = files_of(root, options), 0
    for path in files(root, storage_options=options):
        with where.footer(path) as file:
            rows += pq.read_metadata(file).num_rows
    return rows
