"""Assets of windows: a decorator, and a builder that needs no function."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AutomationCondition,
    BackfillPolicy,
    MaterializeResult,
    PartitionsDefinition,
    multi_asset,
)

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.functions import check_does_work
from kafka_ordered_ops.dagster.delivery import Step
from kafka_ordered_ops.dagster.job import AssetWindows
from kafka_ordered_ops.dagster.known import WindowAsset, remember
from kafka_ordered_ops.dagster.liveness import check_specs
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.settings import WindowSettings
from kafka_ordered_ops.dagster.times import check_partitions
from kafka_ordered_ops.dagster.translator import KafkaWindowTranslator

if TYPE_CHECKING:
    from kafka_ordered_ops.spark import SparkSubmit

#: The resource that assets ask for.
KAFKA: Final = "kafka"

Function = Callable[..., Any]


def ordered_window_asset(
    *,
    key: AssetKey | str | Sequence[str],
    topics: Sequence[str],
    group_id: str,
    partitions_def: PartitionsDefinition[str] | None = None,
    backfill_policy: BackfillPolicy | None = None,
    automation_condition: AutomationCondition[Any] | None = None,
    translator: KafkaWindowTranslator | None = None,
    kafka_resource: str = KAFKA,
    pool: str | None = None,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> Callable[[Function], AssetsDefinition]:
    """Makes an asset of a function that delivers windows: ``f(context, windows, ...)``, and resources after them.

    The step looks whether the partitions are live, plans the windows of its partitions, calls the function with
    those that are not delivered yet, all at once, commits them in one transaction, and tells Dagster only then.
    A step that fails, is killed or overtaken commits nothing, and the next one takes the same records.

    With partitions by time a window is a partition's interval, and late records: stamped before it, in an
    interval that was planned before they were written. Without partitions it is everything before the run began
    that the group has not been given.

    Args:
        key: the asset's.
        topics: see `WindowSettings`, also for more arguments.
        group_id: the consumer group whose progress the windows are: no other asset's.
        partitions_def: intervals of time, or None.
        backfill_policy: how a backfill is cut into runs; None: one run, all windows in one pass.
        automation_condition: when Dagster asks for a run by itself: `catch_up_condition`, say.
        translator: makes the asset's spec.
        kafka_resource: the name of the `KafkaResource`.
        pool: limits steps that run at once; None: no limit is needed, since groups fence each other's tries.
        options: more arguments of `dagster.multi_asset`.
        settings: more arguments of `WindowSettings`.

    Raises:
        ConfigError: partitions that are no intervals of time, or settings that cannot be.
    """
    made = WindowSettings(topics=topics, group_id=group_id, **settings)
    asset_key = AssetKey.from_coercible(key)
    check_partitions(partitions_def)
    spec = (translator or KafkaWindowTranslator()).asset_spec(asset_key, made)
    if automation_condition is not None:
        spec = spec.replace_attributes(automation_condition=automation_condition)

    def decorate(function: Function) -> AssetsDefinition:
        def results(
            context: AssetExecutionContext, kafka: KafkaResource, given: dict[str, Any]
        ) -> Iterator[MaterializeResult[Any]]:
            step = Step(context, asset_key, made, partitions_def, kafka)
            return step.results(lambda windows: function(context, windows, **given))

        policy = backfill_policy or BackfillPolicy.single_run()
        asset = multi_asset(
            name=_op_name(asset_key),
            specs=[spec.replace_attributes(partitions_def=partitions_def)],
            check_specs=check_specs(asset_key, made),
            backfill_policy=policy,
            pool=pool,
            **(options or {}),
        )(_step_of(function, kafka_resource, results))
        run_max = policy.max_partitions_per_run
        about = WindowAsset(asset_key, made, partitions_def, kafka_resource, run_max)
        return remember(asset, about)

    return decorate


def build_ordered_window_asset(
    *,
    key: AssetKey | str | Sequence[str],
    output: str,
    application: str | os.PathLike[str] | None = None,
    application_args: Sequence[str] = (),
    submit: SparkSubmit | None = None,
    **arguments: Any,
) -> AssetsDefinition:
    """An asset without a function: a Spark application writes its windows, or they are copied without Spark.

    Takes the arguments of `ordered_window_asset`, and:

    Args:
        key: the asset's.
        output: the folder for the windows' files, which every process of the job sees.
        application: a Spark application that asks for its windows by `kafka_ordered_ops.spark.current_window`; it
            is run by spark-submit. None: the records are copied as they are, as Parquet.
        application_args: its arguments.
        submit: how spark-submit is run.

    Raises:
        ConfigError: arguments for an application that there is not.
    """
    if application is None and (application_args or submit is not None):
        raise ConfigError("application_args= and submit= are an application's: give application=")

    def copied(_context: AssetExecutionContext, windows: AssetWindows) -> None:
        """Copies the windows' records, as Parquet."""
        windows.copy()

    def submitted(_context: AssetExecutionContext, windows: AssetWindows) -> None:
        """Runs a Spark application for the windows."""
        windows.submit(str(application), application_args, submit)

    job = copied if application is None else submitted
    return ordered_window_asset(key=key, output=output, **arguments)(job)


def _step_of(function: Function, kafka_resource: str, results: Function) -> Function:
    """The function as Dagster is to see it: with the resource of the cluster, and without the windows.

    Raises:
        ConfigError: it does not take a context and windows, or does nothing when it is called.
    """
    check_does_work(function)
    # As values: Dagster would look for names in this module.
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    if len(parameters) < 2:
        raise ConfigError(
            f"{function.__qualname__} is called with a context and windows, and resources after them"
        )
    context, rest = parameters[0], parameters[2:]
    own = [one.name for one in rest]

    def step(context: AssetExecutionContext, **given: Any) -> Iterator[MaterializeResult[Any]]:
        kafka = given[kafka_resource]
        yield from results(context, kafka, {name: given[name] for name in own})

    keyword = inspect.Parameter.KEYWORD_ONLY
    others = [one.replace(kind=keyword) for one in rest]
    if kafka_resource not in own:
        others.append(inspect.Parameter(kafka_resource, keyword, annotation=KafkaResource))
    shown = [context.replace(name="context", annotation=AssetExecutionContext), *others]
    step.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    step.__annotations__ = {one.name: one.annotation for one in shown}
    step.__doc__ = function.__doc__
    return step


def _op_name(key: AssetKey) -> str:
    """Dagster allows fewer characters in an op's name than Kafka and people do."""
    return re.sub(r"[^A-Za-z0-9_]", "_", "__".join(key.path))
