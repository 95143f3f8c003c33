"""The cluster that all assets of this project read; its address is read where a run is."""

from __future__ import annotations

import dagster as dg

from kafka_ordered_ops.dagster import KafkaResource


@dg.definitions
def resources() -> dg.Definitions:
    """One resource, by the name that the assets ask for."""
    kafka = KafkaResource(config={"bootstrap.servers": dg.EnvVar("KAFKA_BOOTSTRAP")})
    return dg.Definitions(resources={"kafka": kafka})
