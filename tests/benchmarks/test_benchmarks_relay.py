"""The comparisons of the relay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.goals import goals
from benchmarks.relay import (
    FIRST_RECORD,
    ONE_BY_ONE,
    P50,
    P99,
    RELAY,
    RELAY_BATCHES,
    RELAY_LATENCY,
    RELAY_SINGLE,
    SHARE_GROUP,
)
from benchmarks.relay_load import percentile
from benchmarks.results import read_results
from benchmarks.statistics import results_of
from tests.support.bench_support import measured


def test_a_percentile_is_a_measured_value() -> None:
    """Of a hundred, the 99th is above 99; of one, all are the same."""
    hundred = [float(n) for n in range(100)]
    assert [percentile(hundred, share) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 50, 99, 99]
    assert percentile([7.0], 0.99) == 7.0


def test_goals_count_records_requests_and_milliseconds() -> None:
    """A single record is two requests; the share group has no goal."""
    rows = {
        RELAY: [measured(RELAY_BATCHES, 1, 2.0), measured(SHARE_GROUP, 1, 1.0)],
        RELAY_SINGLE: [measured(ONE_BY_ONE, 1, 4.0)],
        RELAY_LATENCY: [replace(measured(ONE_BY_ONE, 1, 20.0), beyond_s={P99: 0.05})],
    }
    found = list(goals({name: results_of(runs) for name, runs in rows.items()}))
    records = rows[RELAY][0].records
    assert [one.found.median for one in found] == pytest.approx([records / 2, records / 2, 50.0])
    assert not found[2].is_met


@pytest.mark.long
def test_a_server_is_measured_beside_a_share_group(tmp_path: Path) -> None:
    """Each record is delivered by both; the parts beyond the job are there."""
    asked = ["--scale", "smoke", "--repeats", "1", "--work", str(tmp_path / "work")]
    asked += ["--out", str(tmp_path / "out")]
    for name in (RELAY, RELAY_SINGLE, RELAY_LATENCY):
        asked += ["--only", name]
    assert main(asked) == 0
    kept = read_results(tmp_path / "out")
    assert {one.contender for one in kept[RELAY].measurements} == {RELAY_BATCHES, SHARE_GROUP}
    for name in (RELAY, RELAY_SINGLE, RELAY_LATENCY):
        for one in kept[name].measurements:
            assert one.records == one.size
            assert one.beyond_s[FIRST_RECORD] > 0
    for one in kept[RELAY_LATENCY].measurements:
        assert one.beyond_s[P50] <= one.beyond_s[P99]
    assert "first record, ms" in (tmp_path / "out" / "tables.md").read_text()
