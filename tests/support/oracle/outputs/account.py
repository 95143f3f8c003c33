"""What the judge knows: the places with what their readers see, and the groups with what they have promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kafka_ordered_ops.core.types import TopicPartition
from tests.support.oracle.outputs import verbs
from tests.support.oracle.outputs.lineage import Claim, Lineage
from tests.support.oracle.outputs.roots import Roots, Seen
from tests.support.oracle.outputs.steps import Actor
from tests.support.oracle.outputs.world import Clusters, Place, Produced


class Account:
    """All that was produced, promised and seen in a history."""

    def __init__(self, clusters: Clusters, roots: Roots, actors: Sequence[Actor]) -> None:
        self.clusters = clusters
        self.roots = roots
        self.places: list[Place] = []
        #: All that there ever were; at most one of an actor is alive.
        self.lineages: list[Lineage] = []
        #: Where each window of an actor is to be delivered.
        self.meant: dict[Actor, dict[str, Place]] = {actor: {} for actor in actors}
        #: The offsets of each actor's group, when it was looked at last.
        self.committed: dict[Actor, Mapping[TopicPartition, int]] = {actor: {} for actor in actors}
        #: What the readers of each place see.
        self.seen: dict[Place, Seen] = {}
        #: Claims that can never be published: somebody took the stage away, and retention the records.
        self.hopeless: set[Claim] = set()

    # --- what is known ----------------------------------------------------------------------------

    def lineage(self, actor: Actor) -> Lineage | None:
        """Return an actor's group as its present ledger knows it; None before its first window."""
        return next((one for one in self.lineages if one.actor == actor and one.is_alive), None)

    def claims(self) -> Iterator[Claim]:
        """Yield all claims that were ever made."""
        for lineage in self.lineages:
            yield from lineage.claims.values()

    def produced(self, name: str) -> Produced | None:
        """Return a record by its name."""
        found = (cluster.produced.get(name) for cluster in self.clusters)
        return next((one for one in found if one is not None), None)

    def names_in(self, place: Place) -> Counter[str]:
        """Return how often readers of a place see each record."""
        return Counter(row.name for rows in self.seen[place].values() for row in rows)

    # --- looking ----------------------------------------------------------------------------------

    def look(self, place: Place) -> set[str]:
        """Return the records that readers of a place see now."""
        seen = self.roots.seen(place.path)
        return {row.name for rows in seen.values() for row in rows}

    def observe(self) -> None:
        """Read what readers see, and what the ledgers list."""
        self.seen = {place: self.roots.seen(place.path) for place in self.places}
        for actor in self.meant:
            self._observe(actor)
            self.committed[actor] = self.clusters[actor.cluster].committed(actor.group)

    def _observe(self, actor: Actor) -> None:
        cluster = self.clusters[actor.cluster]
        ledger_id, lineage = cluster.ledger_id(actor.ledger), self.lineage(actor)
        if lineage is not None and lineage.ledger_id != ledger_id:
            lineage.end()
            lineage = None
            self.meant[actor].clear()
        if ledger_id is None:
            return
        windows = self.clusters.observer(actor, ledger_id)
        records = windows.list()
        named = verbs.unpublished(windows)
        if lineage is None:
            if not records:
                return
            lineage = Lineage(actor, ledger_id, cluster.truth, self.meant[actor])
            self.lineages.append(lineage)
        lineage.observe(records, named, self.committed[actor], self.clusters.now_ms)

    # --- what people do to places -----------------------------------------------------------------

    def new_place(self) -> Place:
        """Return a root that nobody has used."""
        place = Place(f"place {len(self.places)}", self.roots.new())
        self.places.append(place)
        self.seen[place] = {}
        return place

    def moved(self, place: Place, path: str, *, with_control: bool) -> None:
        """Take in that a root was moved: its readers follow."""
        place.path = path
        if not with_control:
            place.owners, place.is_bereft = set(), True
            place.lose_hidden()

    def copied(self, place: Place, path: str, *, with_control: bool) -> None:
        """Take in that a root was copied: the copy has readers of its own."""
        copy = Place(f"place {len(self.places)}, a copy of {place}", path, set(place.must))
        copy.hidden = set(place.hidden)
        if with_control:
            copy.owners = set(place.owners)
        else:
            copy.lose_hidden()
        self.places.append(copy)
        for claim in self.claims():
            if place in claim.shown_in:
                claim.shown_in.add(copy)

    def removed(self, place: Place, folder: str | None) -> None:
        """Take in that somebody deletes a window's folder, or a root with all that is stored beside it."""
        rows = self.seen[place] if folder is None else {folder: self.seen[place][folder]}
        names = {row.name for found in rows.values() for row in found}
        if folder is None:
            # With what was staged there.
            names |= {name for one in self.claims() if one.place is place for name in one.taken}
            place.owners, place.is_bereft = set(), True
            place.lose_hidden()
        place.by_hand |= names
        place.must -= names
