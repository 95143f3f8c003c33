"""The Kafka cluster of this project's assets. Its address comes from the environment of each run."""

from __future__ import annotations

import dagster as dg

from kafka_ordered_ops.dagster import KafkaResource


@dg.definitions
def resources() -> dg.Definitions:
    """One resource, by the name that the assets ask for."""
    kafka = KafkaResource(config={"bootstrap.servers": dg.EnvVar("KAFKA_BOOTSTRAP")})
    return dg.Definitions(resources={"kafka": kafka})
