"""What a sensor remembers from tick to tick: what it has asked for, and why the rest waits."""

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
#: Dagster's storage takes more; this is what some thousand ranges need.
_LIMIT_BYTES: Final = 1_000_000


@dataclass(frozen=True)
class AssetCursor:
    """What is remembered of one asset."""

    #: The times for which runs were asked and that are not delivered yet: disjoint, rising. Times and not
    #: partition keys, since a new definition may name the same times otherwise.
    asked: tuple[TimeRange, ...] = ()
    #: For people: what the asset waits for, and why.
    waits: tuple[str, ...] = ()

    def has_asked(self, times: TimeRange) -> bool:
        """Whether runs were asked for all of these times."""
        return any(one.holds(times) for one in self.asked)


@dataclass(frozen=True)
class Cursor:
    """What is remembered of a sensor's assets, by their keys as text."""

    assets: Mapping[str, AssetCursor] = field(default_factory=dict)

    def of(self, key: str) -> AssetCursor:
        """What is remembered of an asset: nothing of a new one."""
        return self.assets.get(key, AssetCursor())

    def to_text(self) -> str:
        """JSON, for Dagster to keep."""
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
        """The inverse of `to_text`; an empty one where there was none.

        Raises:
            JsonError: somebody else's text, or that of another version.
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
    """The same times, as few ranges as possible."""
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
