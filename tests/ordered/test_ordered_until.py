"""Reads with an end in time: exactly a window's records, without a group."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_ordered_ops import ConfigError, CutoffInFutureError, OrderedReader
from kafka_ordered_ops.core.times import time_text
from tests.support.ordered_support import all_rows, rows
from tests.support.windows_support import at
from tests.support.worlds import World


@pytest.mark.parametrize("as_text", [False, True])
def test_a_read_until_a_time_is_exact(world: World, as_text: bool) -> None:
    """Every record stamped before it, wherever it is in the log, and no other one."""
    world.create("orders", partitions=2)
    world.write("orders", 0, 1, 9, 3, 12, 4)
    world.write("orders", 1, 11, 2, 5)
    until: Any = at(5)
    if as_text:
        until = time_text(int(until.timestamp() * 1_000))
    with OrderedReader(world.settings, world.named("orders"), until=until) as reader:
        assert [row.time for row in all_rows(reader)] == [1_000, 2_000, 3_000, 4_000]
        assert reader.is_done
        assert reader.plan is not None
        assert reader.plan.window.cutoff == at(5)


def test_a_read_until_a_time_starts_where_it_is_told(world: World) -> None:
    """By topic; and excluded topics are left out."""
    world.create("orders-a")
    world.create("orders-b")
    for name in ("orders-a", "orders-b"):
        world.write(name, 0, 1, 2, 3)
    pattern = f"^orders-.*{world.named('')[1:]}"
    with OrderedReader(
        world.settings,
        pattern,
        until=at(3),
        starting_offsets="-PT1S",
        exclude=world.named("orders-b"),
    ) as reader:
        assert all_rows(reader) == rows(world.tp("orders-a"), 2, at=1)


def test_lost_records_of_a_read_until_a_time(world: World) -> None:
    """An error, or a note and the rest."""
    world.create("orders")
    world.write("orders", 0, 1, 2, 3, 4)
    world.delete_before("orders", 0, 2)
    options: dict[str, Any] = {"until": at(4), "starting_offsets": "offset:0"}
    with OrderedReader(
        world.settings, world.named("orders"), on_data_loss="warn", **options
    ) as reader:
        assert all_rows(reader) == rows(world.tp("orders"), 3, at=2)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"until": "noon"}, "until"),
        ({"until": at(1), "follow": True}, "follow"),
        ({"until": at(1), "starting_offsets": {("t", 0): 1}}, "single partitions"),
        ({"until": at(1), "on_data_loss": "latest"}, "on_data_loss"),
        ({"on_data_loss": "ignore"}, "on_data_loss"),
    ],
)
def test_wrong_ends_are_named(options: dict[str, Any], named: str) -> None:
    """Before anything is touched."""
    with pytest.raises(ConfigError, match=named):
        OrderedReader("127.0.0.1:1", "t", **options)


def test_a_time_that_has_not_passed_is_refused(world: World) -> None:
    """Records before it may still be written."""
    world.create("orders")
    with (
        pytest.raises(CutoffInFutureError),
        OrderedReader(world.settings, world.named("orders"), until="2999-01-01T00:00:00Z"),
    ):
        pass
