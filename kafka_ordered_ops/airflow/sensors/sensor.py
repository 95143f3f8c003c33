"""The sensor: waits until all partitions of a window, or its group, have reached its cutoff."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from kafka_ordered_ops.airflow.compat import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    Context,
    PokeReturnValue,
    conf,
    errors_for_airflow,
    failure_of,
)
from kafka_ordered_ops.airflow.operators.base import WindowTask
from kafka_ordered_ops.airflow.support.literals import is_literal
from kafka_ordered_ops.airflow.support.question import Answer, Question, Until, lines_of
from kafka_ordered_ops.airflow.support.times import (
    WindowMode,
    default_window_id,
    rendered_window_id,
)
from kafka_ordered_ops.airflow.triggers.live import PartitionsLiveTrigger
from kafka_ordered_ops.core import errors
from kafka_ordered_ops.core.arguments import check_choice
from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.delivery.arguments import arguments
from kafka_ordered_ops.spec.asked import span_of

#: The sensor's parameters besides the question.
_OWN: Final = ("until", "grace", "window_task_id", "deferrable")


class PartitionsLiveSensor(WindowTask, BaseSensorOperator):
    """Waits until every partition of a window is live or idle, the window is done, or the group has caught up.

    Live: the partition holds a record stamped at or after the cutoff (plus the maximum out-of-orderness). Idle: it
    holds no such record, the clock has passed cutoff + `grace`, and no transaction is open. Done: the group has
    committed this window already (its task was cleared).

    With ``until="caught_up"`` it waits for the group instead: until everything before the cutoff is committed, by any
    windows of any DAG. This check reads no records. It does not wait for a record that was written after the group's
    last plan and after a record stamped at or after the cutoff.

    The sensor joins no group and changes nothing. The log has a table with a reason for each partition, waiting ones
    first. The XCom has the same.

    Takes the arguments of `WindowTask` and of a sensor (``mode`` is ``poke`` or ``reschedule``), and:

    Args:
        until: ``live``, or ``caught_up``.
        grace: how long after the cutoff a silent partition counts as idle; None means never. (templated)
        window_task_id: a task of this DAG: if its window is done, the sensor succeeds at once. Without this task or
            `window_id`, only partitions count.
        deferrable: wait in the triggerer; the default is ``[operators] default_deferrable``. The worker runs the
            first check.

    Returns:
        The result of `core.liveness.liveness.Liveness.to_json` (`core.liveness.caught_up.CatchUp.to_json` for
        ``caught_up``), and ``window``, the status of a window that is done. The partitions of a finished window are
        not checked.

    Raises:
        ConfigError: `grace` or `window_task_id` with ``until="caught_up"``.

    A window that the group could not plan, for example of other topics, fails the sensor at once with
    `GroupMismatchError`, unless the task of `window_task_id` has ``Policy(redefine=True)``.
    """

    template_fields: Sequence[str] = (*WindowTask.template_fields, "grace")

    def __init__(
        self,
        *,
        topics: str | Sequence[str] | None = None,
        window: Window | None = None,
        group_id: str,
        cutoff: datetime | str | None = None,
        since: datetime | str | None = None,
        partition_span: timedelta | None = None,
        window_id: str | None = None,
        kafka_conn_id: str | None = None,
        ledger_topic: str | None = None,
        until: Until | str = Until.LIVE,
        grace: timedelta | str | None = None,
        window_task_id: str | None = None,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        _leave_window_mode(kwargs)
        super().__init__(**arguments(locals(), own=_OWN))
        self.until = check_choice(until, Until, what="until")
        self.grace = grace
        if is_literal(grace):
            self._grace()
        self.window_task_id = window_task_id
        if self.until is Until.CAUGHT_UP and (grace, window_task_id) != (None, None):
            raise ConfigError(
                "until='caught_up' waits for the group's commits: grace and window_task_id are for until='live'"
            )
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False)
            if deferrable is None
            else deferrable
        )
        self._before: Answer | None = None

    def execute(self, context: Context) -> Any:
        """Wait, here or in the triggerer."""
        if not self.deferrable:
            try:
                return super().execute(context)
            except AirflowSensorTimeout as error:
                if (last := self._before) is None:
                    raise
                lines = lines_of(last.to_json())
                raise _with_lines(error, f"{error} The last check:", lines) from None
        question, look = self._first_look(context)
        if look is None or not look.is_over:
            self.defer(
                trigger=PartitionsLiveTrigger(question.to_json(), self.poke_interval),
                method_name="execute_complete",
                timeout=timedelta(seconds=self.timeout),
            )
        return look.to_json()

    def poke(self, context: Context) -> PokeReturnValue:
        """Check once."""
        with errors_for_airflow(lambda: {"group": self.group_id}):
            question = self.question(context)
            try:
                look = question.look(self._before, is_first=self._before is None)
            except KafkaOrderedOpsError as error:
                # A broker may restart while the sensor waits. At the first check, an error is more likely a mistake.
                if not error.retriable or self._before is None:
                    raise
                self.log.warning("The check failed and is repeated: %s", error)
                return PokeReturnValue(is_done=False)
        # Records are not read again while this process lives.
        self._before = look
        look.log()
        return PokeReturnValue(is_done=look.is_over, xcom_value=look.to_json())

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """Continue after the trigger, or fail after the timeout.

        Raises:
            AirflowSensorTimeout, AirflowSkipException: a timeout, as for other sensors; with the table of a last check.
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (AirflowSensorTimeout, AirflowSkipException) as error:
            if AirflowSensorTimeout not in (type(error), type(error.__cause__)):
                raise
            waited = f"{error}: the sensor has waited for {self.timeout:,.0f} s. Now:"
            raise _with_lines(error, waited, self._last_lines(context)) from error.__cause__

    def _last_lines(self, context: Context) -> list[str]:
        """Return the table of one more check, or its error."""
        try:
            return lines_of(self.question(context).look(is_first=False).to_json())
        except Exception as error:  # noqa: BLE001 - the timeout is the failure, whatever this check finds
            return [f"the check has failed: {type(error).__name__}: {error}"]

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return the trigger's result.

        Raises:
            AirflowFailException: an error that waiting cannot fix.
        """
        if event["status"] == "error":
            kind = getattr(errors, str(event.get("error")), KafkaOrderedOpsError)
            raise failure_of(kind(str(event["message"])))
        facts = dict(event["found"])
        for line in lines_of(facts):
            self.log.info("%s", line)
        return facts

    def question(self, context: Context) -> Question:
        """Return the question; raise `ConfigError`."""
        times = self.times_of(context)
        window_id = None if self.window_id is None else rendered_window_id(self.window_id)
        if window_id is None and self.window_task_id is not None:
            window_id = default_window_id(context, self.group_id, task_id=self.window_task_id)
        return Question(
            conn_id=self.kafka_conn_id,
            group_id=self.group_id,
            window=self.window_of(times),
            window_id=window_id,
            grace=self._grace(),
            ledger_topic=self.ledger_topic,
            until=self.until,
            redefine=self._redefines(),
        )

    def _grace(self) -> timedelta | None:
        # A template without a value is rendered to an empty text.
        return span_of(self.grace or None, "grace")

    def _redefines(self) -> bool:
        """Return whether the task of `window_task_id` redefines the group."""
        if self.window_task_id is None or not self.has_dag():  # type: ignore[no-untyped-call]
            return False
        policy = getattr(self.dag.task_dict.get(self.window_task_id), "policy", DEFAULT_POLICY)
        return bool(policy.redefine)

    def _first_look(self, context: Context) -> tuple[Question, Answer | None]:
        """Return the worker's check, which fails as in poke mode; None if `silent_fail` suppresses the error."""
        try:
            with errors_for_airflow(lambda: {"group": self.group_id}):
                question = self.question(context)
                try:
                    look = question.look()
                except KafkaOrderedOpsError as error:
                    if not (error.retriable and self.silent_fail):
                        raise
                    self.log.warning("The first check failed, and silent_fail is set: %s", error)
                    return question, None
        except AirflowFailException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(f"soft_fail or never_fail is set: {error}") from error
            raise
        except KafkaOrderedOpsError as error:
            if self.never_fail:
                raise AirflowSkipException(f"never_fail is set: {error}") from error
            raise
        look.log()
        return question, look


def _with_lines(error: Any, text: str, lines: Sequence[str]) -> Any:
    """Return a timeout, or the skip for it, with the lines of a check."""
    return type(error)("\n".join([text, *lines]))


def _leave_window_mode(kwargs: dict[str, Any]) -> None:
    """Ignore a ``mode`` in the DAG's ``default_args`` that is meant for tasks that plan windows."""
    defaults = kwargs.get("default_args") or {}
    mode = defaults.get("mode")
    if mode in tuple(WindowMode) and kwargs.get("mode", mode) == mode:
        kwargs["mode"] = "poke"
