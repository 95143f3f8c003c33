"""Whoever is killed, submitter, guard or spark-submit: no process of the run is left, and no result is taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_ordered_ops import Earliest, SinkError, StagedOutput
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.spark import SparkSubmit, submit
from kafka_ordered_ops.spark.applications.process import processes_of
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.stages import stages_of
from tests.support.submit_support import (
    LINGER,
    TIMEOUT_S,
    application,
    end_all,
    fake,
    logs,
    ready,
    runs,
    small,
    wait_for,
)
from tests.support.windows_support import before

# Starting Spark takes its time on a busy machine, and every wait below has an end of its own.
pytestmark = pytest.mark.timeout(900)

#: Says that it is there, and goes on for as long as it is let.
LASTING = "ready(); time.sleep(300)"

#: Ignores SIGTERM, and leaves a process behind in a session of its own, as a daemon does.
STUBBORN = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ready()
            time.sleep(300)
        os._exit(0)
    while not job.with_suffix(".ready").exists():
        time.sleep(0.05)
    time.sleep(299)
"""


class Run:
    """A submitter in a process of its own, with its job in the middle."""

    def __init__(
        self,
        bootstrap: str,
        group_id: str,
        topic: str,
        folder: Path,
        program: str = "",
        **environment: str,
    ) -> None:
        self.output = folder / "out"
        self.job = application(folder, LINGER)
        words = [bootstrap, group_id, topic, self.job, self.output, program]
        self._log = open(folder / "submitter.log", "w")  # noqa: SIM115 - closed with the run
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.submit_support", *map(str, words)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
        )
        self.token = ""
        self.token, self.driver, self.java = ready(self.job)

    @property
    def said(self) -> str:
        return Path(self._log.name).read_text()

    @property
    def guard(self) -> int:
        """The process that the submitter has started."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        (guard,) = map(int, children.split())
        return guard

    def check_nothing_is_left(self) -> None:
        """No process, no folder of the run; and the job has not gone on."""
        wait_for(lambda: not processes_of(self.token), "no process of the run is left")
        wait_for(lambda: not runs(self.output), "the run's folder is gone")
        assert not self.job.with_suffix(".went-on").exists()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._log.close()
        if self.token:
            end_all(self.token)


@pytest.fixture
def running(bootstrap: str, group_id: str, orders: str, tmp_path: Path) -> Iterator[Run]:
    """A real Spark: a Java, its Python driver that has written and reported, and a Python worker at work."""
    run = Run(bootstrap, group_id, orders, tmp_path)
    names = {Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes_of(run.token)}
    for part in (b"SparkSubmit", b"main.py", b"pyspark.daemon"):
        assert any(part in name for name in names), names
    yield run
    run.close()


def check_still_planned(windows: OrderedWindows) -> None:
    """Nothing was accepted."""
    assert windows.show("w").status is WindowStatus.PLANNED


@pytest.mark.long
@pytest.mark.spark
def test_kill_9_of_spark_submit(running: Run, windows: OrderedWindows) -> None:
    """Its Python driver, which would go on, ends with it; the result that it had written is not taken."""
    os.kill(running.java, signal.SIGKILL)
    assert running.process.wait(TIMEOUT_S) == 1
    assert processes_of(running.token) == []
    running.check_nothing_is_left()
    assert "JobFailedError" in running.said
    assert "signal 9" in running.said
    assert str(logs(running.output)[0]) in running.said
    assert not list(stages_of(running.output).glob("*/*"))
    check_still_planned(windows)


@pytest.mark.slow
@pytest.mark.spark
def test_kill_9_of_the_submitter(running: Run, windows: OrderedWindows) -> None:
    """The guard finds out, and ends all."""
    running.process.kill()
    running.check_nothing_is_left()
    check_still_planned(windows)


@pytest.mark.long
@pytest.mark.spark
def test_kill_9_of_the_guard(running: Run, windows: OrderedWindows) -> None:
    """The kernel ends spark-submit and the driver; the submitter sees to the rest, and says what happened."""
    os.kill(running.guard, signal.SIGKILL)
    assert running.process.wait(TIMEOUT_S) == 1
    assert processes_of(running.token) == []
    running.check_nothing_is_left()
    assert "that guards it was killed" in running.said
    check_still_planned(windows)


@pytest.mark.long
@pytest.mark.spark
def test_kill_9_of_submitter_and_guard_at_once(running: Run, windows: OrderedWindows) -> None:
    """Nobody is left to end the rest, and it ends all the same. The next run removes the folder."""
    guard = running.guard
    os.kill(guard, signal.SIGSTOP)
    running.process.kill()
    os.kill(guard, signal.SIGKILL)
    wait_for(lambda: not processes_of(running.token), "no process of the run is left")
    assert runs(running.output) != []
    check_still_planned(windows)
    plan = windows.plan(windows.show("w").plan.window, "w")
    job = running.job.with_name("second.py")
    job.write_text("")
    with pytest.raises(SinkError, match="without a result"):
        submit(plan, job, windows.settings, running.output, how=fake(job.parent, ""))
    assert runs(running.output) == []


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("raises", ["", "1"])
def test_sigterm_of_the_submitter(
    bootstrap: str,
    group_id: str,
    orders: str,
    windows: OrderedWindows,
    tmp_path: Path,
    raises: str,
) -> None:
    """Whether it dies of it at once, or raises as hosts make it."""
    run = Run(bootstrap, group_id, orders, tmp_path, RAISE_ON_SIGTERM=raises)
    try:
        run.process.terminate()
        code = run.process.wait(TIMEOUT_S)
        assert code == (1 if raises else -signal.SIGTERM)
        if raises:
            # On the way out, not some time later.
            assert processes_of(run.token) == []
            assert "RuntimeError: SIGTERM" in run.said
        run.check_nothing_is_left()
        check_still_planned(windows)
    finally:
        run.close()


@pytest.mark.slow
@pytest.mark.spark
def test_a_time_out(windows: OrderedWindows, orders: str, tmp_path: Path) -> None:
    """Ends a real Spark, whatever it is doing, and says how long it had."""
    how = replace(small(), timeout_s=4)
    job = application(
        tmp_path,
        "import os, pathlib, time\n"
        "pathlib.Path(__file__).with_suffix('.ready').write_text(os.environ['KAFKA_ORDERED_OPS_RUN'])\n"
        "from pyspark.sql import SparkSession\n"
        "SparkSession.builder.getOrCreate()\n"
        "time.sleep(300)",
    )
    plan = windows.plan(before(orders, 9, Earliest()), "w")
    with pytest.raises(SinkError, match="ran longer than 4 s"):
        submit(plan, job, windows.settings, tmp_path / "out", how=how)
    (log,) = logs(tmp_path / "out")
    assert processes_of(log.stem.rpartition("-")[2]) == []
    assert runs(tmp_path / "out") == []
    check_still_planned(windows)


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["submitter", "guard"])
def test_a_program_that_will_not_end_is_ended(
    bootstrap: str, group_id: str, orders: str, tmp_path: Path, killed: str
) -> None:
    """It ignores SIGTERM, and leaves a daemon in a session of its own, whose parent is gone."""
    program = str(fake(tmp_path, STUBBORN).program)
    run = Run(bootstrap, group_id, orders, tmp_path, program=program)
    try:
        assert len(processes_of(run.token)) >= 2
        os.kill(run.process.pid if killed == "submitter" else run.guard, signal.SIGKILL)
        run.check_nothing_is_left()
    finally:
        run.close()


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, False])
def test_a_daemon_of_the_program_s_is_ended(
    windows: OrderedWindows, orders: str, tmp_path: Path, ends: bool
) -> None:
    """Also when spark-submit itself has ended well; and by the time that the caller goes on."""
    text = STUBBORN.replace("time.sleep(299)", "sys.exit()") if ends else STUBBORN
    how = replace(fake(tmp_path, text), timeout_s=10)
    plan, job = windows.plan(before(orders, 9, Earliest()), "w"), application(tmp_path, LINGER)
    words = "without a result" if ends else "ran longer than 10 s"
    with pytest.raises(SinkError, match=words):
        submit(plan, job, windows.settings, tmp_path / "out", how=how)
    token, _, _ = ready(job)
    assert processes_of(token) == []


def test_a_program_that_cannot_be_started(
    windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """The log says why."""
    how = fake(tmp_path, "")
    program = Path(str(how.program))
    program.write_text("#!/nowhere/python\n")
    plan = windows.plan(before(orders, 9, Earliest()), "w")
    with pytest.raises(SinkError, match="could not be started"):
        submit(plan, application(tmp_path, LINGER), windows.settings, tmp_path / "out", how=how)
    (log,) = logs(tmp_path / "out")
    assert "No such file" in log.read_text()
    assert runs(tmp_path / "out") == []


def test_a_process_that_cannot_be_ended_is_an_error(
    windows: OrderedWindows, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when spark-submit has ended well: what stays, hanging in the kernel say, could still write."""
    guard = tmp_path / "guard.py"
    guard.write_text(
        """import sys; print('{"code": 0, "left": [123, 45]}', flush=True); sys.stdin.read()"""
    )
    monkeypatch.setattr("kafka_ordered_ops.spark.applications.guard.__file__", str(guard))
    plan = windows.plan(before(orders, 9, Earliest()), "w")
    with pytest.raises(SinkError, match="processes 123, 45 of it cannot be ended"):
        submit(
            plan,
            application(tmp_path, LINGER),
            windows.settings,
            tmp_path / "out",
            how=fake(tmp_path, ""),
        )


@pytest.mark.slow
def test_a_fork_of_the_submitter_does_not_keep_the_run_alive(
    bootstrap: str, group_id: str, orders: str, tmp_path: Path
) -> None:
    """A process that was forked from the submitter holds the pipe to the guard open, too."""
    program = str(fake(tmp_path, LASTING).program)
    run = Run(bootstrap, group_id, orders, tmp_path, program=program, FORK="1")
    try:
        wait_for(run.job.with_suffix(".forked").exists, "the submitter has a fork")
        run.process.kill()
        run.check_nothing_is_left()
    finally:
        run.close()


def test_an_exception_of_the_callers_ends_the_run(
    windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """As it does where a host cancels a task: it comes out as it is, and nothing is left behind it."""
    text = "ready(); print('x', flush=True); time.sleep(300)"
    plan = windows.plan(before(orders, 9, Earliest()), "w")
    job = application(tmp_path, LINGER)

    def cancelled(_line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        submit(
            plan,
            job,
            windows.settings,
            tmp_path / "out",
            how=fake(tmp_path, text),
            log_line=cancelled,
        )
    assert runs(tmp_path / "out") == []
    assert processes_of(ready(job)[0]) == []


@pytest.mark.slow
def test_two_runs_at_once_do_not_meet(windows: OrderedWindows, orders: str, tmp_path: Path) -> None:
    """Of one attempt even: each has a folder of its own, and the end of one does not end the other."""
    plan = windows.plan(before(orders, 9, Earliest()), "w")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    jobs = [application(tmp_path / name, LINGER) for name in "ab"]
    hows = [fake(tmp_path / "a", LASTING), fake(tmp_path / "b", "ready(); time.sleep(1)")]
    short = replace(hows[0], timeout_s=5)
    errors = list[str]()

    def run(job: Path, how: SparkSubmit) -> None:
        try:
            submit(plan, job, windows.settings, tmp_path / "out", how=how)
        except SinkError as error:
            errors.append(str(error))

    threads = [
        threading.Thread(target=run, args=(job, how))
        for job, how in zip(jobs, [short, hows[1]], strict=True)
    ]
    for thread in threads:
        thread.start()
    tokens = {ready(job)[0] for job in jobs}
    assert len(tokens) == 2
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert ["without a result" in errors[0], "longer than 5 s" in errors[1]] == [True, True]
    assert runs(tmp_path / "out") == []
    assert StagedOutput.of(plan, tmp_path / "out").exists() is False


@pytest.mark.long
def test_the_log_is_bounded_and_whole_lines_are_handed_on(
    windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """Whatever a job prints: two files of some MiB at most, and each line once, in order."""
    text = """
        for number in range(60):
            os.write(1, b"".join(b"%d-%d-%s\\n" % (number, n, b"x" * 1000) for n in range(1024)))
            time.sleep(0.1)
        os.write(2, b"the last word")
        sys.exit(3)
    """
    taken = list[str]()
    with pytest.raises(SinkError, match="the last word") as caught:
        submit(
            windows.plan(before(orders, 9, Earliest()), "w"),
            application(tmp_path, LINGER),
            windows.settings,
            tmp_path / "out",
            how=fake(tmp_path, text),
            log_line=lambda line: taken.append(line.rstrip("x")),
        )
    found = logs(tmp_path / "out")
    assert str(found[0]) in str(caught.value)
    assert len(found) == 2
    assert sum(one.stat().st_size for one in found) < 40 * 1024 * 1024
    *lines, last = taken
    assert last == "the last word"
    # A file that is filled twice between two looks loses some; what comes is whole, once, and in order.
    numbers = [tuple(map(int, line.split("-")[:2])) for line in lines]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 10_000


@pytest.mark.slow
def test_a_job_that_prints_without_end_is_ended(
    windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """The guard must not drown in it."""
    text = "ready()\nwhile True: os.write(1, b'y\\n' * 4096)"
    how = replace(fake(tmp_path, text), timeout_s=3)
    plan, job = windows.plan(before(orders, 9, Earliest()), "w"), application(tmp_path, LINGER)
    with pytest.raises(SinkError, match="ran longer than 3 s"):
        submit(plan, job, windows.settings, tmp_path / "out", how=how)
    assert processes_of(ready(job)[0]) == []


@pytest.mark.slow
def test_a_job_ends_when_the_sign_of_life_stops(tmp_path: Path) -> None:
    """Or when the folder goes: where no kernel and no guard reaches it, in cluster mode."""
    script = """
        import pathlib, sys, time
        from kafka_ordered_ops.spark.applications import parent_watch
        parent_watch.LOOK_S, parent_watch.ALIVE_TIMEOUT_S = 0.05, float(sys.argv[2])
        parent_watch.watch(pathlib.Path(sys.argv[1]), parent=None)
        time.sleep(200)
    """
    job = application(tmp_path, script)
    alive = tmp_path / "alive"
    alive.touch()
    for timeout_s in (0.5, 300):
        process = subprocess.Popen(
            [sys.executable, job, str(tmp_path), str(timeout_s)], stderr=subprocess.PIPE
        )
        if timeout_s == 300:
            alive.unlink()
        _, said = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == -signal.SIGKILL
        assert b"the submitter of this job is gone" in said


def test_a_detached_job_goes_on_until_its_folder_goes(tmp_path: Path) -> None:
    """Its submitter gives no sign of life; whoever removes the folder ends the driver."""
    script = """
        import pathlib, sys, time
        from kafka_ordered_ops.spark.applications import parent_watch
        parent_watch.LOOK_S, parent_watch.ALIVE_TIMEOUT_S = 0.01, 0.0
        parent_watch.watch(pathlib.Path(sys.argv[1]), parent=None, detached=True)
        time.sleep(0.2)
        print("goes on", flush=True)
        time.sleep(200)
    """
    job = application(tmp_path, script)
    (tmp_path / "alive").touch()
    process = subprocess.Popen(
        [sys.executable, job, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"goes on\n"
    (tmp_path / "alive").unlink()
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == -signal.SIGKILL
    assert b"the submitter of this job is gone" in said
