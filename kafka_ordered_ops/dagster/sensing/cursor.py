"""A sensor's cursor between ticks: the requested times, and why the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.times import parse_time_ms, time_text

_VERSION: Final = 1
#: Dagster's storage accepts more; this suffices for some thousand ranges.
_LIMIT_BYTES: Final = 1_000_000


@dataclass(frozen=True)
class AssetCursor:
    """The cursor of one asset."""

    #: The requested times that are not delivered yet: disjoint, rising. Times instead of partition keys, because a
    #: new definition may name the same times differently.
    asked: tuple[TimeRange, ...] = ()
    #: For people: the reasons why the asset waits.
    waits: tuple[str, ...] = ()

    def has_asked(self, times: TimeRange) -> bool:
        """Return whether runs were requested for all of these times."""
        return any(one.holds(times) for one in self.asked)


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
                        "asked": [time_text(edge) for times in one.asked for edge in times],
                        "waits": list(one.waits),
                    }
                    for key, one in sorted(self.assets.items())
                ],
            }
        )

    @classmethod
    def from_text(cls, text: str | None) -> Cursor:
        """Parse the result of `to_text`; return an empty cursor for None.

        Raises:
            JsonError: the text of another program or version.
        """
        if not text:
            return cls()
        fields = Fields(strict_json.loads(text, limit_bytes=_LIMIT_BYTES), "cursor")
        if (version := fields.integer("version")) != _VERSION:
            raise JsonError(f"cursor of version {version}, not {_VERSION}")
        assets = dict(_asset(one) for one in fields.objects("assets"))
        fields.done()
        return cls(assets)


def merged(times: Iterable[TimeRange]) -> tuple[TimeRange, ...]:
    """Merge times into as few ranges as possible."""
    found: list[TimeRange] = []
    for one in sorted(times):
        if found and one.since_ms <= found[-1].before_ms:
            last = found.pop()
            one = TimeRange(last.since_ms, max(last.before_ms, one.before_ms))
        found.append(one)
    return tuple(found)


def _asset(fields: Fields) -> tuple[str, AssetCursor]:
    key, edges, waits = fields.text("asset"), fields.texts("asked"), fields.texts("waits")
    fields.done()
    return key, AssetCursor(_ranges(edges), waits)


def _ranges(edges: Sequence[str]) -> tuple[TimeRange, ...]:
    try:
        times = [parse_time_ms(edge, what="asked") for edge in edges]
        return merged(map(TimeRange, times[::2], times[1::2]))
    except ConfigError as error:
        raise JsonError(f"cursor.asked: {error}") from error
