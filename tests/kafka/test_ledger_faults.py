"""What happens to the ledger topic: grown, deleted, recreated, compacted, misconfigured, out of reach."""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from kafka_ordered_ops import (
    AuthorizationError,
    ConfigError,
    Earliest,
    LedgerError,
    LedgerLostError,
    RecordTooLargeError,
    Window,
)
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_PARTITIONS
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition, WindowStatus
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.offsets.committed_offsets import read_committed_offsets
from kafka_ordered_ops.kafka.read.reader import RangeReader
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic
from tests.support.guarded import Guarded, right
from tests.support.guarded import guarded as guarded
from tests.support.logs import read_plan, read_ranges
from tests.support.windows_support import (
    BASE_MS,
    TIMEOUT_S,
    at,
    before,
    offsets_of,
    wait_until_gone,
)
from tests.support.wire import commit_offsets, write_batch

_COMPACTED = {"cleanup.policy": "compact"}
_CLEANER_TIMEOUT_S = 90.0

MakeService = Callable[[str], OrderedWindows]


@pytest.fixture
def ledger() -> str:
    """The name of a ledger that does not exist yet."""
    return f"ledger-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def open_service(bootstrap: str, group_id: str) -> Iterator[MakeService]:
    """Opens the group's service on a ledger, each time as another process would."""
    opened: list[OrderedWindows] = []

    def open_one(ledger: str) -> OrderedWindows:
        opened.append(
            OrderedWindows(
                {"bootstrap.servers": bootstrap}, group_id, ledger_topic=ledger, timeout_s=60
            )
        )
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def set_topic(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Changes one setting of a topic, and waits until the broker says that it has it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    while admin.describe_configs([asked])[asked].result(TIMEOUT_S)[name].value != value:
        assert time.monotonic() < deadline, f"{topic} does not take {name}={value}"
        time.sleep(0.05)


def committed_offset(windows: OrderedWindows, topic: str) -> int | None:
    """The group's committed offset on partition 0."""
    tp = TopicPartition(topic, 0)
    found = read_committed_offsets(windows.settings, windows.group_id, [tp], timeout_s=TIMEOUT_S)[
        tp
    ]
    return None if found is None else found.offset


# --- its shape --------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, LEDGER_PARTITIONS - 1])
def test_a_ledger_with_too_few_partitions_is_refused(
    topic: MakeTopic, open_service: MakeService, orders: str, ledger: str, partitions: int
) -> None:
    """A group's partition is counted over a fixed number: the error says how many there are, and how many it takes."""
    topic(ledger, partitions=partitions, config=_COMPACTED)
    windows = open_service(ledger)
    calls: list[Callable[[], object]] = [
        lambda: windows.plan(before(orders, 12, Earliest())),
        lambda: windows.preview(before(orders, 12, Earliest())),
        windows.list,
    ]
    for call in calls:
        with pytest.raises(
            LedgerError, match=rf"{ledger} has {partitions} partitions.*{LEDGER_PARTITIONS}"
        ):
            call()


@pytest.mark.slow
def test_growing_the_ledger_changes_nothing(
    bootstrap: str,
    topic: MakeTopic,
    open_service: MakeService,
    group_id: str,
    orders: str,
    ledger: str,
) -> None:
    """Partitions added between plan and commit: running and new processes find the group where it was."""
    # With a count that would move the group to another partition.
    grown = next(
        n
        for n in range(LEDGER_PARTITIONS + 1, 9 * LEDGER_PARTITIONS)
        if zlib.crc32(group_id.encode()) % n >= LEDGER_PARTITIONS
    )
    topic(ledger, partitions=LEDGER_PARTITIONS, config=_COMPACTED)
    running = open_service(ledger)
    running.commit(running.plan(before(orders, 1, Earliest()), "first"))
    plan = running.plan(before(orders, 12), "w")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [done] = admin.create_partitions([NewPartitions(ledger, grown)]).values()
    done.result(TIMEOUT_S)
    newcomer = open_service(ledger)
    assert newcomer.show("w").plan == plan
    running.commit(plan)
    assert newcomer.show("w").status is WindowStatus.COMMITTED
    rest = newcomer.plan(before(orders, 100), "rest")
    assert offsets_of(read_plan(newcomer.settings, rest)) == {2, 4, 5}
    running.commit(rest)
    everything = TopicPartition(ledger, zlib.crc32(group_id.encode()) % LEDGER_PARTITIONS)
    with Lookup(running.settings) as lookup:
        every = [TopicPartition(ledger, number) for number in range(grown)]
        ends = lookup.end_offsets(every, Isolation.READ_UNCOMMITTED)
    assert [tp for tp, end in ends.items() if end] == [everything]


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_ledger_that_forgets_is_refused(
    bootstrap: str,
    topic: MakeTopic,
    open_service: MakeService,
    orders: str,
    ledger: str,
    policy: str,
) -> None:
    """Retention by time would delete progress; once it is compacted, the same call goes on."""
    topic(ledger, partitions=LEDGER_PARTITIONS, config={"cleanup.policy": policy})
    windows = open_service(ledger)
    with pytest.raises(LedgerError, match=f"cleanup.policy={policy}") as caught:
        windows.plan(before(orders, 12, Earliest()), "w")
    assert not caught.value.retriable
    set_topic(bootstrap, ledger, "cleanup.policy", "compact")
    windows.commit(windows.plan(before(orders, 12, Earliest()), "w"))


@pytest.mark.slow
def test_a_ledger_that_takes_only_small_records_stores_all_or_nothing(
    bootstrap: str, topic: MakeTopic, open_service: MakeService, orders: str, ledger: str
) -> None:
    """The broker refuses the state: a named error, no half of a plan, and no waiting for the deadline."""
    topic(ledger, partitions=LEDGER_PARTITIONS, config={**_COMPACTED, "max.message.bytes": "600"})
    windows = open_service(ledger)
    with pytest.raises(RecordTooLargeError, match=ledger):
        windows.plan(before(orders, 12, Earliest()), "w")
    assert (windows.list(), windows.state()) == ([], None)
    set_topic(bootstrap, ledger, "max.message.bytes", "1000000")
    plan = windows.plan(before(orders, 12, Earliest()), "w")
    set_topic(bootstrap, ledger, "max.message.bytes", "600")
    with pytest.raises(RecordTooLargeError, match=ledger):
        windows.commit(plan)
    assert committed_offset(windows, orders) is None
    assert windows.show("w").status is WindowStatus.PLANNED


# --- its end ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("made_anew", [False, True], ids=["deleted", "made-anew"])
@pytest.mark.parametrize("process", ["running", "new"])
def test_a_deleted_ledger_is_never_taken_for_a_fresh_start(
    bootstrap: str,
    topic: MakeTopic,
    open_service: MakeService,
    orders: str,
    ledger: str,
    process: str,
    made_anew: bool,
) -> None:
    """No plan from the starting offsets, no commit: it is told as lost, and progress stays where it was."""
    windows = open_service(ledger)
    windows.commit(windows.plan(before(orders, 1, Earliest()), "done"))
    plan = windows.plan(before(orders, 12), "open")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([ledger])[ledger].result(TIMEOUT_S)
    wait_until_gone(bootstrap, ledger)
    if made_anew:
        topic(ledger, partitions=LEDGER_PARTITIONS, config=_COMPACTED)
    if process == "new":
        windows = open_service(ledger)
    calls: list[Callable[[], object]] = [
        lambda: windows.plan(before(orders, 25, Earliest()), "next"),
        lambda: windows.plan(before(orders, 12, Earliest()), "open"),
        lambda: windows.commit(plan),
    ]
    for call in calls:
        with pytest.raises(LedgerLostError, match=ledger):
            call()
    assert committed_offset(windows, orders) == 1


@pytest.mark.parametrize(
    "name", ["bad name", "x" * 250, "..", ""], ids=["space", "long", "dots", "empty"]
)
def test_a_name_that_no_topic_can_have_is_refused_at_once(
    bootstrap: str, group_id: str, name: str
) -> None:
    """Before anything is asked of the cluster, and not as something that a retry could cure."""
    with pytest.raises(ConfigError, match="topic name"):
        OrderedWindows({"bootstrap.servers": bootstrap}, group_id, ledger_topic=name)


@pytest.mark.slow
def test_compaction_of_the_ledger_changes_nothing(
    topic: MakeTopic, open_service: MakeService, orders: str, ledger: str, group_id: str
) -> None:
    """A process from before it reads on, a new one reads what is left: both see every window."""
    config = {**_COMPACTED, "min.cleanable.dirty.ratio": "0.001", "segment.ms": "100"}
    topic(ledger, partitions=LEDGER_PARTITIONS, config=config)
    writer, sleeper = open_service(ledger), open_service(ledger)
    writer.commit(writer.plan(before(orders, 1, Earliest()), "w0"))
    assert len(sleeper.list()) == 1
    place = TopicPartition(ledger, zlib.crc32(group_id.encode()) % LEDGER_PARTITIONS)
    deadline = time.monotonic() + _CLEANER_TIMEOUT_S
    number = 0
    while first_offset(writer, place) == 0:
        assert time.monotonic() < deadline, "the cleaner has not touched the ledger"
        number += 1
        writer.commit(writer.plan(before(orders, 1 + number / 100), f"w{number}"))
        time.sleep(0.5)
    plan = writer.plan(before(orders, 12), "open")
    for one in (sleeper, open_service(ledger)):
        assert one.list() == writer.list()
        assert one.state() == writer.state()
        assert len(one.list()) == number + 2
        assert one.show("open").plan == plan
    sleeper.commit(plan)
    rest = writer.plan(before(orders, 100), "rest")
    assert offsets_of(read_plan(writer.settings, rest)) == {2, 4, 5}


@pytest.mark.slow
def test_what_was_compacted_away_unseen_is_not_believed_any_more(
    bootstrap: str,
    topic: MakeTopic,
    open_service: MakeService,
    orders: str,
    ledger: str,
    group_id: str,
) -> None:
    """A process that slept longer than tombstones live plans like a new one after progress was moved back."""
    config = {**_COMPACTED, "min.cleanable.dirty.ratio": "0.001", "segment.ms": "100"}
    topic(ledger, partitions=LEDGER_PARTITIONS, config={**config, "delete.retention.ms": "0"})
    mover, sleeper = open_service(ledger), open_service(ledger)
    mover.commit(mover.plan(before(orders, 12, Earliest()), "w"))
    sleeper.list()  # Learns what was read of the log's times.
    commit_offsets(bootstrap, group_id, orders, {0: (0, b"")})
    assert mover.adopt().rewound == ("w",)
    place = TopicPartition(ledger, zlib.crc32(group_id.encode()) % LEDGER_PARTITIONS)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    deadline = time.monotonic() + _CLEANER_TIMEOUT_S
    while not is_settled(mover, place):
        assert time.monotonic() < deadline, "the cleaner has not removed what is superseded"
        # The newest segment is never cleaned.
        producer.produce(ledger, key=b"filler", value=b"x", partition=place.partition)
        assert producer.flush(TIMEOUT_S) == 0
        time.sleep(0.5)
    for one in (mover, sleeper, open_service(ledger)):
        preview = one.preview(before(orders, 12), "next")
        assert offsets_of(read_plan(one.settings, preview)) == {0, 1, 3}


def is_settled(windows: OrderedWindows, place: TopicPartition) -> bool:
    """Whether compaction has left one record a key and no tombstone, but for the filler's."""
    with Lookup(windows.settings) as lookup:
        [end] = lookup.end_offsets([place], Isolation.READ_COMMITTED).values()
    wanted = {place: OffsetSet.of((0, end))}
    columns = ["key", "value"]
    batches = read_ranges(
        windows.settings, "look", Isolation.READ_COMMITTED, wanted, columns=columns
    )
    rows = [row for batch in batches for row in batch.to_pylist() if row["key"] != b"filler"]
    keys = [row["key"] for row in rows]
    return len(set(keys)) == len(keys) and all(row["value"] is not None for row in rows)


def first_offset(windows: OrderedWindows, place: TopicPartition) -> int:
    """Where the first record that a consumer is given lies; the log start does not show compaction."""
    with Lookup(windows.settings) as lookup:
        [end] = lookup.end_offsets([place], Isolation.READ_COMMITTED).values()
    wanted = {place: OffsetSet.of((0, end))}
    with RangeReader(windows.settings, "look", Isolation.READ_COMMITTED, wanted) as reader:
        return min(int(batch.offsets[0]) for batch in reader.timestamps() if batch.offsets.size)


# --- missing rights ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("create the ledger", "may not create it"),
        ("write the ledger", "WRITE"),
        ("write the transaction", "transactional id"),
        ("read the group", "READ on the group"),
    ],
)
def test_a_right_that_is_missing_is_named_and_nothing_is_stored(
    guarded: Guarded, ledger: str, group_id: str, missing: str, named: str
) -> None:
    """The error says which right on what; once it is granted, the next run plans the window as its first."""
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    name = f"orders-{uuid.uuid4().hex[:8]}"
    topics = [NewTopic(name, 1, 1, config={"retention.ms": "-1"})]
    if missing != "create the ledger":
        topics.append(NewTopic(ledger, LEDGER_PARTITIONS, 1, config=_COMPACTED))
    for future in admin.create_topics(topics).values():
        future.result(TIMEOUT_S)
    write_batch(guarded.bootstrap, name, [BASE_MS, BASE_MS + 20_000])
    rights = guarded.rights_of(name, ledger, group_id)
    window = before(name, 12, Earliest())
    guarded.grant(*(one for what, one in rights.items() if what != missing))
    with OrderedWindows(guarded.job, group_id, ledger_topic=ledger, timeout_s=60) as windows:
        with pytest.raises(AuthorizationError, match=named) as caught:
            windows.plan(window, "w")
        assert not caught.value.retriable
    guarded.grant(*rights.values())
    with OrderedWindows(guarded.job, group_id, ledger_topic=ledger, timeout_s=60) as windows:
        plan = windows.plan(window, "w")
        assert plan.attempt == 1
        windows.commit(plan)


@pytest.mark.long
def test_an_error_names_all_rights_that_its_call_lacks(
    guarded: Guarded, ledger: str, group_id: str
) -> None:
    """Not the first one it hits: of a plan, of a commit, of a read; and nothing that the call does not need."""
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    name, other = (f"{one}-{uuid.uuid4().hex[:8]}" for one in ("orders", "orders"))
    new = [NewTopic(one, 1, 1, config={"retention.ms": "-1"}) for one in (name, other)]
    for future in admin.create_topics(
        [*new, NewTopic(ledger, LEDGER_PARTITIONS, 1, config=_COMPACTED)]
    ).values():
        future.result(TIMEOUT_S)
    for one in (name, other):
        write_batch(guarded.bootstrap, one, [BASE_MS, BASE_MS + 20_000])
    rights = guarded.rights_of(name, ledger, group_id)
    rights["read the other"] = right(ResourceType.TOPIC, other, AclOperation.READ)
    window = Window([name, other], at(12), starting_offsets=Earliest())
    on_topics = [f"READ on topic {one}" for one in sorted((name, other))]
    on_ledger = f"READ and WRITE on topic {ledger}"
    on_group = f"READ on group {group_id}"
    on_transactions = f"WRITE on transactional id {rights['write the transaction'].name}"

    def lacks(call: Callable[[], object], *missing: str) -> None:
        with pytest.raises(AuthorizationError) as caught:
            call()
        assert [str(one) for one in caught.value.missing] == [*missing]
        assert all(one in str(caught.value) for one in missing)
        assert isinstance(caught.value.__cause__, AuthorizationError)
        assert "secret" not in str(caught.value)

    with OrderedWindows(guarded.job, group_id, ledger_topic=ledger, timeout_s=60) as windows:
        guarded.grant(right(ResourceType.TOPIC, "another", AclOperation.READ))
        create = f"CREATE on topic {ledger}, unless it exists"
        everything = (*on_topics, on_group, on_ledger, on_transactions, create)
        lacks(lambda: windows.plan(window, "w"), *everything)
        guarded.grant(rights["read the ledger"], rights["read the topic"])
        lacks(
            lambda: windows.plan(window, "w"),
            f"READ on topic {other}",
            on_group,
            f"WRITE on topic {ledger}",
            on_transactions,
        )
        guarded.grant(*rights.values())
        plan = windows.plan(window, "w")
        guarded.grant(rights["read the ledger"], rights["write the ledger"])
        lacks(lambda: windows.commit(plan), *on_topics, on_group, on_transactions)
        # Whoever only looks needs neither to write nor the group.
        guarded.grant(rights["read the topic"])
    with OrderedWindows(guarded.job, group_id, ledger_topic=ledger, timeout_s=60) as windows:
        lacks(windows.state, f"READ on topic {ledger}")
        lacks(
            lambda: windows.preview(window, "v"),
            f"READ on topic {other}",
            f"DESCRIBE on group {group_id}",
            f"READ on topic {ledger}",
        )
        guarded.grant(*rights.values())
        assert windows.commit(plan).status.is_done
