"""The schema in which records travel through this package: Arrow record batches."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import pyarrow as pa

from kafka_ordered_ops.core.errors import ConfigError

#: Values of the column ``timestamp_type``; null if the record has no timestamp.
CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

_HEADER: Final = pa.struct(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
)
_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
    pa.field("timestamp_type", pa.int32()),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(pa.field("item", _HEADER, nullable=False))),
]

#: One record a row.
#:
#: ==================  ================================================================================
#: ``topic``           name
#: ``partition``       number, from 0
#: ``offset``          place in the partition's log; gaps are normal
#: ``timestamp``       milliseconds, UTC. Negative ones are data too; -1 is what Kafka stores for "none"
#: ``timestamp_type``  `CREATE_TIME` (the producer's clock), `LOG_APPEND_TIME` (the broker's), or null
#: ``key``             bytes; null and empty differ
#: ``value``           bytes; null is a tombstone
#: ``headers``         in the producer's order, keys may repeat, values may be null; null when there are none
#: ==================  ================================================================================
RECORD_SCHEMA: Final = pa.schema(_FIELDS)

#: Whether the record was written after the window of its timestamp had been planned, or is stamped before the interval that
#: takes it.
LATE: Final = pa.field("late", pa.bool_(), nullable=False)
#: The records of a window, one a row.
WINDOW_SCHEMA: Final = RECORD_SCHEMA.append(LATE)


def record_schema(columns: Collection[str] | None) -> pa.Schema:
    """Return the schema of some columns of records, all for None; raise `ConfigError` for one that does not exist."""
    names = RECORD_SCHEMA.names if columns is None else list(columns)
    if unknown := set(names) - set(RECORD_SCHEMA.names):
        raise ConfigError(f"no such columns: {sorted(unknown)}; there are {RECORD_SCHEMA.names}")
    return pa.schema([RECORD_SCHEMA.field(name) for name in names])
