"""Create, grow and trim this package's own topics, other than the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka.admin import NewPartitions

from kafka_ordered_ops.core.errors import BrokerUnreachableError, KafkaOrderedOpsError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.client.asking import Asker, Rules
from kafka_ordered_ops.kafka.client.errors import UNKNOWN_TOPIC, FaultReasons, translate
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.kafka.topic_creation import TopicCreation

#: The answer for growing a topic that already has that many partitions, or more.
_IS_LARGE: Final = ck.KafkaError.INVALID_PARTITIONS
#: The answer for records that were deleted before.
_IS_GONE: Final = ck.KafkaError.OFFSET_OUT_OF_RANGE


class InternalTopics:
    """Create and trim topics. A context manager, for one thread."""

    def __init__(self, settings: ClientSettings, *, timeout_s: float = TIMEOUT_S) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._reasons = FaultReasons(settings.secret_values())
        self._asker: Asker | None = None

    def __enter__(self) -> InternalTopics:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; may be called twice."""
        asker, self._asker = self._asker, None
        if asker is not None:
            asker.close()

    def ensure(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic with the number of replicas that suits the cluster; an existing topic stays as it is.

        Raises the `BrokerError` family: `AuthorizationError` if the right to create it is missing, `BrokerUnreachableError`
        while too few brokers are up.
        """
        creation = TopicCreation(
            self._open(), lambda error, doing: self._translated(error, doing, name), self._timeout_s
        )
        replicas = creation.missing_replicas(
            name, partitions, config, lambda error, doing: self._translated(error, doing, name)
        )
        if replicas is not None:
            raise BrokerUnreachableError(
                f"the topic {name} does not exist, and too few brokers are up to create it with {replicas} replicas. Try "
                "again when all brokers are up",
                code="INVALID_REPLICATION_FACTOR",
            )

    def grow(self, name: str, partitions: int) -> None:
        """Grow a topic to a number of partitions; a topic with more stays as it is. Raise the `BrokerError` family."""
        new = NewPartitions(name, partitions)
        self._refusal(
            f"adding partitions to the topic {name}",
            name,
            lambda admin, slice_s: admin.create_partitions([new], request_timeout=slice_s),
            allowed=(_IS_LARGE,),
        )

    def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete the records below offsets; repeating it changes nothing. Raise the `BrokerError` family."""
        requests = {
            tp: ck.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()
        }

        def ask(batch: list[TopicPartition], slice_s: float) -> dict[TopicPartition, Future[Any]]:
            sent = [requests[tp] for tp in batch]
            futures = self._open().admin.delete_records(sent, request_timeout=slice_s)
            by_place = {(place.topic, place.partition): future for place, future in futures.items()}
            return {tp: by_place[tp.topic, tp.partition] for tp in batch}

        doing = "deleting records"
        _, refused = self._open().ask(
            doing,
            requests,
            ask,
            lambda _: True,
            Rules(refusals_too=True, passing=UNKNOWN_TOPIC),
            self._timeout_s,
        )
        for tp, error in refused.items():
            if error.args[0].code() != _IS_GONE:
                raise self._translated(error, doing, str(tp)) from error

    def _refusal(
        self,
        doing: str,
        name: str,
        ask: Callable[[Any, float], Mapping[str, Future[Any]]],
        *,
        allowed: tuple[int, ...],
    ) -> int | None:
        """Send a request about one topic; return the code of an allowed refusal, or None after a success."""
        asker = self._open()
        _, refused = asker.ask(
            doing,
            [name],
            lambda _, slice_s: ask(asker.admin, slice_s),
            lambda _: True,
            Rules(refusals_too=True),
            self._timeout_s,
        )
        error = refused.get(name)
        if error is None:
            return None
        code: int = error.args[0].code()
        if code not in allowed:
            raise self._translated(error, doing, name) from error
        return code

    def _open(self) -> Asker:
        if self._asker is None:
            self._asker = Asker(self._settings, self._reasons)
        return self._asker

    def _translated(self, error: ck.KafkaException, doing: str, where: str) -> KafkaOrderedOpsError:
        return translate(error, doing=doing, where=where, reasons=self._reasons)
