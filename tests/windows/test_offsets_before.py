"""Offsets before a time, from Python."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kafka_ordered_ops import ConfigError, UnknownTopicError, offsets_before
from tests.support.both_worlds import world as world
from tests.support.windows_support import at
from tests.support.worlds import World


def test_offsets_before_a_time_or_an_end(world: World) -> None:
    """As many as are wanted, however many steps have no records; and the ends of the log."""
    world.create("orders")
    world.write("orders", 0, 0, 1, 2, 100, 101)

    def listed(time: Any, **options: Any) -> list[int]:
        [found] = offsets_before(world.settings, world.named("orders"), time, **options)
        assert (found.log_start, found.end_offset) == (0, 5)
        return [one.offset for one in found.offsets]

    assert listed(at(101), max_offsets=4, every="PT1S") == [4, 3, 2, 1]
    assert listed(at(101), every=timedelta(seconds=60)) == [4, 3, 0]
    assert listed(at(2).isoformat(), max_offsets=2, every="PT1S") == [2, 1]
    assert listed("latest", max_offsets=3, every="PT1S") == [5, 4, 3]
    assert listed("earliest") == [0]
    with pytest.raises(UnknownTopicError):
        offsets_before(world.settings, world.named("none"), "latest")


@pytest.mark.parametrize(
    ("topics", "time", "options", "named"),
    [
        ([], "latest", {}, "topics is empty"),
        ("t", "soon", {}, "time"),
        ("t", 5, {}, "time is 5"),
        ("t", "1969-01-01T00:00:00Z", {}, "time"),
        ("t", "latest", {"max_offsets": 0}, "max_offsets"),
        ("t", "latest", {"every": "PT0S"}, "every"),
    ],
)
def test_wrong_arguments_are_named(
    topics: Any, time: Any, options: dict[str, Any], named: str
) -> None:
    """Before anything is looked up."""
    with pytest.raises(ConfigError, match=named):
        offsets_before("127.0.0.1:1", topics, time, **options)
