"""What a sensor or a check must know of an asset of windows, and Dagster's definition of it does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from dagster import AssetKey, AssetsDefinition, OpDefinition, PartitionsDefinition

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.dagster.settings import WindowSettings


@dataclass(frozen=True)
class WindowAsset:
    """An asset of windows, as it was defined."""

    key: AssetKey
    settings: WindowSettings
    partitions_def: PartitionsDefinition[str] | None
    #: The name of its `KafkaResource`.
    kafka_resource: str
    #: How many partitions its backfill policy gives to one run; None: any number.
    run_partitions_max: int | None = None
    #: Whether each partition waits for the one before it.
    is_serial: bool = False


#: By op: it stays the same where an asset's spec is changed, as `dagster.map_asset_specs` does.
_KNOWN: Final[WeakKeyDictionary[OpDefinition, WindowAsset]] = WeakKeyDictionary()


def remember(asset: AssetsDefinition, about: WindowAsset) -> AssetsDefinition:
    """Notes how an asset was defined; returns the asset."""
    _KNOWN[asset.op] = about
    return asset


def window_asset(asset: object) -> WindowAsset:
    """How an asset was defined.

    Raises:
        ConfigError: it is no asset of windows.
    """
    # A key, say, of an asset of somewhere else is an easy mistake.
    known = None
    if isinstance(asset, AssetsDefinition) and asset.is_executable:
        known = _KNOWN.get(asset.op)
    if known is None:
        raise ConfigError(
            f"{asset!r} is not an asset of windows: give what ordered_window_asset or "
            "build_ordered_window_asset returned, not a key"
        )
    return known
