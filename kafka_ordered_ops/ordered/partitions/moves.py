"""Pause, resume and seek in the partitions of an ordered read while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.release.ordered_release import OrderedRelease
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import ReaderDoor
from kafka_ordered_ops.ordered.partitions.state import PartitionState

#: Partitions named in one message.
_NAMED_MAX = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pause:
    #: The offsets to read after the pause.
    wanted: OffsetSet
    #: Whether the order waits for it.
    holds: bool


class Moves:
    """Paused partitions, and partitions after a seek that are not read again yet.

    A paused partition holds no records: records that were read and not returned are dropped, and read again when it
    resumes. Otherwise a long pause would fill memory and disk.

    Args:
        partitions: the partitions that are read.
        release: holds their records.
        reader: reads them.
        wanted_from: returns the wanted offsets of a partition from an offset on.
    """

    def __init__(
        self,
        partitions: Mapping[TopicPartition, PartitionState],
        release: OrderedRelease,
        reader: ReaderDoor,
        wanted_from: Callable[[TopicPartition, int], OffsetSet],
    ) -> None:
        self._partitions = partitions
        self._release = release
        self._reader = reader
        self._wanted_from = wanted_from
        self._paused: dict[TopicPartition, _Pause] = {}
        self._seeks: set[TopicPartition] = set()
        #: How often the order restarted.
        self.restarts = 0

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions."""
        return frozenset(self._paused)

    @property
    def holds_all(self) -> bool:
        """Whether all records wait for a paused partition, so that more records would only be held."""
        tp = self._release.holding_back()
        return tp is not None and tp in self._paused

    def pause(self, partitions: Collection[TopicPartition], *, holds: bool) -> None:
        """Pause reading of partitions until they resume."""
        self.check_read(partitions)
        for tp in partitions:
            pause = self._paused.get(tp)
            wanted = self._taken_back(tp, holds=holds) if pause is None else pause.wanted
            self._paused[tp] = _Pause(wanted, holds)
            if holds and pause is not None and not pause.holds:
                self._release.add(tp)
            elif not holds:
                self._release.finish(tp)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Continue where partitions were paused; partitions that were not paused stay as they are."""
        self.check_read(partitions)
        for tp in partitions:
            if (pause := self._paused.pop(tp, None)) is None:
                continue
            if not pause.holds:
                self._release.add(tp)
            if tp not in self._seeks:
                self._read(tp, pause.wanted)

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue at other offsets; held records of the partitions are dropped at once."""
        self.check_read(positions)
        for tp, offset in positions.items():
            self._taken_back(tp, holds=False)
            state = self._partitions[tp]
            wanted = self._wanted_from(tp, offset)
            state.position, state.is_finished = offset, not wanted
            if (pause := self._paused.get(tp)) is not None:
                self._paused[tp] = _Pause(wanted, pause.holds)
            self._seeks.add(tp)

    def apply_seeks(self) -> None:
        """Continue at the offsets of the last seeks, where the order restarts. Not in the middle of a release."""
        if not self._seeks:
            return
        partitions, self._seeks = sorted(self._seeks), set()
        self.restarts += 1
        names = ", ".join(
            f"{tp} at {self._partitions[tp].position}" for tp in partitions[:_NAMED_MAX]
        )
        more = f" and {len(partitions) - _NAMED_MAX} more" if len(partitions) > _NAMED_MAX else ""
        _log.warning("the order of the records restarts: reading continues with %s%s", names, more)
        for tp in partitions:
            self._release.restart(tp)
            pause = self._paused.get(tp)
            if pause is None:
                self._read(tp, self._wanted_from(tp, self._partitions[tp].position))
            elif not pause.holds:
                self._release.finish(tp)

    def forget(self, tp: TopicPartition) -> None:
        """Forget a partition that is no longer read."""
        self._paused.pop(tp, None)
        self._seeks.discard(tp)

    def check_read(self, partitions: Collection[TopicPartition]) -> None:
        """Raise `ConfigError` for partitions that this reader does not read now."""
        if absent := sorted(set(partitions) - self._partitions.keys()):
            raise ConfigError(
                f"{', '.join(map(str, absent[:_NAMED_MAX]))}: not among the partitions of this reader. A member of a group "
                "reads the partitions that the group assigns to it, from the poll that calls on_assigned"
            )

    def _taken_back(self, tp: TopicPartition, *, holds: bool) -> OffsetSet:
        """Stop reading a partition; return its remaining offsets."""
        state = self._partitions[tp]
        self._reader.stop(tp)
        wanted = self._release.take_back(tp, holds=holds) | self._wanted_from(tp, state.position)
        if wanted:
            state.position, state.is_finished = wanted.first, False
        return wanted

    def _read(self, tp: TopicPartition, wanted: OffsetSet) -> None:
        if wanted:
            self._reader.add(tp, wanted)
        else:
            self._partitions[tp].is_finished = True
            self._release.finish(tp)
