"""A process that delivers a window to a table, and is killed in the table's commit: ``python -m tests.support.table_worker``.

Arguments: bootstrap, group, topic, table, mode, Iceberg's warehouse.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from kafka_ordered_ops import Earliest
from kafka_ordered_ops.spark import TableSink, read_window
from kafka_ordered_ops.spark.session import local_session
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.spark_support import _java_home as java_home
from tests.support.spark_support import spark41_conf
from tests.support.tables_support import COLUMNS, tables_conf
from tests.support.windows_support import before

#: Into the commit, and, on most machines, not past it; the test holds wherever it comes.
_KILL_AFTER_S = 0.5


def main() -> None:
    """Dies by SIGKILL; what the JVM still does then is its own affair."""
    bootstrap, group_id, topic, table, mode, warehouse = sys.argv[1:]
    conf = {**spark41_conf(), **tables_conf(Path(warehouse))}
    spark = local_session("worker", cores=2, memory="1g", java_home=java_home(), conf=conf)
    keys = ("topic", "partition", "offset") if mode == "merge" else ()
    sink = TableSink(spark, table, mode, keys=keys)
    show = sink.format.show

    def dying(*arguments: Any) -> None:
        threading.Timer(_KILL_AFTER_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
        show(*arguments)

    sink.format.show = dying  # type: ignore[method-assign, assignment]
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
        plan = windows.plan(before(topic, 12, Earliest()), "w")
        rows = read_window(spark, plan, windows.settings).select(*COLUMNS)
        windows.deliver(plan, lambda plan: sink.write(rows, plan), sink.found)
        threading.Event().wait(10)


if __name__ == "__main__":
    main()
