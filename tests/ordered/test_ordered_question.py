"""The arguments of ordered readers: refused by name before anything is touched."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from kafka_ordered_ops import (
    AtOffset,
    Committed,
    ConfigError,
    Earliest,
    Latest,
    OrderedReader,
    UnknownTopicError,
)
from kafka_ordered_ops.decoding import Decoding
from tests.support.memory_world import MemoryWorld
from tests.support.ordered_support import grouped

#: Nobody listens there.
_NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("topics", "options", "named"),
    [
        ([], {}, "topics is empty"),
        ([1], {}, "topics contains 1"),
        ("t", {"group_id": "g"}, "without follow=True"),
        ("t", {"group_id": "", "follow": True}, "group"),
        ("t", {"follow": 1}, "follow"),
        ("t", {"isolation": "maybe"}, "isolation"),
        ("t", {"order": "random"}, "order"),
        ("t", {"progress": 7}, "progress is 7"),
        ("t", {"progress": lambda done: None}, "called with 2 arguments"),
        ("t", {"temporary_folder": "a\0b"}, "temporary_folder"),
        ("t", {"temporary_folder": "\ud800"}, "temporary_folder"),
        ("t", {"temporary_folder": "x" * 5_000}, "temporary_folder"),
        ("t", {"temporary_folder": __file__}, "temporary_folder"),
        (
            "t",
            {"temporary_folder": f"{__file__}/below"},
            "not a folder that this process may write",
        ),
        ("t", {"max_out_of_orderness": "1 hour"}, "max_out_of_orderness"),
        ("t", {"max_out_of_orderness": timedelta(-1)}, "max_out_of_orderness"),
        ("t", {"grace": -5}, "grace"),
        ("t", {"held_records_max": 0}, "held_records_max"),
        ("t", {"held_bytes_max": 1.5}, "held_bytes_max"),
        ("t", {"spilled_bytes_max": -1}, "spilled_bytes_max"),
        ("t", {"temporary_folder": ""}, "temporary_folder"),
        ("t", {"temporary_folder": 7}, "temporary_folder"),
        ("t", {"commit_interval_s": 0, "group_id": "g"}, "commit_interval_s"),
        ("t", {"max_poll_interval_s": 3, "group_id": "g"}, "raise max_poll_interval_s"),
        ("t", {"instance_id": "", "group_id": "g"}, "instance_id"),
        ("t", {"on_lost": print, "on_revoked": 7, "group_id": "g"}, "on_revoked"),
        ("t", {"on_lost": lambda: None, "group_id": "g"}, "on_lost"),
        ("t", {"group_id": 7, "follow": True}, "group_id is 7"),
        ("t", {"limits": 7}, "limits is 7"),
        ("t", {"exclude": 7}, "exclude is 7"),
        ("t", {"exclude": "^("}, "exclude"),
        ("t", {"batch_size": 0}, "batch_size"),
        ("t", {"batch_bytes_max": "1 MB"}, "batch_bytes_max"),
        ("t", {"decoding": "avro"}, "decoding is 'avro'"),
        ("t", {"decoding": Decoding("json:a int64", on_bad="dead_letter:b")}, "OrderedReader"),
        ("t", {"stall_timeout_s": float("inf")}, "stall_timeout_s"),
        ("t", {"timeout_s": "30"}, "timeout_s"),
        ("t", {"starting_offsets": None}, "starting_offsets"),
        ("t", {"starting_offsets": "soon"}, "starting_offsets"),
        ("t", {"starting_offsets": datetime(2026, 1, 1)}, "starting_offsets"),  # noqa: DTZ001
        ("t", {"starting_offsets": {"u": "earliest"}}, "starting_offsets has u"),
        ("t", {"starting_offsets": {"t": None}}, "starting_offsets"),
        ("t", {"starting_offsets": "committed"}, "no group_id"),
        ("t", {"starting_offsets": {"t": "committed"}, "follow": True}, "no group_id"),
    ],
)
def test_wrong_arguments_are_named(topics: Any, options: dict[str, Any], named: str) -> None:
    """When the reader is made, so that nothing has been asked of any cluster."""
    with pytest.raises(ConfigError, match=named):
        OrderedReader(_NOWHERE, topics, **grouped(options))


def test_a_plan_is_a_plan() -> None:
    """Nothing else is taken for one."""
    with pytest.raises(ConfigError, match="plan"):
        OrderedReader.of_plan("w", _NOWHERE)  # type: ignore[arg-type]


def test_topics_that_do_not_exist(memory: MemoryWorld) -> None:
    """Names and patterns alike, before the first record; the reader may be opened once they exist."""
    for topics in ("orders", "^orders.*"):
        for follow in (False, True):
            reader = OrderedReader(memory.settings, topics, follow=follow)
            with pytest.raises(UnknownTopicError), reader:
                pass
            with pytest.raises(ConfigError, match="before"):
                reader.state()
            memory.kafka.create_topic("orders", 1)
            with reader:
                assert reader.is_live
                assert reader.poll(0) is None
            memory.kafka.delete_topic("orders")


def test_a_bound_for_each_topic() -> None:
    """A name before a pattern, the first pattern before others, and the earliest record for the rest."""
    starts = {"^or.*": "latest", "^ord.*": "offset:1", "orders": "offset:7"}
    reader = OrderedReader(_NOWHERE, [*starts, "^.*"], starting_offsets=starts)
    bound_of = reader._engine._question.starts.bound_of_topic
    assert bound_of("orders") == AtOffset(7)
    assert bound_of("order") == Latest()
    assert bound_of("xorder") == Earliest()
    reader = OrderedReader(_NOWHERE, "t", starting_offsets="committed", follow=True, group_id="g")
    assert reader._engine._question.starts.bound_of_topic("t") == Committed()
