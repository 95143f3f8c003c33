"""The windows of a job in one pass: their offsets, with reading and writing."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError, RegistryError, SinkError
from kafka_ordered_ops.core.window.dead_letters import DeadLetters
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.delivery.host import Host
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.spec.destination import Destination, Folder
from kafka_ordered_ops.spec.job_outputs import outputs_of, windows_text, with_letters
from kafka_ordered_ops.spec.table import Table

if TYPE_CHECKING:
    from kafka_ordered_ops.output.writing.staged_output import StagedOutput
    from kafka_ordered_ops.spark import SparkSubmit
    from kafka_ordered_ops.spark.applications.result import JobProgress
    from kafka_ordered_ops.spark.write.tables import TableSink
    from kafka_ordered_ops.windows import ClientSettings, Staged

_log = logging.getLogger(__name__)

#: Time between two progress lines of a job.
_SAY_EVERY_S: Final = 10.0


class OpenWindows:
    """Planned windows that a job delivers in one pass. Its output is hidden until they are committed.

    Spark's objects are `Any` here: only the room `spark` knows pyspark.

    Args:
        plans: the windows' exact offsets, by time; at least one.
        client: how to reach the cluster.
        to: the folder, the table or the sink; `None` means that the job delivers them itself.
        host: the host of the job.
        engine: the engine that reads Kafka.
        ordered: total order by (timestamp, topic, partition, offset).
    """

    def __init__(
        self,
        plans: Sequence[WindowPlan],
        client: ClientSettings,
        to: Destination | None,
        host: Host,
        *,
        engine: str = "python",
        ordered: bool = True,
    ) -> None:
        self.plans = tuple(plans)
        self.client = client
        self.folder = to if isinstance(to, Folder) else None
        self.table = to if isinstance(to, Table) else None
        self.sink = None if isinstance(to, Folder | Table) else to
        #: The table's sink, if it is open already.
        self.table_sink: TableSink | None = None
        self.ordered = ordered
        self.engine = engine
        self.stop = host.stop
        #: A folder for the files of engine local, which all executors see; removed when the job has ended.
        self.local_root: str | None = None
        self.display = host.display
        self._lacks = host.lacks
        self._say = host.say
        self._submitter = host.report
        #: The session that reads by default, if there is one.
        self.spark: Any = None
        #: Called with the address of the Spark job's page, as soon as it is known; `None` if it is not shown.
        self.on_page: Callable[[str], None] | None = None
        self._page: str | None = None
        #: The records of each window that become dead letters, once they are known.
        self.dead_letters: Sequence[DeadLetters] | None = None
        #: Whether Spark writes the records unchanged to files: then it counts fields without a column.
        self.is_copied = False
        #: The output that was written or reported so far.
        self.staged: list[Staged | Mapping[str, Any]] | None = None

    @property
    def output(self) -> str | None:
        """The folder for the windows' files."""
        return None if self.folder is None else self.folder.root

    @property
    def partition_by(self) -> str | None:
        """The folders above the windows' folders."""
        return None if self.folder is None else self.folder.partition_by

    @property
    def place(self) -> object:
        """The destination: a folder, a table's name or a sink; `None` if the job delivers the windows itself."""
        if self.table is not None:
            return self.table.name
        return self.output if self.sink is None else self.sink

    def read(self, spark: Any = None, *, ordered: bool | None = None) -> Any:
        """Read exactly the windows' records, as one DataFrame; see `kafka_ordered_ops.spark.read_windows`.

        Its column ``window_id`` names the window of each record. If bad records become dead letters, the first call finds them,
        by one more pass over all records.

        Args:
            spark: the session. Default: that of the submitted application.
            ordered: in total order, window after window. Default: the job's argument.

        Raises:
            ConfigError: there is no session.
            KafkaOrderedOpsError: as `read_windows` does.
        """
        from kafka_ordered_ops.spark.read.read import read_good

        session = self.spark if spark is None else spark
        if session is None:
            raise ConfigError(
                f"{windows_text(self.plans)}: there is no Spark session: give one to read(spark)"
            )
        self.show_session(session)
        frame, self.dead_letters = read_good(
            session,
            self.plans,
            self.client,
            ordered=self.ordered if ordered is None else ordered,
            engine=self.engine,
            local_root=self.local_root,
            known=self.dead_letters,
            counted=self.is_copied,
        )
        return frame

    def keep_letters(self, letters: Sequence[DeadLetters]) -> None:
        """Keep the records that one read has left out; raise `RegistryError` if an earlier one has left out other records."""
        known = self.dead_letters
        if known is not None and not all(map(DeadLetters.is_same, known, letters)):
            raise RegistryError(
                f"{windows_text(self.plans)}: two reads have left out different records, because the schema registry has changed in "
                "between. Nothing was committed: run the window again"
            )
        self.dead_letters = letters

    def write(self, result: Any, path: str | os.PathLike[str] | None = None) -> list[Any]:
        """Write each window's rows to a separate folder, by default below the `output` of the host, or to its table.

        Args:
            result: a Spark DataFrame; or, for a folder and one window, an object with Arrow's stream interface.
            path: another folder, for a job without a table or a sink.

        Raises:
            TypeError: the result is neither.
            ConfigError: there is an output already, no folder for it, or a path and a table.
            KafkaOrderedOpsError: as `kafka_ordered_ops.spark.write_windows` and `stage_stream` do.
        """
        self._check_place(path)
        if self.sink is not None:
            return self._record([self.sink.write(result, self.plans[0])])
        if self.table is not None:
            from kafka_ordered_ops.spark.write.table_windows import write_to_table

            return self._record(write_to_table(result, self.table, self.plans, self.table_sink))
        if not _is_of_spark(result):
            return self._record([self._streamed(result, path)])
        from kafka_ordered_ops.spark.write.write_many import write_each

        return self._record(
            write_each(
                result,
                self._folder(path),
                self.plans,
                ordered=self.ordered,
                storage_options=self._options(path),
                partition_by=self._partition_by(path),
            )
        )

    def _streamed(self, result: Any, path: str | os.PathLike[str] | None) -> StagedOutput:
        from kafka_ordered_ops.output.writing.arrow_stream import stage_stream

        if isinstance(result, type) or not hasattr(result, "__arrow_c_stream__"):
            raise TypeError(
                f"write takes a Spark DataFrame, or an object with Arrow's stream interface such as a table of pyarrow, Polars, "
                f"pandas or DuckDB, not {shown(result)}"
            )
        if len(self.plans) > 1:
            raise ConfigError(
                f"one Arrow stream cannot hold {len(self.plans)} windows: write them one by one, or a Spark DataFrame with a "
                "column window_id"
            )
        return stage_stream(
            result,
            self.plans[0],
            self._folder(path),
            storage_options=self._options(path),
            partition_by=self._partition_by(path),
        )

    def copy(self, path: str | os.PathLike[str] | None = None) -> list[Any]:
        """Copy the records unchanged, as Parquet and without Spark: `kafka_ordered_ops.spark.stage_windows`.

        To a table of the host, with its session of Spark.

        Raises:
            ConfigError: there is an output already, or no folder for it.
            KafkaOrderedOpsError: as `stage_windows` does.
        """
        self._check_place(path)
        if self.table is not None:
            from kafka_ordered_ops.spark.write.table_windows import copy_to_table

            self.show_phase("running in Spark", "tasks")
            copied = copy_to_table(self.read, self.table, self.plans, self.table_sink)
            return self._record(copied)
        folder, options = self._folder(path), self._options(path)
        return self._record(self.staged_below(folder, options, self._partition_by(path)))

    def submit(
        self,
        application: str | os.PathLike[str],
        arguments: Sequence[str] = (),
        how: SparkSubmit | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> list[Any]:
        """Run a Spark application for all windows by spark-submit: `kafka_ordered_ops.spark.submit_windows`.

        The application gets its windows with `kafka_ordered_ops.current_windows`. If the host ends the job, the
        application and all of its processes end. With a table of the host, it is run again to publish.

        Raises:
            ConfigError: there is an output already, or no folder for it.
            KafkaOrderedOpsError: as `submit_windows` does.
        """
        from kafka_ordered_ops.spark.applications.submitter import submit_windows

        self._check_place(path)
        if self._submitter is not None:
            raise ConfigError(
                "this job was submitted itself: read and write here, or submit both applications from the caller"
            )
        if self.table is not None:
            return self._submitted_to(self.table, application, arguments, how)
        self.show_phase("starting Spark")
        staged = submit_windows(
            self.plans,
            application,
            self.client,
            self._folder(path),
            arguments=arguments,
            ordered=self.ordered,
            engine=self.engine,
            how=how,
            cancelled=self.stop.__bool__,
            log_line=self._say,
            progress=self._job_progress(Path(application).name),
            storage_options=self._options(path),
            partition_by=self._partition_by(path),
        )
        return self._record(staged)

    def submit_alone(
        self, application: str, arguments: Sequence[str], how: SparkSubmit
    ) -> Mapping[str, Any]:
        """Run an application that has its own sink; return its report, see `spark.run_job`."""
        from kafka_ordered_ops.spark.applications.submitter import run_job

        with self.temporary_folder() as folder:
            result = run_job(
                self.plans,
                application,
                self.client,
                folder,
                arguments=arguments,
                ordered=self.ordered,
                engine=self.engine,
                how=how,
                cancelled=self.stop.__bool__,
            )
        return result.results[0]

    def _submitted_to(
        self,
        table: Table,
        application: str | os.PathLike[str],
        arguments: Sequence[str],
        how: SparkSubmit | None,
    ) -> list[Any]:
        from kafka_ordered_ops.spark.applications.tables import table_application

        self.show_phase("starting Spark")
        by = table_application(
            table,
            application,
            how,
            arguments=arguments,
            log_line=self._say,
            cancelled=self.stop.__bool__,
        )
        progress = self._job_progress(Path(application).name)
        staged = by.write(
            self.plans, self.client, ordered=self.ordered, engine=self.engine, progress=progress
        )
        return self._record(staged)

    def collect(self, path: str | os.PathLike[str] | None = None) -> list[StagedOutput]:
        """Use the output of another program's job for every window.

        Raises:
            ConfigError: there is an output already, or no folder for it.
            SinkError: a window's output is missing, or not complete.
        """
        from kafka_ordered_ops.output.writing.staged_output import StagedOutput

        folder = self._folder(path)
        options, partition_by = self._options(path), self._partition_by(path)
        places = [StagedOutput.of(plan, folder, options, partition_by) for plan in self.plans]
        if missing := [place for place in places if not place.exists()]:
            raise SinkError(
                f"{len(missing)} of {len(places)} windows have no complete output of this attempt below {folder}, such as "
                f"{missing[0].window_id}. The job must write with write_windows(df, output, plans), to the same "
                "folder, with the plans that it received",
                window_id=missing[0].window_id,
            )
        return self._record([place.as_found() for place in places])

    def report(self, outputs: Sequence[Staged | Mapping[str, Any]]) -> None:
        """Report your own sink's output of each window, in the order of `plans`; `write` does this itself.

        Args:
            outputs: the staged outputs of your sink, to be published after the commit; or, for a job that delivers the windows
                itself, small JSON to store with each.

        Raises:
            ConfigError: there is an output already, not one for each window, or JSON where an output is expected.
        """
        self._check_no_output()
        if len(outputs) != len(self.plans):
            raise ConfigError(
                f"{len(self.plans)} windows and {len(outputs)} outputs: report one for each window, in the order of plans"
            )
        if self._submitter is not None:
            self._submitter(self._lettered(outputs))
        elif self.place is not None and any(isinstance(output, Mapping) for output in outputs):
            raise ConfigError(
                f"{windows_text(self.plans)}: report got JSON, and the output goes to {self.place}: write it, or report "
                "the staged outputs of your sink"
            )
        self.staged = list(outputs)

    def outputs(self, returned: Any, facts: Mapping[str, Any] | None = None) -> list[Staged]:
        """Return each window's output: written, reported, or returned by the job.

        Raises:
            SinkError: there is a place for an output, and the job has neither written nor reported one; or the
                outputs are of other windows.
        """
        staged: list[Staged] | None = None
        if self.staged is not None:
            staged = [
                Reported.of(output, facts) if isinstance(output, Mapping) else output
                for output in self.staged
            ]
        outputs = outputs_of(self.plans, staged, returned, output=self.place, facts=facts)
        return self._lettered(outputs)

    def staged_below(
        self,
        folder: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        partition_by: str | None = None,
    ) -> list[StagedOutput]:
        """Read the records into hidden files, with progress lines; end if the job must end."""
        from kafka_ordered_ops.output.writing.stage import stage_windows

        self.show_phase("reading")
        return stage_windows(
            self.plans,
            self.client,
            folder,
            ordered=self.ordered,
            progress=self.progress(),
            storage_options=storage_options,
            partition_by=partition_by,
        )

    def temporary_folder(self) -> AbstractContextManager[str]:
        """Return a temporary folder for this attempt's reads, beside the outputs: a worker's own disk may be small."""
        from kafka_ordered_ops.output.filesystem import normal_root
        from kafka_ordered_ops.output.writing.temporary import temporary_folder

        return temporary_folder(None if self.output is None else normal_root(self.output))

    def progress(self) -> Callable[[int, int], None]:
        """Return a callback for the progress of reading."""
        last = time.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal last
            self.stop.check(self.plans[0].window_id)
            if self.display is not None:
                self.display.report(done, total)
            elif (now := time.monotonic()) - last > _SAY_EVERY_S:
                last = now
                _log.info("Read %s of %s offsets.", f"{done:,}", f"{total:,}")

        return progress

    def show_phase(self, name: str, unit: str = "offsets") -> None:
        """Show the current phase, if there is a display."""
        if self.display is not None:
            self.display.phase(name, unit)

    def show_session(self, spark: Any) -> None:
        """Show the page of a Spark session to the host, if it has one."""
        from kafka_ordered_ops.spark.job_page import job_page

        if self.on_page is not None:
            self._show_page(job_page(spark))

    def _show_page(self, page: str | None) -> None:
        if self.on_page is not None and page is not None and page != self._page:
            self._page = page
            self.on_page(page)

    def _job_progress(self, name: str) -> Callable[[JobProgress], None] | None:
        """Return a callback that shows an application's progress and page; `None` if neither is shown."""
        display = self.display
        if display is None and self.on_page is None:
            return None
        running = False

        def progress(now: JobProgress) -> None:
            nonlocal running
            self._show_page(now.page)
            if display is None:
                return
            if not running:
                display.phase(f"running {name}", "tasks")
                running = True
            if now.tasks_total:
                note = f"{now.records:,} records" if now.records else ""
                display.report(now.tasks_done, now.tasks_total, note)

        return progress

    def _lettered(self, outputs: Sequence[Any]) -> list[Any]:
        """Return outputs with the records that were left out of them, which are staged if their place is beside the output."""
        lettered = with_letters(self.plans, outputs, self.dead_letters)
        if self.dead_letters is None or not self.plans[0].window.has_bad_output:
            return lettered
        if self.table is not None:
            from kafka_ordered_ops.spark.write.table_windows import stage_bad_rows

            stage_bad_rows(self.plans, lettered, self.client, self.table, self.table_sink)
        else:
            from kafka_ordered_ops.output.writing.bad_records import stage_bad

            stage_bad(self.plans, lettered, self.client)
        return lettered

    def _record(self, staged: list[Any]) -> list[Any]:
        self.report(staged)
        return staged

    def _folder(self, path: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
        self._check_place(path)
        folder = self.output if path is None else path
        if folder is None:
            raise ConfigError(self._lacks)
        return folder

    def _options(self, path: str | os.PathLike[str] | None) -> Mapping[str, Any] | None:
        """Return the options of the host's output; for another path, `None` uses the environment."""
        return self.folder.storage_options if self.folder is not None and path is None else None

    def _partition_by(self, path: str | os.PathLike[str] | None) -> str | None:
        """Return the partitioning of the host's output; other paths have none."""
        return self.partition_by if path is None else None

    def _check_place(self, path: str | os.PathLike[str] | None) -> None:
        self._check_no_output()
        if path is not None and (self.table is not None or self.sink is not None):
            raise ConfigError(
                f"{windows_text(self.plans)} goes to {self.place}, and the path is {shown(path)}: omit the path"
            )

    def _check_no_output(self) -> None:
        if self.staged is not None:
            raise ConfigError("a window has one output: it was written or reported already")


def _is_of_spark(result: Any) -> bool:
    """Return whether a result is a DataFrame of Spark, which may have Arrow's stream interface as well."""
    return type(result).__module__.partition(".")[0] == "pyspark"
