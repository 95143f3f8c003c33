"""Out-of-order records are counted by what was read: the broker's index counts markers and aborted records as well."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import AtOffset, Earliest, Window, WindowPlan, stage_window
from kafka_ordered_ops.cli.show.facts import delivery_json, plan_json
from kafka_ordered_ops.core.planning import scan_fold
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.delivery.plots import RED, window_plot
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.examples import examples
from tests.support.interval_oracle import interval, stamped
from tests.support.logs import LogWriter, visible_records
from tests.support.model import ModelGroup, ModelLog
from tests.support.out_of_order import checked_out_of_order
from tests.support.windows_support import BASE_MS, at, before
from tests.windows.test_log_shapes import Transactional, transactional

__all__ = ["transactional"]

TP = TopicPartition("orders", 0)

#: A marker carries the broker's clock, which is far ahead of the times of a backlog.
NOW_S = 10**6

records = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(["record"] * 4 + ["aborted", "marker"])),
    max_size=20,
)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of two records, so that short logs have many."""
    monkeypatch.setattr(scan_fold, "CHUNK_RECORDS", 2)


def write(log: ModelLog, written: Sequence[tuple[int, str]]) -> None:
    """Records at seconds of the tests' time; markers at the broker's."""
    for second, kind in written:
        second_ms = BASE_MS + 1_000 * (NOW_S if kind == "marker" else second)
        log.append(second_ms, visible=kind == "record")


# --- in memory --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
@settings(max_examples=examples(60))
@given(
    st.lists(records, min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from(["one by one", "committed late", "together"]),
)
def test_rising_windows_tell_their_out_of_order_records(
    batches: list[list[tuple[int, str]]], in_intervals: bool, how: str
) -> None:
    """Whatever was aborted, and however many markers there are: the number, and the right one."""
    group = ModelGroup({TP: ModelLog()})
    edges = [0, 10, 15, 20, 30, 41]
    asked = [
        (f"w{high}", interval("orders", low, high) if in_intervals else before("orders", high))
        for low, high in pairwise(edges)
    ]
    if how == "together":
        for batch in batches:
            write(group.logs[TP], batch)
        for plan in group.plan_many(*asked):
            assert group.out_of_order(plan) is not None
        return
    for number, (name, window) in enumerate(asked):
        if number < len(batches):
            write(group.logs[TP], batches[number])
        plan = group.plan(window, name)
        assert group.out_of_order(plan) is not None
        if how == "one by one":
            group.commit(plan)


@pytest.mark.parametrize(
    ("earlier", "later", "out_of_order"),
    [
        # A record stamped one millisecond before the cutoff is what the index answers with.
        ([], [5, 19.999, 6, 20, 7], 1),
        # A record from the future stands first in all windows that follow, and is read again for each.
        ([1, 2_000_000], [12, 13, 30, 14], 3),
        # The first window has read it, and left it.
        ([1, 25], [12], 1),
        ([1, 12, 25, 13], [], 1),
    ],
)
def test_what_lies_behind_the_first_record_past_the_cutoff_is_counted(
    earlier: list[float], later: list[float], out_of_order: int
) -> None:
    """The second of two windows, the first one up to second 10 and this one up to second 20."""
    group = ModelGroup({TP: ModelLog()})
    for seconds, cutoff in ((earlier, 10), (later, 20)):
        for second in seconds:
            group.logs[TP].append(BASE_MS + round(second * 1000))
        group.commit(group.plan(before("orders", cutoff, Earliest()), f"w{cutoff}"))
    assert group.out_of_order(group.view.windows["w20"].plan) == out_of_order


def test_what_others_delivered_is_not_guessed() -> None:
    """Records that nobody here has read may be stamped past the cutoff: then there is no number."""
    group = ModelGroup({TP: ModelLog()})
    for second in (1, 2, 30, 3):
        group.logs[TP].append(BASE_MS + second * 1000)
    group.commit(group.plan(before("orders", 2, Earliest()), "first"))
    group.move({TP: 3})
    plan = group.plan(before("orders", 20), "second")
    assert group.records(plan) == {(TP, 3): BASE_MS + 3_000}
    assert group.out_of_order(plan) is None


def test_a_window_behind_a_later_one_does_not_guess() -> None:
    """The later one has taken records that this one's cutoff is before: where they lie is forgotten."""
    group = ModelGroup({TP: ModelLog()})
    for second in (1, 15, 30):
        group.logs[TP].append(BASE_MS + second * 1000)
    group.commit(group.plan(interval("orders", 10, 20), "later"))
    group.logs[TP].append(BASE_MS + 2_000)
    plan = group.plan(interval("orders", 0, 10), "earlier")
    assert set(group.records(plan)) == {(TP, 0), (TP, 3)}
    assert group.out_of_order(plan) is None


# --- on a broker ------------------------------------------------------------------------------------


@pytest.fixture
def backlog(bootstrap: str, topic: MakeTopic) -> str:
    """Two partitions of plain, committed and aborted records of a minute, in no order; markers of today."""
    name = topic(partitions=2)
    writer = LogWriter(bootstrap, Random(7))
    for low in range(0, 60, 10):
        low_ms = BASE_MS + low * 1_000
        writer.write([(name, 0), (name, 1)], count=80, low_ms=low_ms, high_ms=low_ms + 20_000)
    return name


def visible_below(bootstrap: str, plan: WindowPlan) -> dict[tuple[str, int, int], int]:
    """What a plain consumer sees below the ends of a plan."""
    return visible_records(bootstrap, {part.tp: part.decided_end for part in plan})


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one by one", "together", "intervals"])
def test_windows_of_a_transactional_log_tell_the_true_number(
    bootstrap: str, windows: OrderedWindows, backlog: str, how: str, tmp_path: Path
) -> None:
    """In the sink's facts, and against a plain consumer."""
    edges = [0, 15, 30, 45, 80]
    asked = [
        interval(backlog, low, high) if how == "intervals" else before(backlog, high, Earliest())
        for low, high in pairwise(edges)
    ]
    together = windows.plan_many(asked, [f"w{n}" for n in range(4)]) if how == "together" else []
    counted = []
    for number, window in enumerate(asked):
        plan = together[number] if together else windows.plan(window, f"w{number}")
        expected = checked_out_of_order(plan, visible_below(bootstrap, plan))
        assert expected is not None
        output = stage_window(plan, windows.settings, tmp_path)
        assert output.facts["out_of_order"] == expected
        windows.commit(plan, output)
        counted.append(expected)
    assert any(counted)


@pytest.mark.parametrize("isolation", list(Isolation))
def test_aborted_records_and_markers_make_no_out_of_order_records(
    bootstrap: str,
    windows: OrderedWindows,
    topic: MakeTopic,
    produce: Produce,
    transactional: list[Transactional],
    isolation: Isolation,
) -> None:
    """Records in order behind an aborted one of later times: out-of-order records for those who see it, and no others."""
    name = topic()
    produce(stamped(name, 1))
    transactional[0].send(name, 0, 2)
    transactional[0].end("commit")
    transactional[0].send(name, 0, 50)
    transactional[0].end("abort")
    produce(stamped(name, 3, 4, 30, 5))
    window = Window([name], at(20), starting_offsets=Earliest(), isolation=isolation)
    plan = windows.plan(window)
    assert plan.tells_out_of_order
    [part] = plan
    # 0: 1 s, 1: 2 s, 2: marker, 3: aborted, then 3 s, 4 s, 30 s, 5 s and, somewhere among them, the second marker
    [past] = [
        key[2] for key, ms in visible_below(bootstrap, plan).items() if ms == BASE_MS + 30_000
    ]
    assert part.head_end == (past if isolation is Isolation.READ_COMMITTED else 3)


def test_a_window_that_does_not_know_says_so(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    """The group begins behind a record that it never reads: no number, and no line in the picture."""
    name = topic()
    produce(stamped(name, 1, 40, 2, 3))
    plan = windows.plan(before(name, 20, AtOffset(2)))
    output = stage_window(plan, windows.settings, tmp_path)
    windows.commit(plan, output)
    assert (output.facts["records"], output.facts["out_of_order"]) == (2, None)
    assert RED not in window_plot(plan, "svg").decode()
    [part] = plan_json(plan)["partitions"]
    assert (part["offsets"], part["head"], part["tail"]) == (2, None, None)
    told = delivery_json(windows.show(plan.window_id), state=None, ran=True)
    assert told["out_of_order"] is None
