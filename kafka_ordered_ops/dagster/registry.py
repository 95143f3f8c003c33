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
    #: Partitions of one run by its backfill policy; None: any number.
    run_partitions_max: int | None = None
    #: Whether each partition depends on the one before it.
    is_serial: bool = False


#: By op: it stays the same if the asset's spec is changed, for example by `dagster.map_asset_specs`.
_KNOWN: Final[WeakKeyDictionary[OpDefinition, WindowAsset]] = WeakKeyDictionary()


def remember(asset: AssetsDefinition, about: WindowAsset) -> AssetsDefinition:
    """Remember the definition of an asset; return the asset."""
    _KNOWN[asset.op] = about
    return asset


def window_asset(asset: object) -> WindowAsset:
    """Return the definition of an asset.

    Raises:
        ConfigError: an asset not built by this package.
    """
    # For example a key, which is an easy mistake.
    known = None
    if isinstance(asset, AssetsDefinition) and asset.is_executable:
        known = _KNOWN.get(asset.op)
    if known is None:
        raise ConfigError(
            f"{asset!r} is not an asset of windows: give what ordered_window_asset or "
            "build_ordered_window_asset returned, not a key"
        )
    return known
