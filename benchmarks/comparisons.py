"""Which comparisons there are, at which scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.backlog import (
    DAY_START,
    PARTITIONS,
    make_backlog,
    make_quiet_topic,
)
from benchmarks.decoded import decoded_comparison
from benchmarks.growth import growth_comparison
from benchmarks.hourly import HOUR, HourlyLocal, HourlyWindows, Streaming
from benchmarks.lake_tables import TableFormat, ToTable
from benchmarks.offset_maps import offset_maps_comparison
from benchmarks.offsets_show import offsets_show_comparison
from benchmarks.one_window import WAKE_RECORDS, Connector, OurWindow, Way
from benchmarks.planning import PlanAndCommit
from benchmarks.processing import processing_comparisons
from benchmarks.publishing import Publish, Target
from benchmarks.readers import readers_comparisons
from benchmarks.reading import ReadBySpark, ReadSteps, Step
from benchmarks.relay import relay_comparisons
from benchmarks.rounds import rounds_at
from benchmarks.tail import tail_comparisons
from benchmarks.values import Comparison, Contender, Place
from kafka_ordered_ops.spec.table import TableMode

#: The plain connector, which every engine is held against.
CONNECTOR: Final = "connector"
CONNECTOR_BARE: Final = "connector, no headers"

WINDOW_GROWTH: Final = "window-growth"

ONE_PASS: Final = "one pass"
ONE_PASS_LOCAL: Final = "one pass, engine local"
ONE_BY_ONE: Final = "one by one"
STREAMING: Final = "streaming, a query an hour"
STREAMING_ONCE: Final = "streaming, one query"

COLD: Final = "cold"
WARM: Final = "warm"
COLD_OLD: Final = "cold, old windows"
WARM_OLD: Final = "warm, old windows"

SPARK_PYTHON: Final = "Spark by engine python, to nowhere"
SPARK_CONNECTOR: Final = "Spark by the connector, to nowhere"

PLAIN_WRITE: Final = "plain df.writeTo"

#: Two an hour, for 24 hours.
_QUIET_RECORDS: Final = 48


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    name: str
    records: int
    growth: tuple[int, ...]
    partitions: tuple[int, ...]
    old_windows: int


SCALES: Final = {
    scale.name: scale
    for scale in (
        Scale("smoke", 2_400, (1_200, 2_400), (3,), 20),
        Scale("small", 200_000, (50_000, 100_000, 200_000), (10, 100), 1_000),
        Scale("medium", 1_000_000, (250_000, 1_000_000), (10, 100, 1_000), 10_000),
        Scale("full", 5_000_000, (1_000_000, 5_000_000, 20_000_000), (10, 100, 1_000), 100_000),
    )
}

#: Rounds of what takes minutes each: the full run is to end within two hours.
_STREAMING_ROUNDS: Final = 1
_ONE_BY_ONE_ROUNDS: Final = 2

#: Of a window whose fixed costs are all that counts.
SMALL_RECORDS: Final = 1_000

_ENGINES: Final = (Way.PYTHON, Way.CONNECTOR, Way.LOCAL)


def comparisons(scale: Scale) -> tuple[Comparison, ...]:
    """All of them, in the order in which they are run."""
    return (
        _window(scale),
        _ordered(scale),
        decoded_comparison(scale.growth[0]),
        _planning(scale),
        _hourly(scale),
        _window_growth(scale),
        _reading(scale),
        *readers_comparisons(scale.records),
        _publishing(scale),
        _tables(scale),
        growth_comparison(scale.name),
        offset_maps_comparison(),
        offsets_show_comparison(scale.partitions),
        *tail_comparisons(scale.records, scale.growth),
        *processing_comparisons(scale.records // 10, scale.growth[0]),
        *relay_comparisons(scale.growth[0]),
    )


def _window(scale: Scale) -> Comparison:
    n = scale.records
    ways = (*_ENGINES, Way.LOCAL_AND_SPARK)
    return Comparison(
        "window",
        (
            Contender(CONNECTOR, n, Connector(n)),
            Contender(CONNECTOR_BARE, n, Connector(n, headers=False)),
            *(Contender(way.value, n, OurWindow(n, way, ordered=False)) for way in ways),
        ),
        partial(_make_backlogs, [n]),
    )


def _ordered(scale: Scale) -> Comparison:
    n = scale.records
    return Comparison(
        "ordered",
        (
            Contender(CONNECTOR, n, Connector(n, ordered=True)),
            *(Contender(way.value, n, OurWindow(n, way, ordered=True)) for way in _ENGINES),
        ),
        partial(_make_backlogs, [n]),
    )


def _planning(scale: Scale) -> Comparison:
    return Comparison("planning", tuple(_planners(scale)), partial(_make_planning, scale))


def _planners(scale: Scale) -> Iterator[Contender]:
    for count in scale.partitions:
        topic = _quiet(count)
        yield Contender(COLD, count, PlanAndCommit(topic, topic, cold=True))
        yield Contender(WARM, count, PlanAndCommit(topic, topic, cold=False))
    topic, old = _quiet(PARTITIONS), scale.old_windows
    yield Contender(COLD_OLD, old, PlanAndCommit(topic, _OLD_GROUP, cold=True))
    yield Contender(WARM_OLD, old, PlanAndCommit(topic, _OLD_GROUP, cold=False))


def _hourly(scale: Scale) -> Comparison:
    n = scale.records
    return Comparison(
        "hourly",
        (
            Contender(ONE_PASS, n, HourlyWindows(n, one_pass=True)),
            Contender(ONE_PASS_LOCAL, n, HourlyLocal(n)),
            Contender(STREAMING_ONCE, n, Streaming(n, one_query=True)),
            Contender(
                ONE_BY_ONE, n, HourlyWindows(n, one_pass=False), _ONE_BY_ONE_ROUNDS, warms_up=False
            ),
            Contender(
                STREAMING, n, Streaming(n, one_query=False), _STREAMING_ROUNDS, warms_up=False
            ),
        ),
        partial(_make_backlogs, [n]),
    )


def _window_growth(scale: Scale) -> Comparison:
    contenders = []
    # The size of the first comparison has been measured there.
    sizes = [n for n in scale.growth if n != scale.records]
    for n in sizes:
        rounds = rounds_at(n)
        contenders.append(Contender(CONNECTOR, n, Connector(n), rounds))
        for way in _ENGINES:
            contenders.append(Contender(way.value, n, OurWindow(n, way, ordered=False), rounds))
    return Comparison(WINDOW_GROWTH, tuple(contenders), partial(_make_backlogs, sizes))


def _reading(scale: Scale) -> Comparison:
    n = scale.growth[0]
    return Comparison(
        "reading",
        (
            *(Contender(step.value, n, ReadSteps(n, step)) for step in Step),
            Contender(SPARK_PYTHON, n, ReadBySpark(n, ours=True)),
            Contender(SPARK_CONNECTOR, n, ReadBySpark(n, ours=False)),
        ),
        partial(_make_backlogs, [n]),
    )


def _publishing(scale: Scale) -> Comparison:
    sizes = (SMALL_RECORDS, scale.records)
    return Comparison(
        "publishing",
        tuple(Contender(target.value, n, Publish(n, target)) for n in sizes for target in Target),
        partial(_make_backlogs, sizes),
    )


def _tables(scale: Scale) -> Comparison:
    sizes = (SMALL_RECORDS, scale.growth[0])
    modes = (None, *TableMode)
    return Comparison(
        "tables",
        tuple(
            Contender(table_contender(one, mode), n, ToTable(n, one, mode))
            for n in sizes
            for one in TableFormat
            for mode in modes
        ),
        partial(_make_backlogs, sizes),
    )


def table_contender(table: TableFormat, mode: TableMode | None) -> str:
    """What writes to tables of this format in this mode is called; None: the plain ``df.writeTo``."""
    return f"{table}, {PLAIN_WRITE if mode is None else mode}"


_OLD_GROUP: Final = "bench-old-windows"


def _quiet(partitions: int) -> str:
    return f"quiet-{partitions}"


def _make_backlogs(sizes: Sequence[int], place: Place) -> None:
    for records in {WAKE_RECORDS, *sizes}:
        make_backlog(place.bootstrap, records)


def _make_planning(scale: Scale, place: Place) -> None:
    from kafka_ordered_ops.kafka.settings import ClientSettings
    from tests.support.ledger_filler import fill_ledger

    for count in {*scale.partitions, PARTITIONS}:
        make_quiet_topic(
            place.bootstrap, _quiet(count), partitions=count, records_each=_QUIET_RECORDS
        )
    settings = ClientSettings.from_mapping({"bootstrap.servers": place.bootstrap})
    # The hour before the day: the rounds' hours come after all that is old.
    fill_ledger(settings, _OLD_GROUP, _quiet(PARTITIONS), scale.old_windows, since=DAY_START - HOUR)
