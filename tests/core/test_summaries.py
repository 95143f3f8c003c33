"""What a list shows of each window: the same from the header beside the record as from the record itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, Earliest, LedgerCorruptError, UnknownWindowError, Window
from kafka_ordered_ops.cli.show.facts import record_facts, summary_facts
from kafka_ordered_ops.cli.show.tables import windows_table
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.group.group_state import PartReports, Pruned, WindowRecord
from kafka_ordered_ops.core.group.ledger import window_list
from kafka_ordered_ops.core.group.ledger.messages import SUMMARY
from kafka_ordered_ops.core.group.ledger.records import LedgerFold
from kafka_ordered_ops.core.group.ledger.window_list import WindowList
from kafka_ordered_ops.core.group.summaries import Summaries, WindowSummary
from kafka_ordered_ops.core.types import INT64_MAX, WindowStatus
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.strategies import window_plans
from tests.support.windows_support import no_age

counts = st.integers(0, 2**62)
times_ms = st.integers(0, 2**47)
results: st.SearchStrategy[Any] = st.sampled_from(
    [None, {}, [], "text", {"facts": {}}, {"facts": {"records": 5}}, {"facts": {"records": True}}]
)
records = st.builds(
    WindowRecord,
    plan=window_plans,
    result=results,
    run_id=st.none() | st.text(max_size=20),
    touched_at_ms=times_ms,
    committed_at_ms=st.none() | times_ms,
    parts=st.none()
    | st.builds(PartReports, st.integers(1, 5), st.dictionaries(st.integers(0, 4), results)),
    pruned=st.none() | st.builds(Pruned, counts, counts),
)


@given(records)
def test_a_summary_survives_its_text(record: WindowRecord) -> None:
    """To the header and back: the same line of a list."""
    summary = WindowSummary.of(record)
    text = summary.to_text()
    assert text is not None
    found = WindowSummary.from_text(record.plan.window_id, text.encode())
    # Counts beyond 64 bits, which no log has, are left to the record.
    assert found == (summary if summary.offsets <= INT64_MAX else None)


@given(records, st.data())
def test_a_header_that_is_none_is_told(record: WindowRecord, data: Any) -> None:
    """Then the record is read: whatever stands there, a list is not made from it."""
    text = WindowSummary.of(record).to_text()
    assert text is not None
    values = json.loads(text)
    at = data.draw(st.integers(0, len(values) - 1))
    wrongs: list[Any] = [
        values[:-1],
        [*values, 1],
        [*values[:at], {}, *values[at + 1 :]],
        [2, *values[1:]],
        {},
    ]
    for wrong in wrongs:
        assert WindowSummary.from_text("w", strict_json.dumps(wrong).encode()) is None
    for data_ in (b"", b"\xff", b"[" * 1_000, b"null"):
        assert WindowSummary.from_text("w", data_) is None


@pytest.fixture
def windows() -> Iterator[OrderedWindows]:
    """A group with windows of every kind."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", 1)
        for number in range(40):
            kafka.produce("orders", value=b"x", timestamp_ms=1_000 * number)
        with OrderedWindows(kafka.settings, "g", run_id="run") as opened:
            plans = {
                name: opened.plan(before(cutoff), name)
                for name, cutoff in (("a", 5), ("b", 10), ("c", 15), ("d", 20), ("e", 25))
            }
            opened.commit(plans["a"])
            opened.prune(no_age())
            opened.mark_written(plans["b"], {"facts": {"records": 3}})
            opened.commit(plans["b"])
            opened.abandon("c")
            for share in opened.split(plans["d"], 3)[1:]:
                opened.report(share, {})
            yield opened


def before(number: int) -> Window:
    """Everything before a second."""
    return Window(["orders"], datetime.fromtimestamp(number, UTC), Earliest())


def without_headers(
    take: Callable[..., None],
) -> Callable[..., None]:
    """What an earlier version wrote."""

    def taking(self: LedgerFold, offset: int, key: Any, value: Any, headers: Any) -> None:
        take(
            self,
            offset,
            key,
            value,
            lambda: {name: one for name, one in dict(headers()).items() if name != SUMMARY},
        )

    return taking


@pytest.mark.parametrize("old", [False, True])
def test_a_list_is_that_of_the_records(
    windows: OrderedWindows, monkeypatch: pytest.MonkeyPatch, old: bool
) -> None:
    """Planned, written, split, committed, pruned and abandoned ones; of an old ledger the records are read."""
    if old:
        monkeypatch.setattr(LedgerFold, "take", without_headers(LedgerFold.take))
    with OrderedWindows(windows.settings, "g") as cold:
        found = cold.summaries()
        assert list(found.windows) == [WindowSummary.of(one) for one in windows.list()]
        assert [one.window_id for one in found.windows] == ["a", "b", "c", "d", "e"]
        assert [one.records for one in found.windows] == [None, 3, None, None, None]
        assert found.windows[3].parts is not None
        assert found.windows[3].parts.missing == (0,)
        assert {one.run_id for one in found.windows} == {"run"}


def test_pages_are_parts_of_the_list(windows: OrderedWindows) -> None:
    """The last so many, and those before a window."""
    whole = windows.summaries().windows
    assert windows.summaries(limit=2).windows == whole[-2:]
    assert windows.summaries(limit=100).windows == whole
    assert windows.summaries(before="d").windows == whole[:3]
    assert windows.summaries(limit=2, before="d").windows == whole[1:3]
    assert windows.summaries(before="a").windows == ()
    with pytest.raises(UnknownWindowError, match="unheard"):
        windows.summaries(before="unheard")
    for limit in (0, -1, True, 2.5, "2"):
        with pytest.raises(ConfigError, match="limit"):
            windows.summaries(limit=limit)  # type: ignore[arg-type]


def test_a_page_reads_only_what_has_changed(
    windows: OrderedWindows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that lists again and again, as a page of a host does, parses each header once after every write."""
    read: list[str] = []
    parse = WindowSummary.from_text

    def counting(window_id: str, text: bytes) -> WindowSummary | None:
        read.append(window_id)
        return parse(window_id, text)

    everything = windows.summaries().windows
    monkeypatch.setattr(WindowSummary, "from_text", counting)
    assert windows.summaries(limit=2).windows == everything[-2:]
    assert windows.summaries().windows == everything
    assert read == []
    plan = windows.plan(before(30), "new")
    assert [one.window_id for one in windows.summaries(limit=1).windows] == ["new"]
    windows.abandon("new")
    assert windows.summaries(limit=1).windows[0].status is WindowStatus.ABANDONED
    assert set(read) == {plan.window_id}


def test_a_page_parses_what_it_shows(
    windows: OrderedWindows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a group with many windows, a new process parses the summaries of the page and no others."""
    read: list[str] = []
    parse = WindowSummary.from_text

    def counting(window_id: str, text: bytes) -> WindowSummary | None:
        read.append(window_id)
        return parse(window_id, text)

    monkeypatch.setattr(WindowSummary, "from_text", counting)
    with OrderedWindows(windows.settings, "g") as cold:
        assert [one.window_id for one in cold.summaries(limit=2).windows] == ["d", "e"]
        assert read == ["e", "d"]
        assert [one.window_id for one in cold.summaries(limit=1, before="b").windows] == ["a"]
        assert read == ["e", "d", "a"]


@given(records, st.sampled_from([b"[1,7,", b"[1,7", b"[1,7,]", b"{}", b"[1,-7,null]", b"[1,1e3,"]))
def test_a_window_whose_header_is_wrong_is_in_its_place(
    record: WindowRecord, header: bytes
) -> None:
    """Its record is read, whether the header is wrong at its beginning or later."""
    listed, told = WindowList(), WindowSummary.of(record)
    listed.put("first", _header(replace(told, window_id="first", cutoff_ms=0, offsets=1)))
    listed.put(told.window_id, header)
    while (page := listed.page(None, None, without=())) is None or listed.incomplete():
        assert listed.incomplete() == [told.window_id]
        listed.complete(told)
    assert [one.cutoff_ms for one in page] == sorted([0, told.cutoff_ms])


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"), st.none() | st.integers(0, 5), st.booleans(), st.booleans()
        ),
        max_size=200,
    ),
    records,
    st.sampled_from([0, 2, 100]),
)
def test_pages_follow_the_changes(
    changes: list[tuple[str, int | None, bool, bool]], record: WindowRecord, sorted_in: int
) -> None:
    """Written, told, moved and removed windows, with looks in between: each page is that of a list sorted anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_list, "_CHANGES_SORTED_IN", sorted_in)
        _follow(changes, record)


def _follow(changes: list[tuple[str, int | None, bool, bool]], record: WindowRecord) -> None:
    listed, model = WindowList(), dict[str, int]()
    one = replace(WindowSummary.of(record), offsets=1)
    for name, cutoff_ms, is_told, is_looked_at in changes:
        if cutoff_ms is None:
            listed.drop(name)
            model.pop(name, None)
        else:
            summary = replace(one, window_id=name, cutoff_ms=cutoff_ms)
            listed.put(name, None if is_told else _header(summary))
            if is_told:
                assert listed.incomplete() == [name]
                listed.complete(summary)
            model[name] = cutoff_ms
        if is_looked_at:
            _check_pages(listed, model)
    _check_pages(listed, model)


def _check_pages(listed: WindowList, model: dict[str, int]) -> None:
    expected = sorted((cutoff_ms, name) for name, cutoff_ms in model.items())
    assert _places(listed.page(None, None, without=())) == expected
    for at, (_, name) in enumerate(expected):
        assert _places(listed.page(2, name, without=())) == expected[max(at - 2, 0) : at]
        rest = [place for place in expected if place[1] != name]
        assert _places(listed.page(3, None, without=[name])) == rest[-3:]


def _places(page: list[WindowSummary] | None) -> list[tuple[int, str]]:
    assert page is not None
    return [(one.cutoff_ms, one.window_id) for one in page]


def _header(summary: WindowSummary) -> bytes:
    text = summary.to_text()
    assert text is not None
    return text.encode()


def test_the_command_lines_list_names_what_cannot_be_read(windows: OrderedWindows) -> None:
    """A row for each window that can be read, with its line as JSON has it, and one for each that cannot."""
    readable = windows.summaries().windows[1:]
    found = Summaries(readable, {"a": LedgerCorruptError("?"), "z": LedgerCorruptError("?")})
    table = windows_table("g", found, now_ms=0)
    cells = [list(column.cells) for column in table.columns]
    assert cells[-1] == ["b", "c", "d", "e", "a", "z"]
    assert cells[0] == [
        *("committed", "abandoned", "planned", "planned"),
        *("unreadable", "unreadable"),
    ]
    for one in windows.list():
        line = summary_facts("g", WindowSummary.of(one), now_ms=5)
        assert line == record_facts(one, now_ms=5)
        assert line["window_id"] == one.plan.window_id
