"""The list of windows as people see it: a line each, with ids that can be copied."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.cli.show.tables import windows_table
from kafka_ordered_ops.cli.show.terminal import show_on
from kafka_ordered_ops.testing import InMemoryKafka

START = datetime(2026, 11, 24, tzinfo=UTC)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        """Return whether it has a width."""
        return True


def listed(windows: OrderedWindows) -> list[str]:
    """Return the rows of the table, on a terminal of 80 columns."""
    terminal = _Terminal()
    table = windows_table("hourly", windows.summaries(), now_ms=0)
    table.show_header = False
    show_on(terminal, [table])
    return [line.strip() for line in terminal.getvalue().splitlines() if line.strip()]


def hour(number: int) -> Window:
    """Return an hour of that day."""
    since = START + timedelta(hours=number)
    return Window(
        "orders",
        since=since,
        cutoff=since + timedelta(hours=1),
        starting_offsets="earliest",
        allow_future_cutoff=True,
    )


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[OrderedWindows]:
    """A group without windows; the terminal is 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        yield OrderedWindows(kafka.settings, group_id="hourly")


def test_a_day_of_hours_fits_a_terminal(windows: OrderedWindows) -> None:
    """24 windows are 24 lines of at most 80 columns, each with its whole id."""
    ids = []
    for number in range(24):
        plan = windows.plan(hour(number))
        windows.commit(plan)
        ids.append(plan.window_id)
    rows = listed(windows)
    assert [row.split()[-1] for row in rows] == ids
    assert all(row.startswith("committed") and len(row) <= 80 for row in rows)


def test_names_of_ones_own_stand_beside_the_times(windows: OrderedWindows) -> None:
    """A name of any length is whole, in one line."""
    name = f"manual__2026-11-24T00-00-00-{'x' * 60}"
    windows.commit(windows.plan(hour(0), window_id=name))
    windows.commit(windows.plan(hour(23), window_id="last"))
    first, last = listed(windows)
    assert first.startswith("committed   2026-11-24 00:00 to 01:00")
    assert first.endswith(name)
    assert last.startswith("committed   2026-11-24 23:00 to 2026-11-25 00:00")
