"""What happens to the logs, the group and the ledger behind a window's back, on a real broker."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops import (
    Committed,
    Earliest,
    ForeignCommitError,
    GroupInUseError,
    LedgerLostError,
    RecordsLostError,
    TopicRecreatedError,
    Window,
)
from kafka_ordered_ops.core import types as core
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import (
    OnDataLoss,
)
from kafka_ordered_ops.kafka.offsets.committed_offsets import (
    CommittedOffset,
    read_committed_offsets,
)
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.logs import read_plan, write_afresh
from tests.support.window_oracle import WindowOracle
from tests.support.windows_support import (
    BASE_MS,
    TIMEOUT_S,
    at,
    before,
    delete_before,
    offsets_of,
    wait_until_gone,
)


def test_records_that_retention_took_are_an_error_or_written_down(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """Before planning: a named error with the ranges; with warn, lost once and never again."""
    windows.commit(windows.plan(before(orders, 1, Earliest()), "w"))
    delete_before(bootstrap, orders, 3)
    with pytest.raises(RecordsLostError, match="warn") as caught:
        windows.plan(before(orders, 100), "next")
    assert caught.value.lost == {f"{orders}[0]": [(1, 3)]}
    tolerant = Window([orders], at(100), on_data_loss=OnDataLoss.WARN)
    plan = windows.plan(tolerant, "next")
    assert plan.lost == {core.TopicPartition(orders, 0): OffsetSet.of((1, 3))}
    assert offsets_of(read_plan(windows.settings, plan)) == {3, 4, 5}
    windows.commit(plan)
    assert windows.plan(before(orders, 200), "after").lost == {}


@pytest.mark.slow
def test_loss_between_plan_and_retry_is_found_when_the_plan_is_taken_up(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """It belongs to the window whose offsets are gone."""
    windows.plan(before(orders, 100, Earliest()), "w")
    delete_before(bootstrap, orders, 2)
    with pytest.raises(RecordsLostError):
        windows.plan(before(orders, 100), "w")
    plan = windows.plan(Window([orders], at(100), on_data_loss=OnDataLoss.WARN), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {2, 3, 4, 5}
    windows.commit(plan)


def test_expired_offsets_are_restored(bootstrap: str, windows: OrderedWindows, orders: str) -> None:
    """Committed offset missing, ledger present: progress is kept, said, and written again for all."""
    windows.commit(windows.plan(before(orders, 12, Earliest()), "w"))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_consumer_groups([windows.group_id])[windows.group_id].result(TIMEOUT_S)
    plan = windows.plan(before(orders, 25), "next")
    assert offsets_of(read_plan(windows.settings, plan)) == {2, 5}
    assert "expired" in plan.notes[0]
    windows.commit(plan)
    tp = core.TopicPartition(orders, 0)
    found = read_committed_offsets(windows.settings, windows.group_id, [tp], timeout_s=10)[tp]
    assert found is not None
    assert found.offset == 4


def test_a_foreign_commit_is_noticed(bootstrap: str, windows: OrderedWindows, orders: str) -> None:
    """At plan and at commit: what was known, what was found."""
    plan = windows.plan(before(orders, 12, Earliest()), "w")
    windows.commit(plan)
    open_plan = windows.plan(before(orders, 18), "open")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": windows.group_id})
    consumer.commit(offsets=[TopicPartition(orders, 0, 5)], asynchronous=False)
    consumer.close()
    with pytest.raises(ForeignCommitError) as at_plan:
        windows.plan(before(orders, 100), "next")
    with pytest.raises(ForeignCommitError) as at_commit:
        windows.commit(open_plan)
    assert at_plan.value.moved == at_commit.value.moved == {f"{orders}[0]": (2, 5)}


def test_a_group_with_live_members_is_refused(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """At plan and at commit, the members named."""
    plan = windows.plan(before(orders, 12, Earliest()), "w")
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": windows.group_id, "client.id": "intruder"}
    )
    consumer.subscribe([orders])
    for _ in range(100):
        consumer.poll(0.2)
        if consumer.assignment():
            break
    try:
        with pytest.raises(GroupInUseError, match="intruder"):
            windows.commit(plan)
        with pytest.raises(GroupInUseError, match="intruder"):
            windows.plan(before(orders, 20), "next")
    finally:
        consumer.close()
    windows.commit(plan)


def test_a_recreated_topic_is_not_read_as_the_old_one(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Offsets of the old one mean nothing: an error at plan and at commit."""
    name = topic()
    produce([(name, 0, None, b"old", BASE_MS, ())] * 3)
    windows.commit(windows.plan(before(name, 1, Earliest()), "w"))
    produce([(name, 0, None, b"old", BASE_MS + 5_000, ())] * 3)
    plan = windows.plan(before(name, 10), "open")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    wait_until_gone(bootstrap, name)
    topic(name)
    write_afresh(bootstrap, name, 0, [BASE_MS] * 9)
    with pytest.raises(TopicRecreatedError):
        windows.plan(before(name, 20), "next")
    with pytest.raises(TopicRecreatedError):
        windows.commit(plan)
    with pytest.raises(TopicRecreatedError):
        windows.plan(before(name, 10), "open")
    with pytest.raises(TopicRecreatedError):
        windows.replay("w")


@pytest.mark.slow
def test_a_lost_ledger_is_noticed(bootstrap: str, group_id: str, orders: str) -> None:
    """Commits of ours and no state in the ledger: never the starting offsets again."""
    settings = {"bootstrap.servers": bootstrap}
    old, new = (f"ledger-{uuid.uuid4().hex[:8]}" for _ in range(2))
    with OrderedWindows(settings, group_id, ledger_topic=old) as windows:
        windows.commit(windows.plan(before(orders, 12, Earliest()), "w"))
    with (
        OrderedWindows(settings, group_id, ledger_topic=new) as windows,
        pytest.raises(LedgerLostError, match="new group"),
    ):
        windows.plan(before(orders, 20, Earliest()), "next")


@pytest.mark.slow
def test_a_lost_ledger_is_noticed_at_a_commit(bootstrap: str, group_id: str, orders: str) -> None:
    """By a process that was open, and by one that only has the plan: nothing is committed."""
    settings = {"bootstrap.servers": bootstrap}
    ledger_topic = f"ledger-{uuid.uuid4().hex[:8]}"
    with OrderedWindows(settings, group_id, ledger_topic=ledger_topic) as windows:
        windows.commit(windows.plan(before(orders, 12, Earliest()), "w"))
        plan = windows.plan(before(orders, 25), "next")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics([ledger_topic])[ledger_topic].result(TIMEOUT_S)
        wait_until_gone(bootstrap, ledger_topic)
        with pytest.raises(LedgerLostError, match="is gone"):
            windows.commit(plan)
    with (
        OrderedWindows(settings, group_id, ledger_topic=ledger_topic) as windows,
        pytest.raises(LedgerLostError, match="new group"),
    ):
        windows.commit(plan)
    tp = core.TopicPartition(orders, 0)
    found = read_committed_offsets(windows.settings, group_id, [tp], timeout_s=10)[tp]
    assert found is not None
    assert found.offset == 2


def test_open_transactions_end_a_window_at_the_last_stable_offset(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """What is behind an open transaction comes with a later window; uncommitted readers get it at once."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tx-{orders}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(orders, value=b"open", partition=0, timestamp=BASE_MS)
    producer.flush(TIMEOUT_S)
    plan = windows.plan(before(orders, 100, Earliest()), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {0, 1, 2, 3, 4, 5}
    windows.commit(plan)
    producer.commit_transaction(TIMEOUT_S)
    WindowOracle(windows, bootstrap, [orders]).await_markers()
    rest = windows.plan(before(orders, 200), "rest")
    assert offsets_of(read_plan(windows.settings, rest)) == {6}
    windows.commit(rest)
    state = windows.state()
    assert state is not None
    # The marker at the end is done as well: progress never sticks on one.
    assert [partition.base for _, partition in state] == [8]


@pytest.mark.slow
def test_a_plan_larger_than_one_record_is_split_and_read_back(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic
) -> None:
    """Sixty thousand ranges: more than 512 KiB of state, in parts; shrinking leaves no part behind."""
    name = topic()
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20}
    )
    for n in range(240_000):
        while True:
            try:
                producer.produce(name, partition=0, timestamp=BASE_MS + (n % 2) * 10_000)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(TIMEOUT_S) == 0
    plan = windows.plan(before(name, 1, Earliest()), "odd")
    assert len(plan.partitions[0].taken) == 120_000
    windows.commit(plan)
    with OrderedWindows(windows.settings, windows.group_id) as other:
        assert other.show("odd").plan.taken == plan.taken
        rest = other.plan(before(name, 100), "even")
        other.commit(rest)
    with OrderedWindows(windows.settings, windows.group_id) as third:
        state = third.state()
        assert state is not None
        assert [partition.base for _, partition in state] == [240_000]


def test_the_metadata_of_others_does_no_harm(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """Any text another program left with its commit."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": windows.group_id})
    foreign = TopicPartition(orders, 0, 3, metadata="bgABAAk= host-1:4711")
    consumer.commit(offsets=[foreign], asynchronous=False)
    consumer.close()
    tp = core.TopicPartition(orders, 0)
    found = read_committed_offsets(windows.settings, windows.group_id, [tp], timeout_s=10)[tp]
    assert isinstance(found, CommittedOffset)
    plan = windows.plan(before(orders, 100, Committed()), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {3, 4, 5}
    windows.commit(plan)
