"""Run by itself: reads with the JVM engine from a broker that asks for a password, and shows all that can be shown.

Arguments: the plan as JSON, the settings as JSON, a wrong password, a folder for Spark's event log, and
``classic`` or ``connect``.
"""

from __future__ import annotations

import json
import sys

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from kafka_ordered_ops import ClientSettings, ConfigError, WindowPlan
from kafka_ordered_ops.spark import read_window
from kafka_ordered_ops.spark.failures import named_error
from kafka_ordered_ops.spark.session import local_session
from tests.support.spark_support import _java_home, spark41_jars


def main() -> None:
    """Prints what Spark prints, and what became of each reading."""
    plan_json, settings_json, wrong, events, kind = sys.argv[1:]
    plan = WindowPlan.from_text(plan_json)
    settings = ClientSettings.from_mapping(json.loads(settings_json))
    conf = {
        "spark.jars": ",".join(
            str(path) for path in spark41_jars() if "kafka" in path.name or "pool" in path.name
        ),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{events}",
        "spark.eventLog.compress": "false",
    }
    if kind == "connect":
        from pyspark.sql import SparkSession

        builder = SparkSession.Builder().remote("local[1]")
        for pair in conf.items():
            builder = builder.config(*pair)
        spark = builder.getOrCreate()
    else:
        spark = local_session("secrets", cores=1, java_home=_java_home(), conf=conf)
        spark.sparkContext.setLogLevel("INFO")
    try:
        frame = read_window(spark, plan, settings, ordered=True, engine="connector")
        for mode in ("extended", "codegen", "cost", "formatted"):
            frame.explain(mode=mode)
        frame.createOrReplaceTempView("orders")
        spark.sql("explain extended select count(*) from orders").show(truncate=False)
        print("records:", spark.sql("select * from orders").count())
        refused = read_window(
            spark, plan, settings.merged({"sasl.password": wrong}), engine="connector"
        )
        try:
            refused.count()
        except Py4JError as error:
            print("named:", repr(named_error(error)), "\n", error)
    except ConfigError as error:
        print("refused:", error)
    spark.stop()


if __name__ == "__main__":
    main()
