"""Groups that are not groups of windows: of other kinds of programs, and with maps that cannot be read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafka_ordered_ops import (
    Committed,
    Earliest,
    GroupInUseError,
    KafkaOrderedOpsError,
    OffsetMapDecodeError,
    OrderedReader,
    WindowGroupError,
)
from kafka_ordered_ops.cli.doctor import examine
from kafka_ordered_ops.cli.show.checks import State
from kafka_ordered_ops.core.offset_map.ours import OffsetMap, encode_offset_map
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.processing import Processor
from kafka_ordered_ops.relay.engine.requests import Requests
from tests.support.both_worlds import broker as broker
from tests.support.both_worlds import world as world
from tests.support.broker_world import BrokerWorld
from tests.support.wire import join_as
from tests.support.worlds import World


def _refusal(call: Callable[[], object]) -> str:
    with pytest.raises(KafkaOrderedOpsError) as caught:
        call()
    return type(caught.value).__name__


def _read_live(world: World) -> None:
    with OrderedReader(
        world.settings, world.named("orders"), group_id=world.named("g"), follow=True
    ):
        pass


def _process(world: World) -> None:
    for _ in Processor(world.settings).subscribe(
        world.named("orders"), print, group_id=world.named("g")
    ):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["streams", "share", "connect"])
def test_a_group_of_another_kind_is_refused_by_every_call(broker: BrokerWorld, kind: str) -> None:
    """A window's commit would be taken for that program's progress, and it would skip its records."""
    broker.create("orders")
    broker.write("orders", 0, 1, 2)
    bootstrap = broker.settings.bootstrap_servers
    windows = broker.windows()
    plan = windows.plan(broker.window(100.0, starting_offsets=Earliest()), "open")
    window = broker.window(50.0, starting_offsets=Earliest())
    join_as(bootstrap, windows.group_id, kind, broker.named("orders"))
    join_as(bootstrap, broker.named("other"), kind, broker.named("orders"))
    tp = broker.tp("orders")
    requests = Requests(broker.settings, lambda step: step())
    calls: dict[str, Callable[[], object]] = {
        "plan": lambda: broker.windows("other").plan(window, "w"),
        "resume": lambda: windows.plan(broker.window(100.0), "open"),
        "commit": lambda: windows.commit(plan),
        "adopt": windows.adopt,
        "adopt, dry": lambda: windows.adopt(dry_run=True),
        "reset": lambda: windows.reset_offsets("earliest"),
        "reset of a plain group": lambda: broker.windows("other").reset_offsets(
            "earliest", topics=[tp.topic], dry_run=True
        ),
        "migrate": lambda: windows.migrate("ledger", dual=True),
        "read": lambda: _read_live(broker),
        "process": lambda: _process(broker),
        "relay": lambda: requests.start_of(
            broker.named("other"),
            tp,
            Earliest(),
            Isolation.READ_COMMITTED,
            is_new=False,
        ),
    }
    try:
        refusals = {name: _refusal(call) for name, call in calls.items()}
    finally:
        requests.close()
    assert refusals == dict.fromkeys(calls, "GroupInUseError")
    with pytest.raises(GroupInUseError, match="another kind") as caught:
        broker.windows("other").plan(window, "w")
    assert not caught.value.retriable
    checks = list(examine(broker.settings, windows.group_id, "__kafka_ordered_ops"))
    assert [one.state for one in checks if one.name == "group"] == [State.FAILED]


def test_a_planned_window_keeps_live_readers_out(world: World) -> None:
    """Before its first commit, when only the ledger knows the group as one of windows."""
    world.create("orders")
    world.write("orders", 0, 1, 2)
    world.windows().plan(world.window(100.0, starting_offsets=Earliest()), "w")
    with pytest.raises(WindowGroupError, match="by the ledger, with 1 planned"):
        _read_live(world)
    with pytest.raises(WindowGroupError, match="by the ledger"):
        _process(world)


@pytest.mark.parametrize("damage", ["changed", "cut", "no end"])
def test_a_damaged_map_is_never_taken_for_no_map(world: World, damage: str) -> None:
    """Without the ledger, the map alone has the done offsets: an error until somebody drops it on purpose."""
    world.create("orders")
    world.write("orders", 0, *range(10))
    whole = encode_offset_map(OffsetMap(b"t" * 16, b"l" * 16, 3, 2, OffsetSet.of((4, 9))))
    damaged = {
        "changed": whole[:30] + (b"A" if whole[30:31] != b"A" else b"B") + whole[31:],
        "cut": whole[:40],
        "no end": whole[:-1],
    }[damage]
    world.foreign_commit("g", "orders", {0: 2}, damaged)
    windows = world.windows()
    for start in (Committed(), Earliest()):
        window = world.window(100.0, starting_offsets=start)
        for call in (windows.plan, windows.preview):
            with pytest.raises(OffsetMapDecodeError, match="offsets reset --to committed"):
                call(window, "w")
    with pytest.raises(WindowGroupError):
        _read_live(world)
    windows.reset_offsets("committed", topics=[world.named("orders")])
    plan = windows.plan(world.window(100.0, starting_offsets=Committed()), "w")
    assert plan.offsets == 8
