"""Values as columns from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops.cli import main
from kafka_ordered_ops.testing import InMemoryKafka
from tests.conftest import MakeTopic, Produce
from tests.support.cli_support import cli
from tests.support.encoded_values import encoded

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def delivered(kafka: InMemoryKafka, output: Path, *words: str) -> int:
    """Run a window of all records; return the exit code."""
    window = ["-t", "orders", "--cutoff", "1970-01-02", "--starting-offsets", "earliest"]
    where = ["-b", kafka.bootstrap, "-g", "g", "--output", str(output), "--engine", "local"]
    return main(["run", *where, *window, *words])


@pytest.fixture
def kafka() -> object:
    """A Kafka with two orders: in JSON, and a bad one."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for number, value in enumerate((b'{"id": 7}', b"{")):
            kafka.produce("orders", timestamp_ms=number, value=value)
        yield kafka


def test_values_become_columns(kafka: InMemoryKafka, tmp_path: Path) -> None:
    """With the columns on the line, or in a file; a bad value fails, or is kept."""
    assert delivered(kafka, tmp_path / "lake", "--values", "json:id int64") == 4
    columns = tmp_path / "columns.json"
    columns.write_text('[["id", "int64"]]')
    words = ["--values", f"json:@{columns}", "--on-bad", "keep", "--flatten"]
    assert delivered(kafka, tmp_path / "lake", *words) == 0
    table = pq.read_table(next((tmp_path / "lake").glob("*/*.parquet")))
    assert table["id"].to_pylist() == [7, None]
    assert table["value_raw"].to_pylist() == [None, b"{"]


def test_columns_are_inferred(
    kafka: InMemoryKafka, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A preview shows them and stores nothing; the window and its group have them after that."""

    def told(*words: str) -> Any:
        capfd.readouterr()
        assert main([*words[:2], "-b", kafka.bootstrap, "--json", *words[2:]]) == 0
        return json.loads(capfd.readouterr().out)

    asked = ["-t", "orders", "--cutoff", "1970-01-02", "--starting-offsets", "earliest"]
    words = ["--values", "json-inferred", "--on-bad", "keep"]
    assert main(["preview", "-b", kafka.bootstrap, "-g", "g", *asked, *words]) == 0
    assert "columns of value, inferred from its records" in " ".join(capfd.readouterr().err.split())
    assert told("groups", "list")["groups"] == []
    assert delivered(kafka, tmp_path / "lake", *words) == 0
    [group] = told("groups", "list")["groups"]
    assert group["columns"] == {"value": [["id", "int64"]]}
    [listed] = told("windows", "list", "-g", "g")["windows"]
    shown = told("windows", "show", "-g", "g", listed["window_id"])["question"]["values"]
    assert (shown["infer"], shown["inferred"]) == ("freeze", [["id", "int64"]])


def test_a_schema_is_read_from_its_file(tmp_path: Path) -> None:
    """In Avro, whose frame is not checked without a registry: the settings that are missing are named."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        kafka.produce("orders", timestamp_ms=1, value=encoded({"id": 7}, ORDER))
        schema = tmp_path / "order.avsc"
        schema.write_text(json.dumps(ORDER))
        assert delivered(kafka, tmp_path / "lake", "--values", f"avro:@{schema}") == 2
        unframed = json.dumps({"format": "avro", "schema": json.dumps(ORDER), "framing": "none"})
        assert delivered(kafka, tmp_path / "lake", "--values", unframed) == 0


@pytest.mark.slow
def test_preview_shows_decoded_records_and_what_is_wrong(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """Before a window is planned: samples, bad values by reason, times in the wrong unit; nothing is written."""
    name = topic()
    value = b'{"id": 7, "at": 1700000000, "note": "\\u202e"}'
    produce([(name, 0, b"k", value, 1_700_000_000 + n, []) for n in range(3)])
    produce([(name, 0, None, b"{", 1_700_000_009, [])])
    words = [
        *("preview", "-b", bootstrap, "-g", group_id, "-t", name, "--cutoff", "2026-01-01"),
        *("--starting-offsets", "earliest", "--values"),
        "json:id int64, at timestamp[ms, UTC], note string",
    ]
    seen = cli(*words)
    assert seen.code == 0, seen.stderr
    assert f'{name}[0] offset 0: key k value {{"id": 7, "at": "1970-01-20T' in seen.stderr
    assert "\u202e" not in seen.stderr
    assert "of 4 sampled records, 1 cannot be decoded" in seen.stderr
    assert "by id" not in seen.stderr
    assert f"1 of 4 sampled records, the first at {name}[0] offset 3: the value" in seen.stderr
    assert f"{name}[0]: of the sampled timestamps, 4 of 4 are seconds" in seen.stderr
    assert f"{name}[0]: of the sampled value.at, 3 of 3 are seconds" in seen.stderr
    sample = cli(*words, "--json").json["sample"]
    assert (sample["records"], sample["bad"], len(sample["notes"])) == (4, 1, 3)
    assert [json.loads(one["value"])["id"] for one in sample["shown"]] == [7, 7, 7]
    assert cli("windows", "list", *words[1:5], "--json").json["windows"] == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("avro:@nothing.avsc", "--values avro:@nothing.avsc: [Errno 2]"),
        ("csv:@nothing", "[Errno 2]"),
        (
            "csv",
            "values is 'csv': give Avro(...), Json(...), Protobuf(...) or Debezium(...); or as text",
        ),
        ("avro", "set schema.registry.url in the client settings"),
    ],
)
def test_unknown_formats_are_named(
    kafka: InMemoryKafka,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    values: str,
    words: str,
) -> None:
    """Before anything is planned."""
    assert delivered(kafka, tmp_path / "lake", "--values", values) == 2
    assert words in " ".join(capfd.readouterr().err.split())


def read(kafka: InMemoryKafka, capfd: pytest.CaptureFixture[str], *words: str) -> list[Any]:
    """Return the records that `read` prints."""
    assert main(["read", "orders", "-b", kafka.bootstrap, "--no-table", *words]) == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_read_shows_decoded_values(
    kafka: InMemoryKafka, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As JSON on a line, or as columns in a file; bad ones are skipped, or kept as text."""
    form = ("--values", "json:id int64")
    shown = read(kafka, capfd, *form, "--on-bad", "keep")
    assert [row["value"] for row in shown] == [{"id": 7}, "{"]
    assert [row["value"] for row in read(kafka, capfd, *form, "--on-bad", "skip")] == [{"id": 7}]
    assert main(["read", "orders", "-b", kafka.bootstrap, "--no-table", *form]) == 4
    file = tmp_path / "orders.parquet"
    read(kafka, capfd, *form, "--on-bad", "keep", "--format", "parquet", "-o", str(file))
    table = pq.read_table(file)
    assert table["value"].to_pylist() == [{"id": 7}, None]
    assert table["value_raw"].to_pylist() == [None, b"{"]


def test_read_shows_every_type_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    """Times and decimals as text, bytes in base64, maps as objects: nothing is rounded."""
    fields = [
        ["at", "timestamp[us, UTC]"],
        ["day", "date32[day]"],
        ["price", "decimal128(9, 2)"],
        ["raw", "binary"],
        ["more", {"map": {"list": {"struct": [["n", "uint64"]]}}}],
    ]
    value = {
        "at": "2026-11-20T12:00:00.000001Z",
        "day": "2026-11-20",
        "price": "12.30",
        "raw": "AAE=",
        "more": {"a": [{"n": 2**64 - 1}, None]},
    }
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        kafka.produce("orders", timestamp_ms=1, value=json.dumps(value).encode(), key=b"7")
        given = json.dumps({"format": "json", "fields": fields})
        [row] = read(kafka, capfd, "--values", given, "--keys", "text")
    assert row["value"] == value
    assert row["key"] == "7"
