"""Work key by key: each key's records in one piece and in order, whatever the batches they come in."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, SinkError
from kafka_ordered_ops.spark import map_by_key, read_window
from kafka_ordered_ops.spark.failures import named_error
from kafka_ordered_ops.spark.keyed import KeyGroup, _ByKey
from tests.conftest import MakeTopic
from tests.support.spark_support import random_case, settings_of, spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]  # a fixture

pytestmark = pytest.mark.spark

COLUMNS = "key binary, timestamp timestamp, topic string, partition int, offset bigint"

#: One row for each batch of a group: the key, how many groups came before, the offsets.
_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "group": pa.int64(),
    "offsets": pa.list_(pa.field("element", pa.int64())),
}
SEEN = pa.schema(_TYPES)
SEEN_DDL = "key binary, group bigint, offsets array<bigint>"

_COUNTED_TYPES: dict[str, pa.DataType] = {"key": pa.binary(), "count": pa.int64()}
COUNTED = pa.schema(_COUNTED_TYPES)


def seen(groups: Iterator[KeyGroup]) -> Iterator[pa.RecordBatch]:
    """Tells what it is given."""
    for number, (key, batches) in enumerate(groups):
        for batch in batches:
            row = {"key": key, "group": number, "offsets": batch.column("offset").to_pylist()}
            assert set(batch.column("key").to_pylist()) == {key}
            yield pa.RecordBatch.from_pylist([row], SEEN)


def counted(groups: Iterator[KeyGroup]) -> Iterator[pa.RecordBatch]:
    """How many records each key has."""
    for key, batches in groups:
        row = {"key": key, "count": sum(batch.num_rows for batch in batches)}
        yield pa.RecordBatch.from_pylist([row], COUNTED)


def by_key(rows: Sequence[Any]) -> dict[bytes | None, list[int]]:
    """The offsets that each key was given, and that it was given them as one group in its task."""
    found = defaultdict[bytes | None, list[int]](list)
    groups = defaultdict[bytes | None, set[int]](set)
    for row in rows:
        key = None if row["key"] is None else bytes(row["key"])
        found[key] += row["offsets"]
        groups[key].add(row["group"])
    assert all(len(numbers) == 1 for numbers in groups.values())
    return found


def frame_of(spark: SparkSession, rows: Sequence[tuple[bytes | None, int]]) -> DataFrame:
    """Records of these keys and times, in seconds; the n-th one has offset n."""
    fields = [
        {"key": key, "s": seconds, "topic": "orders", "partition": n % 3, "offset": n}
        for n, (key, seconds) in enumerate(rows)
    ]
    frame = spark.createDataFrame(
        fields, "key binary, s long, topic string, partition int, offset long"
    )
    return frame.selectExpr(
        "key", "timestamp_seconds(s) AS timestamp", "topic", "partition", "offset"
    )


def wanted(rows: Sequence[tuple[bytes | None, int]]) -> dict[bytes | None, list[int]]:
    """For each key its offsets in order of (timestamp, topic, partition, offset)."""
    order = sorted(range(len(rows)), key=lambda n: (rows[n][1], n % 3, n))
    found = defaultdict[bytes | None, list[int]](list)
    for n in order:
        found[rows[n][0]].append(n)
    return found


# Without Spark: the cutting of a sorted stream

KEYS = st.one_of(st.none(), st.binary(max_size=2))


@given(
    runs=st.lists(st.tuples(KEYS, st.integers(1, 9)), max_size=12, unique_by=lambda run: run[0]),
    sizes=st.lists(st.integers(0, 5), min_size=1),
    skipped=st.integers(0, 3),
)
def test_groups_do_not_depend_on_batches(
    runs: list[tuple[bytes | None, int]], sizes: list[int], skipped: int
) -> None:
    """However a task's records are cut into batches: the same keys, each once, with the same records."""
    keys = [key for key, count in runs for _ in range(count)]
    names = ["topic", "partition", "offset"]
    records = pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            **dict.fromkeys(names, pa.array(range(len(keys)), pa.int64())),
        }
    )
    batches, at = list[pa.RecordBatch](), 0
    while at < len(keys):
        size = sizes[len(batches) % len(sizes)] or (len(batches) % 2)
        batches += records.slice(at, size).combine_chunks().to_batches() or [
            pa.RecordBatch.from_pylist([], records.schema)
        ]
        at += size
    found = [row for batch in _ByKey(seen, "key")(iter(batches)) for row in batch.to_pylist()]
    assert [key for key, _ in by_key(found).items()] == [key for key, _ in runs]
    assert [n for row in found for n in row["offsets"]] == list(range(len(keys)))

    def some(groups: Iterator[KeyGroup]) -> Iterator[pa.RecordBatch]:
        """Looks at some keys only, and at the beginning of those."""
        for number, (key, found) in enumerate(groups):
            if number >= skipped:
                first = next(found)
                yield pa.RecordBatch.from_pylist(
                    [{"key": key, "first": first["offset"][0].as_py()}]
                )

    rows = [row for batch in _ByKey(some, "key")(iter(batches)) for row in batch.to_pylist()]
    firsts = [keys.index(key) for key, _ in runs]
    expected = [{"key": key, "first": first} for (key, _), first in zip(runs, firsts, strict=True)]
    assert rows == expected[skipped:]


def test_a_key_is_never_held_as_a_whole() -> None:
    """Of a key with many records the function holds one batch at a time, and only as long as it wants to."""
    made = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal made
        for n in range(1_000):
            made += 1
            yield pa.RecordBatch.from_pylist(
                [{"key": b"k", "topic": "orders", "partition": 0, "offset": n}]
            )

    ahead = []

    def look(groups: Iterator[KeyGroup]) -> Iterator[pa.RecordBatch]:
        for _, found in groups:
            for n, _ in enumerate(found):
                ahead.append(made - n)
        yield pa.RecordBatch.from_pylist([{"n": made}])

    (result,) = _ByKey(look, "key")(batches())
    assert result["n"][0].as_py() == 1_000
    assert max(ahead) <= 2


@pytest.mark.slow
def test_small_batches_of_a_result_travel_together() -> None:
    """A row for each of many keys is no batch for each of them; batches of other columns stay apart."""
    rows = [{"key": b"%d" % n, "topic": "t", "partition": 0, "offset": n} for n in range(25_000)]

    def one(groups: Iterator[KeyGroup]) -> Iterator[pa.RecordBatch]:
        for key, _ in groups:
            yield pa.RecordBatch.from_pylist([{"n": key}])
        yield pa.RecordBatch.from_pylist([{"n": 1}])

    batches = list(_ByKey(one, "key")(iter([pa.RecordBatch.from_pylist(rows)])))
    assert [batch.num_rows for batch in batches] == [10_000, 10_000, 5_000, 1]


# With Spark


@pytest.mark.slow
def test_each_key_is_worked_on_in_order(spark: SparkSession) -> None:
    """Random records, batches of a few rows: keys span them, one is much larger than others, some have none."""
    rng = random.Random(4)
    keys = [None, b"", b"big", *(b"k%d" % n for n in range(12))]
    weights = [3, 1, 20] + [1] * 12
    rows = [(key, rng.randrange(9)) for key in rng.choices(keys, weights, k=400)]
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "3")
    try:
        for partitions in (None, 3):
            frame = frame_of(spark, rows)
            result = map_by_key(frame, seen, SEEN_DDL, partitions=partitions)
            found = [row.asDict() for row in result.collect()]
            assert by_key(found) == wanted(rows)
            assert max(len(row["offsets"]) for row in found) <= 3
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.slow
def test_a_window_is_worked_on_key_by_key(
    bootstrap: str, topic: MakeTopic, spark: SparkSession
) -> None:
    """Straight from Kafka, by another column than the key: each partition's records, counted."""
    case = random_case(bootstrap, {topic(partitions=3): 3}, seed=8)
    frame = read_window(spark, case.plan, settings_of(bootstrap))
    result = map_by_key(frame, counted, "key binary, count bigint").collect()
    expected = defaultdict[bytes | None, int](int)
    for row in case.rows:
        expected[row.key] += 1
    found = {None if row.key is None else bytes(row.key): row["count"] for row in result}
    assert found == expected
    assert len(result) == len(expected)


def test_nothing_is_worked_on_without_records(spark: SparkSession) -> None:
    """An empty window gives an empty result, with the columns that were said."""
    frame = spark.createDataFrame([], COLUMNS)
    result = map_by_key(frame, counted, "key binary, count bigint")
    assert result.columns == ["key", "count"]
    assert result.collect() == []


def test_a_failure_names_the_place_and_not_the_key(spark: SparkSession) -> None:
    """The user's own error, with where the key's first record is: a key may be nobody's business."""

    def fail(groups: Iterator[KeyGroup]) -> Iterator[pa.RecordBatch]:
        for _, batches in groups:
            for batch in batches:
                if 7 in batch.column("offset").to_pylist():
                    raise ValueError("no such customer")
                yield batch.slice(0, 0)

    rows = [(b"secret-%d" % (n % 5), 9 - n) for n in range(10)]
    with pytest.raises(Exception, match="no such customer") as raised:
        map_by_key(frame_of(spark, rows), fail, COLUMNS, partitions=1).collect()
    error = named_error(raised.value)
    assert isinstance(error, SinkError)
    # Offsets 2 and 7 have one key; 7 is stamped before 2.
    assert "orders[1] offset 7: ValueError: no such customer" in str(error)
    assert "secret" not in str(error)


def test_a_function_may_fail_before_its_first_key(spark: SparkSession) -> None:
    """A connection that cannot be opened, say; an error of this package passes as it is."""
    with pytest.raises(SinkError, match=r"before its first key: RuntimeError: no way"):
        list(_ByKey(_raising(RuntimeError("no way")), "key")(iter([])))
    with pytest.raises(ConfigError, match="mine"):
        list(_ByKey(_raising(ConfigError("mine")), "key")(iter([])))


def _raising(error: Exception) -> Any:
    def function(groups: Iterator[KeyGroup]) -> Iterator[pa.RecordBatch]:
        raise error

    return function


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("key binary, timestamp timestamp", "are missing: offset, partition, topic\\."),
        (COLUMNS.replace("key", "customer"), "are missing: key\\."),
        (COLUMNS.replace("binary", "double"), "type double"),
        (COLUMNS.replace("binary", "array<int>"), "type array<int>"),
    ],
)
def test_what_cannot_be_grouped_is_refused(spark: SparkSession, columns: str, message: str) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError, match=message):
        map_by_key(spark.createDataFrame([], columns), counted, "key binary, count bigint")


@pytest.mark.parametrize(
    "sql",
    [
        "'a'",
        "1Y",
        "2L",
        "true",
        "date'2026-01-01'",
        "timestamp'2026-01-01'",
        "1.50BD",
        "cast(null as string)",
    ],
)
def test_keys_of_other_types(spark: SparkSession, sql: str) -> None:
    """Whatever has equal bytes where it is equal can be a key."""
    frame = frame_of(spark, [(b"", 1), (b"", 2), (b"", 3)]).selectExpr("*", f"{sql} AS other")
    result = map_by_key(frame, _counted_only, "count bigint", key="other", partitions=1)
    assert [row["count"] for row in result.collect()] == [3]


def _counted_only(groups: Iterator[KeyGroup]) -> Iterator[pa.RecordBatch]:
    for _, batches in groups:
        yield pa.RecordBatch.from_pylist([{"count": sum(batch.num_rows for batch in batches)}])
