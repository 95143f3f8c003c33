"""Several assets of windows in one step, from YAML."""

# Annotations are values here: Dagster reads a component's YAML by them.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import dagster as dg

from kafka_ordered_ops.dagster.assets.several import ordered_window_multi_asset
from kafka_ordered_ops.dagster.assets.window_op import DEFAULT_OP
from kafka_ordered_ops.dagster.components.models import (
    ResolvedKafka,
    ResolvedSensor,
    WindowOpFields,
    as_arguments,
)
from kafka_ordered_ops.dagster.components.ordered_window import (
    OrderedWindowComponent,
    scaffolded,
)
from kafka_ordered_ops.dagster.sensor import build_partitions_live_sensor
from kafka_ordered_ops.delivery.arguments import with_known_fields


class OrderedWindowMultiScaffolder(dg.Scaffolder[Any]):
    """The scaffold of ``dg scaffold defs``: a step of one hourly asset, named after the folder. Add yours."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the file."""
        name = request.target_path.name
        dg.scaffold_component(request, {"name": f"{name}_step", "assets": [scaffolded(name)]})


@dg.scaffold_with(OrderedWindowMultiScaffolder)
@with_known_fields
@dataclass(kw_only=True)
class OrderedWindowMultiComponent(dg.Component, dg.Resolvable):
    """Delivers the windows of several assets in one step. A run may select any of them.

    The fields are the arguments of `ordered_window_multi_asset`; each asset has the fields of `OrderedWindowComponent`.

    Raises:
        ConfigError: invalid settings, or assets that do not fit in one step.
    """

    name: Annotated[str, dg.Resolver.default(description="The step's name.")]
    assets: Annotated[
        Sequence[OrderedWindowComponent],
        dg.Resolver.default(
            description="The assets, each with its own key, topics, group and output; all with the same partitions."
        ),
    ]
    op: Annotated[
        WindowOpFields | None,
        dg.Resolver.default(description="The step's op: tags, retries, a pool, a backfill policy."),
    ] = None
    kafka: ResolvedKafka = None
    sensor: ResolvedSensor = None

    @classmethod
    def get_additional_scope(cls) -> Mapping[str, Any]:
        """Return functions for templates, in addition to Dagster's: also in ``post_processing``."""
        return OrderedWindowComponent.get_additional_scope()

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the step, with the sensors, checks and resources of its assets.

        Raises:
            ConfigError: invalid settings, or assets that do not fit in one step.
        """
        # The file's cluster is that of assets without their own.
        components = [replace(asset, kafka=asset.kafka or self.kafka) for asset in self.assets]
        parts = [component.build_defs(context) for component in components]
        assets = [
            asset
            for part in parts
            for asset in part.assets or ()
            if isinstance(asset, dg.AssetsDefinition)
        ]
        step = ordered_window_multi_asset(name=self.name, assets=assets, op=self.op or DEFAULT_OP)
        sensors = [sensor for part in parts for sensor in part.sensors or ()]
        if self.sensor is not None:
            sensors.append(
                build_partitions_live_sensor(step, **as_arguments(self.sensor, "sensor"))
            )
        return dg.Definitions(
            assets=[step],
            asset_checks=[check for part in parts for check in part.asset_checks or ()],
            sensors=sensors,
            resources={
                name: made for part in parts for name, made in (part.resources or {}).items()
            },
        )
