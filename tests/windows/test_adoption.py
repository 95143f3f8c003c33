"""Taking offsets that somebody else moved for the group's progress, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops import (
    Earliest,
    ForeignCommitError,
    GroupInUseError,
    Policy,
    UnknownWindowError,
    WindowPrunedError,
    WindowRewoundError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group.decisions.adoption import Adoption, Cause, Moved
from kafka_ordered_ops.core.offset_map.ours import is_offset_map
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.planning import scan_fold
from kafka_ordered_ops.core.types import TopicPartition, WindowStatus
from kafka_ordered_ops.kafka.offsets.committed_offsets import (
    CommittedOffset,
    read_committed_offsets,
)
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.interval_oracle import (
    IntervalOracle,
    commit_as_another,
    foresee_and_adopt,
    interval,
    late_of,
    stamped,
    sweep,
)
from tests.support.logs import LogWriter, read_plan
from tests.support.windows_support import (
    BASE_MS,
    TIMEOUT_S,
    before,
    delete_before,
    offsets_of,
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of eight records, so that short logs have many."""
    monkeypatch.setattr(scan_fold, "CHUNK_RECORDS", 8)


@pytest.fixture
def adopting(windows: OrderedWindows) -> Iterator[OrderedWindows]:
    """Another process of the group, which takes what others commit for the group's progress."""
    with OrderedWindows(windows.settings, windows.group_id) as service:
        yield service


#: Of a plan.
ADOPT = Policy(on_foreign_commit="adopt")


def committed(windows: OrderedWindows, topic: str) -> CommittedOffset | None:
    """What Kafka holds for the group on partition 0."""
    tp = TopicPartition(topic, 0)
    return read_committed_offsets(windows.settings, windows.group_id, [tp], timeout_s=10)[tp]


# --- moved offsets ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_progress_is_exact_however_offsets_are_moved(
    bootstrap: str, topic: MakeTopic, windows: OrderedWindows, seed: int
) -> None:
    """Intervals among random moves, forward and back: rewound windows come again, late is right again."""
    random = Random(seed)
    name = topic(partitions=2)
    writer = LogWriter(bootstrap, random)
    oracle = IntervalOracle(windows, bootstrap, name)
    places = [(name, 0), (name, 1)]
    number = 0
    for _ in range(5):
        writer.write(places, count=60, low_ms=BASE_MS, high_ms=BASE_MS + 60_000)
        oracle.look()
        for _ in range(3):
            number += 1
            since = random.randrange(0, 55)
            oracle.plan(f"w{number}", interval(name, since, since + random.randint(2, 20)))
            if random.random() < 0.8:
                oracle.commit(random.choice(sorted(oracle.open)))
        tp = TopicPartition(name, random.randrange(2))
        base, end = oracle.base(tp), oracle.ends[tp]
        offset = random.randint(0, base) if random.random() < 0.7 else random.randint(base, end)
        if offset != base:
            oracle.move(tp, offset)
        for window_id, plan in list(oracle.rewound.items()):
            if _given_back(windows, window_id):
                oracle.plan(window_id, plan.window)
                del oracle.rewound[window_id]
            else:
                with pytest.raises(WindowRewoundError):
                    windows.plan(plan.window, window_id)
    oracle.commit(*oracle.open)
    oracle.plan("rest", sweep(name, 1_000))
    oracle.commit("rest", read=True)
    assert oracle.delivered == oracle.visible
    assert [oracle.base(tp) for tp in oracle.ends] == list(oracle.ends.values())


def _given_back(windows: OrderedWindows, window_id: str) -> bool:
    state, plan = windows.state(), windows.show(window_id).plan
    assert state is not None
    return not any(taken & part.done for tp, part in state if (taken := plan.taken.get(tp)))


@pytest.mark.slow
def test_an_offset_moved_forward_is_joined_with_progress(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """What lies below it counts as done; what windows took beyond it stays done, and nothing is rewound."""
    windows.plan(before(orders, 5, Earliest()), "first")
    windows.commit(windows.plan(before(orders, 12), "second"))
    windows.abandon("first")
    # Done are 1 and 3.
    commit_as_another(bootstrap, windows.group_id, TopicPartition(orders, 0), 3)
    adopted = foresee_and_adopt(windows)
    # 3 was done already: the base is behind it.
    tp = TopicPartition(orders, 0)
    assert adopted == Adoption(moved=(Moved(tp, Cause.FORWARD, 0, 4),))
    found = committed(windows, orders)
    assert found is not None
    assert found.offset == 4
    assert is_offset_map(found.metadata)
    rest = windows.plan(before(orders, 100), "rest")
    assert offsets_of(read_plan(windows.settings, rest)) == {4, 5}


@pytest.mark.long
def test_an_offset_moved_back_rewinds_what_lies_behind_it(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Their ids are planned again and hold the same records; a window partly behind it is neither kept nor anew."""
    name = topic()
    produce(stamped(name, *range(30)))
    cutoffs = {"first": 5, "split": 12, "third": 20, "fourth": 25}
    taken = {}
    for window_id, cutoff in cutoffs.items():
        taken[window_id] = windows.plan(before(name, cutoff, Earliest()), window_id)
        windows.commit(taken[window_id])
    commit_as_another(bootstrap, windows.group_id, TopicPartition(name, 0), 8)
    adopted = foresee_and_adopt(windows)
    assert adopted.moved == (Moved(TopicPartition(name, 0), Cause.BACK, 25, 8),)
    assert sorted(adopted.rewound) == ["fourth", "split", "third"]
    assert windows.show("third").status is WindowStatus.REWOUND
    assert windows.show("first").status is WindowStatus.COMMITTED
    with pytest.raises(UnknownWindowError, match="rewound"):
        windows.replay("third")
    with pytest.raises(WindowRewoundError, match="3 are still done"):
        windows.plan(before(name, 12), "split")
    with pytest.raises(WindowSupersededError):
        windows.commit(taken["third"])
    windows.commit(windows.plan(before(name, 12), "rest-of-split"))
    for window_id in ("third", "fourth"):
        plan = windows.plan(before(name, cutoffs[window_id]), window_id)
        assert plan.taken == taken[window_id].taken
        assert plan.claim_id != taken[window_id].claim_id
        windows.commit(plan)
    last = windows.plan(before(name, 100), "last")
    assert offsets_of(read_plan(windows.settings, last)) == set(range(25, 30))


@pytest.mark.slow
def test_what_is_late_is_right_again_after_a_move_back(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """A record is late for the windows that still cover its time, and no longer for those rewound."""
    name = topic()
    produce(stamped(name, 1, 11))
    windows.commit(windows.plan(interval(name, 0, 10), "zero"))
    windows.commit(windows.plan(interval(name, 10, 20), "ten"))
    produce(stamped(name, 2, 12, 21))
    windows.commit(windows.plan(interval(name, 20, 30), "twenty"))
    commit_as_another(bootstrap, windows.group_id, TopicPartition(name, 0), 1)
    assert sorted(windows.adopt().rewound) == ["ten", "twenty"]
    twenty = windows.plan(interval(name, 20, 30), "twenty")
    # Second 2 is late; the times of the rewound window are nobody's now.
    found = read_plan(windows.settings, twenty)
    assert offsets_of(found) == {2, 4}
    assert {key[2] for key in late_of(twenty, found)} == {2}
    ten = windows.plan(interval(name, 10, 20), "ten")
    found = read_plan(windows.settings, ten)
    assert offsets_of(found) == {1, 3}
    assert late_of(ten, found) == set()


def test_a_commit_beyond_the_end_is_believed_up_to_the_end(
    bootstrap: str, windows: OrderedWindows, orders: str, produce: Produce
) -> None:
    """What is written later was never anybody's."""
    windows.commit(windows.plan(before(orders, 12, Earliest()), "w"))
    commit_as_another(bootstrap, windows.group_id, TopicPartition(orders, 0), 1_000)
    adopted = foresee_and_adopt(windows)
    assert adopted.moved == (Moved(TopicPartition(orders, 0), Cause.FORWARD, 2, 6),)
    produce(stamped(orders, 50))
    plan = windows.plan(before(orders, 100), "next")
    assert offsets_of(read_plan(windows.settings, plan)) == {6}


def test_a_move_back_behind_the_log_start_is_a_loss(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """The group asks again for what retention has taken: the next window is told, and may go on."""
    windows.commit(windows.plan(before(orders, 100, Earliest()), "w"))
    delete_before(bootstrap, orders, 3)
    commit_as_another(bootstrap, windows.group_id, TopicPartition(orders, 0), 1)
    assert windows.adopt().rewound == ("w",)
    tolerant = replace(before(orders, 100), on_data_loss="warn")  # type: ignore[arg-type]
    plan = windows.plan(tolerant, "rest")
    assert plan.lost == {TopicPartition(orders, 0): OffsetSet.of((1, 3))}
    assert offsets_of(read_plan(windows.settings, plan)) == {3, 4, 5}


@pytest.mark.slow
def test_open_windows_keep_their_claims_when_offsets_move(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """Forward over them or back before them: their own job goes on, and commits."""
    windows.commit(windows.plan(before(orders, 1, Earliest()), "first"))
    plan = windows.plan(before(orders, 18), "open")
    for offset in (5, 0):
        commit_as_another(bootstrap, windows.group_id, TopicPartition(orders, 0), offset)
        windows.adopt()
        assert windows.plan(before(orders, 18), "open").taken == plan.taken
    again = windows.plan(before(orders, 18), "open")
    windows.commit(again)
    # 0 was given back, and 2 and 4, which were only skipped.
    rest = windows.plan(before(orders, 100), "rest")
    assert offsets_of(read_plan(windows.settings, rest)) == {0, 2, 4}


def test_pruned_windows_behind_a_cut_stay_pruned(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """Their offsets are no longer known: what they held comes with other windows."""
    windows.commit(windows.plan(before(orders, 12, Earliest()), "old"))
    windows.prune(timedelta(0))
    commit_as_another(bootstrap, windows.group_id, TopicPartition(orders, 0), 0)
    adopted = windows.adopt()
    assert (len(adopted.moved), adopted.rewound) == (1, ())
    with pytest.raises(WindowPrunedError):
        windows.plan(before(orders, 12), "old")
    rest = windows.plan(before(orders, 12), "again")
    # 3 was taken out of turn; the cut gives it back as well.
    assert offsets_of(read_plan(windows.settings, rest)) == {0, 1, 3}


def test_pruned_intervals_behind_a_cut_come_late(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Their times stay covered: what they held goes to the next window, and is not left for a sweep."""
    name = topic()
    produce(stamped(name, 1, 2, 11))
    windows.commit(windows.plan(interval(name, 0, 10), "old"))
    windows.prune(timedelta(0))
    commit_as_another(bootstrap, windows.group_id, TopicPartition(name, 0), 1)
    windows.adopt()
    plan = windows.plan(interval(name, 10, 20), "next")
    found = read_plan(windows.settings, plan)
    assert offsets_of(found) == {1, 2}
    assert {key[2] for key in late_of(plan, found)} == {1}


# --- when it is adopted -----------------------------------------------------------------------------


@pytest.mark.slow
def test_moved_offsets_are_adopted_at_plan_and_at_commit(
    bootstrap: str, windows: OrderedWindows, adopting: OrderedWindows, orders: str
) -> None:
    """Where that was asked for; otherwise it is an error, both times."""
    windows.commit(windows.plan(before(orders, 1, Earliest()), "first"))
    commit_as_another(bootstrap, windows.group_id, TopicPartition(orders, 0), 2)
    with pytest.raises(ForeignCommitError):
        windows.plan(before(orders, 12), "w")
    plan = adopting.plan(before(orders, 12), "w", policy=ADOPT)
    assert offsets_of(read_plan(windows.settings, plan)) == {3}
    commit_as_another(bootstrap, windows.group_id, TopicPartition(orders, 0), 5)
    with pytest.raises(ForeignCommitError):
        windows.commit(replace(plan, adopts_commits=False))
    assert adopting.commit(plan).status is WindowStatus.COMMITTED
    rest = windows.plan(before(orders, 100), "rest")
    assert offsets_of(read_plan(windows.settings, rest)) == {5}


def test_nothing_moved_is_nothing_to_adopt(windows: OrderedWindows, orders: str) -> None:
    """No change is written, and an empty answer is false."""
    windows.commit(windows.plan(before(orders, 12, Earliest()), "w"))
    windows.plan(before(orders, 100), "open")
    state = windows.state()
    assert windows.adopt() == Adoption()
    assert not windows.adopt(dry_run=True)
    assert windows.state() == state


def test_expired_offsets_are_nothing_to_adopt(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """A missing commit is nobody's move."""
    windows.commit(windows.plan(before(orders, 12, Earliest()), "w"))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_consumer_groups([windows.group_id])[windows.group_id].result(TIMEOUT_S)
    assert not windows.adopt()


def test_a_group_without_state_has_nothing_to_adopt(windows: OrderedWindows, orders: str) -> None:
    """There is nothing that could have moved; a first plan begins where it is told to."""
    windows.preview(before(orders, 12, Earliest()))
    for dry_run in (True, False):
        with pytest.raises(UnknownWindowError, match="no state"):
            windows.adopt(dry_run=dry_run)


def test_a_group_with_live_members_adopts_nothing(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """They would go on from where they stand; looking is allowed."""
    windows.commit(windows.plan(before(orders, 12, Earliest()), "w"))
    commit_as_another(bootstrap, windows.group_id, TopicPartition(orders, 0), 5)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": windows.group_id, "client.id": "intruder"}
    )
    consumer.subscribe([orders])
    for _ in range(100):
        consumer.poll(0.2)
        if consumer.assignment():
            break
    try:
        assert windows.adopt(dry_run=True)
        with pytest.raises(GroupInUseError, match="intruder"):
            windows.adopt()
    finally:
        consumer.close()
    assert windows.adopt()
