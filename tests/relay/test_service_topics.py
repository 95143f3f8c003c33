"""Topics, logs and brokers that change or go away while a server serves them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kafka_ordered_ops import (
    CorruptRecordError,
    Earliest,
    GroupInUseError,
    Latest,
    NotReadyError,
    RecordsLostError,
    RelayError,
    RelayUnavailableError,
    TopicRecreatedError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.cluster.cluster_facts import group_of_other_kind
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import OnDataLoss
from kafka_ordered_ops.relay.engine import groups, upkeep
from kafka_ordered_ops.relay.engine.requests import Requests
from kafka_ordered_ops.relay.leases import reads
from kafka_ordered_ops.relay.log import log_tp
from kafka_ordered_ops.relay.tokens import Lease
from tests.support.broker_world import BrokerWorld
from tests.support.memory_world import MemoryWorld
from tests.support.relay_servers import (
    acknowledge,
    patiently,
    places,
    read,
    read_all,
    relay,
    run,
    serving,
    until,
)
from tests.support.relay_servers import status as status_of
from tests.support.wire import write_batch


@pytest.mark.slow
def test_brokers_that_are_away_delay_everything(memory: MemoryWorld) -> None:
    """While the cluster cannot be reached nothing is answered with nothing, since records wait; afterwards nothing is lost."""
    memory.create("orders")
    memory.write("orders", 0, *range(3))

    async def scenario() -> None:
        async with serving(memory) as one:
            found = await read_all(one, 1, records_max=1)
            with memory.kafka.unreachable():
                with pytest.raises(RelayUnavailableError, match="in time"):
                    await read(one, wait_s=0.5)
                with pytest.raises(RelayUnavailableError):
                    await acknowledge(one, found)
            rest = await read_all(one, 2)
            assert places(rest) == [(0, 1), (0, 2)]
            await acknowledge(one, [*found, *rest])
            await until(lambda: (at := status_of(one)) is not None and at.base == 3)

    run(scenario())


def test_a_group_that_cannot_begin_says_why(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read reports what keeps its new group from beginning; at once, where that does not pass."""
    memory.create("orders")
    memory.write("orders", 0, 1)
    monkeypatch.setattr(reads, "LOOK_S", 0.3)
    begins = Requests.start_of

    def start_of(self: Requests, group: str, *args: Any, **options: Any) -> Any:
        if group == "streams":
            raise group_of_other_kind(group, "streams")
        return begins(self, group, *args, **options)

    monkeypatch.setattr(Requests, "start_of", start_of)

    async def scenario() -> None:
        async with serving(memory) as one:
            with pytest.raises(GroupInUseError, match="another kind"):
                await asyncio.wait_for(read(one, "streams", wait_s=30.0), 10)
            with (
                memory.kafka.unreachable(),
                pytest.raises(RelayUnavailableError, match="is made unreachable"),
            ):
                await read(one, "new", wait_s=0.0)
            assert places(await read_all(one, 1, "new"))

    run(scenario())


def test_a_lease_of_a_partition_that_was_just_added(memory: MemoryWorld) -> None:
    """A server that has not seen the partition yet asks to be called again, and takes the lease when it has."""
    memory.create("orders")

    async def scenario() -> None:
        async with serving(memory) as old:
            memory.add_partitions("orders", 2)
            engine = old._engine
            assert engine is not None
            assert engine.signer is not None
            topic_id = engine.server.partitions[memory.tp("orders")].topic_id
            given = Lease(
                memory.tp("orders", 1), topic_id, "g", "0" * 32, OffsetSet.of((0, 1)), 2**40
            )
            token = engine.signer.token_of(given)
            with pytest.raises(NotReadyError):
                await old.acknowledge([(token, None)])
            engine.post(lambda: setattr(engine._upkeep, "_topics_at", 0.0))
            await patiently(lambda: old.acknowledge([(token, None)]))

    run(scenario())


@pytest.mark.slow
def test_lost_records_are_reported_or_passed(memory: MemoryWorld) -> None:
    """Records that retention took before they were read are an error, or a warning if so asked."""
    memory.create("orders")
    memory.write("orders", 0, *range(5))
    memory.foreign_commit("g", "orders", {0: 1})
    memory.delete_before("orders", 0, 3)

    async def scenario() -> None:
        async with serving(memory) as one:
            with pytest.raises(RecordsLostError):
                await read_all(one, 1, memory.named("g"))
        async with serving(memory, on_data_loss=OnDataLoss.WARN) as one:
            found = await read_all(one, 2, memory.named("g"))
            assert places(found) == [(0, 3), (0, 4)]
            await acknowledge(one, found)
            await until(
                lambda: (at := status_of(one, 0, memory.named("g"))) is not None and at.base == 5
            )

    run(scenario())


@pytest.mark.slow
def test_a_record_that_cannot_be_decoded_is_passed_if_so_asked(broker: BrokerWorld) -> None:
    """By default it is an error that names it, to all who read its partition."""
    broker.create("orders")
    broker.write("orders", 0, 1, 2)
    bootstrap, name = str(broker.settings.bootstrap_servers), broker.named("orders")
    write_batch(bootstrap, name, [1], header=b"\xff")
    broker.write("orders", 0, 3)

    async def scenario() -> None:
        async with serving(broker, on_data_loss=OnDataLoss.WARN) as one:
            assert places(await read_all(one, 3)) == [(0, 0), (0, 1), (0, 3)]
            engine = one._engine
            assert engine is not None
            engine.groups._server.options = replace(
                engine.server.options, on_data_loss=OnDataLoss.FAIL
            )
            with pytest.raises(CorruptRecordError, match=r"\[0]@2"):
                await read_all(one, 4, "other")

    run(scenario())


def test_a_recreated_topic_is_refused(memory: MemoryWorld) -> None:
    """Offsets of the log mean nothing in a topic that was recreated."""
    memory.create("orders")
    memory.write("orders", 0, 1)

    async def scenario() -> None:
        async with serving(memory) as one:
            await acknowledge(one, await read_all(one, 1))
        memory.delete("orders")
        memory.create("orders")
        memory.write("orders", 0, 1)
        async with relay(memory) as one:
            await until(lambda: one.is_ready)
            with pytest.raises(TopicRecreatedError):
                await read_all(one, 1)

    run(scenario())


@pytest.mark.slow
def test_topics_change_while_they_are_served(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New partitions are read whole; a topic that is deleted, and then recreated, is an error, and others are served."""
    monkeypatch.setattr(upkeep, "TOPICS_EVERY_S", 0.2)
    for name in ("orders", "returns"):
        memory.create(name)
        memory.write(name, 0, 1)
    topic = frozenset({memory.named("orders")})

    async def scenario() -> None:
        async with serving(memory, "orders", "returns", starting_offsets=Latest()) as one:
            assert await read(one, wait_s=0.3) == []
            memory.add_partitions("orders", 2)
            memory.write("orders", 1, 1)
            found = await read_all(one, 1, wait_s=10)
            assert places(found) == [(1, 0)]
            await acknowledge(one, found)
            memory.delete("orders")
            with pytest.raises(UnknownTopicError):
                await read_all(one, 1, topics=topic)
            memory.create("orders")
            parts = one._engine.server.partitions  # type: ignore[union-attr]
            await until(lambda: isinstance(parts[memory.tp("orders")].problem, TopicRecreatedError))
            with pytest.raises(TopicRecreatedError):
                await read_all(one, 1, topics=topic)
            memory.write("returns", 0, 2)
            assert places(await read_all(one, 1)) == [(0, 1)]

    run(scenario())


def test_a_window_ends_though_its_topic_grows(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that is added after a window was opened has nothing of it, and is not waited for."""
    monkeypatch.setattr(upkeep, "TOPICS_EVERY_S", 0.2)
    monkeypatch.setattr(groups, "COMPLETE_AFTER_S", 0.5)
    memory.create("orders")
    memory.write("orders", 0, *range(20))
    plan = memory.plan("w", 10, starting_offsets=Earliest())
    assert plan is not None

    async def scenario() -> None:
        async with serving(memory) as one:
            await patiently(lambda: one.open_window(plan, None))
            memory.add_partitions("orders", 2)
            memory.write("orders", 1, *range(20))
            await until(lambda: status_of(one, 1, "") is None and len(one.status()) == 2)
            found = await read_all(one, 10, "w")
            assert sorted(places(found)) == [(0, at) for at in range(10)]
            await acknowledge(one, found)
            assert await one.read("w", records_max=1, wait_s=10, lease_s=5) == ([], True)

    run(scenario())


def test_a_lost_log_is_an_error(memory: MemoryWorld) -> None:
    """Without its log a partition is not served: what was leased and acknowledged is not known."""
    memory.create("orders")
    memory.write("orders", 0, *range(3))

    async def scenario() -> None:
        async with serving(memory) as one:
            await acknowledge(one, await read_all(one, 1, records_max=1))
            memory.kafka.delete_topic(log_tp(memory.tp("orders")).topic)
            with pytest.raises(RelayError, match="cannot be read"):
                await read_all(one, 1)

    run(scenario())
