"""Scripts about groups that Parallel Consumer works on as well: taken over, handed over, shared, taken back, reset.

Parallel Consumer itself is played here: it starts from the committed offset and map, and commits in its format.
"""

from __future__ import annotations

from functools import partial

from kafka_ordered_ops import AtTime, Committed, Earliest, Latest
from kafka_ordered_ops.core.offset_map.parallel_consumer import (
    decode_parallel_consumer_map,
    encode_parallel_consumer_map,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, ProgressFormat
from kafka_ordered_ops.kafka.ports import read_committed_offsets
from tests.support.race_scripts import SCRIPTS as SCRIPTS
from tests.support.race_scripts import taken
from tests.support.scripts import filled, script
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World

PARALLEL = ProgressFormat.PARALLEL_CONSUMER


def consume(
    world: World, *leaves: int, partition: int = 0, topic: str = "orders", group_id: str = "g"
) -> list[tuple[int, int]]:
    """Parallel Consumer processes all that the commit leaves open, but for some offsets; returns what it processed."""
    tp, group = world.tp(topic, partition), world.named(group_id)
    found = read_committed_offsets(world.settings, group, [tp], timeout_s=TIMEOUT_S)[tp]
    end = world._lookup.end_offsets([tp], Isolation.READ_COMMITTED)[tp]
    done = OffsetSet()
    if found is not None:
        told = decode_parallel_consumer_map(found.metadata, found.offset)
        done = OffsetSet.of((0, found.offset)) | told.done
    held = OffsetSet.of(*((offset, offset + 1) for offset in leaves))
    processed = OffsetSet.of((0, end)) - done - held
    commit(world, done | processed, partition=partition, topic=topic, group_id=group_id)
    return processed.ranges


def commit(
    world: World, done: OffsetSet, *, partition: int = 0, topic: str = "orders", group_id: str = "g"
) -> None:
    """Parallel Consumer commits these offsets as done."""
    base = done.first_missing(0)
    metadata = encode_parallel_consumer_map(base, done - OffsetSet.of((0, base)))
    world.foreign_commit(group_id, topic, {partition: base}, metadata)


def migrate(world: World, to: str, *, dual: bool = False, dry_run: bool = False) -> None:
    """Migrates, and writes down what came of it."""
    what = f"migrate {to}{' dual' if dual else ''}{' dry' if dry_run else ''}"
    world.do(what, lambda: world.windows().migrate(to, dual=dual, dry_run=dry_run))


def format_of(world: World) -> ProgressFormat:
    """Where the group's progress is kept."""
    state = world.windows().state()
    assert state is not None
    return state.format


# --- taken over -------------------------------------------------------------------------------------


@script
def a_first_window_takes_what_parallel_consumer_left(world: World) -> None:
    """Its done ranges count, not only its committed offset, and nothing is foreign about them later."""
    filled(world, partitions=2)
    world.write("orders", 1, 1, 2)
    consume(world, 1, 4)
    consume(world, 0, partition=1)
    plan = world.plan("w", 100, starting_offsets=Committed())
    assert (taken(plan), taken(plan, 1)) == ([(1, 2), (4, 5)], [(0, 1)])
    world.read("w")
    world.commit("w")
    world.write("orders", 0, 50)
    world.run("next", 200)
    world.look("orders")


@script
def a_first_window_takes_only_its_times_of_it(world: World) -> None:
    """What is open beyond the window's cutoff stays open, among what Parallel Consumer has done."""
    filled(world)
    consume(world, 1, 3, 4)
    world.run("w6", 6, starting_offsets=Committed())
    world.run("w12", 12)
    world.run("rest", 100)
    world.look("orders")


@script
def other_starting_offsets_leave_the_map_out(world: World) -> None:
    """Earliest means earliest; the map that was there is no foreign commit."""
    filled(world)
    consume(world, 0)
    world.run("w", 12, starting_offsets=Earliest())
    world.run("rest", 100)
    world.look("orders")


@script
def parallel_consumer_goes_on_while_a_first_window_is_open(world: World) -> None:
    """More that is done at the same committed offset is a foreign commit as well; adopting joins it."""
    filled(world)
    consume(world, 0, 1, 4)
    world.plan("w", 12, starting_offsets=Committed())
    consume(world, 0, 1)
    world.commit("w")
    world.do("adopt", lambda: world.windows().adopt())
    world.commit("w")
    world.run("rest", 100)
    world.look("orders")


@script
def a_map_changes_between_the_look_and_the_claim(world: World) -> None:
    """The draft begins again, and leaves out what is done by then."""
    filled(world)
    consume(world, 0, 1, 4)
    world.before_claim(lambda: consume(world, 0, 1))
    assert taken(world.plan("w", 100, starting_offsets=Committed())) == [(0, 2)]
    world.commit("w")
    world.look("orders")


@script
def maps_that_cannot_be_used_stop_the_plan(world: World) -> None:
    """Damaged, or past the end of the log: no record is read twice without a word. A reset drops them."""
    filled(world)
    topic = world.named("orders")
    past = encode_parallel_consumer_map(1, OffsetSet.of((3, 4), (7, 8)))
    for number, metadata in enumerate((b"bP//", past)):
        group = f"g{number}"
        world.foreign_commit(group, "orders", {0: 1}, metadata)
        assert world.plan("w", 100, starting_offsets=Committed(), group_id=group) is None
        service = world.windows(group)
        world.do("reset", partial(service.reset_offsets, "committed", topics=topic))
        plan = world.plan("w", 100, starting_offsets=Committed(), group_id=group)
        assert taken(plan) == [(1, 6)]


@script
def text_of_other_programs_is_no_map(world: World) -> None:
    """A plain consumer's metadata says nothing about records."""
    filled(world)
    for number, metadata in enumerate((b"host-1:pid", b"meta", b"", b"AQAAAAAAAAAB")):
        group = f"g{number}"
        world.foreign_commit(group, "orders", {0: 2}, metadata)
        plan = world.plan("w", 100, starting_offsets=Committed(), group_id=group)
        assert taken(plan) == [(2, 6)]
        world.commit("w", group)


# --- handed over, and taken back -------------------------------------------------------------------------


@script
def a_group_is_handed_over_and_taken_back(world: World) -> None:
    """Each program takes exactly what the other has left."""
    filled(world, partitions=2)
    world.write("orders", 1, 40, 3)
    world.run("w8", 8, starting_offsets=Earliest())
    migrate(world, "parallel-consumer", dry_run=True)
    world.look("orders")
    migrate(world, "parallel-consumer")
    migrate(world, "parallel-consumer")
    world.look("orders")
    assert world.plan("next", 100) is None
    assert world.do("preview", lambda: world.windows().preview(world.window(100), "next")) is None
    world.do("publish", lambda: world.windows().show("w8"))
    assert consume(world, 2, 5) == [(1, 2), (4, 5)]
    assert consume(world, partition=1) == [(0, 1)]
    migrate(world, "parallel-consumer")
    migrate(world, "ledger", dry_run=True)
    migrate(world, "ledger")
    migrate(world, "ledger")
    assert taken(world.plan("next", 100)) == [(2, 3), (5, 6)]
    world.commit("next")
    world.look("orders")


@script
def both_run_in_turn(world: World) -> None:
    """Windows and Parallel Consumer share the group until it is one's alone; each record once."""
    filled(world)
    world.run("w8", 8, starting_offsets=Earliest())
    migrate(world, "parallel-consumer", dual=True)
    world.look("orders")
    assert consume(world, 2, 4) == [(1, 2), (5, 6)]
    world.write("orders", 0, 9, 60)
    assert taken(world.plan("w25", 25)) == [(2, 3), (6, 7)]
    world.commit("w25")
    world.look("orders")
    assert consume(world, 7) == [(4, 5)]
    migrate(world, "ledger", dual=True)
    world.run("w70", 70)
    world.write("orders", 0, 80, 71)
    assert consume(world, 8) == [(9, 10)]
    migrate(world, "ledger")
    world.run("w90", 90)
    world.look("orders")


@script
def parallel_consumer_commits_between_plan_and_commit(world: World) -> None:
    """The commit of the window joins what it did."""
    filled(world)
    world.run("w8", 8, starting_offsets=Earliest())
    migrate(world, "ledger", dual=True)
    world.plan("w12", 12)
    # Not its offset 1: that one is the window's, and the two must not run at one time.
    assert consume(world, 1, 2) == [(4, 6)]
    world.commit("w12")
    world.run("rest", 100)
    world.look("orders")


@script
def nothing_is_migrated_under_windows_or_members(world: World) -> None:
    """Nor a group that has nothing in the ledger."""
    filled(world)
    for to in ("ledger", "parallel-consumer"):
        migrate(world, to)
    world.plan("w", 12, starting_offsets=Earliest())
    migrate(world, "parallel-consumer")
    migrate(world, "parallel-consumer", dual=True, dry_run=True)
    world.commit("w")
    leave = world.join("g", "intruder")
    try:
        migrate(world, "parallel-consumer")
        migrate(world, "parallel-consumer", dry_run=True)
    finally:
        leave()
    assert format_of(world) is ProgressFormat.LEDGER


@script
def a_group_that_was_moved_is_not_migrated(world: World) -> None:
    """Foreign commits are adopted first; or with the migration, where that was asked for."""
    filled(world)
    world.run("w12", 12, starting_offsets=Earliest())
    world.foreign_commit("g", "orders", {0: 5})
    migrate(world, "parallel-consumer")
    world.do("adopt", lambda: world.windows().adopt())
    migrate(world, "parallel-consumer")
    # Set back: only a person can know that this was meant.
    commit(world, OffsetSet.of((0, 1), (3, 4)))
    migrate(world, "ledger")
    world.do("migrate", lambda: world.windows().migrate("ledger", adopt=True))
    assert taken(world.plan("rest", 100)) == [(1, 3), (4, 6)]
    world.look("orders")


@script
def a_shared_group_that_is_set_back_waits_for_a_person(world: World) -> None:
    """Neither planning nor committing takes that for Parallel Consumer's progress."""
    filled(world)
    world.run("w12", 12, starting_offsets=Earliest())
    migrate(world, "ledger", dual=True)
    world.foreign_commit("g", "orders", {0: 1}, b"host-1:pid")
    assert world.plan("next", 100) is None
    world.do("adopt", lambda: world.windows().adopt())
    world.run("next", 100)
    world.look("orders")


@script
def a_map_of_a_shared_group_is_damaged(world: World) -> None:
    """Nothing is believed, and nothing is lost: a reset to the committed offsets is the way out."""
    filled(world)
    world.run("w12", 12, starting_offsets=Earliest())
    migrate(world, "parallel-consumer")
    world.foreign_commit("g", "orders", {0: 2}, b"bP//")
    migrate(world, "ledger")
    world.do("adopt", lambda: world.windows().adopt())
    world.do("reset", lambda: world.windows().reset_offsets("committed"))
    migrate(world, "ledger")
    world.run("rest", 100)
    world.look("orders")


@script
def lost_offsets_are_written_down_before_a_group_is_handed_over(world: World) -> None:
    """Parallel Consumer would skip them without a word."""
    filled(world)
    world.run("w8", 8, starting_offsets=Earliest())
    world.delete_before("orders", 0, 2)
    migrate(world, "parallel-consumer")
    world.run("w12", 12, on_data_loss="warn")
    migrate(world, "parallel-consumer")
    assert consume(world) == [(2, 3), (4, 6)]


@script
def topics_come_and_go_while_a_group_is_shared(world: World) -> None:
    """A deleted topic holds up nothing; a recreated one is adopted; a new one is shared with the next commit."""
    filled(world)
    world.create("more")
    world.write("more", 0, 1, 50, 2)
    world.run("w12", 12, "orders", "more", starting_offsets=Earliest())
    migrate(world, "parallel-consumer", dual=True)
    world.plan("w22", 22, ["orders", "more"])
    world.delete("more")
    world.commit("w22")
    world.create("more")
    world.write("more", 0, 1)
    migrate(world, "ledger")
    world.do("adopt", lambda: world.windows().adopt())
    migrate(world, "ledger")
    world.run("rest", 100, "orders", "more")
    world.look("orders", "more")


@script
def partitions_appear_while_parallel_consumer_has_a_group(world: World) -> None:
    """What it has done there counts, too: taken back in one step, or planned while both formats are written."""
    filled(world)
    world.run("w12", 12, starting_offsets=Earliest())
    migrate(world, "parallel-consumer")
    world.add_partitions("orders", 2)
    world.write("orders", 1, 1, 2, 3)
    assert consume(world, 0, 2, partition=1) == [(1, 2)]
    migrate(world, "ledger", dual=True)
    world.look("orders")
    plan = world.plan("w15", 15)
    assert (taken(plan), taken(plan, 1)) == ([], [(0, 1), (2, 3)])
    world.commit("w15")
    world.add_partitions("orders", 3)
    world.write("orders", 2, 1, 2, 3)
    assert consume(world, 1, partition=2) == [(0, 1), (2, 3)]
    assert taken(world.plan("rest", 100), 2) == [(1, 2)]
    world.commit("rest")
    migrate(world, "ledger")
    world.look("orders")


# --- reset --------------------------------------------------------------------------------------------


@script
def a_window_group_is_reset(world: World) -> None:
    """To anything; what it had taken beyond is open again, and what lies before is skipped."""
    filled(world, partitions=2)
    world.write("orders", 1, 1, 2)
    world.run("w8", 8, starting_offsets=Earliest())
    service = world.windows()
    for to in ("committed", "latest", "earliest", "offset:2", AtTime(world.window(15).cutoff_ms)):
        world.do("preview", partial(service.reset_offsets, to, dry_run=True))
        world.do("reset", partial(service.reset_offsets, to))
        world.do("again", partial(service.reset_offsets, to))
        world.look("orders")
    world.do("reset", lambda: service.reset_offsets({world.tp("orders"): 4}))
    assert taken(world.plan("rest", 100)) == [(4, 6)]
    world.do("open", lambda: service.reset_offsets("earliest"))
    world.commit("rest")
    world.look("orders")


@script
def a_reset_of_some_partitions_leaves_the_others(world: World) -> None:
    """Whatever another program did to those must be adopted first."""
    filled(world, partitions=2)
    world.write("orders", 1, 1, 2)
    world.run("w8", 8, starting_offsets=Earliest())
    service = world.windows()
    world.foreign_commit("g", "orders", {0: 4, 1: 0})
    world.do("one", lambda: service.reset_offsets({world.tp("orders", 0): 2}))
    world.do("both", lambda: service.reset_offsets("latest"))
    world.do("outside", lambda: service.reset_offsets({world.tp("orders", 0): 7}))
    world.do("unknown", lambda: service.reset_offsets({world.tp("orders", 5): 0}))
    world.create("other")
    world.do("other", lambda: service.reset_offsets("earliest", topics=world.named("other")))
    world.look("orders")


@script
def a_reset_of_a_shared_group_counts_what_parallel_consumer_has_done(world: World) -> None:
    """What is skipped and repeated follows its commits, also on partitions that stay; nothing of those is lost."""
    filled(world, partitions=2)
    world.write("orders", 1, 1, 2, 20)
    world.run("w8", 8, starting_offsets=Earliest())
    migrate(world, PARALLEL)
    consume(world, 1)
    consume(world, 2, partition=1)
    service = world.windows()
    for to, counts in (("committed", (0, 4)), ("latest", (1, 0)), ("offset:3", (1, 3))):
        found = world.do("preview", partial(service.reset_offsets, to, dry_run=True))
        assert (found.partitions[0].skipped, found.partitions[0].repeated) == counts
    # What Parallel Consumer has done on the other partition stays.
    assert world.do("one", lambda: service.reset_offsets({world.tp("orders", 1): 1}))
    world.do("committed", lambda: world.committed("orders"))
    world.foreign_commit("g", "orders", {0: 0}, b"")
    world.do("set back", lambda: service.reset_offsets({world.tp("orders", 1): 2}))
    world.do("both", lambda: service.reset_offsets("committed"))
    migrate(world, "ledger")
    world.run("rest", 100)
    world.look("orders")


@script
def any_other_group_is_reset_in_kafka_alone(world: World) -> None:
    """Its committed offsets, without metadata; never under live members."""
    filled(world, partitions=2)
    service = world.windows()
    topic = world.named("orders")
    world.do("no topics", lambda: service.reset_offsets("earliest"))
    world.do("none", lambda: service.reset_offsets("committed", topics=topic))
    for to in (Latest(), "offset:3", AtTime(world.window(15).cutoff_ms)):
        world.do("preview", partial(service.reset_offsets, to, topics=topic, dry_run=True))
        world.do("reset", partial(service.reset_offsets, to, topics=topic))
        world.do("committed", lambda: world.committed("orders"))
    consume(world, 1)
    world.do("reset", lambda: service.reset_offsets("committed", topics=[topic]))
    world.do("committed", lambda: world.committed("orders"))
    leave = world.join("g", "intruder")
    try:
        world.do("members", lambda: service.reset_offsets("earliest", topics=topic))
    finally:
        leave()
    world.do("state", service.state)
