"""``offsets`` in a shell, of a real broker: groups of every kind, a terminal that is written over, and Ctrl-C."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.offset_set import OffsetSet
from tests.cli.test_cli_live import Terminal
from tests.support.cli_support import Cluster, arguments, at, cli
from tests.support.cli_support import cluster as cluster
from tests.support.wire import commit_offsets

_CTRL_C = 130


def show(cluster: Cluster, *more: object) -> list[tuple[object, ...]]:
    """Each partition's committed offset, done and claimed ranges, and metadata."""
    outcome = cli("offsets", "show", *cluster.where, *more, "--json")
    assert outcome.code == 0, outcome.stderr
    names = ("committed", "done", "claimed", "metadata")
    return [tuple(one[name] for name in names) for one in outcome.json["partitions"]]


@pytest.mark.slow
def test_groups_of_every_kind_are_shown(cluster: Cluster) -> None:
    """A consumer's, with metadata of any bytes; Parallel Consumer's; and that of windows."""
    where = (cluster.bootstrap, cluster.group_id, cluster.topic)
    commit_offsets(*where, {0: (2, b"host-1:pid")})
    assert show(cluster) == [(2, [[0, 2]], [], "other")]
    metadata = encode_parallel_consumer_map(1, OffsetSet.of((2, 3), (4, 6)))
    commit_offsets(*where, {0: (1, metadata), 1: (3, b"")})
    assert show(cluster) == [
        (1, [[0, 1], [2, 3], [4, 6]], [], "parallel-consumer"),
        (3, [[0, 3]], [], "none"),
    ]
    assert show(cluster, "-t", f"^{cluster.topic}") == show(cluster)


@pytest.mark.long
def test_windows_are_shown_while_they_are_open_and_when_they_are_committed(
    cluster: Cluster,
) -> None:
    """Claimed, then done; the record behind the first later one is a hole until then."""
    question = cluster.question(60)
    assert cluster.windows("plan", *question, "--window-id", "w").code == 0
    assert [one[2] for one in show(cluster)] == [[[0, 3], [4, 5]], [[0, 2]]]
    assert cluster.windows("commit", "w").code == 0
    assert show(cluster) == [(3, [[0, 3], [4, 5]], [], "ours"), (2, [[0, 2]], [], "ours")]
    outcome = cli("offsets", "show", *cluster.where)
    assert "\x1b" not in outcome.stdout
    assert re.search(r"\[0\] +███░█░ +3 +6 +2 +1 +0", outcome.stdout)


@pytest.mark.slow
def test_a_watched_group_is_written_over_until_ctrl_c(cluster: Cluster) -> None:
    """The newest offsets stay on the terminal, and the cursor comes back."""
    where = (cluster.bootstrap, cluster.group_id, cluster.topic)
    commit_offsets(*where, {0: (2, b"")})
    terminal = Terminal(("offsets", "show", *cluster.where, "--watch"), lines=40)
    terminal.read_until(r"4 offsets behind; read at")
    commit_offsets(*where, {0: (5, b""), 1: (0, b"")})
    terminal.read_until(r"4 offsets behind; read at[\s\S]*total of 2")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.close() == _CTRL_C
    last = terminal.text.rsplit("\x1b[?25h", 1)[1]
    assert "total of 2" in last
    assert f"group {cluster.group_id} is 4 offsets behind" in last
    assert last.rstrip().endswith("interrupted")


@pytest.mark.slow
def test_watching_a_group_that_nobody_knows_is_an_error(cluster: Cluster) -> None:
    """A misspelt name must not be watched for hours."""
    words = ("-b", cluster.bootstrap, "-t", cluster.topic, "-g", "nobody", "--watch")
    terminal = Terminal(("offsets", "show", *words), lines=40)
    assert terminal.close() == 2
    assert "group nobody has neither planned a window" in terminal.text


@pytest.mark.slow
def test_offsets_before_a_time_can_be_committed(cluster: Cluster) -> None:
    """The out-of-order record of partition 0 has no place of its own in the index of times."""
    words = ("-b", cluster.bootstrap, "-t", cluster.topic, "--time", at(90), "--every", "PT30S")
    outcome = cli("offsets", "before", *words, "--json")
    assert outcome.code == 0, outcome.stderr
    found = [[one["offset"] for one in part["offsets"]] for part in outcome.json["partitions"]]
    assert found == [[6, 3, 0], [3, 2, 0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("decode", "bgAA"), 4, "No space left"),
        (("decode", "bgAA", "--json"), 4, "No space left"),
        (("encode", "--base", "1", "--done", "x", "--json"), 2, "not an offset"),
    ],
)
def test_a_full_disk_is_named(words: tuple[str, ...], code: int, told: str) -> None:
    """A result that cannot be written is no fault of ours; an error keeps its own exit code."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            arguments("offsets", *words),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert told in done.stderr
