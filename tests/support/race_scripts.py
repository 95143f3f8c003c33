"""Scripts about what happens between a look at the group and the claim, and about knowledge that outlives its time."""

from __future__ import annotations

from typing import Any

import numpy as np

from kafka_ordered_ops import Committed, Earliest, WindowPlan
from kafka_ordered_ops.core.types import Isolation, OnDataLoss, WindowStatus
from kafka_ordered_ops.windows import Policy
from tests.support.group_scripts import SCRIPTS as SCRIPTS
from tests.support.scripts import filled, script
from tests.support.windows_support import BASE_MS
from tests.support.worlds import Content, World

WARN = OnDataLoss.WARN


def taken(plan: WindowPlan | None, partition: int = 0) -> list[tuple[int, int]]:
    """The offsets of a plan on one partition."""
    assert plan is not None
    [part] = [part for part in plan if part.tp.partition == partition]
    return part.taken.ranges


def lost(plan: WindowPlan | None) -> list[tuple[int, int]]:
    """What a plan writes down as lost."""
    assert plan is not None
    return [one for part in plan for one in part.lost.ranges]


def is_late(plan: WindowPlan | None, offset: int, second: float, partition: int = 0) -> bool:
    """Whether a record of the plan is flagged."""
    assert plan is not None
    [part] = [part for part in plan if part.tp.partition == partition]
    times_ms = np.array([BASE_MS + round(second * 1000)])
    return bool(part.late.mask(np.array([offset]), times_ms)[0])


# --- between the look and the claim -------------------------------------------------------------------


def first_and_out_of_order(world: World) -> dict[str, Any]:
    """Seconds 1000 and 15 at offsets 0 and 1; the question of an interval that stops before the out-of-order record."""
    world.create("orders")
    world.write("orders", 0, 1_000, 15)
    return {"before": 20, "since": 10, "out_of_orderness_s": 0, "starting_offsets": Earliest()}


@script
def an_interval_is_planned_in_between(world: World) -> None:
    """Its times are frozen: what it left is late, and goes to the one that is planned after it."""
    early = first_and_out_of_order(world)
    world.before_claim(lambda: world.plan("early", **early))
    late = world.plan("late", 2_000, since=100, starting_offsets=Earliest())
    assert taken(late) == [(0, 2)]
    assert is_late(late, 1, 15)
    assert not is_late(late, 0, 1_000)
    world.look("orders")


@script
def an_interval_is_abandoned_in_between(world: World) -> None:
    """Its times are nobody's again: a record of them is not another interval's."""
    early = first_and_out_of_order(world)
    world.run("zero", 5, since=0, out_of_orderness_s=0, starting_offsets=Earliest())
    world.plan("early", **early)
    world.before_claim(lambda: world.abandon("early"))
    late = world.plan("late", 2_000, since=100)
    assert taken(late) == [(0, 1)]
    assert taken(world.plan("early", 20, since=10)) == [(1, 2)]
    world.look("orders")


@script
def an_interval_is_committed_in_between(world: World) -> None:
    """Planned and committed: frozen for good."""
    early = first_and_out_of_order(world)
    world.before_claim(lambda: world.run("early", **early))
    late = world.plan("late", 2_000, since=100, starting_offsets=Earliest())
    assert taken(late) == [(0, 2)]
    assert is_late(late, 1, 15)
    world.look("orders")


@script
def claimed_and_given_back_in_between(world: World) -> None:
    """What was free at the look and is free again, while another window has frozen its times."""
    world.create("orders")
    world.write("orders", 0, 15, 1_000)
    world.run("zero", 5, since=0, starting_offsets=Earliest())

    def others() -> None:
        world.plan("holds", 20, since=10)
        world.plan("freezes", 20, since=10)
        world.abandon("holds")

    world.before_claim(others)
    late = world.plan("late", 2_000, since=100)
    assert taken(late) == [(0, 2)]
    world.look("orders")


@script
def a_plan_of_other_records_in_between(world: World) -> None:
    """It takes nothing that the draft knows of: the draft holds, and is claimed as it was."""
    world.create("orders")
    world.write("orders", 0, 1, 12, 103)
    world.run("zero", 0.5, since=0, starting_offsets=Earliest())
    world.before_claim(lambda: world.plan("early", 20, since=10))
    late = world.plan("late", 2_000, since=100)
    assert taken(late) == [(2, 3)]
    world.look("orders")


@script
def a_partition_is_planned_in_between(world: World) -> None:
    """Another process has seen it: it is looked at as well."""
    filled(world)
    world.run("zero", 5, since=0, starting_offsets=Earliest())

    def others() -> None:
        world.add_partitions("orders", 2)
        world.write("orders", 1, 12, 22)
        world.plan("early", 20, since=10)

    world.before_claim(others)
    late = world.plan("late", 40, since=20)
    assert taken(late, 1) == [(1, 2)]
    world.look("orders")


@script
def a_window_is_abandoned_while_it_is_taken_up(world: World) -> None:
    """It is planned again, under a new claim; nobody is given a window that is gone."""
    filled(world)
    world.plan("w", 12, starting_offsets=Earliest())
    world.before_claim(lambda: world.abandon("w"))
    plan = world.plan("w", 12, starting_offsets=Earliest())
    assert plan is not None
    assert (plan.status, plan.attempt) == (WindowStatus.PLANNED, 1)
    world.commit("w")
    world.look("orders")


@script
def a_start_is_committed_in_between(world: World) -> None:
    """A group begins where it was committed when it was planned, not when it was looked at."""
    filled(world)
    world.foreign_commit("g", "orders", {0: 1})
    world.before_claim(lambda: world.foreign_commit("g", "orders", {0: 3}))
    plan = world.plan("w", 100, starting_offsets=Committed())
    assert taken(plan) == [(3, 6)]
    world.commit("w")
    world.look("orders")


@script
def a_topic_is_recreated_and_adopted_in_between(world: World) -> None:
    """The draft is about the old one."""
    filled(world)
    world.run("nothing", -5, starting_offsets=Earliest())

    def others() -> None:
        world.delete("orders")
        world.create("orders")
        world.write("orders", 0, 7, 50, 8)
        world.do("adopt", lambda: world.windows(run_id="other").adopt())

    world.before_claim(others)
    assert taken(world.plan("w", 12)) == [(0, 1), (2, 3)]
    world.look("orders")


# --- partitions that appear while windows are open -----------------------------------------------------


def grown(world: World, **first: Any) -> None:
    """An open interval [60, 70), a partition that came after it, and another interval that has seen it."""
    world.create("orders")
    world.write("orders", 0, 5, 65)
    world.run("0-10", 10, since=0, starting_offsets=Earliest())
    world.plan("60-70", 70, since=60, **first)
    world.add_partitions("orders", 2)
    world.run("10-20", 20, since=10)


@script
def it_appears_and_the_window_is_abandoned(world: World) -> None:
    """Its records of these times wait for the window of their own time."""
    grown(world)
    world.look("orders")
    world.abandon("60-70")
    world.write("orders", 1, 62, 85)
    assert taken(world.plan("80-90", 90, since=80), 1) == [(1, 2)]
    own = world.plan("60-70", 70, since=60)
    assert taken(own, 1) == [(0, 1)]
    assert not is_late(own, 0, 62, partition=1)
    world.look("orders")


@script
def it_appears_and_the_window_stays_open(world: World) -> None:
    """Its records of these times are late, and come with the next interval."""
    grown(world)
    world.write("orders", 1, 62, 85)
    late = world.plan("80-90", 90, since=80)
    assert taken(late, 1) == [(0, 2)]
    assert is_late(late, 0, 62, partition=1)
    world.look("orders")


@script
def it_appears_and_the_window_commits(world: World) -> None:
    """So they are once it is committed."""
    grown(world)
    world.commit("60-70")
    world.write("orders", 1, 62, 85)
    late = world.plan("80-90", 90, since=80)
    assert taken(late, 1) == [(0, 2)]
    assert is_late(late, 0, 62, partition=1)
    world.commit("80-90")
    world.look("orders")


@script
def it_appears_and_progress_is_moved_back(world: World) -> None:
    """What covered its times before it was there still does."""
    grown(world)
    world.commit("60-70")
    world.write("orders", 1, 62, 85)
    world.run("80-90", 90, since=80)
    world.foreign_commit("g", "orders", {1: 0})
    world.do("adopt", lambda: world.windows().adopt())
    late = world.plan("100-110", 110, since=100)
    assert taken(late, 1) == [(0, 1)]
    assert is_late(late, 0, 62, partition=1)
    world.look("orders")


@script
def a_topic_of_the_pattern_appears_while_windows_are_open(world: World) -> None:
    """As a partition does: one of the windows is abandoned, the other one commits."""
    world.create("manya")
    world.write("manya", 0, 5, 35, 65)
    pattern = ["^many.*"]
    world.run("0-10", 10, *pattern, since=0, starting_offsets=Earliest())
    world.plan("30-40", 40, pattern, since=30)
    world.plan("60-70", 70, pattern, since=60)
    world.create("manyb")
    world.run("10-20", 20, *pattern, since=10)
    world.abandon("30-40")
    world.commit("60-70")
    world.write("manyb", 0, 32, 62, 85)
    late = world.plan("80-90", 90, pattern, since=80)
    assert late is not None
    assert {part.tp.topic: part.taken.ranges for part in late}[world.named("manyb")] == [(1, 3)]
    world.look("manya", "manyb")


# --- what was known of times ------------------------------------------------------------------------------


@script
def a_topic_is_recreated_after_its_windows_were_abandoned(world: World) -> None:
    """Nothing that was known of the old one is believed of the new one."""
    world.create("orders")
    world.write("orders", 0, 1)
    world.plan("one", 100, starting_offsets=Earliest())
    world.add_partitions("orders", 2)
    # A time map of several chunks, one of which no window takes anything of.
    late: Content = (500, None, b"x", [])
    world.write_content("orders", 1, [late, (10, None, b"x", []), *[late] * 1_100])
    world.plan("two", 100, starting_offsets=Earliest())
    world.abandon("two")
    world.abandon("one")
    world.look()
    world.delete("orders")
    world.create("orders", 2)
    world.write_content("orders", 1, [late, *[(10, None, b"x", [])] * 1_100])
    assert taken(world.plan("three", 100, starting_offsets=Earliest()), 1) == [(1, 1_101)]
    world.commit("three")
    world.look("orders")


@script
def lost_by_a_window_that_is_abandoned(world: World) -> None:
    """Whoever asks for the times is told of the loss; nobody else."""
    world.create("orders")
    world.write("orders", 0, 1, 500, 500, 10, 500, 500)
    world.run("0-5", 5, since=0, starting_offsets=Earliest())
    world.plan("5-100", 100, since=5)
    world.delete_before("orders", 0, 5)
    assert lost(world.plan("5-100", 100, since=5, on_data_loss=WARN)) == [(3, 4)]
    world.abandon("5-100")
    world.plan("5-100", 100, since=5)
    other = world.plan("600-700", 700, since=600)
    assert (taken(other), lost(other)) == ([], [])
    assert lost(world.plan("5-50", 50, since=5, on_data_loss=WARN)) == [(3, 4)]
    world.commit("5-50")
    assert lost(world.plan("rest", 700, sweep=True, on_data_loss=WARN)) == [(1, 3), (4, 5)]
    world.commit("rest")
    world.look("orders")


@script
def lost_after_it_was_given_free(world: World) -> None:
    """Abandoned first, taken by retention after it; several windows at once are told of their own."""
    world.create("orders")
    world.write("orders", 0, 1, 500, 30, 500, 60, 500, 90, 600)
    world.run("0-5", 5, since=0, starting_offsets=Earliest())
    for since in (20, 50, 80):
        world.plan(f"{since}", since + 20, since=since)
    for since in (20, 50, 80):
        world.abandon(f"{since}")
    world.delete_before("orders", 0, 7)
    windows = [world.window(since + 20, since=since, on_data_loss=WARN) for since in (80, 20, 50)]
    plans = world.do("several", lambda: world.windows().plan_many(windows, ["a", "b", "c"]))
    assert [lost(plan) for plan in plans] == [[(6, 7)], [(2, 3)], [(4, 5)]]
    world.look("orders")


@script
def lost_after_progress_was_moved_back(world: World) -> None:
    """A window whose offsets were given back is told of its own loss, and no other one."""
    world.create("orders")
    world.write("orders", 0, 1, 30, 60, 600)
    for since in (0, 20, 50):
        world.run(f"{since}", since + 20, since=since, starting_offsets=Earliest())
    world.foreign_commit("g", "orders", {0: 0})
    world.do("adopt", lambda: world.windows().adopt())
    world.delete_before("orders", 0, 3)
    fewer = Policy(allow_fewer=True)
    for since, offset in ((50, 2), (0, 0), (20, 1)):
        asked: dict[str, Any] = {"since": since, "on_data_loss": WARN}
        assert world.plan(f"{since}", since + 20, **asked) is None
        again = world.plan(f"{since}", since + 20, **asked, policy=fewer)
        assert lost(again) == [(offset, offset + 1)]
    for window_id in ("0", "20", "50"):
        world.commit(window_id)
    world.look("orders")


@script
def times_of_other_records_are_forgotten(world: World) -> None:
    """A group that reads uncommitted records from now on knows nothing of their times."""
    world.create("orders")
    world.write("orders", 0, 500)
    world.send("tx", "orders", 0, 50)
    world.end("tx", "abort")
    world.write("orders", 0, 500)
    world.run("w", 100, starting_offsets=Earliest())
    redefine = Policy(redefine=True)
    other = world.plan(
        "all",
        100,
        isolation=Isolation.READ_UNCOMMITTED,
        starting_offsets=Earliest(),
        policy=redefine,
    )
    assert taken(other) == [(1, 3)]
    world.look("orders")


# --- offsets that are put back ------------------------------------------------------------------------------


@script
def own_offsets_are_put_back(world: World) -> None:
    """From a backup, with our own metadata: noticed at plan and commit; adopting moves progress back."""
    filled(world, partitions=2)
    world.write("orders", 1, 1, 50, 2)
    world.run("w8", 8, starting_offsets=Earliest())
    put_back = world.backup("orders")
    world.run("w12", 12)
    world.plan("open", 22)
    world.look("orders")
    put_back()
    world.look("orders")
    assert world.plan("next", 40) is None
    world.commit("open")
    assert world.windows().show("open").status is WindowStatus.PLANNED
    world.do("dry", lambda: world.windows().adopt(dry_run=True))
    adoption = world.do("adopt", lambda: world.windows().adopt())
    # Beyond the offset that was put back everything is open again, as with anybody else's.
    assert sorted(adoption.rewound) == ["w12", "w8"]
    world.do("adopt again", lambda: world.windows().adopt())
    world.commit("open")
    world.run("w12", 12)
    world.run("rest", 100)
    world.look("orders")


@script
def own_offsets_are_put_back_and_adopted_where_asked(world: World) -> None:
    """By the service itself."""
    filled(world)
    service, adopt = world.windows(), Policy(on_foreign_commit="adopt")
    world.run("w8", 8, starting_offsets=Earliest())
    put_back = world.backup("orders")
    world.run("w12", 12)
    put_back()
    plan = world.do("plan", lambda: service.plan(world.window(18), "next", adopt))
    assert taken(plan) == [(1, 2), (3, 4), (5, 6)]
    world.do("commit", lambda: service.commit(plan))
    world.look("orders")


@script
def the_newest_offsets_put_back_are_no_harm(world: World) -> None:
    """They are the group's own, and what they say is so; so are those that expired before."""
    filled(world)
    world.run("w12", 12, starting_offsets=Earliest())
    put_back = world.backup("orders")
    put_back()
    world.run("w22", 22)
    put_back = world.backup("orders")
    world.plan("open", 30)
    world.expire("g", "orders", 0)
    put_back()
    world.commit("open")
    world.look("orders")


@script
def others_commit_while_one_looks(world: World) -> None:
    """What was read before they did is no older offset that somebody put back."""
    filled(world)
    world.run("w1", 1, starting_offsets=Earliest())
    world.plan("w8", 8)
    world.before_claim(lambda: world.commit("w8"))
    world.run("w12", 12)
    world.look("orders")


@script
def offsets_of_a_topic_that_was_gone_at_a_commit(world: World) -> None:
    """They were not written with the others, and nobody has put them back."""
    filled(world)
    world.create("gone")
    world.write("gone", 0, 1, 2)
    both = ["orders", "gone"]
    world.run("w", 12, *both, starting_offsets=Earliest())
    world.plan("open", 22, both)
    world.delete("gone")
    world.commit("open")
    world.create("gone")
    world.look("orders", "gone")
    world.do("adopt", lambda: world.windows().adopt())
    world.run("rest", 100, *both)
    world.look("orders", "gone")
