"""What others do to a group's offsets and topics between its windows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import (
    Committed,
    Earliest,
    ForeignCommitError,
    Latest,
    OffsetMapDecodeError,
    PlanError,
    RecordsLostError,
    UnknownTopicError,
    Window,
)
from kafka_ordered_ops.core.offset_map.ours import (
    PREFIX,
    OffsetMap,
    encode_offset_map,
    is_offset_map,
)
from kafka_ordered_ops.core.offset_map.reading import MetadataKind, metadata_kind
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import OnDataLoss, TopicPartition, WindowStatus
from kafka_ordered_ops.kafka.offsets.committed_offsets import (
    CommittedOffset,
    read_committed_offsets,
)
from kafka_ordered_ops.windows import OrderedWindows, Policy
from tests.conftest import MakeTopic, Produce
from tests.support.examples import examples
from tests.support.logs import Records, read_plan, write_afresh
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
from tests.support.wire import WireError, commit_offsets, delete_offset


def committed(windows: OrderedWindows, *places: tuple[str, int]) -> list[CommittedOffset | None]:
    """The group's commits, byte for byte."""
    every = [TopicPartition(topic, number) for topic, number in places]
    found = read_committed_offsets(windows.settings, windows.group_id, every, timeout_s=TIMEOUT_S)
    return [found[tp] for tp in every]


def offsets(windows: OrderedWindows, *places: tuple[str, int]) -> list[int | None]:
    """The group's committed offsets."""
    return [None if one is None else one.offset for one in committed(windows, *places)]


def deliver(windows: OrderedWindows, window: Window, window_id: str) -> Records:
    """Plans, reads and commits one window; its records."""
    plan = windows.plan(window, window_id)
    records = read_plan(windows.settings, plan)
    windows.commit(plan)
    return records


# --- metadata of others -----------------------------------------------------------------------------

OUR_MAP = encode_offset_map(OffsetMap(b"t" * 16, b"l" * 16, 5, 3, OffsetSet.of((4, 5))))

#: As sent, and how many bytes the broker then stores: it keeps text, so what is no UTF-8 is replaced.
FOREIGN: Sequence[tuple[str, bytes | None, int]] = [
    ("null", None, 0),
    ("empty", b"", 0),
    ("a NUL", b"\0", 1),
    ("NULs between", b"a\0b\0\0", 5),
    ("every byte", bytes(range(256)), 512),
    ("half a character", "€".encode()[:2], 3),
    ("4,095 bytes", b"m" * 4_095, 4_095),
    ("4,096 bytes", b"m" * 4_096, 4_096),
    # The broker counts characters.
    ("12,288 bytes", "€".encode() * 4_096, 12_288),
    ("a Parallel Consumer's map without a done offset", b"bgAA", 4),
    ("Kafka Streams' own", b"AgAAAYvM3mAA", 12),
]

#: What claims to be ours, and cannot be read.
DAMAGED: Sequence[tuple[str, bytes]] = [
    ("of a version to come", b"~koo2:AAAA."),
    ("cut in its mark", PREFIX[:5]),
    ("garbage", PREFIX + b"garbage"),
    ("empty", PREFIX + b"."),
    ("NULs", PREFIX + b"\0\0."),
    ("half", OUR_MAP[:50]),
    ("a wrong checksum", OUR_MAP.replace(b"A", b"B", 1)),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("metadata", "size"), [one[1:] for one in FOREIGN], ids=[one[0] for one in FOREIGN]
)
def test_metadata_of_other_programs_neither_harms_nor_decides(
    bootstrap: str, windows: OrderedWindows, orders: str, metadata: bytes | None, size: int
) -> None:
    """Their offset is where the windows begin; ours takes its place; and theirs over ours is foreign."""
    place = (orders, 0)
    commit_offsets(bootstrap, windows.group_id, orders, {0: (3, metadata)})
    [found] = committed(windows, place)
    assert found is not None
    assert (found.offset, len(found.metadata)) == (3, size)
    assert offsets_of(deliver(windows, before(orders, 10, Committed()), "w")) == {3}
    [ours] = committed(windows, place)
    assert ours is not None
    assert (ours.offset, is_offset_map(ours.metadata)) == (4, True)
    plan = windows.plan(before(orders, 20), "open")
    commit_offsets(bootstrap, windows.group_id, orders, {0: (6, metadata)})
    calls: list[Callable[[], object]] = [
        lambda: windows.commit(plan),
        lambda: windows.plan(before(orders, 40), "next"),
    ]
    for call in calls:
        with pytest.raises(ForeignCommitError) as caught:
            call()
        assert caught.value.moved == {f"{orders}[0]": (4, 6)}
    # Set back where it was: not foreign, whatever stands beside it.
    commit_offsets(bootstrap, windows.group_id, orders, {0: (4, metadata)})
    windows.commit(plan)
    assert offsets_of(deliver(windows, before(orders, 40), "next")) == {4}


@pytest.mark.long
@pytest.mark.parametrize("metadata", [one[1] for one in DAMAGED], ids=[one[0] for one in DAMAGED])
def test_a_damaged_map_of_ours_is_refused_where_it_is_needed(
    bootstrap: str, windows: OrderedWindows, orders: str, metadata: bytes
) -> None:
    """The ledger has what it had at the offset that the group wrote; at any other, nobody has."""
    commit_offsets(bootstrap, windows.group_id, orders, {0: (3, metadata)})
    with pytest.raises(OffsetMapDecodeError, match="offsets reset --to committed"):
        windows.plan(before(orders, 10, Committed()), "w")
    windows.reset_offsets("committed", topics=[orders])
    assert offsets_of(deliver(windows, before(orders, 10, Committed()), "w")) == {3}
    plan = windows.plan(before(orders, 20), "open")
    commit_offsets(bootstrap, windows.group_id, orders, {0: (6, metadata)})
    calls: list[Callable[[], object]] = [
        lambda: windows.commit(plan),
        lambda: windows.plan(before(orders, 40), "next"),
        windows.adopt,
    ]
    for call in calls:
        with pytest.raises(OffsetMapDecodeError, match="is an offset map that cannot be read"):
            call()
    commit_offsets(bootstrap, windows.group_id, orders, {0: (4, metadata)})
    windows.commit(plan)
    assert offsets_of(deliver(windows, before(orders, 40), "next")) == {4}


@pytest.mark.long
@settings(
    max_examples=examples(10),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.binary(max_size=4_096)
    | st.text(max_size=4_096).map(lambda text: text.encode(errors="replace")[:4_096])
)
def test_any_metadata_is_read_as_it_is_stored(
    bootstrap: str, windows: OrderedWindows, orders: str, metadata: bytes
) -> None:
    """Byte for byte, with what is no UTF-8 replaced by the broker, and nothing behind its end."""
    if metadata_kind(metadata) in (MetadataKind.OURS, MetadataKind.PARALLEL_CONSUMER):
        # What a map says counts.
        return
    commit_offsets(bootstrap, windows.group_id, orders, {0: (3, metadata)})
    stored = metadata.decode(errors="replace").encode()
    for _ in range(3):  # An over-read shows by chance.
        [found] = committed(windows, (orders, 0))
        assert found is not None
        assert found.offset == 3
        # Java replaces malformed bytes by its own count of them.
        assert found.metadata.replace("\ufffd".encode(), b"") == stored.replace(
            "\ufffd".encode(), b""
        )
    assert windows.preview(before(orders, 100, Committed()), "w").offsets == 3


def test_metadata_beyond_the_limit_is_refused_by_the_broker(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """Nobody can leave more than 4,096 characters beside an offset of the group."""
    with pytest.raises(WireError, match="12"):  # OFFSET_METADATA_TOO_LARGE
        commit_offsets(bootstrap, windows.group_id, orders, {0: (3, b"m" * 4_097)})
    assert offsets(windows, (orders, 0)) == [None]


@pytest.mark.parametrize("offset", [0, 5], ids=["back", "forward"])
def test_an_offset_that_was_set_with_our_metadata_is_foreign(
    bootstrap: str, windows: OrderedWindows, orders: str, offset: int
) -> None:
    """A program that changes the offset it read, and commits all it read, hands our map on with it."""
    plan = windows.plan(before(orders, 12, Earliest()), "w")
    windows.commit(plan)
    open_plan = windows.plan(before(orders, 20), "open")
    [ours] = committed(windows, (orders, 0))
    assert ours is not None
    commit_offsets(bootstrap, windows.group_id, orders, {0: (offset, ours.metadata)})
    calls: list[Callable[[], object]] = [
        lambda: windows.plan(before(orders, 100), "next"),
        lambda: windows.commit(open_plan),
    ]
    for call in calls:
        with pytest.raises(ForeignCommitError) as caught:
            call()
        assert caught.value.moved == {f"{orders}[0]": (2, offset)}


# --- offsets that do not fit the log ----------------------------------------------------------------


def test_a_start_beyond_the_end_is_no_start(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """Somebody committed past the end of the log: both numbers are told, nothing is planned or skipped."""
    commit_offsets(bootstrap, windows.group_id, orders, {0: (1_000, b"")})
    window = before(orders, 100, Committed())
    calls: list[Callable[[], object]] = [
        lambda: windows.plan(window, "w"),
        lambda: windows.preview(window, "w"),
    ]
    for call in calls:
        with pytest.raises(PlanError, match=r"\[0\].*offset 1000.*ends at 6"):
            call()
    assert windows.list() == []
    # The first window may choose another start, and its commit sets the group right.
    assert len(deliver(windows, before(orders, 100, Earliest()), "w")) == 6
    assert offsets(windows, (orders, 0)) == [6]


@pytest.mark.long
def test_a_start_below_the_log_is_loss(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """The group had not read what retention took: an error, or written down where the window allows it."""
    commit_offsets(bootstrap, windows.group_id, orders, {0: (1, b"")})
    delete_before(bootstrap, orders, 4)
    with pytest.raises(RecordsLostError) as caught:
        windows.plan(before(orders, 100, Committed()), "w")
    assert caught.value.lost == {f"{orders}[0]": [(1, 4)]}
    tolerant = Window([orders], at(100), starting_offsets=Committed(), on_data_loss=OnDataLoss.WARN)
    assert offsets_of(deliver(windows, tolerant, "w")) == {4, 5}
    assert offsets(windows, (orders, 0)) == [6]


@pytest.mark.slow
def test_offsets_of_some_partitions_expire(
    bootstrap: str, topic: MakeTopic, produce: Produce, windows: OrderedWindows
) -> None:
    """Each is restored from the ledger, told by the plan, and nothing is read again."""
    name = topic(partitions=3)
    for number in range(3):
        produce((name, number, None, b"x", BASE_MS + s * 1000, ()) for s in (0, 20, 5))
    deliver(windows, before(name, 12, Earliest()), "w")
    places = [(name, number) for number in range(3)]
    for number in (0, 2):
        delete_offset(bootstrap, windows.group_id, name, number)
    assert offsets(windows, *places) == [None, 1, None]
    plan = windows.plan(before(name, 13), "next")
    assert (plan.taken, plan.lost) == ({}, {})
    assert "2 partitions have expired" in plan.notes[0]
    windows.commit(plan)
    assert offsets(windows, *places) == [1, 1, 1]
    assert {key[2] for key in deliver(windows, before(name, 100), "rest")} == {1}


def test_a_start_behind_an_open_transaction_waits_for_nothing(
    bootstrap: str, topic: MakeTopic, produce: Produce, windows: OrderedWindows
) -> None:
    """An uncommitted reader committed the high watermark: no log was cut, and what comes later is read."""
    name = topic()
    produce((name, 0, None, b"x", BASE_MS + s * 1000, ()) for s in (0, 5))
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"open-{name}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(name, value=b"x", partition=0, timestamp=BASE_MS)
    assert producer.flush(TIMEOUT_S) == 0
    commit_offsets(bootstrap, windows.group_id, name, {0: (3, b"")})
    assert deliver(windows, before(name, 12, Committed()), "w") == {}
    producer.commit_transaction(TIMEOUT_S)
    [last] = produce([(name, 0, None, b"x", BASE_MS + 1_000, ())])
    WindowOracle(windows, bootstrap, [name]).await_markers()
    assert offsets_of(deliver(windows, before(name, 13), "next")) == {last}
    assert offsets(windows, (name, 0)) == [5]


# --- topics and partitions that come and go ---------------------------------------------------------


@pytest.fixture
def two_topics(topic: MakeTopic, produce: Produce) -> tuple[str, str]:
    """Two topics of one stem with a record at seconds 0, 20 and 5 each."""
    stem = f"pair-{uuid.uuid4().hex[:8]}"
    names = topic(f"{stem}-a"), topic(f"{stem}-b")
    for name in names:
        produce((name, 0, None, b"x", BASE_MS + s * 1000, ()) for s in (0, 20, 5))
    return names


def delete_topic(bootstrap: str, name: str) -> None:
    """Deletes a topic, and waits until the broker has."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    wait_until_gone(bootstrap, name)


@pytest.mark.long
@pytest.mark.parametrize("by", ["names", "pattern"])
def test_a_topic_deleted_between_plan_and_commit_does_not_block_the_other(
    bootstrap: str, windows: OrderedWindows, two_topics: tuple[str, str], by: str
) -> None:
    """The window commits, the other topic's progress moves, and the next windows go on with it."""
    gone, kept = two_topics
    named = [f"^{gone[:-2]}-.*"] if by == "pattern" else [gone, kept]
    plan = windows.plan(Window(named, at(12), starting_offsets=Earliest()), "w")
    delete_topic(bootstrap, gone)
    assert windows.commit(plan).status is WindowStatus.COMMITTED
    assert windows.commit(plan).status is WindowStatus.COMMITTED
    assert offsets(windows, (gone, 0), (kept, 0)) == [None, 1]
    if by == "names":
        # Asked for by name, it is missed by name; leaving it out is a declared step.
        with pytest.raises(UnknownTopicError, match=gone):
            windows.plan(Window(named, at(100)), "next")
        next_plan = windows.plan(Window([kept], at(100)), "next", Policy(redefine=True))
    else:
        next_plan = windows.plan(Window(named, at(100)), "next")
    assert read_plan(windows.settings, next_plan) == {(kept, 0, 1): BASE_MS + 20_000}
    windows.commit(next_plan)
    assert offsets(windows, (gone, 0), (kept, 0)) == [None, 3]


@pytest.mark.slow
def test_a_written_window_of_a_deleted_topic_is_committed_by_its_retry(
    bootstrap: str, windows: OrderedWindows, two_topics: tuple[str, str]
) -> None:
    """Its output is complete: nothing of the topic is needed any more."""
    gone, kept = two_topics
    window = Window(two_topics, at(12), starting_offsets=Earliest())
    windows.mark_written(windows.plan(window, "w"), {"out": 1})
    delete_topic(bootstrap, gone)
    plan = windows.plan(window, "w")
    assert plan.status is WindowStatus.WRITTEN
    assert windows.commit(plan).status is WindowStatus.COMMITTED
    assert offsets(windows, (gone, 0), (kept, 0)) == [None, 1]


@pytest.mark.slow
def test_a_window_of_a_deleted_topic_can_be_abandoned(
    bootstrap: str, windows: OrderedWindows, two_topics: tuple[str, str]
) -> None:
    """Taken up again it names the topic; abandoned, what it held of the others is free."""
    gone, kept = two_topics
    windows.plan(Window(two_topics, at(12), starting_offsets=Earliest()), "w")
    delete_topic(bootstrap, gone)
    with pytest.raises(UnknownTopicError, match=gone):
        windows.plan(Window(two_topics, at(12), starting_offsets=Earliest()), "w")
    windows.abandon("w")
    window = Window([kept], at(100), starting_offsets=Earliest())
    plan = windows.plan(window, "rest", Policy(redefine=True))
    assert len(read_plan(windows.settings, plan)) == 3
    windows.commit(plan)


@pytest.mark.parametrize("start", [Earliest(), Latest()], ids=str)
def test_partitions_added_after_the_plan_come_with_the_next_window(
    bootstrap: str,
    topic: MakeTopic,
    produce: Produce,
    windows: OrderedWindows,
    start: Earliest | Latest,
) -> None:
    """The plan stays as it is, taken up or not; the next one has them from their start, as late."""
    name = topic()
    produce((name, 0, None, b"x", BASE_MS + s * 1000, ()) for s in (0, 20, 5))
    window = before(name, 12, start)
    plan = windows.plan(window, "w")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [done] = admin.create_partitions([NewPartitions(name, 3)]).values()
    done.result(TIMEOUT_S)
    write_afresh(bootstrap, name, 2, [BASE_MS + 1_000, BASE_MS + 15_000])
    again = windows.plan(window, "w")
    assert again.taken == plan.taken
    assert [part.tp.partition for part in again] == [0]
    windows.commit(again)
    places = [(name, number) for number in range(3)]
    assert offsets(windows, *places) == [1 if start == Earliest() else 3, None, None]
    next_plan = windows.plan(before(name, 100), "next")
    assert len([note for note in next_plan.notes if "starts at earliest" in note]) == 2
    records = read_plan(windows.settings, next_plan)
    assert {key[1:] for key in records if key[1]} == {(2, 0), (2, 1)}
    # Stamped before a cutoff that was planned before it was written.
    times_ms = np.array([BASE_MS + 1_000, BASE_MS + 15_000])
    assert next_plan.partitions[2].late.mask(np.array([0, 1]), times_ms).tolist() == [True, False]
    windows.commit(next_plan)
    assert offsets(windows, *places) == [3, 0, 2]


@pytest.mark.slow
def test_a_partition_added_under_an_open_window_is_planned_around_it(
    bootstrap: str, topic: MakeTopic, produce: Produce, windows: OrderedWindows
) -> None:
    """Another window takes the new partition while the first is open; both commit, in either order."""
    name = topic()
    produce((name, 0, None, b"x", BASE_MS + s * 1000, ()) for s in (0, 20, 5))
    first = windows.plan(before(name, 12, Earliest()), "first")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [done] = admin.create_partitions([NewPartitions(name, 2)]).values()
    done.result(TIMEOUT_S)
    write_afresh(bootstrap, name, 1, [BASE_MS + 1_000, BASE_MS + 30_000])
    second = windows.plan(before(name, 25), "second")
    assert {key[1:] for key in read_plan(windows.settings, second)} == {(0, 1), (1, 0)}
    windows.commit(second)
    assert offsets(windows, (name, 0), (name, 1)) == [0, 1]
    windows.commit(first)
    assert offsets(windows, (name, 0), (name, 1)) == [3, 1]
    assert {key[1:] for key in deliver(windows, before(name, 100), "rest")} == {(1, 1)}
