"""Records one by one through a user's function, many at a time: `Processor`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, Final, Self

from kafka_ordered_ops.core.arguments import (
    as_names,
    check_choice,
    check_count,
    check_flag,
    check_function,
    check_timeout_s,
    shown,
)
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.membership import check_member_topics
from kafka_ordered_ops.core.names import check_group, is_topic_name
from kafka_ordered_ops.core.offset_map.reading import DecodePolicy
from kafka_ordered_ops.core.processing.failures import RETRIES, Backoff, WhenExhausted
from kafka_ordered_ops.core.processing.options import ProcessorOptions, WorkerKind
from kafka_ordered_ops.core.processing.outputs import Outputs
from kafka_ordered_ops.core.processing.partition_counts import PartitionCounts
from kafka_ordered_ops.core.processing.scheduling import Ordering
from kafka_ordered_ops.core.types import GroupProtocol, Isolation
from kafka_ordered_ops.core.window.bounds import Bound, as_bound
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.membership import SESSION_TIMEOUT_S
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings
from kafka_ordered_ops.processing.dead_letters import outputs_with_dead_letters
from kafka_ordered_ops.processing.engine import STOP_TIMEOUT_S, Engine
from kafka_ordered_ops.processing.plan_source import COMMIT_INTERVAL_S as KEEP_INTERVAL_S
from kafka_ordered_ops.processing.plan_source import PlanSource, ProgressKeeper
from kafka_ordered_ops.processing.sources import (
    COMMIT_INTERVAL_S,
    GroupSource,
    Source,
    Subscription,
)
from kafka_ordered_ops.processing.work_queue import Counts, Result, WorkQueue
from kafka_ordered_ops.processing.workers.crew import crew_of
from kafka_ordered_ops.processing.workers.workers import Workers

#: Records that are held: read, and not done.
RECORDS_MAX: Final = 20_000
BYTES_MAX: Final = 128 * 1024**2
HELD_RECORDS_LIMIT: Final = 10_000_000
HELD_BYTES_LIMIT: Final = 2**40
#: Results that wait to be taken.
RESULTS_MAX: Final = 10_000
_POLL_S: Final = 0.2


class Processor:
    """Runs records through a function, many at a time, in order where an order is asked for.

    As a context manager it stops what runs when the block ends, and waits for it.

    Args:
        settings: the bootstrap servers, or a mapping of client settings.
        ordering: ``key``: records of one partition with the same key, one after another; ``partition``: all records of one
            partition; ``unordered``. Other records run at the same time.
        max_concurrency: how many records, or batches, are processed at the same time. None: 16; with processes, one for
            each processor.
        workers: ``threads``, for functions that mostly wait; ``processes``, for those that compute or may have to be
            killed: functions at the top level of a module. An async function runs on an event loop.
        timeout_s: how long the function may take for a record or a batch, which otherwise counts as failed; None: without
            a limit. A coroutine is cancelled, and a process killed. A thread cannot be ended: what its function still
            does may overlap with the next attempt, but its result counts for nothing. A coroutine that blocks its event
            loop ends processing.
        retries: attempts after the first one; None: without a limit.
        backoff: seconds before the next attempt, or a function of the record and its error that returns them; default: from
            0.2 s, doubled up to 60 s.
        when_exhausted: what to do with a record that failed in its last attempt: ``stop``, ``skip`` or ``dead-letter``.
        dead_letter_topic: an existing topic for such records.
        held_records_max: records that may be read and not done; also bounds how many are processed at the same time.
        held_bytes_max: bytes of their keys and values, with which reading pauses; what one read brings may go beyond. Results
            that wait to be taken have a limit of their own of the same size.
        stall_timeout_s: how long the cluster may bring nothing of what is there, or refuse a dead letter.
        stop_timeout_s: how long calls may go on once processing ends.

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
        self._records_max = check_count(
            held_records_max, what="held_records_max", least=1, greatest=HELD_RECORDS_LIMIT
        )
        self._bytes_max = check_count(
            held_bytes_max, what="held_bytes_max", least=1, greatest=HELD_BYTES_LIMIT
        )
        self._stall_timeout_s = check_timeout_s(stall_timeout_s, what="stall_timeout_s")
        self._stop_timeout_s = check_timeout_s(stop_timeout_s, what="stop_timeout_s")
        #: Of what runs now.
        self._engines: dict[WorkQueue, Engine] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        # An iterator whose variable outlives the block would still be at work.
        running = self._running
        self.stop()
        for _, engine in running:
            if kind is KeyboardInterrupt:
                engine.hurry()
            engine.wait()

    @property
    def _running(self) -> tuple[tuple[WorkQueue, Engine], ...]:
        """What runs in this process: nothing of what ran before a fork."""
        return tuple(one for one in self._engines.copy().items() if one[1].is_here)

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
        """Process a plan's records; yield what came of each, in the order in which they are done.

        Results wait until they are taken; when many do, no more records are begun. Whoever leaves the iterator stops
        processing: calls that have begun may go on for `stop_timeout_s`.

        Args:
            plan: what to process.
            function: gets each `Record`; may be async.
            batch_size: the function gets a list of up to so many records of one partition that may run now, and returns
                None or a list with one value for each. If it raises, each of them failed.
            keep: the `OrderedWindows` of the plan's group: what is done is kept in the ledger now and then, and at the end.
                What an earlier attempt has kept is not processed again. None: nothing is kept.
            commit_interval_s: how often what is done is kept; at least every 30 s.
            progress: called with (offsets done, offsets in all) several times a second, by another thread.

        Raises:
            ConfigError: an invalid argument.
            WindowSupersededError: with `keep`: another attempt has taken over.
            RecordFailedError: a record failed in its last attempt.
            ProcessingStoppedError: `stop` was called, and not all records are done.
            HungFunctionsError: too many calls take longer than `timeout_s`.
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
        produce: bool = False,
        batch_size: int | None = None,
        starting_offsets: Bound | str | datetime = "earliest",
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        on_invalid_metadata: DecodePolicy | str = DecodePolicy.FAIL,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        group_protocol: GroupProtocol | str = GroupProtocol.CLASSIC,
    ) -> Iterator[Result]:
        """Process a live group's share of topics; yield what came of each record, in the order in which they are done.

        It ends by `stop`, or when the iterator is closed. Every record is processed at least once, and again only if it was in flight,
        or done and not committed, when its partition moved or the process died. Done records above the committed offset
        are kept in the commit's metadata, in Parallel Consumer's format: that library may have had the group before, and
        may take it over again.

        Args:
            topics: names of existing topics. Partitions that are added later are read whole.
            function: gets each `Record`; may be async.
            group_id: the group to join; a group of windows is refused.
            produce: the function returns a `NewRecord`, a list of them, or None. They are written to Kafka in the
                transaction that commits their record: exactly once, for consumers that read committed. Dead letters too.
                A result is yielded when its function is done; its records are not written yet.
            batch_size: the function gets a list of up to so many records, as in `run`.
            starting_offsets: where partitions without a committed offset begin: ``earliest``, ``latest``, a time, or a typed
                bound.
            isolation: under ``read_committed``, aborted records and those of open transactions are not visible.
            on_invalid_metadata: what to do about commit metadata that is no offset map: ``fail``, or ``ignore``, so that
                records above the committed offset may be processed again.
            commit_interval_s: the least time between two commits.
            session_timeout_s: after a member was killed, how long its group waits before others get its partitions.
            group_protocol: ``classic``, or ``consumer`` (KIP-848), for which the session time-out is a setting of the group.

        Raises:
            ConfigError: an invalid argument.
            WindowGroupError: the group's commits are those of windows.
            UnknownTopicError: a topic does not exist, or was deleted.
            TopicRecreatedError: a topic was deleted and created again meanwhile.
            OffsetMapDecodeError: commit metadata cannot be used.
            RecordsLostError: records to be processed are no longer in the log.
            RecordTooLargeError: with `produce`: a returned record is refused. It is not done.
            BrokerError: the cluster refuses, or cannot be reached at the start.
        """
        bound = as_bound(starting_offsets)
        if bound is None:
            raise ConfigError(
                "starting_offsets is None: give 'earliest', 'latest' or another bound"
            )
        level = check_choice(isolation, Isolation, what="isolation")
        if check_flag(produce, what="produce") and level is not Isolation.READ_COMMITTED:
            raise ConfigError(
                "produce=True with isolation='read_uncommitted': records of aborted transactions would be processed, and "
                "nothing would be exactly once. Leave out isolation"
            )
        asked = Subscription(
            group_id=check_group(group_id),
            topics=check_member_topics(as_names(topics, what="topics")),
            starting_offsets=bound,
            isolation=level,
            on_invalid_metadata=check_choice(
                on_invalid_metadata, DecodePolicy, what="on_invalid_metadata"
            ),
            commit_interval_s=check_timeout_s(commit_interval_s, what="commit_interval_s"),
            session_timeout_s=check_timeout_s(session_timeout_s, what="session_timeout_s"),
            protocol=check_choice(group_protocol, GroupProtocol, what="group_protocol"),
            produce=produce,
        )
        return self._results(GroupSource(self._settings, asked), function, batch_size, produce)

    def stop(self, *, drain: bool = False, timeout_s: float | None = None) -> None:
        """Begin no more records. What is being processed ends and is kept, and then the iterators end.

        Any thread may ask, or a signal's handler.

        Args:
            drain: read no more, and end when all that was read is done; a pause ends.
            timeout_s: how long calls may go on, at most; None: `stop_timeout_s`. With `drain`, how long all that was read may
                take; None: without a limit.
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
        """Begin no more records until `resume`; a group keeps its partitions."""
        for queue, _ in self._running:
            queue.pause()

    def resume(self) -> None:
        """Begin records again."""
        for queue, _ in self._running:
            queue.resume()

    @property
    def counts(self) -> tuple[Counts, ...]:
        """How far each of the running iterators is."""
        return tuple(queue.counts for queue, _ in self._running)

    @property
    def partitions(self) -> tuple[PartitionCounts, ...]:
        """How far each partition of the running iterators is: what is done, what is incomplete, and the lag."""
        return tuple(one for _, engine in self._running for one in engine.partitions)

    def turns(
        self,
        source: Source,
        function: Callable[[Any], Any],
        batch_size: int | None = None,
        produce: bool = False,
    ) -> Generator[Sequence[Result], None, None]:
        """Process a source for a host: yield results several at once, and none now and then, so that it may look up.

        What can be checked is checked now; processing begins when the first result is asked for.
        """
        crew = self._crew(function, batch_size, produce)
        return self._run(source, crew, batch_size or 1, produce)

    def check(self, function: Callable[[Any], Any], batch_size: int | None = None) -> None:
        """Raise `ConfigError` for a function that cannot run, or for another number of records than it may get."""
        self._crew(function, batch_size)

    def _crew(
        self, function: Callable[[Any], Any], batch_size: int | None, produce: bool = False
    ) -> Callable[[WorkQueue], Workers]:
        options = self._options
        return crew_of(
            function,
            options.workers,
            concurrency=options.max_concurrency,
            batch_size=options.check_batch_size(batch_size),
            timeout_s=options.timeout_s,
            produces=produce,
        )

    def _results(
        self,
        source: Source,
        function: Callable[[Any], Any],
        batch_size: int | None = None,
        produce: bool = False,
    ) -> Iterator[Result]:
        return _each(self.turns(source, function, batch_size, produce))

    def _run(
        self,
        source: Source,
        make_workers: Callable[[WorkQueue], Workers],
        batch_size: int,
        produce: bool,
    ) -> Generator[Sequence[Result], None, None]:
        outputs_of = outputs_with_dead_letters(self._options.dead_letter_topic)
        queue = WorkQueue(
            self._options.ordering,
            self._options.policy,
            results_max=RESULTS_MAX,
            results_bytes_max=self._bytes_max,
            batch_size=batch_size,
            outputs=Outputs(outputs_of) if produce else None,
        )
        engine = Engine(
            self._settings,
            source,
            queue,
            make_workers(queue),
            records_max=self._records_max,
            bytes_max=self._bytes_max,
            dead_letter_topic=self._options.dead_letter_topic,
            stall_timeout_s=self._stall_timeout_s,
            stop_timeout_s=self._stop_timeout_s,
        )
        self._engines[queue] = engine
        engine.start()
        try:
            while (found := queue.take_results(_POLL_S)) is not None:
                yield found
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


def _each(
    turns: Generator[Sequence[Result], None, None], at_end: Callable[[], None] = lambda: None
) -> Iterator[Result]:
    # Whoever leaves the iterator stops processing now, and not when somebody collects garbage.
    with closing(turns):
        for results in turns:
            yield from results
    at_end()
