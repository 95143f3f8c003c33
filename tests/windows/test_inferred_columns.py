"""Windows whose columns are inferred: once for a group, and then kept by what its windows ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_ordered_ops import (
    ConfigError,
    DecodeError,
    Earliest,
    OrderedWindows,
    Policy,
    Window,
    WindowPlan,
    stage_window,
    stage_windows,
)
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.core.window.ownership import Publisher
from kafka_ordered_ops.decoding import Debezium, Json, decode
from kafka_ordered_ops.decoding.discarded import discarded_in
from kafka_ordered_ops.delivery.open_window import OpenWindow
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.writing.reported import result_facts
from kafka_ordered_ops.output.writing.staged_output import StagedOutput
from kafka_ordered_ops.windows.values import inference
from tests.support.both_worlds import memory as memory
from tests.support.both_worlds import world as world
from tests.support.memory_world import MemoryWorld
from tests.support.windows_support import BASE_MS
from tests.support.worlds import World


def write(world: World, second: float, *values: Any, partition: int = 0) -> None:
    """Write values in JSON, or bytes as they are."""
    texts = [
        value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        for value in values
    ]
    world.write_content("orders", partition, [(second, b"k", text, ()) for text in texts])


def asked(world: World, before: float, infer: str | bool = True, **options: Any) -> Window:
    """Return a window whose columns are inferred."""
    options = {"values": Json(infer=infer), **options}
    return world.window(before, starting_offsets=Earliest(), **options)


@contextmanager
def opened(world: World, window: Window, policy: Policy | None = None) -> Iterator[OpenWindow]:
    """Open a window of the group, as a user does; it is committed after the block."""
    with (
        OrderedWindows(
            world.settings, world.named("g"), timeout_s=60, clock=lambda: BASE_MS / 1000 + world.now
        ) as windows,
        windows.open(window, policy=policy or Policy()) as found,
    ):
        yield found


def rows(world: World, window: Window, policy: Policy | None = None) -> list[Any]:
    """Return the values of a window, and commit it."""
    with opened(world, window, policy) as found:
        values: list[Any] = found.to_arrow()["value"].to_pylist()
        return values


def columns(plan: WindowPlan) -> str:
    """Return a plan's columns as text."""
    values = plan.window.values
    assert isinstance(values, Json)
    return ", ".join(f"{field.name} {field.type}" for field in values.columns)


def test_the_first_window_decides(world: World) -> None:
    """Its columns are stored with the plan and with the group; an attempt in another process reads alike."""
    world.create("orders", 2)
    write(world, 1, {"id": 1, "note": None, "to": {"zip": "1"}}, None)
    write(world, 2, {"id": 2, "price": 1}, {"price": 2.5}, partition=1)
    windows, window = world.windows(), asked(world, 10)
    preview = windows.preview(window, "w")
    assert windows.state() is None
    plan = windows.plan(window, "w")
    assert columns(plan) == columns(preview) == "id int64, to struct<zip: string>, price double"
    assert plan.notes == preview.notes
    assert "columns of value, inferred from its records" in plan.notes[0]
    assert "null or empty in all of its records become no columns: note" in plan.notes[1]
    assert WindowPlan.from_text(plan.to_text()) == plan
    state = windows.state()
    assert state is not None
    assert [name for name, _ in state.columns["value"]] == ["id", "to", "price"]
    # What comes later has no say in it.
    write(world, 11, {"id": "x"})
    again = windows.plan(window, "w")
    assert (again.attempt, again.window) == (2, plan.window)
    sample = windows.sample(again)
    assert (sample.records.num_rows, sample.bad) == (4, 0)
    windows.abandon("w")
    assert rows(world, window) == [
        {"id": 1, "to": {"zip": "1"}, "price": None},
        None,
        {"id": 2, "to": None, "price": 1.0},
        {"id": None, "to": None, "price": 2.5},
    ]


def test_freeze(world: World) -> None:
    """A new field or another type is a bad value; other arguments read the same records."""
    world.create("orders")
    write(world, 1, {"id": 1})
    assert rows(world, asked(world, 10, "freeze")) == [{"id": 1}]
    write(world, 11, {"id": 2, "new": None}, {"id": 3, "new": 1}, {"id": "x"})
    with pytest.raises(
        DecodeError, match="the field 'new' is not among the inferred columns"
    ) as caught:
        rows(world, asked(world, 20, "freeze"))
    assert caught.value.offset == 2
    with opened(world, asked(world, 20, "freeze", on_bad="keep")) as window:
        table = window.to_arrow()
    assert table["value"].to_pylist() == [{"id": 2}, None, None]
    assert table["value_error"].to_pylist()[2] == "id: 'x' where a whole number is expected"


def test_discard(world: World) -> None:
    """New fields are left out, and a note counts them; another type is a bad value."""
    world.create("orders")
    write(world, 1, {"id": 1, "to": {"zip": "1"}})
    rows(world, asked(world, 10, "discard"))
    write(world, 11, {"id": 2, "new": 1, "to": {"city": "X"}}, {"id": 3, "new": [2]})
    with opened(world, asked(world, 20, "discard")) as window:
        assert window.to_arrow()["value"].to_pylist() == [
            {"id": 2, "to": {"zip": None}},
            {"id": 3, "to": None},
        ]
        [note] = window.plan.notes
    assert note.endswith("has no columns for are left out: to.city (in 1), new (in 2)")
    facts = result_facts(world.windows().show(window.window_id).result)
    assert discarded_in(facts) == {
        "discarded": 2,
        "discarded_fields": {"value.new": 2, "value.to.city": 1},
    }
    write(world, 21, {"id": 1.5})
    with pytest.raises(DecodeError, match=r"id: 1.5 where a whole number is expected"):
        rows(world, asked(world, 30, "discard"))


def test_evolve(world: World) -> None:
    """New fields become columns after the known ones, for later windows too; known types stay."""
    world.create("orders")
    write(world, 1, {"id": 1, "to": [{"zip": "1"}]})
    rows(world, asked(world, 10, "evolve"))
    write(world, 11, {"new": 1.5, "id": 2, "to": [{"city": "X"}]}, {"id": 2.5})
    window = asked(world, 20, "evolve", on_bad="keep")
    with opened(world, window) as found:
        assert found.plan.notes[0].startswith(
            "new columns of value, added from its records: to[].city, new"
        )
        table = found.to_arrow()
    assert table["value"].to_pylist() == [
        {"id": 2, "to": [{"zip": None, "city": "X"}], "new": 1.5},
        None,
    ]
    assert "id: 2.5 where" in str(table["value_error"][1])
    # A replay reads with its own columns, whatever the group has meanwhile.
    write(world, 21, {"id": 3, "newer": "x"})
    assert list(rows(world, asked(world, 30, "evolve"))[0]) == ["id", "to", "new", "newer"]
    with opened(world, window) as found:
        assert found.is_replay
        assert found.to_arrow().schema == table.schema


def test_windows_of_one_pass_have_the_same_columns(memory: MemoryWorld, tmp_path: Path) -> None:
    """Those that are planned in one call do; others are refused by name, and taken one by one."""
    memory.create("orders")
    write(memory, 1, {"id": 1})
    write(memory, 11, {"id": 2, "new": 1})
    windows = memory.windows()
    both = [asked(memory, before, "evolve") for before in (10, 20)]
    plans = windows.plan_many(both, ["a", "b"])
    assert [columns(plan) for plan in plans] == ["id int64, new int64"] * 2
    for name in "ab":
        windows.abandon(name)
    again = OrderedWindows(memory.settings, memory.named("other"), timeout_s=60)
    plans = [again.plan(one) for one in both]
    with pytest.raises(ConfigError, match="different formats or schemas"):
        stage_windows(plans, memory.settings, tmp_path)
    assert [stage_window(plan, memory.settings, tmp_path).facts["records"] for plan in plans] == [
        1,
        1,
    ]


def test_windows_of_other_columns_are_read_by_their_own(
    memory: MemoryWorld, tmp_path: Path
) -> None:
    """Delivered together, windows with the same columns are one job, and an older one is another."""
    memory.create("orders")
    write(memory, 1, {"id": 1})
    for second in (11, 21):
        write(memory, second, {"id": 2, "new": 1})
    windows = memory.windows()
    plans = [windows.plan(asked(memory, before, "evolve")) for before in (10, 20, 30)]
    jobs: list[list[str]] = []

    def job(alike: Sequence[WindowPlan]) -> Sequence[StagedOutput]:
        jobs.append([columns(plan) for plan in alike])
        return stage_windows(alike, memory.settings, tmp_path)

    done = windows.deliver_many(plans, job, lambda _: None)
    assert jobs == [["id int64"], ["id int64, new int64"] * 2]
    assert [one.record.status for one in done] == [WindowStatus.PUBLISHED] * 3
    assert sorted(path.parent.name for path in tmp_path.rglob("*.parquet")) == sorted(
        f"window_id={plan.window_id}" for plan in plans
    )


def test_columns_that_were_stored_first_win(world: World) -> None:
    """Of two processes that infer at the same time, the other one reads with the same columns, and infers nothing."""
    world.create("orders")
    write(world, 1, {"id": 1})
    write(world, 11, {"id": 2, "late": True})

    def other() -> None:
        windows = world.windows()
        windows.commit(windows.plan(asked(world, 10), "first"))

    world.before_claim(other)
    plan = world.windows().plan(asked(world, 20), "second")
    assert columns(plan) == columns(world.windows().show("first").plan) == "id int64"
    assert plan.offsets == 1


def test_two_that_evolve_at_once_keep_both_columns(world: World) -> None:
    """The columns of neither are lost."""
    world.create("orders", 2)
    write(world, 1, {"id": 1})
    rows(world, asked(world, 10, "evolve"))
    write(world, 11, {"id": 2, "one": 1})
    write(world, 21, {"id": 3, "two": 2}, partition=1)

    def other() -> None:
        windows = world.windows()
        windows.commit(windows.plan(asked(world, 20, "evolve"), "one"))

    world.before_claim(other)
    plan = world.windows().plan(asked(world, 30, "evolve"), "two")
    assert columns(plan) == "id int64, one int64, two int64"


def test_a_window_without_values_infers_nothing(world: World) -> None:
    """It says so, and has no column; the next window decides."""
    world.create("orders")
    with opened(world, asked(world, 1)) as window:
        assert "value" not in window.to_arrow().schema.names
        [note] = window.plan.notes
    assert note.startswith("no columns are inferred for value, because the window has no values")
    state = world.windows().state()
    assert state is not None
    assert state.columns == {}
    write(world, 2, {"id": 1})
    assert rows(world, asked(world, 10)) == [{"id": 1}]


def test_redefine_infers_again(world: World) -> None:
    """From the new window alone."""
    world.create("orders")
    write(world, 1, {"id": 1, "old": 1})
    rows(world, asked(world, 10))
    write(world, 11, {"id": "x"})
    assert rows(world, asked(world, 20), Policy(redefine=True)) == [{"id": "x"}]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (({"id": 1}, {"id": "x"}), "at offset 1 a text at id: no column holds all values exactly"),
        ((b"{", b"["), "no value of the first 2 records is an object"),
    ],
)
def test_what_has_no_columns_is_not_planned(memory: MemoryWorld, values: Any, words: str) -> None:
    """The error names the places, and the window holds nothing; given columns are read."""
    memory.create("orders")
    write(memory, 1, *values)
    with pytest.raises(DecodeError) as caught:
        memory.windows().plan(asked(memory, 10), "w")
    assert words in caught.value.message
    assert memory.windows().state() is None
    given = Json(pa.schema([("id", pa.string())]), infer=True)
    plan = memory.windows().plan(asked(memory, 10, values=given, on_bad="keep"), "w")
    assert columns(plan) == "id string"


def test_a_large_window_is_sampled(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first records of each partition, an equal share each, and the note says how many; later ones are new."""
    monkeypatch.setattr(inference, "SAMPLE_RECORDS", 4)
    memory.create("orders", 2)
    write(memory, 1, *({"id": number} for number in range(9)), {"id": 9, "rare": 1})
    write(memory, 2, {"id": 10}, partition=1)
    plan = memory.windows().plan(asked(memory, 10))
    assert columns(plan) == "id int64"
    assert "inferred from the window's first 3 records" in plan.notes[0]
    with pytest.raises(DecodeError, match="the field 'rare'"):
        rows(memory, asked(memory, 10))
    assert len(rows(memory, asked(memory, 10, "discard"))) == 11


def test_keys_are_inferred_as_well(memory: MemoryWorld) -> None:
    """Each part of a record has its own columns."""
    memory.create("orders")
    memory.write_content("orders", 0, [(1, b'{"id": 1}', b'{"name": "x"}', ())])
    with opened(memory, asked(memory, 10, keys="json-inferred")) as window:
        table = window.to_arrow()
    assert (table["key"].to_pylist(), table["value"].to_pylist()) == ([{"id": 1}], [{"name": "x"}])
    state = memory.windows().state()
    assert state is not None
    assert state.columns == {"value": [["name", "string"]], "key": [["id", "int64"]]}


def test_a_given_type_replaces_an_inferred_one(memory: MemoryWorld) -> None:
    """For the same window, which is read again, and for the group's later ones."""
    memory.create("orders")
    write(memory, 1, {"id": 1})
    assert rows(memory, asked(memory, 10)) == [{"id": 1}]
    write(memory, 11, {"id": "x"})
    with pytest.raises(DecodeError, match="a whole number is expected"):
        rows(memory, asked(memory, 20))
    given = Json(pa.schema([("id", pa.string())]), infer=True)
    assert rows(memory, asked(memory, 20, values=given)) == [{"id": "x"}]
    write(memory, 21, {"id": "y"})
    assert rows(memory, asked(memory, 30, values=given)) == [{"id": "y"}]
    state = memory.windows().state()
    assert state is not None
    assert state.columns == {"value": [["id", "string"]]}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Json(infer="grow"), "infer"),
        (lambda: Json(infer=True, subject="orders-value"), "the columns are either those of"),
        (
            lambda: Json(infer=True, unknown="bad"),
            "infer='freeze' makes values with new fields bad",
        ),
        (lambda: Json(inferred=pa.schema([])), "give them as schema"),
        (lambda: Debezium(Json(infer=True)), "neither framed nor inferred"),
        (lambda: decode(pa.table({"value": [b"{}"]}), values="json-inferred"), "and only then"),
    ],
)
def test_what_has_no_first_window_is_refused(make: Any, words: str) -> None:
    """By name, before anything is read."""
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in caught.value.message


class NarrowPlace:
    """A place for windows whose values have no other field than ``id``."""

    def check(self, publishers: Sequence[Publisher], windows: Mapping[str, Window]) -> list[str]:
        return []

    def check_columns(self, window: Window, settings: ClientSettings) -> None:
        values = window.values
        assert isinstance(values, Json)
        if more := [field.name for field in values.columns if field.name != "id"]:
            raise ConfigError(f"there is no room for {', '.join(more)}")


def test_columns_that_do_not_fit_are_found_before_the_claim(world: World) -> None:
    """Those that the first window infers, and those that a later one adds; the group keeps nothing of them."""
    world.create("orders")
    write(world, 1, {"id": 1, "wide": 1})
    windows, place = world.windows(), NarrowPlace()
    with pytest.raises(ConfigError, match="no room for wide"):
        windows.plan(asked(world, 10, "evolve"), "w", place=place)
    assert windows.state() is None
    write(world, 11, {"id": 2})
    since = world.window(20, starting_offsets="offset:1", values=Json(infer="evolve"))
    windows.commit(windows.plan(since, "first", place=place))
    write(world, 21, {"id": 3, "wide": 1})
    with pytest.raises(ConfigError, match="no room for wide"):
        windows.plan(asked(world, 30, "evolve"), "second", place=place)
    state = windows.state()
    assert state is not None
    assert state.columns == {"value": [["id", "int64"]]}
    assert windows.plan(asked(world, 30, "discard"), "second", place=place).offsets == 1


def test_a_planned_window_infers_no_columns(memory: MemoryWorld) -> None:
    """It is refused before it is touched, by name, and beside a new window too; a finished one keeps its output, with a note."""
    memory.create("orders")
    write(memory, 1, {"id": 1})
    given = asked(memory, 10, values=Json(pa.schema([("id", pa.int64())])))
    windows = memory.windows()
    windows.plan(given, "w")
    words = r"window w of group \S+ was planned with values=Json.*columns are inferred when a window is planned.*abandon"
    with pytest.raises(ConfigError, match=words):
        windows.plan_many([asked(memory, 20), asked(memory, 10)], ["new", "w"])
    with pytest.raises(ConfigError, match=words):
        windows.preview(asked(memory, 10), "w")
    [record] = windows.list()
    assert (record.plan.window_id, record.plan.attempt) == ("w", 1)
    windows.commit(record.plan)
    [note] = windows.plan(asked(memory, 10), "w").notes
    assert "Its output stays as it is" in note
    with pytest.raises(ConfigError, match="was planned with values=Json"):
        windows.plan(asked(memory, 10), "w", Policy(on_covered="replay"))


def test_fields_that_are_left_out_are_counted_in_the_whole_window(
    memory: MemoryWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond its first records too: in the result of the run, and in the ledger."""
    monkeypatch.setattr(inference, "SAMPLE_RECORDS", 1)
    memory.create("orders")
    write(memory, 1, {"id": 0}, *({"id": number, "new": 1} for number in range(1, 8)), None)
    windows = OrderedWindows(
        memory.settings, memory.named("g"), clock=lambda: BASE_MS / 1000 + memory.now
    )
    result = windows.run(asked(memory, 10, "discard"), tmp_path)
    assert (result.records, result.discarded, result.discarded_fields) == (9, 7, {"value.new": 7})
    assert "fields of 7 values left out" in repr(result)
    write(memory, 11, {"id": 1})
    result = windows.run(asked(memory, 20, "discard"), tmp_path)
    assert (result.discarded, result.discarded_fields) == (0, {})
    write(memory, 21, {"id": 1})
    result = windows.run(asked(memory, 30, "freeze"), tmp_path)
    assert result.discarded is None
