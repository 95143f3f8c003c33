"""Topics that this package keeps for itself beside the ledger: created, grown, and trimmed at their start."""

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

#: The answer to growing a topic that has as many partitions already, or more.
_IS_LARGE: Final = ck.KafkaError.INVALID_PARTITIONS
#: The records were deleted before.
_IS_GONE: Final = ck.KafkaError.OFFSET_OUT_OF_RANGE


class InternalTopics:
    """Creates and trims topics. A context manager, for one thread."""

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
        """Create a topic with as many replicas as the cluster should give it; one that exists stays as it is.

        Raises the `BrokerError` family: `AuthorizationError` without the right to create it, `BrokerUnreachableError`
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
        """Bring a topic to a number of partitions; one that has more stays as it is. Raises the `BrokerError` family."""
        new = NewPartitions(name, partitions)
        self._refusal(
            f"adding partitions to the topic {name}",
            name,
            lambda admin, slice_s: admin.create_partitions([new], request_timeout=slice_s),
            allowed=(_IS_LARGE,),
        )

    def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete the records below offsets; repeating it changes nothing. Raises the `BrokerError` family."""
        wanted = {
            tp: ck.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()
        }

        def ask(some: list[TopicPartition], slice_s: float) -> dict[TopicPartition, Future[Any]]:
            sent = [wanted[tp] for tp in some]
            found = self._open().admin.delete_records(sent, request_timeout=slice_s)
            by_place = {(one.topic, one.partition): future for one, future in found.items()}
            return {tp: by_place[tp.topic, tp.partition] for tp in some}

        doing = "deleting records"
        _, refused = self._open().ask(
            doing,
            wanted,
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
        """Send a request about one topic; return the code of an allowed refusal, None if it was done."""
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
