"""Staging, publishing and reading back a window's files. No pyspark.

::

    from kafka_ordered_ops.output import files

    duckdb.read_parquet(files("s3://bucket/lake/orders"))  # each published window as a whole, or not at all
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ordered_ops.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from kafka_ordered_ops.output.published import files as files

#: The module of each public name.
_HOMES = {"files": "output.published"}

if not TYPE_CHECKING:  # A type checker that saw this would let any name pass.
    __getattr__ = lazy_face(__name__, _HOMES)

__all__ = sorted(_HOMES)
