"""The columns of what was written, as Dagster shows those of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dagster import (
    MetadataValue,
    TableColumn,
    TableColumnConstraints,
    TableSchema,
)

from kafka_ordered_ops.output.staged_output import output_of

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord


def column_metadata(records: Sequence[WindowRecord], warn: Callable[..., None]) -> dict[str, Any]:
    """The columns of the newest window that has files of ours; nothing where there is none.

    Nothing is raised: the windows are committed, and columns are for people.

    Args:
        records: the windows of a step, by cutoff; they have the same columns, for one job has written them.
        warn: called with the reason for unknown columns, like a logger's method.
    """
    outputs = [output for record in records if (output := output_of(record.result)) is not None]
    if not outputs:
        return {}
    from kafka_ordered_ops.output.schema import output_schema

    try:
        schema = next((found for one in reversed(outputs) if (found := output_schema(one))), None)
    except Exception as error:  # noqa: BLE001 - as above
        warn("The columns are not known: %s: %s", type(error).__name__, error)
        return {}
    if schema is None:
        return {}
    columns = [
        TableColumn(
            field.name, str(field.type), constraints=TableColumnConstraints(nullable=field.nullable)
        )
        for field in schema
    ]
    return {"dagster/column_schema": MetadataValue.table_schema(TableSchema(columns))}
