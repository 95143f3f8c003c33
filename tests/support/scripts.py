"""What happens to groups and their topics, as scripts that run in any world (`tests.support.worlds`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kafka_ordered_ops import AtOffset, AtTime, Committed, Earliest, Latest, Relative
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    OnDataLoss,
)
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.windows import Policy
from tests.support.windows_support import BASE_MS
from tests.support.worlds import World

Script = Callable[[World], None]

SCRIPTS: Final[dict[str, Script]] = {}


def script(function: Script) -> Script:
    """Puts a script on the list."""
    SCRIPTS[function.__name__] = function
    return function


def filled(world: World, *, partitions: int = 1) -> None:
    """The topic ``orders``; in partition 0 seconds 0, 10, 20, 5, 30, 15 at offsets 0 to 5."""
    world.create("orders", partitions)
    world.write("orders", 0, 0, 10, 20, 5, 30, 15)


# --- one window after another ---------------------------------------------------------------------


@script
def out_of_order_and_the_rest(world: World) -> None:
    """Windows with rising cutoffs; what is behind a later record comes in the right one, or late."""
    filled(world, partitions=2)
    world.run("w12", 12, starting_offsets=Earliest())
    world.write("orders", 0, 7, 21)
    world.write("orders", 1, 40, 11)
    world.run("w22", 22)
    world.run("w22 again", 22)
    world.run("rest", 100)
    world.look("orders")


@script
def any_order_of_commits(world: World) -> None:
    """Later windows first; the committed offset waits, the map beside it knows the rest."""
    filled(world)
    for window_id, before in (("early", 12), ("middle", 18), ("late", 100)):
        world.plan(window_id, before, starting_offsets=Earliest())
    for window_id in ("late", "early", "early", "middle"):
        world.commit(window_id)
        world.look("orders")


@script
def tries_of_one_window(world: World) -> None:
    """Taking up raises the attempt; older ones may not commit, other questions are refused."""
    filled(world)
    first = world.plan("w", 12, starting_offsets=Earliest())
    world.write("orders", 0, 1)
    world.plan("w", 12)
    world.plan("w", 13)
    world.plan("w", 12, starting_offsets=Latest())
    assert first is not None
    world.do("the first try commits", lambda: world.windows().commit(first))
    world.do("written down", lambda: world.windows().mark_written(world.plans["w"], {"files": 3}))
    world.plan("w", 12)
    world.commit("w")
    world.do("the first try commits", lambda: world.windows().commit(first))
    world.plan("w", 12)
    world.look("orders")


@script
def abandoned_and_planned_anew(world: World) -> None:
    """Its offsets are free for others; the id stands for a new claim."""
    filled(world)
    old = world.plan("w", 12, starting_offsets=Earliest())
    world.abandon("w")
    world.abandon("w")
    world.abandon("nobody's")
    world.plan("other", 100)
    world.plan("other", 100, starting_offsets=Earliest())
    world.plan("w", 12)
    assert old is not None
    world.do("the old claim commits", lambda: world.windows().commit(old))
    world.commit("other")
    world.abandon("other")
    world.commit("w")
    world.look("orders")


@script
def processed_bit_by_bit(world: World) -> None:
    """Attempts add to what earlier ones processed; older ones may not, and a new claim begins with nothing."""
    filled(world)
    first = world.plan("w", 100, starting_offsets=Earliest())
    assert first is not None
    world.process("w", 0, 2)
    world.process("w", 1, 3)
    world.process("w", 1_000, 1_001)
    world.plan("w", 100)
    world.process("w", 4, 5)
    older = world.windows().mark_processed
    world.do("the first attempt records", lambda: older(first, first.taken))
    world.abandon("w")
    world.process("w", 5, 6)
    world.plan("w", 100)
    world.process("w", 2, 3)
    world.do("written down", lambda: world.windows().mark_written(world.plans["w"], {"files": 3}))
    world.process("w", 0, 2)
    world.commit("w")
    world.process("w", 0, 2)
    world.look("orders")


@script
def covered_by_others(world: World) -> None:
    """Empty is not covered; each policy, and the plan of the window that holds the records."""
    filled(world)
    world.run("all", 100, starting_offsets=Earliest())
    world.run("later", 200)
    world.run("earlier", 50)
    world.plan("strict", 60, policy=Policy(on_covered=OnCovered.FAIL))
    world.plan("again", 100, policy=Policy(on_covered=OnCovered.REPLAY))
    world.plan("nobody's", 70, policy=Policy(on_covered=OnCovered.REPLAY))
    world.replay("all")
    world.replay("earlier")
    world.replay("strict")
    world.look("orders")


@script
def starts(world: World) -> None:
    """All kinds of starting offsets, each with a group of its own; later windows do not ask again."""
    filled(world, partitions=2)
    bounds: Mapping[str, Bound] = {
        "earliest": Earliest(),
        "latest": Latest(),
        "time": AtTime(BASE_MS + 15_000),
        "late time": AtTime(BASE_MS + 3_600_000),
        "relative": Relative(15_000),
        "offset": AtOffset(4),
        "committed": Committed(),
    }
    world.plan("none", 35)
    for name, bound in bounds.items():
        world.run(name, 35, starting_offsets=bound, group_id=name)
        world.run(f"{name} next", 200, group_id=name)
        world.look("orders", group_id=name)
    world.foreign_commit("taken over", "orders", {0: 4, 1: 0}, b"bgABAAk= host-1:4711")
    world.run("taken", 100, starting_offsets=Committed(), group_id="taken over")
    world.look("orders", group_id="taken over")


@script
def refusals(world: World) -> None:
    """What cannot be planned says so, and nothing is created by asking."""
    filled(world)
    world.plan("w", 12, ["orders", "orderz"], starting_offsets=Earliest())
    world.plan("w", 12, ["^nothing.*"], starting_offsets=Earliest())
    world.plan("w", 20_000, starting_offsets=Earliest())
    world.plan("w", 20_000, starting_offsets=Earliest(), allow_future_cutoff=True)
    world.do("no such window", lambda: world.windows().show("x"))
    world.do("commit of nothing", lambda: world.windows("other").commit(world.plans["w"]))
    world.do("adopt nothing", lambda: world.windows("other").adopt())
    world.do("preview", lambda: world.windows().preview(world.window(12), "p"))
    world.do("preview of another", lambda: world.windows().preview(world.window(12), "w"))
    world.facts("orders", "orderz")


# --- logs -------------------------------------------------------------------------------------------


@script
def transactions(world: World) -> None:
    """Open, committed and aborted ones, interleaved; what is behind an open one comes later."""
    world.create("orders", 2)
    world.write("orders", 0, 1, 30)
    world.send("one", "orders", 0, 2, 40)
    world.write("orders", 0, 3)
    world.send("two", "orders", 0, 4)
    world.send("two", "orders", 1, 5, 50, 6)
    world.facts("orders")
    world.run("w10", 10, starting_offsets=Earliest())
    world.end("one", "abort")
    world.run("w11", 11)
    world.end("two", "commit")
    world.facts("orders")
    world.run("w12", 12)
    world.run("rest", 1_000)
    world.look("orders")


@script
def uncommitted_readers(world: World) -> None:
    """A group that reads uncommitted records sees them at once, and aborted ones too."""
    world.create("orders")
    world.write("orders", 0, 1)
    world.send("one", "orders", 0, 2, 40)
    options: dict[str, Any] = {
        "starting_offsets": Earliest(),
        "isolation": Isolation.READ_UNCOMMITTED,
    }
    world.run("open", 10, **options)
    world.end("one", "abort")
    world.run("aborted", 1_000, **options)
    world.plan("committed", 2_000)
    world.look("orders")


@script
def markers_at_the_tail(world: World) -> None:
    """Markers and aborted records at the end hold nothing back."""
    world.create("orders", 3)
    world.write("orders", 0, 1)
    for partition, how in ((0, "commit"), (1, "abort"), (2, "abort")):
        world.send("tx", "orders", partition, 5)
        world.end("tx", how)
    world.write("orders", 2, 50)
    world.send("tx", "orders", 2, 6)
    world.end("tx", "abort")
    for before in (3, 12, 100, 200):
        world.run(f"w{before}", before, starting_offsets=Earliest())
        world.look("orders")


@script
def a_read_that_stalls(world: World) -> None:
    """What lies behind an open transaction, or beyond the end, does not come; lost ranges are named."""
    world.create("orders")
    world.write("orders", 0, 1, 2, 3)
    world.plan("w", 100, starting_offsets=Earliest(), isolation=Isolation.READ_UNCOMMITTED)
    world.send("tx", "orders", 0, 4)

    def rows(isolation: Isolation, *ranges: tuple[int, int]) -> Callable[[], Any]:
        taken = {world.tp("orders"): OffsetSet.of(*ranges)}
        return lambda: world.rows(taken, isolation)

    world.do("pending", rows(Isolation.READ_UNCOMMITTED, (1, 4)))
    world.do("held back", rows(Isolation.READ_COMMITTED, (1, 4)))
    world.do("not written", rows(Isolation.READ_UNCOMMITTED, (0, 1), (2, 9)))
    world.end("tx", "commit")
    world.do("committed", rows(Isolation.READ_COMMITTED, (1, 5)))
    world.delete_before("orders", 0, 2)
    world.do("gone", rows(Isolation.READ_COMMITTED, (0, 1), (2, 4)))
    world.do("still there", rows(Isolation.READ_COMMITTED, (2, 4)))
    world.do("far beyond", rows(Isolation.READ_COMMITTED, (70, 80)))


@script
def odd_times(world: World) -> None:
    """No timestamp, negative ones, zero, far future ones; and the broker's own."""
    world.create("orders", message_timestamp_after_max_ms=str(2**63 - 1))
    century_ms = 100 * 365 * 24 * 3_600_000
    world.write_at_ms("orders", 0, [-1, 0, 1, BASE_MS, -5, BASE_MS + century_ms, BASE_MS + 5_000])
    world.create("stamped", message_timestamp_type="LogAppendTime")
    world.write("stamped", 0, 1, 2)
    both = ["orders", "stamped"]
    world.run("early", 2, *both, starting_offsets=Earliest())
    world.run("late", 12, *both)
    world.plan("lateness", 20, both, out_of_orderness_s=5)
    world.commit("lateness")
    world.look(*both)


@script
def what_records_carry(world: World) -> None:
    """Keys, values and headers come as they were written: absent, empty, repeated."""
    world.create("orders")
    world.write_content(
        "orders",
        0,
        [
            (1, None, None, []),
            (2, b"", b"", []),
            (3, b"key", b"\x00\xff", [("a", b"1"), ("a", None), ("", b"")]),
            (4, "ключ".encode(), b"x" * 10_000, [("b", b"")]),
        ],
    )
    world.run("w", 12, starting_offsets=Earliest())


@script
def compacted_logs(world: World) -> None:
    """Holes where compaction was are in no window as records, and hold nothing back."""
    world.create(
        "orders",
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.001",
        # By the records' own times: each that is stamped later opens a segment.
        segment_ms="100",
    )
    for second, key in ((1, b"a"), (2, b"b"), (30, b"c"), (3, b"a"), (31, b"c"), (4, b"d")):
        world.write_content("orders", 0, [(second, key, b"x", [])])
    world.plan("before", 12, starting_offsets=Earliest())
    # The cleaner never touches the newest segment.
    world.write_content("orders", 0, [(1_500, b"last", b"x", [])])
    world.compact("orders", {0, 2})
    world.facts("orders")
    world.read("before")
    world.run("other", 12, starting_offsets=Earliest(), group_id="after")
    world.look("orders", group_id="after")
    world.commit("before")
    world.run("rest", 1_000)
    world.look("orders")


@script
def deleted_records(world: World) -> None:
    """Where the broker's index remembers a record that was deleted, and answers wrongly for its segment."""
    world.create("orders", 2, segment_ms="3600000")
    for partition in (0, 1):
        world.write("orders", partition, 1_800, 10, 20, 30)
        world.write("orders", partition, 7_200, 7_210, 40)
    world.facts("orders")
    world.delete_before("orders", 0, 1)
    world.delete_before("orders", 1, 3)
    world.facts("orders")
    world.run("w", 1_000, starting_offsets=Earliest())
    world.run("rest", 9_000)
    world.look("orders")
    world.run("from 1000", 9_000, starting_offsets=AtTime(BASE_MS + 1_000_000), group_id="late")
    world.look("orders", group_id="late")


@script
def retention(world: World) -> None:
    """What is gone is an error, or written down as lost, once; before the plan and after it."""
    filled(world, partitions=2)
    world.write("orders", 1, 3, 33)
    world.run("w1", 1, starting_offsets=Earliest())
    world.delete_before("orders", 0, 3)
    world.plan("strict", 100)
    world.plan("tolerant", 25, on_data_loss=OnDataLoss.WARN)
    world.delete_before("orders", 0, 4)
    world.plan("tolerant", 25)
    world.plan("tolerant", 25, on_data_loss=OnDataLoss.WARN)
    world.read("tolerant")
    world.commit("tolerant")
    world.replay("w1")
    world.replay("tolerant")
    world.delete_before("orders", 1, 2)
    world.run("rest", 200, on_data_loss=OnDataLoss.WARN)
    world.facts("orders")
    world.look("orders")


@script
def partitions_and_topics_that_appear(world: World) -> None:
    """They start at earliest, whatever the first window's bound was; excluded ones stay out."""
    world.create("manya")
    world.create("manyskip")
    world.write("manya", 0, 1)
    pattern = ["^many.*"]

    def run(window_id: str, before: float) -> None:
        world.run(window_id, before, *pattern, starting_offsets=Latest(), exclude=["manyskip"])

    run("first", 10)
    world.create("manyb", 2)
    world.add_partitions("manya", 3)
    for topic, partition in (("manya", 2), ("manyb", 1), ("manyskip", 0)):
        world.write(topic, partition, 2, 3)
    run("second", 20)
    world.look("manya", "manyb")
