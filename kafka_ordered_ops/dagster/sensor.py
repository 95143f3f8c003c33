"""A sensor that requests runs as soon as partitions of an asset are live."""

from __future__ import annotations

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
from kafka_ordered_ops.dagster.names import op_safe
from kafka_ordered_ops.dagster.registry import WindowAsset, window_asset
from kafka_ordered_ops.dagster.sensing.asset_look import AssetLook, Candidate, Limits
from kafka_ordered_ops.dagster.sensing.cursor import AssetCursor, Cursor
from kafka_ordered_ops.hosting.arguments import with_known_names

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
    """Return a sensor that requests live partitions that are neither delivered nor requested yet.

    Live: every Kafka partition has a record stamped at or after the end of the partition's interval (and the
    maximum out-of-orderness), or is idle by the asset's `grace`. Neighbouring partitions share one run. For an asset
    without partitions it requests a run whenever everything before the next cutoff has been written: cutoffs are
    `every` apart.

    A tick reads logs and the ledger. It joins no group and changes nothing. If a broker is down, the tick fails.
    Requests are not repeated: use Dagster's run retries for failed runs.

    Args:
        assets: results of `ordered_window_asset` or `build_ordered_window_asset`; one or several.
        name: the sensor's; by default made of the assets' keys.
        lookback: ignore partitions that ended longer ago; None: all partitions of the asset.
        every: for assets without partitions: the distance of their cutoffs, counted from 1970-01-01T00:00Z.
        partitions_max: partitions of one run; a lower limit of the backfill policy counts.
        minimum_interval_seconds: between two ticks.
        default_status: whether it runs as soon as it is deployed.
        tags: more tags of the runs.

    Raises:
        ConfigError: no asset, an asset not built by this package, no `every` for an asset without partitions, or a
            number out of range.
    """
    given = [assets] if isinstance(assets, AssetsDefinition) else list(assets)
    known = [window_asset(asset) for asset in given]
    _check(known, lookback, every, partitions_max)
    limits = Limits(
        partitions_max=partitions_max, runs_max=RUNS_MAX, lookback=lookback, every=every
    )
    ticker = _Ticker([AssetLook(about, limits) for about in known], dict(tags or {}))
    keys = [about.key for about in known]
    text = ", ".join(key.to_user_string() for key in keys)

    return SensorDefinition(
        name=name or _name(keys),
        evaluation_fn=ticker.tick,
        asset_selection=AssetSelection.assets(*keys),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={about.kafka_resource for about in known},
        description=f"Asks for the partitions of {text} as soon as they are live.",
    )


def _check(
    known: Sequence[WindowAsset],
    lookback: timedelta | None,
    every: timedelta | None,
    partitions_max: int,
) -> None:
    if not known:
        raise ConfigError("a sensor needs an asset to look at")
    if len({about.key for about in known}) != len(known):
        raise ConfigError("the sensor has the same asset twice: give each asset once")
    without = [about.key.to_user_string() for about in known if about.partitions_def is None]
    if without and every is None:
        raise ConfigError(
            f"{', '.join(without)} has no partitions: give every=, the distance of its cutoffs, as "
            "timedelta(hours=1)"
        )
    if every is not None and not without:
        raise ConfigError("every is for assets without partitions: partitions have their own times")
    if every is not None and every < timedelta(seconds=1):
        raise ConfigError(f"every is {every}: a second at least")
    if lookback is not None and lookback <= timedelta(0):
        raise ConfigError(f"lookback is {lookback}: nothing would ever be asked for")
    if partitions_max < 1:
        raise ConfigError(f"partitions_max is {partitions_max}: a run has one partition at least")


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
        found: dict[str, AssetCursor] = {}
        requests: list[RunRequest] = []
        errors: list[KafkaOrderedOpsError] = []
        for look in self._looks:
            about, key = look.about, look.about.key.to_user_string()
            before = cursor.of(key)
            if time.monotonic() >= deadline:
                found[key] = AssetCursor(before.asked, ("not looked at: the tick's time is over",))
                continue
            kafka = getattr(context.resources, about.kafka_resource)
            try:
                one = look.look(kafka, before, now=now, deadline=deadline)
            except KafkaOrderedOpsError as error:
                errors.append(error)
                text = f"{type(error).__name__}: {error}"
                found[key] = AssetCursor(before.asked, (text,))
                continue
            found[key] = one.cursor
            requests += [self._request(about, piece) for piece in one.pieces]
        if errors and not requests:
            raise _all_of(errors)
        return self._result(context, Cursor(found), requests)

    def _cursor(self, context: SensorEvaluationContext) -> Cursor:
        try:
            return Cursor.from_text(context.cursor)
        except JsonError as error:
            # A repeated request does no harm: Dagster knows the runs by their keys, and a group its windows.
            context.log.warning("The cursor is not readable, and starts over: %s", error)
            return Cursor()

    def _request(self, about: WindowAsset, piece: Sequence[Candidate]) -> RunRequest:
        key, first, last = about.key.to_user_string(), piece[0], piece[-1]
        span = first.name if first is last else f"{first.name}...{last.name}"
        again = sum(one.rewound for one in piece)
        tags = dict(self._tags)
        if first is not last:
            tags["dagster/asset_partition_range_start"] = first.name
            tags["dagster/asset_partition_range_end"] = last.name
        is_one = about.partitions_def is not None and first is last
        return RunRequest(
            # A rewound window is to run again, but Dagster skips run keys that it has seen.
            run_key=f"{key}:{span}" + (f":{again}" if again else ""),
            asset_selection=[about.key],
            partition_key=first.name if is_one else None,
            tags=tags,
        )

    def _result(
        self, context: SensorEvaluationContext, cursor: Cursor, requests: list[RunRequest]
    ) -> SensorResult:
        lines = [f"{key}: {line}" for key, one in cursor.assets.items() for line in one.waits]
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
