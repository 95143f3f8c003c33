"""A group that windows and the real Parallel Consumer have in turn, and what each of them was given."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto
from random import Random

from kafka_ordered_ops import Committed, Earliest
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.logs import LogWriter, Records, partitions_of, read_plan, visible_records
from tests.support.parallel_consumer import CommitMode, ParallelConsumer, Processed, offsets_done
from tests.support.parallel_consumer import Committed as CommittedOffsets
from tests.support.windows_support import BASE_MS, before

#: (partition, offset)
Place = tuple[int, int]


class Ending(Enum):
    """How a turn of the library ends, with a commit of all that it has processed until then."""

    #: It leaves the group.
    CLOSED = auto()
    #: It is killed.
    KILLED = auto()
    #: It processes held records too, and is killed before it commits them: they are taken again.
    KILLED_BUSY = auto()


#: Longer than it takes to kill the process after a commit. A commit among records that are being completed is not
#: what is tested here: the library writes maps about an older base then (its issue 893), which name others as done.
_QUIET_S = 2.0


class Turns:
    """The turns on one topic. Each checks that what was acknowledged before is given to nobody again."""

    def __init__(
        self,
        windows: OrderedWindows,
        bootstrap: str,
        topic: str,
        consume: Callable[..., ParallelConsumer],
        random: Random,
    ) -> None:
        self.windows, self.topic, self.random = windows, topic, random
        self._bootstrap, self._consume = bootstrap, consume
        self._writer = LogWriter(bootstrap, random)
        self._ends: dict[int, int] = {}
        self._records: Records = {}
        #: Records that a commit reports as done.
        self._acknowledged: set[Place] = set()

    @property
    def rest(self) -> set[Place]:
        """The records that nobody has acknowledged."""
        return {(partition, offset) for _, partition, offset in self._records} - self._acknowledged

    def sample(self, count: int) -> list[Place]:
        """Return some records of the rest, if there are as many."""
        rest = sorted(self.rest)
        return self.random.sample(rest, min(count, len(rest)))

    def write(self, count: int) -> None:
        """Write records out of order, in transactions and without, some of them aborted."""
        with Lookup(self.windows.settings) as lookup:
            partitions = partitions_of(lookup, [self.topic])
            places = [(tp.topic, tp.partition) for tp in partitions]
            self._writer.write(places, count=count, low_ms=BASE_MS, high_ms=BASE_MS + 60_000)
            ends = lookup.end_offsets(partitions, Isolation.READ_COMMITTED)
        self._ends = {tp.partition: end for tp, end in ends.items()}
        self._records = visible_records(self._bootstrap, ends)

    def window(self, second: float = 60) -> None:
        """Plan, read and commit the window before a second: exactly the rest before it."""
        start = Committed() if self._acknowledged else Earliest()
        plan = self.windows.plan(before(self.topic, second, start))
        read = read_plan(self.windows.settings, plan)
        cutoff_ms = BASE_MS + second * 1_000
        stamped = {key[1:] for key, time_ms in self._records.items() if time_ms < cutoff_ms}
        assert {key[1:] for key in read} == stamped & self.rest
        self.windows.commit(plan)
        self._acknowledged |= stamped

    def library(
        self,
        ending: Ending,
        held: Collection[Place] = (),
        commit_mode: CommitMode = CommitMode.SYNC,
    ) -> None:
        """Let the library process the rest, but for records that are held; each once."""
        rest, acknowledged = self.rest, self._acknowledged | (self.rest - set(held))
        interval_s = _QUIET_S if ending is Ending.KILLED_BUSY else 0.1
        with self._consume(
            self.topic, held=held, commit_mode=commit_mode, commit_interval_s=interval_s
        ) as consumer:
            consumer.wait_committed(
                lambda found: len(found) == len(self._ends) and self._done(found) == acknowledged
            )
            if ending is Ending.KILLED_BUSY:
                consumer.release()
                consumer.wait_processed(lambda found: len(_places(found)) == len(rest))
            consumer.close() if ending is Ending.CLOSED else consumer.kill()
            processed = _places(consumer.processed())
            assert self._done(consumer.committed()) == acknowledged
        is_busy = ending is Ending.KILLED_BUSY
        assert sorted(processed) == sorted(rest if is_busy else rest - set(held))
        self._acknowledged = acknowledged

    def _done(self, committed: CommittedOffsets) -> set[Place] | None:
        """Return the records that commits report as done; None if a map reaches past the end of its log."""
        done = offsets_done(committed)
        if any(offsets.end > self._ends[partition] for partition, offsets in done.items()):
            return None
        return {
            (partition, offset)
            for _, partition, offset in self._records
            if partition in done and offset in done[partition]
        }


def _places(processed: Processed) -> list[Place]:
    return [(partition, offset) for partition, found in processed.items() for offset in found]
