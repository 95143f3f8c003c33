"""Ops of windows, for jobs of ops: the step of an asset of windows, without an asset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, OpDefinition, OpExecutionContext, Output, PartitionsDefinition, op

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.dagster.names import op_safe
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.settings import OnNotLive, WindowSettings
from kafka_ordered_ops.dagster.step.delivery import Delivered, Step
from kafka_ordered_ops.dagster.step.step_functions import (
    KAFKA,
    Function,
    check_has_place,
    function_of,
    job_without_function,
    step_function,
)
from kafka_ordered_ops.dagster.step.times import check_partitions
from kafka_ordered_ops.delivery.arguments import arguments, with_known_names
from kafka_ordered_ops.delivery.summary import window_summary
from kafka_ordered_ops.spec.destination import Folder
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.jobs import Application, Copy
from kafka_ordered_ops.spec.table import Table

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord


@with_known_names
def ordered_window_op(
    *,
    name: str,
    topics: str | Sequence[str] | None = None,
    window: Window | None = None,
    group_id: str,
    output: str | os.PathLike[str] | Folder | Table | None = None,
    policy: Policy = DEFAULT_POLICY,
    on_not_live: OnNotLive | str = OnNotLive.WARN,
    grace: timedelta | str | None = None,
    open_lag: timedelta | str | None = None,
    engine: Engine | str | None = None,
    partitions_def: PartitionsDefinition[str] | None = None,
    kafka_resource: str = KAFKA,
    pool: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[[Function], OpDefinition]:
    """Make an op from a function that delivers windows, as `ordered_window_asset` makes an asset.

    Its output, for downstream ops, is a list with a dict for each delivered window, by time: ``window_id``, ``since``
    and ``cutoff`` (text), ``records`` (None if the sink does not report them), ``output`` (the folder of the files,
    or None) and ``returned`` (the function's return value, if it has its own sink).

    Prefer assets: Dagster knows their partitions, and shows the missing ones.

    Args:
        name: the op's name; the windows' ids begin with it.
        topics: see `WindowSettings`, also for the arguments that are not named here.
        group_id: the consumer group whose progress the windows are; one op or asset for each group.
        partitions_def: the job's partitions, intervals of time. Without partitions, each run takes everything before
            its start that the group has not taken yet.
        kafka_resource: the name of the `KafkaResource`.
        pool: the pool that limits steps running at once.
        options: more arguments of `dagster.op`.

    Raises:
        ConfigError: partitions that are not time intervals, or invalid settings.
    """
    settings = WindowSettings.among(locals())
    check_partitions(partitions_def, settings)

    def decorate(function: Function) -> OpDefinition:
        def results(
            context: OpExecutionContext, kafka: KafkaResource, called: Function
        ) -> Iterator[Output[Any]]:
            _check_run(context, partitions_def)
            step = Step(context, AssetKey(name), settings, partitions_def, kafka)
            delivered = step.deliver(partial(called, context), function_of(called))
            yield _output_of(context, delivered)

        definition: OpDefinition = op(name=op_safe(name), pool=pool, **(options or {}))(
            step_function(function, kafka_resource, results, OpExecutionContext)
        )
        return definition

    return decorate


@with_known_names
def build_ordered_window_op(
    *,
    name: str,
    topics: str | Sequence[str] | None = None,
    window: Window | None = None,
    group_id: str,
    output: str | os.PathLike[str] | Folder | Table | None = None,
    job: Copy | Application | None = None,
    policy: Policy = DEFAULT_POLICY,
    on_not_live: OnNotLive | str = OnNotLive.WARN,
    grace: timedelta | str | None = None,
    open_lag: timedelta | str | None = None,
    partitions_def: PartitionsDefinition[str] | None = None,
    kafka_resource: str = KAFKA,
    pool: str | None = None,
    options: dict[str, Any] | None = None,
) -> OpDefinition:
    """Make an op without a function: a Spark application writes its windows, or they are copied without Spark.

    Takes the arguments of `ordered_window_op`, and the job of `build_ordered_window_asset`.

    Raises:
        ConfigError: no `output`, or a job of another type.
    """
    check_has_place(output)
    definition = ordered_window_op(**arguments(locals(), own=["job"]))
    return definition(job_without_function(job, output))


def _check_run(
    context: OpExecutionContext, partitions_def: PartitionsDefinition[str] | None
) -> None:
    if context.has_partition_key is not (partitions_def is not None):
        has, wants = ("one", "no") if partitions_def is None else ("no", "a")
        raise ConfigError(
            f"the run of job {context.job_name} has {has} partition, and op {context.op.name} wants {wants} "
            "partition: give the op the partitions_def= of its job"
        )


def _output_of(context: OpExecutionContext, delivered: Delivered) -> Output[Any]:
    for live in delivered.live.values():
        if not live.is_live:
            context.log.warning("The partitions have not reached the cutoff: %s", live)
    summary = dict(delivered.common)
    for partition_metadata in delivered.by_partition.values():
        # A run of a job of ops has one partition.
        summary |= partition_metadata
    return Output([_facts(record) for record in delivered.records], metadata=summary)


def _facts(record: WindowRecord) -> dict[str, Any]:
    summary = window_summary(record)
    names = ("window_id", "since", "cutoff", "records", "output")
    return {**{name: summary[name] for name in names}, "returned": summary["result"]}
