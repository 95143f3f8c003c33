"""The columns of a result, compared with those of its table."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.spark.write.table_evolution import Addition, additions
from kafka_ordered_ops.spark.write.table_facts import TableFacts
from kafka_ordered_ops.spark.write.table_rules import misfits
from kafka_ordered_ops.spec.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def may_be_missing(facts: TableFacts, target: Table, name: str) -> bool:
    """Return whether rows may lack a column of the table, which is null then."""
    is_ruled = any(rule.startswith(f"{name} ") for rule in facts.rules)
    return target.adds_columns and not is_ruled and name not in target.keys


def check_result(
    df: DataFrame,
    facts: TableFacts,
    target: Table,
    *,
    extras: Collection[str],
    filled: Collection[str],
) -> None:
    """Raise `ConfigError` for a result without the table's columns.

    Args:
        df: the result.
        facts: the table.
        target: whether columns are added.
        extras: the columns that a result may have in addition to the table's.
        filled: the columns that are filled in.
    """
    result_columns = {facts.folded(name): name for name in df.columns}
    # Delta would fill in nulls for missing columns.
    missing = [
        name
        for folded, name in facts.columns.items()
        if folded not in {*result_columns, *filled} and not may_be_missing(facts, target, name)
    ]
    unknown = [
        name
        for folded, name in result_columns.items()
        if folded not in facts.columns and folded not in extras and not target.adds_columns
    ]
    kinds = {field.name: field.dataType for field in df.schema.fields}
    other = [
        misfit
        for folded, name in facts.columns.items()
        if folded in result_columns and folded not in filled
        for misfit in misfits(
            kinds[result_columns[folded]],
            facts.fields[name],
            facts.folded,
            name,
            may_evolve=target.adds_columns,
        )
    ]
    if missing or unknown or other:
        raise ConfigError(
            f"the result does not have the columns of {target.name}. Missing: "
            f"{', '.join(sorted(missing)) or 'none'}. Not in the table: "
            f"{', '.join(sorted(unknown)) or 'none'}. {''.join(f'{misfit}. ' for misfit in other)}Select the table's columns, alter "
            "the table, or set schema_evolution='add', which adds columns"
        )


def new_columns(kept: Any, facts: TableFacts, target: Table) -> list[Addition]:
    """Return what a schema has and the table does not; raise `ConfigError` for a column without a type."""
    added = [*additions(kept, facts.schema, facts.folded)]
    if untyped := [each.name for each in added if "void" in each.type]:
        raise ConfigError(
            f"{', '.join(untyped)} cannot be added to {target.name}: all values are null, without a type. Cast the column"
        )
    return added
