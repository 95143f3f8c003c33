"""Times in another unit than their own: which numbers are reported, and which never."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.timestamp_units import TimeUnit, record_notes, unit_notes, wrong_units
from kafka_ordered_ops.core.types import TopicPartition

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
UNITS = st.sampled_from(list(TimeUnit))


@given(UNITS, UNITS, st.integers(1_000_000_000, NOW_MS // 1000))
def test_times_since_2001_are_recognized_in_any_unit(
    own: TimeUnit, unit: TimeUnit, seconds: int
) -> None:
    """In their own unit they are right; in another one, that one is named."""
    found = wrong_units(np.array([seconds * unit]), own, now_ms=NOW_MS)
    assert [one.unit for one in found] == ([] if unit is own else [unit])


@given(st.integers(-(2**63), 2**63 - 1) | st.integers(-10 * DAY_MS, NOW_MS + 366 * DAY_MS))
def test_old_times_and_placeholders_are_never_reported(value: int) -> None:
    """As milliseconds: every time up to a year from now, but for ten days of January 1970."""
    found = wrong_units(np.array([value]), TimeUnit.MILLISECONDS, now_ms=NOW_MS)
    if -(2**62) < value < 1_000_000_000 or 22 * DAY_MS <= value <= NOW_MS + 366 * DAY_MS:
        assert not found
    if value >= 2**62:
        assert not found


def test_a_note_has_the_place_the_numbers_and_what_to_do() -> None:
    """One for each topic; partitions that are right are not counted."""
    tp = TopicPartition
    good, bad = np.array([NOW_MS, 0, -1]), np.array([NOW_MS, NOW_MS // 1000, NOW_MS // 1000 - 1])
    values = {tp("a", 2): bad, tp("a", 0): good, tp("a", 1): bad, tp("b", 0): good}
    [note] = record_notes(values, "the sampled timestamps", now_ms=NOW_MS)
    assert note.startswith(
        "a[1] and 1 more partitions: of the sampled timestamps, 4 of 6 are seconds, and milliseconds are expected: "
        "1,800,000,000 is 1970-01-21T20:00:00Z, and in seconds 2027-01-15T08:00:00Z. Set milliseconds"
    )
    [note] = record_notes({tp("a", 0): np.array([NOW_MS * 1000])}, "x", now_ms=NOW_MS)
    assert "1,800,000,000,000,000 is after the year 9999, and in microseconds 2027" in note


def test_a_few_dates_of_birth_of_january_1970_are_no_note() -> None:
    """A share of a column's values is asked for."""
    births = np.array([1_200_000_000, *range(10**11, 10**11 + 99)])
    values = {TopicPartition("a", 0): births}
    assert unit_notes(values, TimeUnit.MILLISECONDS, "x", now_ms=NOW_MS)
    assert not unit_notes(values, TimeUnit.MILLISECONDS, "x", now_ms=NOW_MS, share=0.1)
