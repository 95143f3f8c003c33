"""Definitions for the tests of a whole Dagster whose windows go into an object store, with kills."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import dagster as dg

from kafka_ordered_ops import Folder, Window
from kafka_ordered_ops.dagster import (
    AssetWindows,
    KafkaResource,
    WindowOp,
    ordered_window_asset,
)
from tests.support import host_kills

RUN, OUTPUT = os.environ["SCENARIO_RUN"], Path(os.environ["SCENARIO_OUTPUT"])
#: Where the store is.
STORE = json.loads(os.environ["SCENARIO_STORE"])


def own(name: str) -> dict[str, Any]:
    """What an asset has of its own."""
    return {
        "key": name,
        "window": Window([f"{name}-{RUN}"], starting_offsets="earliest"),
        "group_id": f"{name}-{RUN}",
        "partitions_def": dg.HourlyPartitionsDefinition(
            "2025-03-01-00:00", end_date="2025-03-02-00:00"
        ),
        "op": WindowOp(backfill_policy=dg.BackfillPolicy.multi_run(1)),
    }


def in_store(name: str) -> dict[str, Any]:
    """An output in the store, with its credentials."""
    return {**own(name), "output": Folder(f"s3://bucket/lake/{name}", storage_options=STORE)}


def signals(context: dg.AssetExecutionContext) -> tuple[Path, int]:
    """Where an asset and its test talk, and the hour of the step's window."""
    return OUTPUT / f"{context.asset_key.to_user_string()}.signals", int(
        context.partition_key[-5:-3]
    )


@ordered_window_asset(**in_store("to_store"))
def to_store(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
    """Kills itself or the store between two of its writes."""
    host_kills.killing_between_writes(*signals(context))
    windows.copy()


defs = dg.Definitions(
    assets=[to_store],
    resources={
        "kafka": KafkaResource(config={"bootstrap.servers": dg.EnvVar("KAFKA_BOOTSTRAP")}),
    },
)
