"""Batches of records that are small in the log and large in memory."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, Producer

from tests.support.windows_support import BASE_MS, TIMEOUT_S


def put_batch(
    bootstrap: str,
    topic: str,
    sizes: Sequence[int],
    *,
    codec: str,
    fill: bytes = b"\0",
    partition: int = 0,
    seconds: Sequence[float] | None = None,
) -> None:
    """Write records of so many equal bytes as one batch; it is below a megabyte, as brokers accept it by default."""
    failures: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "message.max.bytes": 1_000_000_000,
            "batch.size": 1_000_000_000,
            "linger.ms": 60_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    # While a producer does not know a topic, records wait apart, and `flush` may send the first of them alone.
    producer.list_topics(topic, timeout=TIMEOUT_S)
    for number, size in enumerate(sizes):
        second = number if seconds is None else seconds[number]
        producer.produce(
            topic,
            key=b"key",
            value=fill * size,
            partition=partition,
            timestamp=round(BASE_MS + second * 1000),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    left = producer.flush(2 * TIMEOUT_S)
    assert (failures, left) == ([], 0)


#: A batch that the client does not unpack: 104 MB, in some kilobytes.
BOMB = (26_000_000,) * 4
