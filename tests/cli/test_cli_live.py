"""``live`` as a script and a person meet it: exit codes, JSON, lines, and the table on a terminal."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
import uuid
from pathlib import Path

import pytest

from kafka_ordered_ops.embedded.node import free_port
from tests.conftest import MakeTopic, Produce
from tests.support.cli_support import T0, Outcome, arguments, at, cli, committed, topics
from tests.support.forwarding import forwarded

_TIMEOUT_S = 60.0
#: A port that nobody listens on: the connection is refused at once.
NOWHERE = "127.0.0.1:1"


class Cluster:
    """A topic of two partitions, the second of them empty."""

    def __init__(self, bootstrap: str, topic: str, group_id: str, produce: Produce) -> None:
        self.bootstrap, self.topic, self.group_id, self._produce = (
            bootstrap,
            topic,
            group_id,
            produce,
        )

    def write(self, partition: int, *seconds: int) -> None:
        """One record for each time, so many seconds after `T0`."""
        start_ms = int(T0.timestamp() * 1000)
        self._produce(
            (self.topic, partition, None, b"x", start_ms + second * 1000, ()) for second in seconds
        )

    def words(self, seconds: int, *more: object) -> tuple[object, ...]:
        return ("live", "-b", self.bootstrap, "-t", self.topic, "--cutoff", at(seconds), *more)

    def live(self, seconds: int, *more: object) -> Outcome:
        return cli(*self.words(seconds, *more))


@pytest.fixture
def cluster(bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str) -> Cluster:
    """Seconds 0, 70 and 30 in the first partition."""
    name = topic(f"live-{uuid.uuid4().hex[:8]}", partitions=2)
    one = Cluster(bootstrap, name, group_id, produce)
    one.write(0, 0, 70, 30)
    return one


# --- one look ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_not_yet_is_3_and_all_live_is_0(cluster: Cluster) -> None:
    """The JSON object tells each partition's state, reason and numbers."""
    waiting = cluster.live(60, "--json")
    assert waiting.code == 3, waiting.stderr
    assert waiting.json["live"] is False
    assert waiting.json["counts"] == {"live": 1, "idle": 0, "waiting": 1}
    first, second = waiting.json["partitions"]
    assert (first["state"], first["reason"], first["offset"]) == ("live", "record", 1)
    assert first["timestamp"] == at(70).replace("+00:00", "Z")
    assert (second["state"], second["reason"], second["end_offset"]) == ("waiting", "no_record", 0)
    cluster.write(1, 60)
    done = cluster.live(60, "--json")
    assert (done.code, done.json["live"]) == (0, True)
    assert done.stderr == ""


@pytest.mark.slow
def test_a_grace_makes_the_silent_partition_idle(cluster: Cluster) -> None:
    """Exit 0 by the grace that is over, 3 by one that is not; the lateness moves both."""
    over = cluster.live(60, "--grace", "PT5M", "--json")
    assert (over.code, over.json["counts"]) == (0, {"live": 1, "idle": 1, "waiting": 0})
    running = cluster.live(60, "--grace", "P9999D", "--json")
    assert (running.code, running.json["partitions"][1]["reason"]) == (3, "grace")
    late = cluster.live(60, "--grace", "PT5M", "--max-out-of-orderness", "PT10S", "--json")
    assert (late.code, late.json["live_from"]) == (0, at(70).replace("+00:00", "Z"))
    later = cluster.live(60, "--grace", "PT5M", "--max-out-of-orderness", "PT11S", "--json")
    assert [one["state"] for one in later.json["partitions"]] == ["idle", "idle"]


@pytest.mark.slow
def test_the_table_tells_why(cluster: Cluster) -> None:
    """On stdout without colours in a pipe; the summary on stderr."""
    outcome = cluster.live(60)
    assert outcome.code == 3
    lines = outcome.stdout.splitlines()
    [first] = [line for line in lines if f"{cluster.topic}[0]" in line]
    [second] = [line for line in lines if f"{cluster.topic}[1]" in line]
    assert re.search(r"live +offset 1 is stamped 2026-03-01T12:01:10Z", first)
    assert re.search(r"waiting +the log is empty", second)
    assert "1 of 2 partitions live, 1 waiting" in outcome.stderr
    assert "\x1b" not in outcome.stdout + outcome.stderr


@pytest.mark.slow
def test_a_long_table_shows_the_waiting_ones_first(cluster: Cluster, topic: MakeTopic) -> None:
    """Of many partitions a table tells what matters; the JSON has all."""
    many = topic(f"{cluster.topic}-many", partitions=250)
    words = ("live", "-b", cluster.bootstrap, "-t", cluster.topic, "-t", many, "--cutoff", at(60))
    table = cli(*words)
    assert f"{cluster.topic}[0]" not in table.stdout
    assert f"{cluster.topic}[1]" in table.stdout
    assert "and 52 more partitions" in table.stdout
    assert len(cli(*words, "--json").json["partitions"]) == 252


@pytest.mark.long
def test_the_groups_side_is_shown_below(cluster: Cluster) -> None:
    """Nothing of an unknown group; lag and open windows of one that has planned. Nothing is changed."""
    before = topics(cluster.bootstrap)
    unknown = cluster.live(60, "-g", cluster.group_id)
    assert "has not planned a window yet" in unknown.stdout
    assert topics(cluster.bootstrap) == before
    where = ("-b", cluster.bootstrap, "-g", cluster.group_id)
    question = ("-t", cluster.topic, "--cutoff", at(60), "--starting-offsets", "earliest")
    cli("windows", "plan", *where, *question, "--window-id", "noon")
    known = cluster.live(60, "-g", cluster.group_id)
    assert re.search(r"noon +planned +2026-03-01T12:01:00Z +PT\d+S", known.stdout)
    facts = cluster.live(60, "-g", cluster.group_id, "--json").json
    assert [one["lag_offsets"] for one in facts["partitions"]] == [3, 0]
    assert [one["window_id"] for one in facts["open_windows"]] == ["noon"]
    cli("windows", "commit", *where, "noon")
    assert "has no open windows" in cluster.live(60, "-g", cluster.group_id).stdout
    assert committed(cluster.bootstrap, cluster.group_id, cluster.topic) == {0: 1, 1: 0}


@pytest.mark.slow
def test_topics_isolation_and_settings_are_given_as_elsewhere(
    cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """Patterns with exceptions, a settings file, and the isolation level."""
    other = topic(f"{cluster.topic}-other")
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={cluster.bootstrap}\nenable.auto.commit=true\n")
    outcome = cli(
        *("live", "--config", config, "-X", "client.id=somebody", "-t", rf"^{cluster.topic}.*"),
        *("--exclude", cluster.topic, "--cutoff", at(60), "--isolation", "read_uncommitted"),
        "--json",
    )
    assert outcome.code == 3
    assert [one["topic"] for one in outcome.json["partitions"]] == [other]
    assert outcome.json["isolation"] == "read_uncommitted"
    assert "enable.auto.commit" in outcome.stderr


@pytest.mark.slow
def test_an_unknown_topic_exits_4(cluster: Cluster) -> None:
    """Also while waiting: a mistyped name is no wait. Nothing is created."""
    name = f"{cluster.topic}-mistyped"
    for more in ((), ("--wait",)):
        words = ("live", "-b", cluster.bootstrap, "-t", name, "--cutoff", at(60), "--json")
        outcome = cli(*words, *more)
        assert (outcome.code, outcome.error["type"]) == (4, "UnknownTopicError")
    assert name not in topics(cluster.bootstrap)


_LIVE = ("live", "-b", NOWHERE, "-t", "t", "--cutoff", at(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param((*_LIVE[:-1], "2026-03-01T12:00:00"), "time zone", id="naive-cutoff"),
        pytest.param((*_LIVE, "--grace", "5m"), "PT10M", id="grace"),
        pytest.param((*_LIVE, "--wait", "--timeout", "1h"), "PT10M", id="timeout"),
        pytest.param((*_LIVE, "--timeout", "PT1H"), "--wait", id="timeout-without-wait"),
        pytest.param((*_LIVE, "--starting-offsets", "earliest"), "--starting-offsets", id="start"),
        pytest.param(("live", *_LIVE[3:]), "bootstrap.servers", id="no-broker"),
        pytest.param((*_LIVE, "-t", "no topic"), "topic name", id="topic"),
    ],
)
def test_wrong_usage_exits_2(words: tuple[str, ...], said: str) -> None:
    """What is wrong is named before anything is touched."""
    outcome = cli(*words, "--json")
    assert outcome.code == 2
    assert said in outcome.error["message"]
    assert "Traceback" not in outcome.stderr


# --- waiting -----------------------------------------------------------------------------------------


def started(cluster: Cluster, *more: object) -> subprocess.Popen[str]:
    """A command that waits, and has told so."""
    process = subprocess.Popen(
        arguments(*cluster.words(60, "--wait", *more)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "waiting" not in (line := process.stderr.readline()):
        assert line, "it ended without waiting"
    return process


@pytest.mark.slow
def test_wait_ends_with_0_once_the_last_partition_is_written(cluster: Cluster) -> None:
    """Without a terminal one line tells of each change, and the object comes at the end."""
    process = started(cluster, "--timeout", "PT1M", "--json")
    cluster.write(1, 60)
    stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["live"] is True
    assert stderr.splitlines() == ["2 of 2 partitions live"]


@pytest.mark.slow
def test_wait_ends_with_3_at_the_timeout(cluster: Cluster) -> None:
    """The result is that of the last look, and looks that find nothing new say nothing."""
    outcome = cluster.live(60, "--wait", "--timeout", "PT3S")
    assert outcome.code == 3
    assert "waiting" in outcome.stdout
    told, summary = outcome.stderr.splitlines()
    assert told.startswith("1 of 2 partitions live, 1 waiting (")
    assert f"{cluster.topic}[1]: the log is empty" in told
    assert summary == "1 of 2 partitions live, 1 waiting"


@pytest.mark.slow
def test_ctrl_c_ends_a_wait_with_130(cluster: Cluster) -> None:
    """At once, with an object that says so."""
    process = started(cluster, "--json")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["error"]["type"] == "Interrupted"
    assert "Traceback" not in stderr


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, words: tuple[object, ...], *, lines: int, columns: int = 120) -> None:
        self._fd, inner = pty.openpty()
        termios.tcsetwinsize(inner, (lines, columns))
        self.text = ""
        # Readline, which pytest loads, leaves a size of its own there for its children; it would go first.
        environment = {k: v for k, v in os.environ.items() if k not in ("LINES", "COLUMNS")}
        # A piece may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.process = subprocess.Popen(
            arguments(*words),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**environment, "TERM": "xterm-256color"},
        )
        os.close(inner)

    def read_until(self, pattern: str | None) -> None:
        """Reads until the text has a match, or to the end where there is no pattern."""
        deadline = time.monotonic() + _TIMEOUT_S
        while pattern is None or not re.search(pattern, self.text):
            ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {pattern} in {self.text!r}"
            try:
                self.text += self._decoder.decode(os.read(self._fd, 65_536))
            except OSError:  # How a terminal says that its last user has left.
                assert pattern is None, f"no {pattern} in {self.text!r}"
                return

    def close(self) -> int:
        """Reads to the end; the exit code."""
        self.read_until(None)
        os.close(self._fd)
        return self.process.wait(_TIMEOUT_S)


@pytest.mark.slow
def test_on_a_terminal_the_table_is_written_over(cluster: Cluster) -> None:
    """The first table goes, line by line, and the last one stays; the cursor comes back."""
    terminal = Terminal(cluster.words(60, "--wait"), lines=40)
    terminal.read_until(r"\[1\].*waiting.*the log is empty[\s\S]*checked at")
    cluster.write(1, 65)
    assert terminal.close() == 0
    erase = "\x1b[1A\x1b[2K"
    assert erase in terminal.text
    last = terminal.text.rsplit(erase, 1)[1]
    assert f"{cluster.topic}[1]" in last
    assert "offset 0 is stamped 2026-03-01T12:01:05Z" in last
    assert "waiting" not in last
    assert terminal.text.rindex("\x1b[?25h") > terminal.text.rindex("\x1b[?25l")


def left_of(text: str) -> str:
    """What is left on a terminal after its text, with the lines that were erased."""
    lines, row = [""], 0
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\n|\r|[^\x1b\r\n]+", text):
        if piece == "\x1b[1A":
            row -= 1
        elif piece == "\x1b[2K":
            lines[row] = ""
        elif piece == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif piece[0] not in "\x1b\r":
            lines[row] += piece
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("live", "--wait", "-t"), ("read", "--follow")])
def test_on_a_terminal_what_was_waited_for_goes_with_the_wait(
    cluster: Cluster, words: tuple[str, ...]
) -> None:
    """The line about a broker that is away is there until the broker answers, and not after it."""
    port = free_port()
    more = ("--cutoff", at(60), "--timeout", "PT60S") if words[0] == "live" else ("-n", "1")
    command = (*words, cluster.topic, "-b", f"127.0.0.1:{port}", *more)
    terminal = Terminal(command, lines=40)
    terminal.read_until(r"waiting for a broker at")
    with forwarded(port, cluster.bootstrap):
        terminal.read_until(r"the log is empty[\s\S]*checked at|offset")
        assert "waiting for a broker at" not in left_of(terminal.text)
        terminal.process.send_signal(signal.SIGINT)
        terminal.close()
    assert "waiting for a broker at" not in left_of(terminal.text)


@pytest.mark.slow
def test_a_table_never_outgrows_the_terminal(cluster: Cluster, topic: MakeTopic) -> None:
    """What has scrolled away cannot be written over: the waiting ones are shown, and how many more."""
    many = topic(f"{cluster.topic}-many", partitions=50)
    terminal = Terminal(cluster.words(60, "-t", many, "--wait"), lines=20)
    terminal.read_until(r"and \d+ more partitions[\s\S]*checked at")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.close() == 130
    before = terminal.text.split("checked at")[0]
    # The newest picture: one may have been drawn, and written over, before it.
    shown = before[before.rindex("live for") :]
    assert shown.count("\n") < 20
    assert f"{many}[0]" in shown
    assert f"{cluster.topic}[0]" not in shown
    assert "interrupted" in terminal.text
