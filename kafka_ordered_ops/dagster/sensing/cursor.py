"""A sensor's cursor between ticks: the requested times, and why the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import JsonError, Stored, Text, Texts
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.times import parse_time_ms, time_text

_VERSION: Final = 1
#: Dagster's storage accepts more. This limit suffices for some thousand ranges.
_LIMIT_BYTES: Final = 1_000_000


@dataclass(frozen=True)
class AssetCursor:
    """The cursor of one asset."""

    #: The requested times that are not delivered yet: disjoint, rising. Times instead of partition keys, because a
    #: new definition may name the same times differently.
    requested: tuple[TimeRange, ...] = ()
    #: The reasons why the asset waits, for display.
    waits: tuple[str, ...] = ()

    def has_requested(self, times: TimeRange) -> bool:
        """Return whether runs were requested for all of these times."""
        return any(requested_range.holds(times) for requested_range in self.requested)


@dataclass(frozen=True)
class Cursor:
    """The cursors of a sensor's assets, by their keys as text."""

    assets: Mapping[str, AssetCursor] = field(default_factory=dict)

    def of(self, key: str) -> AssetCursor:
        """Return an asset's cursor; an empty one for a new asset."""
        return self.assets.get(key, AssetCursor())

    def to_text(self) -> str:
        """Return JSON for Dagster's storage."""
        return strict_json.dumps(
            {
                "version": _VERSION,
                "assets": [
                    {
                        "asset": key,
                        "asked": [
                            time_text(edge) for times in asset_cursor.requested for edge in times
                        ],
                        "waits": list(asset_cursor.waits),
                    }
                    for key, asset_cursor in sorted(self.assets.items())
                ],
            }
        )

    @classmethod
    def from_text(cls, text: str | None) -> Cursor:
        """Parse the result of `to_text`; return an empty cursor for None.

        Raises:
            JsonError: the text is another program's.
            JsonVersionError: a newer version of this package wrote it.
        """
        if not text:
            return cls()
        stored = _Stored.parse(strict_json.loads(text, limit_bytes=_LIMIT_BYTES), "cursor")
        return cls(
            {
                stored_asset.asset: AssetCursor(_ranges(stored_asset.requested), stored_asset.waits)
                for stored_asset in stored.assets
            }
        )


class _StoredAsset(Stored, frozen=True):
    asset: Text
    #: Stored cursors have the name `asked`.
    requested: Texts = msgspec.field(name="asked")
    waits: Texts


class _Stored(Stored, frozen=True):
    what = "the cursor"

    version: Literal[1]
    assets: list[_StoredAsset]


def merged(times: Iterable[TimeRange]) -> tuple[TimeRange, ...]:
    """Merge times into as few ranges as possible."""
    ranges: list[TimeRange] = []
    for current in sorted(times):
        if ranges and current.since_ms <= ranges[-1].before_ms:
            last = ranges.pop()
            current = TimeRange(last.since_ms, max(last.before_ms, current.before_ms))
        ranges.append(current)
    return tuple(ranges)


def _ranges(edges: Sequence[str]) -> tuple[TimeRange, ...]:
    try:
        times = [parse_time_ms(edge, what="asked") for edge in edges]
        return merged(map(TimeRange, times[::2], times[1::2]))
    except ConfigError as error:
        raise JsonError(f"cursor.asked: {error}") from error
