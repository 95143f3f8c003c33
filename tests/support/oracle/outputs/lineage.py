"""One group as one ledger knows it, followed from outside: which windows it claimed, and what became of them.

A lineage ends with its ledger topic. It is followed by what the ledger lists after each step, because the process of a
step may die before it hears what it has done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.types import TopicPartition
from tests.support.oracle.group import Group, Held
from tests.support.oracle.journal import PlanSeen
from tests.support.oracle.outputs.steps import Actor
from tests.support.oracle.outputs.world import Place
from tests.support.oracle.truth import LogKey, Truth
from tests.support.oracle.verdict import DONE


@dataclass(eq=False)
class Claim:
    """One claim of a window: the records that it holds, and where it was to be delivered."""

    actor: Actor
    window_id: str
    claim_id: str
    #: By name, the records at the offsets that are to be read, and those that were lost.
    taken: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    #: The records that readers must see flagged, and those that they may.
    late: frozenset[str] = frozenset()
    perhaps_late: frozenset[str] = frozenset()
    status: str = "planned"
    #: Whether it was ever committed: its records were promised to the readers of its places.
    was_committed: bool = False
    #: Whether it was undone later: whoever takes its records again owes them.
    was_rewound: bool = False
    #: Whether the package says that readers do not see it yet.
    is_named: bool = False
    #: Whose readers were promised its records; None: nobody's, yet.
    place: Place | None = None
    #: Where it may be seen: there, and wherever it was replayed or copied to.
    shown_in: set[Place] = field(default_factory=set)

    @property
    def is_open(self) -> bool:
        """Whether it holds its records, and has not promised them."""
        return self.status in ("planned", "written")

    def __str__(self) -> str:
        return f"window {self.window_id} of {self.actor} (claim {self.claim_id[:6]}, {self.status})"


class Lineage:
    """One group as one ledger knows it."""

    def __init__(
        self, actor: Actor, ledger_id: str, truth: Truth, meant: Mapping[str, Place]
    ) -> None:
        self.actor = actor
        self.ledger_id = ledger_id
        self.truth = truth
        #: As it must be, by what was seen of it.
        self.group = Group(truth)
        self.claims: dict[str, Claim] = {}
        #: Whether its ledger is still there.
        self.is_alive = True
        #: Ids that were delivered and then forgotten.
        self.forgotten: set[str] = set()
        #: Records that a move of the group's offsets has passed: nobody promises them.
        self.skipped: set[str] = set()
        #: Where each window is to be delivered.
        self._meant = meant
        #: What was wrong with plans since this was read last.
        self.problems: list[str] = []

    # --- what is known ----------------------------------------------------------------------------

    def newest(self, window_id: str) -> Claim | None:
        """Return the claim that a window has now."""
        held = self.group.windows.get(window_id)
        return None if held is None else self.claims[held.plan.claim_id]

    def is_pruned(self, window_id: str) -> bool:
        """Return whether the ledger no longer has a window's plan."""
        held = self.group.windows.get(window_id)
        return held is not None and held.is_pruned

    def unpublished(self) -> list[Claim]:
        """Return the windows that are named as committed and not visible yet."""
        return [claim for claim in self.claims.values() if claim.is_named]

    def open_windows(self) -> list[Claim]:
        """Return the windows that hold records and are not committed."""
        return [claim for claim in self.claims.values() if claim.is_open]

    def undone(self) -> set[str]:
        """Return the records that are neither done nor passed: a later window takes them."""
        found = set()
        for key, origin in self.group.origin.items():
            for offset, name in self._names(key).items():
                if offset >= origin and offset not in self.group.done[key]:
                    found.add(name)
        return found

    def of_topics(self) -> set[str]:
        """Return the records from the group's start on, in the topics that it knows."""
        return {
            name
            for key, origin in self.group.origin.items()
            for offset, name in self._names(key).items()
            if offset >= origin
        }

    def _names(self, key: LogKey) -> dict[int, str]:
        log = self.truth.logs.get(key)
        rows = {} if log is None else log.visible(committed_only=True)
        return {offset: (row.value or b"").decode() for offset, row in rows.items()}

    # --- what happens -----------------------------------------------------------------------------

    def observe(
        self,
        records: Sequence[WindowRecord],
        named: set[str],
        committed: Mapping[TopicPartition, int],
        now_ms: int,
    ) -> None:
        """Take in what the ledger lists now, and which windows the package names as unpublished.

        Args:
            records: all windows.
            named: the ids of those that are named.
            committed: the group's offsets before what has happened since the last look.
            now_ms: the services' clock.
        """
        for record in records:
            plan, held = record.plan, self.group.windows.get(record.plan.window_id)
            if held is None or held.plan.claim_id != plan.claim_id:
                if held is not None and held.is_open:
                    self.group.abandon(held)
                    self._ended(held, "abandoned")
                if plan.claim_id in self.claims:
                    # A forgotten window is covered by the claim that delivered it, and takes nothing.
                    if (
                        any(part.taken | part.lost for part in plan)
                        or plan.content.value != "covered"
                    ):
                        self._wrong(40, PlanSeen.of(plan), "was forgotten, and takes something")
                    self.group.windows[plan.window_id] = Held(
                        PlanSeen.of(plan), plan.status.value, now_ms, is_pruned=True
                    )
                else:
                    self._planned(PlanSeen.of(plan), committed, now_ms)
        # Windows that were planned together have seen one another's claims, whatever became of these.
        for record in records:
            self._went_on(self.group.windows[record.plan.window_id], record, now_ms)
        for window_id in self.group.windows.keys() - {one.plan.window_id for one in records}:
            held = self.group.windows[window_id]
            if held.is_done:
                self.forgotten.add(window_id)
            self._ended(held, "forgotten")
            self.group.forget_window(window_id)
        for claim in self.claims.values():
            claim.is_named = claim.window_id in named and self.newest(claim.window_id) is claim

    def adopted(self, before: Mapping[TopicPartition, int]) -> None:
        """Take in that the offsets that others committed are the group's progress now."""
        bounds = self.truth.look().bounds()
        recreated = self.group.recreated({key.topic for key in self.group.origin})
        for topic in recreated:
            self._begin_again(topic)
        found = self.group.moved_by_others(
            {(tp.topic, tp.partition): to for tp, to in before.items()}
        )
        moves = {
            key: min(to, bounds[key][1])
            for key, to in found.items()
            if key in bounds and key.topic not in recreated
        }
        self._move(moves, {key for key, to in moves.items() if to < self.group.base(key)})
        if moves or recreated:
            self.group.restore_committed()

    def reset(self, after: Mapping[TopicPartition, int]) -> None:
        """Take in that the committed offsets are the group's progress, and nothing beyond them."""
        self.truth.look()
        moves = {
            key: to
            for key in self.group.origin
            if (to := after.get(TopicPartition(key.topic, key.partition))) is not None
        }
        self._move(moves, set(moves))
        self.group.committed.update(moves)

    def end(self) -> None:
        """Take in that the ledger is gone: nobody can name a window of it any more."""
        self.is_alive = False
        for held in self.group.windows.values():
            self._ended(held, "lost with the ledger")
        for claim in self.claims.values():
            claim.is_named = False

    # --- inside -----------------------------------------------------------------------------------

    def _planned(
        self, plan: PlanSeen, committed: Mapping[TopicPartition, int], now_ms: int
    ) -> None:
        """A window was planned: it holds what it asks for and nobody else holds."""
        group, bounds = self.group, self.truth.look().bounds()
        for key in plan.shares:
            if key not in group.origin:
                group.origin[key], group.done[key] = bounds[key][0], set()
                # What others have committed before a group's first plan is no move.
                group.committed[key] = committed.get(TopicPartition(key.topic, key.partition))
        claim = Claim(self.actor, plan.window_id, plan.claim_id)
        for key, share in plan.shares.items():
            held = group.claimed(key) | group.done[key]
            if both := (share.taken | share.lost) & held:
                self._wrong(1, plan, f"takes {key} {sorted(both)}, which another window holds")
            self._take(claim, plan, key, free_from=max(group.origin[key], bounds[key][0]))
        group.windows[plan.window_id] = Held(plan, "planned", now_ms)
        group.freeze(plan)
        if (place := self._meant.get(plan.window_id)) is not None:
            claim.place = place
            claim.shown_in.add(place)
        self.claims[plan.claim_id] = claim

    def _take(self, claim: Claim, plan: PlanSeen, key: LogKey, *, free_from: int) -> None:
        """Write down the records of one log that a window takes, and which of them are late."""
        group, share, asked = self.group, plan.shares[key], plan.question
        held = group.claimed(key) | group.done[key]
        # A window that was delivered and forgotten is covered when it is planned again, and takes nothing.
        is_over = plan.content == "covered" and plan.window_id in self.forgotten
        for offset, name in self._names(key).items():
            row = self.truth.logs[key].rows[offset]
            if offset in share.lost:
                claim.lost |= {name}
            elif offset in share.taken:
                claim.taken |= {name}
                # Of an interval, whatever is not of its own times is late.
                is_earlier = row.time_ms < asked.low_ms
                if is_earlier or group.is_late(key, offset, row.time_ms, surely=True):
                    claim.late |= {name}
                if is_earlier or group.is_late(key, offset, row.time_ms, surely=False):
                    claim.perhaps_late |= {name}
            elif (
                free_from <= offset < share.decided_end
                and offset not in held
                and not is_over
                and group.wants(asked, key, row, surely=True)
            ):
                self._wrong(3, plan, f"({plan.content}) leaves out {name}, which nobody holds")

    def _went_on(self, held: Held, record: WindowRecord, now_ms: int) -> None:
        claim, status = self.claims[record.plan.claim_id], record.status.value
        if record.pruned is not None:
            held.is_pruned = True
        elif status != "abandoned" and record.plan.partitions:
            held.plan = PlanSeen.of(record.plan)
            names = {key: self._names(key) for key in held.plan.shares}
            lost = {
                names[key][offset]
                for key, share in held.plan.shares.items()
                for offset in share.lost
                if offset in names[key]
            }
            claim.taken, claim.lost = claim.taken - lost, frozenset(lost)
        if status in DONE and not held.is_done:
            self.group.commit(held, now_ms)
        elif status == "abandoned" and held.is_open:
            self.group.abandon(held)
        held.status = status
        self._ended(held, status)

    def _ended(self, held: Held, status: str) -> None:
        claim = self.claims[held.plan.claim_id]
        claim.status = status
        claim.was_committed = claim.was_committed or status in DONE
        claim.was_rewound = claim.was_rewound or status == "rewound"

    def _move(self, moves: Mapping[LogKey, int], cuts: Set[LogKey]) -> None:
        """Everything below an offset is done; where progress is cut, nothing at or above it."""
        group, rewound = self.group, set[str]()
        perhaps = {claim_id: dict(one.perhaps) for claim_id, one in group.frozen.items()}
        for key, to in sorted(moves.items()):
            names = self._names(key)
            passed = set(range(group.origin[key], to)) - group.done[key]
            self.skipped |= {names[offset] for offset in passed if offset in names}
            if key in cuts:
                rewound |= group.cut(key, to)
                self.skipped -= {name for offset, name in names.items() if offset >= to}
            group.done[key] |= set(range(group.origin[key], to))
            group.settled.add(key[:2])
        # Nobody says whether the times of a rewound window count.
        for claim_id, one in group.frozen.items():
            one.perhaps = {**perhaps[claim_id], **one.perhaps}
        for window_id in rewound:
            claim_id = group.windows[window_id].plan.claim_id
            for key in moves:
                group.frozen[claim_id].surely.pop(key, None)

    def _begin_again(self, topic: str) -> None:
        bounds = self.truth.bounds()
        for old in [key for key in self.group.origin if key.topic == topic]:
            new = LogKey(topic, self.truth.topic_ids[topic], old.partition)
            self.skipped |= set(self._names(old).values())
            del self.group.origin[old], self.group.done[old], self.group.committed[old]
            if new in bounds:
                self.group.origin[new], self.group.done[new] = bounds[new][0], set()
                self.group.committed[new] = None
                self.group.settled.add(new[:2])

    def _wrong(self, number: int, plan: PlanSeen, what: str) -> None:
        self.problems.append(f"({number}) window {plan.window_id} of {self.actor} {what}")
