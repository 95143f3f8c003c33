"""The end of a history: all that is open is run again, what is left is swept, and the stages are cleaned.

Each run ends well, or in an error that has a cure. The cures are those of the documentation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from kafka_ordered_ops import OrderedWindows, Policy, Window
from kafka_ordered_ops.core.types import OnDataLoss
from tests.support.oracle.outputs import verbs
from tests.support.oracle.outputs.choices import Choices
from tests.support.oracle.outputs.judge import Heard
from tests.support.oracle.outputs.lineage import Claim, Lineage
from tests.support.oracle.outputs.steps import HOURS, Actor, Kill
from tests.support.oracle.outputs.world import HOUR_MS, START_MS, Place, moment

#: A cure may lead to the next error, but not for long.
_TURNS: Final = 6
#: Errors whose cure is another root: it belongs to others, or was carried without what is stored beside it.
_ABOUT_THE_ROOT: Final = frozenset({"OutputOwnedError", "SinkError", "WindowSupersededError"})


@dataclass
class _Words:
    """What a caller says differently after an error."""

    tolerates_loss: bool = False
    allow_fewer: bool = False
    #: The errors so far, by name: a cure that does not help is tried once.
    heard: set[str] = field(default_factory=set)


def finish(life: Choices) -> None:
    """Bring a history to its end, and judge it."""
    _Finish(life).finish()


class _Finish:
    def __init__(self, life: Choices) -> None:
        self._life = life
        self._told = life.told
        self._account = life.account
        self._judge = life.judge
        self._fresh: dict[str, Place] = {}

    def finish(self) -> None:
        for step in (self._settle, self._sweep, self._settle):
            for actor in self._told.actors:
                lineage = self._account.lineage(actor)
                if lineage is not None and not self._judge.problems:
                    step(actor, lineage)
        if not self._judge.problems:
            self._clean()
        if not self._judge.problems:
            self._judge.end()

    # --- what is open -----------------------------------------------------------------------------

    def _settle(self, actor: Actor, lineage: Lineage) -> None:
        """Run again whatever is not published, and then whatever is open: offsets may be adopted only after that."""
        for _ in range(2):
            for claim in [*lineage.unpublished(), *lineage.open_windows()]:
                self._run_again(actor, lineage, claim)

    def _run_again(self, actor: Actor, lineage: Lineage, claim: Claim) -> None:
        """Run one window again until it is delivered, or nothing more can be done about it."""
        words = _Words()
        for _ in range(_TURNS):
            is_over = not (claim.is_open or claim.is_named)
            if self._judge.problems or is_over or lineage.newest(claim.window_id) is not claim:
                return
            assert claim.place is not None
            before = replace(words)
            heard = self._run(actor, claim.window_id, claim.place, words, window=None)
            name = type(heard.error).__name__
            if heard.outcome != "refused":
                continue
            if not self._cure(actor, heard, words) or (words == before and name in words.heard):
                break
            words.heard.add(name)
            if name in _ABOUT_THE_ROOT:
                claim.place = self._account.meant[actor][claim.window_id] = self._fresh_place(
                    lineage
                )
                claim.shown_in.add(claim.place)
        self._give_up(actor, claim)

    def _give_up(self, actor: Actor, claim: Claim) -> None:
        """What somebody took away by hand, and retention as well, nobody can deliver."""
        assert claim.place is not None
        if not claim.place.is_bereft:
            return
        if claim.is_open:
            heard = Heard("abandon", actor, (claim.window_id,))
            self._life.processes.call(heard, lambda one: one.abandon(claim.window_id))
        else:
            self._account.hopeless.add(claim)

    def _sweep(self, actor: Actor, lineage: Lineage) -> None:
        """Take all that is left: what is late comes with the next interval, and a sweep takes the rest."""
        kind = self._told.kind(actor.group)
        end_ms = START_MS + (HOURS + 1) * HOUR_MS
        last = Window(
            [self._account.clusters[actor.cluster].world.named(topic) for topic in kind.topics],
            moment(end_ms),
            starting_offsets="earliest",
            on_data_loss=OnDataLoss.WARN,
            since=moment(end_ms - HOUR_MS) if kind.in_intervals else None,
        )
        self._run_new(actor, lineage, last, f"the-last-of-{actor.group}")
        if kind.in_intervals:
            sweep = replace(last, since=None, sweep=True)
            self._run_new(actor, lineage, sweep, f"the-rest-of-{actor.group}")

    def _run_new(self, actor: Actor, lineage: Lineage, window: Window, name: str) -> None:
        words = _Words()
        places = [one.place for one in lineage.claims.values() if one.place is not None]
        place = places[-1] if places else self._account.places[0]
        told = ""
        for turn in range(_TURNS):
            if self._judge.problems:
                return
            heard = self._run(actor, f"{name}-{turn}", place, words, window=window)
            told = str(heard)
            if heard.outcome != "refused":
                return
            if not self._cure(actor, heard, words):
                break
            if type(heard.error).__name__ in _ABOUT_THE_ROOT:
                place = self._fresh_place(lineage)
        self._judge.problems.append(f"(end) {name} cannot be delivered: {told}")

    def _run(
        self, actor: Actor, window_id: str, place: Place, words: _Words, *, window: Window | None
    ) -> Heard:
        policy = Policy(allow_fewer=words.allow_fewer)

        def act(windows: OrderedWindows) -> Any:
            asked = window or windows.show(window_id).plan.window
            if words.tolerates_loss:
                asked = replace(asked, on_data_loss=OnDataLoss.WARN)
            how = self._life.roots.run_words(place.path, self._told.partition_by)
            return windows.run(asked, window_id=window_id, policy=policy, **how)

        heard = Heard("run", actor, (window_id,), place, words.allow_fewer)
        return self._life.processes.call(heard, act)

    def _fresh_place(self, lineage: Lineage) -> Place:
        """Return a root that no other ledger has used; what was written waits in another one, in vain."""
        if lineage.ledger_id not in self._fresh:
            place = self._fresh[lineage.ledger_id] = self._account.new_place()
            place.is_bereft = True
        return self._fresh[lineage.ledger_id]

    # --- cures ------------------------------------------------------------------------------------

    def _cure(self, actor: Actor, heard: Heard, words: _Words) -> bool:
        """Do what the documentation says about an error; return whether there is anything to do."""
        name = type(heard.error).__name__
        if name in ("ForeignCommitError", "TopicRecreatedError"):
            return heard.what != "adopt" and self._insist("adopt", actor, lambda one: one.adopt())
        if name == "GroupHandedOverError":
            return self._insist("migrate", actor, lambda one: one.migrate("ledger"))
        if name == "LedgerLostError":
            # The offsets are those of another ledger's group of the same name: one of the two has to go.
            self._account.clusters.lose_commits(actor)
            self._judge.by_hand()
        elif name == "RecordsLostError":
            words.tolerates_loss = True
        elif name == "FewerRecordsError":
            words.allow_fewer = True
        elif name not in _ABOUT_THE_ROOT:
            return False
        return True

    def _insist(self, what: str, actor: Actor, act: Callable[[OrderedWindows], object]) -> bool:
        """Call until the call ends well, or in an error without a cure; return whether it ended well."""
        for _ in range(3):
            heard = self._life.processes.call(Heard(what, actor), act)
            if heard.outcome == "done":
                return True
            if not self._cure(actor, heard, _Words()):
                break
        return False

    # --- stages -----------------------------------------------------------------------------------

    def _clean(self) -> None:
        """Clean every root by age, and one with a group's word: readers see what they saw."""
        call = self._life.processes.call
        for place in list(self._account.places):
            act = partial(_clean_by_age, place.path)
            # Seldom before this is there anything to clean: a clean that dies is tried here.
            kill = Kill(0, 1 + self._told.seed // 2 % 4) if self._told.seed % 2 else None
            call(Heard("clean", self._told.actors[0], place=place), act, kill)
            call(Heard("clean", self._told.actors[0], place=place), act)
        actor = self._told.actors[self._told.seed % len(self._told.actors)]
        if self._told.seed % 3 == 0 and self._account.lineage(actor) is not None:
            place, ledger = self._account.places[0], self._life.ledger_topic(actor)
            heard = Heard("clean", actor, place=place)
            call(heard, lambda one: verbs.clean(place.path, one, ledger))


def _clean_by_age(root: str, _: OrderedWindows) -> None:
    verbs.clean(root)
