"""Makes Spark start in a third of the CPU time: its classes, archived once for each environment.

``python -m tests.support.spark_classes`` runs a small job that writes the archive (class data sharing of the JVM),
and the tests point each Spark at it. A JVM that cannot use it starts as it does without.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

_ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"

# Short lives: no time to win back what the optimising compiler and a parallel collector cost.
# With that compiler alone, a JVM has room for 48 MB of compiled code. Spark with Delta and Iceberg needs more, and would
# drop methods and compile them again.
_SHORT_LIFE: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xlog:disable"
)

_TIMEOUT_S: Final = 300


def use_archive(environment: MutableMapping[str, str]) -> None:
    """Has every Spark that is started with these variables begin with the archive, where there is one."""
    given = environment.get("SPARK_SUBMIT_OPTS", "")
    shared = f" -XX:SharedArchiveFile={_ARCHIVE}" if _ARCHIVE.exists() else ""
    environment["SPARK_SUBMIT_OPTS"] = f"{given} {_SHORT_LIFE}{shared}".strip()


def main() -> None:
    """Writes the archive, unless it is there already."""
    if _ARCHIVE.exists():
        return
    import pyspark

    made = _ARCHIVE.with_suffix(f".{os.getpid()}")
    home = Path(pyspark.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [
                home / "bin" / "spark-submit",
                *("--master", "local[2]", "--conf", "spark.ui.enabled=false"),
                *("--conf", "spark.driver.bindAddress=127.0.0.1"),
                __file__,
                folder,
            ],
            env={
                **os.environ,
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SUBMIT_OPTS": f"{_SHORT_LIFE} -XX:ArchiveClassesAtExit={made}",
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
            },
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
        )
    if run.returncode:
        sys.exit(f"Spark's classes were not archived:\n{run.stdout}")
    made.rename(_ARCHIVE)


def _job(folder: str) -> None:
    """Touches what the tests' jobs use of Spark: Arrow, Python workers, a total order, Parquet, JSON."""
    from pyspark.sql import Observation, SparkSession
    from pyspark.sql import functions as F

    session = SparkSession.builder.getOrCreate()
    observed = Observation("rows")
    rows = session.range(2_000, numPartitions=2).select(
        F.col("id"),
        (F.col("id") % 7).cast("int").alias("key"),
        F.timestamp_millis(F.col("id")).alias("at"),
        F.encode(F.col("id").cast("string"), "utf-8").alias("value"),
        F.array(F.struct(F.lit("a").alias("key"), F.lit(b"1").alias("value"))).alias("headers"),
    )
    rows = rows.mapInArrow(_same, rows.schema).observe(observed, F.count("*").alias("count"))
    dealt = rows.repartitionByRange(2, "at", "key").sortWithinPartitions("at", "key", "id")
    dealt.write.partitionBy("key").parquet(f"{folder}/written", mode="overwrite")
    # Only to touch it: what was observed before the rows were dealt out is counted twice on Spark 4.1, where
    # Spark looks at a sample of them first.
    _ = observed.get
    read = session.read.parquet(f"{folder}/written")
    read.groupBy("key").agg(F.count("*"), F.max("at"), F.sum(F.hash("value"))).orderBy(
        "key"
    ).collect()
    read.join(read.select("id"), "id").limit(5).toPandas()
    read.select("id", "key").write.json(f"{folder}/json")
    session.createDataFrame([(1, "a")], "id int, name string").collect()
    session.stop()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    yield from batches


if __name__ == "__main__":
    _job(sys.argv[1]) if sys.argv[1:] else main()
