"""``read`` in a shell, of a real broker: pipes that close, Ctrl-C, kill -9, and the table on a terminal."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.cli.test_cli_live import Terminal
from tests.conftest import MakeTopic, Produce
from tests.support.cli_support import FIRST_WINDOW, Cluster, arguments, at, cli, committed, topics
from tests.support.cli_support import cluster as cluster

_TIMEOUT_S = 90.0
#: More than a pipe holds.
MANY = 20_000
BASE_MS = 1_772_366_400_000


@pytest.fixture
def many(topic: MakeTopic, produce: Produce) -> str:
    """A topic of three partitions; the values are numbers in the order of time."""
    name = topic(f"many-{uuid.uuid4().hex[:12]}", partitions=3)
    produce((name, n % 3, None, b"%d" % n, BASE_MS + n, ()) for n in range(MANY))
    return name


@contextmanager
def started(*words: object, **given: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs until the block ends."""
    process = subprocess.Popen(
        arguments("read", *words),
        bufsize=0,  # so that `select` sees all that is there
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **given},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def until(happened: Callable[[], bool], what: str) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def lines(process: subprocess.Popen[bytes], count: int) -> list[int]:
    """The values of the next lines, as they come."""
    assert process.stdout is not None
    found: list[int] = []
    while len(found) < count:
        ready, _, _ = select.select([process.stdout], [], [], _TIMEOUT_S)
        assert ready, found
        found.append(value_of(process.stdout.readline()))
    return found


def value_of(line: bytes) -> int:
    """The number of a record."""
    return int(json.loads(line)["value"])


def values(text: bytes) -> list[int]:
    """The numbers of records; the last line may be torn."""
    return [value_of(line) for line in text.split(b"\n")[:-1]]


# --- to the end --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_records_up_to_a_cutoff_and_nothing_else(cluster: Cluster) -> None:
    """Stdout has the records, stderr the count; nothing is written to the cluster."""
    before = topics(cluster.bootstrap)
    outcome = cli("read", "-b", cluster.bootstrap, cluster.topic, "--cutoff", at(60))
    assert outcome.code == 0
    assert values(outcome.stdout.encode()) == FIRST_WINDOW
    assert outcome.stderr == "6 records\n"
    assert topics(cluster.bootstrap) == before


@pytest.mark.long
@pytest.mark.parametrize("form", ["jsonl", "csv", "arrow", "parquet"])
def test_every_format_goes_through_a_pipe(
    bootstrap: str, many: str, tmp_path: Path, form: str
) -> None:
    """The same bytes as in a file."""
    file = tmp_path / "out"
    words = ("-b", bootstrap, many, "--format", form)
    assert cli("read", *words, "-o", file).code == 0
    with started(*words) as process:
        out, err = process.communicate(timeout=_TIMEOUT_S)
    assert (process.returncode, err) == (0, b"20,000 records\n")
    if form in ("jsonl", "csv"):
        assert out == file.read_bytes()
    if form == "jsonl":
        assert values(out) == list(range(MANY))
    if form == "arrow":
        table = pa.ipc.open_stream(out).read_all()
        assert [int(one or b"") for one in table["value"].to_pylist()] == list(range(MANY))
    assert len(out) == file.stat().st_size


# --- pipes -------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("form", ["jsonl", "csv", "arrow", "parquet"])
@pytest.mark.parametrize("more", [(), ("--follow", "--grace", "PT0S")])
def test_a_closed_pipe_is_the_end(
    bootstrap: str, many: str, form: str, more: tuple[str, ...]
) -> None:
    """As for `| head`: quietly, with the code of shells."""
    if form == "parquet" and more:
        pytest.skip("a Parquet file is written when the row group is full")
    with started("-b", bootstrap, many, "--format", form, *more) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(_TIMEOUT_S) == 141
    assert err == b""


@pytest.mark.long
def test_a_pipe_that_closes_while_there_is_nothing_to_write(cluster: Cluster) -> None:
    """No write would notice; the end is noticed all the same."""
    with started("-b", cluster.bootstrap, cluster.topic, "-f", "--grace", "PT0S") as process:
        lines(process, 9)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(_TIMEOUT_S) == 141


# --- signals -----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_a_live_read_between_two_records(
    cluster: Cluster, number: signal.Signals, code: int
) -> None:
    """Soon, without a torn line, and what was written is committed."""
    words = ("-b", cluster.bootstrap, cluster.topic, "-f", "-g", cluster.group_id)
    with started(*words, "--grace", "PT0S") as process:
        found = lines(process, 9)
        begun = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=_TIMEOUT_S)
    assert time.monotonic() - begun < 10
    assert (process.returncode, out) == (code, b"")
    assert err in (b"interrupted\n", b"9 records\n", b"9 records, 1 of them late\n")
    assert sorted(found) == [0, 5, 10, 15, 20, 30, 65, 70, 80]
    assert cluster.committed == {0: 6, 1: 3}


@pytest.mark.long
def test_ctrl_c_ends_a_write_that_nobody_reads(bootstrap: str, many: str) -> None:
    """The pipe is full, and the command waits in the middle of a batch."""
    with started("-b", bootstrap, many, "-f", "--grace", "PT0S") as process:
        assert process.stdout is not None
        stdout = process.stdout
        until(lambda: bool(select.select([stdout], [], [], 0)[0]), "the first record")
        process.send_signal(signal.SIGINT)
        assert process.wait(_TIMEOUT_S) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b"interrupted\n"


@pytest.mark.long
def test_ctrl_c_ends_the_format_of_a_file(cluster: Cluster, tmp_path: Path) -> None:
    """A live read into a file is there from the beginning, and is a complete stream at the end."""
    file = tmp_path / "out"
    words = ("-b", cluster.bootstrap, cluster.topic, "-f", "--grace", "PT0S", "-o", file)
    with started(*words, "--format", "arrow") as process:
        until(lambda: file.exists() and b"80" in file.read_bytes(), "the last record")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=_TIMEOUT_S)
        assert (process.returncode, err) == (130, b"interrupted\n")
    out = file.read_bytes()
    assert pa.ipc.open_stream(out).read_all().num_rows == 9
    assert out.endswith(b"\xff\xff\xff\xff\x00\x00\x00\x00")


@pytest.mark.long
def test_ctrl_c_leaves_no_file_that_is_not_complete(
    bootstrap: str, many: str, tmp_path: Path
) -> None:
    """A bounded read into a pipe that has a name blocks; the folder of another one stays as it was."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with (
        started("-b", bootstrap, many, "-o", fifo) as process,
        open(fifo, "rb", buffering=0) as pipe,
    ):
        assert pipe.read(10)
        process.send_signal(signal.SIGINT)
        assert process.wait(_TIMEOUT_S) == 130
    assert list(tmp_path.iterdir()) == [fifo]


# --- groups ------------------------------------------------------------------------------------------


@pytest.mark.long  # The group misses a member that was killed after 45 seconds.
@pytest.mark.long
def test_a_killed_read_of_a_group_goes_on_from_its_commit(
    bootstrap: str, many: str, group_id: str, produce: Produce, tmp_path: Path
) -> None:
    """Nothing is missing, and nothing before the commit comes again."""
    words = ("-b", bootstrap, many, "-f", "-g", group_id, "--grace", "PT0S")
    first, second = tmp_path / "first", tmp_path / "second"
    with first.open("wb") as out, started(*words, stdout=out) as process:
        until(lambda: len(committed(bootstrap, group_id, many)) == 3, "a commit")
        process.kill()
        process.wait()
    done = committed(bootstrap, group_id, many)
    produce((many, n % 3, None, b"%d" % n, BASE_MS + n, ()) for n in range(MANY, MANY + 300))
    with second.open("wb") as out, started(*words, stdout=out) as process:

        def all_there() -> bool:
            found = set(values(first.read_bytes())) | set(values(second.read_bytes()))
            return len(found) == MANY + 300

        until(all_there, "all records")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=_TIMEOUT_S)
    for line in second.read_bytes().splitlines():
        one = json.loads(line)
        assert one["offset"] >= done[one["partition"]]
    # Up to the last commit nothing is missing of what was written before.
    before = set(values(first.read_bytes()))
    assert {n for n in range(MANY) if n // 3 < done[n % 3]} <= before
    assert sum(committed(bootstrap, group_id, many).values()) == MANY + 300


# --- a terminal --------------------------------------------------------------------------------------


def picture(text: str) -> str:
    """The text without what moves the cursor and colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.long
def test_the_partitions_are_shown_while_records_go_elsewhere(
    bootstrap: str, many: str, tmp_path: Path
) -> None:
    """Position, end, lag and state of each; the picture is gone at the end."""
    words = ("read", "-b", bootstrap, many, "-f", "-o", tmp_path / "out")
    terminal = Terminal(words, lines=40)
    terminal.read_until(r"20,000 records written[\s\S]*3 live")
    # The next picture may be on its way.
    last = picture(terminal.text[: terminal.text.rindex("3 live")]).rsplit("written", 1)[1]
    for number, end in enumerate(("6,667", "6,667", "6,666")):
        assert re.search(rf"\[{number}\] +{end} +{end} +0 .*2026-03-01T12:00:19.*live", last)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.close() == 130
    assert terminal.text.rstrip().endswith("interrupted")
    assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("\x1b[?25l")


@pytest.mark.long
def test_eighty_columns_have_room_for_the_partitions(
    bootstrap: str, many: str, tmp_path: Path
) -> None:
    """No number, time or state is cut, and each partition has one line."""
    words = ("read", "-b", bootstrap, many, "-f", "--grace", "P9999D", "-o", tmp_path / "out")
    terminal = Terminal(words, lines=40, columns=80)
    terminal.read_until(r"records written[\s\S]*3 live")
    last = picture(terminal.text).split("3 live")[-2].rsplit("records written", 1)[1]
    for number, position in enumerate(("6,667", "6,667", "6,666")):
        row = rf"\[{number}\] +{position} +0 +[\d,]+ +2026-03-01T12:\d\d:\d\dZ +(live|holds back)"
        assert re.search(row, last), last
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.close() == 130


@pytest.mark.long
def test_of_many_partitions_those_that_matter_are_shown(
    bootstrap: str, many: str, topic: MakeTopic, tmp_path: Path
) -> None:
    """The picture never outgrows the terminal; one that holds back comes first."""
    empty = topic(f"a-{many}", partitions=40)
    words = (
        "read",
        "-b",
        bootstrap,
        many,
        empty,
        "-f",
        "--grace",
        "P9999D",
        "-o",
        tmp_path / "out",
    )
    terminal = Terminal(words, lines=20)
    terminal.read_until(r"records wait for.*and 3\d more partitions")
    shown = (
        picture(terminal.text).split("20,000 records wait for")[0].rsplit("records written", 1)[1]
    )
    assert 10 < shown.count("\n") < 20
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.close() == 130
    first = shown[shown.index("─") :].splitlines()[1]
    assert "holds back" in first


@pytest.mark.long
def test_records_on_a_terminal_come_after_the_bar(bootstrap: str, many: str) -> None:
    """The bar is erased, the records have no colours, and nothing is drawn between them."""
    terminal = Terminal(("read", "-b", bootstrap, many, "-n", "2"), lines=40)
    assert terminal.close() == 0
    assert "reading" in terminal.text
    after = terminal.text[terminal.text.index('{"topic"') :]
    assert "\x1b" not in after
    assert [value_of(line.encode()) for line in after.splitlines()[:2]] == [0, 1]
    assert after.splitlines()[2:] == ["2 records"]


@pytest.mark.long
def test_binary_records_are_no_text_for_a_terminal(bootstrap: str, many: str) -> None:
    """They would change its state."""
    terminal = Terminal(("read", "-b", bootstrap, many, "--format", "arrow"), lines=40)
    assert terminal.close() == 2
    assert "redirect stdout" in picture(terminal.text)
