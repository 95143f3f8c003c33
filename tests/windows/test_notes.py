"""Notes about windows that have fewer records than their times suggest."""

from __future__ import annotations

import re

import pytest

from kafka_ordered_ops import AtOffset, AtTime, Earliest
from tests.support.both_worlds import memory as memory
from tests.support.both_worlds import world as world
from tests.support.memory_world import MemoryWorld
from tests.support.windows_support import BASE_MS
from tests.support.worlds import World


def test_a_plan_that_an_open_transaction_cuts_short_says_so(world: World) -> None:
    """With the partition and the offset; a later window has the records, and no note."""
    world.create("orders", 2)
    world.write("orders", 0, 1, 2)
    world.write("orders", 1, 1)
    world.send("t", "orders", 0, 3, 4)
    windows = world.windows()
    window = world.window(100.0, starting_offsets=Earliest())
    [note] = windows.plan(window, "cut").notes
    assert note.startswith(
        f"open transactions hide records of {world.tp('orders')} from offset 2 on"
    )
    world.end("t", "commit")
    windows.commit(windows.plan(window, "cut"))
    rest = windows.plan(world.window(101.0, starting_offsets=Earliest()), "rest")
    assert (rest.taken[world.tp("orders")].first, rest.notes) == (2, ())


def test_a_window_that_ends_before_an_open_transaction_has_no_note(memory: MemoryWorld) -> None:
    """Its cutoff was reached, and nothing of it is known to be missing."""
    memory.create("orders")
    memory.write("orders", 0, 1, 50)
    memory.send("t", "orders", 0, 60)
    plan = memory.windows().plan(memory.window(10.0, starting_offsets=Earliest()), "w")
    assert plan.notes == ()


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        (AtOffset(7), "starting offset 7 is beyond the end of .* at 3"),
        (AtTime(BASE_MS + 60_000), "no record is stamped at or after .*"),
        (AtOffset(3), None),
        (AtTime(BASE_MS + 2_000), None),
    ],
)
def test_a_group_that_starts_beyond_the_end_says_so(
    memory: MemoryWorld, bound: AtOffset | AtTime, told: str | None
) -> None:
    """It has nothing to read, which is seldom meant."""
    memory.create("orders")
    memory.write("orders", 0, 1, 2, 3)
    plan = memory.windows().plan(memory.window(100.0, starting_offsets=bound), "w")
    if told is None:
        assert plan.notes == ()
    else:
        [note] = plan.notes
        assert re.match(told, note)
