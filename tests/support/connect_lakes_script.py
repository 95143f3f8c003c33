"""Windows to a store and to a table over Spark Connect: ``connect_lakes_script.py TASK``, a JSON file.

Prints one JSON object. A process of its own: Connect and a classic session do not go together in one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kafka_ordered_ops import Earliest, Folder, OrderedWindows, Table
from kafka_ordered_ops.spark import read_output
from tests.support.windows_support import before

_MODES = ("append", "replace", "merge")


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Each window by a call of `run`; once more, which changes nothing."""
    builder = SparkSession.builder.remote("local[2]")
    for key, value in task["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    told: dict[str, Any] = {"session": type(spark).__module__}
    root, options = task["root"], task["options"]
    outputs: dict[str, Folder | Table] = {"store": Folder(root, storage_options=options)}
    for mode in _MODES:
        table = f"{task['catalog']}.db.{mode}"
        spark.sql(
            f"CREATE TABLE {table} (offset bigint, value binary, window_id string) USING iceberg"
        )
        spark.sql(f"INSERT INTO {table} VALUES (3, X'00', 'before')")
        outputs[mode] = Table(table, mode, keys=["offset"] if mode == "merge" else ())
    for name, output in outputs.items():
        group = f"{task['group_id']}-{name}"
        with OrderedWindows(task["bootstrap"], group_id=group) as windows:
            window = before(task["topic"], 25, Earliest())
            calls = [windows.run(window, output, window_id=name, spark=spark) for _ in range(2)]
        told[name] = [[one.ran, one.records] for one in calls]
    told["files"] = [
        row.offset for row in read_output(spark, root, storage_options=options).collect()
    ]
    told["rows"] = {
        mode: sorted(
            [row.window_id, row.offset]
            for row in spark.table(f"{task['catalog']}.db.{mode}").collect()
        )
        for mode in _MODES
    }
    spark.stop()
    return told


if __name__ == "__main__":
    print("\n" + json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
