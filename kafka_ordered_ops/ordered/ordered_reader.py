"""Define the public `OrderedReader`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar, Final

import pyarrow as pa

from kafka_ordered_ops.core.arguments import check_flag, check_timeout_s
from kafka_ordered_ops.core.cluster.names import as_partition
from kafka_ordered_ops.core.cluster.out_of_range import OnOutOfRange
from kafka_ordered_ops.core.errors import ClosedError, ConfigError, RegistryError
from kafka_ordered_ops.core.release.ordered_release import Order
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.core.window.bounds import Bound, Committed
from kafka_ordered_ops.core.window.decoding import Decoding
from kafka_ordered_ops.core.window.plan import WindowPlan, check_not_covered
from kafka_ordered_ops.core.window.read_starts import as_exact_bound
from kafka_ordered_ops.kafka.client.lifetime import Home
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings
from kafka_ordered_ops.ordered.decoded import DecodedBatches
from kafka_ordered_ops.ordered.engine import Engine
from kafka_ordered_ops.ordered.options import Member, Ordering, ReadLimits
from kafka_ordered_ops.ordered.partitions.state import state_batch
from kafka_ordered_ops.ordered.question import (
    BATCH_SIZE,
    BoundGiven,
    Progress,
    Question,
    StartsGiven,
)

#: The longest single wait of an asynchronous iterator, and so the delay of its cancellation.
_ASYNC_SLICE_S: Final = 0.2

#: A partition in the forms that callers may pass.
PartitionGiven = tuple[str, int] | TopicPartition


class OrderedReader:
    """Read topics in one order over all of their partitions, as Arrow record batches.

    ::

        with OrderedReader("localhost:9092", "orders") as records:  # to the current ends of the logs
            table = pa.Table.from_batches(records, records.schema)

        with OrderedReader("localhost:9092", "orders", follow=True, group_id="billing") as records:
            for batch in records:  # without an end; a batch is committed once you request the next one
                bill(batch)

    The reader is a context manager, an iterator, and an asynchronous iterator. Any Arrow library accepts it as a stream.
    Use it in one thread at a time.

    Without `follow`, the order is exact for any timestamps: all records are read before the first one is returned, and
    wait on disk beyond `ReadLimits.held_bytes_max`. With `follow`, a record is returned once every partition has passed
    its timestamp. A partition without new records holds the others back. That ends once `Ordering.grace`, or
    `Ordering.max_out_of_orderness` if it is longer, has passed since the partition was found to have no more records and
    no open transaction.

    With `group_id`, the reader is a member of a live consumer group. It reads the partitions that the group assigns to it,
    from the committed offsets. It commits a batch once you request the next one. After ``kill -9``, records since the last
    commit are read again, in order. The order covers the partitions of one member: run a single member for an order over
    all partitions.

    Args:
        settings: the brokers as ``host:port,...``, a mapping of librdkafka settings, or `ClientSettings`.
        topics: names, or regular expressions that begin with ``^`` and must match a whole name.
        starting_offsets: where to start: ``earliest``, ``latest``, a time, ``-PT1H`` (before now), ``offset:N`` or a typed
            bound; or a mapping of them by topic and by partition: ``{"orders": "-PT1H", ("orders", 3): 50}`` (others:
            ``earliest``). Committed offsets of the group take precedence.
        exclude: names or patterns to leave out of the matches of `topics`.
        until: read exactly the records stamped before this time, as a `Window` with this cutoff, and stop.
        follow: keep reading at the end of the logs, and add partitions that appear later.
        group_id: the live group, with `follow`; or a `Member` with callbacks and intervals.
        isolation: under ``read_committed``, aborted records and those of open transactions are not visible.
        order: ``timestamp`` or ``partition``; or an `Ordering` that also sets how long records wait for earlier ones.
        on_data_loss: what to do with a position that is outside of its log, at the start and later. ``fail`` raises
            `RecordsLostError`. The other values log a warning and continue: ``warn`` at the nearest offset, ``earliest`` at
            the start of the log, ``latest`` at its end.
        batch_size: the maximum number of records in a batch.
        limits: how large batches are, how many records are held, where, and how long a request may take.
        decoding: how values and keys are encoded; their columns are decoded. Schemas are looked up when the reader is
            opened, and stay the same.
        progress: called with (offsets done, offsets known) several times a second.

    Raises:
        ConfigError: an invalid argument.
    """

    #: Returns the time in seconds since the epoch.
    _clock: ClassVar[Callable[[], float]] = time.time

    def __init__(
        self,
        settings: GivenSettings,
        topics: str | Sequence[str],
        *,
        starting_offsets: StartsGiven = "earliest",
        exclude: str | Sequence[str] = (),
        until: datetime | str | None = None,
        follow: bool = False,
        group_id: str | Member | None = None,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        order: Order | Ordering | str = Order.TIMESTAMP,
        on_data_loss: OnOutOfRange | str = OnOutOfRange.FAIL,
        batch_size: int = BATCH_SIZE,
        limits: ReadLimits | None = None,
        decoding: Decoding | None = None,
        progress: Progress | None = None,
    ) -> None:
        question = Question.of(
            topics=topics,
            exclude=exclude,
            starting_offsets=starting_offsets,
            until=until,
            follow=follow,
            group_id=group_id,
            isolation=isolation,
            order=order,
            on_data_loss=on_data_loss,
            batch_size=batch_size,
            limits=limits,
            decoding=decoding,
            progress=progress,
            clock=type(self)._clock,
        )
        self._start(ClientSettings.of(settings), question)

    @classmethod
    def of_plan(
        cls,
        plan: WindowPlan,
        settings: GivenSettings,
        *,
        order: Order | Ordering | str = Order.TIMESTAMP,
        batch_size: int = BATCH_SIZE,
        limits: ReadLimits | None = None,
        progress: Progress | None = None,
    ) -> OrderedReader:
        """Return a reader of exactly a plan's records, decoded as its window says; nothing is committed.

        For the arguments see above.

        Raises:
            ConfigError: an invalid argument.
            WindowCoveredError: other windows deliver the records.
        """
        if not isinstance(plan, WindowPlan):
            raise ConfigError("plan is not a WindowPlan: pass the result of OrderedWindows.plan")
        check_not_covered(plan)
        plan.window.check_no_dead_letters("an OrderedReader")
        reader = cls.__new__(cls)
        question = Question.of_plan(
            plan, order=order, batch_size=batch_size, limits=limits, progress=progress
        )
        reader._start(ClientSettings.of(settings), question)
        return reader

    def _start(self, settings: ClientSettings, question: Question) -> None:
        self._engine = Engine(settings, question)
        self._decoded = DecodedBatches(settings, question)
        self._member = question.member
        self._batches: Iterator[pa.RecordBatch | None] | None = None
        self._is_closed = self._is_done = False
        #: The error that ended the read early.
        self._failure: BaseException | None = None
        #: The next batch, until an iterator returns it; an asynchronous one may be cancelled before that.
        self._pending: pa.RecordBatch | None = None
        self._turn = threading.RLock()
        self._is_busy = False
        self._home = Home()

    def __enter__(self) -> OrderedReader:
        if self._is_closed or self._batches is not None:
            raise ClosedError("an OrderedReader can be opened only once: create a new one")
        self._home.check("an OrderedReader")
        # First: a schema that is missing or invalid is found before anything is read, or a group joined.
        _ = self._decoded.schema
        self._engine.__enter__()
        self._batches = self._engine.batches()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close(*exc_info)

    def close(self) -> None:
        """End the read, commit the processed records, and remove temporary files; may be called twice."""
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
        ``headers``, and ``late``: whether the record arrived after its place in the order had passed; for a plan, also
        whether it arrived after its own window had been planned. With `decoding`, keys and values have their own types.
        """
        return self._decoded.schema

    def poll(self, timeout_s: float) -> pa.RecordBatch | None:
        """Return the next batch, or None if there is none within the time, or if the read is complete (`is_done`).

        Even a timeout of 0 reads once, which takes up to 0.1 s.

        Raises:
            ClosedError: outside of the ``with`` block, or after an error.
            RecordsLostError: records were removed before they were read; the error has their offsets.
            HeldLimitError: too many records wait for a partition; the error names it.
            SpillError: the temporary folder cannot be used, for example because its disk is full.
            DecodeError: a value or a key of the batch cannot be decoded; the batch is not committed.
            RegistryError: the schema registry cannot be reached; the next call goes on with the same batch.
            ReadError, BrokerError: Kafka cannot be read.
        """
        wait_s = 0.0 if timeout_s == 0 else check_timeout_s(timeout_s, what="timeout_s")
        deadline = time.monotonic() + wait_s
        while True:
            if self._fill() and (batch := self._take_pending()) is not None:
                return batch
            if self.is_done or time.monotonic() >= deadline:
                return None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield batches until the end, or without an end with `follow`; raises like `poll`."""
        while not self.is_done:
            if self._fill() and (batch := self._take_pending()) is not None:
                yield batch

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield batches like the ordinary iterator; a thread reads them, and a cancellation loses nothing."""
        while not self.is_done:
            is_there = await asyncio.to_thread(self._fill, _ASYNC_SLICE_S)
            if is_there and (batch := self._take_pending()) is not None:
                yield batch

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the records as an Arrow reader; it raises the same errors as the iterator."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the records as an Arrow stream, for any library that accepts Arrow data."""
        return self.to_reader().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]

    def _fill(self, within_s: float = 0.0) -> bool:
        """Read until there is a batch, at least one turn; return whether there is one."""
        with self._alone():
            batches = self._open_batches()
            deadline = time.monotonic() + within_s
            while self._pending is None and not self._is_done:
                self._next(batches)
                if time.monotonic() >= deadline:
                    break
            return self._pending is not None

    def _next(self, batches: Iterator[pa.RecordBatch | None]) -> None:
        self._is_busy = True
        try:
            self._pending = self._decoded.next(batches)
        except StopIteration:
            self._is_done = True
        except RegistryError:
            raise
        except BaseException as error:
            # Otherwise an iterator that raised would look like one that is done.
            self._failure = error
            raise
        finally:
            self._is_busy = False

    def _take_pending(self) -> pa.RecordBatch | None:
        """Take the batch; `None` if another thread took it."""
        batch, self._pending = self._pending, None
        return batch

    @contextmanager
    def _alone(self, *, in_callback: bool = False) -> Iterator[None]:
        """Wait for other threads, and refuse calls from inside a turn."""
        with self._turn:
            if self._is_busy and not (in_callback and self._engine.in_callback):
                raise ConfigError(
                    "an OrderedReader is used by its own `progress` callback, or by a signal handler, in the middle of "
                    "a call: set a flag there, and use the reader after the call"
                )
            yield

    def _open_batches(self) -> Iterator[pa.RecordBatch | None]:
        """Return the iterator of batches; raise `ClosedError` if the read is not open."""
        self._home.check("an OrderedReader")
        if self._batches is None or self._is_closed:
            raise ClosedError("an OrderedReader reads inside its `with` block")
        if self._failure is not None:
            raise ClosedError(
                f"this read has ended with {type(self._failure).__name__}: {self._failure}. Open a new OrderedReader"
            ) from self._failure
        return self._batches

    # --- pause and seek --------------------------------------------------------------------------------

    def pause(self, *partitions: PartitionGiven, hold: bool = True) -> None:
        """Return no records of these partitions until they resume; a pause ends when the group takes them away.

        Args:
            *partitions: as ``("orders", 3)``.
            hold: True keeps the exact order: other partitions wait for the paused one, and reading stops when memory is
                full. False lets the others continue: paused records that they pass are late when they are returned.

        Raises:
            ConfigError: a partition that this reader does not read.
            ClosedError: outside of the ``with`` block.
        """
        holds = check_flag(hold, what="hold")
        named = _partitions(partitions, what="pause")
        with self._alone(in_callback=True):
            self._open_batches()
            self._engine.pause(named, holds=holds)
            self._is_done = self._is_done and not self._reopened()

    def resume(self, *partitions: PartitionGiven) -> None:
        """Continue these partitions where they were paused; raises like `pause`."""
        named = _partitions(partitions, what="resume")
        with self._alone(in_callback=True):
            self._open_batches()
            self._engine.moves.resume(named)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions."""
        return frozenset() if self._batches is None else self._engine.moves.paused

    @property
    def restarts(self) -> int:
        """How often the order restarted, after a seek."""
        return 0 if self._batches is None else self._engine.moves.restarts

    def seek(self, topic: str, partition: int, to: BoundGiven | int) -> int:
        """Continue at another offset of a partition; return it.

        Waiting records of the partition are dropped. The order restarts: `restarts` counts this, and a warning is
        logged. In a group, the next commit stores the new position.

        Args:
            topic: its name.
            partition: its number.
            to: an offset, a time, ``earliest`` or ``latest``, or any other starting offset.

        Raises:
            ConfigError: an invalid argument, or a partition that this reader does not have.
            RecordsLostError: an offset that is not in the log, with ``on_data_loss="fail"``.
            ClosedError: outside of the ``with`` block.
        """
        tp = as_partition((topic, partition), what="seek")
        return self._seek({tp: _place(to)})[tp]

    def seek_all(self, to: BoundGiven | int) -> dict[TopicPartition, int]:
        """Continue at other offsets in all partitions; return them. See `seek`."""
        bound = _place(to)
        with self._alone(in_callback=True):
            self._open_batches()
            tps = [state.tp for state in self._engine.states()]
        return self._seek(dict.fromkeys(tps, bound))

    def _seek(self, bounds: Mapping[TopicPartition, Bound]) -> dict[TopicPartition, int]:
        with self._alone(in_callback=True):
            self._open_batches()
            positions = self._engine.seek(bounds)
            self._is_done = self._is_done and not self._reopened()
            return positions

    def _reopened(self) -> bool:
        """Read again after the end; return whether there is something to read."""
        if not self._is_done or self._engine.is_finished:
            return False
        self._batches = self._engine.batches()
        return True

    # --- state -----------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether all records were returned; never with `follow`."""
        return self._is_done and self._pending is None

    @property
    def plan(self) -> WindowPlan | None:
        """The exact offsets of a read with `until`, once it is open, or of a plan."""
        return self._engine.plan

    @property
    def is_live(self) -> bool:
        """Whether all partitions were read up to their ends at the start of the read, or when they were found."""
        return self._batches is not None and self._engine.is_live

    def state(self) -> pa.RecordBatch:
        """Return the state of each partition.

        Columns: ``topic``, ``partition``, ``start``, ``committed``, ``position``, ``end``, ``timestamp`` (the greatest so
        far), ``live``, ``held`` (records that wait), ``holds_back`` (whether others wait for it), ``lag`` (offsets),
        ``time_lag`` (from the greatest timestamp to now), ``late`` (records), ``paused``.

        You can call this from another thread, and after the end.

        Raises:
            ClosedError: before the ``with`` block.
        """
        if self._batches is None:
            raise ClosedError("an OrderedReader knows no partitions before its `with` block")
        return state_batch(self._engine.states(), self._engine.now_ms())

    def commit(self) -> None:
        """Commit now the batches before the last one.

        Raises:
            ConfigError: there is no `group_id`.
            ClosedError: outside of the ``with`` block; its end commits.
            CommitRefusedError: the group has given the partitions to another member, which reads them again.
            CommitUnknownError: there was no answer in time; the next commit includes these records.
        """
        if self._member is None:
            raise ConfigError("this reader has no group_id: it cannot commit")
        with self._alone(in_callback=True):
            if self._batches is None or self._is_closed:
                raise ClosedError("an OrderedReader commits inside its `with` block")
            self._engine.commit()


def _partitions(values: Sequence[object], *, what: str) -> list[TopicPartition]:
    if not values:
        raise ConfigError(f"{what} has no partition: give at least one, as ('orders', 3)")
    return [as_partition(value, what=what) for value in values]


def _place(value: object) -> Bound:
    bound = as_exact_bound(value, what="seek")
    if bound == Committed():
        raise ConfigError("seek is 'committed': give an offset, a time, 'earliest' or 'latest'")
    return bound
