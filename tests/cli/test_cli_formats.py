"""Values as columns from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops.cli import main
from kafka_ordered_ops.testing import InMemoryKafka
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
