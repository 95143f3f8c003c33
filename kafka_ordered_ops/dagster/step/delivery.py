"""One step: liveness, plan, job, commit, and the report to Dagster after the commit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from dagster import (
    AssetExecutionContext,
    AssetKey,
    DataVersion,
    Failure,
    OpExecutionContext,
    PartitionsDefinition,
)

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.core.types import (
    OnCovered,
    OnForeignCommit,
    PlanContent,
    TopicPartition,
)
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.dagster.metadata.columns import column_metadata
from kafka_ordered_ops.dagster.metadata.results import (
    common_metadata,
    data_version_of,
    pictures_of,
    window_metadata,
)
from kafka_ordered_ops.dagster.settings import WindowSettings
from kafka_ordered_ops.dagster.step.completeness import covered_text
from kafka_ordered_ops.dagster.step.job import AssetWindows, Job
from kafka_ordered_ops.dagster.step.liveness import look_at, not_live_text
from kafka_ordered_ops.dagster.step.open_partitions import (
    Pieces,
    piece_of,
    pieces_metadata,
    with_pieces,
)
from kafka_ordered_ops.dagster.step.step_functions import Submitted, copied
from kafka_ordered_ops.dagster.step.times import Asked, asked_of, began, first_of
from kafka_ordered_ops.dagster.storage import resolved_options
from kafka_ordered_ops.hosting.held_text import held_texts
from kafka_ordered_ops.hosting.job import Found, WindowJob
from kafka_ordered_ops.hosting.verdict import as_replay, is_finished, is_replayed, nothing_left
from kafka_ordered_ops.spark.job_checks import check_partitioned, check_reading
from kafka_ordered_ops.spec.destination import Folder
from kafka_ordered_ops.spec.jobs import Application, Copy
from kafka_ordered_ops.spec.table import Table

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.core.liveness.liveness import Liveness
    from kafka_ordered_ops.dagster.resource import KafkaResource
    from kafka_ordered_ops.output.places import OutputPlace
    from kafka_ordered_ops.windows import OrderedWindows, Staged


#: Windows of a step that the log names as short of records.
_HELD_SAID_MAX: Final = 10


@dataclass(frozen=True)
class Delivered:
    """The windows that a step has delivered, and their metadata."""

    #: By cutoff.
    records: Sequence[WindowRecord]
    #: Metadata of the whole step.
    common: Mapping[str, Any]
    #: Metadata of each partition; None is the key of an asset without partitions.
    by_partition: Mapping[str | None, Mapping[str, Any]]
    data_version: DataVersion
    #: By partition; only of those that were checked.
    live: Mapping[str | None, Liveness]
    #: As planned or resumed, by partition and cutoff.
    plans: Mapping[str | None, Sequence[WindowPlan]]


@dataclass(frozen=True)
class Step:
    """A step of one asset, or of an op with an asset's key."""

    context: AssetExecutionContext | OpExecutionContext
    key: AssetKey
    settings: WindowSettings
    partitions_def: PartitionsDefinition[str] | None
    kafka: KafkaResource

    def deliver(self, job: Job, function: object = None) -> Delivered:
        """Deliver the step's windows, without a report to Dagster.

        Args:
            job: delivers the given windows.
            function: the job's function, which may have a check to run before the plan.

        Raises:
            Failure: no retry can help, or partitions are not live and the asset requires it.
            KafkaOrderedOpsError: a retry may help.
        """
        started = time.monotonic()
        job_told: dict[str, Any] = {}
        plans: list[WindowPlan] = []
        with errors_for_dagster(), self._open() as windows, ExitStack() as stack:
            work = self._job(function)
            # A user's function reads with its own session.
            check_reading(
                self.settings.engine, windows.settings, conf=None, group_id=windows.group_id
            )
            work.check(windows.settings, windows.group_id)
            # Dagster ends the process.
            session = work.session(lambda: False, self.context.log.info)
            found = stack.enter_context(session)
            pieces = self._asked(windows)
            asked = pieces.asked
            windows_asked = [one.window for one in asked]
            check_partitioned(self.settings.partition_by, self.settings.output, windows_asked)
            live = look_at(windows, self.settings, asked)
            if (text := not_live_text(asked, live)) is not None:
                self.context.log.warning("%s", text)
            records, ran = self._delivered(
                windows, asked, job, job_told, plans, found, work.place()
            )
            lag = self._lag(windows, records)
        seconds = time.monotonic() - started
        windows_of = self._by_partition(pieces, records)
        pictures = pictures_of([own[-1] for own in windows_of.values()], self.context.log.warning)
        by_partition = {}
        for key, own in windows_of.items():
            newest = own[-1]
            is_partition, is_read = key is not None, newest.plan.window_id in ran
            drawn = pictures.get(newest.plan.window_id)
            by_partition[key] = window_metadata(
                newest, ran=is_read, is_partition=is_partition, picture=drawn
            )
            if is_partition and self.settings.open_lag is not None:
                by_partition[key] |= pieces_metadata(own)
        columns = column_metadata(
            records,
            self.context.log.warning,
            output=self.settings.output,
            storage_options=self._storage_options,
        )
        every = [*records, *itertools.chain.from_iterable(pieces.done.values())]
        return Delivered(
            records=records,
            common=columns | common_metadata(records, seconds, lag) | job_told,
            by_partition=by_partition,
            data_version=data_version_of(every),
            live=live,
            plans=_by_key(asked, plans),
        )

    def _job(self, function: object) -> WindowJob:
        """The step's job: an application, a copy, or the user's code, which has its own session, perhaps elsewhere."""
        settings = self.settings
        job: Copy | Application = Copy(None if settings.table is None else settings.engine)
        if isinstance(function, Submitted):
            job = replace(function.job, engine=settings.engine, ordered=settings.ordered)
        return WindowJob(
            job=job,
            to=self._to,
            starts_spark=settings.table is not None,
            spark_conf=settings.table_conf or {},
            is_block=function is not copied and not isinstance(function, Submitted),
        )

    @cached_property
    def _storage_options(self) -> Mapping[str, Any] | None:
        """Of the output, with the values of variables; raises `ConfigError`."""
        return resolved_options(self.settings.storage_options)

    @property
    def _to(self) -> Folder | Table | None:
        """Where the windows go."""
        return self.settings.destination(self._storage_options)

    def _asked(self, windows: OrderedWindows) -> Pieces:
        """Return the windows that the step must deliver."""
        asked = asked_of(self.context, self.key, self.settings, self.partitions_def)
        if self.settings.open_lag is None or self.partitions_def is None:
            return Pieces(asked)
        instance = self.context.instance
        since = began(instance, first_of(instance, self.context.run))
        return with_pieces(
            windows, [piece_of(one, self.settings, since) for one in asked], self.settings
        )

    def _by_partition(
        self, pieces: Pieces, records: Sequence[WindowRecord]
    ) -> dict[str | None, list[WindowRecord]]:
        """Return the delivered windows of each partition, by cutoff."""
        found: dict[str | None, list[WindowRecord]] = {}
        for one, record in zip(pieces.asked, records, strict=True):
            before = pieces.done.get(one.partition_key or "", ())
            found.setdefault(one.partition_key, list(before)).append(record)
        for own in found.values():
            own.sort(key=lambda record: record.plan.cutoff_ms)
        return found

    def _open(self) -> OrderedWindows:
        return self.kafka.open_windows(
            self.settings.group_id,
            run_id=self.context.run.run_id,
            owner=f"dagster:{self.key.to_user_string()}",
            on_foreign_commit=OnForeignCommit(self.settings.on_foreign_commit),
        )

    def _delivered(
        self,
        windows: OrderedWindows,
        asked: Sequence[Asked],
        job: Job,
        metadata: dict[str, Any],
        plans: list[WindowPlan],
        found: Found,
        place: OutputPlace | None,
    ) -> tuple[list[WindowRecord], set[str]]:
        """Return the windows' records in the ledger, and the windows that the job ran for.

        `metadata` receives the job's metadata, `plans` the plans.
        """
        names = [one.window_id for one in asked]
        plans += windows.plan_many(
            [one.window for one in asked], names, self._policy(), place=place
        )
        self._warn(plans)
        for note in dict.fromkeys(note for plan in plans for note in plan.notes):
            self.context.log.warning(note)
        fresh, again = self._to_do(windows, plans)
        keys = {one.window_id: one.partition_key for one in asked}
        outputs: dict[str, Staged] = {}

        def write(missing: Sequence[WindowPlan]) -> list[Staged]:
            # All in one pass, including windows that are read again.
            every = sorted([*missing, *again], key=lambda plan: plan.cutoff_ms)
            given = AssetWindows(
                every,
                keys,
                windows.settings,
                self.settings,
                to=self._to,
                service=windows,
                ledger_topic=self.kafka.ledger_topic,
                say=self.context.log.info,
            )
            written = given.outputs(job(given))
            metadata.update(given.metadata)
            outputs.update(zip((plan.window_id for plan in every), written, strict=True))
            return [outputs[plan.window_id] for plan in missing]

        if fresh:
            windows.deliver_many(fresh, write, found)
        if again:
            if not outputs:
                write(())
            windows.publish_many(again, [outputs[plan.window_id] for plan in again])
        return windows.show_many(names), set(outputs)

    def _warn(self, plans: Sequence[WindowPlan]) -> None:
        """Log which windows get fewer records than their times hold, and why."""
        if (covered := covered_text(plans)) is not None:
            self.context.log.warning(covered)
        for text in held_texts(plans)[:_HELD_SAID_MAX]:
            self.context.log.warning(text)

    def _lag(self, windows: OrderedWindows, records: Sequence[WindowRecord]) -> int | None:
        """Return the number of offsets of the topics that are not delivered; None without an answer."""
        from kafka_ordered_ops.windows.queries.topics import topic_ends

        topics = sorted({topic for record in records for topic in record.plan.topics})
        try:
            state = windows.state()
            found = topic_ends(windows.settings, topics, isolation=records[0].plan.isolation)
        except KafkaOrderedOpsError as error:
            # Everything is committed: a displayed number is no reason to fail.
            self.context.log.warning("The lag is unknown: %s: %s", type(error).__name__, error)
            return None
        known = dict(state or ())
        return sum(
            known[tp].lag(one.log_start, one.end_offset)
            for name, topic in found.items()
            for one in topic.partitions
            if (tp := TopicPartition(name, one.partition)) in known
        )

    def _policy(self) -> Policy:
        # Records taken by a partition's pieces belong to the same partition.
        fails = self.settings.on_covered is OnCovered.FAIL and self.settings.open_lag is None
        return self.settings.policy(OnCovered.FAIL if fails else OnCovered.SKIP)

    def _to_do(
        self, windows: OrderedWindows, plans: Sequence[WindowPlan]
    ) -> tuple[list[WindowPlan], list[WindowPlan]]:
        """Return the windows to deliver, and the delivered windows to read again."""
        results = {
            record.plan.window_id: record.result
            for record in windows.show_many([plan.window_id for plan in plans])
        }
        fresh, again = [], []
        for plan in plans:
            result = results[plan.window_id]
            if not is_finished(plan, result):
                fresh.append(plan)
            elif plan.content is not PlanContent.COVERED:
                if is_replayed(plan, OnCovered(self.settings.on_covered)):
                    windows.check_readable(plan)
                    # A step is retried in the same run.
                    run, number = self.context.run.run_id, self.context.retry_number
                    again.append(as_replay(plan, result, run_id=run, try_number=number))
                self.context.log.info(nothing_left(plan))
        return fresh, again


def _by_key(
    asked: Sequence[Asked], plans: Sequence[WindowPlan]
) -> dict[str | None, list[WindowPlan]]:
    """Return the plans of each partition."""
    found: dict[str | None, list[WindowPlan]] = {}
    for one, plan in zip(asked, plans, strict=True):
        found.setdefault(one.partition_key, []).append(plan)
    return found


@contextmanager
def errors_for_dagster() -> Iterator[None]:
    """Fail a step for good if a retry cannot help; leave all other errors to the asset's retry policy.

    Raises:
        Failure: for an error of this package that is not retriable, with its name and message.
    """
    try:
        yield
    except KafkaOrderedOpsError as error:
        if error.retriable:
            raise
        failed = Failure(f"{type(error).__name__}: {error}", allow_retries=False)
        # With its frames, and not as its cause: a log would have the message twice.
        raise failed.with_traceback(error.__traceback__) from None
