"""The command line as a script meets it: processes, streams and exit codes, against a real broker."""

from __future__ import annotations

import json
import re
import select
import signal
import socket
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.cli_support import (
    FIRST_WINDOW,
    NOWHERE,
    SECOND_WINDOW,
    Cluster,
    arguments,
    at,
    cli,
    topics,
    values,
    visible,
)
from tests.support.cli_support import cluster as cluster

SECRET = "correct-horse"


@pytest.mark.slow
def test_preview_tells_the_offsets_and_writes_nothing(cluster: Cluster) -> None:
    """Twice the same answer, no topic, no committed offset, no window."""
    before = topics(cluster.bootstrap)
    first, second = (
        cli("preview", *cluster.where, *cluster.question(60), "--json") for _ in range(2)
    )
    assert first.code == 0, first.stderr
    assert [part["ranges"] for part in first.json["partitions"]] == [[[0, 3], [4, 5]], [[0, 2]]]
    assert [(part["head"], part["tail"]) for part in first.json["partitions"]] == [(3, 1), (2, 0)]
    assert [part["log_start"] for part in first.json["partitions"]] == [0, 0]
    changing = {"planned_at": None}
    assert first.json | changing == second.json | changing
    assert topics(cluster.bootstrap) == before
    assert cluster.committed == {}
    assert cluster.windows("list").json["windows"] == []


@pytest.mark.slow
def test_preview_for_people_keeps_the_streams_apart(cluster: Cluster) -> None:
    """The table goes to stdout, the rest to stderr, and a pipe gets no colours or bars."""
    outcome = cli("preview", *cluster.where, *cluster.question(60))
    assert outcome.code == 0
    assert f"{cluster.topic}[0]" in outcome.stdout
    assert "[0, 3) [4, 5)" in outcome.stdout
    assert "nothing was written" in outcome.stderr
    assert "\x1b" not in outcome.stdout + outcome.stderr


@pytest.mark.slow
def test_topics_may_be_patterns_with_exceptions(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """A pattern takes the topics that match now, without the excluded ones."""
    names = [topic(f"{group_id}.{part}") for part in ("a", "b", "c")]
    for name in names:
        produce([(name, 0, None, b"0", 1_000, [])])
    outcome = cli(
        *(
            "preview",
            "-b",
            bootstrap,
            "-g",
            group_id,
            "--cutoff",
            at(0),
            "--starting-offsets",
            "earliest",
        ),
        *("-t", rf"^{group_id}\..*", "--exclude", names[1], "--exclude", "^.*nothing", "--json"),
    )
    assert [part["topic"] for part in outcome.json["partitions"]] == [names[0], names[2]]


@pytest.mark.slow
def test_run_delivers_a_window_once(cluster: Cluster) -> None:
    """The records in order, the offsets committed; the same command again finds it done."""
    first = cluster.run(60)
    assert first.code == 0, first.stderr
    result = first.json
    assert values(result["output"]) == FIRST_WINDOW
    assert {name: result[name] for name in ("status", "content", "attempt", "ran")} == {
        "status": "published",
        "content": "records",
        "attempt": 1,
        "ran": True,
    }
    assert (result["records"], result["out_of_order"], result["late"]) == (6, 1, 0)
    assert result["cutoff"] == at(60).replace("+00:00", "Z")
    tp = {"topic": cluster.topic, "lost": []}
    assert result["partitions"] == [
        {**tp, "partition": 0, "ranges": [[0, 3], [4, 5]], "committed": 3},
        {**tp, "partition": 1, "ranges": [[0, 2]], "committed": 2},
    ]
    assert cluster.committed == {0: 3, 1: 2}

    again = cluster.run(60)
    assert again.json == {**result, "ran": False}
    assert visible(cluster.output) == [Path(result["output"]).name]

    following = cluster.run(90)
    assert values(following.json["output"]) == SECOND_WINDOW
    assert cluster.committed == {0: 6, 1: 3}


@pytest.mark.slow
def test_run_tells_people_what_it_did(cluster: Cluster) -> None:
    """A summary with the folder on stdout; the second time it says that it was done already."""
    words = ("run", *cluster.where, *cluster.question(60), "--output", cluster.output)
    first, second = (cli(*words, "--engine", "local", "--window-id", "noon") for _ in range(2))
    assert (first.code, second.code) == (0, 0)
    assert "window_id=noon" in first.stdout
    assert "window noon is published" in first.stderr
    assert "already published" in second.stderr


@pytest.mark.long
def test_an_empty_window_is_published_and_a_covered_one_is_not(cluster: Cluster) -> None:
    """No record before the cutoff gives a file without rows; what others have taken gives no file."""
    empty = cluster.run(-60)
    assert (empty.code, empty.json["content"], empty.json["records"]) == (0, "empty", 0)
    assert values(empty.json["output"]) == []
    cluster.run(60)
    covered = cluster.run(60, "--window-id", "another")
    assert (covered.code, covered.json["content"]) == (5, "covered")
    assert (covered.json["output"], covered.json["records"]) == (None, 0)
    assert covered.json["status"] == "committed"
    assert len(visible(cluster.output)) == 2


@pytest.mark.slow
def test_an_out_of_order_record_that_comes_later_is_late(
    cluster: Cluster, produce: Produce
) -> None:
    """A record of a window that is gone is in the next one, and counted."""
    cluster.run(60)
    produce(
        [(cluster.topic, 1, None, b"1", int(datetime.fromisoformat(at(1)).timestamp() * 1000), [])]
    )
    following = cluster.run(90)
    assert values(following.json["output"]) == [1, *SECOND_WINDOW]
    assert following.json["late"] == 1
    [_, part] = cluster.windows("show", following.json["window_id"]).json["partitions"]
    before = at(60).replace("+00:00", "Z")
    assert part["late_steps"] == [{"offset": 3, "since": None, "before": before}]


@pytest.mark.long
@pytest.mark.spark
def test_run_with_spark_writes_the_same_records(cluster: Cluster) -> None:
    """The default engine gives the same window, and its Java prints nothing on stdout."""
    outcome = cluster.run(60, engine="python")
    assert outcome.code == 0, outcome.stderr
    assert outcome.json["records"] == len(FIRST_WINDOW)
    assert values(outcome.json["output"]) == FIRST_WINDOW


@pytest.mark.long
def test_a_window_around_a_job_of_ones_own(cluster: Cluster) -> None:
    """Plan, look, commit; again is a no-op, and the committed window cannot be abandoned."""
    planned = cluster.windows("plan", *cluster.question(60), "--window-id", "noon")
    assert (planned.code, planned.json["status"]) == (0, "planned")
    [listed] = cluster.windows("list", "--open").json["windows"]
    assert (listed["window_id"], listed["attempt"], listed["records"]) == ("noon", 1, None)
    assert listed["open_seconds"] > 0
    shown = cluster.windows("show", "noon").json
    assert shown["plan"] == planned.json["plan"]
    assert shown["question"]["topics"] == [cluster.topic]

    for _ in range(2):
        assert cluster.windows("commit", "noon").json["status"] == "committed"
    assert cluster.committed == {0: 3, 1: 2}
    assert cluster.windows("list", "--open").json["windows"] == []
    refused = cluster.windows("abandon", "noon")
    assert (refused.code, refused.error["type"]) == (4, "WindowSupersededError")


@pytest.mark.long
def test_an_abandoned_windows_records_go_to_the_next(cluster: Cluster) -> None:
    """Abandoning gives the offsets free; what is open is stepped around."""
    cluster.windows("plan", *cluster.question(60), "--window-id", "noon")
    around = cli("preview", *cluster.where, *cluster.question(90), "--json")
    assert around.json["stepped_around"] == ["noon"]
    assert around.json["offsets"] == len(SECOND_WINDOW)
    assert cluster.windows("abandon", "noon").json["status"] == "abandoned"
    free = cli("preview", *cluster.where, *cluster.question(90), "--json")
    assert free.json["offsets"] == len(FIRST_WINDOW) + len(SECOND_WINDOW)


@pytest.mark.long
def test_replay_reads_again_and_commits_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """The same records in another folder; the window and the group stay as they are."""
    first = cluster.run(60).json
    before = cluster.windows("show", first["window_id"]).json
    again = cluster.windows(
        "replay", first["window_id"], "--output", tmp_path / "again", "--engine", "local"
    )
    assert again.code == 0, again.stderr
    assert values(again.json["output"]) == FIRST_WINDOW
    assert Path(again.json["output"]).parent == tmp_path / "again"
    after = cluster.windows("show", first["window_id"]).json
    assert after == before
    assert cluster.committed == {0: 3, 1: 2}


@pytest.mark.long
def test_the_windows_of_a_group_for_people(cluster: Cluster) -> None:
    """A table by cutoff, and all of one window."""
    cluster.run(60, "--window-id", "noon")
    listed, shown, none = (
        cli("windows", "list", *cluster.where),
        cli("windows", "show", *cluster.where, "noon"),
        cli("windows", "list", *cluster.where, "--open"),
    )
    assert "noon" in listed.stdout
    assert "published" in listed.stdout
    assert re.search(rf"^topics +{re.escape(cluster.topic)}$", shown.stdout, re.MULTILINE)
    assert "no open windows" in none.stderr


@pytest.mark.slow
def test_settings_come_from_file_option_and_address(cluster: Cluster, tmp_path: Path) -> None:
    """-b beats -X, which beats the file; no secret is printed, whatever is said."""
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={cluster.bootstrap}\nssl.key.password={SECRET}\n")
    question = ("-g", cluster.group_id, *cluster.question(60), "--debug")
    from_file = cli("preview", "--config", config, *question)
    assert from_file.code == 0, from_file.stderr
    config.write_text(f"bootstrap.servers={NOWHERE}\n")
    stronger = (f"bootstrap.servers={cluster.bootstrap}", f"sasl.password={SECRET}")
    from_option = cli(
        "preview", "--config", config, "-X", stronger[0], "-X", stronger[1], *question
    )
    assert from_option.code == 0, from_option.stderr
    for outcome in (from_file, from_option):
        assert SECRET not in outcome.stdout + outcome.stderr


@pytest.mark.slow
def test_a_setting_that_is_forced_is_told_and_not_refused(cluster: Cluster) -> None:
    """A shared connection may name what this package sets itself."""
    outcome = cli("preview", *cluster.where, *cluster.question(60), "-X", "enable.auto.commit=true")
    assert outcome.code == 0
    assert "enable.auto.commit" in outcome.stderr


def test_secrets_are_masked_in_unexpected_errors(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An exception that nobody foresaw shows its traceback, exits 4, and hides the password in its text."""

    def preview(self: OrderedWindows, *_: Any) -> None:
        raise RuntimeError(f"the password was {SECRET}")

    monkeypatch.setattr(OrderedWindows, "preview", preview)
    question = ["-t", "t", "-g", "g", "--cutoff", at(0)]
    code = main(["preview", "-b", NOWHERE, "-X", f"sasl.password={SECRET}", *question, "--json"])
    captured = capfd.readouterr()
    assert code == 4
    assert json.loads(captured.out)["error"]["message"] == "the password was ***"
    assert "Traceback" in captured.err
    assert SECRET not in captured.err


_PREVIEW = ("preview", "-b", NOWHERE, "-g", "g", "-t", "t", "--cutoff", at(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param((*_PREVIEW[:-1], "2026-03-01T12:00:00"), "time zone", id="naive-cutoff"),
        pytest.param((*_PREVIEW[:-1], "noon"), "ISO 8601", id="cutoff"),
        pytest.param((*_PREVIEW, "--starting-offsets", "sometime"), "starting_offsets", id="start"),
        pytest.param(
            (*_PREVIEW, "--starting-offsets", "2026-03-01T12:00:00"), "time zone", id="naive-start"
        ),
        pytest.param((*_PREVIEW, "--max-out-of-orderness", "10m"), "PT10M", id="lateness"),
        pytest.param((*_PREVIEW, "--isolation", "none"), "read_committed", id="isolation"),
        pytest.param((*_PREVIEW, "--on-data-loss", "shrug"), "warn", id="on-data-loss"),
        pytest.param((*_PREVIEW, "--exclude", "^("), "regular expression", id="pattern"),
        pytest.param((*_PREVIEW, "--bogus"), "--bogus", id="unknown-option"),
        pytest.param(("preview", "-b", NOWHERE, "-g", "g", "-t", "t"), "--cutoff", id="missing"),
        pytest.param(("preview", *_PREVIEW[3:]), "bootstrap.servers", id="no-broker"),
        pytest.param((*_PREVIEW, "-X", SECRET), "-X number 1", id="pair"),
        pytest.param((*_PREVIEW, "-X", f"plugin.library.paths={SECRET}"), "allow-list", id="key"),
        pytest.param(
            (*_PREVIEW, "--config", "/nowhere/at/all"), "cannot read client settings", id="config"
        ),
        pytest.param(("windows", "fly"), "fly", id="unknown-command"),
        pytest.param(("windows", "show", "-b", NOWHERE, "-g", "g"), "WINDOW_ID", id="no-window"),
    ],
)
def test_wrong_usage_exits_2(words: tuple[str, ...], said: str) -> None:
    """What is wrong with the command is named, in JSON too, before anything is touched."""
    outcome = cli(*words, "--json")
    assert outcome.code == 2
    assert said in outcome.error["message"]
    assert "Traceback" not in outcome.stderr
    assert SECRET not in outcome.stdout + outcome.stderr


@pytest.mark.slow
def test_an_unknown_topic_exits_4_and_is_not_created(cluster: Cluster) -> None:
    """Asking about a mistyped topic must not make it."""
    name = f"{cluster.topic}-mistyped"
    outcome = cli("preview", *cluster.where, "-t", name, "--cutoff", at(0), "--json")
    assert outcome.code == 4
    assert (outcome.error["type"], outcome.error["facts"]) == (
        "UnknownTopicError",
        {"topics": [name]},
    )
    assert name not in topics(cluster.bootstrap)


@pytest.mark.slow
def test_failures_that_a_person_must_mend_exit_4(cluster: Cluster) -> None:
    """No starting offsets, another question under the same id, an unknown window."""
    question = ("-t", cluster.topic, "--cutoff", at(60))
    unbounded = cli("preview", *cluster.where, *question, "--json")
    assert (unbounded.code, unbounded.error["type"]) == (4, "StartingOffsetsRequiredError")
    cluster.windows("plan", *cluster.question(60), "--window-id", "noon")
    other = cluster.windows("plan", *cluster.question(61), "--window-id", "noon")
    assert (other.code, other.error["type"]) == (4, "WindowMismatchError")
    assert set(other.error["facts"]["differences"]) == {"cutoff"}
    unknown = cluster.windows("show", "midnight")
    assert (unknown.code, unknown.error["type"]) == (4, "UnknownWindowError")
    assert "Traceback" not in unbounded.stderr + other.stderr + unknown.stderr


@pytest.mark.slow
def test_a_cutoff_in_the_future_exits_1(cluster: Cluster) -> None:
    """It will have passed one day: the same command may succeed later."""
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    outcome = cli("preview", *cluster.where, "-t", cluster.topic, "--cutoff", tomorrow, "--json")
    assert (outcome.code, outcome.error["retriable"]) == (1, True)
    assert outcome.error["type"] == "CutoffInFutureError"


@pytest.mark.long
@pytest.mark.slow
def test_no_broker_exits_1_within_a_bounded_time() -> None:
    """A cluster that is away is waited for, but not for long."""
    outcome = cli(*_PREVIEW, "--json")
    assert (outcome.code, outcome.error["type"]) == (1, "BrokerUnreachableError")


@pytest.mark.slow
def test_ctrl_c_exits_130() -> None:
    """Also while a broker is waited for."""
    process = subprocess.Popen(
        arguments(*_PREVIEW, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    # The client's first complaint: the command is waiting now. It may keep quiet, and waits all the same.
    select.select([process.stderr], [], [], 10)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["error"]["type"] == "Interrupted"
    assert "Traceback" not in stderr


@pytest.mark.slow
@pytest.mark.spark
def test_ctrl_c_while_spark_starts_leaves_no_java(cluster: Cluster) -> None:
    """The pipe to stderr reaches its end: Spark's Java, which has it too, is gone."""
    sink = ("--output", cluster.output, "--json")
    process = subprocess.Popen(
        arguments("run", *cluster.where, *cluster.question(60), *sink),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "planned" not in process.stderr.readline():
        pass
    # Java has been launched by then, and has not yet said where it listens.
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["error"]["type"] == "Interrupted"


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_failure_of_ours(cluster: Cluster) -> None:
    """`| head` closes the pipe: no traceback."""
    process = subprocess.Popen(
        arguments("preview", *cluster.where, *cluster.question(60)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    stderr = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert "Traceback" not in stderr


def test_without_the_extra_one_line_tells_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The console script exists even where typer and rich do not."""
    monkeypatch.setattr("kafka_ordered_ops.cli.find_spec", lambda name: None)
    assert main(["--help"]) == 2
    captured = capsys.readouterr()
    assert "pip install 'kafka-ordered-ops[cli]'" in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_without_pyspark_the_error_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The default engine needs the extra `spark`; nothing is planned before that is known."""

    def check() -> None:
        raise ConfigError("pyspark is not installed: pip install 'kafka-ordered-ops[spark]'")

    monkeypatch.setattr("kafka_ordered_ops.spark.job_checks.check_pyspark", check)
    question = ["-b", NOWHERE, "-g", "g", "-t", "t", "--cutoff", at(0)]
    assert main(["run", *question, "--output", str(tmp_path)]) == 2
    said = capfd.readouterr().err
    assert "kafka-ordered-ops[spark]" in said
    assert "--engine local" in said


@pytest.mark.parametrize(
    "words", [(), ("preview",), ("run",), ("windows",), ("windows", "plan"), ("broker",)]
)
def test_every_command_explains_itself(words: tuple[str, ...]) -> None:
    """Help exits 0 and needs neither broker nor Spark."""
    outcome = cli(*words, "--help")
    assert outcome.code == 0
    assert outcome.stdout.startswith("Usage: kafka-ordered-ops")


@pytest.mark.slow
def test_broker_runs_until_it_is_told_to_end() -> None:
    """It prints its address when it answers there, and leaves nothing behind."""
    from kafka_ordered_ops.embedded import free_port

    port = free_port()
    process = subprocess.Popen(
        arguments("broker", "--port", port, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        bootstrap = json.loads(process.stdout.readline())["bootstrap"]
        assert bootstrap == f"127.0.0.1:{port}"
        assert topics(bootstrap) == set()
        taken = cli("broker", "--port", port, "--json")
        assert (taken.code, taken.error["type"]) == (2, "ConfigError")
        process.terminate()
        assert process.wait(30) == 0
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.communicate()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
