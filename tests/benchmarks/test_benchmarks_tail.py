"""What the benchmarks of ordered reads read, count and report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.__main__ import main
from benchmarks.backlog import DISORDER_RECORDS
from benchmarks.order_breaks import OrderBreaks
from benchmarks.ordered_topics import Arrangement, arranged_stamps
from benchmarks.peers import Peer, PeerRead, PeerSettings
from benchmarks.results import read_results
from benchmarks.statistics import results_of
from benchmarks.tail import CONSUME, JVM, JVM_TUNED
from benchmarks.tail_report import tail_table
from benchmarks.values import Place
from tests.support.bench_support import measured

Row = tuple[int, int, int]
ROWS = st.tuples(st.integers(-2, 2), st.integers(0, 2), st.integers(0, 3))


def _batch(rows: list[Row]) -> pa.RecordBatch:
    kinds = {
        "timestamp": pa.timestamp("ms", tz="UTC"),
        "partition": pa.int32(),
        "offset": pa.int64(),
    }
    columns = [
        pa.array([row[n] for row in rows], pa.int64()).cast(kind)
        for n, kind in enumerate(kinds.values())
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(kinds))


@given(st.lists(st.lists(ROWS, max_size=6), max_size=6), st.integers(1, 8))
def test_order_breaks_are_counted_within_batches_and_between_them(
    batches: list[list[Row]], at_once: int
) -> None:
    """However many records are looked at together."""
    breaks = OrderBreaks(at_once=at_once)
    for rows in batches:
        breaks.look(_batch(rows))
    every = [row for rows in batches for row in rows]
    wanted = sum(later < sooner for sooner, later in pairwise(every))
    assert (breaks.records, breaks.count, breaks.count) == (len(every), wanted, wanted)


@given(st.lists(st.integers(0, 1_300), min_size=1, max_size=4))
def test_topics_differ_in_the_order_of_their_logs_alone(counts: list[int]) -> None:
    """No time is there twice; shuffled records stay among their 500."""
    counts[0] += 1
    logs = {
        one: [arranged_stamps(one, counts, n) for n in range(len(counts))] for one in Arrangement
    }
    in_order = logs[Arrangement.IN_ORDER]
    assert [len(log) for log in in_order] == counts
    every = [stamp for log in in_order for stamp in log]
    assert len(set(every)) == len(every)
    assert in_order == [sorted(log) for log in in_order]
    assert logs[Arrangement.REVERSED] == [log[::-1] for log in in_order]
    for log, shuffled in zip(in_order, logs[Arrangement.SHUFFLED], strict=True):
        for first in range(0, len(log), DISORDER_RECORDS):
            part = slice(first, first + DISORDER_RECORDS)
            assert sorted(shuffled[part]) == log[part]


def test_a_read_that_was_cut_off_is_shown_as_such() -> None:
    """With what it delivered until then, and without a ratio: how long it would have taken is not known."""
    runs = [measured(CONSUME, n, 1.0, size=9_000) for n in (1, 2)]
    runs.append(replace(measured("kafkars", 1, 2.0, size=9_000), order_breaks=3))
    stuck = replace(measured("kafkars", 2, 4.0, size=9_000), order_breaks=5)
    runs.append(replace(stuck, records=4_000, is_complete=False))
    *_, base, peer = tail_table(results_of(runs)).splitlines()
    assert base.split(" | ")[2:4] == ["1.00 (1.00 to 1.00)", "9"]
    assert base.split(" | ")[-3:] == ["-", "-", "2 |"]
    assert peer.split(" | ")[1:4] == ["3.00 (2.00 to 4.00)", "-", "3"]
    assert peer.split(" | ")[-4:] == ["4 (3 to 5)", "-", "1", "2 |"]


class Stuck:
    """A peer's reader that delivers five records, the fourth too late, and then nothing."""

    config: dict[str, str]

    def __init__(self, config: dict[str, str], topics: list[str], batch_size: int) -> None:
        type(self).config = config
        self._batches: Iterator[list[Row]] = iter(
            [[(1, 0, 0), (2, 0, 1), (3, 0, 2)], [], [(2, 1, 0), (4, 1, 1)]]
        )

    def poll(self, timeout_ms: int) -> pa.RecordBatch:
        return _batch(next(self._batches, []))


@pytest.mark.parametrize(("records", "is_complete"), [(5, True), (6, False)])
@pytest.mark.parametrize("settings", PeerSettings)
def test_a_peer_is_read_to_the_last_record_or_cut_off(
    records: int,
    is_complete: bool,
    settings: PeerSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its order breaks are counted, and its client has the settings of the contender's name."""
    package: Any = SimpleNamespace(
        ConsumerManager=Stuck, SourceTopic=SimpleNamespace(from_earliest=str)
    )
    monkeypatch.setitem(sys.modules, Peer.KAFKARROW.value, package)
    job = PeerRead(Peer.KAFKARROW, "topic", records, settings, timeout_s=0.05)
    made = job.start(Place("broker:1", tmp_path)).run(1)
    assert (made.records, made.order_breaks, made.is_complete) == (5, 1, is_complete)
    assert ("fetch.queue.backoff.ms" in Stuck.config) is (settings is not PeerSettings.DEFAULT)


@pytest.mark.long
def test_plain_reads_are_measured(tmp_path: Path) -> None:
    """On a broker of its own: the client's records as they come, and Java's consumer."""
    asked = ["--only", "tail", "--scale", "smoke", "--repeats", "1"]
    for name in (CONSUME, JVM, JVM_TUNED):
        asked += ["--contender", name]
    assert main([*asked, "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]) == 0
    [kept] = read_results(tmp_path / "out").values()
    assert {one.contender for one in kept.measurements} == {CONSUME, JVM, JVM_TUNED}
    for one in kept.measurements:
        assert one.records == one.size
        assert (one.order_breaks is None) is (one.contender != CONSUME)
        assert ("fetch" in one.beyond_s) is (one.contender != CONSUME)
    assert "order breaks" in (tmp_path / "out" / "tables.md").read_text()
