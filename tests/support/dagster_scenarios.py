"""Definitions for the tests of a whole Dagster. Each asset has a topic, a group and an output of its own name."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from kafka_ordered_ops import Policy, Window
from kafka_ordered_ops.dagster import (
    AssetWindows,
    KafkaResource,
    WindowOp,
    build_ordered_window_asset,
    build_partitions_live_sensor,
    catch_up_condition,
    ordered_window_asset,
    ordered_window_multi_asset,
    windows_held_check,
)
from kafka_ordered_ops.spark import SparkSubmit
from tests.support import dagster_held
from tests.support.dagster_held import hold, say

#: Told by the test; tells one session of tests from the next.
RUN = os.environ["SCENARIO_RUN"]
#: Where outputs go, and by which files a held step and its test talk.
OUTPUT = Path(os.environ["SCENARIO_OUTPUT"])

HOURLY = dg.HourlyPartitionsDefinition("2025-03-01-00:00", end_date="2025-03-02-00:00")


def own(name: str, **more: Any) -> dict[str, Any]:
    """What an asset has of its own."""
    return {
        "key": name,
        "window": Window([f"{name}-{RUN}"], starting_offsets="earliest"),
        "group_id": f"{name}-{RUN}",
        "output": str(OUTPUT / name),
        "partitions_def": HOURLY,
        **more,
    }


def held(name: str, **more: Any) -> dg.AssetsDefinition:
    """Holds when all records are staged and nothing is committed, by the number of its attempt."""

    @ordered_window_asset(**own(name, **more))
    def orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
        windows.copy()
        hold(name, windows.plans[0].attempt)

    return orders


@ordered_window_asset(**own("piped"))
def piped(
    context: dg.AssetExecutionContext, windows: AssetWindows, pipes: dg.PipesSubprocessClient
) -> None:
    """By spark-submit, through Pipes, with a job that holds."""
    how = SparkSubmit(master=os.environ["SPARK_MASTER"])
    ran = pipes.run(
        context=context,
        command=[how.command, *how.options(), dagster_held.__file__],
        env=how.variables(),
        extras=windows.extras(),
    )
    windows.collect()
    for result in ran.get_results():
        windows.tell(result.metadata or {})


@ordered_window_asset(
    **own("tried_again", partitions_def=None),
    op=WindowOp(retry_policy=dg.RetryPolicy(max_retries=1)),
)
def tried_again(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
    """Fails twice, with everything staged."""
    windows.copy()
    attempt = windows.plans[0].attempt
    say("tried_again", f"{attempt}.tried", context.run.run_id)
    if attempt < 3:
        raise OSError(f"attempt {attempt} fails")


@ordered_window_asset(**own("second"))
def second(windows: AssetWindows) -> None:
    """Fails, with everything staged."""
    windows.copy()
    raise OSError("the second is broken")


#: One step of three assets, of which the one in the middle fails.
several = ordered_window_multi_asset(
    name="several",
    assets=[
        build_ordered_window_asset(**own("first")),
        second,
        build_ordered_window_asset(**own("third")),
    ],
)


nowhere = KafkaResource(config={"bootstrap.servers": os.environ["SCENARIO_NOBODY"]})
newest_first = build_ordered_window_asset(**own("newest_first", op=WindowOp(pool="newest-first")))
live = build_ordered_window_asset(**own("live"))
cutoffs = build_ordered_window_asset(**own("cutoffs", partitions_def=None))
killed = held("killed", policy=Policy(claim_age="PT1S"))
missing = build_ordered_window_asset(
    **own(
        "missing",
        partitions_def=dg.HourlyPartitionsDefinition(
            "2025-03-01-00:00", end_date="2025-03-01-08:00"
        ),
        key=dg.AssetSpec("missing", automation_condition=catch_up_condition()),
    )
)

defs = dg.Definitions(
    assets=[
        build_ordered_window_asset(**own("one_run")),
        build_ordered_window_asset(**own("a_gap")),
        build_ordered_window_asset(
            **own("many_runs", op=WindowOp(backfill_policy=dg.BackfillPolicy.multi_run(1)))
        ),
        newest_first,
        live,
        cutoffs,
        missing,
        held("orphaned"),
        held("outlived"),
        killed,
        piped,
        tried_again,
        several,
        build_ordered_window_asset(**own("away"), kafka_resource="nowhere"),
    ],
    asset_checks=[windows_held_check(killed)],
    jobs=[dg.define_asset_job("newest_first_job", selection=[newest_first])],
    sensors=[
        build_partitions_live_sensor(live, minimum_interval_seconds=1),
        build_partitions_live_sensor(
            cutoffs, every=timedelta(seconds=10), minimum_interval_seconds=1
        ),
        dg.AutomationConditionSensorDefinition(
            "missing_partitions",
            target=dg.AssetSelection.assets(missing),
            minimum_interval_seconds=1,
        ),
    ],
    resources={
        "kafka": KafkaResource(config={"bootstrap.servers": dg.EnvVar("KAFKA_BOOTSTRAP")}),
        "nowhere": nowhere,
        "pipes": dg.PipesSubprocessClient(),
    },
)
