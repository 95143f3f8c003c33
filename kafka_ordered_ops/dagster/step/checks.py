"""The checks of an asset's own step: their specs, and a result for each partition of the step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    Output,
    PartitionsDefinition,
    PreviewWarning,
)

from kafka_ordered_ops.dagster.settings import WindowSettings
from kafka_ordered_ops.dagster.step.completeness import complete_about, complete_result
from kafka_ordered_ops.dagster.step.liveness import live_about, live_result

if TYPE_CHECKING:
    from kafka_ordered_ops.dagster.step.delivery import Delivered


def check_specs(
    key: AssetKey, settings: WindowSettings, partitions_def: PartitionsDefinition[str] | None
) -> list[AssetCheckSpec]:
    """Return the checks of an asset: of each partition, if it has partitions."""
    about = {**live_about(settings), **complete_about()}
    with warnings.catch_warnings():
        # Dagster calls checks of partitions a preview.
        warnings.simplefilter("ignore", PreviewWarning)
        return [
            AssetCheckSpec(name, asset=key, description=text, partitions_def=partitions_def)
            for name, text in about.items()
        ]


def check_results(
    context: AssetExecutionContext, key: AssetKey, delivered: Delivered, settings: WindowSettings
) -> list[AssetCheckResult]:
    """Return the results of a step of an asset without partitions: those of the selected checks."""
    return [
        # The step may have other assets, with checks of the same names.
        result._replace(asset_key=key)
        for result in _results(delivered, settings, None)
        if AssetCheckKey(key, str(result.check_name)) in context.selected_asset_check_keys
    ]


def partition_results(
    context: AssetExecutionContext, key: AssetKey, delivered: Delivered, settings: WindowSettings
) -> Iterator[AssetCheckEvaluation | Output[Any]]:
    """Yield the results of each partition of a step, and the outputs that Dagster expects of each check.

    Dagster's own check result is for one partition or for an asset without partitions.
    """
    outputs = set()
    for partition in delivered.by_partition:
        for result in _results(delivered, settings, partition):
            name = str(result.check_name)
            if AssetCheckKey(key, name) not in context.selected_asset_check_keys:
                continue
            outputs.add(AssetCheckSpec(name, asset=key).get_python_identifier())
            yield AssetCheckEvaluation(
                asset_key=key,
                check_name=name,
                passed=result.passed,
                metadata=result.metadata,
                severity=result.severity,
                description=result.description,
                blocking=False,
                partition=partition,
            )
    for output in sorted(outputs):
        yield Output(None, output_name=output)


def _results(
    delivered: Delivered, settings: WindowSettings, partition: str | None
) -> list[AssetCheckResult]:
    live = live_result(delivered.live.get(partition), settings)
    complete = complete_result(delivered.plans[partition], delivered.left)
    return [complete] if live is None else [live, complete]
