"""A window whose values are in Avro, Protobuf or JSON: as bytes, decoded by the package, and by Spark's ``from_avro``."""

from __future__ import annotations

import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import confluent_kafka as ck

from benchmarks.backlog import DAY_START, PARTITIONS, has_topic, make_empty_topic
from benchmarks.encoded import AVRO, AVRO_SCHEMA, ENCODINGS, Encoding
from benchmarks.sessions import connector_options, rows_in, spark_session
from benchmarks.values import Comparison, Contender, Outcome, Place, Work
from kafka_ordered_ops import Earliest, OrderedWindows, Window
from kafka_ordered_ops.core.times import time_ms
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.embedded.jars import listed_jars
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.writing.stage import stage_window
from kafka_ordered_ops.output.writing.staged_output import StagedOutput
from kafka_ordered_ops.spark import read_window, write_window

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECODED: Final = "decoded"
LOCAL: Final = "local"
PYTHON: Final = "python"
CONNECTOR: Final = "connector"
FROM_AVRO: Final = "connector and from_avro"

_JARS: Final = Path(__file__).with_name("spark_avro.sha256")
#: So many values are made, and repeated.
_VALUES: Final = 100_000
_FLUSH_TIMEOUT_S: Final = 300.0


def as_bytes(way: str, encoding: Encoding) -> str:
    """The name of an engine that leaves values as they are."""
    return f"{way}, {encoding.name}"


def decoded(way: str, encoding: Encoding) -> str:
    """The name of an engine that decodes."""
    return f"{way}, {encoding.name} decoded"


def with_bad(one_in: int) -> str:
    """The name of engine local over values of which some are bad, and kept."""
    return f"{LOCAL}, Avro decoded, 1 bad in {one_in:,}"


BAD_ONE_IN: Final = (10_000, 100)


@dataclass(frozen=True)
class DecodedWindow:
    """Plans the window for a new group, delivers it to Parquet, commits and publishes."""

    records: int
    way: str
    encoding: Encoding
    is_decoded: bool
    bad_one_in: int | None = None

    def start(self, place: Place) -> Work:
        """Starts Spark where it is used."""
        spark = None if self.way == LOCAL else spark_session(self.way)
        window = _window(self.records, self.encoding, self.bad_one_in, is_decoded=self.is_decoded)

        def run(round_: int) -> Outcome:
            out = place.folder / f"round-{round_}"
            group_id = f"bench-{uuid.uuid4().hex[:12]}"
            with OrderedWindows({"bootstrap.servers": place.bootstrap}, group_id) as windows:
                plan = windows.plan(window, "day")
                started = time.perf_counter()
                staged = _deliver(spark, plan, windows.settings, out)
                seconds = time.perf_counter() - started
                windows.commit(plan, staged)
            rows = rows_in(out.glob("window_id=*"))
            shutil.rmtree(out)
            return Outcome(seconds=seconds, records=rows)

        return Work(run)


def _deliver(
    spark: SparkSession | None, plan: WindowPlan, settings: ClientSettings, out: Path
) -> StagedOutput:
    if spark is None:
        return stage_window(plan, settings, out, ordered=False)
    return write_window(read_window(spark, plan, settings), out, plan, ordered=False)


@dataclass(frozen=True)
class FromAvro:
    """The plain connector reads the same ranges; Spark decodes them, or leaves them as bytes."""

    records: int
    is_decoded: bool

    def start(self, place: Place) -> Work:
        """Starts Spark with its package for Avro, and asks for the window's offsets."""
        spark = spark_session(CONNECTOR, more_jars=listed_jars(_JARS, "spark-avro"))
        with OrderedWindows({"bootstrap.servers": place.bootstrap}, "bench-preview") as windows:
            plan = windows.preview(_window(self.records, AVRO, None, is_decoded=False), "day")
        options = connector_options(place.bootstrap, plan, headers=True)

        def run(round_: int) -> Outcome:
            from pyspark.sql.avro.functions import from_avro

            out = place.folder / f"round-{round_}"
            started = time.perf_counter()
            frame = spark.read.format("kafka").options(**options).load()
            if self.is_decoded:
                frame = frame.withColumn("value", from_avro("value", AVRO_SCHEMA))
            frame.write.option("compression", "zstd").parquet(str(out))
            seconds = time.perf_counter() - started
            rows = rows_in([out])
            shutil.rmtree(out)
            return Outcome(seconds=seconds, records=rows)

        return Work(run)


def decoded_comparison(records: int) -> Comparison:
    """Every engine with and without decoding, and the connector."""
    ways = [(way, encoding) for encoding in ENCODINGS for way in (LOCAL, PYTHON)]
    bad = [DecodedWindow(records, LOCAL, AVRO, True, one_in) for one_in in BAD_ONE_IN]
    return Comparison(
        DECODED,
        (
            *(
                Contender(name(way, encoding), records, DecodedWindow(records, way, encoding, done))
                for way, encoding in ways
                for done, name in ((False, as_bytes), (True, decoded))
            ),
            *(
                Contender(with_bad(one_in), records, work)
                for one_in, work in zip(BAD_ONE_IN, bad, strict=True)
            ),
            Contender(CONNECTOR, records, FromAvro(records, is_decoded=False)),
            Contender(FROM_AVRO, records, FromAvro(records, is_decoded=True)),
        ),
        lambda place: _make_topics(place, records),
    )


def _topic(records: int, encoding: Encoding, bad_one_in: int | None) -> str:
    name = f"{encoding.name.lower()}-{records}"
    return name if bad_one_in is None else f"{name}-bad-{bad_one_in}"


def _window(
    records: int, encoding: Encoding, bad_one_in: int | None, *, is_decoded: bool
) -> Window:
    return Window(
        _topic(records, encoding, bad_one_in),
        cutoff=DAY_START,
        starting_offsets=Earliest(),
        values=encoding.wanted if is_decoded else None,
        on_bad="keep" if bad_one_in else "fail",
    )


def _make_topics(place: Place, records: int) -> None:
    wanted = [(encoding, None) for encoding in ENCODINGS]
    for encoding, bad_one_in in (*wanted, *((AVRO, one_in) for one_in in BAD_ONE_IN)):
        topic = _topic(records, encoding, bad_one_in)
        if has_topic(place.bootstrap, topic):
            continue
        make_empty_topic(place.bootstrap, topic, partitions=PARTITIONS)
        _fill(place.bootstrap, topic, records, encoding.values(_VALUES, bad_one_in))


def _fill(bootstrap: str, topic: str, records: int, orders: list[bytes]) -> None:
    start_ms = time_ms(DAY_START, what="day") - records
    producer = ck.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "delivery.report.only.error": True,
        }
    )
    for n in range(records):
        while True:
            try:
                producer.produce(
                    topic,
                    value=orders[n % len(orders)],
                    key=b"%06d" % (n % 10_007),
                    partition=n % PARTITIONS,
                    timestamp=start_ms + n,
                )
                break
            except BufferError:
                producer.poll(0.05)
    # What is missing shows in the number of rows, of which each contender has as many.
    producer.flush(_FLUSH_TIMEOUT_S)
