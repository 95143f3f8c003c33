"""Types of tables that get new columns, for random types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.spark.write.table_evolution import (
    additions,
    clash,
    common,
    evolved,
)
from kafka_ordered_ops.spark.write.table_rules import misfits, sql_type

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

pytestmark = [pytest.mark.spark]


def _types(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    from pyspark.sql.types import ArrayType, MapType, StringType

    lists = children.map(ArrayType)
    maps = children.map(lambda kind: MapType(StringType(), kind))
    return lists | maps | _structs(children)


def _structs(children: st.SearchStrategy[Any]) -> st.SearchStrategy[StructType]:
    from pyspark.sql.types import StructField, StructType

    names = st.sampled_from(["a", "B", "b", "c d", "e.f"])
    fields = st.dictionaries(names, children, min_size=1, max_size=3)
    return fields.filter(lambda found: len({name.lower() for name in found}) == len(found)).map(
        lambda found: StructType([StructField(*field) for field in found.items()])
    )


@st.composite
def schemas(draw: st.DrawFn) -> tuple[StructType, StructType]:
    """The schemas of a table and of rows."""
    from pyspark.sql.types import LongType, StringType

    leaves = st.sampled_from([LongType(), StringType()])
    struct = _structs(st.recursive(leaves, _types, max_leaves=6))
    return draw(struct), draw(struct)


@given(schemas())
def test_a_table_gets_what_it_lacks_and_keeps_what_it_has(
    both: tuple[StructType, StructType],
) -> None:
    """All that rows have is there afterwards, unless it is of another type; the table's own columns stay first, as they are."""
    table, rows = both
    after: Any = evolved(table, rows, str.lower)
    assert not [*additions(rows, after, str.lower)]
    assert not [*additions(table, after, str.lower)]
    assert not clash(table, after, str.lower)
    assert after.names[: len(table.names)] == table.names
    assert evolved(after, rows, str.lower) == after
    added = {each.path for each in additions(rows, table, str.lower)}
    assert evolved(table, rows, str.lower, added) == after
    assert evolved(table, rows, str.lower, ()) == table


@given(schemas())
def test_rows_without_new_fields_have_the_table_s(both: tuple[StructType, StructType]) -> None:
    """What is compared with the table before a window is planned: no field more or less."""
    table, rows = both
    seen = common(rows, table, str.lower)
    if clash(table, rows, str.lower):
        return
    assert not [*misfits(seen, table, str.lower)]
    assert sql_type(seen) == sql_type(table)
