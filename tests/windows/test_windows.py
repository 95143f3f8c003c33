"""The service on a real broker: planning, committing, and every rule of the ledger."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_ordered_ops import (
    AtTime,
    ClientSettings,
    Committed,
    CommittedOffsetMissingError,
    ConfigError,
    CutoffInFutureError,
    Earliest,
    Latest,
    RecordsLostError,
    Relative,
    StartingOffsetsRequiredError,
    UnknownTopicError,
    UnknownWindowError,
    Window,
    WindowCoveredError,
    WindowMismatchError,
    WindowSupersededError,
)
from kafka_ordered_ops.core import types as core
from kafka_ordered_ops.core.offset_map.ours import decode_offset_map
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    PlanContent,
    WindowStatus,
)
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.offsets.committed_offsets import read_committed_offsets
from kafka_ordered_ops.windows import OrderedWindows, Policy
from tests.conftest import MakeTopic, Produce
from tests.support.logs import LogWriter, Records, read_plan, visible_records, write_afresh
from tests.support.windows_support import (
    BASE_MS,
    TIMEOUT_S,
    at,
    before,
    delete_before,
    offsets_of,
)


@pytest.fixture
def ledger_topic(topic: MakeTopic) -> str:
    """A ledger of this test's own, so that its other tests cannot be disturbed."""
    return f"ledger-{uuid.uuid4().hex[:12]}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_every_visible_record_is_in_exactly_one_window(
    bootstrap: str, topic: MakeTopic, group_id: str, seed: int
) -> None:
    """Random topics and windows: out-of-order times, ties, empty partitions, aborted transactions."""
    random = Random(seed)
    topics = {topic(partitions=random.randint(1, 8)): 0 for _ in range(random.randint(1, 3))}
    writer = LogWriter(bootstrap, random)
    delivered: Records = {}
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    with OrderedWindows(settings, group_id) as windows, Lookup(settings) as lookup:
        facts = lookup.topics(topics)
        every = [core.TopicPartition(name, p) for name in topics for p in facts[name].partitions]
        # Some partitions stay empty.
        written = [(tp.topic, tp.partition) for tp in every if random.random() < 0.8] or [
            (every[0].topic, every[0].partition)
        ]
        for number in range(5):
            low = BASE_MS + number * 10_000
            writer.write(written, count=150, low_ms=low - 15_000, high_ms=low + 15_000)
            window = Window(list(topics), at(number * 10), starting_offsets=Earliest())
            plan = windows.plan(window, f"w{number}")
            ends = lookup.end_offsets(every, Isolation.READ_COMMITTED)
            expected = {
                key: time_ms
                for key, time_ms in visible_records(bootstrap, ends).items()
                if time_ms < plan.cutoff_ms and key not in delivered
            }
            assert read_plan(windows.settings, plan) == expected
            if random.random() < 0.3:
                windows.abandon(plan.window_id)
                continue
            delivered |= expected
            windows.commit(plan)
        last = windows.plan(Window(list(topics), at(1_000), starting_offsets=Earliest()), "last")
        delivered |= read_plan(windows.settings, last)
        windows.commit(last)
        ends = lookup.end_offsets(every, Isolation.READ_COMMITTED)
        assert delivered == visible_records(bootstrap, ends)
        committed = read_committed_offsets(windows.settings, group_id, every, timeout_s=TIMEOUT_S)
        assert {tp: one.offset if one else None for tp, one in committed.items()} == ends


def test_a_window_takes_out_of_order_records_and_leaves_the_rest(
    windows: OrderedWindows, orders: str
) -> None:
    """Before second 12: offsets 0, 1 and the out-of-order record 3; the rest comes with the next window, as late."""
    plan = windows.plan(before(orders, 12, Earliest()), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {0, 1, 3}
    assert plan.status is WindowStatus.PLANNED
    assert windows.commit(plan).status is WindowStatus.COMMITTED
    rest = windows.plan(before(orders, 100), "rest")
    assert offsets_of(read_plan(windows.settings, rest)) == {2, 4, 5}


@pytest.mark.slow
def test_a_preview_is_the_plan_and_writes_nothing(
    bootstrap: str, group_id: str, orders: str, ledger_topic: str
) -> None:
    """No ledger topic is made, no claim, and no topic by asking for one that does not exist."""
    with OrderedWindows(
        {"bootstrap.servers": bootstrap}, group_id, ledger_topic=ledger_topic
    ) as windows:
        preview = windows.preview(before(orders, 12, Earliest()))
        with pytest.raises(UnknownTopicError):
            windows.preview(before(f"{orders}-unknown", 12, Earliest()))
        listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
        assert ledger_topic not in listed
        assert f"{orders}-unknown" not in listed
        with pytest.raises(ConfigError, match="preview"):
            windows.commit(preview)
        assert [part.taken for part in preview] == [OffsetSet.of((0, 2), (3, 4))]
        planned = windows.plan(before(orders, 12, Earliest()))
        assert [part.taken for part in planned] == [part.taken for part in preview]


def test_the_same_id_takes_up_the_same_plan(
    windows: OrderedWindows, orders: str, produce: Produce
) -> None:
    """Records that arrive in between do not change it; the attempt rises, and the older may not commit."""
    first = windows.plan(before(orders, 12, Earliest()), "w")
    produce([(orders, 0, None, b"late", BASE_MS, ())])
    second = windows.plan(before(orders, 12), "w")
    assert (second.attempt, second.claim_id) == (2, first.claim_id)
    assert second.taken == first.taken
    with pytest.raises(WindowSupersededError, match="attempt 1"):
        windows.commit(first)
    windows.commit(second)
    # Committed is committed, whoever asks again.
    assert windows.commit(first).status is WindowStatus.COMMITTED


def test_another_question_under_the_same_id_is_refused(
    windows: OrderedWindows, orders: str
) -> None:
    """The differing fields are named."""
    windows.plan(before(orders, 12, Earliest()), "w")
    with pytest.raises(WindowMismatchError, match="cutoff") as caught:
        windows.plan(before(orders, 13, Earliest()), "w")
    assert set(caught.value.differences) == {"cutoff"}
    with pytest.raises(WindowMismatchError, match="starting_offsets"):
        windows.plan(before(orders, 12, Latest()), "w")


def test_each_topic_may_begin_elsewhere(
    windows: OrderedWindows, orders: str, topic: MakeTopic, produce: Produce
) -> None:
    """By its own bound; a topic without one is named, and one that comes later has its bound then."""
    rates = topic()
    produce((rates, 0, None, b"x", BASE_MS + n * 1000, ()) for n in range(10))

    def asked(seconds: float, starts: dict[str, str], *topics: str) -> Window:
        return Window(topics, at(seconds), starting_offsets=starts)

    with pytest.raises(StartingOffsetsRequiredError) as caught:
        windows.plan(asked(5, {orders: "earliest"}, orders, rates), "w")
    assert caught.value.topics == [rates]
    starts = {orders: "earliest", rates: "-PT2S"}
    plan = windows.plan(asked(5, starts, orders, rates), "w")
    found = {part.tp.topic: part.taken for part in plan}
    assert found[rates] == OffsetSet.of((3, 5))
    assert 0 in found[orders]
    windows.commit(plan)
    rest = windows.plan(asked(8, {orders: "latest"}, orders, rates), "rest")
    assert {part.tp.topic: part.taken for part in rest}[rates] == OffsetSet.of((5, 8))


def test_an_abandoned_window_gives_its_offsets_free(windows: OrderedWindows, orders: str) -> None:
    """Its old plan can no longer commit, also when the id was planned again."""
    old = windows.plan(before(orders, 12, Earliest()), "w")
    windows.abandon("w")
    windows.abandon("w")
    with pytest.raises(WindowSupersededError):
        windows.commit(old)
    # The origin that nothing was committed from may be chosen again.
    with pytest.raises(StartingOffsetsRequiredError):
        windows.plan(before(orders, 100), "other")
    other = windows.plan(before(orders, 100, Earliest()), "other")
    assert other.offsets == 6
    new = windows.plan(before(orders, 12), "w")
    assert new.content is PlanContent.COVERED
    assert new.claim_id != old.claim_id
    with pytest.raises(WindowSupersededError, match="claim"):
        windows.commit(old)
    windows.commit(other)
    with pytest.raises(WindowSupersededError, match="Replay"):
        windows.abandon("other")


def test_a_plan_is_abandoned_only_by_the_try_that_owns_it(
    windows: OrderedWindows, orders: str
) -> None:
    """By its id a window is anybody's; an older attempt, or a plan of before, leaves it alone."""
    old = windows.plan(before(orders, 12, Earliest()), "w")
    new = windows.plan(before(orders, 12), "w")
    with pytest.raises(WindowSupersededError, match=r"attempt 1 .* attempt 2"):
        windows.abandon(old)
    assert windows.show("w").status is WindowStatus.PLANNED
    assert windows.abandon(new).status is WindowStatus.ABANDONED
    again = windows.plan(before(orders, 12, Earliest()), "w")
    with pytest.raises(WindowSupersededError, match="claim"):
        windows.abandon(new)
    windows.commit(again)


def test_windows_commit_in_any_order(windows: OrderedWindows, orders: str) -> None:
    """A later window first: the committed offset waits, the offset map and the ledger know the rest."""
    early = windows.plan(before(orders, 12, Earliest()), "early")
    late = windows.plan(before(orders, 100), "late")
    assert late.stepped_around == ("early",)
    windows.commit(late)
    tp = core.TopicPartition(orders, 0)
    [found] = read_committed_offsets(
        windows.settings, windows.group_id, [tp], timeout_s=10
    ).values()
    assert found is not None
    offset_map = decode_offset_map(found.metadata)
    assert offset_map is not None
    assert (found.offset, offset_map.base) == (0, 0)
    assert offset_map.beyond == OffsetSet.of((2, 3), (4, 6))
    windows.commit(early)
    [found] = read_committed_offsets(
        windows.settings, windows.group_id, [tp], timeout_s=10
    ).values()
    assert found is not None
    assert found.offset == 6


def test_a_plain_consumer_goes_on_where_the_windows_stopped(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """The group's ordinary committed offset is moved along, for lag monitors and take-overs."""
    windows.commit(windows.plan(before(orders, 12, Earliest()), "w"))
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": windows.group_id, "enable.auto.commit": False}
    )
    [committed] = consumer.committed([TopicPartition(orders, 0)], timeout=TIMEOUT_S)
    consumer.close()
    assert committed.offset == 2


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (Earliest(), {0, 1, 2, 3, 4, 5}),
        (Latest(), set()),
        (AtTime(BASE_MS + 15_000), {2, 3, 4, 5}),
        # Relative to the cutoff (second 35), never to now.
        (Relative(15_000), {2, 3, 4, 5}),
        (AtTime(BASE_MS + 3_600_000), set()),
    ],
)
def test_the_start_bound_is_resolved_once(
    windows: OrderedWindows, orders: str, start: Bound, expected: set[int]
) -> None:
    """Each kind of bound; what lies below the origin is never read, also not by later windows."""
    plan = windows.plan(before(orders, 35, start), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == expected
    windows.commit(plan)
    assert windows.plan(before(orders, 200), "next").offsets == 0


def test_the_committed_offset_as_start(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """What an ordinary consumer committed is where the windows begin; without one there is a named error."""
    with pytest.raises(CommittedOffsetMissingError, match=r"\[0\]"):
        windows.plan(before(orders, 100, Committed()), "w")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": windows.group_id})
    consumer.commit(offsets=[TopicPartition(orders, 0, 4)], asynchronous=False)
    consumer.close()
    plan = windows.plan(before(orders, 100, Committed()), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {4, 5}
    windows.commit(plan)


def test_a_first_plan_without_a_start_says_what_each_choice_would_read(
    windows: OrderedWindows, orders: str
) -> None:
    """Nothing is guessed."""
    with pytest.raises(
        StartingOffsetsRequiredError, match=r"earliest: 6 offsets; latest: 0 offsets"
    ):
        windows.plan(before(orders, 12))


def test_partitions_that_appear_later_start_at_earliest(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """Whatever the first window's starting offsets were: nothing written to them may be missed."""
    windows.commit(windows.plan(before(orders, 12, Latest()), "w"))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [done] = admin.create_partitions([NewPartitions(orders, 2)]).values()
    done.result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    # Of the whole cluster: asking for one topic would create it where it is not known yet.
    while len(admin.list_topics(timeout=TIMEOUT_S).topics[orders].partitions) < 2:
        assert time.monotonic() < deadline, "the second partition is not there"
    write_afresh(bootstrap, orders, 1, [BASE_MS])
    plan = windows.plan(before(orders, 50, Latest()), "next")
    assert {key[1:] for key in read_plan(windows.settings, plan)} == {(1, 0)}
    assert "starts at earliest" in plan.notes[0]


def test_topics_that_come_to_match_a_pattern_start_at_earliest(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Also when the window asks for latest; excluded ones stay out."""
    stem = f"match-{uuid.uuid4().hex[:8]}"
    topic(f"{stem}-a")
    topic(f"{stem}-skip")

    def matching(seconds: int) -> Window:
        return Window(
            [f"^{stem}-.*"], at(seconds), starting_offsets=Latest(), exclude=[f"{stem}-skip"]
        )

    windows.commit(windows.plan(matching(1), "w"))
    topic(f"{stem}-b")
    for name in ("a", "b", "skip"):
        produce([(f"{stem}-{name}", 0, None, b"x", BASE_MS, ())])
    plan = windows.plan(matching(2), "next")
    assert {key[0] for key in read_plan(windows.settings, plan)} == {f"{stem}-a", f"{stem}-b"}


def test_empty_is_not_covered(windows: OrderedWindows, orders: str, topic: MakeTopic) -> None:
    """Nothing happened: empty. Others took it all: covered, and refused where that is asked for."""
    windows.commit(windows.plan(before(orders, 100, Earliest()), "all"))
    assert windows.plan(before(orders, 200), "later").content is PlanContent.EMPTY
    assert windows.plan(before(orders, 50), "earlier").content is PlanContent.COVERED
    with pytest.raises(WindowCoveredError, match="Replay"):
        windows.plan(before(orders, 60), "strict", Policy(on_covered=OnCovered.FAIL))
    replayed = windows.plan(before(orders, 100), "again", Policy(on_covered=OnCovered.REPLAY))
    assert (replayed.window_id, replayed.offsets) == ("all", 6)
    with pytest.raises(WindowCoveredError):
        windows.plan(before(orders, 70), "nobody", Policy(on_covered=OnCovered.REPLAY))
    nothing = topic()
    with OrderedWindows(windows.settings, f"{windows.group_id}-other") as other:
        assert other.plan(before(nothing, 5, Earliest()), "n").content is PlanContent.EMPTY


def test_a_committed_window_can_be_replayed(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """The same offsets, no new commit; a clear error once retention has taken them."""
    plan = windows.plan(before(orders, 12, Earliest()), "w")
    with pytest.raises(UnknownWindowError, match="not committed"):
        windows.replay("w")
    windows.commit(plan)
    again = windows.replay("w")
    assert read_plan(windows.settings, again) == read_plan(windows.settings, plan)
    assert windows.commit(again).status is WindowStatus.COMMITTED
    delete_before(bootstrap, orders, 1)
    with pytest.raises(RecordsLostError, match="replayed") as caught:
        windows.replay("w")
    assert caught.value.lost == {f"{orders}[0]": [(0, 1)]}


def test_a_cutoff_in_the_future_is_refused_unless_allowed(
    windows: OrderedWindows, orders: str
) -> None:
    """Records before it may still be written."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with pytest.raises(CutoffInFutureError):
        windows.plan(Window([orders], tomorrow, starting_offsets=Earliest()))
    plan = windows.plan(
        Window([orders], tomorrow, starting_offsets=Earliest(), allow_future_cutoff=True)
    )
    assert plan.offsets == 6
