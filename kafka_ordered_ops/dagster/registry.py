"""The facts of an asset of windows that sensors and checks need and Dagster's definition lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from dagster import AssetKey, AssetsDefinition, OpDefinition, PartitionsDefinition

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.dagster.settings import WindowSettings


@dataclass(frozen=True)
class WindowAsset:
    """The definition of an asset of windows."""

    key: AssetKey
    settings: WindowSettings
    partitions_def: PartitionsDefinition[str] | None
    #: The name of its `KafkaResource`.
    kafka_resource: str
    #: Partitions of one run by its backfill policy; None means any number.
    run_partitions_max: int | None = None
    #: Whether each partition depends on the one before it.
    is_serial: bool = False


#: By op: it stays the same if the asset's spec is changed, for example by `dagster.map_asset_specs`.
_KNOWN: Final[WeakKeyDictionary[OpDefinition, WindowAsset]] = WeakKeyDictionary()


def remember(asset: AssetsDefinition, definition: WindowAsset) -> AssetsDefinition:
    """Remember the definition of an asset; return the asset."""
    _KNOWN[asset.op] = definition
    return asset


def window_asset(asset: object) -> WindowAsset:
    """Return the definition of an asset.

    Raises:
        ConfigError: an asset not built by this package.
    """
    # The argument may be anything: passing the asset's key is an easy mistake.
    definition = None
    if isinstance(asset, AssetsDefinition) and asset.is_executable:
        definition = _KNOWN.get(asset.op)
    if definition is None:
        raise ConfigError(
            f"{asset!r} is not an asset of windows: give the result of ordered_window_asset or "
            "build_ordered_window_asset, not a key"
        )
    return definition
