"""What ``read`` refuses, and files that it replaces as a whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kafka_ordered_ops.cli import main
from kafka_ordered_ops.cli.records.choices import OrderBy
from kafka_ordered_ops.core.release.ordered_release import Order
from kafka_ordered_ops.testing import InMemoryKafka
from tests.cli.test_read import Captured, read, rows
from tests.cli.test_read import hard as hard
from tests.cli.test_read import kafka as kafka
from tests.cli.test_read import orders as orders
from tests.support.cli_support import NOWHERE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("--group", "g"), "--follow", id="group"),
        pytest.param(("--grace", "PT1S"), "--follow", id="grace"),
        pytest.param(("--cutoff", "now", "--follow"), "--follow", id="cutoff"),
        pytest.param(("-f", "-g", "g", "-n", "5"), "--limit 5", id="limit-of-a-group"),
        pytest.param(("-f", "-g", "g", "--format", "parquet"), "parquet", id="parquet-of-a-group"),
        pytest.param(("--format", "arrow", "--values", "text"), "--values", id="values"),
        pytest.param(("--format", "parquet", "--keys", "json"), "--keys", id="keys"),
        pytest.param(("--from", "x=latest"), "not among the topics", id="unknown-topic"),
        pytest.param(("--from", "t=latest", "--from", "t=-1h"), "twice", id="twice"),
        pytest.param(("--from", "noon"), "starting_offsets", id="bound"),
        pytest.param(("--from", "2026-03-01T12:00:00"), "time zone", id="naive"),
        pytest.param(("--max-out-of-orderness", "5m"), "PT10M", id="span"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_touched(
    capfdbinary: Captured, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """By name, and nobody is asked."""
    file = tmp_path / "out"
    assert main(["read", "t", "-b", NOWHERE, *words, "--json", "-o", str(file)]) == 2
    assert said in json.loads(capfdbinary.readouterr().out)["error"]["message"]
    assert not file.exists()


def test_an_object_and_records_do_not_share_stdout(capfdbinary: Captured) -> None:
    """The error is the only object."""
    assert main(["read", "t", "-b", NOWHERE, "--json"]) == 2
    assert "--output" in json.loads(capfdbinary.readouterr().out)["error"]["message"]


def test_an_unknown_topic_leaves_no_file(
    kafka: InMemoryKafka, capfdbinary: Captured, tmp_path: Path
) -> None:
    """Nor does it touch one of before."""
    file = tmp_path / "out"
    for words in ((), ("--follow",)):
        read(capfdbinary, kafka, "t", "-o", file, *words, code=4)
        assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_when_it_is_complete(
    orders: InMemoryKafka, capfdbinary: Captured, tmp_path: Path
) -> None:
    """Through a link as well, with the usual rights; with --follow it must be new."""
    file, link = tmp_path / "out", tmp_path / "link"
    file.write_text("before")
    link.symlink_to(file)
    read(capfdbinary, orders, "orders", "-o", link)
    assert len(rows(file.read_bytes())) == 5
    assert link.is_symlink()
    umask = os.umask(0)
    os.umask(umask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~umask
    words = ("orders", "-f", "-n", "1", "-o", file, "--json")
    refused = json.loads(read(capfdbinary, orders, *words, code=2))["error"]["message"]
    assert "exists" in refused
    assert len(rows(file.read_bytes())) == 5


@pytest.mark.parametrize(
    ("file", "code", "said"),
    [
        ("/dev/full", 4, "No space left"),
        ("/nowhere/out", 2, "No such file"),
        ("/tmp", 2, "a folder"),
    ],
)
@pytest.mark.parametrize("form", ["jsonl", "csv", "arrow", "parquet"])
def test_a_target_that_fails_is_named(
    orders: InMemoryKafka, capfdbinary: Captured, form: str, file: str, code: int, said: str
) -> None:
    """A full disk is no wrong usage."""
    words = ("orders", "-o", file, "--format", form, "--json")
    error = json.loads(read(capfdbinary, orders, *words, code=code))["error"]
    assert said in error["message"]
    assert file in error["message"]


def test_the_names_of_orders_are_those_of_the_reader() -> None:
    """Help cannot load them from there."""
    assert [one.value for one in OrderBy] == [one.value for one in Order]
