"""Merge windows into an Iceberg table: python iceberg_table.py BOOTSTRAP TOPIC. Needs Iceberg's jar on the session."""

import sys
from datetime import UTC, datetime
from pathlib import Path

from kafka_ordered_ops import OpenWindow, OrderedWindows, Table, Window
from kafka_ordered_ops.spark.session import local_session

bootstrap, topic = sys.argv[1:3]
spark = local_session("orders")
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
question = Window(topic, cutoff=hour, starting_offsets="earliest")
spark.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
spark.conf.set("spark.sql.catalog.lake.type", "hadoop")
spark.conf.set("spark.sql.catalog.lake.warehouse", str(Path("lake").absolute()))
columns = "order_id string, country string, timestamp timestamp"
spark.sql(f"CREATE TABLE IF NOT EXISTS lake.shop.orders ({columns}) USING iceberg")
windows = OrderedWindows(bootstrap, group_id=f"{topic}-iceberg")


# [start window]
def orders(window: OpenWindow) -> None:
    """Make the table's columns; those by which the newest record is found may stay."""
    rows = window.read()
    window.write(
        rows.selectExpr(
            "coalesce(string(key), string(offset)) AS order_id",
            "string(value) AS country",
            *("timestamp", "topic", "partition", "offset"),
        )
    )


result = windows.run(
    question,
    Table("lake.shop.orders", "merge", keys=["order_id"]),
    job=orders,
    spark=spark,
)
# [end window]

windows.close()
print(result.window_id, spark.table("lake.shop.orders").count(), "rows")
spark.stop()
