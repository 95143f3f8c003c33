"""Calls of the package by processes that may die, and what the judge hears of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from kafka_ordered_ops import OrderedWindows
from tests.support.oracle.outputs.account import Account
from tests.support.oracle.outputs.judge import Heard, Judge
from tests.support.oracle.outputs.kills import Killed, Ports
from tests.support.oracle.outputs.steps import Kill

#: What one process does with its service.
Act = Callable[[OrderedWindows], Any]


class Processes:
    """Lets processes act, one after the other; each has a service of its own.

    Args:
        account: what the judge knows.
        judge: hears of every call.
    """

    def __init__(self, account: Account, judge: Judge) -> None:
        self._account = account
        self._judge = judge
        self.ports = Ports(judge.moment)
        #: How often each kind of call ended in which way.
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.transcript: list[str] = []

    def call(self, heard: Heard, act: Act, kill: Kill | None = None) -> Heard:
        """Let a process act; return what came of it, which the judge has heard."""
        account = self._account
        heard.before = {place: account.names_in(place) for place in account.places}
        heard.hidden_before = {place: set(place.hidden) for place in account.places}
        lineage = account.lineage(heard.actor)
        if lineage is not None:
            heard.unpublished_before = frozenset(one.window_id for one in lineage.unpublished())
        if heard.place is not None:
            for window_id in heard.window_ids:
                account.meant[heard.actor].setdefault(window_id, heard.place)
        committed = account.committed[heard.actor]
        self._act(heard, act, kill)
        if lineage is not None and (heard.outcome == "done" or heard.stored):
            if heard.what in ("adopt", "migrate"):
                lineage.adopted(committed)
            elif heard.what == "reset":
                lineage.reset(account.clusters[heard.actor.cluster].committed(heard.actor.group))
        self._judge.after(heard)
        self.outcomes[heard.what, heard.outcome] += 1
        self.transcript.append(f"    {heard}")
        return heard

    def _act(self, heard: Heard, act: Act, kill: Kill | None) -> None:
        with self._account.clusters.open(heard.actor) as windows, self.ports.process(kill) as one:
            try:
                heard.value = act(windows)
            except Killed:
                heard.outcome = "killed"
            except Exception as error:  # noqa: BLE001 - the judge says whether it may be
                heard.outcome, heard.error = "refused", error
            heard.stored = one.stored
