"""One window for a program: its records in Arrow or Spark, and the program's output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.arguments import check_flag
from kafka_ordered_ops.core.errors import ClosedError, ConfigError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.delivery.host import Stop
from kafka_ordered_ops.delivery.open_windows import OpenWindows
from kafka_ordered_ops.spec.engine import Engine

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_ordered_ops.decoding.decoder import Decoder
    from kafka_ordered_ops.windows import ClientSettings, Staged


class OpenWindow:
    """A planned window: read it, and it is committed if the block or function does not raise.

    `to_batches`, `to_arrow` and the Arrow stream need no Spark; `read` does. The window is usable
    until its block or function has ended.
    """

    def __init__(self, windows: OpenWindows) -> None:
        #: The same window as an `OpenWindows`, for the host.
        self.windows = windows
        #: Starts a session when it is first needed; `None` if no session may be started.
        self.session: Callable[[], AbstractContextManager[Any]] | None = None
        self._resources = ExitStack()
        self._streams: list[_Stream] = []
        self._is_closed = False
        #: The records' facts, once all records were returned.
        self.facts: Mapping[str, Any] | None = None

    @property
    def plan(self) -> WindowPlan:
        """The window's exact offsets."""
        return self.windows.plans[0]

    @property
    def window_id(self) -> str:
        """The window's id: the same in every attempt."""
        return self.plan.window_id

    @property
    def settings(self) -> ClientSettings:
        """The client settings."""
        return self.windows.client

    @property
    def is_replay(self) -> bool:
        """Whether the window was committed before: its records are returned again, and committing changes nothing."""
        return self.plan.status.is_done

    @property
    def spark(self) -> Any:
        """The session that the window was opened with, or that its host has for it.

        Raises:
            ConfigError: there is no session.
        """
        if self.windows.spark is None and self.session is not None:
            self.windows.spark = self._resources.enter_context(self.session())
        if self.windows.spark is None:
            raise ConfigError(
                f"window {self.window_id} has no Spark session: give spark= to run or open, or a session to read(spark); "
                "to_batches() and to_arrow() need none"
            )
        return self.windows.spark

    # --- without Spark ---------------------------------------------------------------------------

    def to_batches(self, *, ordered: bool = True) -> Iterator[pa.RecordBatch]:
        """Stream exactly the window's records as Arrow batches, with bounded memory.

        Each call reads the same records from Kafka again. The order is known once all of them are read: records
        beyond 256 MiB wait in a temporary folder, beside the `output` folder if there is one.

        Columns: ``topic``, ``partition``, ``offset``, ``timestamp`` (milliseconds, UTC), ``timestamp_type``, ``key``,
        ``value``, ``headers``, ``late``; values and keys decoded as the window says. Without the records that become
        dead letters: the window is committed only if one call was read to its end.

        Args:
            ordered: by (timestamp, topic, partition, offset). Otherwise in the order of arrival, each partition by
                offset.

        Raises:
            ClosedError: the block or function has ended.
            SpillError: the temporary folder fails: its disk is full, for example.
            DecodeError: a value cannot be decoded.
            ReadError, RecordsLostError, BrokerError: Kafka cannot be read.
        """
        from kafka_ordered_ops.decoding.left_out import LeftOut
        from kafka_ordered_ops.output.writing.window_batches import read_batches

        check_flag(ordered, what="ordered")
        self._check_open()

        limit = self.plan.window.dead_letter
        left_out = None if limit is None else LeftOut(limit, [self.plan.offsets])

        def finished(facts: Mapping[str, Any]) -> None:
            self.facts = facts
            if left_out is not None:
                self.windows.keep_letters([left_out.letters()])

        resources = ExitStack()
        stream = _Stream(
            self.window_id,
            read_batches(
                self.plan,
                self.settings,
                lambda: resources.enter_context(self.windows.temporary_folder()),
                ordered=ordered,
                progress=self.windows.progress(),
                finished=finished,
                decoder=self._decoder,
                left_out=left_out,
            ),
            self._schema,
            resources,
            self.windows.stop,
        )
        self._streams.append(stream)
        return stream

    def to_arrow(self, *, ordered: bool = True) -> pa.Table:
        """Read exactly the window's records into one Arrow table, which must fit memory; otherwise like `to_batches`."""
        import pyarrow as pa

        return pa.Table.from_batches(self.to_batches(ordered=ordered), self._schema)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the window as an Arrow stream, for any library that accepts Arrow data."""
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self._schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]

    # --- with Spark --------------------------------------------------------------------------------

    def read(self, spark: Any = None, *, ordered: bool | None = None) -> Any:
        """Read exactly the window's records as a Spark DataFrame; see `kafka_ordered_ops.spark.read_window`.

        Args:
            spark: the session. Default: that of `run`, `open` or the submitted application.
            ordered: in total order. Default: the job's argument.

        Raises:
            ConfigError: there is no session.
            KafkaOrderedOpsError: as `read_window` does.
        """
        self._check_open()
        session = self.spark if spark is None else spark
        if self.windows.engine == Engine.LOCAL and self.windows.local_root is None:
            folder = self.windows.temporary_folder()
            self.windows.local_root = self._resources.enter_context(folder)
        return self.windows.read(session, ordered=ordered)

    def write(self, result: Any, path: str | os.PathLike[str] | None = None) -> Staged:
        """Write the window's result to a hidden stage; it is visible after the commit.

        Args:
            result: a Spark DataFrame, or anything with Arrow's stream interface: of pyarrow, Polars, pandas, DuckDB. The
                latter is written to a folder without Spark, file by file, in the order of its rows.
            path: the folder for it. Default: the job's output, a folder, a table or a sink.

        Raises:
            TypeError: the result is neither.
            ConfigError: the window has an output already, or there is no folder for it; it goes to a table or a sink,
                and there is a path; or the result has columns that some readers of Parquet do not support.
            KafkaOrderedOpsError: as `kafka_ordered_ops.spark.write_window` does.
        """
        self._check_open()
        written: Staged = self.windows.write(result, path)[0]
        return written

    def report(self, output: Staged | Mapping[str, Any]) -> None:
        """Report your own sink's output; `write` does this itself.

        Args:
            output: the staged output of your sink, to be published after the commit; or, for a job that delivers the window
                itself, small JSON to store with it.

        Raises:
            ConfigError: the window has an output already, or JSON where an output is expected.
        """
        self._check_open()
        self.windows.report([output])

    # --- for the call that opened it ---------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        """Whether something was written or reported."""
        return self.windows.staged is not None

    def outputs(self, returned: Any) -> list[Staged]:
        """Return the outputs of the block or function; see `OpenWindows.outputs`."""
        return self.windows.outputs(returned, self.facts)

    def close(self) -> None:
        """End running reads, and remove their temporary files."""
        self._is_closed = True
        for stream in self._streams:
            stream.close()
        self._resources.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.plan.group_id}/{self.window_id}: {self.plan.offsets:,} offsets>"

    @cached_property
    def _decoder(self) -> Decoder | None:
        from kafka_ordered_ops.decoding.decoder import decoder_of

        return decoder_of(self.plan.window, self.settings)

    @cached_property
    def _schema(self) -> pa.Schema:
        from kafka_ordered_ops.output.writing.window_batches import window_schema

        return window_schema(self._decoder)

    def _check_open(self) -> None:
        if self._is_closed:
            raise _closed(self.window_id)


class _Stream(Iterator["pa.RecordBatch"]):
    """Batches until the window is closed or reading fails; then errors, because an early end would look complete."""

    def __init__(
        self,
        window_id: str,
        batches: Iterator[pa.RecordBatch],
        schema: pa.Schema,
        resources: ExitStack,
        stop: Stop,
    ) -> None:
        self._window_id = window_id
        #: The columns, also of a window without records.
        self.schema = schema
        self._stop = stop
        self._batches: Any = batches
        #: What the batches need; released with the last one.
        self._resources = resources
        self._is_cut = False
        self._failure: BaseException | None = None

    def __next__(self) -> pa.RecordBatch:
        if self._is_cut:
            raise _closed(self._window_id)
        if self._failure is not None:
            raise ClosedError(
                f"window {self._window_id}: reading these batches failed, and the rest is missing "
                f"({type(self._failure).__name__}: {self._failure}). Call to_batches again to read all of them"
            ) from self._failure
        self._stop.check(self._window_id)
        try:
            return next(self._batches)  # type: ignore[no-any-return]
        except StopIteration:
            self._resources.close()
            raise
        except BaseException as error:
            self._failure = error
            self._resources.close()
            raise

    def close(self) -> None:
        """End the stream; a stream that has ended stays ended."""
        self._is_cut = True
        self._batches.close()
        self._resources.close()


def _closed(window_id: str) -> ClosedError:
    return ClosedError(
        f"window {window_id} is closed: its block or function has ended. Read it inside, or open it again"
    )
