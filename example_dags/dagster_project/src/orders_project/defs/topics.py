"""The topic in the graph, upstream of all assets: observed, it tells where its partitions end."""

from __future__ import annotations

import os

from kafka_ordered_ops.dagster import build_kafka_topic_assets

topics = build_kafka_topic_assets([os.environ.get("ORDERS_TOPIC", "orders")])
