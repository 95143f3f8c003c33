"""Write dead letters for records with no attempt left: a record is done once its dead letter is stored.

If the topic refuses a dead letter permanently, for example because it is too large, retrying it silently forever would
hide it. Instead the record is handed out again, as without a dead-letter topic, and its dead letter is retried after
each further lease. The status and the metrics count such records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, RelayError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.record import Result
from kafka_ordered_ops.core.relay.log_records import Acknowledged
from kafka_ordered_ops.processing.dead_letters import dead_letter
from kafka_ordered_ops.relay.engine.server import Server, now_ms
from kafka_ordered_ops.relay.leases.handout import Handout
from kafka_ordered_ops.relay.leases.partition import Partition
from kafka_ordered_ops.relay.log import LogWriter

#: The interval between two attempts while the brokers are unavailable.
_AGAIN_S: Final = 10.0

_log = logging.getLogger(__name__)


class Burying:
    """Write dead letters of a server.

    Args:
        server: the server that hands out the records.
        topic: the dead-letter topic.
        stack: closes the client.
    """

    def __init__(self, server: Server, topic: str, stack: ExitStack) -> None:
        self._server, self._topic = server, topic
        self._letters = LogWriter(
            server.settings,
            stack,
            doing="writing dead letters",
            timeout_s=server.options.timeout_s,
            batch_records=1,
        )

    @property
    def is_writing(self) -> bool:
        """Whether dead letters are not reported yet."""
        return self._letters.waiting > 0

    def turn(self) -> None:
        """Process reports on stored dead letters."""
        self._letters.turn()

    def bury(self, partition: Partition, handout: Handout) -> None:
        """Write the dead letters that are due."""
        now = time.monotonic()
        for start, end in handout.serving.exhausted(now_ms()):
            for offset in range(start, end):
                if offset not in handout.burying and now >= handout.bury_at.get(offset, now):
                    self._write(partition, handout, offset)

    def _write(self, partition: Partition, handout: Handout, offset: int) -> None:
        attempts = handout.serving.attempts(offset)
        records = handout.records(OffsetSet.of((offset, offset + 1)), attempts)
        if not records:
            return
        handout.burying.add(offset)
        error = RelayError(f"it was handed out {attempts} times, and never acknowledged in time")
        record = dead_letter(self._topic, Result(records[0], error=error))
        self._letters.send(record, self._report(partition, handout, offset))

    def _report(
        self, partition: Partition, handout: Handout, offset: int
    ) -> Callable[[KafkaOrderedOpsError | None], None]:
        def failed(error: KafkaOrderedOpsError) -> None:
            handout.burying.discard(offset)
            if error.retriable:
                handout.bury_at[offset] = time.monotonic() + _AGAIN_S
                _log.warning("%s@%d is buried later: %s", partition.tp, offset, error)
                return
            if offset not in handout.refused:
                _log.error("%s", refusal(handout, offset, error))
            handout.refused[offset] = error
            handout.serving.spare(offset)
            self._server.dirty.add(handout.group)

        def acknowledged(error: KafkaOrderedOpsError | None) -> None:
            if error is not None:
                failed(error)

        def report(error: KafkaOrderedOpsError | None) -> None:
            if error is not None:
                failed(error)
                return
            done = Acknowledged(handout.group, OffsetSet.of((offset, offset + 1)))
            self._server.log.append(partition.tp, done, acknowledged)

        return report


def refusal(handout: Handout, offset: int, error: KafkaOrderedOpsError) -> str:
    """Return a text on why a dead letter is refused, and what happens to the record."""
    return (
        f"{handout.tp}@{offset} of group {handout.group} has no attempt left, and its dead letter is refused: {error}. "
        "Until then, the record is handed out again"
    )
