"""The world of scripts in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kafka_ordered_ops.testing import InMemoryKafka, Transaction, TransactionState
from tests.support.windows_support import BASE_MS
from tests.support.worlds import Content, World


class MemoryWorld(World):
    """A world on a model of its own."""

    stall_timeout_s = 0.1

    def __init__(self, *, suffix: str | None = None) -> None:
        self.kafka = InMemoryKafka()
        super().__init__(self.kafka.settings, suffix=suffix)
        self._stack.enter_context(self.kafka)
        self._open: dict[str, Transaction] = {}

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        # One segment, unless the script wants more; see the other world.
        one_segment = {"segment.ms": str(2**63 - 1)}
        self.kafka.create_topic(self.named(topic), partitions, {**one_segment, **settings})

    def delete(self, topic: str) -> None:
        self.kafka.delete_topic(self.named(topic))

    def add_partitions(self, topic: str, partitions: int) -> None:
        self.kafka.add_partitions(self.named(topic), partitions)

    def write_content(self, topic: str, partition: int, records: Sequence[Content]) -> None:
        for second, key, value, headers in records:
            self.kafka.produce(
                self.named(topic),
                partition=partition,
                timestamp_ms=BASE_MS + round(second * 1000),
                key=key,
                value=value,
                headers=headers,
            )

    def write_at_ms(self, topic: str, partition: int, times_ms: Sequence[int]) -> None:
        for time_ms in times_ms:
            self.kafka.produce(
                self.named(topic), partition=partition, timestamp_ms=time_ms, value=b"x"
            )

    def send(self, transaction: str, topic: str, partition: int, *seconds: float) -> None:
        found = self._open.get(transaction)
        if found is None or found.state is not TransactionState.OPEN:
            found = self._open[transaction] = self.kafka.transaction(transaction)
        for second in seconds:
            found.produce(
                self.named(topic),
                partition=partition,
                timestamp_ms=BASE_MS + round(second * 1000),
                value=b"x",
            )

    def end(self, transaction: str, how: str) -> None:
        getattr(self._open.pop(transaction), how)()

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        self.kafka.delete_records(self.named(topic), partition, offset)

    def compact(self, topic: str, offsets: set[int]) -> None:
        gone = self.kafka.compact(self.named(topic), 0)
        assert set(gone) == offsets

    def foreign_commit(
        self, group_id: str, topic: str, offsets: Mapping[int, int], metadata: bytes = b""
    ) -> None:
        named = {self.tp(topic, number): offset for number, offset in offsets.items()}
        self.kafka.commit(self.named(group_id), named, metadata)

    def expire(self, group_id: str, topic: str, *partitions: int) -> None:
        self.kafka.expire_offsets(
            self.named(group_id), [self.tp(topic, number) for number in partitions]
        )

    def join(self, group_id: str, client_id: str) -> Callable[[], None]:
        return self.kafka.join(self.named(group_id), client_id).leave
