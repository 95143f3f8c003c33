"""Windows of Kafka records in Dagster: assets whose partitions are intervals of record time.

::

    @ordered_window_asset(
        topics=["orders"],
        group_id="lake-orders",
        key="orders",
        starting_offsets="earliest",
        output="/lake/orders",
        partitions_def=dg.HourlyPartitionsDefinition("2026-01-01-00:00"),
    )
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows, spark: SparkResource):
        windows.write(windows.read(spark.spark_session))


    defs = dg.Definitions(
        assets=[orders],
        resources={
            "kafka": KafkaResource(config={"bootstrap.servers": "localhost:9092"}),
            "spark": SparkResource(),
        },
    )

Names are loaded on first use: every ``dg`` command loads the code location, which loads neither the Kafka client nor
PySpark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_ordered_ops.dagster.assets import (
        build_ordered_window_asset as build_ordered_window_asset,
    )
    from kafka_ordered_ops.dagster.assets import ordered_window_asset as ordered_window_asset
    from kafka_ordered_ops.dagster.automation import catch_up_condition as catch_up_condition
    from kafka_ordered_ops.dagster.check import partitions_live_check as partitions_live_check
    from kafka_ordered_ops.dagster.components.ordered_window import (
        OrderedWindowComponent as OrderedWindowComponent,
    )
    from kafka_ordered_ops.dagster.components.resource_component import (
        KafkaResourceComponent as KafkaResourceComponent,
    )
    from kafka_ordered_ops.dagster.components.topics_component import (
        KafkaTopicsComponent as KafkaTopicsComponent,
    )
    from kafka_ordered_ops.dagster.ops import build_ordered_window_op as build_ordered_window_op
    from kafka_ordered_ops.dagster.ops import ordered_window_op as ordered_window_op
    from kafka_ordered_ops.dagster.process_ops import (
        build_process_window_op as build_process_window_op,
    )
    from kafka_ordered_ops.dagster.resource import KafkaResource as KafkaResource
    from kafka_ordered_ops.dagster.sensor import (
        build_partitions_live_sensor as build_partitions_live_sensor,
    )
    from kafka_ordered_ops.dagster.settings import OnNotLive as OnNotLive
    from kafka_ordered_ops.dagster.settings import WindowSettings as WindowSettings
    from kafka_ordered_ops.dagster.spark_resource import SparkResource as SparkResource
    from kafka_ordered_ops.dagster.step.job import AssetWindows as AssetWindows
    from kafka_ordered_ops.dagster.topics import (
        build_kafka_topic_assets as build_kafka_topic_assets,
    )
    from kafka_ordered_ops.dagster.translator import (
        KafkaWindowTranslator as KafkaWindowTranslator,
    )
else:  # A type checker that saw this would let any name pass.

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


#: Where each public name lives.
_HOMES = {
    "AssetWindows": "step.job",
    "KafkaResource": "resource",
    "KafkaResourceComponent": "components.resource_component",
    "KafkaTopicsComponent": "components.topics_component",
    "KafkaWindowTranslator": "translator",
    "OnNotLive": "settings",
    "OrderedWindowComponent": "components.ordered_window",
    "SparkResource": "spark_resource",
    "WindowSettings": "settings",
    "build_kafka_topic_assets": "topics",
    "build_ordered_window_asset": "assets",
    "build_ordered_window_op": "ops",
    "build_partitions_live_sensor": "sensor",
    "build_process_window_op": "process_ops",
    "catch_up_condition": "automation",
    "ordered_window_asset": "assets",
    "ordered_window_op": "ops",
    "partitions_live_check": "check",
}

__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    return list(__all__)
