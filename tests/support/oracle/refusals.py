"""Whether a call was refused for a reason, as `docs/errors.md` and `docs/troubleshooting.md` give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.support.oracle.group import Group, Held
from tests.support.oracle.journal import Call, Question
from tests.support.oracle.truth import LogKey


class Refusals:
    """One call that raised an error, and the group as it was."""

    def __init__(self, group: Group, call: Call) -> None:
        self._group = group
        self._call = call
        self._before, self._after = call.moments

    def is_right(self) -> bool:
        """Whether there is a reason for this error, in this call."""
        assert self._call.error is not None
        reasons: dict[str, Callable[[], bool]] = {
            "ForeignCommitError": self._moved,
            "TopicRecreatedError": self._recreated,
            "UnknownTopicError": self._unknown_topic,
            "RecordsLostError": self._lost,
            "WindowMismatchError": self._mismatch,
            "GroupMismatchError": self._other_group,
            "WindowRewoundError": lambda: any(
                one.status == "rewound" and self._still_done(one) for one in self._named()
            ),
            "WindowPrunedError": lambda: any(one.is_pruned for one in self._named()),
            "FewerRecordsError": self._fewer,
            "UnknownWindowError": self._unknown_window,
            "WindowSupersededError": self._superseded,
            "PartsMissingError": lambda: any(
                one.parts is not None and len(one.parts[1]) < one.parts[0] for one in self._named()
            ),
            "PlanError": self._beyond_the_end,
        }
        reason = reasons.get(self._call.error)
        return reason is not None and reason()

    def _named(self) -> Iterator[Held]:
        """The windows that the call is about, as far as there are any."""
        asked = self._call.asked
        names = [one["window_id"] for one in asked.get("plans", ())]
        names += [
            *asked.get("window_ids", ()),
            *([asked["window_id"]] if "window_id" in asked else []),
        ]
        for name in names:
            if (held := self._group.windows.get(name)) is not None:
                yield held

    def _questions(self) -> list[Question]:
        return [Question.from_json(one) for one in self._call.asked.get("windows", ())]

    def _still_done(self, held: Held) -> bool:
        return any(
            share.taken & self._group.done.get(key, set())
            for key, share in held.plan.shares.items()
        )

    def _keys(self) -> set[LogKey]:
        keys = {key for held in self._named() for key in held.plan.shares}
        for asked in self._questions():
            keys |= set(self._group.truth.matching(asked.topics, asked.exclude))
        return keys

    def _moved(self) -> bool:
        """Somebody has committed; on a topic that was recreated nobody else's commit means anything either."""
        return bool(self._before.moved or self._after.moved) or any(
            key.topic in self._after.recreated
            and (key.topic, key.partition) in self._after.committed
            for key in self._group.committed
        )

    def _recreated(self) -> bool:
        now = self._group.truth.topic_ids
        return bool(self._group.recreated({key.topic for key in self._keys()})) or any(
            now.get(key.topic, key.topic_id) != key.topic_id
            for held in self._named()
            for key in held.plan.shares
        )

    def _unknown_topic(self) -> bool:
        now = self._group.truth.topic_ids
        literal = {name for one in self._questions() for name in one.topics if name[0] != "^"}
        held = {key.topic for one in self._named() for key in one.plan.shares}
        nothing = any(
            not self._group.truth.matching(one.topics, one.exclude) for one in self._questions()
        )
        return nothing or bool((literal | held) - now.keys())

    def _lost(self) -> bool:
        start = self._after.start
        # A reader may have the plan of an older attempt, or of a claim that was given up or forgotten since.
        if any(first < start(LogKey(*key)) for key, first in self._call.asked.get("first", ())):
            return True
        for held in self._named():
            if (held.status == "planned" or self._call.name == "replay") and any(
                offset < start(key) for key, one in held.plan.shares.items() for offset in one.taken
            ):
                return True
        named = {held.plan.window_id: held for held in self._named()}
        for asked, name in zip(
            self._questions(), self._call.asked.get("window_ids", ()), strict=True
        ):
            # Written down as lost by an attempt that allowed it; this one does not.
            if not asked.tolerates_loss and name in named and self._has_lost(named[name]):
                return True
        known = self._keys() & self._group.origin.keys()
        return bool(self._questions()) and any(self._group.lost(key, start(key)) for key in known)

    def _fewer(self) -> bool:
        """Whether a window that was delivered before, and rewound, has lost records."""
        names = self._call.asked.get("window_ids", ())
        again = [
            name
            for name in names
            if name in self._group.delivered
            or ((held := self._group.windows.get(name)) and held.status == "rewound")
        ]
        start = self._after.start
        held_lost = any(
            held.plan.window_id in again
            and (
                self._has_lost(held)
                or any(
                    offset < start(key)
                    for key, one in held.plan.shares.items()
                    for offset in one.taken
                )
            )
            for held in self._named()
        )
        known = self._keys() & self._group.origin.keys()
        return held_lost or (
            bool(again) and any(self._group.lost(key, start(key)) for key in known)
        )

    def _has_lost(self, held: Held) -> bool:
        return held.status == "planned" and any(one.lost for one in held.plan.shares.values())

    def _mismatch(self) -> bool:
        asked = self._call.asked
        for question, name in zip(self._questions(), asked.get("window_ids", ()), strict=True):
            held = self._group.windows.get(name)
            if held is not None and not held.plan.question.same_as(question):
                return True
            gone = self._group.forgotten.get(name)
            if held is None and gone is not None and not gone.same_as(question):
                return True
        # Split otherwise, or not at all.
        return self._call.name in ("split", "report") and any(
            held.parts is None or held.parts[0] != asked["count"] for held in self._named()
        )

    def _other_group(self) -> bool:
        known = self._group.definition
        if known is None or self._call.asked["redefine"]:
            return False
        return any(
            known[1:] != (asked.committed_only, asked.topics, asked.exclude)
            or (not asked.sweep and known[0] not in (None, _mode(asked)))
            for asked in self._questions()
        )

    def _unknown_window(self) -> bool:
        if self._call.name == "adopt":
            return not self._group.attempts
        if self._call.name == "replay":
            return not any(held.is_done for held in self._named())
        return len(list(self._named())) < len(self._call.asked["plans"])

    def _superseded(self) -> bool:
        if self._call.name == "plan":
            return False
        for token in self._call.asked["plans"]:
            held = self._group.windows.get(token["window_id"])
            if held is None:
                continue
            if self._call.name == "abandon" and (held.is_done or "claim_id" not in token):
                return held.is_done
            if not held.is_owned_by(token["claim_id"], token["attempt"]):
                return True
        return False

    def _beyond_the_end(self) -> bool:
        return any(
            key in self._group.origin
            and self._group.base(key) > self._after.bounds.get(key, (0, 0, 0))[2]
            for key in self._keys()
        )


def _mode(asked: Question) -> str:
    return "catch up" if asked.since_ms is None else "interval"
