"""Metrics of processing, reported through the OpenTelemetry API. Only this module imports it; without it, nothing is measured.

If the program sets up an SDK, the SDK reads the gauges when it exports, in its own thread. No single record is measured:
counters grow by the difference since the last update, and a duration is the average over a worker's turn.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafka_ordered_ops.core.processing.partition_counts import PartitionCounts
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.processing.work_queue import Counts

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

_SCOPE: Final = "kafka_ordered_ops.processing"
#: The boundaries that the semantic conventions recommend for messaging durations.
_DURATION_BUCKETS_S: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10),
)

_Attributes = Mapping[str, str]
#: Runs that start at the same time share their instruments.
_beginning = threading.Lock()


class Measured(Protocol):
    """A run that is measured."""

    @property
    def counts(self) -> Counts:
        """The counts of records."""

    @property
    def partitions(self) -> Sequence[PartitionCounts]:
        """The progress of each partition."""


class RunMetrics:
    """The metrics of one run, from `begin` to `end`. Safe for threads.

    Args:
        group_id: the group that the run processes for.
        run: the run to measure.
    """

    def __init__(self, group_id: str, run: Measured) -> None:
        self.run = run
        self.attributes = {"messaging.system": "kafka", "messaging.consumer.group.name": group_id}
        self._instruments: _Instruments | None = None
        self._before: Counter[str] = Counter()

    def begin(self) -> None:
        """Start reporting the run's gauges."""
        with _beginning:
            instruments = _instruments()
        if instruments is not None:
            self._instruments = instruments
            instruments.add(self)

    def end(self) -> None:
        """Count the last records, and stop reporting the run's gauges."""
        if self._instruments is not None:
            self.count()
            self._instruments.remove(self)

    def count(self) -> None:
        """Add the records since the last call to the counters; for one thread."""
        if self._instruments is None:
            return
        now = self.run.counts
        counted = Counter(succeeded=now.succeeded, failed=now.failed, retried=now.retried)
        for outcome, many in (counted - self._before).items():
            self._instruments.records.add(many, {**self.attributes, "outcome": outcome})
        self._before = counted

    def turn(self, tp: TopicPartition, seconds_each: float) -> None:
        """Record the average duration of a turn's records, in seconds for each record."""
        if self._instruments is not None:
            attributes = {**self.attributes, "messaging.destination.name": tp.topic}
            self._instruments.function_duration.record(seconds_each, attributes)

    def committed(self, seconds: float, error: BaseException | None) -> None:
        """Record the duration of a commit, and its error if it failed."""
        if self._instruments is not None:
            attributes = dict(self.attributes)
            if error is not None:
                attributes["error.type"] = type(error).__name__
            self._instruments.commit_duration.record(seconds, attributes)


class _Instruments:
    """The instruments of this process, and the runs that they report."""

    def __init__(self, meter: Meter) -> None:
        self._runs: set[RunMetrics] = set()
        self._lock = threading.Lock()
        self.records = meter.create_counter(
            "kafka_ordered_ops.processing.records",
            unit="{record}",
            description="Records by outcome: succeeded, failed in the last attempt, or retried.",
        )
        self.function_duration = meter.create_histogram(
            "kafka_ordered_ops.processing.function.duration",
            unit="s",
            description="How long the function takes for a record.",
            explicit_bucket_boundaries_advisory=_DURATION_BUCKETS_S,
        )
        self.commit_duration = meter.create_histogram(
            "kafka_ordered_ops.processing.commit.duration",
            unit="s",
            description="How long a commit of progress takes.",
            explicit_bucket_boundaries_advisory=_DURATION_BUCKETS_S,
        )
        for name, unit, description, values in (
            ("in_flight", "{record}", "Records that are being processed.", _in_flight),
            ("held", "{record}", "Records that are read and not done.", _held),
            ("lag", "{offset}", "Offsets up to the end that are not done.", _lag),
            ("incomplete_ranges", "{range}", "Ranges not done below done ones.", _incomplete),
        ):
            meter.create_observable_gauge(
                f"kafka_ordered_ops.processing.{name}",
                callbacks=[self._callback(values)],
                unit=unit,
                description=description,
            )

    def add(self, run: RunMetrics) -> None:
        """Add a run to the gauges."""
        with self._lock:
            self._runs.add(run)

    def remove(self, run: RunMetrics) -> None:
        """Remove a run from the gauges."""
        with self._lock:
            self._runs.discard(run)

    def _callback(
        self, values: Callable[[RunMetrics], Iterator[tuple[_Attributes, int]]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            from opentelemetry.metrics import Observation

            with self._lock:
                runs = list(self._runs)
            # Several runs may be of one group.
            sums: Counter[tuple[tuple[str, str], ...]] = Counter()
            for run in runs:
                for attributes, value in values(run):
                    sums[tuple(attributes.items())] += value
            return [Observation(value, dict(attributes)) for attributes, value in sums.items()]

        return observe


@cache
def _instruments() -> _Instruments | None:
    try:
        from opentelemetry.metrics import get_meter
    except ImportError:
        return None
    return _Instruments(get_meter(_SCOPE, version("kafka-ordered-ops")))


def _in_flight(metrics: RunMetrics) -> Iterator[tuple[_Attributes, int]]:
    yield metrics.attributes, metrics.run.counts.in_flight


def _held(metrics: RunMetrics) -> Iterator[tuple[_Attributes, int]]:
    yield metrics.attributes, metrics.run.counts.held


def _lag(metrics: RunMetrics) -> Iterator[tuple[_Attributes, int]]:
    for partition in metrics.run.partitions:
        if partition.lag is not None:
            yield _of_partition(metrics, partition), partition.lag


def _incomplete(metrics: RunMetrics) -> Iterator[tuple[_Attributes, int]]:
    for partition in metrics.run.partitions:
        yield _of_partition(metrics, partition), partition.incomplete_ranges


def _of_partition(metrics: RunMetrics, partition: PartitionCounts) -> dict[str, Any]:
    return {
        **metrics.attributes,
        "messaging.destination.name": partition.topic,
        "messaging.destination.partition.id": str(partition.partition),
    }
