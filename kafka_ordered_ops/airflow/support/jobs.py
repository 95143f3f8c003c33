"""What a task does with a window's records: a Spark application, a function with Spark, or one without.

Spark's objects are `Any` here: only the room `spark` knows pyspark.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import ConfigError, JobFailedError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.spark.job_outputs import outputs_of

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_ordered_ops.spark import SparkSubmit, StagedOutput
    from kafka_ordered_ops.windows import ClientSettings, Staged

_log = logging.getLogger(__name__)

#: Between two lines about how far a job is.
_SAY_EVERY_S: Final = 10.0


class Stop:
    """Told by `on_kill`, in a signal's handler; asked by what runs."""

    # A plain attribute: a handler may interrupt the very thread that asks, which no lock would survive.
    def __init__(self) -> None:
        self._told = False

    def set(self) -> None:
        """The task is to end."""
        self._told = True

    def __bool__(self) -> bool:
        return self._told

    def check(self, window_id: str) -> None:
        """Raises `JobFailedError` when the task is to end."""
        if self:
            raise _ended(window_id)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One try at one window."""

    plan: WindowPlan
    settings: ClientSettings
    stop: Stop
    output: str | None
    ordered: bool
    engine: str

    @property
    def folder(self) -> str:
        """The folder for outputs; raises `ConfigError` when the task has none."""
        if self.output is None:
            raise ConfigError("this task needs output=, the folder for the windows' outputs")
        return self.output

    @contextmanager
    def temporary_folder(self) -> Iterator[str]:
        """A folder for what this try reads first; beside the outputs, since a worker's own disk may be small."""
        from kafka_ordered_ops.output.filesystem import normal_root

        root = None if self.output is None else normal_root(self.output)
        if root is not None:
            os.makedirs(root, exist_ok=True)
        # Hidden from Spark, which may read the folder of all outputs at any time.
        with tempfile.TemporaryDirectory(prefix=".koo-read-", dir=root) as folder:
            yield folder

    def said(self) -> Callable[[int, int], None]:
        """Says in the log how far reading is, and ends it when the task is to end."""
        last = time.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal last
            self.stop.check(self.plan.window_id)
            if (now := time.monotonic()) - last > _SAY_EVERY_S:
                last = now
                _log.info("Read %s of %s offsets.", f"{done:,}", f"{total:,}")

        return progress


#: Brings a window's records to where they belong, hidden until the commit.
Job = Callable[[Run], "Staged"]


def copy_job(run: Run) -> StagedOutput:
    """Copies the records as they are, without Spark."""
    from kafka_ordered_ops.spark import stage_window

    return stage_window(
        run.plan, run.settings, run.folder, ordered=run.ordered, progress=run.said()
    )


def application_job(application: str, arguments: Sequence[str], how: SparkSubmit | None) -> Job:
    """Runs a Spark application by spark-submit."""

    def job(run: Run) -> StagedOutput:
        from kafka_ordered_ops.spark import submit

        return submit(
            run.plan,
            application,
            run.settings,
            run.folder,
            arguments=arguments,
            ordered=run.ordered,
            engine=run.engine,
            how=how,
            cancelled=run.stop.__bool__,
            log_line=lambda line: _log.info("%s", line),
        )

    return job


@dataclass(frozen=True)
class SparkWindow:
    """What a function is given beside its session: the window, and the two ends of its data."""

    run: Run
    spark: Any
    #: For the files of the stage engine; gone when the function has returned.
    _stage_root: str | None = field(default=None, repr=False)
    _written: list[Staged] = field(default_factory=list, repr=False)

    @property
    def plan(self) -> WindowPlan:
        """The window's exact offsets."""
        return self.run.plan

    @property
    def settings(self) -> ClientSettings:
        """How to reach the cluster."""
        return self.run.settings

    @property
    def staged(self) -> Staged | None:
        """What was written or reported so far."""
        return self._written[0] if self._written else None

    def read(self, *, ordered: bool | None = None) -> Any:
        """Exactly the window's records, a DataFrame; see `kafka_ordered_ops.spark.read_window`."""
        from kafka_ordered_ops.spark import read_window

        run = self.run
        return read_window(
            self.spark,
            run.plan,
            run.settings,
            ordered=run.ordered if ordered is None else ordered,
            engine=run.engine,
            stage_root=self._stage_root,
        )

    def write(self, df: Any, path: str | os.PathLike[str] | None = None) -> StagedOutput:
        """Writes the window's output, hidden until the task has committed; by default below `output`.

        Raises:
            ConfigError: there is an output already, or no folder for it.
            KafkaOrderedOpsError: as `kafka_ordered_ops.spark.write_window` does.
        """
        from kafka_ordered_ops.spark import write_window

        run = self.run
        self._check_one_output()
        staged = write_window(
            df, run.folder if path is None else path, run.plan, ordered=run.ordered
        )
        self.report(staged)
        return staged

    def report(self, staged: Staged) -> None:
        """Tells the task what a sink of your own has staged, to be published after the commit."""
        self._check_one_output()
        self._written.append(staged)

    def _check_one_output(self) -> None:
        if self._written:
            raise ConfigError("a window has one output: it was written or reported already")


def spark_job(
    function: Callable[..., Any], conf: Mapping[str, str], keywords: Mapping[str, Any]
) -> Job:
    """Calls a function with a Spark session in this process, and the window."""

    def job(run: Run) -> Staged:
        from kafka_ordered_ops.spark.job_session import job_session

        name = f"window {run.plan.window_id}"
        try:
            with _stage_root(run) as root, job_session(name, conf, run.stop.__bool__) as spark:
                window = SparkWindow(run, spark, root)
                returned = function(spark, window, **keywords)
        except Exception as error:
            if run.stop:
                # Of a session that was stopped in its work, whatever Java says.
                raise _ended(run.plan.window_id) from error
            raise
        reported = None if window.staged is None else [window.staged]
        [staged] = outputs_of([run.plan], reported, returned, output=run.output)
        return staged

    return job


@contextmanager
def _stage_root(run: Run) -> Iterator[str | None]:
    """Where the stage engine puts its files: a place that all executors see, if the task has one."""
    if run.engine != "stage" or run.output is None:
        yield None
        return
    with run.temporary_folder() as folder:
        yield folder


def batch_job(function: Callable[..., Any], keywords: Mapping[str, Any]) -> Job:
    """Calls a function with the window's records as Arrow batches in order, without Spark.

    They are read into files first, since the order is known when all are there.
    """

    def job(run: Run) -> Staged:
        from kafka_ordered_ops.spark import stage_window

        with run.temporary_folder() as folder:
            staged = stage_window(
                run.plan, run.settings, folder, ordered=run.ordered, progress=run.said()
            )
            returned = function(_batches(staged, run), run.plan, **keywords)
            # The folder is no place for its results: it has no way to write there.
            [delivered] = outputs_of([run.plan], None, returned, output=None, facts=staged.facts)
            return delivered

    return job


def _batches(staged: StagedOutput, run: Run) -> Iterator[pa.RecordBatch]:
    from pathlib import Path

    import pyarrow.parquet as pq

    for file in sorted(Path(staged.stage_path).glob("part-*.parquet")):
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches():
                run.stop.check(run.plan.window_id)
                if batch.num_rows:
                    yield batch


def _ended(window_id: str) -> JobFailedError:
    return JobFailedError(
        f"window {window_id}: Airflow ended this try. Nothing was committed", window_id=window_id
    )
