"""The metrics of a server, in the Prometheus text format."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final, Protocol

from kafka_ordered_ops.relay.http.protocol import Connections
from kafka_ordered_ops.relay.ports import PartitionStatus

TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX: Final = "kafka_ordered_ops_relay_"
#: Seconds, from an answer from memory to the longest wait.
_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_Labels = tuple[tuple[str, str], ...]


class _Add(Protocol):
    def __call__(
        self, name: str, kind: str, about: str, values: Iterable[tuple[_Labels, float]]
    ) -> None: ...


class Metrics:
    """The counters of one server."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._buckets: defaultdict[str, list[int]] = defaultdict(
            lambda: [0] * (len(_BUCKETS_S) + 1)
        )
        self.denied = 0
        self.records_delivered = 0
        self.leases_acknowledged = 0
        self.leases_cancelled = 0
        self.leases_extended = 0

    def request(self, operation: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests[operation, status] += 1
        self._seconds[operation] += seconds
        self._buckets[operation][bisect_left(_BUCKETS_S, seconds)] += 1

    def text(self, partitions: Iterable[PartitionStatus], *, is_ready: bool, is_whole: bool) -> str:
        """Return the metrics of partitions and, if `is_whole`, the counters of the server."""
        lines: list[str] = []

        def add(name: str, kind: str, about: str, values: Iterable[tuple[_Labels, float]]) -> None:
            full = _PREFIX + name
            lines.append(f"# HELP {full} {about}\n# TYPE {full} {kind}")
            lines.extend(f"{full}{_labels(labels)} {value:.15g}" for labels, value in values)

        if is_whole:
            self._add_server(add)
        add("ready", "gauge", "1 when reads are served.", [((), int(is_ready))])
        self._add_groups(list(partitions), add)
        if is_whole:
            self._add_seconds(lines)
        return "\n".join(lines) + "\n"

    def _add_server(self, add: _Add) -> None:
        requests = self._requests.items()
        add(
            "requests_total",
            "counter",
            "Answers, by operation and status.",
            [((("operation", name), ("status", str(code))), n) for (name, code), n in requests],
        )
        for name, about, value in (
            ("denied_total", "Calls without the right to make them.", self.denied),
            ("records_delivered_total", "Records handed out.", self.records_delivered),
            ("leases_acknowledged_total", "Acknowledgements of leases.", self.leases_acknowledged),
            ("leases_cancelled_total", "Cancelled leases.", self.leases_cancelled),
            ("leases_extended_total", "Extended leases.", self.leases_extended),
        ):
            add(name, "counter", about, [((), value)])
        refused = self._connections.refused.items()
        add(
            "refused_total",
            "counter",
            "Connections and requests outside the limits, by status.",
            [((("status", str(code)),), n) for code, n in refused],
        )
        add("connections", "gauge", "Open connections.", [((), self._connections.total)])

    def _add_groups(self, partitions: list[PartitionStatus], add: _Add) -> None:
        now_ms = time.time_ns() // 1_000_000
        groups = [(_of_group(status), status) for status in partitions if status.group is not None]
        add(
            "owned_partitions",
            "gauge",
            "Partitions whose records this server hands out.",
            [
                (
                    (),
                    len(
                        {
                            (status.topic, status.partition)
                            for status in partitions
                            if status.is_mine
                        }
                    ),
                )
            ],
        )
        add(
            "waiting_offsets",
            "gauge",
            "Offsets that are neither acknowledged nor leased.",
            [(at, status.waiting) for at, status in groups if status.waiting is not None],
        )
        add(
            "pending_records",
            "gauge",
            "Leased records.",
            [(at, status.pending) for at, status in groups],
        )
        add(
            "refused_dead_letters",
            "gauge",
            "Records whose dead letters were refused.",
            [(at, status.refused_dead_letters) for at, status in groups],
        )
        add(
            "acknowledged_offsets",
            "gauge",
            "Offsets acknowledged beyond the first that is not.",
            [(at, status.acknowledged) for at, status in groups],
        )
        add(
            "base_offset",
            "gauge",
            "The first offset that is not acknowledged.",
            [(at, status.base) for at, status in groups if status.base is not None],
        )
        add(
            "oldest_lease_seconds",
            "gauge",
            "Time until the oldest lease ends.",
            [
                (at, (status.oldest_lease_ms - now_ms) / 1000)
                for at, status in groups
                if status.oldest_lease_ms is not None
            ],
        )

    def _add_seconds(self, lines: list[str]) -> None:
        full = f"{_PREFIX}request_seconds"
        lines.append(f"# HELP {full} Time of answers, waits included.\n# TYPE {full} histogram")
        for name, counts in self._buckets.items():
            total = 0
            for bound, count in zip((*_BUCKETS_S, "+Inf"), counts, strict=True):
                total += count
                labels = _labels((("operation", name), ("le", str(bound))))
                lines.append(f"{full}_bucket{labels} {total}")
            operation = _labels((("operation", name),))
            lines.append(f"{full}_sum{operation} {self._seconds[name]:.15g}")
            lines.append(f"{full}_count{operation} {total}")


def _of_group(status: PartitionStatus) -> _Labels:
    return (
        ("topic", status.topic),
        ("partition", str(status.partition)),
        ("group", str(status.group)),
    )


def _labels(pairs: _Labels) -> str:
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
