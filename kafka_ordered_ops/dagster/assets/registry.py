"""The facts of assets of windows that sensors and checks need and Dagster's definition lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from dagster import AssetKey, AssetsDefinition, OpDefinition, PartitionsDefinition

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.dagster.assets.window_op import DEFAULT_OP, WindowOp
from kafka_ordered_ops.dagster.settings import WindowSettings
from kafka_ordered_ops.dagster.step.step_functions import Function


@dataclass(frozen=True)
class WindowAsset:
    """The definition of an asset of windows."""

    key: AssetKey
    settings: WindowSettings
    partitions_def: PartitionsDefinition[str] | None
    #: The name of its `KafkaResource`.
    kafka_resource: str
    #: The name of its step, which may be that of several assets.
    step_name: str
    #: The function of its step, with the signature for Dagster.
    step: Function
    #: What was set for the step.
    op: WindowOp = DEFAULT_OP
    #: Partitions of one run by its backfill policy; None means any number.
    run_partitions_max: int | None = None
    #: Whether each partition depends on the one before it.
    is_serial: bool = False


#: By op: it stays the same if an asset's spec is changed, for example by `dagster.map_asset_specs`.
_KNOWN: Final[WeakKeyDictionary[OpDefinition, Sequence[WindowAsset]]] = WeakKeyDictionary()


def remember(asset: AssetsDefinition, definitions: Sequence[WindowAsset]) -> AssetsDefinition:
    """Remember the definitions of the assets of a step; return the step's assets."""
    _KNOWN[asset.op] = definitions
    return asset


def window_assets(asset: object) -> Sequence[WindowAsset]:
    """Return the definitions of a step's assets.

    Raises:
        ConfigError: an asset not built by this package.
    """
    # The argument may be anything: passing the asset's key is an easy mistake.
    definitions = None
    if isinstance(asset, AssetsDefinition) and asset.is_executable:
        definitions = _KNOWN.get(asset.op)
    if definitions is None:
        raise ConfigError(
            f"{asset!r} is not an asset of windows: give the result of ordered_window_asset or "
            "build_ordered_window_asset, not a key"
        )
    return definitions


def window_asset(asset: object) -> WindowAsset:
    """Return the definition of an asset that has a step of its own.

    Raises:
        ConfigError: an asset not built by this package, or several.
    """
    definitions = window_assets(asset)
    if len(definitions) > 1:
        keys = ", ".join(definition.key.to_user_string() for definition in definitions)
        raise ConfigError(
            f"the step has several assets ({keys}): give one of those that it was made of"
        )
    return definitions[0]
