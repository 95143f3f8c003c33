"""Assets of windows: a decorator, and a builder that needs no function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    BackfillPolicy,
    MaterializeResult,
    PartitionsDefinition,
    multi_asset,
)

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.dagster.delivery import Step
from kafka_ordered_ops.dagster.job import AssetWindows
from kafka_ordered_ops.dagster.liveness import check_specs
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.settings import WindowSettings
from kafka_ordered_ops.dagster.times import check_partitions
from kafka_ordered_ops.dagster.translator import KafkaWindowTranslator

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

    def decorate(function: Function) -> AssetsDefinition:
        def results(
            context: AssetExecutionContext, kafka: KafkaResource, given: dict[str, Any]
        ) -> Iterator[MaterializeResult[Any]]:
            step = Step(context, asset_key, made, partitions_def, kafka)
            return step.results(lambda windows: function(context, windows, **given))

        return multi_asset(
            name=_op_name(asset_key),
            specs=[spec.replace_attributes(partitions_def=partitions_def)],
            check_specs=check_specs(asset_key, made),
            backfill_policy=backfill_policy or BackfillPolicy.single_run(),
            pool=pool,
            **(options or {}),
        )(_step_of(function, kafka_resource, results))

    return decorate


def build_ordered_window_asset(
    *, key: AssetKey | str | Sequence[str], output: str, **arguments: Any
) -> AssetsDefinition:
    """An asset that copies its windows' records to `output` as Parquet, without Spark.

    Takes the arguments of `ordered_window_asset`.
    """

    def copied(_context: AssetExecutionContext, windows: AssetWindows) -> None:
        windows.copy()

    return ordered_window_asset(key=key, output=output, **arguments)(copied)


def _step_of(function: Function, kafka_resource: str, results: Function) -> Function:
    """The function as Dagster is to see it: with the resource of the cluster, and without the windows.

    Raises:
        ConfigError: it does not take a context and windows.
    """
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
