"""Write a window to an Iceberg table: python iceberg_sink.py BOOTSTRAP TOPIC. Needs Iceberg's jar on the session."""

import sys
from datetime import UTC, datetime
from pathlib import Path

from kafka_ordered_ops import OpenWindow, OrderedWindows, Window
from kafka_ordered_ops.spark import IcebergSink
from kafka_ordered_ops.spark.session import local_session

bootstrap, topic = sys.argv[1:3]
spark = local_session("orders")
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
question = Window(topic, cutoff=hour, starting_offsets="earliest")
spark.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
spark.conf.set("spark.sql.catalog.lake.type", "hadoop")
spark.conf.set("spark.sql.catalog.lake.warehouse", str(Path("lake").absolute()))

# [start window]
table, staging = "lake.shop.orders", "lake.shop.orders_staging"
columns = "timestamp timestamp, value string, window_id string"
spark.sql(
    f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING iceberg PARTITIONED BY (window_id)"
)

windows = OrderedWindows(bootstrap, group_id=f"{topic}-iceberg")
sink = IcebergSink(spark, table, staging)


def job(window: OpenWindow) -> None:
    """Any job; its result has the table's columns."""
    window.write(window.read().selectExpr("timestamp", "cast(value as string) as value"))


with windows:  # staged, committed in Kafka, then shown in the table; again: only what is left
    result = windows.run(question, function=job, spark=spark, output=sink)
# [end window]

print(result.window_id, spark.table(table).count(), "rows")
spark.stop()
