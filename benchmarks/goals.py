"""What the package set out to reach, held against what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.comparisons import (
    COLD,
    CONNECTOR,
    ONE_BY_ONE,
    ONE_PASS,
    ONE_PASS_LOCAL,
    SMALL_RECORDS,
    STREAMING_ONCE,
    WARM,
)
from benchmarks.decoded import (
    BAD_ONE_IN,
    DECODED,
    FROM_AVRO,
    LOCAL,
    PYTHON,
    as_bytes,
    decoded,
    with_bad,
)
from benchmarks.encoded import AVRO, ENCODINGS
from benchmarks.offset_maps import LIBRARYS_SETS, OFFSET_MAPS, RANDOM_SETS
from benchmarks.offsets_show import OFFSETS_SHOW
from benchmarks.one_window import Way
from benchmarks.ordered_reading import Way as OrderedWay
from benchmarks.peers import Peer, PeerSettings
from benchmarks.processing import JAVA, PROCESSES, PROCESSING, PROCESSING_CPU, PROCESSING_RATE
from benchmarks.processing_report import (
    k_records_a_second,
    side_by_side,
    times_ideal,
    times_ideal_of,
)
from benchmarks.readers import CONNECTOR as CONNECTOR_WINDOW
from benchmarks.readers import (
    CONNECTOR_ORDERED,
    CPU_A_MILLION,
    READERS,
    READERS_DAY,
    READERS_KILOBYTES,
    Task,
    name_of,
)
from benchmarks.readers import JAVA as JAVA_READ
from benchmarks.readers import STREAMING as STREAMING_HOURS
from benchmarks.relay import ONE_BY_ONE as RELAY_ONE_BY_ONE
from benchmarks.relay import P99, PACE, RELAY, RELAY_BATCHES, RELAY_LATENCY, RELAY_SINGLE
from benchmarks.relay_report import milliseconds, records_a_second, requests_a_second
from benchmarks.statistics import Results, Spread, ratio
from benchmarks.tables import published_share, spread_text, table
from benchmarks.tail import CONSUME, PEERS, TAIL, TAIL_GROWTH
from benchmarks.values import Measurement
from benchmarks.work_processor import Way as WorkWay
from kafka_ordered_ops.kafka.settings import ReaderKind

_PLAN_PARTITIONS: Final = 1_000
_MB: Final = 1_000_000

#: In the text of each goal for it.
PEAK_MEMORY: Final = "peak memory"

#: Of an ordered read whose memory counts.
_READ_RECORDS: Final = 20_000_000
_OTHERS: Final = (CONSUME, *PEERS)
#: CPU of the native reader, times librdkafka's: the goals in seconds of the machine that the goals were set on, as ratios.
_CPU_LIMITS: Final = {Task.READ: 0.17, Task.READ_KILOBYTES: 0.3, Task.SCAN: 0.15}


@dataclass(frozen=True)
class Goal:
    """One goal, and the number that decides about it."""

    text: str
    limit: float
    found: Spread
    #: Whether the number is to be at least the limit, instead of at most.
    at_least: bool = False
    #: Whether the limit itself is a miss.
    strict: bool = False

    @property
    def limit_text(self) -> str:
        """The limit in words."""
        return f"{'≥' if self.at_least else '<' if self.strict else '≤'} {self.limit:g}"

    @property
    def is_met(self) -> bool:
        """Whether the median is on the right side."""
        value = self.found.median
        if self.at_least:
            return value >= self.limit
        return value < self.limit if self.strict else value <= self.limit


def goals_table(goals: Sequence[Goal]) -> str:
    """Each goal with its number."""
    rows = [
        [goal.text, goal.limit_text, spread_text(goal.found), "yes" if goal.is_met else "no"]
        for goal in goals
    ]
    return table(["goal", "limit", "measured", "met"], rows)


def goals(results: Mapping[str, Sequence[Results]]) -> Iterator[Goal]:
    """Those of whose comparison there are results, by the comparison's name."""
    yield from _against_connector(results.get("window", ()), results.get("ordered", ()))
    yield from _decoded(results.get(DECODED, ()))
    yield from _planning(results.get("planning", ()))
    yield from _hourly(results.get("hourly", ()))
    for name in (READERS, READERS_DAY, READERS_KILOBYTES):
        yield from _native(results.get(name, ()))
    yield from _publishing(results.get("publishing", ()))
    yield from _offset_maps(results.get(OFFSET_MAPS, ()))
    yield from _offsets_show(results.get(OFFSETS_SHOW, ()))
    yield from _ordered_reads(results)
    yield from _processing(results.get(PROCESSING, ()))
    yield from _processing_rate(results.get(PROCESSING_RATE, ()))
    yield from _processing_cpu(results.get(PROCESSING_CPU, ()))
    yield from _relay(results)


def _against_connector(window: Sequence[Results], ordered: Sequence[Results]) -> Iterator[Goal]:
    wanted = (
        (window, Way.PYTHON, "window by engine python, times the connector", 1.1, False),
        (window, Way.LOCAL, "window by engine local, times the connector", 1.0, True),
        (
            ordered,
            Way.PYTHON,
            "in order by engine python, times the connector's orderBy",
            0.5,
            False,
        ),
        (ordered, Way.LOCAL, "in order by engine local, times the connector's orderBy", 0.5, False),
    )
    for results, way, text, limit, strict in wanted:
        found = _ratio(results, way.value, CONNECTOR)
        if found is not None:
            yield Goal(text, limit, found, strict=strict)
    for one in window:
        if one.contender == Way.PYTHON and (found := one.beyond_s("plan", "commit")):
            yield Goal("plan and commit beyond that window's job, s", 1.5, found)


def _decoded(results: Sequence[Results]) -> Iterator[Goal]:
    """Values as columns, against the same window as bytes, and against Spark's own decoder."""
    for encoding in ENCODINGS:
        for way in (LOCAL, PYTHON):
            if found := _ratio(results, decoded(way, encoding), as_bytes(way, encoding)):
                text = f"{encoding.name} decoded by engine {way}, times the same window as bytes"
                yield Goal(text, 1.6, found)
    for way in (LOCAL, PYTHON):
        if found := _ratio(results, decoded(way, AVRO), FROM_AVRO):
            yield Goal(f"Avro decoded by engine {way}, times from_avro", 0.7, found)
    for one_in, limit in zip(BAD_ONE_IN, (1.25, 1.4), strict=True):
        if found := _ratio(results, with_bad(one_in), decoded(LOCAL, AVRO)):
            yield Goal(f"the same, one bad value in {one_in:,} kept, times none", limit, found)


def _planning(planning: Sequence[Results]) -> Iterator[Goal]:
    for one in planning:
        if one.size == _PLAN_PARTITIONS and one.contender in (COLD, WARM):
            found = one.beyond_s("plan")
            if found is not None:
                yield Goal(f"plan 1,000 partitions, {one.contender} process, s", 2.0, found)
    for one in planning:
        peak = one.memory_bytes
        if one.contender.startswith(COLD) and peak is not None:
            of = "old windows" if one.contender != COLD else "partitions"
            found = Spread.of([peak / _MB])
            if found is not None:
                yield Goal(f"memory to plan and commit with {one.size:,} {of}, MB", 300, found)


def _hourly(hourly: Sequence[Results]) -> Iterator[Goal]:
    found = _ratio(hourly, ONE_PASS_LOCAL, STREAMING_ONCE)
    if found is not None:
        yield Goal("24 windows by engine local, times one streaming query", 1.0, found)
    found = _ratio(hourly, ONE_BY_ONE, ONE_PASS)
    if found is not None:
        yield Goal("24 windows one by one, times one pass", 5.0, found, at_least=True)


def _native(results: Sequence[Results]) -> Iterator[Goal]:
    """Of the native reader: wall against others, CPU, and memory against librdkafka."""

    def native(task: Task) -> str:
        return name_of(task, ReaderKind.NATIVE)

    def librdkafka(task: Task) -> str:
        return name_of(task, ReaderKind.LIBRDKAFKA)

    for task, base, limit in (
        (Task.READ, JAVA_READ, 0.5),
        (Task.PYTHON, CONNECTOR_WINDOW, 0.8),
        (Task.LOCAL, CONNECTOR_WINDOW, 0.33),
        (Task.PYTHON_ORDERED, CONNECTOR_ORDERED, 0.55),
        (Task.LOCAL_ORDERED, CONNECTOR_ORDERED, 0.25),
        (Task.HOURS_PYTHON, STREAMING_HOURS, 1.1),
        (Task.HOURS_LOCAL, STREAMING_HOURS, 0.6),
    ):
        if found := _ratio(results, native(task), base):
            yield Goal(f"{native(task)}, times {base}", limit, found)
    if found := _ratio(results, librdkafka(Task.READ), native(Task.ORDERED)):
        text = f"{native(Task.ORDERED)}: speed, times {librdkafka(Task.READ)}"
        yield Goal(text, 2.0, found, at_least=True)
    by_name = {one.contender: one for one in results}
    for task, limit in ((Task.READ, 0.16), (Task.READ_KILOBYTES, 0.7)):
        found = one.spread(_cpu_a_million) if (one := by_name.get(native(task))) else None
        if found is not None:
            yield Goal(f"{native(task)}: {CPU_A_MILLION}", limit, found)
    for task in Task:
        one, other = by_name.get(native(task)), by_name.get(librdkafka(task))
        if one is None or other is None:
            continue
        if task in _CPU_LIMITS and (found := _cpu_ratio(one, other)):
            text = f"{one.contender}, CPU, times {other.contender}"
            yield Goal(text, _CPU_LIMITS[task], found)
        mine, theirs = one.memory_bytes, other.memory_bytes
        if mine and theirs and (found := Spread.of([mine / theirs])):
            yield Goal(f"{one.contender}, {PEAK_MEMORY}, times {other.contender}", 1.0, found)


def _cpu_a_million(run: Measurement) -> float | None:
    return run.figures.get(CPU_A_MILLION)


def _cpu_ratio(one: Results, other: Results) -> Spread | None:
    """CPU of reading alone, within each round."""
    theirs = {run.round: _cpu_a_million(run) for run in other.rounds}
    mine = ((_cpu_a_million(run), theirs.get(run.round)) for run in one.rounds)
    return Spread.of([ours / base for ours, base in mine if ours and base])


def _publishing(publishing: Sequence[Results]) -> Iterator[Goal]:
    for one in publishing:
        if one.size == SMALL_RECORDS:
            text, limit, found = "s", 1.0, one.beyond_s("publish")
        else:
            text, limit, found = "of the job", 0.1, published_share(one)
        if found is not None:
            what = f"publish {one.size:,} records to {one.contender}, {text}"
            yield Goal(what, limit, found)


def _offset_maps(maps: Sequence[Results]) -> Iterator[Goal]:
    for one in maps:
        if one.contender not in (LIBRARYS_SETS, RANDOM_SETS):
            if (found := one.seconds) is not None:
                text = f"offset map of {one.size:,} ranges: {one.contender}, s"
                yield Goal(text, 0.05, found, strict=True)
        elif found := Spread.of([one.size - run.records for run in one.rounds]):
            text = f"{one.contender} larger than Parallel Consumer's, of {one.size:,}"
            yield Goal(text, 0, found)


def _offsets_show(shown: Sequence[Results]) -> Iterator[Goal]:
    for one in shown:
        if one.size == _PLAN_PARTITIONS and one.seconds is not None:
            text = f"show the offsets of 1,000 partitions, {one.contender}, s"
            yield Goal(text, 2.0, one.seconds, strict=True)


def _ordered_reads(results: Mapping[str, Sequence[Results]]) -> Iterator[Goal]:
    tail = results.get(TAIL, ())
    yield from _against_peer(tail, [f"{peer}{PeerSettings.DEFAULT}" for peer in Peer], "by default")
    yield from _against_peer(tail, PEERS, "at its best")
    for way in (OrderedWay.STREAMING, OrderedWay.EXACT):
        found = _ratio(tail, CONSUME, way)
        if found is not None:
            yield Goal(f"ordered read, {way}: speed, times {CONSUME}", 0.7, found, at_least=True)
    ours = [
        one
        for name, mine in results.items()
        for one in mine
        if name.startswith(TAIL) and one.contender not in _OTHERS
    ]
    # The sum: of one break in many rounds, a median would show nothing.
    breaks = [n for one in ours for run in one.rounds if (n := run.order_breaks) is not None]
    if breaks and (found := Spread.of([sum(breaks)])):
        yield Goal("order breaks in all ordered reads of the package", 0, found)
    for one in results.get(TAIL_GROWTH, ()):
        if one.size == _READ_RECORDS and (peak := one.memory_bytes) is not None:
            text = f"memory of an ordered read of {one.size:,} records, {one.contender}, MB"
            if found := Spread.of([peak / _MB]):
                yield Goal(text, 600, found)


def _against_peer(tail: Sequence[Results], names: Sequence[str], of: str) -> Iterator[Goal]:
    """The faster one's seconds, times ours."""
    # A read that was cut off counts with its seconds until then: fewer than it would have taken.
    peers = [(one.seconds.median, one.contender) for one in tail if one.seconds]
    faster = min((one for one in peers if one[1] in names), default=None)
    found = None if faster is None else _ratio(tail, faster[1], OrderedWay.STREAMING)
    if faster is not None and found is not None:
        text = (
            f"ordered read, {OrderedWay.STREAMING}: speed, times the faster peer {of} ({faster[1]})"
        )
        yield Goal(text, 2.0, found, at_least=True)


def _processing(results: Sequence[Results]) -> Iterator[Goal]:
    """Each goal is of the row that is furthest from it."""
    rows = list(side_by_side(results))
    for way in WorkWay:
        # A sleep of asyncio takes longer than Java's: what each adds to its own sleeps is compared.
        against, what = (
            (ratio, f"times {JAVA}")
            if way is WorkWay.PLAIN
            else (times_ideal_of, f"times ideal, by {JAVA}'s")
        )
        found = [
            (name, against(row[way], row[JAVA])) for name, row in rows if way in row and JAVA in row
        ]
        yield from _worst(f"{way}, {what}", 1.05, found)
        ideal = [(name, times_ideal(row[way])) for name, row in rows if way in row]
        yield from _worst(f"{way}, times ideal", 1.3, ideal)
    breaks = [n for one in results for run in one.rounds if (n := run.order_breaks) is not None]
    if breaks and (total := Spread.of([sum(breaks)])):
        yield Goal("records processed out of order", 0, total)


def _worst(text: str, limit: float, rows: Sequence[tuple[str, Spread | None]]) -> Iterator[Goal]:
    found = [(spread.median, name, spread) for name, spread in rows if spread is not None]
    if found:
        _, name, spread = max(found, key=lambda one: one[0])
        yield Goal(f"{text}, the slowest row ({name})", limit, spread)


def _processing_rate(results: Sequence[Results]) -> Iterator[Goal]:
    limits = {WorkWay.PLAIN: 100.0, WorkWay.ASYNC: 30.0}
    for one in results:
        found = k_records_a_second(one)
        if found is not None and one.contender in limits:
            limit = limits[WorkWay(one.contender)]
            yield Goal(f"k records/s through an empty {one.contender}", limit, found, at_least=True)


def _processing_cpu(results: Sequence[Results]) -> Iterator[Goal]:
    if found := _ratio(results, PROCESSES[1], PROCESSES[2]):
        yield Goal("speed of two processes that compute, times one", 1.7, found, at_least=True)


def _relay(results: Mapping[str, Sequence[Results]]) -> Iterator[Goal]:
    for one in results.get(RELAY, ()):
        if one.contender == RELAY_BATCHES and (found := records_a_second(one)):
            yield Goal(f"{RELAY_BATCHES}: records/s", 20_000, found, at_least=True)
    for one in results.get(RELAY_SINGLE, ()):
        if one.contender == RELAY_ONE_BY_ONE and (found := requests_a_second(one)):
            yield Goal(f"{one.contender}: requests/s", 3_000, found, at_least=True)
    for one in results.get(RELAY_LATENCY, ()):
        if found := milliseconds(one, P99):
            text = f"{one.contender}, {PACE:,} requests/s: p99, ms"
            yield Goal(text, 50, found, strict=True)


def _ratio(results: Sequence[Results], name: str, base: str) -> Spread | None:
    found = {one.contender: one for one in results}
    return ratio(found[name], found[base]) if name in found and base in found else None
