"""Windows of Kafka records in Apache Airflow: operators, a sensor, a trigger of events, and their support code.

::

    OrderedWindowOperator(
        task_id="orders",
        topics="orders",
        group_id="orders-hourly",
        starting_offsets="earliest",
        application="/opt/jobs/orders.py",
        output="/data/orders",
    )

Names are loaded when they are first used: Airflow parses a DAG's file often, and the file loads neither the Kafka
client nor PySpark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.decorators.taskflow import kafka_window_task as kafka_window_task
    from kafka_ordered_ops.airflow.hooks.hook import KafkaWindowsHook as KafkaWindowsHook
    from kafka_ordered_ops.airflow.operators.abandon import (
        AbandonWindowOperator as AbandonWindowOperator,
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
else:  # A type checker that saw this would let any name pass.

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(f"kafka_ordered_ops.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


#: Where each public name lives.
_HOMES = {
    "AbandonWindowOperator": "airflow.operators.abandon",
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

__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    return list(__all__)
