"""A Spark job whose outputs are in an object store: ``spark_objects_job.py TASK``, a JSON file.

With ``die`` it is killed once Spark has written everything, and before anything is sealed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kafka_ordered_ops import StagedOutput, WindowPlan
from kafka_ordered_ops.output.draft import Draft
from kafka_ordered_ops.spark import read_output, write_window, write_windows


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Write the windows, publish them, and read them back."""
    builder = SparkSession.builder.master("local[2]")
    for key, value in task["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    root, options = task["root"], task["options"]
    plans = {name: WindowPlan.from_text(text) for name, text in task["plans"].items()}
    rows = spark.range(1_000).selectExpr("id as n").repartition(3)
    if task["die"]:
        Draft.seal = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,method-assign]
    one = write_window(rows, root, plans["one"], storage_options=options)
    both = rows.selectExpr("n", "if(n < 400, 'two', 'three') as window_id")
    many = write_windows(both, root, [plans["two"], plans["three"]], storage_options=options)
    parts = [
        write_window(rows.where(f"n % 2 = {number}"), root, plans[name], storage_options=options)
        for number, name in enumerate(("part 0", "part 1"))
    ]
    outputs = [one, *many, StagedOutput.merged(parts)]
    hidden = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    before = 0
    try:
        before = hidden.load(root.replace("s3://", "s3a://")).count()
    except Exception as error:
        if "PATH_NOT_FOUND" not in str(error):
            raise
    for output in outputs:
        output.publish()
    counts = {
        name: read_output(spark, root, [name], storage_options=options).count()
        for name in ("one", "two", "three", "four")
    }
    return {
        "before": before,
        "counts": counts,
        "records": [output.facts["records"] for output in outputs],
        "distinct": read_output(spark, root, storage_options=options).distinct().count(),
    }


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))) + "\n")
