"""Random logs, read by librdkafka and by the native reader: the same records, to the byte."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.jvm_reading import TOOLS
from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.embedded import find_java
from kafka_ordered_ops.embedded.jars import KAFKA_VERSION, class_path, listed_jars
from kafka_ordered_ops.kafka.ports import open_lookup, open_reader
from kafka_ordered_ops.kafka.read.native import NativeReader
from tests.conftest import MakeTopic
from tests.support.examples import examples
from tests.support.readers import needs_native

pytestmark = [needs_native, pytest.mark.native]

_TIMEOUT_S = 30.0
_PARTITIONS = 2

Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Record:
    """What is written."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int


@dataclass(frozen=True)
class Written:
    """Records that are written together."""

    codec: str
    #: None: without a transaction.
    commits: bool | None
    records: tuple[Record, ...]


_sizes = st.sampled_from([0, 1, 7, 200, 5_000])
_bytes = st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), _sizes)
_headers = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
        st.none() | _bytes,
    ),
    max_size=3,
)
_records = st.builds(
    Record,
    partition=st.integers(0, _PARTITIONS - 1),
    key=st.none() | _bytes,
    value=st.none() | _bytes,
    headers=_headers.map(tuple),
    timestamp_ms=st.sampled_from([0, 1, 1_000, 1_700_000_000_000]) | st.integers(0, 2**40),
)
_written = st.builds(
    Written,
    codec=st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
    commits=st.sampled_from([None, None, True, False]),
    records=st.lists(_records, min_size=1, max_size=30).map(tuple),
)


def write(bootstrap: str, topic: str, writes: Sequence[Written]) -> None:
    """All of them, in order; each transaction ends."""
    for one in writes:
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "compression.type": one.codec,
            "linger.ms": 1,
        }
        if one.commits is not None:
            config["transactional.id"] = f"both-{uuid.uuid4().hex}"
        producer = Producer(config)
        if one.commits is not None:
            producer.init_transactions(_TIMEOUT_S)
            producer.begin_transaction()
        for record in one.records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
            )
        assert producer.flush(_TIMEOUT_S) == 0
        if one.commits is not None:
            (producer.commit_transaction if one.commits else producer.abort_transaction)(_TIMEOUT_S)


def produce_by_java(bootstrap: str, topic: str, codec: str, records: int) -> None:
    """Kafka's own tool writes records of 300 bytes."""
    jars = [*class_path(), *listed_jars(TOOLS, f"kafka-tools-{KAFKA_VERSION}")]
    properties = (f"bootstrap.servers={bootstrap}", f"compression.type={codec}", "batch.size=20000")
    main = "org.apache.kafka.tools.ProducerPerformance"
    subprocess.run(
        [
            *(
                str(find_java().executable),
                "-cp",
                os.pathsep.join(map(str, jars)),
                main,
                "--topic",
                topic,
            ),
            *("--num-records", str(records), "--record-size", "300", "--throughput", "-1"),
            *("--command-property", *properties),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )


def read(
    bootstrap: str,
    reader: str,
    isolation: Isolation,
    wanted: dict[TopicPartition, OffsetSet],
    columns: Sequence[str],
    **config: str,
) -> pa.Table:
    """The records, sorted by partition and offset; each partition came in order, and all positions are at the end."""
    by = ClientSettings.of({"bootstrap.servers": bootstrap, "reader": reader, **config})
    names = list(dict.fromkeys(("partition", "offset", *columns)))
    with open_reader(by, "g", isolation, wanted, columns=names) as opened:
        assert isinstance(opened, NativeReader) is (reader == "native")
        batches = list(opened.batches())
        positions = opened.positions
    assert positions == {tp: offsets.end for tp, offsets in wanted.items() if offsets}
    for batch in batches:
        batch.validate(full=True)
    table = pa.Table.from_batches(
        batches, schema=pa.schema([RECORD_SCHEMA.field(one) for one in names])
    )
    for number in range(_PARTITIONS):
        offsets = [
            row["offset"]
            for row in table.select(names[:2]).to_pylist()
            if row["partition"] == number
        ]
        assert offsets == sorted(set(offsets))
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")]).combine_chunks()


@pytest.mark.slow
@pytest.mark.timeout(10_800)
@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    # 990 logs by night.
    max_examples=examples(15),
)
@given(data=st.data())
def test_both_readers_return_the_same(
    bootstrap: str, topic: MakeTopic, data: st.DataObject
) -> None:
    """Of any log, any set of offsets, any columns, under either isolation level and with any size of fetches."""
    name = topic(partitions=_PARTITIONS)
    write(bootstrap, name, data.draw(st.lists(_written, min_size=1, max_size=6)))
    tps = [TopicPartition(name, number) for number in range(_PARTITIONS)]
    with open_lookup(ClientSettings.of(bootstrap)) as lookup:
        ends = lookup.end_offsets(tps, Isolation.READ_UNCOMMITTED)
    wanted = {}
    for tp in tps:
        # Shares of the log: what is drawn must not depend on when a transaction's marker is written.
        shares = data.draw(st.lists(st.integers(0, 1_000), max_size=6, unique=True).map(sorted))
        edges = sorted({share * ends[tp] // 1_000 for share in shares})
        ranges = list(zip(edges[::2], edges[1::2], strict=False))
        is_whole = data.draw(st.booleans())
        wanted[tp] = OffsetSet.of((0, ends[tp])) if is_whole else OffsetSet.of(*ranges)
    columns = data.draw(st.lists(st.sampled_from(RECORD_SCHEMA.names), unique=True))
    size = data.draw(st.sampled_from(["1000", "1048576"]))
    for isolation in Isolation:
        expected = read(bootstrap, "librdkafka", isolation, wanted, columns)
        found = read(
            bootstrap, "native", isolation, wanted, columns, **{"fetch.message.max.bytes": size}
        )
        assert found.equals(expected)


@pytest.mark.slow
def test_what_java_writes(bootstrap: str, topic: MakeTopic) -> None:
    """Its clients frame snappy in another way, and begin batches elsewhere."""
    for codec in ("gzip", "snappy", "lz4", "zstd", "none"):
        name = topic()
        produce_by_java(bootstrap, name, codec, 2_000)
        tp = TopicPartition(name, 0)
        wanted = {tp: OffsetSet.of((3, 1_500), (1_501, 2_000))}
        tables = [
            read(bootstrap, reader, Isolation.READ_COMMITTED, wanted, RECORD_SCHEMA.names)
            for reader in ("librdkafka", "native")
        ]
        assert tables[0].num_rows == 1_996
        assert tables[1].equals(tables[0]), codec
