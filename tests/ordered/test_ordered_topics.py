"""Live tails while topics and partitions appear, go, and are made anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kafka_ordered_ops import (
    AuthorizationError,
    BrokerUnreachableError,
    Earliest,
    OrderedReader,
    TopicRecreatedError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.ordered import watch as watch_module
from kafka_ordered_ops.ordered.watch import Watch
from kafka_ordered_ops.testing.lookup import MemoryLookup
from tests.support.broker_world import BrokerWorld
from tests.support.memory_world import MemoryWorld
from tests.support.ordered_support import NEVER, Clock, Tail, rows
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks often, so that nobody waits for one."""
    monkeypatch.setattr("kafka_ordered_ops.ordered.engine.EVERY_S", 0.1)
    monkeypatch.setattr("kafka_ordered_ops.ordered.same_topics.EVERY_S", 0.1)


def pattern(world: World, stem: str) -> str:
    """Selects the world's topics whose names begin so."""
    return f"^{stem}.*-{world.named('')[1:]}"


def test_a_partition_that_is_added(world: World) -> None:
    """It is read from its first record, wherever the others began, and waited for from then on."""
    world.create("orders")
    world.write("orders", 0, 1)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    with Tail(world, "orders", grace=NEVER, starting_offsets="latest") as tail:
        tail.until_live()
        world.add_partitions("orders", 2)
        world.write("orders", 1, 5)
        tail.until(lambda: tail.state(second).get("held") == 1)
        world.write("orders", 0, 4, 6)
        tail.until_rows(*rows(first, 4, at=1), *rows(second, 5))
        assert tail.late == []


@pytest.mark.slow
def test_a_topic_that_a_pattern_matches_later(world: World) -> None:
    """It is read whole; one that is deleted is left, and what was held of it is released."""
    world.create("old")
    with Tail(world, pattern(world, "o"), grace=NEVER) as tail:
        world.write("old", 0, 1, 9)
        tail.until_rows(*rows(world.tp("old"), 1, 9))
        world.create("other", partitions=2)
        world.write("other", 0, 10, 20)
        tail.until_at(world.tp("other", 0), 2)
        assert len(tail.rows) == 2
        world.delete("other")
        tail.until(lambda: len(tail.reader.state()) == 1)
        world.write("old", 0, 30)
        tail.until_rows(
            *rows(world.tp("old"), 1, 9),
            *rows(world.tp("other"), 10, 20),
            *rows(world.tp("old"), 30, at=2),
        )
        assert tail.reader.is_live


def test_the_last_topic_of_a_pattern_may_go(world: World) -> None:
    """The tail waits for the next one."""
    world.create("orders1")
    with Tail(world, pattern(world, "orders"), grace=NEVER) as tail:
        world.delete("orders1")
        tail.until(lambda: len(tail.reader.state()) == 0)
        world.create("orders2")
        world.write("orders2", 0, 1)
        tail.until_rows(*rows(world.tp("orders2"), 1))


def test_a_topic_asked_for_by_name_is_missed(world: World) -> None:
    """Its deletion is named, beside a pattern too; a second read of the reader says what has happened."""
    world.create("orders")
    world.create("kept")
    with Tail(world, "orders", pattern(world, "k"), grace=NEVER) as tail:
        tail.until_live()
        world.delete("orders")
        with pytest.raises(UnknownTopicError, match="orders"):
            tail.until(lambda: False)
        assert not tail.reader.is_done
        with pytest.raises(Exception, match="ended with UnknownTopicError"):
            tail.poll()


@pytest.mark.parametrize("names", ["orders", "^orders"])
def test_a_topic_that_is_made_anew(world: World, names: str) -> None:
    """Its offsets begin anew: what was read before has nothing to do with it."""
    world.create("orders")
    world.write("orders", 0, 1, 2, 3)
    asked = pattern(world, "orders") if names.startswith("^") else names
    with Tail(world, asked, grace=NEVER) as tail:
        tail.until_at(world.tp("orders"), 3)
        world.delete("orders")
        world.create("orders")
        with pytest.raises(TopicRecreatedError) as caught:
            tail.until(lambda: False)
        assert caught.value.topic == world.named("orders")
        assert caught.value.expected_id != caught.value.found_id


@pytest.mark.parametrize("planned", [False, True])
def test_a_read_up_to_the_end_mixes_no_two_topics(world: World, planned: bool) -> None:
    """The client goes on in the new topic without a word: the end of the read is an error instead."""
    world.create("orders")
    world.write("orders", 0, *range(20))
    plan = world.windows().preview(world.window(100.0, starting_offsets=Earliest()), "w")
    reader = (
        OrderedReader.of_plan(plan, world.settings)
        if planned
        else OrderedReader(world.settings, world.named("orders"))
    )
    with reader:
        world.delete("orders")
        world.create("orders")
        world.write("orders", 0, *range(50, 75))
        with pytest.raises(TopicRecreatedError) as caught:
            list(reader)
    assert caught.value.topic == world.named("orders")


def test_a_smaller_new_topic_is_told_from_a_loss(memory: MemoryWorld) -> None:
    """The reader finds its position outside of the log before anybody looks at the topic's id."""
    memory.create("orders")
    memory.write("orders", 0, *range(5))
    with Tail(memory, "orders", grace=NEVER) as tail:
        tail.until_at(memory.tp("orders"), 5)
        watch = tail.reader._engine._watch
        assert watch is not None
        watch._stop.set()
        watch._thread.join()
        memory.delete("orders")
        memory.create("orders")
        with pytest.raises(TopicRecreatedError):
            tail.until(lambda: False)


def test_no_offset_of_an_old_topic_is_committed_for_a_new_one(memory: MemoryWorld) -> None:
    """A group that did would skip the new topic's first records."""
    memory.create("orders")
    memory.write("orders", 0, *range(5))
    tp = memory.tp("orders")
    with Tail(memory, "orders", grace=NEVER, group_id="live", commit_interval_s=0.01) as tail:
        tail.until_rows(*rows(tp, *range(5)))
        tail.until(lambda: memory.committed("orders", group_id="live") == {str(tp): (5, b"")})
        memory.write("orders", 0, 6)
        tail.until_rows(*rows(tp, *range(5)), *rows(tp, 6, at=5))
        memory.delete("orders")
        memory.create("orders")
        memory.write("orders", 0, *range(10))
        # The commit of the last record is due before anybody has looked at the topic.
        with pytest.raises(TopicRecreatedError):
            tail.until(lambda: False)
    assert memory.committed("orders", group_id="live") == {str(tp): (0, b"")}


# --- the watch by itself ------------------------------------------------------------------------------


@contextmanager
def watching(world: World, *topics: str) -> Iterator[Watch]:
    """A watch that looks without a pause."""
    names = [name if name.startswith("^") else world.named(name) for name in topics]
    with Watch(
        world.settings,
        names,
        (),
        Isolation.READ_COMMITTED,
        every_s=0.01,
        timeout_s=TIMEOUT_S,
        clock=Clock(),
    ) as watch:
        yield watch


def next_look(watch: Watch) -> Any:
    """What is seen from now on."""
    deadline = time.monotonic() + TIMEOUT_S
    found: list[Any] = []
    # The first one may have begun before.
    while len(found) < 3:
        assert time.monotonic() < deadline
        if (seen := watch.take()) is not None:
            found.append(seen)
        time.sleep(0.005)
    return found[-1]


def test_an_incomplete_list_of_topics_is_not_believed(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started may list less than there is: those topics would be read again from their start."""
    memory.create("orders")
    memory.create("other")
    selected = MemoryLookup.selected
    asked = pattern(memory, "o")
    with watching(memory, asked) as watch:
        assert len(next_look(watch).topics) == 2

        def some(
            self: MemoryLookup, names: Sequence[str], exclude: Sequence[str] = ()
        ) -> Mapping[str, TopicFacts]:
            found = selected(self, names, exclude)
            found.pop(memory.named("other"), None)
            return found

        monkeypatch.setattr(MemoryLookup, "selected", some)
        assert len(next_look(watch).topics) == 2
        memory.delete("other")
        deadline = time.monotonic() + TIMEOUT_S
        while len(next_look(watch).topics) == 2:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("question", ["selected", "log_ends", "end_offsets"])
def test_a_topic_that_goes_in_the_middle_of_a_look(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """It is gone at the next look; the others are never missed."""
    memory.create("orders")
    memory.create("tmp")
    asked: Callable[..., Any] = getattr(MemoryLookup, question)
    gone = threading.Event()

    def once(self: MemoryLookup, *args: Any, **options: Any) -> Any:
        if gone.is_set():
            return asked(self, *args, **options)
        gone.set()
        memory.delete("tmp")
        raise UnknownTopicError("gone", topics=(memory.named("tmp"),))

    with watching(memory, "orders", pattern(memory, "t")) as watch:
        assert len(next_look(watch).topics) == 2
        monkeypatch.setattr(MemoryLookup, question, once)
        assert gone.wait(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            topics = set(next_look(watch).topics)
            assert memory.named("orders") in topics
            if len(topics) == 1:
                break
            assert time.monotonic() < deadline


def test_a_watch_that_fails_for_good_says_so(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: without looks no partition would ever be idle, and nobody would know why."""
    memory.create("orders")
    for error in (ZeroDivisionError("a bug"), AuthorizationError("no right")):

        def fails(*_: Any, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(MemoryLookup, "end_offsets", fails)
        with watching(memory, "orders") as watch, pytest.raises(type(error)):
            next_look(watch)


def test_a_watch_that_sees_nothing_is_blind(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And sees again by itself."""
    monkeypatch.setattr(watch_module, "_BLIND_S", 0.2)
    memory.create("orders")
    with watching(memory, "orders") as watch:
        next_look(watch)
        assert not watch.is_blind
        with memory.kafka.unreachable():
            _until(lambda: watch.is_blind)
        _until(lambda: not watch.is_blind)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_new_partitions_wait_for_a_cluster_that_is_away(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are begun when it answers again, and meanwhile nothing passes them by."""
    monkeypatch.setattr("kafka_ordered_ops.ordered.engine.BEGIN_AGAIN_S", 0.1)
    memory.create("orders")
    log_starts = MemoryLookup.log_starts
    refused = 0

    def away(*_: Any) -> None:
        nonlocal refused
        refused += 1
        raise BrokerUnreachableError("away", code="_TRANSPORT")

    with Tail(memory, "orders", grace=NEVER) as tail:
        tail.until_live()
        monkeypatch.setattr(MemoryLookup, "log_starts", away)
        memory.add_partitions("orders", 2)
        tail.until(lambda: refused >= 2)
        memory.write("orders", 0, 7)
        tail.until_at(memory.tp("orders"), 1)
        assert tail.rows == []
        assert not tail.reader.is_live
        monkeypatch.setattr(MemoryLookup, "log_starts", log_starts)
        memory.write("orders", 1, 5)
        tail.until_rows(*rows(memory.tp("orders", 1), 5))


@pytest.mark.slow
def test_a_group_reads_topics_that_match_later(world: World) -> None:
    """Its members subscribe to names: to new ones when they appear, read from their first record."""
    world.create("old")
    with Tail(
        world, pattern(world, "o"), grace=NEVER, group_id="live", starting_offsets="latest"
    ) as tail:
        tail.until_live()
        world.create("other")
        world.write("other", 0, 1, 2)
        tail.until_at(world.tp("other"), 2)
        world.write("old", 0, 3)
        tail.until_rows(*rows(world.tp("other"), 1, 2))
        world.delete("other")
        world.write("old", 0, 4)
        tail.until(lambda: len(tail.reader.state()) == 1)
        tail.until(lambda: len(tail.rows) == 4)
        assert tail.rows[2:] == rows(world.tp("old"), 3, 4)


def test_a_group_commits_without_topics_that_were_deleted(world: World) -> None:
    """Also when the commit is the first to find out: what patterns select goes on without them."""
    world.create("old")
    world.create("other")
    with Tail(
        world, pattern(world, "o"), grace=NEVER, group_id="live", commit_interval_s=1_000
    ) as tail:
        tail.until_live()
        world.write("other", 0, 1)
        world.write("old", 0, 2)
        tail.until_rows(*rows(world.tp("other"), 1))
        world.delete("other")
        tail.reader.commit()
        tail.until(lambda: len(tail.rows) == 2)
        assert len(tail.reader.state()) == 1
        # Asking for more says that the last ones are done with. Their commit waits for the group, which rebalances: it has
        # one topic less.
        tail.poll()
    [committed] = world.committed("old", group_id="live").values()
    assert committed[0] == 1


@pytest.mark.long
def test_a_group_learns_of_new_partitions_within_seconds(broker: BrokerWorld) -> None:
    """Those were not there when it began, so they are read from their first record."""
    broker.create("orders")
    with Tail(broker, "orders", grace=NEVER, group_id="live", starting_offsets="latest") as tail:
        tail.until_live()
        broker.add_partitions("orders", 2)
        broker.write("orders", 1, 1)
        tail.until_at(broker.tp("orders", 1), 1)
