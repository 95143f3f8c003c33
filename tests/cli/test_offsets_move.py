"""``offsets reset`` and ``offsets migrate``: what is shown, asked, refused and done."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from kafka_ordered_ops import Earliest, OrderedWindows, Window
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.core.offset_map.parallel_consumer import (
    decode_parallel_consumer_map,
    encode_parallel_consumer_map,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.testing import InMemoryKafka
from tests.cli.test_cli_live import Terminal
from tests.support.cli_support import Cluster, cli
from tests.support.cli_support import cluster as cluster
from tests.support.hosts_support import GROUP
from tests.support.hosts_support import kafka as kafka
from tests.support.windows_support import at
from tests.support.wire import commit_offsets, stored_offset

Captured = pytest.CaptureFixture[str]

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def run(
    kafka: InMemoryKafka, capfd: Captured, word: str, *more: object, code: int = 0
) -> dict[str, Any]:
    """What a command of the group says as JSON."""
    words = ["offsets", word, "-b", kafka.bootstrap, "-g", GROUP, *map(str, more), "--json"]
    assert main(words) == code
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def error(kafka: InMemoryKafka, capfd: Captured, word: str, *more: object, code: int = 2) -> str:
    """The type and the message of its error."""
    found = run(kafka, capfd, word, *more, code=code)["error"]
    return f"{found['type']}: {found['message']}"


def told(kafka: InMemoryKafka, capfd: Captured, word: str, *more: str) -> tuple[str, str]:
    """What it says to people, on stdout and on stderr."""
    assert main(["offsets", word, "-b", kafka.bootstrap, "-g", GROUP, *more]) == 0
    captured = capfd.readouterr()
    return captured.out, captured.err


def run_window(
    kafka: InMemoryKafka, seconds: float, *, since: float | None = None, commit: bool = True
) -> None:
    """A window of the group; partition 0 has the even seconds."""
    start = None if since is None else at(since)
    window = Window(["t"], at(seconds), since=start, starting_offsets=Earliest())
    with OrderedWindows(kafka.settings, GROUP) as windows:
        plan = windows.plan(window, f"w{seconds:g}")
        if commit:
            windows.commit(plan)


def offsets(kafka: InMemoryKafka) -> dict[TopicPartition, int]:
    """The group's committed offsets."""
    return {tp: one.offset for tp, one in kafka.committed(GROUP).items()}


def moves(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Each partition's offsets before and after, and what is skipped and repeated."""
    names = ("before", "after", "skipped_offsets", "repeated_offsets")
    return [tuple(one[name] for name in names) for one in found["partitions"]]


# --- asking ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("reset", "--to", "earliest"), ("migrate", "--to", "parallel-consumer")]
)
def test_without_a_terminal_nothing_is_changed_unasked(
    kafka: InMemoryKafka, capfd: Captured, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Neither in a pipe nor with --json; and a dry run is not a change."""
    run_window(kafka, 4)
    before = kafka.committed(GROUP)
    assert "--yes" in error(kafka, capfd, *words)
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main(["offsets", *words, "-b", kafka.bootstrap, "-g", GROUP]) == 2
    assert "no terminal" in capfd.readouterr().err
    assert "--dry-run" in error(kafka, capfd, *words, "--yes", "--dry-run")
    assert run(kafka, capfd, *words, "--dry-run")["dry_run"] is True
    out, err = told(kafka, capfd, *words, "--dry-run")
    assert "t[0]" in out
    assert "nothing was changed" in err
    assert kafka.committed(GROUP) == before


# --- reset -----------------------------------------------------------------------------------------


def test_a_group_of_windows_is_reset(kafka: InMemoryKafka, capfd: Captured) -> None:
    """Back: its windows are rewound, and the next one takes the records again."""
    run_window(kafka, 6)
    found = run(kafka, capfd, "reset", "--to", at(4).isoformat(), "--yes")
    assert moves(found) == [(3, 2, 0, 1), (3, 2, 0, 1)]
    assert (found["rewound"], found["has_ledger"], found["dry_run"]) == (["w6"], True, False)
    assert offsets(kafka) == {FIRST: 2, SECOND: 2}
    out, err = told(kafka, capfd, "reset", "--to", "latest", "--yes")
    assert [line.split()[1:] for line in out.splitlines() if "t[0]" in line] == [
        ["2", "5", "3", "0"]
    ]
    assert "group group was reset" in err


def test_a_consumers_group_is_reset_on_named_topics(kafka: InMemoryKafka, capfd: Captured) -> None:
    """By its commits alone, for no ledger knows its topics."""
    kafka.commit(GROUP, {FIRST: 3}, encode_parallel_consumer_map(3, OffsetSet.of((4, 5))))
    assert "topics" in error(kafka, capfd, "reset", "--to", "earliest", "--yes")
    found = run(kafka, capfd, "reset", "--to", "earliest", "-t", "t", "--yes")
    assert moves(found) == [(3, 0, 0, 4), (None, 0, 0, 0)]
    assert kafka.committed(GROUP)[FIRST].metadata == b""
    assert found["has_ledger"] is False
    run(kafka, capfd, "reset", "--to", "offset:4", "-t", "^t$", "--yes")
    assert offsets(kafka) == {FIRST: 4, SECOND: 4}


def test_single_partitions_are_reset(kafka: InMemoryKafka, capfd: Captured) -> None:
    """The others stay."""
    kafka.commit(GROUP, {FIRST: 1, SECOND: 1})
    found = run(kafka, capfd, "reset", "--to", "t:1=3", "--yes")
    assert moves(found) == [(1, 3, 2, 0)]
    assert offsets(kafka) == {FIRST: 1, SECOND: 3}


def test_a_group_at_work_is_not_reset(kafka: InMemoryKafka, capfd: Captured) -> None:
    """While it has members or open windows."""
    run_window(kafka, 2)
    run_window(kafka, 4, commit=False)
    words = ("reset", "--to", "latest", "--yes")
    assert "OpenClaimError" in error(kafka, capfd, *words, code=1)
    with OrderedWindows(kafka.settings, GROUP) as windows:
        windows.abandon("w4")
    before = offsets(kafka)
    with kafka.join(GROUP):
        assert "GroupInUseError" in error(kafka, capfd, *words, code=1)
        assert offsets(kafka) == before
    assert run(kafka, capfd, *words)["partitions"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--to", "earliest", "--to", "latest"), "one bound"),
        (("--to", "earliest", "--to", "t:0=1"), "one bound"),
        (("--to", "t:0=1", "--to", "t:0=2"), "twice for t[0]"),
        (("--to", "t:0=x",), "orders:0=123"),
        (("--to", f"t:0={2**63}",), "orders:0=123"),
        (("--to", f"t:{2**31}=0",), "orders:0=123"),
        (("--to", "t:0=1", "-t", "t"), "omit --topic"),
        (("--to", "soon"), "starting_offsets"),
        (("--to", "2026-11-20T12:00:00"), "time zone"),
    ],
)  # fmt: skip
def test_offsets_that_cannot_be_are_refused(
    kafka: InMemoryKafka, capfd: Captured, words: tuple[str, ...], part: str
) -> None:
    """Before anything is touched."""
    kafka.commit(GROUP, {FIRST: 1, SECOND: 1})
    before = kafka.committed(GROUP)
    assert part in error(kafka, capfd, "reset", *words, "--yes")
    assert kafka.committed(GROUP) == before


def test_a_group_without_progress_has_nothing_to_reset(
    kafka: InMemoryKafka, capfd: Captured
) -> None:
    """Its only window was abandoned."""
    run_window(kafka, 4, commit=False)
    with OrderedWindows(kafka.settings, GROUP) as windows:
        windows.abandon("w4")
    assert "nothing was changed" in told(kafka, capfd, "reset", "--to", "latest", "--yes")[1]


# --- migrate ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_group_is_handed_over_and_taken_back(kafka: InMemoryKafka, capfd: Captured) -> None:
    """What windows have done is in Parallel Consumer's maps, and what it does then is the group's progress."""
    run_window(kafka, 6, since=4)
    found = run(kafka, capfd, "migrate", "--to", "parallel-consumer", "--yes")
    assert (found["before"], found["after"], found["changed"]) == (
        "ledger",
        "parallel-consumer",
        True,
    )
    commit = kafka.committed(GROUP)[FIRST]
    assert decode_parallel_consumer_map(commit.metadata, commit.offset).done == OffsetSet.of((2, 3))
    assert run(kafka, capfd, "show")["progress_in"] == "parallel-consumer"
    metadata = encode_parallel_consumer_map(1, OffsetSet.of((2, 4)))
    kafka.commit(GROUP, {FIRST: 1}, metadata)
    assert run(kafka, capfd, "show")["partitions"][0]["done"] == [[0, 1], [2, 4]]
    found = run(kafka, capfd, "migrate", "--to", "ledger", "--yes")
    assert found["partitions"][0]["gained_offsets"] == 2
    again = run(kafka, capfd, "show")
    assert (again["progress_in"], again["partitions"][0]["done"]) == ("ledger", [[0, 1], [2, 4]])
    assert "nothing was changed" in told(kafka, capfd, "migrate", "--to", "ledger", "--yes")[1]


def test_both_formats_are_written_for_a_while(kafka: InMemoryKafka, capfd: Captured) -> None:
    """What either has done is shown, also before windows have taken it over."""
    run_window(kafka, 6, since=4)
    out, err = told(kafka, capfd, "migrate", "--to", "parallel-consumer", "--dual", "--yes")
    assert "from ledger to dual" in out
    assert "was migrated from ledger to dual" in err
    commit = kafka.committed(GROUP)[FIRST]
    assert decode_parallel_consumer_map(commit.metadata, commit.offset).done == OffsetSet.of((2, 3))
    kafka.commit(GROUP, {FIRST: 1}, encode_parallel_consumer_map(1, OffsetSet.of((2, 4))))
    found = run(kafka, capfd, "show")
    assert (found["progress_in"], found["partitions"][0]["done"]) == ("dual", [[0, 1], [2, 4]])


def test_only_groups_of_windows_are_migrated(kafka: InMemoryKafka, capfd: Captured) -> None:
    """A consumer's group begins with its first window."""
    kafka.commit(GROUP, {FIRST: 1})
    words = ("migrate", "--to", "ledger", "--yes")
    assert "UnknownWindowError" in error(kafka, capfd, *words, code=4)


# --- in a shell ------------------------------------------------------------------------------------


class Asked(Terminal):
    """A command that asks on its terminal."""

    def answer(self, text: str) -> None:
        self.read_until(r"\[y/N\]")
        os.write(self._fd, f"{text}\n".encode())


@pytest.mark.long
def test_a_person_is_asked_on_a_terminal(cluster: Cluster) -> None:
    """No changes nothing; yes does what was shown."""
    where = (cluster.bootstrap, cluster.group_id, cluster.topic)
    commit_offsets(*where, {0: (2, b""), 1: (1, b"")})
    words = ("offsets", "reset", *cluster.where, "-t", cluster.topic, "--to", "latest")
    for answer, committed, end in (
        ("n", {0: 2, 1: 1}, "nothing was changed"),
        ("y", {0: 6, 1: 3}, "was reset"),
    ):
        terminal = Asked(words, lines=40)
        terminal.answer(answer)
        assert terminal.close() == 0
        assert "repeated" in terminal.text
        assert end in terminal.text
        assert cluster.committed == committed
    assert stored_offset(*where, 0) == (6, b"")


@pytest.mark.long
def test_a_group_of_a_real_broker_is_handed_over_and_back(cluster: Cluster) -> None:
    """Its metadata is exact to the byte."""
    assert cluster.windows("plan", *cluster.question(60), "--window-id", "w").code == 0
    assert cluster.windows("commit", "w").code == 0
    words = ("offsets", "migrate", *cluster.where, "--yes", "--json", "--to")
    over = cli(*words, "parallel-consumer")
    assert (over.code, over.json["after"]) == (0, "parallel-consumer"), over.stderr
    where = (cluster.bootstrap, cluster.group_id, cluster.topic)
    assert stored_offset(*where, 0) == (3, encode_parallel_consumer_map(3, OffsetSet.of((4, 5))))
    refused = cluster.windows("plan", *cluster.question(90), "--window-id", "x")
    assert refused.code == 4
    assert refused.error["type"] == "GroupHandedOverError"
    back = cli(*words, "ledger")
    assert (back.code, back.json["after"]) == (0, "ledger"), back.stderr
    assert cluster.windows("plan", *cluster.question(90), "--window-id", "x").code == 0
