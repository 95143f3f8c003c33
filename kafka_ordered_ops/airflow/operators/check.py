"""A check of a group: do windows hold records that readers do not have?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from kafka_ordered_ops.airflow.compat import BaseOperator, Context, errors_for_airflow
from kafka_ordered_ops.airflow.connection import DEFAULT_CONN_ID, open_windows
from kafka_ordered_ops.airflow.support.literals import is_literal
from kafka_ordered_ops.airflow.support.parameters import NamedParameters, check_parameters
from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.cluster.names import check_group
from kafka_ordered_ops.core.errors import WindowsHeldError
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY


class CheckWindowsOperator(NamedParameters, BaseOperator):
    """Fails while windows of a group hold records that readers do not have, and no attempt works on them.

    These are windows of tasks that failed, were killed or marked as successful, and committed windows whose output is
    not published. Runs of other windows succeed beside them. The task only reads the ledger; put it into a DAG of its
    own, or after the task of the windows, with ``trigger_rule="all_done"``.

    Args:
        group_id: the consumer group of the windows. (templated)
        age: how long an open window may stay untouched: more than a job takes. (templated)
        kafka_conn_id: a connection of type ``kafka``. (templated)
        ledger_topic: the topic that holds plans and progress.

    Raises:
        ConfigError: an invalid argument.
        WindowsHeldError: there are such windows; the message names them. It is retriable.
    """

    template_fields: Sequence[str] = ("group_id", "age", "kafka_conn_id")
    ui_color = "#f0e4e8"

    def __init__(
        self,
        *,
        group_id: str,
        age: timedelta | str = DEFAULT_POLICY.claim_age,
        kafka_conn_id: str | None = None,
        ledger_topic: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_parameters(self, kwargs)
        super().__init__(**kwargs)
        self.group_id = group_id
        self.age = age
        self.kafka_conn_id = kafka_conn_id or DEFAULT_CONN_ID
        self.ledger_topic = ledger_topic
        if is_literal(group_id):
            check_group(group_id)
        if is_literal(age):
            as_span(age, what="age")

    def execute(self, context: Context) -> None:
        """Read the ledger."""
        with (
            errors_for_airflow(lambda: {"group": self.group_id}),
            open_windows(
                self.kafka_conn_id, self.group_id, ledger_topic=self.ledger_topic
            ) as windows,
        ):
            if notes := windows.left_notes(self.age):
                raise WindowsHeldError(". ".join(notes), group_id=self.group_id)
        self.log.info("Group %s holds no records that readers do not have.", self.group_id)
