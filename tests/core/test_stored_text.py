"""Text that other programs may have written: every parser returns a value or its one error, within bounds."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import (
    ConfigError,
    LedgerCorruptError,
    LedgerVersionError,
    Window,
    WindowPlan,
)
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.group.group_state import (
    SEQUENCE_MAX,
    Change,
    GroupDefinition,
    GroupState,
    GroupView,
    PartitionState,
    TopicState,
    WindowRecord,
)
from kafka_ordered_ops.core.group.ledger.messages import RECORD_BYTES_MAX, parse_key
from kafka_ordered_ops.core.group.ledger.records import LedgerFold, LedgerMessage
from kafka_ordered_ops.core.group.processed import ProcessedOffsets
from kafka_ordered_ops.core.group.reports import PartReports
from kafka_ordered_ops.core.group.summaries import WindowSummary
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.planning.time_map import TimeMap
from kafka_ordered_ops.core.strict_json import (
    CONTAINERS_MAX,
    NESTING_MAX,
    TEXT_LENGTH_MAX,
    Count,
    Int32,
    JsonError,
    Stored,
    Text,
    Texts,
)
from kafka_ordered_ops.core.time_ranges import NO_STEPS, TimeRange
from kafka_ordered_ops.core.types import (
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    Isolation,
    Mode,
    PlanContent,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.core.window.plan import ATTEMPT_MAX, PARTS_MAX, PartitionPlan, PlanPart
from tests.support.examples import examples
from tests.support.stored_text import BOMBS, changed, garbage, memory_bound

WHERE = TopicPartition("ledger", 3)
ORDERS = TopicPartition("orders", 0)
TEN = OffsetSet.of((0, 10), (20, 30))
#: Of so many ranges that they are packed.
MANY = OffsetSet.from_ranges([(2 * one, 2 * one + 1) for one in range(70)])
LATE = NO_STEPS.with_step(7, TimeRange(0, 1_000))

PLAN = WindowPlan(
    group_id="g",
    window_id="w",
    window=Window("orders", datetime(2026, 1, 1, tzinfo=UTC), "earliest"),
    claim_id="c" * 16,
    attempt=1,
    status=WindowStatus.PLANNED,
    content=PlanContent.RECORDS,
    planned_at_ms=5,
    partitions=(
        PartitionPlan(
            ORDERS, "id", taken=TEN, lost=OffsetSet(), decided_end=40, head_end=30, late=LATE
        ),
    ),
    part=None,
)
DEFINITION = GroupDefinition(Mode.CATCH_UP, Isolation.READ_COMMITTED, ("orders",), ())
STATE = GroupState(
    "g",
    1,
    DEFINITION,
    (),
    {"orders": TopicState("id", True, {0: PartitionState(5, TEN, 5, LATE, 2)})},
    ("w",),
    offsets_sequence=1,
    columns={"value": [["id", "int64"]]},
)
RECORD = WindowRecord(
    PLAN, {"facts": {"records": 3}}, "run", 6, None, PartReports(3, {0: {"a": 1}})
)
CHANGE = Change(
    STATE,
    (RECORD,),
    time_maps={ORDERS: TimeMap.between(TEN, TimeRange(0, 99)).of_topic("id")},
    processed={"w": ProcessedOffsets(PLAN.claim_id, {ORDERS: MANY})},
)
MESSAGES: list[LedgerMessage] = list(LedgerFold(WHERE, "g").messages(CHANGE))


def folded(messages: list[LedgerMessage]) -> LedgerFold:
    """A fold of messages."""
    fold = LedgerFold(WHERE, "g")
    for offset, (key, value, headers) in enumerate(messages):
        fold.take(offset, key, value, lambda told=headers: told)  # type: ignore[misc]
    fold.has_read_all()
    return fold


def looked_at(fold: LedgerFold) -> GroupView | None:
    """What a process sees of the group; None where an error names a record of it."""
    errors: list[Exception] = []
    view = None
    try:
        view = fold.view(everything=True, processed=["w"])
        fold.summaries()
        view.known_claims()
        errors += view.unreadable.values()
    except (LedgerCorruptError, LedgerVersionError) as error:
        errors.append(error)
    for told in map(str, [*errors, *fold.newly_dropped()]):
        assert told.startswith("group g: ")
        assert len(told) < 2_000
    return view


@pytest.mark.parametrize("result", [5, "x", True, [1], {"parts": 5}, {"parts": [1]}])
def test_a_result_of_an_impossible_shape_is_a_damaged_record(result: Any) -> None:
    """It names its record, and no reader of results meets it."""
    told = {**RECORD.to_json(), "result": result}
    with pytest.raises(JsonError, match="result"):
        WindowRecord.from_json(told)
    parts = {"count": 3, "results": [[0, result]]}
    if not isinstance(result, dict):
        with pytest.raises(JsonError, match="parts"):
            WindowRecord.from_json({**RECORD.to_json(), "parts": parts})


# --- the door itself ---------------------------------------------------------------------------------


@settings(max_examples=examples(200))
@given(changed(PLAN.to_json()))
def test_any_text_is_a_value_that_can_be_written_again_or_the_one_error(text: bytes) -> None:
    """Whatever is parsed is encodable, finite, and within 64 bits."""
    try:
        value = strict_json.loads(text, limit_bytes=10**6)
    except JsonError:
        return
    again = strict_json.dumps(value).encode()
    assert strict_json.loads(again, limit_bytes=10**7) == value


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("as_text", [False, True])
def test_a_bomb_is_refused_in_bounded_time_and_memory(name: str, as_text: bool) -> None:
    """Of megabytes of brackets, values, digits or escapes, no gigabytes are made."""
    bomb: str | bytes = BOMBS[name].decode() if as_text else BOMBS[name]
    began = time.monotonic()
    with memory_bound(250 * 1024**2), pytest.raises(JsonError):
        strict_json.loads(bomb, limit_bytes=RECORD_BYTES_MAX)
    # Under a tracer of memory, on a busy machine.
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        "{}".encode("utf-32"),
        b'{"a":1,"a":1}',
        b'"\\ud800"',
        b'{"\\udfff":1}',
        "\ud800",
        b"\xed\xa0\x80",
        b"NaN",
        b"[-Infinity]",
        b"1e999",
        str(INT64_MAX + 1).encode(),
        str(INT64_MIN - 1).encode(),
        b"9" * 5_000,
        b"[" * (NESTING_MAX + 1) + b"]" * (NESTING_MAX + 1),
        b"",
        b"[1,]",
    ],
)
def test_what_standard_parsers_let_pass_is_refused(text: str | bytes) -> None:
    """Other encodings, equal keys, halves of pairs, numbers without bounds, deep nesting."""
    with pytest.raises(JsonError):
        strict_json.loads(text, limit_bytes=10**6)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * NESTING_MAX + b"]" * NESTING_MAX,
        str(INT64_MAX).encode(),
        str(INT64_MIN).encode(),
        '"\\ud83d\\ude00 \u00e4"'.encode(),
        b"[%s]" % b",".join([b"{}"] * 300_000),
        b"[%s]" % b",".join([b"1"] * 2_000_000),
    ],
)
def test_what_this_package_may_store_passes(text: bytes) -> None:
    """The bounds are beyond the largest plan and the largest record."""
    assert strict_json.loads(text, limit_bytes=RECORD_BYTES_MAX) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), (b"17", 17), ("007", 7), ("-3", -3), (str(INT64_MAX), INT64_MAX)],
)
def test_a_whole_number_is_read(text: str | bytes, value: int) -> None:
    """Decimal digits, and a minus sign where the bounds allow it."""
    assert strict_json.whole_number(text, least=-5) == value


@pytest.mark.parametrize(
    "text",
    ["", "-", " 1", "1_0", "+1", "\u0661", "1.0", "1e3", "9" * 5_000, "-9", b"\xff", None, "0x1"],
)
def test_no_other_text_is_a_whole_number(text: str | bytes | None) -> None:
    """Python's own function takes half of these, and fails on the long one with another error."""
    with pytest.raises(JsonError) as caught:
        strict_json.whole_number(text, least=-5)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isascii()


class Everything(Stored, frozen=True):
    """A field of each type."""

    a: Count | None = None
    b: Int32 | None = None
    c: Text | None = None
    d: Texts = ()
    e: tuple[int, ...] = ()
    f: tuple[PlanPart, ...] = ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a", INT64_MAX + 1),
        ("a", True),
        ("a", 1.0),
        ("b", -1),
        ("b", INT32_MAX + 1),
        ("c", "x" * (TEXT_LENGTH_MAX + 1)),
        ("c", "\ud800"),
        ("d", ["\ud800"]),
        ("d", "text"),
        ("e", [True]),
        ("f", [1]),
        ("f", [{"index": 0, "count": 1, "\x1b" * 500: 1}]),
    ],
)
def test_a_field_is_bounded_whatever_it_was_made_from(name: str, value: Any) -> None:
    """Objects that no text was parsed for, of a host's database, say, have the same bounds."""
    with pytest.raises(JsonError, match=rf"^x\.{name}(\[0\])?: ") as caught:
        Everything.parse({name: value}, "x")
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_the_bounds_name_their_numbers() -> None:
    """So that a reader of the error knows how far the text is from what is allowed."""
    with pytest.raises(JsonError, match=f"{CONTAINERS_MAX + 1:,} lists and objects"):
        strict_json.loads("[" + "[]," * (CONTAINERS_MAX - 1) + "[]]", limit_bytes=10**8)


# --- plans -------------------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(changed(replace(PLAN, part=PlanPart(1, 3)).to_json()))
def test_any_text_is_a_plan_or_a_named_error(text: bytes) -> None:
    """Of a file, an option, or another program: a plan that reads back as itself."""
    try:
        plan = WindowPlan.from_text(text.decode(errors="surrogateescape"))
    except ConfigError:
        return
    assert WindowPlan.from_text(plan.to_text()) == plan


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition", INT32_MAX + 1),
        ("partition", -1),
        ("topic", "a\0b"),
        ("topic", ""),
        ("topic", "x" * 250),
        ("leader_epoch", INT32_MAX + 1),
        ("taken", [0, 2**63]),
        ("taken", [2**62, 2**62, 1, 2**62]),
        ("late", [0, 1, -1]),
    ],
)
def test_a_partition_of_a_plan_is_one_that_a_client_takes(name: str, value: Any) -> None:
    """Kafka's client fails on other numbers and names, with errors of its own."""
    fields = PLAN.to_json()
    fields["partitions"][0][name] = value
    with pytest.raises(ConfigError, match="not a window plan"):
        WindowPlan.from_text(json.dumps(fields))


# --- the ledger --------------------------------------------------------------------------------------


@settings(max_examples=examples(300))
@given(st.data())
def test_any_value_of_a_record_is_read_or_named(data: Any) -> None:
    """The state, a window, a time map, processed offsets: each may hold anything."""
    number = data.draw(st.integers(0, len(MESSAGES) - 1))
    key, value, headers = MESSAGES[number]
    assert value is not None
    written = data.draw(changed(json.loads(value)))
    messages = [*MESSAGES]
    messages[number] = key, written, headers
    looked_at(folded(messages))


@settings(max_examples=examples(200))
@given(st.data())
def test_any_header_and_key_of_a_record_is_read_or_named(data: Any) -> None:
    """Headers of other programs, and keys that only look like those of this package."""
    number = data.draw(st.integers(0, len(MESSAGES) - 1))
    key, value, headers = MESSAGES[number]
    odd = st.sampled_from(["", "9" * 5_000, "-1", "2", str(2**63), "\u0661", "1_0", "0"])
    name = data.draw(st.sampled_from(["koo-generation", "koo-parts", "koo-forgotten"]))
    more = {**headers, name: data.draw(odd)}
    other = data.draw(changed(json.loads(key)))
    looked_at(folded([*MESSAGES, (key, value, more)]))
    fold = folded([*MESSAGES, (b'["g",' + other, value, headers), (other, value, headers)])
    looked_at(fold)
    # And what is written next can be written.
    for written, _, told in fold.messages(CHANGE):
        assert parse_key(written) is not None
        assert all(text.isprintable() for text in told.values())


@settings(max_examples=examples(100))
@given(changed(json.loads(WindowSummary.of(RECORD).to_text() or "")))
def test_any_summary_is_read_or_left_out(text: bytes) -> None:
    """A list then reads the record."""
    found = WindowSummary.from_text("w", text)
    assert found is None or found.parts is None or found.parts.count <= PARTS_MAX


@settings(max_examples=examples(100))
@given(garbage)
def test_any_key_is_ours_or_not(key: bytes) -> None:
    """Without an error, and only if it could be written again."""
    parsed = parse_key(key)
    assert parsed is None or (parsed[0] + parsed[2]).isprintable()


@pytest.mark.parametrize(
    "name",
    [
        "orders[" + "9" * 5_000 + "]",
        "orders[-1]",
        "orders[00]",
        "orders[\u0661]",
        "[0]",
        "x\x00[0]",
    ],
)
def test_a_time_map_of_no_partition_is_left_out_and_removed(name: str) -> None:
    """Every command ended in a traceback; now the next change removes the record."""
    key = json.dumps(["g", "times", name, 0], separators=(",", ":"), ensure_ascii=False).encode()
    fold = folded([*MESSAGES, (key, b"{}", {"koo-generation": "9", "koo-parts": "1"})])
    view = looked_at(fold)
    assert view is not None
    assert set(view.time_maps) == {ORDERS}
    removed = [
        one for one, value, _ in fold.messages(replace(CHANGE, time_maps={})) if value is None
    ]
    assert removed == ([key] if name.isprintable() else [])


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("sequence",), SEQUENCE_MAX, "no group reaches its sequence"),
        (("sequence",), SEQUENCE_MAX + 1, "sequence"),
        (("topics", 0, "partitions", 0, "partition"), INT32_MAX + 1, "partition"),
        (("topics", 0, "topic"), "a b", "topic name"),
        (("topics", 0, "partitions", 0, "committed"), -1, "committed"),
        (("columns", "value", 0, 1), "int65", "a type is 'int65'"),
    ],
)
def test_a_state_from_which_no_change_could_be_made_is_refused(
    place: tuple[Any, ...], value: Any, words: str
) -> None:
    """The error names the record, and the command that removes it."""
    fields = STATE.to_json()
    inner: Any = fields
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    key, _, headers = MESSAGES[0]
    with pytest.raises(LedgerCorruptError, match=words) as caught:
        folded([(key, json.dumps(fields).encode(), headers)]).view()
    assert "`offsets reset --group g --topic TOPIC --to committed`" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("plan", "attempt"), ATTEMPT_MAX),
        (("plan", "attempt"), ATTEMPT_MAX + 1),
        (("parts", "count"), PARTS_MAX + 1),
        (("parts", "results"), [[3, None]]),
        (("parts", "results"), [[0, None], [0, None]]),
        (("parts", "results"), 5),
        (("touched_at_ms",), 2**62),
        (("touched_at_ms",), -1),
    ],
)
def test_a_window_that_no_attempt_could_take_up_is_named_with_its_cure(
    place: tuple[Any, ...], value: Any
) -> None:
    """Abandoning removes it; the group's other windows are read."""
    fields = RECORD.to_json()
    inner: Any = fields
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    messages = [
        (key, json.dumps(fields).encode() if b'"window"' in key else data, headers)
        for key, data, headers in MESSAGES
    ]
    view = looked_at(folded(messages))
    assert view is not None
    assert "abandon the window" in str(view.unreadable["w"])


def test_a_topic_or_partition_twice_is_refused() -> None:
    """Of two entries the last would win in silence."""
    fields = STATE.to_json()
    fields["topics"] *= 2
    key, _, headers = MESSAGES[0]
    with pytest.raises(LedgerCorruptError, match="there twice"):
        folded([(key, json.dumps(fields).encode(), headers)]).view()
