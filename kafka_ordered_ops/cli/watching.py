"""The groups of a ledger as metrics for Prometheus. Changes nothing in the cluster."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.windows.queries.groups import GroupLook

_log = logging.getLogger(__name__)

_PREFIX: Final = "kafka_ordered_ops_group_"

#: The metrics of each group: name, description, value. Without a value there is no sample.
_OF_GROUPS: Final[Sequence[tuple[str, str, Callable[[GroupLook, float], float | None]]]] = (
    ("open_windows", "Windows that hold offsets and are not committed.", lambda g, _: _open(g)),
    (
        "held_offsets",
        "Offsets that open windows hold.",
        lambda g, _: float(sum(one.offsets for one in g.windows if one.status.is_open)),
    ),
    (
        "untouched_seconds",
        "Time since an attempt worked on the open window that was left alone longest.",
        lambda g, now_s: _untouched_s(g, now_s),
    ),
    (
        "unpublished_windows",
        "Windows that are committed, and whose output readers do not see.",
        lambda g, _: None if g.state is None else float(len(g.state.unpublished)),
    ),
    (
        "cutoff_lag_seconds",
        "Time since the greatest cutoff of a committed window.",
        lambda g, now_s: _cutoff_lag_s(g, now_s),
    ),
    ("readable", "0 if the ledger's records of the group cannot be read.", lambda g, _: _ok(g)),
)


class LedgerCollector(Collector):
    """Collects the metrics of all groups, at most once in an interval. Safe for threads.

    Args:
        look: reads the groups.
        interval_s: how old the groups may be, in seconds.
    """

    def __init__(self, look: Callable[[], Sequence[GroupLook]], interval_s: float) -> None:
        self._look = look
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._read_at_s = -float("inf")
        #: None if the last read failed: old values would look like a group that stands still.
        self._groups: Sequence[GroupLook] | None = None

    def describe(self) -> Iterable[Metric]:
        """Return nothing: otherwise registering would read the ledger."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        with self._lock:
            if time.monotonic() - self._read_at_s >= self._interval_s:
                self._groups = self._read()
                self._read_at_s = time.monotonic()
            groups = self._groups
        yield GaugeMetricFamily(
            "kafka_ordered_ops_ledger_readable",
            "0 if the groups cannot be read: see the log.",
            value=0.0 if groups is None else 1.0,
        )
        yield from _metrics(groups or (), time.time())

    def _read(self) -> Sequence[GroupLook] | None:
        try:
            return self._look()
        except KafkaOrderedOpsError as error:
            # The cluster may be back at the next scrape.
            _log.warning("the groups cannot be read: %s: %s", type(error).__name__, error)
            return None


def text_of(groups: Sequence[GroupLook]) -> str:
    """Return the metrics of groups in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(LedgerCollector(lambda: groups, 0.0))
    return generate_latest(registry).decode()


def serve(collector: LedgerCollector, host: str, port: int) -> int:
    """Serve a collector's metrics in a thread of this process, and return the port; raise `ConfigError` if it is in use."""
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"{host}:{port} is not available: {error.strerror}") from error
    return server.server_port


def _metrics(groups: Sequence[GroupLook], now_s: float) -> Iterator[Metric]:
    for name, description, value_of in _OF_GROUPS:
        family = GaugeMetricFamily(f"{_PREFIX}{name}", description, labels=["group"])
        for group in groups:
            if (value := value_of(group, now_s)) is not None:
                family.add_metric([group.group_id], value)
        yield family
    lag = GaugeMetricFamily(
        f"{_PREFIX}lag_offsets",
        "Offsets of a topic that are not done, those of open windows included.",
        labels=["group", "topic"],
    )
    for group in groups:
        by_topic: dict[str, int] = {}
        for part in () if group.offsets is None else group.offsets.partitions:
            by_topic[part.tp.topic] = by_topic.get(part.tp.topic, 0) + part.lag
        for topic, offsets in by_topic.items():
            lag.add_metric([group.group_id, topic], offsets)
    yield lag


def _ok(group: GroupLook) -> float:
    return 1.0 if group.error is None else 0.0


def _open(group: GroupLook) -> float | None:
    return None if group.state is None else float(len(group.state.open))


def _untouched_s(group: GroupLook, now_s: float) -> float | None:
    touched_ms = [one.touched_at_ms for one in group.windows if one.status.is_open]
    if group.state is None:
        return None
    return max(0.0, now_s - min(touched_ms) / 1000) if touched_ms else 0.0


def _cutoff_lag_s(group: GroupLook, now_s: float) -> float | None:
    cutoffs_ms = [one.cutoff_ms for one in group.windows if one.status.is_done]
    return now_s - max(cutoffs_ms) / 1000 if cutoffs_ms else None
