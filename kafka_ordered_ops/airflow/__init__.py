"""Windows of Kafka records in Apache Airflow: operators, a sensor, a trigger of events, and their support code.

::

    OrderedWindowOperator(
        task_id="orders",
        window=Window("orders", starting_offsets="earliest"),
        group_id="orders-hourly",
        mode="catch_up",
        job=Application("/opt/jobs/orders.py"),
        output="/data/orders",
    )

Names are loaded when they are first used: Airflow parses a DAG's file often, and the file loads neither the Kafka
client nor PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ordered_ops.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.decorators.taskflow import kafka_window_task as kafka_window_task
    from kafka_ordered_ops.airflow.hooks.hook import KafkaWindowsHook as KafkaWindowsHook
    from kafka_ordered_ops.airflow.operators.abandon import (
        AbandonWindowOperator as AbandonWindowOperator,
    )
    from kafka_ordered_ops.airflow.operators.check import (
        CheckWindowsOperator as CheckWindowsOperator,
    )
    from kafka_ordered_ops.airflow.operators.commit import (
        CommitWindowOperator as CommitWindowOperator,
    )
    from kafka_ordered_ops.airflow.operators.ordered import (
        OrderedWindowOperator as OrderedWindowOperator,
    )
    from kafka_ordered_ops.airflow.operators.part import (
        WindowPartOperator as WindowPartOperator,
    )
    from kafka_ordered_ops.airflow.operators.plan import (
        PlanWindowOperator as PlanWindowOperator,
    )
    from kafka_ordered_ops.airflow.operators.process import (
        ProcessWindowOperator as ProcessWindowOperator,
    )
    from kafka_ordered_ops.airflow.sensors.sensor import (
        PartitionsLiveSensor as PartitionsLiveSensor,
    )
    from kafka_ordered_ops.airflow.support.retry import window_retry_policy as window_retry_policy
    from kafka_ordered_ops.airflow.triggers.cutoff_reached import (
        CutoffReachedTrigger as CutoffReachedTrigger,
    )

#: The module of each public name.
_HOMES = {
    "AbandonWindowOperator": "airflow.operators.abandon",
    "CheckWindowsOperator": "airflow.operators.check",
    "CommitWindowOperator": "airflow.operators.commit",
    "CutoffReachedTrigger": "airflow.triggers.cutoff_reached",
    "KafkaWindowsHook": "airflow.hooks.hook",
    "OrderedWindowOperator": "airflow.operators.ordered",
    "PartitionsLiveSensor": "airflow.sensors.sensor",
    "PlanWindowOperator": "airflow.operators.plan",
    "ProcessWindowOperator": "airflow.operators.process",
    "WindowPartOperator": "airflow.operators.part",
    "kafka_window_task": "airflow.decorators.taskflow",
    "window_retry_policy": "airflow.support.retry",
}

if not TYPE_CHECKING:  # A type checker that saw this would let any name pass.
    __getattr__ = lazy_face(__name__, _HOMES)

__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    return list(__all__)
