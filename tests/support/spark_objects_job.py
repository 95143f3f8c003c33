"""A Spark job whose outputs are in an object store: ``spark_objects_job.py TASK``, a JSON file.

With ``die`` it is killed once Spark has written everything, and before anything is sealed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kafka_ordered_ops import JobFailedError, StagedOutput, WindowPlan
from kafka_ordered_ops.output.address import spark_path
from kafka_ordered_ops.output.writing.draft import Draft
from kafka_ordered_ops.spark import read_output, write_window, write_windows
from kafka_ordered_ops.spark.s3a import lend_credentials
from kafka_ordered_ops.spark.write.write import job_errors


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
    shown = {}
    if "wrong" in task:
        wrong = {**options, "aws_secret_access_key": task["wrong"]}
        shown["refused"] = refusal(rows, root, plans["one"], wrong)
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
    if "wrong" in task:
        shown["pages"] = shown_by(spark, read_output(spark, root, storage_options=options))
    return {
        **shown,
        "before": before,
        "counts": counts,
        "records": [output.facts["records"] for output in outputs],
        "distinct": read_output(spark, root, storage_options=options).distinct().count(),
    }


def refusal(rows: DataFrame, root: str, plan: WindowPlan, options: dict[str, Any]) -> str:
    """The error of a write with a secret that the server refuses."""
    lend_credentials(rows.sparkSession, root, options)
    try:
        with job_errors([plan], root):
            rows.write.parquet(spark_path(f"{root}-refused"))
    except JobFailedError:
        return traceback.format_exc()
    raise RuntimeError("the server takes any secret")


def shown_by(spark: SparkSession, df: DataFrame) -> str:
    """What Spark shows of its settings and of a plan, and the command lines of this process's children."""
    context = spark.sparkContext
    # Spark shows what Hadoop is set to, as it is now, whenever a file is added.
    context.addFile(__file__)
    url = str(context.uiWebUrl)
    rest = f"{url}/api/v1/applications/{context.applicationId}/environment"
    pages = [urllib.request.urlopen(one).read().decode() for one in (f"{url}/environment/", rest)]
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    lines = [Path(f"/proc/{child}/cmdline").read_text() for child in children]
    plan = df._jdf.queryExecution().toString()
    settings = [context.getConf().getAll(), spark.sql("SET -v").collect()]
    return repr([pages, lines, plan, settings])


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))) + "\n")
