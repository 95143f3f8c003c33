"""One step: liveness, plan, job, commit, and only then the result."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    Failure,
    MaterializeResult,
    PartitionsDefinition,
)

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, WindowCoveredError
from kafka_ordered_ops.core.plan import WindowPlan
from kafka_ordered_ops.core.policy import Policy
from kafka_ordered_ops.core.replays import as_replay, is_finished
from kafka_ordered_ops.core.types import (
    OnCovered,
    OnForeignCommit,
    OnOpenClaim,
    PlanContent,
    TopicPartition,
)
from kafka_ordered_ops.dagster.job import AssetWindows, Job
from kafka_ordered_ops.dagster.liveness import live_result, look_at
from kafka_ordered_ops.dagster.results import common_metadata, data_version_of, window_metadata
from kafka_ordered_ops.dagster.settings import WindowSettings
from kafka_ordered_ops.dagster.times import Asked, asked_of
from kafka_ordered_ops.spark.reported import found_output

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group_state import WindowRecord
    from kafka_ordered_ops.dagster.resource import KafkaResource
    from kafka_ordered_ops.windows import OrderedWindows, Staged


@dataclass(frozen=True)
class Step:
    """A step of one asset."""

    context: AssetExecutionContext
    key: AssetKey
    settings: WindowSettings
    partitions_def: PartitionsDefinition[str] | None
    kafka: KafkaResource

    def results(self, job: Job) -> Iterator[MaterializeResult[Any]]:
        """Delivers the step's windows, then tells Dagster; nothing is told of a step that fails.

        Raises:
            Failure: trying again cannot help, or partitions are not live and the asset wants them to be.
            KafkaOrderedOpsError: trying again may help.
        """
        started = time.monotonic()
        asked = asked_of(self.context, self.key, self.settings, self.partitions_def)
        job_told: dict[str, Any] = {}
        with errors_for_dagster(), self._open() as windows:
            check = live_result(look_at(windows, self.settings, asked), self.settings)
            records, ran = self._delivered(windows, asked, job, job_told)
            lag = self._lag(windows, records)
        seconds = time.monotonic() - started
        common = common_metadata(records, seconds, lag) | job_told
        for one, record in zip(asked, records, strict=True):
            key = one.partition_key
            told = window_metadata(record, ran=one.window_id in ran, is_partition=key is not None)
            if key is None:
                common |= told
            else:
                # What is told with the result would stand at every partition of the step.
                self.context.add_asset_metadata(told, self.key, partition_key=key)
        yield MaterializeResult(
            self.key,
            metadata=common,
            data_version=data_version_of(records),
            check_results=[] if check is None else [check],
        )

    def _open(self) -> OrderedWindows:
        return self.kafka.open_windows(
            self.settings.group_id,
            run_id=self.context.run.run_id,
            on_foreign_commit=OnForeignCommit(self.settings.on_foreign_commit),
        )

    def _delivered(
        self, windows: OrderedWindows, asked: Sequence[Asked], job: Job, told: dict[str, Any]
    ) -> tuple[list[WindowRecord], set[str]]:
        """The windows' records in the ledger, and those of which the job ran; `told` gets what it says."""
        names = [one.window_id for one in asked]
        plans = windows.plan_many([one.window for one in asked], names, self._policy())
        for note in dict.fromkeys(note for plan in plans for note in plan.notes):
            self.context.log.warning(note)
        fresh, again = self._to_do(windows, plans)
        keys = {one.window_id: one.partition_key for one in asked}
        outputs: dict[str, Staged] = {}

        def write(missing: Sequence[WindowPlan]) -> list[Staged]:
            # All in one pass: what is read again, too.
            every = sorted([*missing, *again], key=lambda plan: plan.cutoff_ms)
            given = AssetWindows(
                every,
                keys,
                windows.settings,
                self.settings,
                ledger_topic=self.kafka.ledger_topic,
                say=self.context.log.info,
            )
            written = given.outputs(job(given))
            told.update(given.metadata)
            outputs.update(zip((plan.window_id for plan in every), written, strict=True))
            return [outputs[plan.window_id] for plan in missing]

        if fresh:
            windows.deliver_many(fresh, write, found_output)
        if again:
            if not outputs:
                write(())
            windows.publish_many(again, [outputs[plan.window_id] for plan in again])
        return windows.show_many(names), set(outputs)

    def _lag(self, windows: OrderedWindows, records: Sequence[WindowRecord]) -> int | None:
        """How many offsets of the topics lie behind the committed ones now; None where there is no answer."""
        from kafka_ordered_ops.windows.topic_ends import topic_ends

        topics = sorted({topic for record in records for topic in record.plan.topics})
        try:
            state = windows.state()
            found = topic_ends(windows.settings, topics, isolation=records[0].plan.isolation)
        except KafkaOrderedOpsError as error:
            # All is committed: a number for people is no reason to fail.
            self.context.log.warning("The lag is not known: %s: %s", type(error).__name__, error)
            return None
        bases = {tp: partition.base for tp, partition in state or ()}
        ends = {
            TopicPartition(name, one.partition): one.end_offset
            for name, topic in found.items()
            for one in topic.partitions
        }
        return sum(max(end - bases[tp], 0) for tp, end in ends.items() if tp in bases)

    def _policy(self) -> Policy:
        covered = OnCovered(self.settings.on_covered)
        return Policy(
            on_covered=OnCovered.FAIL if covered is OnCovered.FAIL else OnCovered.SKIP,
            on_open_claim=OnOpenClaim(self.settings.on_open_claim),
        )

    def _to_do(
        self, windows: OrderedWindows, plans: Sequence[WindowPlan]
    ) -> tuple[list[WindowPlan], list[WindowPlan]]:
        """What is still to be delivered, and what is delivered and to be read again."""
        results = {
            record.plan.window_id: record.result
            for record in windows.show_many([plan.window_id for plan in plans])
        }
        fresh, again = [], []
        for plan in plans:
            result = results[plan.window_id]
            if not is_finished(plan, result):
                fresh.append(plan)
            elif plan.content is not PlanContent.COVERED and self._is_replayed(plan):
                windows.check_readable(plan)
                # A step is tried again in the same run.
                number = self.context.retry_number
                again.append(
                    as_replay(plan, result, run_id=self.context.run.run_id, try_number=number)
                )
        return fresh, again

    def _is_replayed(self, plan: WindowPlan) -> bool:
        told = f"window {plan.window_id} of group {plan.group} is {plan.status.value} already"
        if self.settings.on_covered is OnCovered.FAIL:
            raise WindowCoveredError(
                f"{told}, and on_covered='fail'. Use 'replay' to read the same records again, or 'skip'",
                window_id=plan.window_id,
            )
        self.context.log.info(told)
        return self.settings.on_covered is OnCovered.REPLAY


@contextmanager
def errors_for_dagster() -> Iterator[None]:
    """Ends a step for good where trying again cannot help; all else is tried again, as the asset has it.

    Raises:
        Failure: for an error of this package that is not retriable, with its name and message.
    """
    try:
        yield
    except KafkaOrderedOpsError as error:
        if error.retriable:
            raise
        raise Failure(f"{type(error).__name__}: {error}", allow_retries=False) from error
