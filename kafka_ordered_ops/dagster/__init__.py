"""Windows of Kafka records in Dagster: assets whose partitions are intervals of record time.

::

    @ordered_window_asset(
        key="orders",
        window=Window("orders", starting_offsets="earliest"),
        group_id="lake-orders",
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

from typing import TYPE_CHECKING

from kafka_ordered_ops.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from kafka_ordered_ops.dagster.assets.several import (
        ordered_window_multi_asset as ordered_window_multi_asset,
    )
    from kafka_ordered_ops.dagster.assets.single import (
        build_ordered_window_asset as build_ordered_window_asset,
    )
    from kafka_ordered_ops.dagster.assets.single import ordered_window_asset as ordered_window_asset
    from kafka_ordered_ops.dagster.assets.translator import (
        KafkaWindowTranslator as KafkaWindowTranslator,
    )
    from kafka_ordered_ops.dagster.assets.window_op import WindowOp as WindowOp
    from kafka_ordered_ops.dagster.automation import catch_up_condition as catch_up_condition
    from kafka_ordered_ops.dagster.check import partitions_live_check as partitions_live_check
    from kafka_ordered_ops.dagster.check import windows_held_check as windows_held_check
    from kafka_ordered_ops.dagster.components.multi_asset import (
        OrderedWindowMultiComponent as OrderedWindowMultiComponent,
    )
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
    from kafka_ordered_ops.dagster.settings import window_id_of as window_id_of
    from kafka_ordered_ops.dagster.spark_resource import SparkResource as SparkResource
    from kafka_ordered_ops.dagster.step.job import AssetWindows as AssetWindows
    from kafka_ordered_ops.dagster.topics import (
        build_kafka_topic_assets as build_kafka_topic_assets,
    )

#: The module of each public name.
_HOMES = {
    "AssetWindows": "dagster.step.job",
    "KafkaResource": "dagster.resource",
    "KafkaResourceComponent": "dagster.components.resource_component",
    "KafkaTopicsComponent": "dagster.components.topics_component",
    "KafkaWindowTranslator": "dagster.assets.translator",
    "OnNotLive": "dagster.settings",
    "OrderedWindowComponent": "dagster.components.ordered_window",
    "OrderedWindowMultiComponent": "dagster.components.multi_asset",
    "SparkResource": "dagster.spark_resource",
    "WindowOp": "dagster.assets.window_op",
    "WindowSettings": "dagster.settings",
    "build_kafka_topic_assets": "dagster.topics",
    "build_ordered_window_asset": "dagster.assets.single",
    "build_ordered_window_op": "dagster.ops",
    "build_partitions_live_sensor": "dagster.sensor",
    "build_process_window_op": "dagster.process_ops",
    "catch_up_condition": "dagster.automation",
    "ordered_window_asset": "dagster.assets.single",
    "ordered_window_multi_asset": "dagster.assets.several",
    "ordered_window_op": "dagster.ops",
    "partitions_live_check": "dagster.check",
    "window_id_of": "dagster.settings",
    "windows_held_check": "dagster.check",
}

if not TYPE_CHECKING:  # A type checker that saw this would let any name pass.
    __getattr__ = lazy_face(__name__, _HOMES)

__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    return list(__all__)
