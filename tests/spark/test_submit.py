"""A Spark application of the user's: what it is told, what it tells, and what becomes of its failures."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import (
    ClientSettings,
    ConfigError,
    Earliest,
    JobFailedError,
    KafkaOrderedOpsError,
    ReadTimeoutError,
    RecordsLostError,
    SinkError,
    StagedOutput,
    WindowPlan,
    current_window,
)
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.spark import SparkSubmit, submit
from kafka_ordered_ops.spark.applications.parent_watch import show_progress
from kafka_ordered_ops.spark.applications.protocol import SECRET_KEY, settings_to_text
from kafka_ordered_ops.spark.applications.result import JobProgress
from kafka_ordered_ops.spark.applications.submitter import run_job, submit_windows
from kafka_ordered_ops.spec.deploy_mode import DeployMode
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.spark_support import spark as spark
from tests.support.submit_support import COPY, application, fake, logs, planned, runs, small
from tests.support.windows_support import before, delete_before

# Starting Spark takes its time on a busy machine.
pytestmark = pytest.mark.timeout(900)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A job tells what it sees, for the test to look at.
TELLING = """
    import glob, json, os, pathlib, stat, sys
    import beside
    from pyspark.sql import SparkSession
    from kafka_ordered_ops import current_window

    def upper(batches):
        import pyarrow as pa
        for batch in batches:
            values = [one.decode().upper() + SUFFIX for one in batch["value"].to_pylist()]
            yield batch.set_column(batch.schema.names.index("value"), "value", pa.array(values, pa.string()))

    SUFFIX = "!"
    spark = SparkSession.builder.getOrCreate()
    run = os.environ["KAFKA_ORDERED_OPS_RUN"]
    folder = pathlib.Path(spark.conf.get("spark.kafkaOrderedOps.submission"))
    private = pathlib.Path(next(one for one in sys.orig_argv if one.endswith("/main.py"))).parent
    modes = {one.name: oct(stat.S_IMODE(one.stat().st_mode)) for one in [*folder.iterdir(), *private.iterdir()]}
    window = current_window(spark)
    frame = window.read().mapInArrow(upper, "topic string, partition int, offset bigint, timestamp timestamp,"
        " timestamp_type int, key binary, value string, headers array<struct<key: string, value: binary>>,"
        " late boolean, window_id string")
    rows = frame.collect()
    seen = []
    # Processes end meanwhile.
    for path in [*glob.glob("/proc/[0-9]*/cmdline"), *glob.glob("/proc/[0-9]*/environ")]:
        try:
            seen.append(open(path, errors="replace").read())
        except OSError:
            pass
    told = {
        "argv": sys.argv, "name": __name__, "path": sys.path[0], "beside": beside.VALUE,
        "modes": modes, "left": sorted(one.name for one in folder.iterdir()),
        "conf": spark.sparkContext.getConf().getAll(), "odd": spark.conf.get("spark.odd"),
        "seen": [one for one in seen if run in one or "spark-submit" in one or "SparkSubmit" in one],
        "context": repr(window), "again": current_window(spark) is window,
        "values": [row.value for row in rows],
    }
    pathlib.Path(__file__).with_suffix(".told").write_text(json.dumps(told))
    window.write(frame)
"""

ODD = " é=:#!\\ \t'\"$()€😀 "
PASSWORD = "hunter-of-secrets-2"


@pytest.mark.slow
@pytest.mark.spark
def test_an_application_delivers_a_window(
    windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """It sees what any application sees, its own functions run in the executors, and no secret shows."""
    job = application(tmp_path, TELLING)
    (tmp_path / "beside.py").write_text("VALUE = 7")
    settings = windows.settings.merged({"sasl.password": PASSWORD, "sasl.username": "me"})
    output, seen = tmp_path / "a lake", list[JobProgress]()
    lines = list[str]()

    def run(plan: WindowPlan) -> StagedOutput:
        return submit(
            plan,
            job,
            settings,
            output,
            arguments=["--for", "two words", ""],
            how=small(**{"spark.odd": ODD, "spark.hadoop.fs.secret.key": PASSWORD}),
            progress=seen.append,
            log_line=lines.append,
        )

    done = windows.deliver(planned(windows, orders), run, StagedOutput.found)
    assert (done.plan.status, done.ran) == (WindowStatus.PUBLISHED, True)
    found = StagedOutput.found(done.record.result or {})
    assert found is not None
    (file,) = Path(found.final_path).glob("part-*.parquet")
    assert pq.read_table(file)["value"].to_pylist() == ["X!"] * 5
    assert found.facts["records"] == 5

    told: dict[str, Any] = json.loads(job.with_suffix(".told").read_text())
    assert told["argv"] == [str(job), "--for", "two words", ""]
    assert (told["name"], told["path"], told["beside"]) == ("__main__", str(tmp_path), 7)
    assert told["odd"] == ODD.strip()
    assert told["values"] == ["X!"] * 5
    assert told["again"]
    # The settings have been deleted by then.
    for name in ("settings", "spark.conf", "main.py"):
        assert told["modes"][name] == "0o600"
    assert "settings" not in told["left"]
    assert any("SparkSubmit" in one for one in told["seen"])
    assert PASSWORD not in "".join([*told["seen"], told["context"], *lines])
    assert PASSWORD not in json.dumps([pair for pair in told["conf"] if "secret" not in pair[0]])

    assert any(one.tasks_total for one in seen)
    assert lines
    assert runs(output) == []
    assert logs(output) == []


@pytest.mark.long
@pytest.mark.spark
def test_several_windows_in_one_pass_and_a_sink_of_one_s_own(
    windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """`current_window` is for one window only; a report has one result for each."""
    job = application(
        tmp_path,
        """
        from pyspark.sql import SparkSession
        from kafka_ordered_ops.core.errors import ConfigError
        from kafka_ordered_ops import current_window, current_windows

        spark = SparkSession.builder.getOrCreate()
        windows = current_windows(spark)
        wrong = {
            "use current_windows": lambda: current_window(spark),
            "2 windows and 1 outputs": lambda: windows.report([{"rows": 1}]),
            "submitted itself": lambda: windows.submit("job.py"),
        }
        for words, call in wrong.items():
            try:
                call()
            except ConfigError as error:
                assert words in str(error), error
            else:
                raise SystemExit(f"no error: {words}")
        counts = windows.read().groupBy("window_id").count().collect()
        rows = {row["window_id"]: row["count"] for row in counts}
        windows.report([{"window_id": plan.window_id, "rows": rows[plan.window_id]} for plan in windows.plans])
        """,
    )
    questions = [before(orders, end, Earliest()) for end in (12, 25)]
    plans = windows.plan_many(questions, ["a", "b"])
    result = run_job(plans, job, windows.settings, tmp_path / "out", engine="local", how=small())
    assert result.results == ({"window_id": "a", "rows": 3}, {"window_id": "b", "rows": 2})
    assert result.application_id is not None

    application(tmp_path, COPY)
    outputs = submit_windows(plans, job, windows.settings, tmp_path / "out", how=small())
    windows.commit_many(plans, outputs)
    assert [one.facts["records"] for one in outputs] == [3, 2]
    assert all(one.is_published() for one in outputs)


@pytest.mark.long
@pytest.mark.spark
def test_an_error_of_this_package_comes_out_by_its_name(
    bootstrap: str, windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """Raised in a task of the job: the caller can decide by its kind; the stage and the run's files are gone."""
    plan = planned(windows, orders)
    delete_before(bootstrap, orders, 2)
    with pytest.raises(RecordsLostError) as caught:
        submit(plan, application(tmp_path, COPY), windows.settings, tmp_path / "out", how=small())
    assert f"{orders}[0]" in str(caught.value)
    (log,) = logs(tmp_path / "out")
    assert str(log) in str(caught.value)
    assert "RecordsLostError" in log.read_text()
    assert runs(tmp_path / "out") == []
    assert not StagedOutput.of(plan, tmp_path / "out").exists()
    assert windows.show("w").status is WindowStatus.PLANNED


FAILURES = {
    "an exception": (
        "raise SystemError('no such country')",
        JobFailedError,
        r"exit code 1\. SystemError: no such country",
    ),
    "an error of this package": (
        "from kafka_ordered_ops.core.errors import ReadTimeoutError\nraise ReadTimeoutError('too slow')",
        ReadTimeoutError,
        "too slow",
    ),
    "an exit code": (
        "import sys; print('words before'); sys.exit(7)",
        JobFailedError,
        "exit code 7.*words before",
    ),
    "nothing written": ("print('all is well')", SinkError, "without a result.*all is well"),
    "not the window asked for": (
        """
        asked = Submission.read(folder)
        JobResult(({},), None).write(folder, asked.token, [replace(asked.plans[0], attempt=9)])
        """,
        SinkError,
        "attempt 9.*attempt 1",
    ),
    "an output that is not there": (
        """
        asked = Submission.read(folder)
        output = StagedOutput.of(asked.plans[0], asked.output).to_json()
        JobResult((output,), None).write(folder, asked.token, asked.plans)
        """,
        SinkError,
        "is not here",
    ),
    "not Python": ("this is no Python", JobFailedError, "SyntaxError"),
    "a signal": ("import os; os.kill(os.getpid(), 9)", JobFailedError, "signal 9"),
}

_PREAMBLE = """
import pathlib, sys
from dataclasses import replace
from kafka_ordered_ops.spark.applications.protocol import Submission
from kafka_ordered_ops.output.writing.staged_output import StagedOutput
from kafka_ordered_ops.spark.applications.result import JobResult
folder = pathlib.Path(sys.modules["kafka_ordered_ops.spark.applications.driver"].FOLDER)
"""


@pytest.mark.parametrize("name", FAILURES)
def test_what_a_failed_application_is_told_as(
    windows: OrderedWindows, orders: str, tmp_path: Path, name: str
) -> None:
    """Its own words and kind, the name of the log, and nothing accepted; Python stands for spark-submit."""
    import textwrap

    text, kind, words = FAILURES[name]
    job = tmp_path / "job.py"
    job.write_text(_PREAMBLE + textwrap.dedent(text))
    runner = """
        from kafka_ordered_ops.spark.applications import driver
        driver.FOLDER = str(folder)
        sys.argv = sys.argv[sys.argv.index("--load-spark-defaults") + 1 :]
        driver.main(driver.FOLDER)
    """
    plan = planned(windows, orders)
    with pytest.raises(kind, match=f"(?s){words}") as caught:
        submit(plan, job, windows.settings, tmp_path / "out", how=fake(tmp_path, runner))
    assert type(caught.value) is kind
    assert isinstance(caught.value, KafkaOrderedOpsError)
    assert "window w" in str(caught.value)
    if "output" not in name and "asked" not in name:
        (log,) = logs(tmp_path / "out")
        assert str(log) in str(caught.value)
    assert runs(tmp_path / "out") == []
    assert windows.show("w").status is WindowStatus.PLANNED


@pytest.mark.long
@pytest.mark.spark
def test_the_settings_in_a_conf_are_masked_by_spark(
    windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """In the web page's environment and in the event log; the job reads them all the same."""
    job = application(
        tmp_path,
        """
        import json, pathlib, urllib.request
        from pyspark.sql import SparkSession
        from kafka_ordered_ops import current_window

        spark = SparkSession.builder.getOrCreate()
        context = spark.sparkContext
        where = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/environment"
        page = urllib.request.urlopen(where).read().decode()
        pathlib.Path(__file__).with_suffix(".told").write_text(page)
        window = current_window(spark)
        window.report({"servers": window.settings.bootstrap_servers})
        """,
    )
    settings = windows.settings.merged({"sasl.password": PASSWORD})
    text = settings_to_text(settings)
    events = tmp_path / "events"
    events.mkdir()
    conf = {
        SECRET_KEY: text,
        "spark.ui.enabled": "true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    plan = planned(windows, orders)
    result = run_job([plan], job, windows.settings, tmp_path / "out", how=small(**conf))
    assert result.results[0]["servers"] == windows.settings.bootstrap_servers
    page = job.with_suffix(".told").read_text()
    log = "".join(one.read_text() for one in events.rglob("*") if one.is_file())
    for shown in (page, log):
        assert SECRET_KEY in shown
        assert "*********(redacted)" in shown
        assert text not in shown
        assert PASSWORD not in shown


@pytest.mark.spark
def test_a_job_that_was_not_submitted_is_told_so(spark: SparkSession) -> None:
    """And how it could be."""
    with pytest.raises(ConfigError, match=r"was not submitted for a window.*run --application"):
        current_window(spark)


@pytest.mark.slow
@pytest.mark.spark
def test_progress_counts_tasks_and_records(spark: SparkSession, tmp_path: Path) -> None:
    """While the stage runs, as its tasks end."""

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        for batch in batches:
            time.sleep(1.5)
            yield batch

    frame = spark.range(0, 600, 1, numPartitions=6).mapInArrow(slowly, "id bigint")
    seen = list[JobProgress]()
    show_progress(spark, tmp_path)
    thread = threading.Thread(target=frame.collect)
    thread.start()
    while thread.is_alive():
        now = JobProgress.read(tmp_path)
        if now is not None and now.tasks_done and now not in seen:
            seen.append(now)
        thread.join(0.05)
    assert seen
    assert {one.tasks_total for one in seen} == {6}
    # Spark counts a task and its records at slightly different moments.
    assert all(0 <= one.records <= 600 for one in seen)
    assert max(one.records for one in seen) >= 100
    (tmp_path / "progress.json").write_text("{")
    assert JobProgress.read(tmp_path) is None


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no application": ({"application": "nowhere.py"}, "there is no application at"),
    "no program": ({"how": SparkSubmit(program="/nowhere/spark-submit")}, "no spark-submit"),
    "no engine": ({"engine": "rust"}, "engine 'rust' is unknown"),
    "a remote folder": ({"output": "s3a://lake"}, "s3a"),
    "no plan": ({"plans": []}, "plan"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_before_anything_is_touched(
    windows: OrderedWindows, orders: str, tmp_path: Path, name: str
) -> None:
    """As a ConfigError; no folder is made."""
    changed, words = WRONG[name]
    given_ = {
        "plans": [planned(windows, orders)],
        "application": application(tmp_path, COPY),
        "settings": windows.settings,
        "output": tmp_path / "out",
        **changed,
    }
    with pytest.raises(ConfigError, match=words):
        submit_windows(**given_)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"conf": {"kafka.secret": "x"}}, "begin with 'spark.'"),
        ({"timeout_s": 0}, "must be positive"),
        ({"grace_s": -1}, "not negative"),
        ({"master": "local[2]", "deploy_mode": DeployMode.CLUSTER}, "has no cluster"),
        ({"master": "spark://h:7077", "deploy_mode": DeployMode.CLUSTER}, "standalone"),
    ],
)
def test_wrong_ways_to_run_spark_submit_are_refused(given_: dict[str, Any], words: str) -> None:
    """While nothing has been touched; no value of a setting shows."""
    with pytest.raises(ConfigError, match=words) as caught:
        SparkSubmit(**given_)
    assert "x" not in str(caught.value).split("'")[2:]
    assert PASSWORD not in repr(SparkSubmit(conf={"spark.secret": PASSWORD}))


@pytest.mark.spark
def test_a_kafka_in_memory_cannot_be_reached(
    windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """It is said so, rather than a job that finds nobody."""
    from kafka_ordered_ops.testing import InMemoryKafka

    with (
        InMemoryKafka() as kafka,
        pytest.raises(ConfigError, match="cannot reach the InMemoryKafka"),
    ):
        submit(
            planned(windows, orders),
            application(tmp_path, COPY),
            ClientSettings.from_mapping(kafka.settings),
            tmp_path / "out",
        )


def test_an_empty_window_and_one_that_others_cover(
    topic: MakeTopic, produce: Produce, windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """A covered one is never given to an application."""
    windows.plan(before(orders, 25, Earliest()), "first")
    covered = windows.plan(before(orders, 25), "second")
    with pytest.raises(KafkaOrderedOpsError, match="cover"):
        submit(covered, application(tmp_path, COPY), windows.settings, tmp_path / "out")
    assert not (tmp_path / "out").exists()
