"""How the cost of a group grows: one curve for each thing that there may be many of.

A curve is measured once at each size, each time in a process of its own. What is short is repeated within the process,
and the median counts. The report adds the exponent between the last two sizes: 0 is flat, 1 is linear.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, count, islice
from multiprocessing import get_context
from statistics import median
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from benchmarks.backlog import DAY_START, PARTITIONS, make_quiet_topic, make_topic_of
from benchmarks.usage import memory_grown_bytes, received_bytes
from benchmarks.values import Comparison, Contender, Outcome, Place, Work
from kafka_ordered_ops.core.times import time_ms

if TYPE_CHECKING:
    from kafka_ordered_ops import OrderedWindows, Window, WindowPlan

GROWTH: Final = "growth"

Figures = dict[str, float]

_T = TypeVar("_T")

_HOUR: Final = timedelta(hours=1)
_HOUR_MS: Final = 3_600_000
_START_MS: Final = time_ms(DAY_START, what="day")

#: What is short is done so often.
_TIMES: Final = 5
_OLD_WINDOWS: Final = 10
_PAGE_WINDOWS: Final = 20
_WINDOWS_EACH: Final = 4
_RECORDS_EACH: Final = 4


@dataclass(frozen=True)
class Curve:
    """What grows, and what is measured at each size."""

    name: str
    sizes: tuple[int, ...]
    measure: Callable[[Place, int], Figures]


@dataclass(frozen=True)
class Measured:
    """A curve at one size."""

    measure: Callable[[Place, int], Figures]
    size: int

    def start(self, place: Place) -> Work:
        """Nothing to set up: what is measured comes after what it needs, in the same run."""

        def run(_round: int) -> Outcome:
            started = time.perf_counter()
            figures = self.measure(place, self.size)
            seconds = time.perf_counter() - started
            return Outcome(seconds=seconds, records=self.size, figures=figures)

        return Work(run)


def growth_comparison(scale: str) -> Comparison:
    """All curves: at all sizes, at all but the largest, or at one so small that it only shows that it can be measured."""
    contenders = [
        Contender(curve.name, size, Measured(curve.measure, size), rounds=1, warms_up=False)
        for curve in CURVES
        for size in _sizes(curve, scale)
    ]
    return Comparison(GROWTH, tuple(contenders), _nothing)


def _sizes(curve: Curve, scale: str) -> Sequence[int]:
    if scale == "smoke":
        return [max(curve.sizes[0] // 50, 1)]
    return curve.sizes if scale == "full" else curve.sizes[:-1]


def _nothing(_place: Place) -> None:
    """Each curve makes its own topics."""


# --- Curves ---------------------------------------------------------------------------------------


def _windows_of_a_group(place: Place, size: int) -> Figures:
    """Old windows, as an hourly job leaves them."""
    ledger = f"growth-windows-{size}"
    topic = _quiet_topic(place, PARTITIONS)
    _fill(place, ledger, ledger, topic, size)
    with _windows(place, ledger, ledger) as windows:
        hours = _hours(topic, 1 + _TIMES)
        windows.state()
        _, page_s = _cpu_of(lambda: windows.summaries(limit=_PAGE_WINDOWS))
        return {
            **_opened(place, ledger, ledger),
            "first page of the list, CPU ms": 1e3 * page_s,
            **_planned_and_committed(windows, hours),
        }


def _groups_of_a_ledger(place: Place, size: int) -> Figures:
    """Groups of ten windows. Only those are written that share the group's partition of the ledger."""
    from kafka_ordered_ops.core.group.ledger_rules import LEDGER_PARTITIONS, ledger_partition

    ledger = f"growth-groups-{size}"
    topic = _quiet_topic(place, PARTITIONS)
    where = ledger_partition(ledger, ledger)
    others = (name for n in count() if ledger_partition(ledger, name := f"other-{n}") == where)
    for group_id in [ledger, *islice(others, size // LEDGER_PARTITIONS)]:
        _fill(place, ledger, group_id, topic, _OLD_WINDOWS)
    return _opened(place, ledger, ledger)


def _partitions_of_a_group(place: Place, size: int) -> Figures:
    """A process that stays, and plans and commits hour after hour."""
    topic = _quiet_topic(place, size)
    *hours, last = _hours(topic, 2 + _TIMES)
    with _windows(place, topic, topic) as windows:
        figures = _planned_and_committed(windows, hours)
        plan = windows.plan(last)
        return {
            **figures,
            "plan, KiB": len(plan.to_text()) / 1024,
            "state, KiB": _state_kib(windows),
        }


def _records_in_random_order(place: Place, size: int) -> Figures:
    """A log of four hours whose records have random times: each plan takes a quarter of them."""
    topic = f"growth-random-{size}"
    random = np.random.default_rng(size)
    _make_topic(place, topic, random.integers(0, 4 * _HOUR_MS, size).tolist())
    with _windows(place, topic, topic) as windows:
        first, second = _hours(topic, 2)
        (plan, cpu_s), grown = memory_grown_bytes(lambda: _cpu_of(lambda: windows.plan(first)))
        windows.commit(plan)
        _, again_s = _cpu_of(lambda: windows.plan(second))
    return {
        "first plan, CPU ms": 1e3 * cpu_s,
        "second plan, CPU ms": 1e3 * again_s,
        "first plan, ranges": sum(part.ranges for part in plan),
        "first plan, KiB": len(plan.to_text()) / 1024,
        "first plan, MiB of memory": grown / 1024**2,
    }


def _done_ranges(place: Place, size: int) -> Figures:
    """A window whose offsets are so many ranges is committed; then small ones are planned and committed."""
    topic = f"growth-done-{size}"
    lengths = np.random.default_rng(size).integers(1, 4, 2 * size)
    in_turns = np.repeat(np.arange(2 * size) % 2 * _HOUR_MS, lengths).tolist()
    _make_topic(place, topic, [*in_turns, *(n * _HOUR_MS for n in range(2, 4 + _TIMES))])
    with _windows(place, topic, topic) as windows:
        first, _open, *others = _hours(topic, 3 + _TIMES)
        windows.commit(windows.plan(first))
        return {**_planned_and_committed(windows, others), "state, KiB": _state_kib(windows)}


def _workers_of_one_group(place: Place, size: int) -> Figures:
    """Processes that plan and commit windows of the same group at the same time."""
    topic = _quiet_topic(place, PARTITIONS)
    context = get_context("spawn")
    barrier = context.Barrier(size)
    with ProcessPoolExecutor(size, context, _take_barrier, (barrier,)) as pool:
        group_id = f"growth-workers-{size}"
        done = list(
            pool.map(_work, *zip(*((place, group_id, topic, n) for n in range(size)), strict=True))
        )
    windows = size * _WINDOWS_EACH
    return {
        "windows/s": windows / (max(one[1] for one in done) - min(one[0] for one in done)),
        "CPU ms a window": 1e3 * sum(one[2] for one in done) / windows,
        "longest plan, s": max(one[3] for one in done),
    }


def _windows_in_one_pass(place: Place, size: int) -> Figures:
    """Windows of four records, planned, written as Parquet and committed together."""
    from kafka_ordered_ops import stage_windows

    topic = f"growth-pass-{size}"
    minute = timedelta(minutes=1)
    # Two windows before those that count: what a process does once is done then.
    times = np.repeat(np.arange(size + 3) * 60_000, _RECORDS_EACH).tolist()
    _make_topic(place, topic, times)

    def deliver(windows: OrderedWindows, numbers: range) -> None:
        wanted = [_window(topic, n, minute) for n in numbers]
        plans = windows.plan_many(wanted, [f"{n:06}" for n in numbers])
        staged = stage_windows(plans, windows.settings, place.folder / topic, ordered=False)
        windows.commit_many(plans, staged)

    with _windows(place, topic, topic) as windows:
        deliver(windows, range(2))
        (_, cpu_s), grown = memory_grown_bytes(
            lambda: _cpu_of(lambda: deliver(windows, range(2, size + 2)))
        )
    return {"CPU ms a window": 1e3 * cpu_s / size, "KiB of memory a window": grown / size / 1024}


CURVES: Final = (
    Curve("windows of a group", (100, 1_000, 10_000), _windows_of_a_group),
    Curve("groups of a ledger", (64, 640, 6_400), _groups_of_a_ledger),
    Curve("partitions of a group", (10, 100, 1_000), _partitions_of_a_group),
    Curve("records in random order", (10_000, 100_000, 1_000_000), _records_in_random_order),
    Curve("done ranges of a group", (1_000, 10_000, 100_000), _done_ranges),
    Curve("workers of one group", (1, 2, 8, 32), _workers_of_one_group),
    Curve("windows in one pass", (24, 240, 1_000), _windows_in_one_pass),
)


# --- What several of them need --------------------------------------------------------------------


def _windows(place: Place, ledger: str, group_id: str) -> OrderedWindows:
    from kafka_ordered_ops import OrderedWindows

    return OrderedWindows(
        {"bootstrap.servers": place.bootstrap}, group_id, ledger_topic=f"ledger-{ledger}"
    )


def _window(topic: str, number: int, span: timedelta) -> Window:
    from kafka_ordered_ops import Earliest, Window

    since = DAY_START + number * span
    return Window([topic], cutoff=since + span, since=since, starting_offsets=Earliest())


def _hours(topic: str, hours: int) -> list[Window]:
    return [_window(topic, hour, _HOUR) for hour in range(hours)]


def _quiet_topic(place: Place, partitions: int) -> str:
    """Two records an hour for a day, in each partition."""
    topic = f"growth-quiet-{partitions}"
    make_quiet_topic(place.bootstrap, topic, partitions=partitions, records_each=48)
    return topic


def _make_topic(place: Place, topic: str, times_ms: Sequence[int]) -> None:
    """A topic of one partition with records of these times from the day's start on, and one of the next day."""
    times: Iterator[int] = chain(times_ms, [24 * _HOUR_MS])
    make_topic_of(
        place.bootstrap, topic, ((topic, None, b"value", _START_MS + one) for one in times)
    )


def _fill(place: Place, ledger: str, group_id: str, topic: str, windows: int) -> None:
    from kafka_ordered_ops.kafka.settings import ClientSettings
    from tests.support.ledger_filler import fill_ledger

    settings = ClientSettings.from_mapping({"bootstrap.servers": place.bootstrap})
    fill_ledger(
        settings, group_id, topic, windows, since=DAY_START - _HOUR, ledger=f"ledger-{ledger}"
    )


def _opened(place: Place, ledger: str, group_id: str) -> Figures:
    """A new process's first look at its group, without its imports."""
    found = [_open(place, ledger, group_id) for _ in range(_TIMES)]
    return {
        "first look, KiB read": median(one[0] for one in found) / 1024,
        "first look, CPU ms": 1e3 * median(one[1] for one in found),
    }


def _open(place: Place, ledger: str, group_id: str) -> tuple[int, float]:
    before = received_bytes()
    started_s = time.process_time()
    with _windows(place, ledger, group_id) as windows:
        windows.state()
        return received_bytes() - before, time.process_time() - started_s


def _planned_and_committed(windows: OrderedWindows, wanted: Sequence[Window]) -> Figures:
    """Of a process that stays; the first window does not count."""
    plan_s, commit_s = zip(*(_done(windows, one) for one in wanted), strict=True)
    return {
        "plan, CPU ms": 1e3 * median(plan_s[1:]),
        "commit, CPU ms": 1e3 * median(commit_s[1:]),
    }


def _done(windows: OrderedWindows, window: Window) -> tuple[float, float]:
    plan, plan_s = _cpu_of(lambda: windows.plan(window))
    _, commit_s = _cpu_of(lambda: windows.commit(plan))
    return plan_s, commit_s


def _state_kib(windows: OrderedWindows) -> float:
    """Of the state's record, which each change writes whole; not compressed."""
    from kafka_ordered_ops.core import strict_json

    state = windows.state()
    return len(strict_json.dumps(state.to_json())) / 1024 if state is not None else 0.0


def _cpu_of(call: Callable[[], _T]) -> tuple[_T, float]:
    """The result, and the CPU seconds of this process, those of the client's threads included."""
    started_s = time.process_time()
    return call(), time.process_time() - started_s


_barrier: Any = None


def _take_barrier(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _work(
    place: Place, group_id: str, topic: str, worker: int
) -> tuple[float, float, float, float]:
    """When one worker started and ended, its CPU seconds, and its longest plan."""
    numbers = range(worker * _WINDOWS_EACH, (worker + 1) * _WINDOWS_EACH)
    wanted = [_window(topic, number, _HOUR / 6) for number in numbers]
    longest_s = 0.0
    with _windows(place, group_id, group_id) as windows:
        windows.state()
        _barrier.wait()
        started_s, cpu_s = time.monotonic(), time.process_time()
        for window in wanted:
            before_s = time.monotonic()
            plan: WindowPlan = windows.plan(window)
            longest_s = max(longest_s, time.monotonic() - before_s)
            windows.commit(plan)
        return started_s, time.monotonic(), time.process_time() - cpu_s, longest_s
