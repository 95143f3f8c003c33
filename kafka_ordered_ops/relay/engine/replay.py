"""Read the logs of all partitions, which hold the state of the relay."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, cast

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, RecordsLostError, RelayError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.relay.log_batch import LogBatch, sorted_batch
from kafka_ordered_ops.core.relay.log_records import (
    Acknowledged,
    Extended,
    Finished,
    Leased,
    LogRecord,
    Opened,
    Owned,
    Released,
    Snapshot,
    decode,
)
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.relay.engine.server import Server
from kafka_ordered_ops.relay.leases.feed import Fed, Feed
from kafka_ordered_ops.relay.leases.partition import Partition
from kafka_ordered_ops.relay.log import SECRET_TP, data_tp, log_tp, new_secret, secret_of
from kafka_ordered_ops.relay.tokens import TokenSigner

#: The group id for quotas and for the brokers' logs; nobody joins it.
_READS_AS: Final = "kafka-ordered-ops-relay-log"
_COLUMNS: Final = ("offset", "value")

_log = logging.getLogger(__name__)


class _Decoded(NamedTuple):
    """The records of one turn from the log of one partition."""

    tp: TopicPartition
    number: int
    #: Single records where this server hands out records, because some confirm its own; otherwise a batch, which is faster.
    records: list[tuple[int, LogRecord]] | LogBatch
    position: int


class Replay:
    """Read the log, and apply it.

    Args:
        server: the server.
        opened: called when a group's beginning in a partition was read.
    """

    def __init__(self, server: Server, opened: Callable[[Partition, str], None]) -> None:
        self._server = server
        self._opened = opened
        self._secret_number = 0
        self._secret_end: int | None = None
        self._is_secret_sent = False
        self._feed = Feed(
            server.settings,
            _READS_AS,
            Isolation.READ_UNCOMMITTED,
            columns=_COLUMNS,
            on_turn=self._read,
            on_failure=lambda tp, number, error: server.post(
                lambda: self._failed(tp, number, error)
            ),
        )
        self._find_secret()

    def close(self) -> None:
        """Stop reading."""
        self._feed.close()

    def begin(self, partitions: list[Partition]) -> None:
        """Read the logs of partitions from their starts, or again for those that are being read already."""
        if not partitions:
            return
        by_log = {log_tp(partition.tp): partition for partition in partitions}

        def answered(spans: dict[TopicPartition, tuple[int, int]]) -> None:
            for tp, (start, end) in spans.items():
                partition = by_log[tp]
                if partition.replay_from is None:
                    partition.replay_from, partition.replay_to = start, end
                partition.position = max(partition.position, start)
                partition.number = self._feed.add(tp, OffsetSet.of((partition.position, INT64_MAX)))

        self._look_up(list(by_log), answered)

    # --- in the reading thread -----------------------------------------------------------------------

    def _read(self, fed: list[Fed], noted: Callable[[], None]) -> None:
        """Decode the records that were read, and post them."""
        decoded = []
        for part in fed:
            try:
                decoded.append(self._decoded(part))
            except KafkaOrderedOpsError as error:
                self._server.post(partial(self._failed, part.tp, part.number, error))

        def apply() -> None:
            noted()
            for result in decoded:
                if isinstance(result, bytes | None):
                    self._saw_secret(result)
                else:
                    self._apply(result)

        self._server.post(apply)

    def _decoded(self, fed: Fed) -> _Decoded | bytes | None:
        """Return the records of a turn; for the secret's topic, the first record's value."""
        if fed.records is None:
            return None if fed.tp == SECRET_TP else _Decoded(fed.tp, fed.number, [], fed.position)
        values = fed.records.column("value").to_pylist()
        if fed.tp == SECRET_TP:
            return cast("bytes | None", values[0])
        offsets: list[int] = cast(Any, fed.records.column("offset")).to_numpy().tolist()
        rows = zip(offsets, values, strict=True)
        # Before the partition is followed, a server writes no record that it must see singly. The end may be seen late.
        if self._server.partitions[data_tp(fed.tp)].is_followed:
            records = [(at, decode(value)) for at, value in rows]
            return _Decoded(fed.tp, fed.number, records, fed.position)
        return _Decoded(fed.tp, fed.number, sorted_batch(rows, fed.position), fed.position)

    # --- in the server's thread ----------------------------------------------------------------------

    def _apply(self, decoded: _Decoded) -> None:
        partition = self._server.partitions[data_tp(decoded.tp)]
        if decoded.number != partition.number:
            return
        if isinstance(decoded.records, LogBatch):
            try:
                self._fold(partition, decoded.records)
            except KafkaOrderedOpsError as error:
                self._failed(decoded.tp, decoded.number, error)
                return
        else:
            for offset, record in decoded.records:
                partition.state.apply(record, offset)
                partition.position = offset + 1
                if partition.is_assigned:
                    self._follow(partition, record)
                elif isinstance(record, Opened | Acknowledged | Finished):
                    self._server.dirty.add(record.group)
        partition.position = max(partition.position, decoded.position)

    def _fold(self, partition: Partition, batch: LogBatch) -> None:
        partition.state.fold(batch)
        self._server.dirty |= batch.groups
        if not partition.is_assigned:
            return
        for _, record in batch.others:
            self._follow(partition, record)

    def _follow(self, partition: Partition, record: LogRecord) -> None:
        """React to a record, as the server that hands out the partition's records."""
        match record:
            case Owned():
                if partition.saw_claim(record):
                    _log.info("%s belongs to server %s now", partition.tp, record.server_id)
                    self._server.stop_serving(partition)
                self._server.dirty.update(self._server.waiting.groups())
            case Leased():
                self._server.leasing.seen(partition, record)
            case Acknowledged():
                self._server.leasing.pending.acknowledge(partition.tp, record.group, record.offsets)
                handout = partition.handouts.get(record.group)
                if handout is not None:
                    handout.forget(record.offsets)
                self._server.dirty.add(record.group)
            case Extended():
                self._server.leasing.pending.extend(record.lease_id, record.until_ms)
            case Opened():
                self._opened(partition, record.group)
                self._server.dirty.add(record.group)
            case Released():
                self._server.leasing.pending.release(record.lease_id, record.offsets)
                self._server.dirty.add(record.group)
            case Finished():
                self._server.dirty.add(record.group)
            case Snapshot():
                # A server that lags behind may learn of a claim only from the snapshot.
                if partition.check_claim():
                    self._server.stop_serving(partition)
                self._server.dirty.update(self._server.waiting.groups())
                for group, handout in partition.handouts.items():
                    handout.forget_done()
                    self._server.leasing.pending.acknowledge(
                        partition.tp, group, handout.progress.acked
                    )

    def _failed(self, tp: TopicPartition, number: int, error: KafkaOrderedOpsError) -> None:
        if tp == SECRET_TP:
            _log.error("the relay's secret cannot be read: %s", error)
            return
        partition = self._server.partitions[data_tp(tp)]
        if number != partition.number:
            return
        if isinstance(error, RecordsLostError):
            # Another server has trimmed the log. The snapshot after the gap has the whole state.
            self.begin([partition])
            return
        partition.problem = RelayError(
            f"the log of {partition.tp} cannot be read, and its state is not known ({error}). Start the servers again when "
            "it can be read"
        )
        _log.error("%s", partition.problem)
        self._server.stop_serving(partition)

    def _look_up(
        self,
        partitions: list[TopicPartition],
        answered: Callable[[dict[TopicPartition, tuple[int, int]]], None],
    ) -> None:
        server = self._server

        def failed(error: KafkaOrderedOpsError) -> None:
            _log.warning("the ends of the relay's log are not known yet: %s", error)
            if error.retriable:
                self._look_up(partitions, answered)
                return
            for tp in partitions:
                if (partition := server.partitions.get(data_tp(tp))) is not None:
                    partition.problem = error

        server.requests.ask(lambda: server.requests.log_starts(partitions), answered, failed)

    # --- the secret ----------------------------------------------------------------------------------

    def _find_secret(self) -> None:
        def answered(spans: dict[TopicPartition, tuple[int, int]]) -> None:
            start, end = spans[SECRET_TP]
            if start == end:
                self._make_secret()
            self._feed.add(SECRET_TP, OffsetSet.of((start, INT64_MAX)))

        self._look_up([SECRET_TP], answered)

    def _make_secret(self) -> None:
        def report(error: KafkaOrderedOpsError | None) -> None:
            if error is not None:
                _log.warning("the relay's secret is not stored yet: %s", error)
                if self._server.leasing.signer is None:
                    self._make_secret()

        self._server.log.send(new_secret(), report)

    def _saw_secret(self, secret: bytes | None) -> None:
        # The first secret counts, whichever server wrote it.
        if secret is not None and self._server.leasing.signer is None:
            self._server.leasing.signer = TokenSigner(secret_of(secret))
            self._feed.stop(SECRET_TP)
