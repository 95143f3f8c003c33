"""Windows whose values are decoded: planned with their schemas, and read alike ever after."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_ordered_ops import (
    ClientSettings,
    ConfigError,
    DecodeError,
    Folder,
    OrderedWindows,
    Policy,
    Window,
    WindowPlan,
    stage_window,
)
from kafka_ordered_ops.core.window.stored_formats import kept
from kafka_ordered_ops.decoding import Avro, Json
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.encoded_values import encoded

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
AVRO = Avro(json.dumps(ORDER), framing="none")
#: A number that no file can have.
DIGITS = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 0}
MANY_DIGITS = json.dumps(
    {"type": "record", "name": "Account", "fields": [{"name": "number", "type": DIGITS}]}
)


@pytest.fixture
def kafka() -> Any:
    """A Kafka with ten orders in Avro."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", partitions=2)
        for number in range(10):
            value = encoded({"id": number, "note": None}, ORDER)
            kafka.produce("orders", partition=number % 2, timestamp_ms=1_000 + number, value=value)
        yield kafka


def day(number: int = 1, **more: Any) -> Window:
    """Return the window up to the end of a day."""
    more = {"starting_offsets": "earliest", "values": AVRO, **more}
    return Window("orders", cutoff=f"1970-01-{number + 1:02}T00:00:00Z", **more)


def test_a_window_is_written_with_typed_columns(kafka: InMemoryKafka, tmp_path: Path) -> None:
    """By a copy, without a line of code; a window without records has the columns too."""
    windows = OrderedWindows(kafka.settings, group_id="g")
    table = windows.run(day(), tmp_path / "lake").to_arrow()
    assert table["value"].to_pylist() == [{"id": number, "note": None} for number in range(10)]
    flat = windows.run(day(2, flatten=True), tmp_path / "flat").to_arrow()
    assert (flat.num_rows, flat.schema.names[6:8]) == (0, ["id", "note"])


def test_every_way_of_reading_decodes(kafka: InMemoryKafka, tmp_path: Path) -> None:
    """In memory, as a stream, and staged by hand from the plan's text in another process."""
    windows = OrderedWindows(kafka.settings, group_id="g")
    with windows.open(day(flatten=True)) as window:
        schema = window.to_batches().schema  # type: ignore[attr-defined]
        tables = [
            window.to_arrow(),
            window.to_arrow(ordered=False).sort_by("offset").sort_by("timestamp"),
            pa.Table.from_batches(window.to_batches(), schema),
            pa.RecordBatchReader.from_stream(window).read_all(),
        ]
        plan = WindowPlan.from_text(window.plan.to_text())
    assert plan.window.values == AVRO
    for table in tables:
        assert table["id"].to_pylist() == list(range(10))
        assert table.schema == schema
    staged = stage_window(plan, kafka.settings, tmp_path)
    assert staged.facts["records"] == 10


def test_bad_values_stop_the_window_or_are_kept(kafka: InMemoryKafka, tmp_path: Path) -> None:
    """The window stays open: it is read again with other arguments, and holds the same records."""
    kafka.produce("orders", partition=1, timestamp_ms=2_000, value=b"x")
    windows = OrderedWindows(kafka.settings, group_id="g")
    with pytest.raises(DecodeError) as failure:
        windows.run(day(), tmp_path / "lake")
    assert (failure.value.topic, failure.value.partition, failure.value.offset) == ("orders", 1, 5)
    assert [window.status for window in windows.list()] == ["planned"]
    kept = windows.run(day(on_bad="keep"), tmp_path / "lake").to_arrow()
    assert kept.num_rows == 11
    assert kept["value_raw"].to_pylist()[10] == b"x"


def test_formats_do_not_decide_which_records(kafka: InMemoryKafka, tmp_path: Path) -> None:
    """A finished window of another format is the same window; its records are read as they are asked for now."""
    windows = OrderedWindows(kafka.settings, group_id="g")
    windows.run(day(), tmp_path / "lake")
    result = windows.run(day(values=None), tmp_path / "lake")
    assert result.outcome.startswith("already")
    with windows.open(day(values=None)) as window:
        assert window.to_arrow().schema.field("value").type == pa.binary()
    json_format = Json(pa.schema([("id", pa.int64())]))
    with windows.open(day(values=json_format, on_bad="keep")) as window:
        assert None not in window.to_arrow()["value_error"].to_pylist()


def test_a_published_window_of_another_format_is_named(
    kafka: InMemoryKafka, tmp_path: Path
) -> None:
    """With both formats, and what to do; a replay writes the new one, and then nothing differs any more."""
    windows, lake = OrderedWindows(kafka.settings, group_id="g"), tmp_path / "lake"
    assert windows.run(day(), lake).notes == ()
    assert windows.run(day(), lake).notes == ()
    for asked, words in (
        (day(values=None), "values=Avro(schema="),
        (day(flatten=True), "flatten=False, not True"),
        (day(keys="json:a int64", on_bad="keep"), "keys=bytes, not Json(schema='a: int64'"),
    ):
        result = windows.run(asked, lake)
        [note] = result.notes
        assert result.outcome.startswith("already published")
        assert note.startswith(f"window {result.window_id} is published with ")
        assert words in note
        assert "on_covered='replay'" in note
    again = windows.run(day(flatten=True), lake, policy=Policy(on_covered="replay"))
    assert again.notes == ()
    assert "id" in again.to_arrow().schema.names
    assert windows.run(day(flatten=True), lake).notes == ()
    assert "flatten=True, not False" in windows.run(day(), lake).notes[0]


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (lambda: day(values=Avro(subject="orders-value")), "set schema.registry.url"),
        (lambda: day(values=Avro("{}", framing="none")), "schema"),
        (lambda: day(values="arvo"), "values is 'arvo'"),
        (
            lambda: day(values=Json(pa.schema([("offset", pa.int64())])), flatten=True),
            "the names of others, offset",
        ),
        (lambda: day(values=Json(pa.schema([("late", pa.bool_())])), flatten=True), "others, late"),
        (
            lambda: day(values=Json(pa.schema([("window_id", pa.string())])), flatten=True),
            "the field window_id, a column that the folders add",
        ),
        (
            lambda: day(values=Json(pa.schema([("a", pa.int64()), ("A", pa.int64())]))),
            "the same name but for upper and lower case",
        ),
        (lambda: day(values=Avro(MANY_DIGITS, framing="none")), "at most 38 digits"),
    ],
)
def test_what_cannot_be_read_is_not_planned(
    kafka: InMemoryKafka, tmp_path: Path, window: Any, words: str
) -> None:
    """The error comes before the window holds its records."""
    windows = OrderedWindows(kafka.settings, group_id="g")
    with pytest.raises(ConfigError) as failure:
        windows.run(window(), tmp_path / "lake")
    assert words in str(failure.value)
    assert windows.list() == []


def test_registry_settings_are_no_client_settings(kafka: InMemoryKafka) -> None:
    """They are masked, travel with the others, and do not reach librdkafka."""
    secrets = {
        "schema.registry.url": "http://registry",
        "schema.registry.basic.auth.user.info": "anna:canary-word",
    }
    windows = OrderedWindows({**kafka.settings, **secrets}, group_id="g")
    settings = pickle.loads(pickle.dumps(windows.settings))
    assert "canary" not in repr(settings)
    assert settings.registry["basic.auth.user.info"] == "anna:canary-word"
    assert "anna:canary-word" in settings.secret_values()


COLUMNS: list[Any] = [
    pa.field("flag", pa.bool_(), nullable=False),
    ("small", pa.uint8()),
    ("at", pa.timestamp("ms", "UTC")),
    ("local", pa.timestamp("us")),
    ("price", pa.decimal128(9, 2)),
    ("huge", pa.decimal256(50, 0)),
    ("clock", pa.time64("us")),
    ("tags", pa.list_(pa.struct([("name", pa.string()), ("n", pa.int32())]))),
    ("more", pa.map_(pa.string(), pa.large_list(pa.date32()))),
]
SCHEMA = pa.schema(COLUMNS)


def test_columns_of_json_are_stored_with_the_plan(kafka: InMemoryKafka) -> None:
    """Every type comes back as it was."""
    windows = OrderedWindows(kafka.settings, group_id="g")
    plan = windows.plan(day(values=Json(SCHEMA, "bad"), on_bad="keep"))
    stored = windows.show(plan.window_id).plan.window
    assert stored.values == Json(SCHEMA, "bad")
    assert (stored.on_bad, stored.flatten) == ("keep", False)


@pytest.mark.parametrize(
    ("given", "format_"),
    [
        ("avro", Avro()),
        ("avro:orders", Avro(subject="orders")),
        ("json:id int64, at timestamp[ms, UTC], price decimal128(9, 2)", None),
        ({"format": "json", "fields": [["id", "int64"]]}, Json(pa.schema([("id", pa.int64())]))),
        ('{"format": "avro", "schema": "int", "framing": "none"}', Avro("int", framing="none")),
        ("json-inferred", Json(infer="freeze")),
        ("json-inferred:evolve", Json(infer="evolve")),
        (
            {"format": "json", "infer": "discard", "fields": [["id", "int64"]]},
            Json(pa.schema([("id", pa.int64())]), infer="discard"),
        ),
    ],
)
def test_formats_may_be_text(given: Any, format_: Any) -> None:
    """On a command line, in YAML."""
    columns: list[Any] = [
        ("id", pa.int64()),
        ("at", pa.timestamp("ms", "UTC")),
        ("price", pa.decimal128(9, 2)),
    ]
    assert day(values=given).values == (format_ or Json(pa.schema(columns)))


def test_a_replay_reads_as_the_attempt_that_delivered(kafka: InMemoryKafka, tmp_path: Path) -> None:
    """Not as one that failed: its schema lacked a column."""
    windows = OrderedWindows(kafka.settings, group_id="g")
    smaller = {**ORDER, "fields": ORDER["fields"][:1]}

    def failing(_: Any) -> None:
        raise OSError("boom")

    less = Avro(json.dumps(smaller), writer=json.dumps(ORDER), framing="none")
    with pytest.raises(OSError, match="boom"):
        windows.run(day(values=less), tmp_path / "lake", job=failing)
    result = windows.run(day(), tmp_path / "lake")
    assert windows.show(result.window_id).plan.window.values == AVRO
    again = Policy(on_covered="replay")
    table = windows.run(day(values=AVRO), tmp_path / "lake", policy=again).to_arrow()
    assert table["value"][0].as_py() == {"id": 0, "note": None}


def test_only_a_schema_that_was_looked_up_stays() -> None:
    """One that the caller gave before, and left out now, does not."""
    looked_up = Avro("int", subject="orders-value")
    assert kept(Avro(), looked_up) == looked_up
    assert kept(Avro(subject="orders-value"), looked_up) == looked_up
    assert kept(Avro(subject="other"), looked_up) == Avro(subject="other")
    assert kept(Avro("long"), looked_up) == Avro("long")
    assert kept(Avro(), Avro("int")) == Avro()
    columns = Json(pa.schema([("x", pa.int8())]), subject="s", framing="confluent")
    assert kept(Json(), columns) == columns
    assert kept(Json(), Avro("int", subject="s")) == Json()
    assert kept(None, looked_up) is None


@pytest.mark.parametrize(
    ("columns", "folder", "words"),
    [
        ([("window_id", pa.string())], {}, "have the field window_id, a column that the folders"),
        ([("Date", pa.string())], {"partition_by": "date"}, "have the field Date"),
        ([("a", pa.int8()), ("A", pa.int8())], {}, "but for upper and lower case"),
        ([("huge", pa.decimal256(50, 0))], {}, "huge: decimals of files"),
        ([("none", pa.struct([]))], {}, "none: a record without fields"),
    ],
)
def test_fields_that_files_cannot_have_are_named(
    kafka: InMemoryKafka, tmp_path: Path, columns: Any, folder: Any, words: str
) -> None:
    """Readers would take a column from the folder's name, or none at all."""
    window = day(values=Json(pa.schema(columns)), flatten=True, on_bad="keep")
    windows = OrderedWindows(kafka.settings, group_id="g")
    with pytest.raises(ConfigError) as failure:
        windows.run(window, Folder(tmp_path / "lake", **folder))
    assert words in str(failure.value)


def test_files_have_types_of_every_reader(kafka: InMemoryKafka, tmp_path: Path) -> None:
    """The same with and without Spark; in memory, values keep their own."""
    columns: list[Any] = [
        ("clock", pa.time64("us")),
        ("u", pa.uint64()),
        ("at", pa.timestamp("ns")),
    ]
    window = day(values=Json(pa.schema(columns)), flatten=True, on_bad="keep")
    windows = OrderedWindows(kafka.settings, group_id="g")
    with windows.open(window) as opened:
        assert opened.to_arrow().schema.field("clock").type == pa.time64("us")
    table = windows.run(window, tmp_path / "lake", policy=Policy(on_covered="replay")).to_arrow()
    assert [table.schema.field(name).type for name in ("clock", "u", "at")] == [
        pa.int64(),
        pa.decimal128(20, 0),
        pa.timestamp("us"),
    ]


@pytest.mark.parametrize("options", [{"flatten": True}, {"on_bad": "keep"}])
def test_options_about_values_need_values(options: Any) -> None:
    """They would be ignored."""
    with pytest.raises(ConfigError, match="also say how they are encoded"):
        day(values=None, **options)


def test_a_password_in_the_registrys_address_is_masked() -> None:
    """As in every text of the settings."""
    settings = ClientSettings.of(
        {"bootstrap.servers": "b:1", "schema.registry.url": "http://anna:canary-word@r:8081"}
    )
    assert "canary" not in repr(settings)
    assert "anna:canary-word" in settings.secret_values()
