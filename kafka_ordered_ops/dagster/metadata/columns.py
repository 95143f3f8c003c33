"""The columns of the written files, as Dagster's table schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagster import (
    MetadataValue,
    TableColumn,
    TableColumnConstraints,
    TableSchema,
)

from kafka_ordered_ops.output.writing.staged_output import output_of

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord


def column_metadata(
    records: Sequence[WindowRecord],
    warn: Callable[..., None],
    *,
    output: str | None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the columns of the newest window with files of this package; an empty dict without such a window.

    No error is raised: the windows are committed, and the columns are only displayed.

    Args:
        records: the windows of a step, by cutoff; they have the same columns, because one job wrote them.
        warn: called with the reason for unknown columns, like a logger's method.
        output: the root of the files; None without files.
        storage_options: of files in an object store.
    """
    outputs = [output_ for record in records if (output_ := output_of(record.result, record.plan))]
    if not outputs or output is None:
        return {}
    from kafka_ordered_ops.output.writing.schema import output_schema

    try:
        places = [
            replace(place, root=output, storage_options=storage_options)
            for place in reversed(outputs)
        ]
        schema = next(
            (columns_schema for place in places if (columns_schema := output_schema(place))), None
        )
    except Exception as error:  # noqa: BLE001 - as above
        warn("The columns are unknown: %s: %s", type(error).__name__, error)
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
