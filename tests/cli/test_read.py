"""``read`` in this process, of a Kafka in memory: every record in every format, and what is refused."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.cli import main
from kafka_ordered_ops.cli.options.profile import KEYS, variable
from kafka_ordered_ops.cli.records.strict import first_invalid
from kafka_ordered_ops.testing import InMemoryKafka

Captured = pytest.CaptureFixture[bytes]

BASE_MS = 1_772_366_400_000  # 2026-03-01T12:00:00Z
YEAR_10000_MS = 253_402_300_800_000

#: (time in ms, key, value, headers), in the order of time.
HARD: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
    (-5_000, b"\xff\xfe", b"\x80 not UTF-8", ()),
    (-1, None, None, ()),
    (0, b"", b"", (("a", b""), ("a", None), ('quo"te', b"\xff"))),
    (BASE_MS, b"k", 'plain "quoted" \\ wörld ☃ 🎉'.encode(), (("trace", b"abc"),)),
    (BASE_MS + 1, b"k,\n", b"two\r\nlines\x00\x1b[31m\x7f", ()),
    (BASE_MS + 1_234, b"[1]", b'{"a": [1.0, 12345678901234567890123]}', ()),
    (YEAR_10000_MS - 1, b"last", b"x", ()),
    (YEAR_10000_MS, b"beyond", b"x", ()),
]


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[InMemoryKafka]:
    """A cluster; no defaults of whoever runs the tests."""
    for key in (*KEYS, "profile", "profiles", "storage-option"):
        monkeypatch.delenv(variable(key), raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with InMemoryKafka() as made:
        yield made


@pytest.fixture
def hard(kafka: InMemoryKafka) -> InMemoryKafka:
    """`HARD` in two partitions of the topic t, in the reverse order."""
    kafka.create_topic("t", 2, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    for number, (time_ms, key, value, headers) in reversed(list(enumerate(HARD))):
        kafka.produce(
            "t",
            partition=number % 2,
            timestamp_ms=time_ms,
            key=key,
            value=value,
            headers=headers,
        )
    return kafka


def read(capfd: Any, kafka: InMemoryKafka, *words: object, code: int = 0) -> bytes:
    """What one command writes to stdout."""
    assert main(["read", "-b", kafka.bootstrap, *map(str, words)]) == code
    out: bytes = capfd.readouterr().out
    return out


def rows(text: bytes) -> list[dict[str, Any]]:
    """The objects of lines."""
    assert text == b"" or text.endswith(b"\n")
    return [json.loads(line) for line in text.decode().split("\n")[:-1]]


def base64_of(value: bytes | None) -> str | None:
    """A value as `base64` shows it."""
    return None if value is None else base64.b64encode(value).decode()


def text_of(value: bytes | None) -> str | None:
    """A value as `text` shows it."""
    return None if value is None else value.decode(errors="backslashreplace")


def times(found: list[dict[str, Any]]) -> list[str]:
    """The timestamps."""
    return [one["timestamp"] for one in found]


TIMES = [
    "1969-12-31T23:59:55.000Z",
    "1969-12-31T23:59:59.999Z",
    "1970-01-01T00:00:00.000Z",
    "2026-03-01T12:00:00.000Z",
    "2026-03-01T12:00:00.001Z",
    "2026-03-01T12:00:01.234Z",
    "9999-12-31T23:59:59.999Z",
    f"@{YEAR_10000_MS}",
]


# --- formats -----------------------------------------------------------------------------------------


def test_lines_have_every_record_in_order(hard: InMemoryKafka, capfdbinary: Captured) -> None:
    """Text is exact where it is UTF-8, and shows other bytes by their numbers; headers are pairs."""
    found = rows(read(capfdbinary, hard, "t"))
    assert times(found) == TIMES
    assert [one["key"] for one in found] == [text_of(key) for _, key, _, _ in HARD]
    assert [one["value"] for one in found] == [text_of(value) for _, _, value, _ in HARD]
    assert found[0]["value"] == "\\x80 not UTF-8"
    assert [one["headers"] for one in found] == [
        [[name, text_of(value)] for name, value in headers] for _, _, _, headers in HARD
    ]
    assert list(found[0]) == [
        *("topic", "partition", "offset", "timestamp", "key", "value", "headers", "late")
    ]
    places = [(one["topic"], one["partition"], one["late"]) for one in found]
    assert places == [("t", number % 2, False) for number in range(len(HARD))]


def test_base64_is_exact(hard: InMemoryKafka, capfdbinary: Captured) -> None:
    """Of keys, values and headers; null stays null."""
    found = rows(read(capfdbinary, hard, "t", "--values", "base64", "--keys", "base64"))
    assert [one["key"] for one in found] == [base64_of(key) for _, key, _, _ in HARD]
    assert [one["value"] for one in found] == [base64_of(value) for _, _, value, _ in HARD]
    assert found[2]["headers"] == [["a", ""], ["a", None], ['quo"te', base64_of(b"\xff")]]


@pytest.mark.parametrize("how", ["text", "base64"])
def test_csv_has_the_same_rows(hard: InMemoryKafka, capfdbinary: Captured, how: str) -> None:
    """Headers are JSON; null is nothing, and empty is a pair of quotes."""
    out = read(capfdbinary, hard, "t", "--format", "csv", "--values", how, "--keys", how).decode()
    found = list(csv.DictReader(io.StringIO(out, newline="")))
    shown = text_of if how == "text" else base64_of
    assert times(found) == TIMES
    assert [one["key"] for one in found] == [shown(key) or "" for _, key, _, _ in HARD]
    assert [one["value"] for one in found] == [shown(value) or "" for _, _, value, _ in HARD]
    assert [one["late"] for one in found] == ["false"] * len(HARD)
    lines = out.splitlines()
    assert lines[2].endswith('999Z",,,"[]",false')
    assert '000Z","","","[[""a"",""""],[""a"",null]' in lines[3]


@pytest.mark.parametrize("form", ["arrow", "parquet"])
@pytest.mark.parametrize("to", ["stdout", "file"])
def test_binary_formats_are_exact(
    hard: InMemoryKafka, capfdbinary: Captured, tmp_path: Path, form: str, to: str
) -> None:
    """Bytes, nulls, headers, and times beyond Python's."""
    file = tmp_path / "t"
    words = () if to == "stdout" else ("--output", file)
    out = read(capfdbinary, hard, "t", "--format", form, *words)
    if to == "file":
        assert out == b""
        out = file.read_bytes()
    if form == "arrow":
        table = pa.ipc.open_stream(out).read_all()
    else:
        table = pq.read_table(pa.BufferReader(out))
    stamps: Any = table["timestamp"].cast(pa.int64())
    assert stamps.to_pylist() == [time_ms for time_ms, *_ in HARD]
    assert table["key"].to_pylist() == [key for _, key, _, _ in HARD]
    assert table["value"].to_pylist() == [value for _, _, value, _ in HARD]
    found = [
        tuple((one["key"], one["value"]) for one in headers or ())
        for headers in table["headers"].to_pylist()
    ]
    assert found == [headers for *_, headers in HARD]


@pytest.mark.parametrize("form", ["jsonl", "csv", "arrow", "parquet"])
def test_no_record_is_a_complete_result(
    kafka: InMemoryKafka, capfdbinary: Captured, form: str
) -> None:
    """No line, names alone, or a schema without rows."""
    kafka.create_topic("t", 3)
    out = read(capfdbinary, kafka, "t", "--format", form)
    if form == "jsonl":
        assert out == b""
    elif form == "csv":
        assert out.count(b"\n") == 1
        assert b'"timestamp","key","value"' in out
    elif form == "arrow":
        assert pa.ipc.open_stream(out).read_all().num_rows == 0
    else:
        assert pq.read_table(pa.BufferReader(out)).num_rows == 0


@pytest.mark.slow
@given(st.lists(st.tuples(st.none() | st.binary(max_size=8), st.none() | st.text(max_size=8))))
def test_any_bytes_come_through(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[bytes | None, str | None]]
) -> None:
    """Keys of any bytes in Base64, and values of any text as text."""
    file = tmp_path_factory.mktemp("read") / "out"
    values = [None if text is None else text.encode("utf-8", "replace") for _, text in found]
    with InMemoryKafka() as kafka:
        kafka.create_topic("t")
        for (key, _), value in zip(found, values, strict=True):
            kafka.produce("t", key=key, value=value, timestamp_ms=BASE_MS)
        words = ("t", "-b", kafka.bootstrap, "--keys", "base64", "-o", str(file))
        assert main(["read", *words]) == 0
    read_back = rows(file.read_bytes())
    assert [one["key"] for one in read_back] == [base64_of(key) for key, _ in found]
    assert [one["value"] for one in read_back] == [text_of(value) for value in values]


# --- values as JSON ----------------------------------------------------------------------------------


def test_json_values_are_embedded(kafka: InMemoryKafka, capfdbinary: Captured) -> None:
    """As they are: numbers of any length, breaks between tokens as spaces, a tombstone as null."""
    kafka.create_topic("t")
    wanted = [b'{"a": [1.0, 12345678901234567890123]}', b'{\r\n"a":\t"b\\n"\n}', b" 7 ", b"null"]
    for number, value in enumerate([*wanted, None]):
        kafka.produce("t", value=value, key=b'"k"', timestamp_ms=BASE_MS + number)
    out = read(capfdbinary, kafka, "t", "--values", "json", "--keys", "json")
    assert b'"value":{"a": [1.0, 12345678901234567890123]},' in out
    assert b'"value":{  "a":\t"b\\n" },' in out
    assert [one["value"] for one in rows(out)] == [
        *({"a": [1.0, 12345678901234567890123]}, {"a": "b\n"}, 7, None, None)
    ]
    assert {one["key"] for one in rows(out)} == {"k"}


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize("count", [3, 600])
def test_records_that_are_not_json_are_skipped_or_kept(
    kafka: InMemoryKafka, capfdbinary: Captured, form: str, count: int
) -> None:
    """In their order, whatever their bytes are; skipped ones are counted, and no good record is lost."""
    kafka.create_topic("t")
    bad = {1: b"{", 2: b"\xff", count - 1: b"plain"}
    for number in range(count):
        value = bad.get(number, b"[%d]" % number)
        kafka.produce("t", key=b"7", value=value, timestamp_ms=BASE_MS + number)
    good = [number for number in range(count) if number not in bad]
    words = ("t", "--values", "json", "--keys", "json", "--format", form)
    skipped = read(capfdbinary, kafka, *words, "--on-bad", "skip")
    kept = read(capfdbinary, kafka, *words, "--on-bad", "keep")
    if form == "csv":
        assert skipped.count(b"\n") == len(good) + 1
        assert kept.count(b"\n") == count + 1
        return
    assert [one["value"] for one in rows(skipped)] == [[number] for number in good]
    expected = [text_of(bad[number]) if number in bad else [number] for number in range(count)]
    assert [one["value"] for one in rows(kept)] == expected
    assert {one["key"] for one in rows(kept)} == {7}


def test_what_is_bad_needs_json(kafka: InMemoryKafka, capfdbinary: Captured) -> None:
    """Text is never bad."""
    kafka.create_topic("t")
    read(capfdbinary, kafka, "t", "--on-bad", "skip", code=2)


@pytest.mark.parametrize(
    ("value", "why"),
    [(b"", "Expecting value"), (b"{", "Expecting property"), (b"NaN", "NaN"), (b"\xff", "UTF-8")],
)
@pytest.mark.parametrize("count", [3, 600])
def test_a_value_that_is_not_json_is_named(
    kafka: InMemoryKafka, capfdbinary: Captured, tmp_path: Path, value: bytes, why: str, count: int
) -> None:
    """With its place, whether few or many are checked; a file of before stays as it was."""
    kafka.create_topic("t", 2)
    for number in range(count):
        kafka.produce("t", partition=1, value=b"{}", timestamp_ms=BASE_MS + number)
    kafka.produce("t", partition=1, value=value, timestamp_ms=BASE_MS + count)
    file = tmp_path / "out"
    file.write_text("before")
    words = ("t", "--values", "json", "-o", file, "--json")
    error = json.loads(read(capfdbinary, kafka, *words, code=4))["error"]
    assert (error["type"], error["facts"]) == (
        "ReadError",
        {"partition": "t[1]", "offset": count},
    )
    assert f"the value of the record at t[1] offset {count} is not JSON" in error["message"]
    assert why in error["message"]
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)


@given(
    st.lists(
        JSONS.map(json.dumps)
        | JSONS.map(lambda one: json.dumps(one, indent=1, ensure_ascii=False))
        | st.text(alphabet='[]{},:"\\ \n\t\x000123.eE+-truefalsn', max_size=8),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 300),
)
def test_many_texts_at_once_are_judged_as_one_by_one(texts: list[str], times: int) -> None:
    """The first that the parser refuses is found, behind any number of valid ones."""

    def refused(_: str) -> None:
        raise ValueError

    def is_json(text: str) -> bool:
        try:
            json.loads(text, parse_constant=refused)
        except ValueError:
            return False
        return True

    texts = ['{"a": 1}'] * times + texts
    wanted = next((row for row, text in enumerate(texts) if not is_json(text)), None)
    found = first_invalid(pa.array(texts, pa.string()))
    assert (None if found is None else found[0]) == wanted


# --- which records -----------------------------------------------------------------------------------


@pytest.fixture
def orders(kafka: InMemoryKafka) -> InMemoryKafka:
    """Seconds 0 to 9 in turn in two topics, the value is the second; 3 comes after 9."""
    for name in ("orders", "payments"):
        kafka.create_topic(name)
    for second in (0, 1, 2, 4, 5, 6, 7, 8, 9, 3):
        topic = ("orders", "payments")[second % 2]
        kafka.produce(topic, timestamp_ms=BASE_MS + second * 1000, value=b"%d" % second)
    return kafka


BOTH = ("orders", "payments")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        pytest.param(BOTH, "0123456789", id="all"),
        pytest.param(("^.*",), "0123456789", id="pattern"),
        pytest.param((*BOTH, "-n", "3"), "012", id="limit"),
        pytest.param((*BOTH, "--limit", "99"), "0123456789", id="limit-beyond"),
        pytest.param((*BOTH, "--order", "partition"), "0124567893", id="partition"),
        pytest.param((*BOTH, "--from", "latest"), "", id="latest"),
        pytest.param((*BOTH, "--from", "orders[0]=3"), "1356789", id="of-one-partition"),
        pytest.param(
            (*BOTH, "--from", "latest", "--from", "orders[0]=latest", "--from", "payments[0]=4"),
            "3",
            id="of-two-partitions",
        ),
        pytest.param(("^.*", "--exclude", "none", "--exclude", "^ord.*"), "13579", id="exclude"),
        pytest.param(
            ("orders", "--from", "orders[0]=99", "--on-data-loss", "earliest"), "02468", id="lost"
        ),
        pytest.param((*BOTH, "--from", "orders=latest"), "13579", id="of-one-topic"),
        pytest.param((*BOTH, "--from", "latest", "--from", "orders=offset:3"), "68", id="both"),
        pytest.param(("orders", "--from", "2026-03-01T12:00:05Z"), "68", id="time"),
        pytest.param((*BOTH, "--cutoff", "2026-03-01T12:00:05Z"), "01234", id="cutoff"),
        pytest.param(
            (*BOTH, "--cutoff", "2026-03-01T12:00:05Z", "--from", "orders=-PT3S"),
            "1234",
            id="span-of-one-topic",
        ),
        pytest.param(
            (*BOTH, "--cutoff", "2026-03-01T12:00:05Z", "--from", "-PT3S"), "234", id="span"
        ),
        pytest.param((*BOTH, "--cutoff", "2026-03-01", "-n", "1"), "", id="cutoff-before-all"),
    ],
)
def test_the_records_that_are_asked_for(
    orders: InMemoryKafka, capfdbinary: Captured, words: tuple[str, ...], wanted: str
) -> None:
    """By topic, bound, cutoff, order and number; nothing is written to Kafka."""
    found = rows(read(capfdbinary, orders, *words))
    assert "".join(one["value"] for one in found) == wanted
    assert orders.topics() == ["orders", "payments"]


def test_a_cutoff_takes_what_is_stamped_before_it(
    orders: InMemoryKafka, capfdbinary: Captured, tmp_path: Path
) -> None:
    """Exactly: a record at the cutoff is not, and one that came late is; the JSON object has the counts."""
    file = tmp_path / "out.jsonl"
    words = (*BOTH, "--cutoff", "2026-03-01T12:00:04Z", "-o", file, "--json")
    assert json.loads(read(capfdbinary, orders, *words)) == {
        "records": 4,
        "late": 0,
        "format": "jsonl",
        "output": str(file),
    }
    assert [one["value"] for one in rows(file.read_bytes())] == ["0", "1", "2", "3"]


def test_aborted_records_are_read_on_request(kafka: InMemoryKafka, capfdbinary: Captured) -> None:
    """The isolation is that of other commands."""
    kafka.create_topic("t")
    transaction = kafka.transaction()
    transaction.produce("t", value=b"x", timestamp_ms=BASE_MS)
    transaction.abort()
    assert read(capfdbinary, kafka, "t") == b""
    assert len(rows(read(capfdbinary, kafka, "t", "--isolation", "read_uncommitted"))) == 1


def test_a_group_of_windows_is_not_joined(
    orders: InMemoryKafka, capfdbinary: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the environment and a profile name is for other commands: group and output."""
    monkeypatch.setenv(variable("group"), "hourly")
    monkeypatch.setenv(variable("output"), "somewhere")
    assert len(rows(read(capfdbinary, orders, "orders"))) == 5


def test_follow_with_a_limit_ends(orders: InMemoryKafka, capfdbinary: Captured) -> None:
    """Once every partition has passed their times."""
    found = rows(read(capfdbinary, orders, *BOTH, "-f", "--grace", "PT0S", "-n", "9"))
    assert len(found) == 9
