"""One Spark session as every contender gets it, and the plain Kafka connector."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.embedded.jars import listed_jars
from kafka_ordered_ops.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The newest Spark for which the Kafka connector, Delta and Iceberg have all been released: the tests'.
SPARK_VERSION: Final = "4.1.3"
_JARS: Final = Path(__file__).parent.parent / "tests" / "support" / "spark41.sha256"
#: Of the listed jars those that the connector needs.
_CONNECTOR: Final = ("kafka", "spark-token-provider", "commons-pool2")

#: The heap of a contender's JVM. Python workers come on top.
DRIVER_MEMORY: Final = "2g"

#: What makes the connector quick and exact. By default it waits up to half a second for each partition whose
#: range ends at the log's end, and it returns the records of aborted transactions.
CONNECTOR_TUNING: Final[Mapping[str, str]] = {
    "kafka.fetch.max.wait.ms": "20",
    "kafka.isolation.level": "read_committed",
}


def connector_jars() -> list[Path]:
    """The connector of this Spark and what it needs."""
    jars = listed_jars(_JARS, f"spark-{SPARK_VERSION}")
    return [jar for jar in jars if jar.name.startswith(_CONNECTOR) or "-kafka-" in jar.name]


def spark_session(name: str, *, more_jars: Iterable[Path] = ()) -> SparkSession:
    """A session on all cores; the same for every contender, used by it or not.

    Raises:
        ConfigError: Spark is of another version than the connector.
    """
    return _session(name, [*connector_jars(), *more_jars], {})


def lake_session(name: str, warehouse: Path, catalog: str) -> SparkSession:
    """The same with Delta, and with Iceberg in a catalogue of its own.

    Raises:
        ConfigError: Spark is of another version than the connector.
    """
    conf = {
        "spark.sql.extensions": (
            "io.delta.sql.DeltaSparkSessionExtension,"
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        f"spark.sql.catalog.{catalog}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{catalog}.type": "hadoop",
        f"spark.sql.catalog.{catalog}.warehouse": str(warehouse),
    }
    return _session(name, listed_jars(_JARS, f"spark-{SPARK_VERSION}"), conf)


def _session(name: str, jars: Iterable[Path], conf: Mapping[str, str]) -> SparkSession:
    import pyspark

    if pyspark.__version__ != SPARK_VERSION:
        raise ConfigError(
            f"Spark here is {pyspark.__version__}, and the Kafka connector is measured on {SPARK_VERSION}: run "
            "`make bench`, which has an environment with it"
        )
    listed = ",".join(map(str, jars))
    return local_session(name, memory=DRIVER_MEMORY, conf={"spark.jars": listed, **conf})


def connector_options(bootstrap: str, plan: WindowPlan, *, headers: bool) -> dict[str, str]:
    """Options with which the connector reads exactly a plan's ranges, one for each partition.

    Raises:
        ConfigError: the plan takes more than one range of a partition.
    """
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for tp, taken in plan.taken.items():
        if len(taken) != 1:
            raise ConfigError(f"the window takes {len(taken)} ranges of {tp}, not one")
        starts.setdefault(tp.topic, {})[str(tp.partition)] = taken.first
        ends.setdefault(tp.topic, {})[str(tp.partition)] = taken.end
    partitions = {topic: sorted(map(int, one)) for topic, one in starts.items()}
    return {
        "kafka.bootstrap.servers": bootstrap,
        **CONNECTOR_TUNING,
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": str(headers).lower(),
    }


def rows_in(folders: Iterable[str | os.PathLike[str]]) -> int:
    """Rows of the Parquet files in folders, by the files' own word."""
    return sum(
        pq.read_metadata(file).num_rows
        for folder in folders
        for file in Path(folder).rglob("part-*.parquet")
    )
