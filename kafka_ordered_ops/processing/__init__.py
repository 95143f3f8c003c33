"""Records one by one through a user's function, many at a time.

::

    from kafka_ordered_ops.processing import Processor

    with Processor("localhost:9092", max_concurrency=64) as processor:
        for result in processor.subscribe("orders", charge, group_id="billing"):
            ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_ordered_ops.core.processing.new_record import NewRecord as NewRecord
    from kafka_ordered_ops.core.processing.record import Record as Record
    from kafka_ordered_ops.core.processing.record import Result as Result
    from kafka_ordered_ops.processing.processor import Processor as Processor
    from kafka_ordered_ops.processing.window_job import process_window as process_window
else:  # A type checker that saw this would let any name pass.

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(f"kafka_ordered_ops.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


#: Where each public name lives.
_HOMES = {
    "NewRecord": "core.processing.new_record",
    "Processor": "processing.processor",
    "Record": "core.processing.record",
    "Result": "core.processing.record",
    "process_window": "processing.window_job",
}

__all__ = sorted(_HOMES)
