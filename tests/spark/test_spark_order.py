"""Total order: balanced shares, each record in its place, and Kafka read once."""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import confluent_kafka as ck
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import WindowPlan
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.ordered.records.columns import MANY_ORDER, WINDOW_NUMBER
from kafka_ordered_ops.spark import map_by_key, read_windows, write_window, write_windows
from kafka_ordered_ops.spark.read import edges, order, source
from kafka_ordered_ops.spark.read.edges import Edge, edges_of
from kafka_ordered_ops.spark.read.reading import Reading
from kafka_ordered_ops.spark.read.source import KafkaWindowReader, KafkaWindowSource, WindowRead
from tests.conftest import MakeTopic
from tests.support.spark_many_support import cases, log, plans_of, small_tasks, told, wanted
from tests.support.spark_support import CUTOFF_MS, Case, part_of, plan_of, settings_of, spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["cases", "log", "small_tasks", "spark"]  # fixtures

pytestmark = pytest.mark.spark

Times = Callable[[int, random.Random], int]

# Edges: no Spark

RECORDS = 3_000
PARTITIONS = 4
BUCKETS = 6


def _fill(
    bootstrap: str, topic: str, times: Times, *, transaction_records: int | None = None
) -> dict[int, int]:
    """The same number of records in each partition, stamped by their place there; where the logs end."""
    rng = random.Random(3)
    # Idempotent: batches that are sent again would else come behind later ones.
    producer = ck.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True}
        | ({"transactional.id": topic} if transaction_records else {})
    )
    if transaction_records:
        producer.init_transactions(30)
    for n in range(RECORDS):
        if transaction_records and n % transaction_records == 0:
            producer.begin_transaction()
        for partition in range(PARTITIONS):
            stamp = CUTOFF_MS - 1_000_000 + times(n, rng)
            producer.produce(topic, b"v", partition=partition, timestamp=stamp)
        if transaction_records and n % transaction_records == transaction_records - 1:
            producer.commit_transaction(30)
    assert producer.flush(30) == 0
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    ends = {
        partition: consumer.get_watermark_offsets(ck.TopicPartition(topic, partition), 10)[1]
        for partition in range(PARTITIONS)
    }
    consumer.close()
    return ends


def _reading(bootstrap: str, plans: Sequence[WindowPlan]) -> Reading:
    """One whose session nobody asks for."""
    return Reading(cast("SparkSession", None), tuple(plans), settings_of(bootstrap))


def _shares(reading: Reading, found: Sequence[Edge]) -> list[int]:
    """How many records lie between the edges: by reading all of them."""
    pieces = {piece.tp: piece for piece in reading.pieces}
    shares = [0] * (len(found) + 1)
    rows = {tp: piece.wanted for tp, piece in pieces.items()}
    with open_reader(reading.settings, reading.group_id, reading.isolation, rows) as reader:
        for batch in reader.timestamps():
            piece = pieces[batch.tp]
            windows = piece.windows_of(piece.owners_of(batch.offsets)).tolist()
            for row in zip(
                windows, batch.timestamps_ms.tolist(), batch.offsets.tolist(), strict=True
            ):
                place = Edge(row[0], row[1], batch.tp.topic, batch.tp.partition, row[2])
                shares[bisect_right(found, place)] += 1
    return shares


def _all_of(topic: str, ends: dict[int, int]) -> list[WindowPlan]:
    return [plan_of([part_of(topic, n, OffsetSet.of((0, end))) for n, end in ends.items()])]


def _scattered(topic: str, ends: dict[int, int]) -> list[WindowPlan]:
    """Every second run of ten offsets, and nothing of the third quarter."""
    offsets = np.arange(max(ends.values()))
    kept = (offsets // 10 % 2 == 0) & (offsets * 4 // offsets.size != 2)
    return [plan_of([part_of(topic, n, OffsetSet.from_offsets(offsets[kept])) for n in ends])]


def _many(topic: str, ends: dict[int, int]) -> list[WindowPlan]:
    """Twenty windows, one behind the other in each log, the first of them half of everything."""
    bounds = [0, *(1_500 + 1_500 * n // 19 for n in range(20))]
    return [
        plan_of(
            [
                part_of(topic, n, OffsetSet.of((bounds[w], bounds[w + 1])))
                for n in ends
                if bounds[w + 1] > bounds[w]
            ],
            window_id=f"w{w}",
        )
        for w in reversed(range(20))
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("times", "plans", "transaction_records"),
    [
        pytest.param(lambda n, _: n * 10, _all_of, None, id="even"),
        pytest.param(lambda n, rng: n if rng.random() < 0.1 else 1_500, _all_of, None, id="equal"),
        pytest.param(lambda _, rng: rng.randrange(3_000), _all_of, None, id="out-of-order"),
        pytest.param(lambda n, _: n, _scattered, None, id="scattered"),
        pytest.param(lambda n, _: n, _many, None, id="many-windows"),
        pytest.param(lambda n, _: n, _all_of, 2, id="markers"),
    ],
)
def test_shares_are_balanced(
    bootstrap: str,
    topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    times: Times,
    plans: Callable[[str, dict[int, int]], list[WindowPlan]],
    transaction_records: int | None,
) -> None:
    """However times lie in the logs, no task gets half as much again as it should."""
    monkeypatch.setattr(edges, "RUN_STEP_OFFSETS", 200)
    monkeypatch.setattr(edges, "RUN_OFFSETS", 8)
    name = topic(partitions=PARTITIONS)
    ends = _fill(bootstrap, name, times, transaction_records=transaction_records)
    reading = _reading(bootstrap, plans(name, ends))
    found = edges_of(reading, BUCKETS)
    assert len(found) == BUCKETS - 1
    assert found == sorted(set(found))
    shares = _shares(reading, found)
    assert max(shares) < 1.5 * sum(shares) / BUCKETS


def test_a_look_takes_little_of_a_log(
    bootstrap: str, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is asked for, only runs are: some for each task, however large the log."""
    asked: list[int] = []
    monkeypatch.setattr(edges, "RUN_STEP_OFFSETS", 50)

    def counted(*given: Any, **named: Any) -> Any:
        asked.extend(offsets.count for offsets in given[3].values())
        return open_reader(*given, **named)

    monkeypatch.setattr(edges, "open_reader", counted)
    name = topic(partitions=PARTITIONS)
    ends = _fill(bootstrap, name, lambda n, _: n)
    edges_of(_reading(bootstrap, _all_of(name, ends)), 2)
    most = 2 * edges.RUNS_PER_BUCKET + PARTITIONS
    assert 0 < sum(asked) <= most * edges.RUN_OFFSETS


def test_a_window_of_markers_has_one_share(
    bootstrap: str, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no run finds a visible record there is no edge, and one task sorts what there is."""
    monkeypatch.setattr(edges, "RUN_STEP_OFFSETS", 1)
    name = topic()
    producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    for _ in range(3):
        producer.begin_transaction()
        producer.produce(name, b"v", partition=0, timestamp=CUTOFF_MS)
        producer.flush()
        producer.abort_transaction(30)
    plan = plan_of([part_of(name, 0, OffsetSet.of((0, 6)))])
    assert edges_of(_reading(bootstrap, [plan]), 4) == []


# Dealing out: no Kafka


@pytest.mark.parametrize("seed", range(3))
def test_a_bucket_is_the_number_of_edges_passed(spark: SparkSession, seed: int) -> None:
    """For random rows and edges, none to many, edges among the rows, all five columns deciding."""
    rng = random.Random(seed)
    number = (0, 1, 37)[seed]

    def place() -> Edge:
        stamp = CUTOFF_MS + rng.randrange(-2, 3)
        return Edge(rng.randrange(2), stamp, rng.choice("ab"), rng.randrange(2), rng.randrange(4))

    found = sorted({place() for _ in range(number)})
    rows = [place() for _ in range(200)] + found
    frame = spark.createDataFrame(
        [tuple(row) for row in rows],
        f"{WINDOW_NUMBER} int, ms long, topic string, partition int, offset long",
    ).selectExpr("*", "timestamp_millis(ms) AS timestamp")
    dealt = order._with_bucket(frame, found, MANY_ORDER).collect()
    assert [row[order._BUCKET] for row in dealt] == [bisect_right(found, row) for row in rows]


@given(partitions=st.integers(1, 3_000))
def test_there_is_a_key_for_each_partition(partitions: int) -> None:
    """Each is another one, whatever the number of partitions."""
    keys = order.keys_by_partition(partitions)
    assert len(set(keys)) == len(keys) == partitions


@pytest.mark.long
@pytest.mark.parametrize("partitions", [1, 2, 7, 200])
def test_keys_lead_where_spark_puts_them(spark: SparkSession, partitions: int) -> None:
    """By Spark's own hash, and by where rows really come out."""
    keys = order.keys_by_partition(partitions)
    frame = spark.createDataFrame([(key,) for key in keys], "key int")
    places = frame.selectExpr(f"pmod(hash(key), {partitions})").collect()
    assert [row[0] for row in places] == list(range(partitions))
    buckets = spark.createDataFrame([(n,) for n in range(partitions)], f"{order._BUCKET} int")
    dealt = order._repartition_by_hash(buckets, partitions).selectExpr("*", "spark_partition_id()")
    assert all(bucket == partition for bucket, partition in dealt.collect())


@pytest.fixture(params=["by-id", "by-hash"])
def dealing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to put a bucket into a task: that of Spark 4.1, and that for what was before it."""
    if request.param == "by-hash":
        monkeypatch.setattr(order, "_repartition_by_id", order._repartition_by_hash)


@pytest.mark.long
@pytest.mark.usefixtures("dealing")
def test_windows_are_in_order_over_several_tasks(
    bootstrap: str, cases: list[Case], spark: SparkSession
) -> None:
    """Window after window, time after time, over the partitions of the result."""
    frame = read_windows(spark, plans_of(cases), settings_of(bootstrap), ordered=True)
    assert frame.rdd.getNumPartitions() > 2
    assert told(frame) == wanted(cases)


# Kafka is read once


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Counter[str]]:
    """What the tasks have read so far, as they write it down themselves: slice -> how often."""
    path = tmp_path / "reads"
    path.touch()

    # Pickled as they are, with the path, for they cannot be imported.
    class LoggedReader(KafkaWindowReader):
        def read(self, partition: Any) -> Iterator[Any]:
            slices = sorted((str(piece.tp), piece.wanted.ranges) for piece in partition.pieces)
            with open(path, "a") as file:
                file.write(json.dumps(slices) + "\n")
            yield from KafkaWindowReader.read(self, partition)

        def __reduce__(self) -> tuple[Any, ...]:
            return LoggedReader, (replace(self._read, slices=()),)

    class LoggedSource(KafkaWindowSource):
        def reader(self, schema: Any) -> KafkaWindowReader:
            return LoggedReader(KafkaWindowSource.reader(self, schema)._read)

        def __reduce__(self) -> tuple[Any, ...]:
            return LoggedSource, (dict(self.options), self._read)

    def source_of(read: WindowRead, name: str) -> type[KafkaWindowSource]:
        class OneRead(LoggedSource):
            source_name = name

            def __init__(self, options: dict[str, str]) -> None:
                KafkaWindowSource.__init__(self, options, read)

        return OneRead

    monkeypatch.setattr(source, "source_of", source_of)
    return lambda: Counter(path.read_text().splitlines())


def _offsets(slices: Counter[str]) -> dict[TopicPartition, OffsetSet]:
    found: dict[TopicPartition, OffsetSet] = {}
    for line in slices:
        for name, ranges in json.loads(line):
            tp = TopicPartition(name.partition("[")[0], int(name.partition("[")[2].rstrip("]")))
            mine = OffsetSet.from_ranges(tuple(one) for one in ranges)
            assert not found.get(tp, EMPTY_SET) & mine
            found[tp] = found.get(tp, EMPTY_SET) | mine
    return found


def _collected(frame: DataFrame, cases: list[Case], root: Path) -> None:
    assert told(frame) == wanted(cases)


def _written(frame: DataFrame, cases: list[Case], root: Path) -> None:
    outputs = write_windows(frame, root, plans_of(cases))
    assert [one.facts["records"] for one in outputs] == [len(case.rows) for case in cases]


def _written_alone(frame: DataFrame, cases: list[Case], root: Path) -> None:
    assert write_window(frame, root, cases[0].plan).facts["records"] == len(cases[0].rows)


def _by_key(frame: DataFrame, cases: list[Case], root: Path) -> None:
    frame = frame.select("key", "timestamp", "topic", "partition", "offset")
    frame = map_by_key(
        frame, lambda groups: (one for _, found in groups for one in found), frame.schema
    )
    assert frame.count() == sum(len(case.rows) for case in cases)


@pytest.mark.long
@pytest.mark.parametrize(
    ("ordered", "take", "windows"),
    [
        pytest.param(True, _collected, 5, id="collected"),
        pytest.param(True, _written, 5, id="ordered-windows-written"),
        pytest.param(False, _written, 5, id="windows-sorted-by-write"),
        pytest.param(True, _written_alone, 1, id="ordered-window-written"),
        pytest.param(False, _written_alone, 1, id="window-sorted-by-write"),
        pytest.param(False, _by_key, 5, id="by-key"),
    ],
)
def test_each_slice_is_read_once(
    bootstrap: str,
    cases: list[Case],
    spark: SparkSession,
    tmp_path: Path,
    reads: Callable[[], Counter[str]],
    ordered: bool,
    take: Callable[[DataFrame, list[Case], Path], None],
    windows: int,
) -> None:
    """Whoever sorts: all that is planned is read by some task, and by one task only."""
    mine = cases[:windows]
    frame = read_windows(spark, plans_of(mine), settings_of(bootstrap), ordered=ordered)
    take(frame, mine, tmp_path / "out")
    slices = reads()
    assert len(slices) > 2
    assert set(slices.values()) == {1}
    planned = {tp: EMPTY_SET for case in mine for tp in case.plan.taken}
    for case in mine:
        planned |= {tp: planned[tp] | offsets for tp, offsets in case.plan.taken.items()}
    assert _offsets(slices) == planned


@pytest.mark.long
def test_the_order_by_hash_reads_once_too(
    bootstrap: str,
    cases: list[Case],
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    reads: Callable[[], Counter[str]],
) -> None:
    """On a Spark without ``repartitionById`` as on one with it."""
    monkeypatch.setattr(order, "_repartition_by_id", order._repartition_by_hash)
    frame = read_windows(spark, plans_of(cases), settings_of(bootstrap), ordered=True)
    assert told(frame) == wanted(cases)
    assert set(reads().values()) == {1}


@pytest.mark.long
def test_an_order_by_spark_alone_reads_twice(
    bootstrap: str, cases: list[Case], spark: SparkSession, reads: Callable[[], Counter[str]]
) -> None:
    """What the edges are for, and that the counting would notice."""
    frame = read_windows(spark, plans_of(cases), settings_of(bootstrap))
    frame.orderBy("timestamp", "topic", "partition", "offset").collect()
    assert set(reads().values()) == {2}
