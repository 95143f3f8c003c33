"""The verdict: what readers of a root are promised, rule by rule.

Each rule is a promise of `docs/guarantees.md`, and knows nothing but what producers wrote, what calls answered, what
ledgers listed, and what readers saw. A problem begins with the name of its rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kafka_ordered_ops import KafkaOrderedOpsError
from kafka_ordered_ops.core.types import PlanContent
from tests.support.oracle.outputs.account import Account
from tests.support.oracle.outputs.lineage import Claim, Lineage
from tests.support.oracle.outputs.roots import SeenRow
from tests.support.oracle.outputs.steps import Actor
from tests.support.oracle.outputs.world import Place

#: What a run notes of rows that it has not looked at.
_ELSEWHERE: Final = "where this call did not look"
#: Calls that look at their root, when they end well; and those that do so if their windows hold records.
_LOOKS: Final = frozenset({"run", "clean"})
_LOOKS_FOR_RECORDS: Final = frozenset({"parts", "many", "replay"})


@dataclass
class Heard:
    """One call of the package by one process, and what came of it."""

    what: str
    actor: Actor
    #: The windows that it was about, and the root.
    window_ids: tuple[str, ...] = ()
    place: Place | None = None
    #: Whether the caller gave the explicit word that fewer records than readers see are fine.
    allow_fewer: bool = False
    #: ``done``, ``refused``, or ``killed``.
    outcome: str = "done"
    value: Any = None
    error: BaseException | None = None
    #: How many changes of the ledger were stored before it ended.
    stored: int = 0
    #: What readers of each place saw before it.
    before: dict[Place, Counter[str]] = field(default_factory=dict)
    #: What a replacement that died had hidden from them.
    hidden_before: dict[Place, set[str]] = field(default_factory=dict)
    #: The windows that were named as unpublished before it.
    unpublished_before: frozenset[str] = frozenset()

    def __str__(self) -> str:
        about = " ".join(self.window_ids) + (f" in {self.place}" if self.place else "")
        error = "" if self.error is None else f": {type(self.error).__name__}: {self.error}"
        return f"{self.what} by {self.actor} {about} -> {self.outcome}{error[:400]}"


class Judge:
    """Judges a history step by step."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.problems: list[str] = []
        self.moments: list[str] = []

    def moment(self) -> bool:
        """Look in the middle of a call: a row that readers have seen is there at every moment. Return whether one is not."""
        is_gap = False
        for place in self._account.places:
            gone = place.must - self._account.look(place) - place.hidden
            is_gap = is_gap or bool(gone)
            if gone and not self._is_one_window(gone):
                self.moments.append(
                    f"(stays) in the middle of the call, readers of {place} miss {_some(gone)}"
                )
        return is_gap

    def by_hand(self) -> None:
        """Judge what there is after people or other programs have done something."""
        self._account.observe()
        self.problems += self._what_there_is()

    def after(self, heard: Heard) -> None:
        """Judge a call of the package, and what there is after it."""
        account = self._account
        account.observe()
        if not heard.allow_fewer:
            self.problems += self.moments[:1]
        self.moments.clear()
        self.problems += [
            *self._errors_are_named(heard),
            *self._errors_change_nothing(heard),
            *self._what_there_is(heard),
            *self._roots_have_one_ledger(heard),
            *self._runs_name_what_is_unpublished(heard),
            *self._readers_have_what_was_run(heard),
        ]

    def _what_there_is(self, heard: Heard | None = None) -> Iterator[str]:
        for place in self._account.places:
            yield from self._rows_stay(place, heard)
        for place in self._account.places:
            yield from self._each_folder_is_a_committed_window(place)
            yield from self._no_row_twice(place)
        for lineage in self._account.lineages:
            yield from self._promises_are_kept(lineage)
            yield from lineage.problems
            lineage.problems.clear()

    # --- the rules --------------------------------------------------------------------------------

    def _errors_are_named(self, heard: Heard) -> Iterator[str]:
        """Whatever goes wrong is an error of the package."""
        if heard.outcome == "refused" and not isinstance(heard.error, KafkaOrderedOpsError):
            yield f"(error) {type(heard.error).__name__} is no error of the package"

    def _errors_change_nothing(self, heard: Heard) -> Iterator[str]:
        """An error changes nothing that readers see, but that windows that were committed before may be published."""
        if heard.outcome != "refused":
            return
        lineage = self._account.lineage(heard.actor)
        left = set[str]()
        for claim in () if lineage is None else lineage.claims.values():
            if claim.window_id in heard.unpublished_before:
                left |= claim.taken
        for place, before in heard.before.items():
            after = self._account.names_in(place)
            may_show = heard.hidden_before[place] | left
            is_shown = len(heard.window_ids) > 1 or set(after - before) <= may_show
            if after != before and (not is_shown or before - after):
                yield f"(error) readers of {place} see {_change(before, after)} after an error"

    def _rows_stay(self, place: Place, heard: Heard | None) -> Iterator[str]:
        """A row that readers have seen stays, unless somebody took it away by an explicit word."""
        names = set(self._account.names_in(place))
        if heard is not None and heard.allow_fewer and place is heard.place:
            given_up = place.must & self._held_before(heard) - names
            place.by_hand |= given_up
            place.must -= given_up
        gone = place.must - names
        if gone and not self._may_be_hidden(place, gone, heard):
            yield f"(stays) readers of {place} miss {_some(gone)}"
        place.hidden = gone
        place.must |= names

    def _may_be_hidden(self, place: Place, gone: set[str], heard: Heard | None) -> bool:
        """Where folders cannot be exchanged, a replacement that dies may hide its window, until somebody uses the root."""
        if heard is not None and heard.outcome == "done" and place is heard.place:
            has_records = heard.what in _LOOKS_FOR_RECORDS and self._held_now(heard)
            return heard.what not in _LOOKS and not has_records
        fresh = gone - place.hidden
        died = heard is not None and heard.outcome == "killed"
        return not fresh or (died and self._is_one_window(fresh))

    def _is_one_window(self, gone: set[str]) -> bool:
        """Return whether these may be missing because a window is being replaced."""
        return not self._account.roots.replaces_at_once and any(
            gone <= one.taken for one in self._account.claims()
        )

    def _held_before(self, heard: Heard) -> set[str]:
        """Return what the windows of a call held, by any claim."""
        lineage = self._account.lineage(heard.actor)
        claims = () if lineage is None else lineage.claims.values()
        ids = heard.window_ids
        return {name for one in claims if one.window_id in ids for name in one.taken}

    def _held_now(self, heard: Heard) -> set[str]:
        """Return what the windows of a call hold."""
        lineage = self._account.lineage(heard.actor)
        found = [lineage.newest(window_id) for window_id in heard.window_ids] if lineage else []
        return {name for one in found if one is not None for name in one.taken}

    def _each_folder_is_a_committed_window(self, place: Place) -> Iterator[str]:
        """Readers see whole windows, after their commits, with exactly their records, exactly flagged."""
        for folder, rows in self._account.seen[place].items():
            for row in rows:
                yield from self._is_as_produced(place, row)
            names = {row.name for row in rows}
            claims = [
                one for one in self._account.claims() if one.was_committed and one.taken == names
            ]
            if names and not claims:
                yield f"(whole) {place}/{folder} has {_some(names)}, which is no committed window"
            elif names and not any(_is_flagged(claim, rows) for claim in claims):
                flagged = {row.name for row in rows if row.late}
                yield (
                    f"(late) {place}/{folder} flags {_some(flagged)} of {_some(names)}; late are "
                    f"{_some(claims[-1].late)}, perhaps {_some(claims[-1].perhaps_late)}"
                )

    def _is_as_produced(self, place: Place, row: SeenRow) -> Iterator[str]:
        found = self._account.produced(row.name)
        where = None if found is None else (found.topic, found.partition, found.time_ms)
        if where != (row.topic, row.partition, row.time_ms):
            yield f"(whole) readers of {place} see {row}, and {found} was produced"

    def _no_row_twice(self, place: Place) -> Iterator[str]:
        """A window shows a record once, and within a group one window has it.

        Other groups may have it as well, and so may the windows of a group whose offsets were moved back between them.
        """
        for name, count in self._account.names_in(place).items():
            if count < 2:
                continue
            holders = {
                (lineage.actor, lineage.ledger_id, claim.window_id)
                for lineage in self._account.lineages
                for claim in lineage.claims.values()
                if claim.was_committed and name in claim.taken and place in claim.shown_in
            }
            if count > len(holders):
                windows = sorted(f"{window_id} of {actor}" for actor, _, window_id in holders)
                yield f"(once) readers of {place} see {name} {count} times, by {windows}"

    def _promises_are_kept(self, lineage: Lineage) -> Iterator[str]:
        """A committed record is visible; or its window is named as unpublished; or it is lost, held or undone again."""
        if not lineage.is_alive:
            return
        for claim in lineage.claims.values():
            if not claim.was_committed or claim.is_named or claim.place is None:
                continue
            owed = claim.taken - set(self._account.names_in(claim.place)) - claim.place.by_hand
            owed -= claim.place.hidden
            if not owed:
                continue
            for other in lineage.claims.values():
                if claim.was_rewound and other is not claim and other.was_committed:
                    # The offsets were moved back: whoever took the record again owes it now.
                    owed -= other.taken
                owed -= other.lost | (other.taken if other.is_open else frozenset())
            if claim.was_rewound:
                # Another program delivered them, says the offset that was adopted; or they went with their topic.
                owed -= lineage.skipped
            if owed := owed - lineage.undone():
                yield f"(owed) {claim} is not named, and readers of {claim.place} miss {_some(owed)}"

    def _roots_have_one_ledger(self, heard: Heard) -> Iterator[str]:
        """A root belongs to the ledger that published there first, or took it over."""
        if heard.what == "take_root" and heard.place is not None:
            # A group that has planned nothing has a ledger all the same, if another group of it has.
            cluster = self._account.clusters[heard.actor.cluster]
            ledger_id = cluster.ledger_id(heard.actor.ledger)
            if heard.outcome == "done" and heard.place.owners and ledger_id is not None:
                heard.place.owners = {ledger_id}
            elif heard.outcome == "killed" and heard.place.owners and ledger_id is not None:
                heard.place.owners.add(ledger_id)
            return
        lineage = self._account.lineage(heard.actor)
        if lineage is None:
            return
        for place, before in heard.before.items():
            if not self._account.names_in(place) - before:
                continue
            if place.owners and lineage.ledger_id not in place.owners:
                yield f"(owner) {heard.actor} published to {place}, which belongs to another ledger"
            place.owners = place.owners or {lineage.ledger_id}

    def _runs_name_what_is_unpublished(self, heard: Heard) -> Iterator[str]:
        """A run names the group's other windows that are committed and that readers do not see yet."""
        notes = getattr(heard.value, "notes", None)
        if notes is None:
            return
        lineage = self._account.lineage(heard.actor)
        now = set() if lineage is None else {one.window_id for one in lineage.unpublished()}
        for window_id in (heard.unpublished_before & now) - set(heard.window_ids):
            if not any(window_id in note for note in notes):
                yield f"(named) the run does not name {window_id}, which is not published: {notes}"

    def _readers_have_what_was_run(self, heard: Heard) -> Iterator[str]:
        """A window that was run counts as published already only after a look at what readers see."""
        value, lineage = heard.value, self._account.lineage(heard.actor)
        if heard.what != "run" or heard.outcome != "done" or heard.place is None or lineage is None:
            return
        # Of a root that was moved, nobody looks at the place where the ledger says that the rows are.
        if value.content is PlanContent.COVERED or any(_ELSEWHERE in note for note in value.notes):
            return
        for window_id in heard.window_ids:
            claim = lineage.newest(window_id)
            if claim is None or claim.place is not heard.place or lineage.is_pruned(window_id):
                continue
            if missed := claim.taken - set(self._account.names_in(heard.place)):
                yield f"(delivered) {claim} was run, and readers of {heard.place} miss {_some(missed)}"

    # --- the end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """Judge the end, when all that is open was run again and all that was left is swept."""
        for lineage in self._account.lineages:
            if not lineage.is_alive:
                continue
            for claim in [*lineage.open_windows(), *lineage.unpublished()]:
                if claim not in self._account.hopeless:
                    self.problems.append(f"(end) {claim} is still not delivered")
            visible = {
                name
                for place in self._account.places
                for name in (*self._account.names_in(place), *place.by_hand)
            }
            lost = {name for claim in lineage.claims.values() for name in claim.lost}
            hopeless = {name for claim in self._account.hopeless for name in claim.taken}
            left = lineage.of_topics() - visible - lost - lineage.skipped - hopeless
            if left:
                self.problems.append(f"(end) {lineage.actor} never delivered {_some(left)}")


def _is_flagged(claim: Claim, rows: tuple[SeenRow, ...]) -> bool:
    flagged = {row.name for row in rows if row.late}
    return claim.late & claim.taken <= flagged <= claim.perhaps_late


def _some(names: set[str] | frozenset[str]) -> str:
    return str(sorted(names)[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _change(before: Counter[str], after: Counter[str]) -> str:
    return f"{_some(set(after - before))} more and {_some(set(before - after))} less"
