"""Define the public `OrderedReader`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from kafka_ordered_ops.core.arguments import DefaultTimeout, check_timeout_s
from kafka_ordered_ops.core.errors import ClosedError, ConfigError
from kafka_ordered_ops.core.release.ordered_release import (
    HELD_BYTES_MAX,
    HELD_RECORDS_MAX,
    SPILLED_BYTES_MAX,
    Order,
)
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.core.window.plan import WindowPlan, check_not_covered
from kafka_ordered_ops.kafka.client.forks import Home
from kafka_ordered_ops.kafka.membership import SESSION_TIMEOUT_S
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings
from kafka_ordered_ops.ordered.engine import Engine
from kafka_ordered_ops.ordered.question import GRACE, Progress, Question, StartingOffsets
from kafka_ordered_ops.ordered.records.columns import STAGE_SCHEMA
from kafka_ordered_ops.ordered.state import state_batch

#: Between two commits of what has been handed out.
COMMIT_INTERVAL_S: Final = 1.0
#: For each question to the cluster.
TIMEOUT_S: Final = DefaultTimeout(30.0)
#: How long one wait of an asynchronous iterator is at most: its cancellation is felt this late.
_ASYNC_SLICE_S: Final = 0.2


class OrderedReader:
    """Read topics in one order over all of their partitions, as Arrow record batches.

    ::

        with OrderedReader("localhost:9092", "orders") as records:  # up to where the logs end now
            table = pa.Table.from_batches(records, records.schema)

        with OrderedReader("localhost:9092", "orders", follow=True, group_id="billing") as records:
            for batch in records:  # and on, without an end; committed once the next batch is asked for
                bill(batch)

    A context manager, an iterator, and an asynchronous iterator. Any Arrow library takes it as a stream. Use it in one
    thread at a time.

    Without `follow`, the order is exact whatever the timestamps are: all records are read before the first is
    returned, and wait on disk beyond `held_bytes_max`. With `follow`, a record is returned when every partition has
    passed its timestamp. A partition that has returned nothing holds the others back, until `grace`, or
    `max_out_of_orderness` if it is longer, has passed since it was found to have nothing more and no open transaction.

    With `group_id`, it is a member of a live consumer group. It reads the partitions that the group assigns to it, from
    the committed offsets, and commits what it has returned once the next batch is asked for. After ``kill -9``, records
    since the last commit are read again, in order. The order is over the partitions of one member: run one for the
    order over all.

    Args:
        settings: the brokers as ``host:port,...``, a mapping of librdkafka settings, or `ClientSettings`.
        topics: names, or regular expressions that begin with ``^`` and must match a whole name.
        starting_offsets: where to begin: ``earliest``, ``latest``, a time, ``-PT1H`` (before now), ``offset:N`` or a typed
            bound; or one of them for each topic (others: ``earliest``). Committed offsets of the group come first.
        follow: go on at the end of the logs, and read partitions that appear later.
        group_id: the live group, with `follow`.
        isolation: under ``read_committed``, aborted records and those of open transactions are not visible.
        order: ``timestamp``: by (timestamp, topic, partition, offset). ``partition``: the same, but a record never comes
            before an earlier one of its own partition.
        max_out_of_orderness: how far a timestamp may be below an earlier one of its partition, for the order
            ``timestamp``: records wait for so long. None: 0 with `follow`, otherwise any distance.
        grace: with `follow`, how long after its timestamp a record reaches its partition at most.
        held_records_max: records held in memory.
        held_bytes_max: their Arrow data, bytes. Some of it exists twice while it is sorted or written.
        spilled_bytes_max: records held on disk, bytes.
        temporary_folder: where they are held; removed at the end, and after ``kill -9`` by the next reader with the same
            folder. None: the system's folder for temporary files.
        commit_interval_s: the least time between two commits.
        session_timeout_s: after a member was killed, how long its group waits before others get its partitions.
        stall_timeout_s: without `follow`, how long to wait while no partition moves.
        timeout_s: the limit of each question to the cluster. Without it, brokers that have never answered and that all
            refuse are given up after 7 s.
        progress: called with (offsets done, offsets known) several times a second.
        clock: returns the time in seconds since the epoch; for tests.

    Raises:
        ConfigError: an invalid argument.
    """

    def __init__(
        self,
        settings: GivenSettings,
        topics: str | Sequence[str],
        *,
        starting_offsets: StartingOffsets | Mapping[str, StartingOffsets] = "earliest",
        follow: bool = False,
        group_id: str | None = None,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        order: Order | str = Order.TIMESTAMP,
        max_out_of_orderness: timedelta | str | None = None,
        grace: timedelta | str = GRACE,
        held_records_max: int = HELD_RECORDS_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
        spilled_bytes_max: int = SPILLED_BYTES_MAX,
        temporary_folder: str | os.PathLike[str] | None = None,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        timeout_s: float = TIMEOUT_S,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        question = Question.of(
            topics=topics,
            plan=None,
            starting_offsets=starting_offsets,
            follow=follow,
            group_id=group_id,
            isolation=isolation,
            order=order,
            max_out_of_orderness=max_out_of_orderness,
            grace=grace,
            held_records_max=held_records_max,
            held_bytes_max=held_bytes_max,
            spilled_bytes_max=spilled_bytes_max,
            temporary_folder=temporary_folder,
            commit_interval_s=commit_interval_s,
            session_timeout_s=session_timeout_s,
            stall_timeout_s=stall_timeout_s,
            timeout_s=timeout_s,
            progress=progress,
            clock=clock,
        )
        self._start(ClientSettings.of(settings), question)

    @classmethod
    def of_plan(
        cls,
        plan: WindowPlan,
        settings: GivenSettings,
        *,
        order: Order | str = Order.TIMESTAMP,
        max_out_of_orderness: timedelta | str | None = None,
        held_records_max: int = HELD_RECORDS_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
        spilled_bytes_max: int = SPILLED_BYTES_MAX,
        temporary_folder: str | os.PathLike[str] | None = None,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        timeout_s: float = TIMEOUT_S,
        progress: Progress | None = None,
    ) -> OrderedReader:
        """Return a reader of exactly a plan's records; nothing is committed. Arguments as above.

        Raises:
            ConfigError: an invalid argument.
            WindowCoveredError: other windows deliver the records.
        """
        if not isinstance(plan, WindowPlan):
            raise ConfigError("plan is not a WindowPlan: pass what OrderedWindows.plan returned")
        check_not_covered(plan)
        made = cls.__new__(cls)
        question = Question.of(
            topics=(),
            plan=plan,
            starting_offsets="earliest",
            follow=False,
            group_id=None,
            isolation=plan.isolation,
            order=order,
            max_out_of_orderness=max_out_of_orderness,
            grace=GRACE,
            held_records_max=held_records_max,
            held_bytes_max=held_bytes_max,
            spilled_bytes_max=spilled_bytes_max,
            temporary_folder=temporary_folder,
            commit_interval_s=COMMIT_INTERVAL_S,
            session_timeout_s=SESSION_TIMEOUT_S,
            stall_timeout_s=stall_timeout_s,
            timeout_s=timeout_s,
            progress=progress,
            clock=time.time,
        )
        made._start(ClientSettings.of(settings), question)
        return made

    def _start(self, settings: ClientSettings, question: Question) -> None:
        self._engine = Engine(settings, question)
        self._group_id = question.group_id
        self._batches: Iterator[pa.RecordBatch | None] | None = None
        self._is_closed = self._is_done = False
        #: What ended the read before its end.
        self._failure: BaseException | None = None
        #: Read by an iterator that was cancelled before it could return it.
        self._kept: pa.RecordBatch | None = None
        self._turn = threading.RLock()
        self._is_busy = False
        self._home = Home()

    def __enter__(self) -> OrderedReader:
        if self._is_closed or self._batches is not None:
            raise ClosedError("an OrderedReader is opened once: make another one")
        self._home.check("an OrderedReader")
        self._engine.__enter__()
        self._batches = self._engine.batches()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close(*exc_info)

    def close(self) -> None:
        """End the read, commit what was done with, and remove what is on disk; may be called twice."""
        self._close(None)

    def _close(self, *exc_info: object) -> None:
        if self._is_closed or not self._home.is_here:
            return
        with self._alone():
            self._is_closed = True
            if self._batches is not None:
                self._engine.__exit__(*exc_info)

    # --- records -------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches.

        ``topic``, ``partition``, ``offset``, ``timestamp`` (milliseconds, UTC), ``timestamp_type``, ``key``, ``value``,
        ``headers``, and ``late``: the record came after its place in the order had passed. Of a plan also: after its
        own window had been planned.
        """
        return STAGE_SCHEMA

    def poll(self, timeout_s: float) -> pa.RecordBatch | None:
        """Return the next records, or None if there are none within the time, or at all (`is_done`).

        One turn is taken even with 0. It takes up to 0.1 s.

        Raises:
            ClosedError: outside of the ``with`` block, or after an error.
            RecordsLostError: records were removed before they were read; which.
            HeldLimitError: too many records wait for a partition; for which.
            SpillError: the temporary folder fails: its disk is full, for example.
            ReadError, BrokerError: Kafka cannot be read.
        """
        wait_s = 0.0 if timeout_s == 0 else check_timeout_s(timeout_s, what="timeout_s")
        deadline = time.monotonic() + wait_s
        while True:
            if self._fill() and (found := self._taken()) is not None:
                return found
            if self.is_done or time.monotonic() >= deadline:
                return None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield records until the end, or for ever with `follow`; raise like `poll`."""
        while not self.is_done:
            if self._fill() and (found := self._taken()) is not None:
                yield found

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield records like an ordinary iterator; reading happens in a thread, and nothing is lost when cancelled."""
        while not self.is_done:
            is_there = await asyncio.to_thread(self._fill, _ASYNC_SLICE_S)
            if is_there and (found := self._taken()) is not None:
                yield found

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the records as an Arrow reader; it raises what iterating raises."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the records as an Arrow stream, for any library that accepts Arrow data."""
        return self.to_reader().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]

    def _fill(self, within_s: float = 0.0) -> bool:
        """Take turns until there is a batch, at least one; return whether there is."""
        with self._alone():
            batches = self._open_batches()
            deadline = time.monotonic() + within_s
            while self._kept is None and not self._is_done:
                self._next(batches)
                if time.monotonic() >= deadline:
                    break
            return self._kept is not None

    def _next(self, batches: Iterator[pa.RecordBatch | None]) -> None:
        self._is_busy = True
        try:
            self._kept = next(batches)
        except StopIteration:
            self._is_done = True
        except BaseException as error:
            # An iterator that has raised would look like one that is done.
            self._failure = error
            raise
        finally:
            self._is_busy = False

    def _taken(self) -> pa.RecordBatch | None:
        """Take the batch; None: another thread has."""
        found, self._kept = self._kept, None
        return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for other threads, and refuse what a turn calls in the middle of itself."""
        with self._turn:
            if self._is_busy:
                raise ConfigError(
                    "an OrderedReader is used by its own `progress` or `clock`, or by a signal handler, in the middle of "
                    "a call: note what to do there, and do it after the call"
                )
            yield

    def _open_batches(self) -> Iterator[pa.RecordBatch | None]:
        """Return what is read from; raise `ClosedError` if that is over."""
        self._home.check("an OrderedReader")
        if self._batches is None or self._is_closed:
            raise ClosedError("an OrderedReader reads inside its `with` block")
        if self._failure is not None:
            raise ClosedError(
                f"this read has ended with {type(self._failure).__name__}: {self._failure}. Open a new OrderedReader"
            ) from self._failure
        return self._batches

    # --- what is known ---------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether all records were returned; never with `follow`."""
        return self._is_done and self._kept is None

    @property
    def is_live(self) -> bool:
        """Whether all partitions were read up to where they ended when the read began, or when they were found."""
        return self._batches is not None and self._engine.is_live

    def state(self) -> pa.RecordBatch:
        """Return the state of each partition.

        Columns: ``topic``, ``partition``, ``position``, ``end``, ``timestamp`` (the greatest so far), ``live``, ``held``
        (records that wait), ``holds_back`` (whether others wait for it), ``lag`` (offsets), ``late`` (records).

        Another thread may ask, and it may be asked after the end.

        Raises:
            ClosedError: before the ``with`` block.
        """
        if self._batches is None:
            raise ClosedError("an OrderedReader knows no partitions before its `with` block")
        return state_batch(self._engine.states())

    def commit(self) -> None:
        """Commit now what was returned before the last batch.

        Raises:
            ConfigError: there is no `group_id`.
            ClosedError: outside of the ``with`` block; its end commits.
            CommitRefusedError: the group has given the partitions to another member, which reads them again.
            CommitUnknownError: no answer in time; the next commit includes these records.
        """
        if self._group_id is None:
            raise ConfigError("this reader has no group_id: there is nothing to commit to")
        with self._alone():
            if self._batches is None or self._is_closed:
                raise ClosedError("an OrderedReader commits inside its `with` block")
            self._engine.commit()
