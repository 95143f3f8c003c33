"""Hand out records: a lease is written to the log and read back before the client gets it."""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.relay.log_records import Leased, Released
from kafka_ordered_ops.core.relay.pending import PendingRecords
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.relay.leases.handout import Handout
from kafka_ordered_ops.relay.leases.partition import Claim, Partition
from kafka_ordered_ops.relay.leases.reads import Answers, OpenLease, Read, Waiting
from kafka_ordered_ops.relay.limits import READ_BYTES_MAX
from kafka_ordered_ops.relay.log import LogWriter
from kafka_ordered_ops.relay.ports import Delivered
from kafka_ordered_ops.relay.tokens import LEASE_ID_BYTES, RANGES_MAX, Lease, TokenSigner

#: The shortest remaining time of a delivered lease, which may have waited for the log.
_LEASE_LEFT_MS_MIN: Final = 100
_IDS_AT_ONCE: Final = 256

_log = logging.getLogger(__name__)


class Leasing:
    """Lease records to waiting reads."""

    def __init__(
        self,
        partitions: Mapping[TopicPartition, Partition],
        log: LogWriter,
        waiting: Waiting,
        answers: Answers,
        post: Callable[[Callable[[], None]], None],
        changed: Callable[[str], None],
    ) -> None:
        self._partitions = partitions
        self._log, self._waiting, self._answers = log, waiting, answers
        self._post = post
        #: Called with a group to serve again.
        self._changed = changed
        #: Leases that are written and not read back, by id.
        self._open: dict[str, OpenLease] = {}
        #: The leased records of readers with limits.
        self.pending = PendingRecords()
        #: Groups with reads that wait because their reader has reached its limit of records.
        self.limited: set[str] = set()
        #: The partition at which the next read starts, so that none is always the last.
        self._turn = 0
        self.signer: TokenSigner | None = None
        self._random = b""

    def serve(self, group: str, now_ms: int) -> None:
        """Lease the available records to the waiting reads of a group."""
        queue = self._waiting.of(group)
        handouts = [
            (partition, partition.handouts[group])
            for partition in self._partitions.values()
            if partition.is_mine and group in partition.handouts
        ]
        waits: list[Read] = []
        while queue and handouts:
            read = queue.popleft()
            if not read.is_wanted:
                continue
            self._lease(read, handouts, now_ms)
            if not read.open:
                waits.append(read)
                if read.is_limited:
                    self.limited.add(group)
                elif read.topics is None:
                    break  # Nothing is left for later reads either.
        for read in reversed(waits):
            queue.appendleft(read)

    def next_change_ms(self, group: str, now_ms: int) -> int | None:
        """Return when the next lease of a group ends on this server's partitions."""
        times = [
            partition.handouts[group].serving.next_change_ms(now_ms)
            for partition in self._partitions.values()
            if partition.is_mine and group in partition.handouts
        ]
        return min((end_ms for end_ms in times if end_ms is not None), default=None)

    def seen(self, partition: Partition, record: Leased) -> None:
        """Process a lease from the log: if it is this server's and valid, its records go to the client."""
        opened = self._open.pop(record.lease_id, None)
        if opened is None:
            return
        read, handout = opened.read, opened.handout
        # Records that any server acknowledged before this place in the log are done.
        left = handout.progress.left(opened.offsets)
        counts = partition.claim is Claim.HELD and handout.progress.has_lease(record.lease_id)
        if counts and (outrun := handout.serving.outrun(left)):
            # The previous lease was extended just before its end, and its client still holds them.
            self._give_back(handout.tp, handout.group, record.lease_id, outrun)
            left -= outrun
        if not counts:
            self.pending.release(record.lease_id, opened.offsets)
            _log.info("%s, group %s: a lease does not count", partition.tp, handout.group)
        elif left and not read.is_wanted:
            self._give_back(handout.tp, handout.group, record.lease_id, left)
        elif left and opened.until_ms - _now_ms() >= _LEASE_LEFT_MS_MIN and self.signer is not None:
            records = handout.records(left, opened.attempt)
            lease = Lease(
                handout.tp,
                partition.topic_id,
                handout.group,
                record.lease_id,
                left,
                opened.until_ms,
            )
            token = self.signer.token_of(lease)
            read.records.append(Delivered(handout.tp, records, token, opened.until_ms))
            read.leases.append((record.lease_id, left))
        self._settle(read)

    def drop(self, partition: Partition) -> None:
        """Forget the leases of a partition that this server has lost."""
        self.pending.drop(partition.tp)
        for lease_id in [
            key for key, opened in self._open.items() if opened.partition is partition
        ]:
            self._settle(self._open.pop(lease_id).read)

    def _lease(self, read: Read, handouts: list[tuple[Partition, Handout]], now_ms: int) -> None:
        left, left_bytes = self._room(read, now_ms), float(READ_BYTES_MAX)
        read.is_limited = left <= 0
        if read.is_limited:
            return
        self._turn += 1
        start = self._turn % len(handouts)
        for partition, handout in handouts[start:] + handouts[:start]:
            if not read.wants(handout.tp.topic):
                continue
            size = max(handout.record_bytes, 1.0)
            # The first record is delivered, however large it is.
            most = min(left, int(left_bytes / size) or int(not read.open))
            for attempt, offsets in handout.take(most, now_ms):
                for part in _parts(offsets):
                    self._write(read, partition, handout, part, attempt, now_ms)
                left -= offsets.count
                left_bytes -= size * offsets.count
            if left <= 0 or left_bytes <= 0:
                break
        if read.open:
            self._waiting.leasing(read)

    def _write(
        self,
        read: Read,
        partition: Partition,
        handout: Handout,
        offsets: OffsetSet,
        attempt: int,
        now_ms: int,
    ) -> None:
        lease_id = self._new_id()
        until_ms = now_ms + read.lease_ms
        self._open[lease_id] = OpenLease(read, partition, handout, offsets, attempt, until_ms)
        read.open += 1
        reader = read.reader
        if reader is not None:
            self.pending.lease(reader.name, handout.tp, handout.group, lease_id, offsets, until_ms)
        counted = attempt if reader is None or reader.counts else attempt - 1
        record = Leased(handout.group, lease_id, partition.epoch, offsets, until_ms, counted)

        def report(error: KafkaOrderedOpsError | None) -> None:
            if error is None:
                return
            # It may be stored nevertheless; then the lease has no client, and expires.
            _log.warning("a lease was not stored: %s", error)
            self.pending.release(lease_id, offsets)
            if (opened := self._open.pop(lease_id, None)) is not None:
                handout.serving.untake(offsets)
                opened.read.is_unstored = True
                self._settle(opened.read, is_stored=False)

        self._log.append(handout.tp, record, report)

    def _room(self, read: Read, now_ms: int) -> int:
        """Return how many records a read may have."""
        if read.reader is None:
            return read.records_max
        held = self.pending.count(read.reader.name, now_ms)
        return min(read.records_max, read.reader.pending_max - held)

    def _new_id(self) -> str:
        """Return random digits. They are fetched in bulk, because another thread may take over at each fetch."""
        if not self._random:
            self._random = secrets.token_bytes(_IDS_AT_ONCE * LEASE_ID_BYTES)
        digits, self._random = self._random[:LEASE_ID_BYTES], self._random[LEASE_ID_BYTES:]
        return digits.hex()

    def _give_back(self, tp: TopicPartition, group: str, lease_id: str, offsets: OffsetSet) -> None:
        """Release records that nobody waits for any more, for the next read."""
        record = Released(group, lease_id, offsets)
        self.pending.release(lease_id, offsets)

        def report(error: KafkaOrderedOpsError | None) -> None:
            if error is not None:
                _log.info("a lease of a caller who is gone ends by itself: %s", error)

        self._log.append(tp, record, report)

    def _unwanted(self, read: Read) -> None:
        """Release the records of a read whose caller was gone when they were delivered."""
        for delivered, (lease_id, offsets) in zip(read.records, read.leases, strict=True):
            self._give_back(delivered.tp, read.group, lease_id, offsets)

    def _settle(self, read: Read, *, is_stored: bool = True) -> None:
        """Count down the open leases of a read; answer the read after the last one."""
        read.open -= 1
        if read.open:
            return
        self._waiting.leased(read)
        if not read.is_wanted:
            return
        if read.records:
            read.is_over = True
            self._answers.give(
                read.future,
                (read.records, False),
                unwanted=lambda: self._post(lambda: self._unwanted(read)),
            )
        else:
            self._waiting.add(read, first=True)
            # Records that came in the meantime found no waiting read. A log that does not store leases must not be retried
            # without a pause.
            if is_stored:
                self._changed(read.group)


def _parts(offsets: OffsetSet) -> list[OffsetSet]:
    """Split offsets into parts that each fit into a token."""
    if len(offsets) <= RANGES_MAX:
        return [offsets]
    ranges: deque[tuple[int, int]] = deque(offsets.ranges)
    parts = []
    while ranges:
        part = [ranges.popleft() for _ in range(min(RANGES_MAX, len(ranges)))]
        parts.append(OffsetSet.from_ranges(part))
    return parts


def _now_ms() -> int:
    return int(time.time() * 1_000)
