"""One step: liveness, plan, job, commit, and the report to Dagster after the commit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from dagster import (
    AssetExecutionContext,
    AssetKey,
    DataVersion,
    Failure,
    OpExecutionContext,
    PartitionsDefinition,
)

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, name_places
from kafka_ordered_ops.core.types import (
    OnCovered,
    PlanContent,
    TopicPartition,
)
from kafka_ordered_ops.core.window.plan import WindowPlan, decoded_alike
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
from kafka_ordered_ops.dagster.step.liveness import check_liveness, not_live_text
from kafka_ordered_ops.dagster.step.open_partitions import (
    Pieces,
    piece_of,
    pieces_metadata,
    with_pieces,
)
from kafka_ordered_ops.dagster.step.step_functions import Called, WithoutFunction
from kafka_ordered_ops.dagster.step.times import (
    StepWindow,
    began,
    first_of,
    runs_of,
    windows_of_step,
)
from kafka_ordered_ops.dagster.storage import resolved_options
from kafka_ordered_ops.delivery.job import Found, WindowJob
from kafka_ordered_ops.delivery.summary import held_texts, job_step
from kafka_ordered_ops.delivery.verdict import as_replay, is_finished, is_replayed, nothing_left
from kafka_ordered_ops.spark.job_checks import check_reading
from kafka_ordered_ops.spec.destination import Folder
from kafka_ordered_ops.spec.jobs import Copy
from kafka_ordered_ops.spec.table import Table
from kafka_ordered_ops.spec.writable import check_partitioned

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.core.liveness.liveness import Liveness
    from kafka_ordered_ops.dagster.resource import KafkaResource
    from kafka_ordered_ops.windows import OrderedWindows, Staged


#: Warnings of a step about windows that miss records held by open windows.
_HELD_LOGGED_MAX: Final = 10


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
    #: By partition; only for windows that were checked.
    live: Mapping[str | None, Liveness]
    #: As planned or resumed, by partition and cutoff.
    plans: Mapping[str | None, Sequence[WindowPlan]]
    #: Notes about windows of the group that no attempt works on.
    left: Sequence[str]


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
        job_metadata: dict[str, Any] = {}
        plans: list[WindowPlan] = []
        with (
            errors_for_dagster(self.settings.group_id),
            self._open() as windows,
            ExitStack() as stack,
        ):
            work = self._job(function)
            # A user's function reads with its own session.
            check_reading(work.engine, windows.settings, conf=None, group_id=windows.group_id)
            work.check(windows.settings, windows.group_id)
            pieces = self._pieces(windows)
            step_windows = pieces.step_windows
            requested_windows = [step_window.window for step_window in step_windows]
            work.check_dead_letters(requested_windows)
            # Dagster ends the process itself, so the session needs no stop signal.
            say = self.context.log.info
            session = work.session(windows.settings, requested_windows, lambda: False, say)
            find_earlier = stack.enter_context(session)
            if (folder := work.folder) is not None:
                check_partitioned(folder.partition_by, folder.root, requested_windows)
            live = check_liveness(windows, self.settings, step_windows)
            if (text := not_live_text(step_windows, live)) is not None:
                self.context.log.warning("%s", text)
            records, ran = self._delivered(
                windows, step_windows, job, job_metadata, plans, find_earlier, work
            )
            lag = self._lag(windows, records)
            left = self._left(windows, plans)
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
            output=None if work.folder is None else work.folder.root,
            storage_options=None if work.folder is None else work.folder.storage_options,
        )
        every = [*records, *itertools.chain.from_iterable(pieces.done.values())]
        return Delivered(
            records=records,
            common=columns | common_metadata(records, seconds, lag) | job_metadata,
            by_partition=by_partition,
            data_version=data_version_of(every),
            live=live,
            plans=_by_key(step_windows, plans),
            left=left,
        )

    def _job(self, function: object) -> WindowJob:
        """Return the step's job: an application, a copy, or the user's code, which may have its own session."""
        to = self._to()
        if isinstance(function, WithoutFunction):
            return WindowJob(job=function.job, to=to, may_start_spark=True)
        is_each = isinstance(function, Called) and function.is_each
        return WindowJob(
            job=Copy(self.settings.engine),
            to=to,
            may_start_spark=is_each or self.settings.table is not None,
            is_block=True,
        )

    def _to(self) -> Folder | Table | None:
        """Return the destination of the windows, with the values of variables; raise `ConfigError`."""
        folder = self.settings.folder
        if folder is None:
            return self.settings.table
        return replace(folder, storage_options=resolved_options(folder.storage_options))

    def _pieces(self, windows: OrderedWindows) -> Pieces:
        """Return the windows that the step must deliver, with the pieces of earlier runs."""
        step_windows = windows_of_step(self.context, self.key, self.settings, self.partitions_def)
        if self.settings.open_lag is None or self.partitions_def is None:
            return Pieces(step_windows)
        instance = self.context.instance
        since = began(instance, first_of(instance, self.context.run))
        return with_pieces(
            windows,
            [piece_of(step_window, self.settings, since) for step_window in step_windows],
            self.settings,
        )

    def _by_partition(
        self, pieces: Pieces, records: Sequence[WindowRecord]
    ) -> dict[str | None, list[WindowRecord]]:
        """Return the delivered windows of each partition, by cutoff."""
        by_partition: dict[str | None, list[WindowRecord]] = {}
        for step_window, record in zip(pieces.step_windows, records, strict=True):
            before = pieces.done.get(step_window.partition_key or "", ())
            by_partition.setdefault(step_window.partition_key, list(before)).append(record)
        for own in by_partition.values():
            own.sort(key=lambda record: record.plan.cutoff_ms)
        return by_partition

    def _open(self) -> OrderedWindows:
        return self.kafka.open_windows(
            self.settings.group_id,
            run_id=self.context.run.run_id,
            owner=f"dagster:{self.key.to_user_string()}",
        )

    def _delivered(
        self,
        windows: OrderedWindows,
        step_windows: Sequence[StepWindow],
        job: Job,
        metadata: dict[str, Any],
        plans: list[WindowPlan],
        find_earlier: Found,
        work: WindowJob,
    ) -> tuple[list[WindowRecord], set[str]]:
        """Return the windows' records in the ledger, and the windows that the job ran for.

        `metadata` receives the job's metadata, `plans` the plans.
        """
        names = [step_window.window_id for step_window in step_windows]
        plans += windows.plan_many(
            [step_window.window for step_window in step_windows],
            names,
            self._policy(),
            place=work.place(),
        )
        self._warn(plans)
        for note in dict.fromkeys(note for plan in plans for note in plan.notes):
            self.context.log.warning(note)
        fresh, again = self._to_do(windows, plans)
        keys = {step_window.window_id: step_window.partition_key for step_window in step_windows}
        outputs: dict[str, Staged] = {}

        def run(alike: Sequence[WindowPlan]) -> None:
            every = sorted(alike, key=lambda plan: plan.cutoff_ms)
            job_windows = AssetWindows(
                every,
                keys,
                windows.settings,
                self.settings,
                work=work,
                service=windows,
                ledger_topic=self.kafka.ledger_topic,
                say=self.context.log.info,
            )
            with job_step(every, self.context.log.error):
                written = job_windows.outputs(job(job_windows))
            metadata.update(job_windows.metadata)
            outputs.update(zip((plan.window_id for plan in every), written, strict=True))

        def write(missing: Sequence[WindowPlan]) -> list[Staged]:
            # All in one pass, including windows that are read again.
            decoding = missing[0].window.decoding
            run([*missing, *(plan for plan in again if plan.window.decoding == decoding)])
            return [outputs[plan.window_id] for plan in missing]

        if fresh:
            windows.deliver_many(fresh, write, find_earlier)
        if again:
            for alike in decoded_alike(plan for plan in again if plan.window_id not in outputs):
                run(alike)
            windows.publish_many(again, [outputs[plan.window_id] for plan in again])
        return windows.show_many(names), set(outputs)

    def _warn(self, plans: Sequence[WindowPlan]) -> None:
        """Log which windows get fewer records than their times hold, and why."""
        if (covered := covered_text(plans)) is not None:
            self.context.log.warning(covered)
        for text in held_texts(plans)[:_HELD_LOGGED_MAX]:
            self.context.log.warning(text)

    def _left(self, windows: OrderedWindows, plans: Sequence[WindowPlan]) -> Sequence[str]:
        """Return notes about windows of the group that no attempt works on; none if the ledger cannot be read now."""
        try:
            return windows.left_notes(self.settings.policy.claim_age, beside=plans)
        except KafkaOrderedOpsError as error:
            # Everything is committed, and the plans' notes are logged.
            self.context.log.warning(
                "The group was not checked: %s: %s", type(error).__name__, error
            )
            return ()

    def _lag(self, windows: OrderedWindows, records: Sequence[WindowRecord]) -> int | None:
        """Return the number of undelivered offsets of the topics; None if the lookup fails."""
        from kafka_ordered_ops.windows.queries.topics import topic_ends

        topics = sorted({topic for record in records for topic in record.plan.topics})
        try:
            state = windows.state()
            ends = topic_ends(windows.settings, topics, isolation=records[0].plan.isolation)
        except KafkaOrderedOpsError as error:
            # Everything is committed: a number for display must not fail the step.
            self.context.log.warning("The lag is unknown: %s: %s", type(error).__name__, error)
            return None
        known = dict(state or ())
        return sum(
            known[tp].lag(partition.log_start, partition.end_offset)
            for name, topic in ends.items()
            for partition in topic.partitions
            if (tp := TopicPartition(name, partition.partition)) in known
        )

    def _policy(self) -> Policy:
        # Records taken by a partition's pieces belong to the same partition.
        policy = self.settings.policy
        fails = policy.on_covered is OnCovered.FAIL and self.settings.open_lag is None
        return replace(policy, on_covered=OnCovered.FAIL if fails else OnCovered.SKIP)

    def _to_do(
        self, windows: OrderedWindows, plans: Sequence[WindowPlan]
    ) -> tuple[list[WindowPlan], list[WindowPlan]]:
        """Return the windows to deliver, and the delivered windows to read again."""
        records = {
            record.plan.window_id: record
            for record in windows.show_many([plan.window_id for plan in plans])
        }
        runs = {run.run_id for run in runs_of(self.context.instance, self.context.run)}
        fresh, again = [], []
        for plan in plans:
            record = records[plan.window_id]
            result = record.result
            if not is_finished(plan, result):
                fresh.append(plan)
            elif plan.content is not PlanContent.COVERED:
                # What an earlier attempt of this run, or of the run that it continues, delivered is not read again.
                if record.run_id not in runs and is_replayed(plan, self.settings.policy.on_covered):
                    windows.check_readable(plan)
                    # A step is retried in the same run.
                    run, number = self.context.run.run_id, self.context.retry_number
                    again.append(as_replay(plan, result, run_id=run, try_number=number))
                self.context.log.info(nothing_left(plan))
        return fresh, again


def _by_key(
    step_windows: Sequence[StepWindow], plans: Sequence[WindowPlan]
) -> dict[str | None, list[WindowPlan]]:
    """Return the plans of each partition."""
    plans_of: dict[str | None, list[WindowPlan]] = {}
    for step_window, plan in zip(step_windows, plans, strict=True):
        plans_of.setdefault(step_window.partition_key, []).append(plan)
    return plans_of


@contextmanager
def errors_for_dagster(group_id: str | None = None) -> Iterator[None]:
    """Fail a step for good if a retry cannot help; leave all other errors to the asset's retry policy.

    The message names the group.

    Raises:
        Failure: for an error of this package that is not retriable, with its name and message.
    """
    try:
        yield
    except KafkaOrderedOpsError as error:
        name_places(error, group=group_id)
        if error.retriable:
            raise
        failed = Failure(f"{type(error).__name__}: {error}", allow_retries=False)
        # Keep the frames, but not the cause: a log would show the message twice.
        raise failed.with_traceback(error.__traceback__) from None
