"""`run --application`: a Spark job of the user's from the command line."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from pathlib import Path

import pytest

from kafka_ordered_ops.spark.applications.process import processes_of
from tests.support.cli_support import (
    FIRST_WINDOW,
    SECOND_WINDOW,
    Cluster,
    Outcome,
    arguments,
    at,
    cli,
    values,
    visible,
)
from tests.support.cli_support import cluster as cluster
from tests.support.kill_points import KillPoint
from tests.support.spark_support import spark41_jars
from tests.support.submit_support import application, logs, ready, runs, wait_for

# Starting Spark takes its time on a busy machine.
pytestmark = pytest.mark.timeout(900)

_TIMEOUT_S = 280.0

#: Copies the window, slowly enough to be seen, and keeps what its arguments say.
KEEP = """
    import sys, time, os, pathlib
    from pyspark.sql import SparkSession
    from kafka_ordered_ops import current_window

    def slowly(batches):
        for batch in batches:
            time.sleep(3)
            yield batch

    spark = SparkSession.builder.getOrCreate()
    window = current_window(spark)
    records = window.read()
    if sys.argv[1:2] == ["--slow"]:
        tell = pathlib.Path(__file__).with_suffix(".new")
        tell.write_text(f"{os.environ['KAFKA_ORDERED_OPS_RUN']} {os.getpid()} {os.getppid()}")
        tell.rename(tell.with_suffix(".ready"))
        records = records.mapInArrow(slowly, records.schema)
    elif len(sys.argv) > 1:
        records = records.where(f"cast(cast(value as string) as int) >= {sys.argv[1]}")
    print("words of the job, on its standard output")
    window.write(records)
"""

_LOCAL = (
    "--master", "local[1]",
    "--spark-conf", "spark.ui.enabled=false",
    "--spark-conf", "spark.driver.memory=512m",
    "--spark-conf", "spark.driver.host=127.0.0.1",
    "--spark-conf", "spark.driver.bindAddress=127.0.0.1",
)  # fmt: skip


def words(cluster: Cluster, job: Path, seconds: int, *more: object) -> tuple[object, ...]:
    """The command line of one `run`."""
    return (
        "run",
        *(*cluster.where, *cluster.question(seconds)),
        *("--output", cluster.output, "--application", job),
        *(*_LOCAL, *more),
    )


def run(
    cluster: Cluster, job: Path, seconds: int, *more: object, kill_at: KillPoint | None = None
) -> Outcome:
    """One `run` of an application."""
    done = subprocess.run(
        arguments(*words(cluster, job, seconds, "--json", *more), kill_at=kill_at),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.long
@pytest.mark.spark
def test_windows_by_an_application(cluster: Cluster, tmp_path: Path) -> None:
    """Committed and published; its arguments come behind --, and stdout holds one object."""
    job = application(tmp_path, KEEP)
    first = run(cluster, job, 60, "--", "10")
    assert first.code == 0, first.stderr
    assert (first.json["status"], first.json["ran"]) == ("published", True)
    assert values(first.json["output"]) == [value for value in FIRST_WINDOW if value >= 10]
    assert first.json["records"] == 4
    assert cluster.committed == {0: 3, 1: 2}
    assert "words of the job" not in first.stderr
    assert runs(cluster.output) == []

    again = run(cluster, job, 60, "--", "10")
    assert (again.code, again.json["ran"]) == (0, False)


@pytest.mark.slow
@pytest.mark.spark
def test_a_failed_application_exits_1_and_names_its_log(cluster: Cluster, tmp_path: Path) -> None:
    """Nothing is published; the same command with a mended job delivers the window."""
    job = application(tmp_path, "raise LookupError('no such country')")
    failed = run(cluster, job, 60)
    assert (failed.code, failed.error["type"]) == (1, "JobFailedError")
    (log,) = logs(cluster.output)
    assert "LookupError: no such country" in failed.error["message"]
    assert str(log) in failed.error["message"]
    assert not cluster.output.exists() or not [
        name for name in visible(cluster.output) if name.startswith("window_id")
    ]
    assert cluster.committed == {}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
def test_a_killed_run_ends_its_application_and_the_next_one_ends_well(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Kill -9 of the command in the middle of the job, and the same command again."""
    job = application(tmp_path, KEEP)
    killed = run(cluster, job, 60, "--", "--slow", kill_at=KillPoint.IN_READ)
    assert (killed.code, killed.stdout) == (-signal.SIGKILL, "")
    token, _, _ = ready(job)
    wait_for(lambda: not processes_of(token), "no process of the run is left")
    wait_for(lambda: not runs(cluster.output), "the run's folder is gone")
    again = run(cluster, job, 60)
    assert again.code == 0, again.stderr
    assert values(again.json["output"]) == FIRST_WINDOW
    following = run(cluster, job, 90)
    assert values(following.json["output"]) == SECOND_WINDOW


@pytest.mark.long
@pytest.mark.spark
def test_on_a_terminal_the_job_s_tasks_are_shown_and_ctrl_c_ends_all(
    cluster: Cluster, tmp_path: Path
) -> None:
    """With 130, when no process of the run is left."""
    job = application(tmp_path, KEEP)
    fd, inner = pty.openpty()
    termios.tcsetwinsize(inner, (40, 160))
    environment = {k: v for k, v in os.environ.items() if k not in ("LINES", "COLUMNS")}
    process = subprocess.Popen(
        arguments(*words(cluster, job, 60, "--", "--slow")),
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env={**environment, "TERM": "xterm-256color"},
        # Ctrl-C of a terminal reaches the processes in its foreground: those of its session's leader.
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(inner)
    text = ""

    def read_until(pattern: str | None) -> None:
        nonlocal text
        deadline = time.monotonic() + _TIMEOUT_S
        while pattern is None or not re.search(pattern, text):
            wait_s = max(0.0, deadline - time.monotonic())
            assert select.select([fd], [], [], wait_s)[0], text
            try:
                text += os.read(fd, 65_536).decode(errors="replace")
            except OSError:
                assert pattern is None, text
                return

    read_until("starting Spark")
    read_until(r"running job\.py")
    read_until(r"running job\.py.* 0/\d+ tasks")
    token, _, _ = ready(job)
    os.write(fd, b"\x03")
    read_until("interrupted")
    assert processes_of(token) == []
    read_until(None)
    assert process.wait(_TIMEOUT_S) == 130
    os.close(fd)
    assert "Traceback" not in text
    assert runs(cluster.output) == []
    assert cluster.windows("list").json["windows"][0]["status"] == "planned"


def _take_terminal() -> None:
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


WRONG: dict[str, tuple[tuple[object, ...], str]] = {
    "no file": (("--application", "nowhere.py"), "there is no application at"),
    "a master alone": (("--master", "local[1]"), "--application"),
    "arguments alone": (("--", "10"), "--application"),
    "no setting": (("--spark-conf", "hunter-of-secrets"), "number 1 is not spark.KEY=VALUE"),
    "another's setting": (("--spark-conf", "kafka.x=hunter-of-secrets"), "number 1 is not"),
    "settings without Spark": (
        ("--engine", "local", "--spark-conf", "spark.a=b"),
        "--spark-conf needs Spark",
    ),
    "no engine": (("--engine", "rust"), "rust"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_usage_exits_2(cluster: Cluster, name: str) -> None:
    """Before anything is claimed, and without the text of a setting."""
    more, text = WRONG[name]
    where = (*cluster.where, *cluster.question(60), "--output", cluster.output, "--json")
    outcome = cli("run", *where, *more)
    assert outcome.code == 2, outcome.stderr
    assert text in outcome.error["message"]
    assert "hunter-of-secrets" not in outcome.stdout + outcome.stderr
    assert cluster.windows("list").json["windows"] == []


@pytest.mark.slow
@pytest.mark.spark
def test_secret_settings_of_spark_are_masked(cluster: Cluster, tmp_path: Path) -> None:
    """In what is said of an error, as client settings are."""
    job = application(tmp_path, "raise LookupError('the key is hunter-of-secrets')")
    failed = run(
        cluster, job, 60, "--spark-conf", "spark.hadoop.fs.s3a.secret.key=hunter-of-secrets"
    )
    assert failed.code == 1
    assert "the key is ***" in failed.error["message"]
    assert "hunter-of-secrets" not in failed.stdout + failed.stderr


@pytest.mark.spark41
def test_windows_by_spark_s_own_connector(cluster: Cluster) -> None:
    """With its jars by --spark-conf: the same records in the same order."""
    jars = f"spark.jars={','.join(map(str, spark41_jars()))}"
    by_jvm = cluster.run(60, "--spark-conf", jars, engine="connector")
    assert by_jvm.code == 0, by_jvm.stderr
    assert values(by_jvm.json["output"]) == FIRST_WINDOW


@pytest.mark.slow
def test_help_shows_the_application(cluster: Cluster) -> None:
    """With an example, and how its arguments are given."""
    shown = cli("run", "--help").stdout
    for word in (
        "--application",
        "--master",
        "--spark-conf",
        "[ARGUMENT]...",
        "-- --country DE",
    ):
        assert word in shown
    assert at(60) not in shown
