"""Process records with a function, many at the same time: `Processor`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, Final, Self

from kafka_ordered_ops.core.arguments import (
    check_choice,
    check_count,
    check_function,
    check_timeout_s,
    shown,
)
from kafka_ordered_ops.core.cluster.names import as_topics, check_group, is_topic_name
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.offset_map.reading import DecodePolicy
from kafka_ordered_ops.core.processing.commits import CommitMode, ProduceMode, modes_of
from kafka_ordered_ops.core.processing.failures import RETRIES, Backoff, WhenExhausted
from kafka_ordered_ops.core.processing.new_record import NewRecord, as_records
from kafka_ordered_ops.core.processing.options import ProcessorOptions, WorkerKind
from kafka_ordered_ops.core.processing.outputs import Outputs
from kafka_ordered_ops.core.processing.partition_counts import PartitionCounts
from kafka_ordered_ops.core.processing.scheduling import Ordering
from kafka_ordered_ops.core.processing.state import ProcessorState
from kafka_ordered_ops.core.types import GroupProtocol, Isolation
from kafka_ordered_ops.core.window.bounds import Bound, as_bound
from kafka_ordered_ops.core.window.decoding import Decoding, check_decoding
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.members.membership import SESSION_TIMEOUT_S
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings
from kafka_ordered_ops.processing.dead_letters import outputs_with_dead_letters
from kafka_ordered_ops.processing.decoded_records import RecordDecoder, record_decoder
from kafka_ordered_ops.processing.engine import STOP_TIMEOUT_S, Engine
from kafka_ordered_ops.processing.group_source import COMMIT_INTERVAL_S, GroupSource
from kafka_ordered_ops.processing.plan_source import COMMIT_INTERVAL_S as KEEP_INTERVAL_S
from kafka_ordered_ops.processing.plan_source import PlanSource, ProgressKeeper
from kafka_ordered_ops.processing.source import Source, Subscription
from kafka_ordered_ops.processing.work_queue import Counts, Result, WorkQueue
from kafka_ordered_ops.processing.workers.crew import crew_of
from kafka_ordered_ops.processing.workers.workers import Workers

#: The limits of held records: records that were read and are not done.
RECORDS_MAX: Final = 20_000
BYTES_MAX: Final = 128 * 1024**2
HELD_RECORDS_LIMIT: Final = 10_000_000
HELD_BYTES_LIMIT: Final = 2**40
#: The limit of results that wait to be taken.
RESULTS_MAX: Final = 10_000
_POLL_S: Final = 0.2


class Processor:
    """Processes records with a function, many at the same time, in the order that you choose.

    When its block ends, the context manager stops all running iterators and waits for them.

    Args:
        settings: the bootstrap servers, or a mapping of client settings.
        ordering: ``key``: records of one partition with the same key run one after another; ``partition``: all records of
            one partition do; ``unordered``: none do. Other records run at the same time.
        max_concurrency: how many records, or batches, are processed at the same time. `None` means 16, or with processes
            one for each processor.
        workers: ``threads``, for functions that mostly wait; ``processes``, for functions that compute or may have to be
            killed, defined at the top level of a module. An async function runs on an event loop.
        timeout_s: how long the function may take for a record or a batch before it counts as failed. `None` means no
            limit. A coroutine is cancelled, and a process is killed. A thread cannot be ended: its call may overlap with
            the next attempt, but its result is ignored. A coroutine that blocks its event loop ends processing.
        retries: attempts after the first one. `None` means no limit.
        backoff: seconds before the next attempt, or a function of the record and its error that returns them; default: from
            0.2 s, doubled up to 60 s.
        when_exhausted: what to do with a record that failed in its last attempt: ``stop``, ``skip`` or ``dead-letter``.
        dead_letter_topic: an existing topic for such records.
        decoding: how the values and keys of `subscribe` are encoded: the function gets them decoded, structs as dicts. Records keep
            the order of their keys' bytes. One that cannot be decoded is a record that failed in its last attempt. For a plan,
            its window says this.
        held_records_max: the limit of records that are read and not done. At most as many are processed at the same time.
        held_bytes_max: the size of their keys and values, in bytes, at which reading pauses; the last read may exceed it.
            Results that wait to be taken have a separate limit of the same size.
        stall_timeout_s: how long the cluster may return none of the existing records, or refuse a dead letter.
        stop_timeout_s: how long calls may continue once processing ends.

    Raises:
        ConfigError: an invalid argument.
    """

    def __init__(
        self,
        settings: GivenSettings,
        *,
        ordering: Ordering | str = Ordering.KEY,
        max_concurrency: int | None = None,
        workers: WorkerKind | str = WorkerKind.THREADS,
        timeout_s: float | None = None,
        retries: int | None = RETRIES,
        backoff: Backoff | float | None = None,
        when_exhausted: WhenExhausted | str | None = None,
        dead_letter_topic: str | None = None,
        decoding: Decoding | None = None,
        held_records_max: int = RECORDS_MAX,
        held_bytes_max: int = BYTES_MAX,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self._settings = ClientSettings.of(settings)
        self._options = ProcessorOptions.of(
            ordering=ordering,
            max_concurrency=max_concurrency,
            workers=workers,
            timeout_s=timeout_s,
            retries=retries,
            backoff=backoff,
            when_exhausted=when_exhausted,
            dead_letter_topic=dead_letter_topic,
        )
        if dead_letter_topic is not None and not is_topic_name(dead_letter_topic):
            raise ConfigError(
                f"dead_letter_topic is {shown(dead_letter_topic)}: give the name of a topic"
            )
        self._decoding = check_decoding(decoding)
        self._records_max = check_count(
            held_records_max, what="held_records_max", least=1, greatest=HELD_RECORDS_LIMIT
        )
        self._bytes_max = check_count(
            held_bytes_max, what="held_bytes_max", least=1, greatest=HELD_BYTES_LIMIT
        )
        self._stall_timeout_s = check_timeout_s(stall_timeout_s, what="stall_timeout_s")
        self._stop_timeout_s = check_timeout_s(stop_timeout_s, what="stop_timeout_s")
        #: The running engines, by their queues.
        self._engines: dict[WorkQueue, Engine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        # An iterator whose variable outlives the block would still be running.
        running = self._running
        self.stop()
        for _, engine in running:
            if kind is KeyboardInterrupt:
                engine.hurry()
            engine.wait()

    @property
    def _running(self) -> tuple[tuple[WorkQueue, Engine], ...]:
        """The engines that run in this process, without those started before a fork."""
        return tuple(
            (queue, engine) for queue, engine in self._engines.copy().items() if engine.is_here
        )

    def run(
        self,
        plan: WindowPlan,
        function: Callable[[Any], Any],
        *,
        batch_size: int | None = None,
        keep: ProgressKeeper | None = None,
        commit_interval_s: float = KEEP_INTERVAL_S,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[Result]:
        """Process a plan's records; yield the result of each record, in the order in which they are done.

        Results wait until you take them. While too many wait, no new record is started. Closing the iterator stops
        processing: running calls may continue for `stop_timeout_s`.

        Args:
            plan: the plan to process.
            function: called with each `Record`; may be async.
            batch_size: call the function with a list of at most `batch_size` records of one partition that may run now. It
                returns None, or a list with one value for each record. If it raises, all of them failed.
            keep: the `OrderedWindows` of the plan's group, which stores the progress in the ledger at intervals and at the
                end. Records that an earlier attempt processed are not processed again. `None` means that no progress is
                stored.
            commit_interval_s: how often the progress is stored; at least every 30 s.
            progress: called with (offsets done, all offsets) several times a second, by another thread.

        Raises:
            ConfigError: an invalid argument.
            WindowSupersededError: with `keep`: another attempt has taken over the window.
            RecordFailedError: a record failed in its last attempt, or cannot be decoded.
            ProcessingStoppedError: `stop` was called before all records were done.
            HungFunctionsError: too many calls exceed `timeout_s`.
            WorkerDiedError: a process ended before its first record.
            ReadError: the plan's records cannot be read.
        """
        if progress is not None:
            check_function(progress, what="progress", takes=2)
        source = PlanSource(plan, keep, commit_interval_s=commit_interval_s, progress=progress)
        return _each(self.turns(source, function, batch_size), source.check_whole)

    def subscribe(
        self,
        topics: str | Sequence[str],
        function: Callable[[Any], Any],
        *,
        group_id: str,
        exclude: str | Sequence[str] = (),
        commit: CommitMode | str | None = None,
        produce: ProduceMode | str | None = None,
        on_produced: Callable[[Result], object] | None = None,
        batch_size: int | None = None,
        starting_offsets: Bound | str | datetime = "earliest",
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        on_invalid_metadata: DecodePolicy | str = DecodePolicy.FAIL,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        group_protocol: GroupProtocol | str = GroupProtocol.CLASSIC,
    ) -> Iterator[Result]:
        """Process a live group's share of topics; yield the result of each record, in the order in which they are done.

        The iterator ends after `stop`, or when you close it. Every record is processed at least once. It is processed again
        only if it was in flight, or done and not committed, when its partition moved or the process died. Done records above
        the committed offset are stored in the commit's metadata, in Parallel Consumer's format: the group can move between
        that library and this one.

        Args:
            topics: names of existing topics, or regular expressions that begin with ``^`` and must match a whole name. New
                topics that match are added. Topics and partitions that appear later are read from their beginning.
            function: called with each `Record`; may be async.
            exclude: names or patterns to leave out of the matches of `topics`.
            group_id: the group to join; a group of windows is refused.
            commit: ``periodic_async`` (default): reading continues while a commit is in progress; ``periodic_sync``: reading
                waits for the answer; ``transactional``: each commit is a Kafka transaction. A failed commit is logged,
                reported as the `commit_error` of `state`, and retried after the next interval; an error that a retry cannot
                fix is raised.
            produce: write the records that the function returns to Kafka: a `NewRecord`, a list of them, or None.
                ``idempotent``: a record counts as done once all in-sync replicas have its outputs (at least once).
                ``transactional``: the outputs and dead letters are part of the transaction that commits their record
                (exactly once, for consumers with ``read_committed``). A result is yielded once its outputs are stored, with
                the topic, partition and offset of each (``produced``). `None` means that the function's return value is not
                written.
            on_produced: called with each such result, by another thread; an error that it raises ends processing.
            batch_size: call the function with a list of records, see `run`.
            starting_offsets: where partitions without a committed offset start: ``earliest``, ``latest``, a time, or a typed
                bound.
            isolation: under ``read_committed``, aborted records and those of open transactions are not visible.
            on_invalid_metadata: what to do about commit metadata that is not an offset map: ``fail``, or ``ignore``, after
                which records above the committed offset may be processed again.
            commit_interval_s: the minimum time between two commits.
            session_timeout_s: how long the group waits for a killed member before it reassigns the member's partitions.
            group_protocol: ``classic``, or ``consumer`` (KIP-848), for which the session timeout is a setting of the group.

        Raises:
            ConfigError: an invalid argument.
            WindowGroupError: the group's commits belong to windows.
            UnknownTopicError: a topic does not exist, or was deleted.
            TopicRecreatedError: a topic was deleted and created again meanwhile.
            OffsetMapDecodeError: commit metadata cannot be used.
            RecordsLostError: records to be processed are no longer in the log.
            RecordTooLargeError, UnknownTopicError: with `produce`: a returned record is refused. Its record is not done.
            CallbackError: `on_produced` raised.
            BrokerError: the cluster refuses the request, or cannot be reached at the start.
        """
        if not as_topics(topics, what="topics"):
            raise ConfigError(
                "topics is empty: give a name or a pattern, or a list of at least one of them"
            )
        bound = as_bound(starting_offsets)
        if bound is None:
            raise ConfigError(
                "starting_offsets is None: give 'earliest', 'latest' or another bound"
            )
        level = check_choice(isolation, Isolation, what="isolation")
        commit_mode, produce_mode = modes_of(commit, produce)
        if produce_mode is ProduceMode.TRANSACTIONAL and level is not Isolation.READ_COMMITTED:
            raise ConfigError(
                "produce='transactional' with isolation='read_uncommitted': records of aborted transactions would be processed, "
                "so the result would not be exactly once. Omit isolation"
            )
        subscription = Subscription(
            group_id=check_group(group_id),
            topics=as_topics(topics, what="topics"),
            exclude=as_topics(exclude, what="exclude"),
            starting_offsets=bound,
            isolation=level,
            on_invalid_metadata=check_choice(
                on_invalid_metadata, DecodePolicy, what="on_invalid_metadata"
            ),
            commit_interval_s=check_timeout_s(commit_interval_s, what="commit_interval_s"),
            session_timeout_s=check_timeout_s(session_timeout_s, what="session_timeout_s"),
            protocol=check_choice(group_protocol, GroupProtocol, what="group_protocol"),
            commit=commit_mode,
            decoding=self._decoding,
        )
        source = GroupSource(self._settings, subscription)
        outputs = None
        if commit_mode is CommitMode.TRANSACTIONAL:
            outputs = Outputs(
                outputs_with_dead_letters(
                    self._options.dead_letter_topic, produces=produce_mode is not None
                )
            )
        if on_produced is not None:
            check_function(on_produced, what="on_produced", takes=1)
            if produce_mode is None:
                raise ConfigError(
                    "on_produced without produce=: nothing is written. Set produce, or omit on_produced"
                )
        return _each(self._start(source, function, batch_size, produce_mode, outputs, on_produced))

    def stop(self, *, drain: bool = False, timeout_s: float | None = None) -> None:
        """Start no more records. Running calls finish, their progress is stored, and then the iterators end.

        You can call this from any thread, or from a signal handler.

        Args:
            drain: stop reading, and end once all records that were read are done. A pause ends.
            timeout_s: how long calls may continue. `None` means `stop_timeout_s`. With `drain`, how long all records that
                were read may take; `None` means no limit.
        """
        if timeout_s:
            check_timeout_s(timeout_s, what="timeout_s")
        for queue, engine in self._running:
            if drain:
                engine.drain(timeout_s)
                queue.resume()
                continue
            if timeout_s is not None:
                engine.end_within(timeout_s)
            queue.stop()

    def pause(self) -> None:
        """Start no more records until `resume`; a group keeps its partitions."""
        for queue, _ in self._running:
            queue.pause()

    def resume(self) -> None:
        """Start records again."""
        for queue, _ in self._running:
            queue.resume()

    def state(self) -> tuple[ProcessorState, ...]:
        """Return the state of each running iterator, by key. This visits every held record."""
        return tuple(engine.state for _, engine in self._running)

    @property
    def counts(self) -> tuple[Counts, ...]:
        """The counts of each running iterator."""
        return tuple(queue.counts for queue, _ in self._running)

    @property
    def partitions(self) -> tuple[PartitionCounts, ...]:
        """The progress of each partition of the running iterators: done offsets, incomplete ranges, and lag."""
        return tuple(partition for _, engine in self._running for partition in engine.partitions)

    def turns(
        self,
        source: Source,
        function: Callable[[Any], Any],
        batch_size: int | None = None,
    ) -> Generator[Sequence[Result], None, None]:
        """Process a source for a host: yield lists of results, empty ones from time to time, so that the host gets control.

        Arguments are checked now; processing starts with the first result that you request.
        """
        return self._start(source, function, batch_size)

    def _start(
        self,
        source: Source,
        function: Callable[[Any], Any],
        batch_size: int | None,
        produce: ProduceMode | None = None,
        outputs: Outputs | None = None,
        on_produced: Callable[[Result], object] | None = None,
    ) -> Generator[Sequence[Result], None, None]:
        if self._decoding is not None and not source.is_endless:
            raise ConfigError(
                "decoding is for subscribe, and a plan keeps the schemas of its window: give Window(..., values=...) instead"
            )
        decode = record_decoder(source.window, self._settings)
        crew = self._crew(function, batch_size, produces=produce is not None, decode=decode)
        queue = WorkQueue(
            self._options.ordering,
            self._options.policy,
            results_max=RESULTS_MAX,
            results_bytes_max=self._bytes_max,
            batch_size=batch_size or 1,
            outputs=outputs,
            writes=_returned_records if produce is ProduceMode.IDEMPOTENT else None,
            on_produced=on_produced,
        )
        return self._run(source, crew, queue)

    def check(self, function: Callable[[Any], Any], batch_size: int | None = None) -> None:
        """Raise `ConfigError` for a function that cannot run, or for an invalid batch size."""
        self._crew(function, batch_size)

    def _crew(
        self,
        function: Callable[[Any], Any],
        batch_size: int | None,
        *,
        produces: bool = False,
        decode: RecordDecoder | None = None,
    ) -> Callable[[WorkQueue], Workers]:
        options = self._options
        return crew_of(
            function,
            options.workers,
            concurrency=options.max_concurrency,
            batch_size=options.check_batch_size(batch_size),
            timeout_s=options.timeout_s,
            produces=produces,
            decode=decode,
        )

    def _run(
        self,
        source: Source,
        make_workers: Callable[[WorkQueue], Workers],
        queue: WorkQueue,
    ) -> Generator[Sequence[Result], None, None]:
        engine = Engine(
            self._settings,
            source,
            queue,
            make_workers(queue),
            records_max=self._records_max,
            bytes_max=self._bytes_max,
            dead_letter_topic=self._options.dead_letter_topic,
            produces=queue.has_writes,
            stall_timeout_s=self._stall_timeout_s,
            stop_timeout_s=self._stop_timeout_s,
        )
        self._engines[queue] = engine
        engine.start()
        try:
            while (results := queue.take_results(_POLL_S)) is not None:
                yield results
                engine.check_here()
                if engine.is_given_up:
                    break
        except KeyboardInterrupt:
            engine.hurry()
            raise
        finally:
            del self._engines[queue]
            if engine.is_here:
                queue.stop()
                engine.wait()
        if queue.failure is not None:
            raise queue.failure


def _returned_records(result: Result) -> tuple[NewRecord, ...]:
    return as_records(result.value)


def _each(
    turns: Generator[Sequence[Result], None, None], at_end: Callable[[], None] = lambda: None
) -> Iterator[Result]:
    # Closing the iterator stops processing now, not at the next garbage collection.
    with closing(turns):
        for results in turns:
            yield from results
    at_end()
