"""Several assets of windows in one step, of which any subset can be materialized."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    BackfillPolicy,
    Failure,
    multi_asset,
)

from kafka_ordered_ops.core.errors import BrokerUnreachableError, ConfigError
from kafka_ordered_ops.dagster.assets.registry import WindowAsset, remember, window_asset
from kafka_ordered_ops.dagster.assets.window_op import DEFAULT_OP, WindowOp, check_op
from kafka_ordered_ops.dagster.names import op_safe, with_resources
from kafka_ordered_ops.dagster.step.delivery import errors_for_dagster
from kafka_ordered_ops.dagster.step.step_functions import Function, with_signature
from kafka_ordered_ops.delivery.arguments import with_known_names


@with_known_names
def ordered_window_multi_asset(
    *, name: str, assets: Sequence[AssetsDefinition], op: WindowOp = DEFAULT_OP
) -> AssetsDefinition:
    """Make one step of several assets of windows. A run may select any of them.

    ::

        lake = ordered_window_multi_asset(
            name="lake",
            assets=[
                build_ordered_window_asset(
                    key=topic,
                    topics=topic,
                    group_id=f"lake-{topic}",
                    output=f"/lake/{topic}",
                    partitions_def=hours,
                )
                for topic in ("orders", "payments")
            ],
        )

    Each asset keeps its own group, topics, output, function and checks. The step delivers the selected assets one after the
    other, and reports each as soon as it is committed. It does not read the topics of the others, nor change their groups.

    If an asset fails, the step continues with the next one, unless the cluster does not answer, and fails at the end. A retry
    of the step, and a run from failure, deliver the assets that are missing; assets that an earlier attempt committed are
    reported again without being read.

    Args:
        name: the step's name.
        assets: results of `ordered_window_asset` or `build_ordered_window_asset` with the same partitions. Pass this
            function's result to `dagster.Definitions` in their place.
        op: the step: its tags, retries, pool, and how a backfill is divided into runs. The assets have no `op` of their own.

    Raises:
        ConfigError: no asset, an asset not built by this package, or assets that do not fit in one step.
    """
    check_op(op)
    parts = [window_asset(asset) for asset in assets]
    _check(name, assets, parts)
    step_name, policy = op_safe(name), op.backfill_policy or BackfillPolicy.single_run()
    step = multi_asset(
        name=step_name,
        specs=[spec for asset in assets for spec in asset.specs],
        check_specs=[spec for asset in assets for spec in asset.check_specs],
        can_subset=True,
        **op.arguments(policy),
    )(_step_of(parts))
    resources = {key: made for asset in assets for key, made in asset.resource_defs.items()}
    definitions = [
        replace(part, step_name=step_name, op=op, run_partitions_max=policy.max_partitions_per_run)
        for part in parts
    ]
    return remember(with_resources(step, resources), definitions)


def _check(name: str, assets: Sequence[AssetsDefinition], parts: Sequence[WindowAsset]) -> None:
    """Raise `ConfigError` for assets that do not fit in one step."""
    if not parts:
        raise ConfigError(f"{name} has no assets: give at least one")
    keys = [part.key for part in parts]
    if twice := [key.to_user_string() for key, count in Counter(keys).items() if count > 1]:
        raise ConfigError(f"{name} has {', '.join(twice)} twice: give each asset once")
    # A group's mark is a resource of its asset.
    marks = Counter(key for asset in assets for key in asset.resource_defs)
    if taken := [mark for mark, count in marks.items() if count > 1]:
        raise ConfigError(
            f"{name} has two assets of one group ({', '.join(taken)}): give each asset its own group_id"
        )
    for asset, part in zip(assets, parts, strict=True):
        if part.partitions_def != parts[0].partitions_def:
            raise ConfigError(
                f"{part.key.to_user_string()} has other partitions than {keys[0].to_user_string()}: assets of one step have "
                "the same ones"
            )
        if part.op != DEFAULT_OP:
            raise ConfigError(
                f"{part.key.to_user_string()} has an op of its own: give it to {name}, whose step it is"
            )
        _check_alone(asset, part, keys)


def _check_alone(asset: AssetsDefinition, part: WindowAsset, keys: Collection[AssetKey]) -> None:
    """Raise `ConfigError` for an asset that needs a step of its own."""
    upstream = {dep.asset_key for spec in asset.specs for dep in spec.deps} - {part.key}
    inputs = [name for name in _parameters(part.step) if name in asset.op.ins]
    reason = None
    if part.is_serial:
        reason = "depends on its own partition before"
    elif inputs:
        reason = f"takes the inputs {', '.join(inputs)}, which a step loads for all of its assets"
    elif between := sorted(upstream.intersection(keys)):
        reason = f"depends on {between[0].to_user_string()}, an asset of the same step"
    if reason is not None:
        raise ConfigError(f"{part.key.to_user_string()} {reason}: give it a step of its own")


def _step_of(parts: Sequence[WindowAsset]) -> Function:
    """Return the function of the step, with the resources of all assets."""
    parameters = {name: found for part in parts for name, found in _parameters(part.step).items()}

    def step(context: AssetExecutionContext, **resources: Any) -> Iterator[Any]:
        with errors_for_dagster():
            _check_selected(context)
        failures: list[Exception] = []
        for part in parts:
            if part.key not in context.selected_asset_keys:
                continue
            own = {name: resources[name] for name in _parameters(part.step)}
            try:
                yield from part.step(context, **own)
            except BrokerUnreachableError:
                # The next assets would wait for the same brokers.
                raise
            except Exception as error:
                context.log.exception("Asset %s has failed", part.key.to_user_string())
                failures.append(error)
        if failures:
            raise next(filter(_may_be_retried, failures), failures[0])

    return with_signature(step, AssetExecutionContext, parameters.values())


def _check_selected(context: AssetExecutionContext) -> None:
    """Raise `ConfigError` if a check is selected without its asset: only a delivery has its result."""
    of_checks = {key.asset_key for key in context.selected_asset_check_keys}
    if without := sorted(of_checks - context.selected_asset_keys):
        raise ConfigError(
            f"checks of {without[0].to_user_string()} are selected without the asset: they are results of its delivery. "
            "Select the asset"
        )


def _parameters(step: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a step's function, without the context."""
    _context, *own = inspect.signature(step).parameters.values()
    return {parameter.name: parameter for parameter in own}


def _may_be_retried(error: Exception) -> bool:
    return not (isinstance(error, Failure) and not error.allow_retries)
