"""Windows of Kafka records in Apache Airflow: operators, a sensor, a trigger of events, and what belongs to them.

::

    OrderedWindowOperator(
        task_id="orders",
        topics="orders",
        group_id="orders-hourly",
        start="earliest",
        application="/opt/jobs/orders.py",
        output="/data/orders",
    )

Names are loaded when they are first used: a DAG's file is parsed again and again, and loads neither the Kafka
client nor PySpark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.event_trigger import CutoffReachedTrigger as CutoffReachedTrigger
    from kafka_ordered_ops.airflow.hook import KafkaWindowsHook as KafkaWindowsHook
    from kafka_ordered_ops.airflow.jobs import SparkWindow as SparkWindow
    from kafka_ordered_ops.airflow.operator import OrderedWindowOperator as OrderedWindowOperator
    from kafka_ordered_ops.airflow.plan_commit import AbandonWindowOperator as AbandonWindowOperator
    from kafka_ordered_ops.airflow.plan_commit import CommitWindowOperator as CommitWindowOperator
    from kafka_ordered_ops.airflow.plan_commit import PlanWindowOperator as PlanWindowOperator
    from kafka_ordered_ops.airflow.plan_commit import WindowPartOperator as WindowPartOperator
    from kafka_ordered_ops.airflow.retry import window_retry_policy as window_retry_policy
    from kafka_ordered_ops.airflow.sensor import PartitionsLiveSensor as PartitionsLiveSensor
    from kafka_ordered_ops.airflow.taskflow import kafka_window_task as kafka_window_task
    from kafka_ordered_ops.airflow.trigger import PartitionsLiveTrigger as PartitionsLiveTrigger

#: Where each public name lives.
_HOMES = {
    "AbandonWindowOperator": "plan_commit",
    "CommitWindowOperator": "plan_commit",
    "CutoffReachedTrigger": "event_trigger",
    "KafkaWindowsHook": "hook",
    "OrderedWindowOperator": "operator",
    "PartitionsLiveSensor": "sensor",
    "PartitionsLiveTrigger": "trigger",
    "PlanWindowOperator": "plan_commit",
    "SparkWindow": "jobs",
    "WindowPartOperator": "plan_commit",
    "kafka_window_task": "taskflow",
    "window_retry_policy": "retry",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
