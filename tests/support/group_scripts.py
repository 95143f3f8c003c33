"""Scripts about groups: what others do behind their backs, their modes, their windows over the years."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kafka_ordered_ops import Earliest
from kafka_ordered_ops.core.types import Isolation, OnOpenClaim
from kafka_ordered_ops.windows import Policy
from tests.support.scripts import SCRIPTS as SCRIPTS
from tests.support.scripts import filled, script
from tests.support.worlds import World

# --- behind the group's back --------------------------------------------------------------------------


@script
def a_topic_made_anew(world: World) -> None:
    """Its offsets are not the old one's: an error everywhere, until it is adopted."""
    filled(world)
    world.run("w", 12, starting_offsets=Earliest())
    world.plan("open", 18)
    world.delete("orders")
    world.plan("gone", 20)
    world.create("orders", 2)
    world.write("orders", 0, *range(9))
    world.plan("next", 20)
    world.plan("open", 18)
    world.commit("open")
    world.do("replay", lambda: world.windows().replay("w"))
    world.do("dry", lambda: world.windows().adopt(dry_run=True))
    world.do("adopt", lambda: world.windows().adopt())
    world.do("adopt", lambda: world.windows().adopt())
    world.plan("open", 18)
    world.run("next", 20)
    world.look("orders")


@script
def a_topic_that_is_gone_holds_up_nobody(world: World) -> None:
    """The window commits on the others."""
    filled(world)
    world.create("gone")
    world.write("gone", 0, 1, 2)
    both = ["orders", "gone"]
    world.plan("w", 12, both, starting_offsets=Earliest())
    world.delete("gone")
    world.commit("w")
    world.look("orders")
    world.plan("next", 100, both)
    world.plan("alone", 100)
    world.plan("alone", 100, policy=Policy(redefine=True))
    world.commit("alone")
    world.look("orders")


@script
def a_topic_that_goes_in_the_middle_of_a_commit(world: World) -> None:
    """Its offsets are refused with the whole transaction, which is not left open: the next attempt is without it."""
    filled(world)
    world.create("gone")
    world.write("gone", 0, 1, 2)
    world.plan("w", 12, ["orders", "gone"], starting_offsets=Earliest())
    world.plan("open", 18, ["orders", "gone"])
    # The last question before the fence: the brokers refuse the offsets of what is gone by then.
    world.meanwhile(lambda: world.delete("gone"), after="group_members")
    world.commit("w")
    world.look("orders")
    world.commit("open")
    world.look("orders")


@script
def a_topic_that_goes_while_a_commit_looks(world: World) -> None:
    """Between two questions about it: the commit looks again, and goes on without it."""
    filled(world)
    world.create("gone")
    world.write("gone", 0, 1, 2)
    world.plan("w", 12, ["orders", "gone"], starting_offsets=Earliest())
    world.meanwhile(lambda: world.delete("gone"), after="existing")
    world.commit("w")
    world.look("orders")


@script
def foreign_commits(world: World) -> None:
    """Noticed at plan and commit; adopted forward and back; windows behind the cut are rewound."""
    filled(world, partitions=2)
    world.write("orders", 1, 1, 50, 2)
    world.run("w12", 12, starting_offsets=Earliest())
    world.run("w22", 22)
    world.plan("open", 40)
    world.foreign_commit("g", "orders", {0: 5})
    world.plan("next", 100)
    world.commit("open")
    world.do("dry", lambda: world.windows().adopt(dry_run=True))
    world.do("forward", lambda: world.windows().adopt())
    world.commit("open")
    world.look("orders")
    world.foreign_commit("g", "orders", {0: 1, 1: 0}, b"somebody")
    world.do("back", lambda: world.windows().adopt())
    world.look("orders")
    world.plan("w12", 12)
    world.plan("w22", 22)
    world.run("all", 1_000)
    world.foreign_commit("g", "orders", {0: 99})
    world.do("beyond the end", lambda: world.windows().adopt())
    world.look("orders")


@script
def foreign_commits_are_adopted_where_asked(world: World) -> None:
    """By the service itself, at plan and at commit."""
    filled(world)
    service, adopt = world.windows(), Policy(on_foreign_commit="adopt")
    world.run("w", 12, starting_offsets=Earliest())
    world.foreign_commit("g", "orders", {0: 4})
    plan = world.do("plan", lambda: service.plan(world.window(18), "next", adopt))
    world.foreign_commit("g", "orders", {0: 5})
    world.do("commit", lambda: service.commit(plan))
    world.look("orders")


@script
def expired_offsets(world: World) -> None:
    """The ledger knows them; the next commit restores all of them."""
    filled(world, partitions=2)
    world.write("orders", 1, 1)
    world.run("w", 12, starting_offsets=Earliest())
    world.expire("g", "orders", 0, 1)
    world.look("orders")
    world.run("next", 25)
    world.look("orders")
    world.expire("g", "orders", 1)
    world.run("rest", 100)
    world.look("orders")


@script
def live_members(world: World) -> None:
    """A group with members is refused at plan, take-up and commit; they are named."""
    filled(world)
    world.plan("w", 12, starting_offsets=Earliest())
    leave = world.join("g", "intruder")
    world.commit("w")
    world.plan("w", 12)
    world.plan("next", 20)
    world.do("adopt", lambda: world.windows().adopt())
    leave()
    world.commit("w")
    world.look("orders")


@script
def ledgers_that_are_none(world: World) -> None:
    """Lost, deleted, too small, not compacted: each is named, and nothing starts over."""
    filled(world)
    window = world.window(12, starting_offsets=Earliest())
    service = world.windows(ledger_topic="ledger")
    plan = world.do("plan", lambda: service.plan(window, "w"))
    world.do("commit", lambda: service.commit(plan))
    other = world.windows(ledger_topic="otherledger")
    world.do("another ledger", lambda: other.plan(window, "w"))
    world.do("preview", lambda: other.preview(window, "w"))
    world.delete("ledger")
    world.do("deleted", lambda: service.commit(plan))
    world.do("deleted", lambda: service.adopt())
    world.create("ledger", 16, cleanup_policy="compact")
    world.do("made anew", lambda: service.commit(plan))
    world.create("few", 15, cleanup_policy="compact")
    world.create("forgetful", 16, cleanup_policy="delete")
    for name in ("few", "forgetful"):
        bad = world.windows("fresh", ledger_topic=name)
        world.do(name, lambda: bad.plan(window, "w"))  # noqa: B023
        world.do(name, lambda: bad.list())  # noqa: B023


# --- groups -------------------------------------------------------------------------------------------


@script
def intervals(world: World) -> None:
    """Late records, gaps, a sweep; the group's mode is its own."""
    world.create("orders", 2)
    world.write("orders", 0, -5, 12, 3, 27, 18)
    world.write_at_ms("orders", 0, [-1])
    world.write("orders", 1, 31, 8, 44)
    world.run("i10", 20, since=10, starting_offsets=Earliest())
    world.look("orders")
    world.write("orders", 0, 15, 22, 4)
    world.run("i30", 40, since=30)
    world.do("gaps", lambda: world.windows().gaps())
    world.plan("catch-up", 50)
    world.run("i20", 30, since=20)
    world.plan("sweep", 40, sweep=True)
    world.read("sweep")
    world.abandon("sweep")
    world.run("sweep2", 35, sweep=True)
    world.write("orders", 1, 9, 33, 41)
    world.run("i40", 50, since=40)
    world.run("last", 100, sweep=True)
    world.look("orders")


@script
def several_at_once(world: World) -> None:
    """A backfill: one scan, each record in the first window that asks for it; all or none."""
    filled(world, partitions=2)
    world.write("orders", 1, 40, 11, 2, 29)
    service = world.windows()
    windows = [
        world.window(before, since=before - 10, starting_offsets=Earliest())
        for before in (20, 10, 30)
    ]
    names = ["b20", "b10", "b30"]
    plans = world.do("plan many", lambda: service.plan_many(windows, names))
    world.do("again", lambda: service.plan_many(windows, names))
    mixed = [*windows[:2], world.window(30)]
    world.do("mixed", lambda: service.plan_many(mixed, ["m1", "m2", "m3"]))
    world.do("twice", lambda: service.plan_many(windows[:2], ["same", "same"]))
    world.do("too old", lambda: service.commit_many(plans))
    newest = world.do("again", lambda: service.plan_many(windows, names))
    for plan in newest:
        world.plans[plan.window_id] = plan
        world.read(plan.window_id)
    world.do("commit many", lambda: service.commit_many(newest))
    world.look("orders")


@script
def shared_among_tasks(world: World) -> None:
    """Split, reported in any order, committed when all have; a share of another count is refused."""
    filled(world, partitions=2)
    world.write("orders", 1, 1, 2, 3)
    service = world.windows()
    plan = world.plan("w", 100, starting_offsets=Earliest())
    assert plan is not None
    parts = world.do("split", lambda: service.split(plan, 3))
    world.do("split again", lambda: service.split(plan, 3))
    world.do("split otherwise", lambda: service.split(plan, 2))
    for number in (2, 0):
        world.do(f"report {number}", lambda: service.report(parts[number], {"rows": number}))  # noqa: B023
    world.commit("w")
    world.do("report twice", lambda: service.report(parts[0], {"rows": 99}))
    world.do("commit a part", lambda: service.commit(parts[0]))
    world.do("report the last", lambda: service.report(parts[1], {"rows": 1}))
    world.commit("w")
    world.do("report late", lambda: service.report(parts[1], {"rows": 2}))
    world.look("orders")


@script
def old_windows(world: World) -> None:
    """Pruned to a stub, then forgotten; open ones and progress stay."""
    filled(world)
    service = world.windows()
    world.run("old", 12, starting_offsets=Earliest())
    world.plan("abandoned", 15)
    world.abandon("abandoned")
    world.plan("open", 18)
    world.now += 3_600
    world.run("new", 22)
    world.do("prune", lambda: service.prune(timedelta(minutes=30)))
    world.do("prune", lambda: service.prune(timedelta(minutes=30)))
    world.do("prune negative", lambda: service.prune(timedelta(minutes=-1)))
    world.look("orders")
    world.replay("old")
    world.plan("old", 12)
    world.do("forget", lambda: service.prune(timedelta(0), forget=True))
    world.look("orders")
    world.plan("old", 12)
    world.commit("open")
    world.look("orders")


@script
def open_claims(world: World) -> None:
    """Step around, fail, take over those that are old enough; written ones stay."""
    filled(world)
    service = world.windows()
    world.plan("first", 12, starting_offsets=Earliest())
    fail = Policy(on_open_claim=OnOpenClaim.FAIL)
    take_over = Policy(on_open_claim=OnOpenClaim.TAKE_OVER, claim_age=timedelta(hours=1))
    wait = Policy(on_open_claim=OnOpenClaim.WAIT, claim_wait=timedelta(seconds=0))
    world.plan("around", 18)
    for name, policy in (("fail", fail), ("wait", wait)):
        world.plan(name, 25, policy=policy)
    world.do("written", lambda: service.mark_written(world.plans["around"], {"files": 1}))
    world.plan("young", 25, policy=take_over)
    world.abandon("young")
    world.now += 7_200
    world.plan("old", 25, policy=take_over)
    world.commit("first")
    world.commit("around")
    world.commit("old")
    world.look("orders")


@script
def what_belongs_to_the_group(world: World) -> None:
    """Topics, isolation and mode stay as they are, unless they are declared anew."""
    filled(world)
    world.create("others")
    world.write("others", 0, 1)
    world.run("w", 12, starting_offsets=Earliest())
    world.plan("topics", 20, ["orders", "others"], starting_offsets=Earliest())
    world.plan("isolation", 20, isolation=Isolation.READ_UNCOMMITTED)
    world.plan("mode", 20, since=12)
    redefine = Policy(redefine=True)
    world.plan("topics", 20, ["orders", "others"], starting_offsets=Earliest(), policy=redefine)
    world.commit("topics")
    world.plan("back", 30)
    world.look("orders", "others")


@script
def max_out_of_orderness(world: World) -> None:
    """The scan ends at the first record past it; what lies behind comes later."""
    world.create("orders")
    world.write("orders", 0, 1, 12, 3, 30, 4, 9_999_999, 5)
    world.run("w", 10, starting_offsets=Earliest(), out_of_orderness_s=10)
    world.run("next", 20, out_of_orderness_s=10)
    world.run("rest", 100)
    world.look("orders")


@script
def liveness(world: World) -> None:
    """Live by a record at or after the cutoff, idle by the clock, waiting behind a transaction."""
    world.create("orders", 4)
    world.write("orders", 0, 1, 12)
    world.write("orders", 1, 1, 5)
    world.send("tx", "orders", 2, 30)
    service = world.windows()
    window = world.window(10)
    answers = [world.do("nobody knows the group", lambda: service.live(window))]
    world.plan("w", 3, starting_offsets=Earliest())
    for grace_s in (60, 20_000):
        grace = timedelta(seconds=grace_s)
        answers.append(world.do(f"grace {grace_s}", lambda: service.live(window, grace=grace)))  # noqa: B023
    world.end("tx", "abort")
    world.do("aborted", lambda: service.live(window, before=answers[0]))
    world.write("orders", 2, 11)
    world.write("orders", 1, 10)
    world.do("written", lambda: service.live(window, grace=timedelta(seconds=60)))
    late = world.window(10, out_of_orderness_s=2)
    world.do("lateness", lambda: service.live(late))
    world.do("unknown", lambda: service.live(world.window(10, ["orderz"])))
    world.now = 5
    world.do("in the future", lambda: service.live(window, grace=timedelta(0)))


class Output:
    """A sink's output that is nowhere."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._told = dict(told)

    def to_json(self) -> Mapping[str, Any]:
        return self._told

    def publish(self) -> None:
        """It was visible all along."""

    def discard(self) -> None:
        """There is nothing to remove."""


@script
def delivered_once(world: World) -> None:
    """From wherever a window stands to published; what is gone is written again."""
    filled(world)
    service = world.windows()
    found = {"kept": True}

    def write(plan: Any) -> Output:
        return Output({"window": plan.window_id, "attempt": plan.attempt})

    def reopen(told: Mapping[str, Any]) -> Output | None:
        return Output(told) if found["kept"] else None

    for turn in range(3):
        plan = world.plan("w", 12, starting_offsets=Earliest())
        assert plan is not None
        world.do(f"deliver {turn}", lambda: service.deliver(plan, write, reopen).ran)  # noqa: B023
        world.look("orders")
        found["kept"] = turn != 1
    world.plan("none", 5)
    world.do("covered", lambda: service.deliver(world.plans["none"], write, reopen).ran)
    staged = Output({"rows": 3})
    world.plan("next", 18)
    world.do("commit staged", lambda: service.commit(world.plans["next"], staged))
    world.look("orders")
