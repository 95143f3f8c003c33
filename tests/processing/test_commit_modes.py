"""What a commit of a group waits for, by mode, and how one that fails is seen."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kafka_ordered_ops import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.core.processing.commits import CommitMode
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.kafka.members.membership import GroupMember
from kafka_ordered_ops.processing import Processor
from tests.support.broker_world import BrokerWorld
from tests.support.processing_groups import Worker, committed_places, places
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World


@pytest.mark.parametrize("commit", list(CommitMode))
def test_each_mode_commits_what_is_done_with_its_map(world: World, commit: CommitMode) -> None:
    """Of a record in flight and done ones above it; and the next member goes on behind."""
    world.create("orders")
    world.write("orders", 0, *range(10))
    with Worker(world, commit=commit, holds=lambda record: record.offset == 4) as first:
        done = {place for place in places(range(10)) if place != (0, 4)}
        first.until(lambda: committed_places(world) == done)
        # The held record is given up.
        first.processor.stop(timeout_s=0)
        first.stop()
    with Worker(world, commit=commit) as second:
        second.until(lambda: committed_places(world) == set(places(range(10))))
    assert second.begun == [(0, 4)]


@pytest.mark.long
@pytest.mark.parametrize("commit", list(CommitMode))
def test_a_commit_that_fails_is_seen_until_one_succeeds(
    commit: CommitMode, caplog: pytest.LogCaptureFixture
) -> None:
    """While brokers are silent: in the log and in the state. Nothing is raised, and what is done is committed at last."""
    with EmbeddedKafka() as kafka, BrokerWorld(kafka.bootstrap) as world:
        world.create("orders")
        world.write("orders", 0, *range(300))
        with Worker(
            world, commit=commit, function_s=0.02, processor={"max_concurrency": 2}
        ) as worker:
            worker.until(lambda: len(worker.done) > 20 and bool(committed_places(world)))
            kafka.pause()
            try:
                worker.until(lambda: any(one.commit_error for one in worker.processor.state()))
                [error] = [one.commit_error for one in worker.processor.state()]
                assert isinstance(error, KafkaOrderedOpsError)
                assert error.retriable
            finally:
                kafka.resume()
            worker.until(lambda: committed_places(world) == set(places(range(300))))
            worker.until(lambda: not any(one.commit_error for one in worker.processor.state()))
    assert [one.levelname for one in caplog.records if "a commit of group" in one.getMessage()]


@pytest.mark.long
def test_reading_goes_on_while_an_async_commit_is_under_way(
    broker: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of which nothing was read when it began are done before its answer."""
    gate, is_under_way = threading.Event(), threading.Event()
    commit = GroupMember.commit

    def slow(member: GroupMember, offsets: Any, **options: Any) -> None:
        is_under_way.set()
        gate.wait(TIMEOUT_S)
        commit(member, offsets, **options)

    broker.create("orders")
    monkeypatch.setattr(GroupMember, "commit", slow)
    with Worker(broker) as worker:
        try:
            worker.until(is_under_way.is_set)
            broker.write("orders", 0, *range(5))
            worker.until_done(*places(range(5)))
            assert not committed_places(broker)
        finally:
            gate.set()
        worker.until(lambda: committed_places(broker) == set(places(range(5))))


@pytest.mark.parametrize(
    "options",
    [
        {"commit": "sync"},
        {"commit": True},
        {"commit": "periodic_sync", "produce": "transactional"},
        {"produce": True},
    ],
)
def test_modes_that_do_not_fit_are_named(world: World, options: dict[str, Any]) -> None:
    """Before anything is touched: the topic does not exist."""
    with pytest.raises(ConfigError, match=r"commit|produce"):
        Processor(world.settings).subscribe("none", lambda _: None, group_id="g", **options)
