"""Process records with a function, one record at a time or in batches, many at once.

::

    from kafka_ordered_ops.processing import Processor

    with Processor("localhost:9092", max_concurrency=64) as processor:
        for result in processor.subscribe("orders", charge, group_id="billing"):
            ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ordered_ops.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from kafka_ordered_ops.core.processing.new_record import NewRecord as NewRecord
    from kafka_ordered_ops.core.processing.record import Record as Record
    from kafka_ordered_ops.core.processing.record import RecordMetadata as RecordMetadata
    from kafka_ordered_ops.core.processing.record import Result as Result
    from kafka_ordered_ops.processing.processor import Processor as Processor
    from kafka_ordered_ops.processing.window_job import process_window as process_window

#: The module of each public name.
_HOMES = {
    "NewRecord": "core.processing.new_record",
    "Processor": "processing.processor",
    "Record": "core.processing.record",
    "RecordMetadata": "core.processing.record",
    "Result": "core.processing.record",
    "process_window": "processing.window_job",
}

if not TYPE_CHECKING:  # A type checker that saw this would let any name pass.
    __getattr__ = lazy_face(__name__, _HOMES)

__all__ = sorted(_HOMES)
