"""Intervals, sweeps, passes over several windows and moved offsets over logs in memory, by brute force."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import Window
from kafka_ordered_ops.core.group.gaps import gaps_of
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.planning import planning, scan_fold
from kafka_ordered_ops.core.planning.time_map import TimeMap
from kafka_ordered_ops.core.types import INT64_MIN, TopicPartition
from tests.support.examples import examples
from tests.support.interval_model import IntervalModel, interval, sweep
from tests.support.model import ModelGroup, ModelLog

TP = TopicPartition("orders", 0)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of two records, and two ranges for late ones, so that short logs have many."""
    monkeypatch.setattr(scan_fold, "CHUNK_RECORDS", 2)
    for module in (scan_fold, planning):
        monkeypatch.setattr(module, "EARLIER_RANGES_MAX", 2)


record = st.tuples(
    st.sampled_from(["record"] * 4 + ["marker"]),
    st.integers(0, 1),
    st.sampled_from([-2, -1, *range(22), 30]),
    st.sampled_from([0, 0, 0, 1, 3]),
)
records = st.lists(record, min_size=1, max_size=8)
#: Times that meet often: on a grid, or anywhere.
span = st.one_of(
    st.tuples(st.sampled_from([0, 5, 10, 15]), st.just(5)),
    st.tuples(st.integers(-4, 24), st.integers(1, 9)),
)
edges = st.lists(st.sampled_from([-4, *range(0, 26, 5), 7, 13]), min_size=2, unique=True)
which = st.integers(0, 5)
place = st.tuples(st.integers(0, 1), st.integers(0, 40))
planned = st.one_of(
    st.tuples(st.just("interval"), span),
    # The times of an earlier window, or the times after them.
    st.tuples(st.sampled_from(["again", "after"]), which),
)
ended = st.tuples(st.sampled_from(["commit", "abandon", "abandon"]), which)
# Another window for the times of an open one is planned and committed, then the open one is abandoned.
outlived = st.tuples(st.just("outlive"), which)
appended = st.tuples(st.just("append"), records)
expired = st.tuples(st.just("expire"), place)
taken_up = st.tuples(st.just("take_up"), which)
#: Kinds of actions, of which each history has a few.
AT_TIMES = [
    appended,
    outlived,
    expired,
    taken_up,
    st.tuples(st.just("race"), st.tuples(planned, planned | ended)),
    st.tuples(st.just("many"), edges),
    st.tuples(st.just("sweep"), st.integers(0, 31)),
    st.tuples(st.just("commit_many"), which),
    st.tuples(st.just("split"), which),
    st.tuples(st.just("move"), place),
    st.tuples(st.just("reset"), place),
]


#: Kinds that must meet often: among all kinds they rarely do.
FEW_KINDS = {"given up": [planned, ended, outlived], "lost": [planned, ended, appended, expired]}


@st.composite
def histories(draw: st.DrawFn, few: str | None) -> list[tuple[str, object]]:
    """A log and actions: of the kinds under a name, or of up to four drawn kinds."""
    if few is None:
        kinds = draw(st.lists(st.sampled_from(range(len(AT_TIMES))), max_size=4, unique=True))
        action = st.one_of(planned, ended, *(AT_TIMES[kind] for kind in kinds))
    else:
        action = st.one_of(*FEW_KINDS[few])
    return [("append", draw(records)), *draw(st.lists(action, min_size=6, max_size=30))]


def window_of(model: IntervalModel, verb: str, argument: object) -> Window:
    """The interval that an action plans."""
    match verb, argument:
        case "interval", (int(since), int(length)):
            return interval(since, since + length)
        case (("again" | "after"), int(number)) if model.asked:
            known = model.asked[-1 - number % len(model.asked)].times
            if known.since_ms == INT64_MIN:
                return interval(known.before_ms, known.before_ms + 5)
            length = known.before_ms - known.since_ms
            since = known.since_ms if verb == "again" else known.before_ms
            return interval(since, since + length)
        case _:
            return interval(0, 5)


def act(model: IntervalModel, name: str, verb: str, argument: object) -> None:
    """Runs one action, if the model has what it needs."""
    logs = list(model.group.logs)
    match verb, argument:
        case "append", list(written):
            for kind, partition, time, hole in written:
                log = model.group.logs[logs[partition % len(logs)]]
                log.append(time, visible=kind == "record", hole=hole)
        case (("interval" | "again" | "after"), _):
            model.plan((name, window_of(model, verb, argument)))
        case "outlive", int(number) if model.open:
            older = sorted(model.open)[number % len(model.open)]
            model.plan((name, model.open[older].window))
            model.commit(name)
            model.abandon(older)
        case "race", ((str(own), own_argument), (str(others), others_argument)):
            model.plan(
                (name, window_of(model, own, own_argument)),
                meanwhile=lambda: act(model, f"{name} others", others, others_argument),
            )
        case "many", list(cuts):
            pairs = pairwise(sorted(cuts))
            model.plan(*((f"{name}-{n}", interval(*pair)) for n, pair in enumerate(pairs)))
        case "sweep", int(cutoff):
            model.plan((name, sweep(cutoff)))
        case "commit_many", int(_) if model.open:
            model.commit(*model.open)
        case (("commit" | "abandon" | "split" | "take_up"), int(number)) if model.open:
            getattr(model, verb)(sorted(model.open)[number % len(model.open)])
        case (("move" | "reset" | "expire"), (int(partition), int(offset))):
            tp = logs[partition % len(logs)]
            getattr(model, verb)(tp, min(offset, model.group.logs[tp].end))


@pytest.mark.parametrize("few", [*FEW_KINDS, None])
@settings(max_examples=examples(80, by_day=20))
@given(st.data(), st.integers(1, 2))
def test_every_record_is_in_exactly_one_window(
    few: str | None, data: st.DataObject, partitions: int
) -> None:
    """Intervals in any order and several at once, sweeps, races, abandoned windows, retention, offsets moved and reset.

    After each step, the known bounds contain the time of every waiting record.
    """
    model = IntervalModel(
        ModelGroup({TopicPartition("orders", n): ModelLog() for n in range(partitions)})
    )
    for number, (verb, argument) in enumerate(data.draw(histories(few), label="actions")):
        act(model, f"w{number}", verb, argument)
        model.check_bounds()
        model.check_gaps()
    model.plan(("last", sweep(1_000)))
    model.commit(*model.open)
    model.check_all_done()
    assert not gaps_of(model.group.view)


@st.composite
def known_logs(draw: st.DrawFn) -> tuple[ModelLog, TimeMap]:
    """A log, and a time map with true bounds for some of its records, in chunks that begin and end anywhere."""
    log = ModelLog()
    for kind, _, time, hole in draw(st.lists(record, min_size=1, max_size=12)):
        log.append(time, visible=kind == "record", hole=hole)
    rows = []
    cuts = sorted({0, log.end, *draw(st.lists(st.integers(0, log.end), max_size=9))})
    for start, end in pairwise(cuts):
        times = list(log.visible(OffsetSet.of((start, end))).values()) or [
            draw(st.integers(-2, 30))
        ]
        below, above = draw(st.tuples(*[st.sampled_from([0, 0, 0, 0, 0, 5])] * 2))
        if draw(st.integers(0, 4)):
            rows.append((start, end, min(times) - below, max(times) + above))
    return log, TimeMap(np.array(rows, dtype=np.int64).reshape(-1, 4)).of_topic("id of orders")


@settings(max_examples=examples(200, by_day=40))
@given(known_logs(), edges.map(sorted), st.randoms(use_true_random=False), span, st.integers(0, 6))
def test_known_times_change_no_window(
    known: tuple[ModelLog, TimeMap],
    cuts: list[int],
    random: Random,
    first: tuple[int, int],
    log_start: int,
) -> None:
    """Known bounds only save reads: each of several windows holds its records, and no offset is in two windows."""
    log, time_map = known
    model = IntervalModel(ModelGroup({TP: log}))
    model.plan(("first", interval(first[0], first[0] + first[1])))
    model.commit("first")
    model.group.view = replace(model.group.view, time_maps={TP: time_map})
    model.check_bounds()
    model.expire(TP, log_start)
    windows = [interval(*pair) for pair in pairwise(cuts)]
    random.shuffle(windows)
    model.plan(*((f"w{n}", window) for n, window in enumerate(windows)))
    model.check_bounds()
    for name in [*model.open]:
        model.abandon(name)
    model.check_bounds()


@settings(max_examples=examples(50))
@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=120),
    st.integers(5, 30),
    st.sampled_from(["forward", "backward", "at once"]),
)
def test_a_backlog_of_intervals_is_scanned_once(times: list[int], step: int, order: str) -> None:
    """Whichever way it is planned: besides straddling chunks no timestamp is read twice."""
    group = ModelGroup({TP: ModelLog()})
    for time in sorted(times):
        group.logs[TP].append(time)
    edges = list(range(0, 100 + step, step))
    asked = [(f"w{low}", interval(low, high)) for low, high in pairwise(edges)]
    if order == "at once":
        group.commit(*group.plan_many(*asked))
    else:
        for name, window in asked if order == "forward" else reversed(asked):
            group.commit(group.plan(window, name))
    counts = Counter(group.scanned)
    # A chunk of two records straddles one cutoff, and its records are read again then.
    assert max(counts.values(), default=0) <= (1 if order == "at once" else 3)
    assert len(group.scanned) <= len(times) + 4 * len(edges)
    state = group.view.state
    assert state is not None
    assert state.topics["orders"].partitions[0].base == len(times)


def test_a_late_record_comes_with_the_next_interval_whatever_its_order() -> None:
    """Newest first: a record of a planned interval goes to the next one planned behind it in time."""
    group = ModelGroup({TP: ModelLog()})
    for time in [5, 15, 25]:
        group.logs[TP].append(time)
    group.plan(interval(10, 20), "middle")
    group.logs[TP].append(12)
    assert set(group.records(group.plan(interval(0, 10), "first"))) == {(TP, 0)}
    last = group.plan(interval(20, 30), "last")
    assert set(group.records(last)) == {(TP, 2), (TP, 3)}
    late = last.partitions[0].late.mask(np.array([2, 3]), np.array([25, 12]))
    assert late.tolist() == [False, True]
