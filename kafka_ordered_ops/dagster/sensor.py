"""A sensor that requests runs as soon as partitions of an asset are live."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from dagster import (
    AssetsDefinition,
    AssetSelection,
    DefaultSensorStatus,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
)

from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.dagster.assets.registry import WindowAsset, window_assets
from kafka_ordered_ops.dagster.names import op_safe
from kafka_ordered_ops.dagster.sensing.asset_look import AssetLook, Candidate, Limits
from kafka_ordered_ops.dagster.sensing.cursor import AssetCursor, Cursor
from kafka_ordered_ops.delivery.arguments import with_known_names

#: Partitions of one run, unless the asset's backfill policy has a lower limit.
PARTITIONS_MAX: Final = 1_000
#: Runs that one tick requests for one asset: the next tick requests more.
RUNS_MAX: Final = 20
#: Dagster ends a tick after 60 s: no check starts later than this.
TICK_S: Final = 35.0


@with_known_names
def build_partitions_live_sensor(
    assets: AssetsDefinition | Sequence[AssetsDefinition],
    *,
    name: str | None = None,
    lookback: timedelta | None = None,
    every: timedelta | None = None,
    partitions_max: int = PARTITIONS_MAX,
    minimum_interval_seconds: int = 60,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
    tags: Mapping[str, str] | None = None,
) -> SensorDefinition:
    """Return a sensor that requests live partitions which are neither delivered nor requested yet.

    Live: every Kafka partition has a record stamped at or after the end of the partition's interval (and the
    maximum out-of-orderness), or is idle by the asset's `grace`. Neighbouring partitions share one run, and so do the same
    partitions of assets of one step. For an asset without partitions it requests a run whenever everything before the
    next cutoff has been written: cutoffs are `every` apart.

    A tick reads logs and the ledger. It joins no group and changes nothing. If a broker is down, the tick fails.
    Requests are not repeated: use Dagster's run retries for failed runs.

    Args:
        assets: results of `ordered_window_asset`, `build_ordered_window_asset` or `ordered_window_multi_asset`; one or
            several.
        name: the sensor's name; by default built from the assets' keys.
        lookback: ignore partitions that ended longer ago. By default all partitions of the asset count.
        every: for assets without partitions: the distance between their cutoffs, counted from 1970-01-01T00:00Z.
        partitions_max: the limit of partitions in one run; a lower limit of the backfill policy applies.
        minimum_interval_seconds: the time between two ticks.
        default_status: whether the sensor runs as soon as it is deployed.
        tags: more tags of the runs.

    Raises:
        ConfigError: no asset, an asset not built by this package, no `every` for an asset without partitions, or a
            number out of range.
    """
    asset_list = [assets] if isinstance(assets, AssetsDefinition) else list(assets)
    definitions = [definition for asset in asset_list for definition in window_assets(asset)]
    _check(definitions, lookback, every, partitions_max)
    limits = Limits(
        partitions_max=partitions_max, runs_max=RUNS_MAX, lookback=lookback, every=every
    )
    ticker = _Ticker(
        [AssetLook(definition, limits) for definition in definitions], dict(tags or {})
    )
    keys = [definition.key for definition in definitions]
    text = ", ".join(key.to_user_string() for key in keys)

    return SensorDefinition(
        name=name or _name(keys),
        evaluation_fn=ticker.tick,
        asset_selection=AssetSelection.assets(*keys),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={definition.kafka_resource for definition in definitions},
        description=f"Requests the partitions of {text} as soon as they are live.",
    )


def _check(
    definitions: Sequence[WindowAsset],
    lookback: timedelta | None,
    every: timedelta | None,
    partitions_max: int,
) -> None:
    if not definitions:
        raise ConfigError("assets is empty: a sensor needs at least one asset")
    if len({definition.key for definition in definitions}) != len(definitions):
        raise ConfigError("the sensor has the same asset twice: give each asset once")
    without = [
        definition.key.to_user_string()
        for definition in definitions
        if definition.partitions_def is None
    ]
    if without and every is None:
        raise ConfigError(
            f"{', '.join(without)} has no partitions: give every=, the distance between its cutoffs, such "
            "as timedelta(hours=1)"
        )
    if every is not None and not without:
        raise ConfigError("every is for assets without partitions: partitions have their own times")
    if every is not None and every < timedelta(seconds=1):
        raise ConfigError(f"every is {every}: it must be at least one second")
    if lookback is not None and lookback <= timedelta(0):
        raise ConfigError(f"lookback is {lookback}: it must be positive")
    if partitions_max < 1:
        raise ConfigError(f"partitions_max is {partitions_max}: it must be at least 1")


class _Ticker:
    """The ticks of one sensor."""

    def __init__(self, looks: Sequence[AssetLook], tags: Mapping[str, str]) -> None:
        self._looks = looks
        self._tags = tags

    def tick(self, context: SensorEvaluationContext, **_resources: Any) -> SensorResult:
        """Check each asset once. Direct calls of the sensor pass its resources by name.

        Raises:
            KafkaOrderedOpsError: an asset could not be checked, and no other asset has anything to request.
        """
        deadline = time.monotonic() + TICK_S
        cursor, now = self._cursor(context), datetime.now(UTC)
        cursors: dict[str, AssetCursor] = {}
        found: list[tuple[WindowAsset, Sequence[Candidate]]] = []
        errors: list[KafkaOrderedOpsError] = []
        for look in self._looks:
            definition, key = look.about, look.about.key.to_user_string()
            before = cursor.of(key)
            if time.monotonic() >= deadline:
                waits = ("not checked: the tick ran out of time",)
                cursors[key] = AssetCursor(before.requested, waits)
                continue
            kafka = getattr(context.resources, definition.kafka_resource)
            try:
                result = look.look(kafka, before, now=now, deadline=deadline)
            except KafkaOrderedOpsError as error:
                errors.append(error)
                text = f"{type(error).__name__}: {error}"
                cursors[key] = AssetCursor(before.requested, (text,))
                continue
            cursors[key] = result.cursor
            found += [(definition, piece) for piece in result.pieces]
        if errors and not found:
            raise _all_of(errors)
        return self._result(context, Cursor(cursors), self._requests(found))

    def _cursor(self, context: SensorEvaluationContext) -> Cursor:
        try:
            return Cursor.from_text(context.cursor)
        except JsonError as error:
            # A repeated request does no harm: Dagster knows the runs by their keys, and a group its windows.
            context.log.warning("The cursor is unreadable and is reset: %s", error)
            return Cursor()

    def _requests(
        self, found: Sequence[tuple[WindowAsset, Sequence[Candidate]]]
    ) -> list[RunRequest]:
        """Return one request for each piece; assets of one step share those that are the same."""
        shared: dict[tuple[str, tuple[Candidate, ...]], list[WindowAsset]] = {}
        for definition, piece in found:
            shared.setdefault((definition.step_name, tuple(piece)), []).append(definition)
        return [self._request(definitions, piece) for (_, piece), definitions in shared.items()]

    def _request(
        self, definitions: Sequence[WindowAsset], piece: Sequence[Candidate]
    ) -> RunRequest:
        first, last = piece[0], piece[-1]
        names = [definition.key.to_user_string() for definition in definitions]
        span = first.name if first is last else f"{first.name}...{last.name}"
        again = sum(candidate.rewound for candidate in piece)
        tags = dict(self._tags)
        if first is not last:
            tags["dagster/asset_partition_range_start"] = first.name
            tags["dagster/asset_partition_range_end"] = last.name
        is_one = definitions[0].partitions_def is not None and first is last
        return RunRequest(
            # A rewound window must run again, but Dagster skips run keys of earlier requests.
            run_key=f"{_label(definitions[0], names)}:{span}" + (f":{again}" if again else ""),
            asset_selection=[definition.key for definition in definitions],
            partition_key=first.name if is_one else None,
            tags=tags,
        )

    def _result(
        self, context: SensorEvaluationContext, cursor: Cursor, requests: list[RunRequest]
    ) -> SensorResult:
        lines = [
            f"{key}: {line}"
            for key, asset_cursor in cursor.assets.items()
            for line in asset_cursor.waits
        ]
        if requests:
            for line in lines:
                context.log.info(line)
            return SensorResult(run_requests=requests, cursor=cursor.to_text())
        text = "\n".join(lines) or "every partition that has ended is delivered"
        return SensorResult(skip_reason=SkipReason(text), cursor=cursor.to_text())


def _all_of(errors: Sequence[KafkaOrderedOpsError]) -> KafkaOrderedOpsError:
    """Return the first error, with notes about the others."""
    first, *others = errors
    for other in others:
        first.add_note(f"{type(other).__name__}: {other}")
    return first


def _name(keys: Sequence[Any]) -> str:
    names = "_and_".join("__".join(key.path) for key in keys[:3])
    return op_safe(names)[:80] + "_partitions_live"


def _label(definition: WindowAsset, names: Sequence[str]) -> str:
    """Return what stands in a run's key for its assets: of several, the name of their step and a digest."""
    if len(names) == 1:
        return names[0]
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:8]
    return f"{definition.step_name}[{digest}]"
