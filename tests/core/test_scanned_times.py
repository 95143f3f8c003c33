"""Timestamps that scans have read, kept for the next plans of the process."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.planning.scan_fold import ScanFold, ScanStop
from kafka_ordered_ops.core.planning.scanned_times import (
    NOTHING,
    KeptTimes,
    Log,
    Scan,
    ScannedTimes,
)
from kafka_ordered_ops.core.time_ranges import TimeRange, TimeSplit
from kafka_ordered_ops.core.types import Isolation, TopicPartition

LOG: Final = Log("topic id", 3, Isolation.READ_COMMITTED)
HERE: Final = TopicPartition("orders", 0)

#: Of a log with holes: the timestamp of the record at an offset, or None where none is visible.
LOGS: Final = st.lists(st.none() | st.integers(0, 40), min_size=1, max_size=60)


def times_of(log: list[int | None], offsets: OffsetSet) -> ScannedTimes:
    """What a scan of these offsets reads."""
    visible = np.array([n for n, one in enumerate(log) if one is not None and n in offsets])
    times = np.array([log[n] for n in visible.tolist()], dtype=np.int64)
    return ScannedTimes(offsets, visible.astype(np.int64), times)


def read(scan: Scan, log: list[int | None], batch: int) -> None:
    """Read what a scan has to read, some records at a time."""
    times = times_of(log, scan.to_read)
    for at in range(0, times.offsets.size, batch):
        some = slice(at, at + batch)
        if scan.fold.stopped:
            break
        scan.take(times.offsets[some], times.timestamps_ms[some], int(times.offsets[some][-1]) + 1)
    else:
        if scan.to_read:
            scan.take(times.offsets[:0], times.timestamps_ms[:0], scan.to_read.end)
    scan.finish()


@given(
    log=LOGS,
    wanted=st.sets(st.integers(0, 59), min_size=1),
    known=st.sets(st.integers(0, 59)),
    stop=st.none() | st.integers(20, 40),
    batch=st.integers(1, 9),
)
def test_a_scan_finds_the_same_whatever_was_known(
    log: list[int | None], wanted: set[int], known: set[int], stop: int | None, batch: int
) -> None:
    """In all that plans use, and in what is kept for the next one."""
    asked = OffsetSet.from_offsets(np.array(sorted(n for n in wanted if n < len(log)), np.int64))
    before = times_of(log, asked & OffsetSet.from_offsets(np.array(sorted(known), np.int64)))
    split = TimeSplit.of([[TimeRange(0, 10)], [TimeRange(10, 20)]])

    def fold() -> ScanFold:
        ends = None if stop is None else ScanStop(stop, 0, 1_000)
        return ScanFold(asked, split, ends, cutoffs_ms=(10, 20), sinces_ms=(0, 10))

    anew, again = Scan(fold(), asked, NOTHING), Scan(fold(), asked, before)
    for scan in (anew, again):
        read(scan, log, batch)
    expected, found = anew.fold.finish(), again.fold.finish()
    assert not again.to_read & before.covered
    for name in ("by_window", "stopped_at", "records", "first_past", "earlier"):
        assert getattr(found, name) == getattr(expected, name)
    kept = before.joined(again.learned())
    true = times_of(log, kept.covered)
    assert kept.offsets.tolist() == true.offsets.tolist()
    assert kept.timestamps_ms.tolist() == true.timestamps_ms.tolist()


@pytest.mark.parametrize(
    "other",
    [
        LOG._replace(topic_id="recreated"),
        LOG._replace(leader_epoch=4),
        LOG._replace(isolation=Isolation.READ_UNCOMMITTED),
        None,
    ],
)
def test_nothing_is_known_of_another_log(other: Log | None) -> None:
    """Such as a topic that was created again, or one whose new leader may have cut it."""
    kept = KeptTimes()
    times = times_of([5, 6], OffsetSet.of((0, 2)))
    kept.keep(HERE, LOG, times)
    assert kept.of(HERE, LOG) is times
    assert kept.of(HERE, other) is NOTHING
    assert kept.of(TopicPartition("orders", 1), LOG) is NOTHING
    kept.keep(HERE, other, NOTHING)
    assert (kept.of(HERE, LOG), kept.nbytes) == (NOTHING, 0)


def test_what_is_kept_has_a_bound() -> None:
    """The partitions scanned last stay, and of one that is too large its first offsets."""
    log: list[int | None] = list(range(100))
    times = times_of(log, OffsetSet.of((0, 100)))
    kept = KeptTimes(bytes_max=3 * times.nbytes)
    partitions = [TopicPartition("orders", number) for number in range(5)]
    for tp in partitions:
        kept.keep(tp, LOG, times)
        assert kept.nbytes <= kept.bytes_max
    assert [bool(kept.of(tp, LOG).covered) for tp in partitions] == [False] * 2 + [True] * 3
    small = KeptTimes(bytes_max=times.nbytes // 2)
    small.keep(HERE, LOG, times)
    left = small.of(HERE, LOG)
    assert 0 < left.nbytes <= small.bytes_max
    assert left.offsets.tolist() == list(range(left.covered.end))
