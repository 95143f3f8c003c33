"""A group continues on a cluster to which a mirror has copied its records, rounded commits and pairs of offsets."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from kafka_ordered_ops import (
    CommittedOffsetMissingError,
    ConfigError,
    Earliest,
    LedgerLostError,
    UnknownTopicError,
    Window,
)
from kafka_ordered_ops.core.offset_map.ours import decode_offset_map
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.windows_support import BASE_MS, at, before

_GROUP = "hourly"
_TOPIC = "orders"
_PARTITIONS = 2
_SYNCS = "mm2-offset-syncs.A.internal"


@dataclass
class Mirror:
    """Two clusters in memory, and what MirrorMaker 2 does between them."""

    there: InMemoryKafka
    here: InMemoryKafka
    #: Of each partition: the offset on the first cluster of each record on the second one.
    copies: list[list[int]] = field(default_factory=lambda: [[] for _ in range(_PARTITIONS)])
    syncs: list[list[tuple[int, int]]] = field(
        default_factory=lambda: [[] for _ in range(_PARTITIONS)]
    )

    def write(self, partition: int, *seconds: float) -> list[int]:
        """Write records to the first cluster; return their offsets."""
        return [
            self.there.produce(
                _TOPIC,
                partition=partition,
                timestamp_ms=BASE_MS + round(second * 1000),
                value=b"x",
            )
            for second in seconds
        ]

    def abort(self, partition: int, count: int) -> None:
        """Write records that no mirror copies, and the mark after them."""
        with self.there.transaction() as transaction:
            for _ in range(count):
                transaction.produce(
                    _TOPIC, partition=partition, timestamp_ms=BASE_MS, value=b"aborted"
                )
            transaction.abort()

    def copy(self, times_ms: dict[tuple[int, int], int], restart: Random | None = None) -> None:
        """Copy all records; with `restart`, some of them twice, as after a crash of the mirror, and some notes are missing."""
        for partition in range(_PARTITIONS):
            todo = sorted(offset for number, offset in times_ms if number == partition)
            at_index, before = 0, -2
            while at_index < len(todo):
                offset, copies = todo[at_index], self.copies[partition]
                is_noted = offset != before + 1 and not (
                    restart and before >= 0 and restart.random() < 0.3
                )
                if is_noted or (restart and restart.random() < 0.3):
                    self.syncs[partition].append((offset, len(copies)))
                self.here.produce(
                    _TOPIC,
                    partition=partition,
                    timestamp_ms=times_ms[partition, offset],
                    value=b"x",
                )
                copies.append(offset)
                before, at_index = offset, at_index + 1
                if restart and restart.random() < 0.05:
                    before, at_index = -2, max(at_index - restart.randint(1, 4), 0)

    def commit(self) -> None:
        """Copy the commits: each at the last pair that is not above it, and metadata as they are."""
        for tp, commit in self.there.committed(_GROUP).items():
            for source, here in reversed(self.syncs[tp.partition]):
                if source <= commit.offset:
                    offset = here if source == commit.offset else here + 1
                    self.here.commit(_GROUP, {tp: offset}, commit.metadata)
                    break

    def note(self) -> None:
        """Write the pairs of offsets where MirrorMaker 2 writes them."""
        self.here.create_topic(_SYNCS)
        name = struct.pack(">H", len(_TOPIC)) + _TOPIC.encode()
        for partition, pairs in enumerate(self.syncs):
            for pair in pairs:
                key, value = name + struct.pack(">i", partition), struct.pack(">qq", *pair)
                self.here.produce(_SYNCS, key=key, value=value, timestamp_ms=BASE_MS)


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    """Two clusters with the topic."""
    with InMemoryKafka() as there, InMemoryKafka() as here:
        for kafka in (there, here):
            kafka.create_topic(_TOPIC, _PARTITIONS)
        yield Mirror(there, here)


def taken(windows: OrderedWindows, window: Window) -> set[tuple[int, int]]:
    """Deliver a window; return partition and offset of its records."""
    plan = windows.plan(window)
    windows.commit(plan)
    return {
        (tp.partition, offset)
        for tp, offsets in plan.taken.items()
        for start, end in offsets
        for offset in range(start, end)
    }


@pytest.mark.parametrize("is_interval", [False, True])
@pytest.mark.parametrize("with_syncs", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_every_record_comes_and_only_the_announced_ones_come_twice(
    mirror: Mirror, seed: int, with_syncs: bool, is_interval: bool
) -> None:
    """Whatever the mirror's rounding, its restarts, and the windows that were delivered, missed or planned before."""
    random, times_ms = Random(seed), dict[tuple[int, int], int]()
    done_there, now, last = set[tuple[int, int]](), 0.0, 0.0
    with OrderedWindows(mirror.there.settings, _GROUP) as windows:
        for turn in range(4):
            for _ in range(random.randint(5, 25)):
                partition, second = random.randrange(_PARTITIONS), now + random.random() * 15 - 4
                [offset] = mirror.write(partition, second)
                times_ms[partition, offset] = BASE_MS + round(second * 1000)
                if random.random() < 0.1:
                    mirror.abort(partition, random.randint(1, 3))
            now += 10
            window = before(_TOPIC, now, Earliest())
            if is_interval:
                window = Window([_TOPIC], at(now), since=at(now - 10), starting_offsets=Earliest())
            if turn == 0 or random.random() < 0.7:
                done_there |= taken(windows, window)
                last = now
    mirror.copy(times_ms, restart=random)
    mirror.commit()
    mirror.note()
    with OrderedWindows(mirror.here.settings, _GROUP) as windows:
        syncs = _SYNCS if with_syncs else None
        foreseen = windows.fail_over(offset_syncs=syncs, dry_run=True)
        done = windows.fail_over(offset_syncs=syncs)
        assert done == foreseen
        assert done.delivered_before_ms == BASE_MS + last * 1000
        window = before(_TOPIC, now + 100, Earliest())
        if is_interval:
            window = Window([_TOPIC], at(now + 100), since=at(last), starting_offsets=Earliest())
        done_here = taken(windows, window)
    announced = {
        (row.tp.partition, offset)
        for row in done.partitions
        for start, end in row.may_repeat
        for offset in range(start, end)
    }
    sources = {
        (partition, offset): (partition, source)
        for partition, copies in enumerate(mirror.copies)
        for offset, source in enumerate(copies)
    }
    done_there &= times_ms.keys()
    assert done_there | {sources[place] for place in done_here} == set(times_ms)
    again = {place for place in done_here if sources[place] in done_there}
    assert again == {place for place in announced if sources[place] in done_there}
    assert announced <= done_here


def begun(mirror: Mirror) -> None:
    """Deliver a window on the first cluster, with two records of it beyond one of the next."""
    times = {0: (1, 12, 3, 4, 13), 1: (2, 14)}
    for partition, seconds in times.items():
        mirror.write(partition, *seconds)
    with OrderedWindows(mirror.there.settings, _GROUP) as windows:
        taken(windows, before(_TOPIC, 10, Earliest()))
    mirror.copy(
        {
            (partition, offset): BASE_MS + second * 1000
            for partition, seconds in times.items()
            for offset, second in enumerate(seconds)
        }
    )
    mirror.commit()


def test_the_error_of_a_mirrored_commit_names_the_verb(mirror: Mirror) -> None:
    """At plan; the group starts nowhere by itself."""
    begun(mirror)
    with (
        OrderedWindows(mirror.here.settings, _GROUP) as windows,
        pytest.raises(LedgerLostError, match=r"another cluster.*`groups fail-over`"),
    ):
        windows.plan(before(_TOPIC, 20, Earliest()))


def test_records_that_were_not_delivered_are_late(mirror: Mirror) -> None:
    """They are stamped before the last cutoff of the other cluster; a second call changes nothing."""
    begun(mirror)
    with OrderedWindows(mirror.here.settings, _GROUP) as windows:
        done = windows.fail_over()
        assert [(row.before, row.after, row.may_repeat.ranges) for row in done.partitions] == [
            (1, 1, [(2, 4)]),
            (1, 1, []),
        ]
        assert not windows.fail_over()
        plan = windows.plan(before(_TOPIC, 20))
    [first, second] = plan
    assert first.taken.ranges == [(1, 5)]
    assert first.late.end == 1
    assert second.taken.ranges == [(1, 2)]


def test_pairs_of_offsets_leave_nothing_to_announce(mirror: Mirror) -> None:
    """What they show as delivered is done, and what they show as open comes once, late ones included."""
    begun(mirror)
    mirror.syncs = [[(offset, offset) for offset in range(5)], [(0, 0), (1, 1)]]
    mirror.note()
    with OrderedWindows(mirror.here.settings, _GROUP) as windows:
        windows.fail_over(offset_syncs=_SYNCS)
        state = windows.state()
    assert state is not None
    assert [partition.done.ranges for _, partition in state] == [[(0, 1), (2, 4)], [(0, 1)]]
    late = mirror.here.produce(_TOPIC, partition=0, timestamp_ms=BASE_MS, value=b"x")
    with OrderedWindows(mirror.here.settings, _GROUP) as windows:
        plan = windows.plan(before(_TOPIC, 20))
    assert [part.taken.ranges for part in plan] == [[(1, 2), (4, late + 1)], [(1, 2)]]


def test_the_first_cluster_takes_the_group_back(mirror: Mirror) -> None:
    """Its own progress stays, and a window that was open when it failed is abandoned."""
    begun(mirror)
    with OrderedWindows(mirror.there.settings, _GROUP) as windows:
        open_ = windows.plan(before(_TOPIC, 13), "open")
    with OrderedWindows(mirror.here.settings, _GROUP) as windows:
        windows.fail_over()
        taken(windows, before(_TOPIC, 13.5))
    for tp, commit in mirror.here.committed(_GROUP).items():
        found = decode_offset_map(commit.metadata)
        assert found is not None
        assert found.delivered_before_ms == BASE_MS + 13_500
        # The mirror goes the other way now, and rounds down.
        mirror.there.commit(_GROUP, {tp: 1}, commit.metadata)
    with OrderedWindows(mirror.there.settings, _GROUP) as windows:
        with pytest.raises(LedgerLostError, match="groups fail-over"):
            windows.commit(open_)
        done = windows.fail_over()
        assert done.abandoned == ("open",)
        assert windows.show("open").status is WindowStatus.ABANDONED
        assert [row.may_repeat.ranges for row in done.partitions] == [[(1, 2), (4, 5)], []]
        rest = windows.plan(before(_TOPIC, 20))
    assert {str(tp): offsets.ranges for tp, offsets in rest.taken.items()} == {
        "orders[0]": [(1, 2), (4, 5)],
        "orders[1]": [(1, 2)],
    }


def test_a_cluster_without_mirrored_commits_is_refused(mirror: Mirror) -> None:
    """Nothing tells where the group stands."""
    with (
        OrderedWindows(mirror.here.settings, _GROUP) as windows,
        pytest.raises(CommittedOffsetMissingError, match=r"sync\.group\.offsets"),
    ):
        windows.fail_over()


def test_pairs_of_another_flow_are_refused(mirror: Mirror) -> None:
    """They contradict the commit, or are no pairs at all; nothing is changed."""
    begun(mirror)
    mirror.syncs = [[(9, 0)], [(0, 99)]]
    mirror.note()
    with OrderedWindows(mirror.here.settings, _GROUP) as windows:
        with pytest.raises(ConfigError, match="contradicts the commit"):
            windows.fail_over(offset_syncs=_SYNCS)
        with pytest.raises(ConfigError, match="not an offset sync"):
            windows.fail_over(offset_syncs=_TOPIC)
        with pytest.raises(UnknownTopicError):
            windows.fail_over(offset_syncs="nowhere")
        assert windows.state() is None
