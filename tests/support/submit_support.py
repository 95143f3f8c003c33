"""Applications to be submitted, spark-submit made small, and a look at the processes of a run.

As ``python -m tests.support.submit_support`` it is a submitter of its own: BOOTSTRAP GROUP TOPIC APPLICATION OUTPUT.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kafka_ordered_ops import Earliest, StagedOutput, WindowPlan
from kafka_ordered_ops.spark import SparkSubmit, submit
from kafka_ordered_ops.spark.applications.process import RUN_VARIABLE, processes_of
from kafka_ordered_ops.spec.spark_submit import pyspark_home
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.stages import control_of
from tests.support.windows_support import before

#: On a busy machine Spark alone may take a minute to start.
TIMEOUT_S = 280.0

#: Ends every session that is started here.
_CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
}

#: Reads and writes the window, or several in one pass.
COPY = """
    from pyspark.sql import SparkSession
    from kafka_ordered_ops import current_windows

    spark = SparkSession.builder.getOrCreate()
    windows = current_windows(spark)
    windows.write(windows.read())
"""

#: Has written, and shows that; then goes on, with a Java, a driver and a worker at work.
LINGER = (
    COPY
    + """
    import os, pathlib, threading, time

    def slow(batches):
        for batch in batches:
            time.sleep(300)
            yield batch

    job = spark.range(1).mapInArrow(slow, "id bigint").collect
    threading.Thread(target=job, daemon=True).start()
    while not spark.sparkContext.statusTracker().getActiveStageIds():
        time.sleep(0.05)
    tell = pathlib.Path(__file__).with_suffix(".ready")
    tell.with_suffix(".new").write_text(f"{os.environ['KAFKA_ORDERED_OPS_RUN']} {os.getpid()} {os.getppid()}")
    tell.with_suffix(".new").rename(tell)
    time.sleep(300)
    pathlib.Path(__file__).with_suffix(".went-on").touch()
"""
)


def application(folder: Path, text: str) -> Path:
    """A Python file for spark-submit."""
    path = folder / "job.py"
    path.write_text(textwrap.dedent(text))
    return path


def planned(windows: OrderedWindows, topic: str) -> WindowPlan:
    """A window over five of the six records."""
    return windows.plan(before(topic, 25, Earliest()), "w")


def small(**conf: str) -> SparkSubmit:
    """spark-submit on one core of this machine."""
    return SparkSubmit(
        master="local[1]", conf={**_CONF, **conf}, java_home=java_home(), timeout_s=TIMEOUT_S
    )


def fake(folder: Path, text: str) -> SparkSubmit:
    """A program of one's own in the place of spark-submit: its first argument is the folder of the run."""
    program = folder / "spark-submit"
    head = f"""\
        #!{sys.executable}
        import os, pathlib, signal, subprocess, sys, time
        properties = pathlib.Path(sys.argv[sys.argv.index("--properties-file") + 1]).read_text()
        folder = pathlib.Path(
            next(
                line.partition("=")[2].encode().decode("unicode_escape")
                for line in properties.splitlines()
                if line.startswith("spark.kafkaOrderedOps.submission=")
            )
        )
        job = pathlib.Path(sys.argv[sys.argv.index("--load-spark-defaults") + 2])
        run = os.environ["{RUN_VARIABLE}"]
        def ready(pid=os.getpid()):
            new = job.with_suffix(".new")
            new.write_text(f"{{run}} {{pid}} {{os.getppid()}}")
            new.rename(job.with_suffix(".ready"))
    """
    program.write_text(textwrap.dedent(head) + textwrap.dedent(text))
    program.chmod(0o755)
    return SparkSubmit(program=program, timeout_s=TIMEOUT_S, grace_s=0.5)


def ready(job: Path) -> tuple[str, int, int]:
    """Waits until an application is in the middle; its run's token, its process and that one's parent."""
    wait_for(job.with_suffix(".ready").exists, "the application is in the middle")
    token, pid, parent = job.with_suffix(".ready").read_text().split()
    return token, int(pid), int(parent)


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Until it holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


def end_all(token: str) -> None:
    """Leaves nothing behind, whatever a test has found."""
    for pid in processes_of(token):
        os.kill(pid, signal.SIGKILL)


def runs(output: Path) -> list[str]:
    """What is left in the folders by which submitter and job talk, but logs."""
    root = control_of(output) / "submit"
    return [path.name for path in root.glob("*/*") if path.parent.name != "_logs"]


def logs(output: Path) -> list[Path]:
    """The logs of failed runs."""
    return sorted((control_of(output) / "submit" / "_logs").iterdir())


def java_home() -> Path | None:
    """The Java to run Spark on; None for the one of the path."""
    if shutil.which("java"):
        return None
    from kafka_ordered_ops.embedded import java_home_for_spark

    return Path(java_home_for_spark())


def spark_home() -> Path:
    """Where pip has installed Spark."""
    found = pyspark_home()
    assert found is not None
    return Path(found)


def script_environment() -> dict[str, str]:
    """The variables for a script that starts Spark in a folder of a test."""
    # A server starts its Python workers by this name, and by the first python3 on the path without it.
    more = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.getcwd(),
    }
    if (java := java_home()) is not None:
        more["JAVA_HOME"] = str(java)
    return {**os.environ, **more}


def _main() -> None:
    bootstrap, group_id, topic, job, output, program = sys.argv[1:]
    how = SparkSubmit(program=program, grace_s=0.5) if program else small()

    def run(plan: WindowPlan) -> StagedOutput:
        return submit(plan, job, windows.settings, output, how=how)

    def terminated(*_: object) -> None:
        raise RuntimeError("SIGTERM")

    def fork() -> None:
        ready(Path(job))
        if os.fork() == 0:
            # Holds what it has inherited until the test lets it go: at the end of its input.
            Path(job).with_suffix(".forked").touch()
            sys.stdin.read()
            os._exit(0)

    if os.environ.get("FORK"):
        threading.Thread(target=fork).start()
    if os.environ.get("RAISE_ON_SIGTERM"):
        signal.signal(signal.SIGTERM, terminated)
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
        plan = windows.plan(before(topic, 100, Earliest()), "w")
        windows.deliver(plan, run, StagedOutput.found)


if __name__ == "__main__":
    _main()
