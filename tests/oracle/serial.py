"""Calls whose order is known, one by one against `docs/guarantees.md`.

A `Judge` is given each call as it ends; what another process does inside a call is given before it. It keeps the
group as it must be (`group.Group`) and writes down what is wrong, each with the number of the guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.oracle.group import Group, Held
from tests.oracle.journal import Call, PlanSeen, Question
from tests.oracle.refusals import Refusals
from tests.oracle.truth import LogKey, Truth
from tests.oracle.verdict import DONE, wrong_rows

#: A record stamped further ahead of the clock ends no scan.
FUTURE_MS: Final = 3_600_000


@dataclass(frozen=True)
class Moment:
    """What there was to see just before a call, or just after it."""

    #: Of each log: (start, stable end, end).
    bounds: Mapping[LogKey, tuple[int, int, int]]
    committed: Mapping[tuple[str, int], int]
    #: Committed offsets that are not where the group left them.
    moved: Mapping[LogKey, int]
    #: Topics that are not those that the group knows.
    recreated: frozenset[str]
    now_ms: int

    def start(self, key: LogKey) -> int:
        """Where a log begins."""
        return self.bounds.get(key, (0, 0, 0))[0]

    def end(self, key: LogKey, *, committed_only: bool) -> int:
        """Where readers of an isolation end; never below the start."""
        start, stable_end, end = self.bounds.get(key, (0, 0, 0))
        return max(stable_end if committed_only else end, start)


class Judge:
    """One group whose every call is seen."""

    def __init__(self, truth: Truth, group: str, now_ms: Callable[[], int]) -> None:
        self.truth = truth
        self.group = Group(truth)
        self.problems: list[str] = []
        self._name = group
        self._now_ms = now_ms
        self._call: Call | None = None
        #: Whether something may have happened to the topics since they were read.
        self.is_stale = True

    def look(self) -> Moment:
        """What there is to see now."""
        if self.is_stale:
            self.truth.look()
            self.is_stale = False
        committed = self.truth.plain.committed(self._name)
        return Moment(
            self.truth.bounds(),
            committed,
            self.group.moved_by_others(committed),
            frozenset(self.group.recreated({key.topic for key in self.group.origin})),
            self._now_ms(),
        )

    def hear(self, call: Call) -> None:
        """Judges one call; all that ended before it were given before it."""
        self._call = call
        if not call.documented:
            self._wrong(22, f"{call.error}: {call.message[:300]}")
        elif call.error is not None:
            if not Refusals(self.group, call).is_right():
                self._wrong(0, f"refused for no reason: {call.error}: {call.message[:300]}")
        else:
            getattr(self, f"_{call.name}")(call)

    def end(self, *, committed_only: bool) -> None:
        """Judges the end, when every window is committed or abandoned and all that was left is swept."""
        self._call = None
        group = self.group
        for held in group.windows.values():
            if held.is_open:
                self._wrong(4, f"window {held.plan.window_id} is still open")
        for key in group.origin:
            if self.truth.topic_ids.get(key.topic) != key.topic_id:
                continue
            rows = self.truth.logs[key].visible(committed_only=committed_only)
            left = [one for one in rows if one >= group.origin[key] and one not in group.done[key]]
            if left:
                self._wrong(4, f"{key}: visible records in no window: {left}")

    # --- planning ---------------------------------------------------------------------------------

    def _plan(self, call: Call) -> None:
        asked = [Question.from_json(one) for one in call.asked["windows"]]
        fresh: list[tuple[PlanSeen, Question]] = []
        for plan, question, window_id in zip(
            call.plans, asked, call.asked["window_ids"], strict=True
        ):
            if plan.window_id != window_id:
                self._wrong(5, f"{window_id} was asked for, and {plan.window_id} came")
            held = self.group.windows.get(plan.window_id)
            if held is not None and (held.is_open or held.is_done):
                self._taken_up(held, plan, question)
            else:
                if held is not None:
                    self._planned_again(held)
                fresh.append((plan, question))
        if fresh:
            self._planned([plan for plan, _ in fresh], fresh[0][1], call)

    def _planned_again(self, held: Held) -> None:
        if held.status == "rewound" and self._still_done(held.plan):
            self._wrong(5, f"{held.plan.window_id} was planned anew, and some of it is still done")

    def _still_done(self, plan: PlanSeen) -> bool:
        return any(
            share.taken & self.group.done.get(key, set()) for key, share in plan.shares.items()
        )

    def _taken_up(self, held: Held, plan: PlanSeen, asked: Question) -> None:
        before, after = held.plan, self._moment(1)
        if not before.question.same_as(asked):
            self._wrong(5, f"another question under the id {plan.window_id} was answered")
        if plan.claim_id != before.claim_id or plan.holds != before.holds:
            self._wrong(
                5, f"{plan.window_id}: other offsets than before: {_show(before)}, {_show(plan)}"
            )
            return
        if held.is_done:
            if plan.status not in DONE:
                self._wrong(
                    12, f"{plan.window_id} is {held.status}, and its plan says {plan.status}"
                )
            return
        if after.recreated & {key.topic for key in plan.shares}:
            self._wrong(16, f"{plan.window_id} was taken up on a topic that was recreated")
        if plan.attempt <= before.attempt:
            self._wrong(
                11, f"{plan.window_id}: attempt {plan.attempt} after attempt {before.attempt}"
            )
        for key, share in plan.shares.items():
            gone = {one for one in before.shares[key].taken if one < after.start(key)}
            newly_lost = share.lost - before.shares[key].lost
            if held.status == "planned" and newly_lost != gone:
                self._wrong(
                    8, f"{plan.window_id}: {key} lost {sorted(gone)}, told {sorted(newly_lost)}"
                )
            if newly_lost and not asked.tolerates_loss:
                self._wrong(
                    8, f"{plan.window_id}: lost {sorted(newly_lost)} of {key} without an error"
                )
        if held.status == "planned":
            held.parts = None
        held.plan, held.touched_ms = plan, self._moment(0).now_ms

    def _planned(self, plans: list[PlanSeen], asked: Question, call: Call) -> None:
        group, before, after = self.group, self._moment(0), self._moment(1)
        if after.moved:
            self._wrong(16, f"planned although others moved {dict(after.moved)}")
        topics = {key.topic for plan in plans for key in plan.shares}
        if recreated := group.recreated(topics):
            self._wrong(16, f"planned although {recreated} were recreated")
            return
        keys = set(plans[0].shares)
        wanted = self.truth.matching(asked.topics, asked.exclude)
        seen_before = {key for key in wanted if key in before.bounds}
        if not seen_before <= keys <= set(wanted):
            self._wrong(2, f"partitions {sorted(map(str, keys))} for {sorted(map(str, wanted))}")
        self._define(asked, call)
        # All of them before any begins: the first partition of a topic is no sibling of the others.
        origins = {key: self._origin(key, asked) for key in sorted(keys) if key not in group.origin}
        known_topics = {key[:2] for key in group.origin}
        for key, origin in origins.items():
            self._begin(key, origin, is_later=key[:2] in known_topics)
        group.patterns |= {one for one in asked.topics if one.startswith("^")}
        self._check_ends(plans)
        wanted_lost = {
            key: self._lost_for_sure(key, [plan.question for plan in plans]) for key in keys
        }
        for plan in plans:
            self._planned_one(plan)
        for key, must in wanted_lost.items():
            told = {offset for plan in plans for offset in plan.shares[key].lost}
            if must - told:
                self._wrong(
                    8, f"{plans[0].window_id}: {key} lost {sorted(must - told)}, and nobody is told"
                )

    def _define(self, asked: Question, call: Call) -> None:
        group, mine = self.group, definition_of(asked)
        known = group.definition
        if known is None or call.asked["redefine"] or not group.origin:
            group.definition = mine if mine[0] or known is None else (known[0], *mine[1:])
        elif known[0] is None:
            group.definition = (mine[0], *known[1:])
        elif not same_definition(known, mine):
            self._wrong(16, f"the group is {known}, and a window that is {mine} was planned")

    def _origin(self, key: LogKey, asked: Question) -> int:
        group, moment = self.group, self._moment(0)
        start, end = moment.start(key), moment.end(key, committed_only=asked.committed_only)
        known = any(other[:2] == key[:2] for other in group.origin)
        matched = key.topic not in asked.topics and bool(group.patterns & set(asked.topics))
        if known or matched or asked.start in (None, "earliest"):
            return start
        if asked.start == "latest":
            return end
        if asked.start == "committed":
            return moment.committed.get((key.topic, key.partition), start)
        assert asked.start is not None
        return max(min(int(asked.start.removeprefix("offset:")), end), start)

    def _begin(self, key: LogKey, origin: int, *, is_later: bool) -> None:
        committed = self._moment(0).committed.get((key.topic, key.partition))
        if is_later or self.group.patterns:
            self.group.begin(key, origin, committed)
        else:
            self.group.origin[key], self.group.done[key] = origin, set()
            self.group.committed[key] = committed

    def _check_ends(self, plans: list[PlanSeen]) -> None:
        asked, before, after = plans[0].question, self._moment(0), self._moment(1)
        for key in plans[0].shares:
            ends = {plan.shares[key].decided_end for plan in plans}
            low = before.end(key, committed_only=asked.committed_only)
            high = after.end(key, committed_only=asked.committed_only)
            if len(ends) > 1 or max(ends) > high:
                self._wrong(9, f"{key} was looked at up to {sorted(ends)}, and ends at {high}")
            if min(ends) >= low:
                continue
            row = self.truth.logs[key].visible(committed_only=asked.committed_only).get(min(ends))
            if asked.lateness_ms is None or row is None:
                self._wrong(2, f"{key} was looked at up to {min(ends)}, and ends at {low}")
                continue
            stop_ms = max(plan.question.cutoff_ms for plan in plans) + asked.lateness_ms
            if not stop_ms <= row.time_ms < after.now_ms + FUTURE_MS:
                self._wrong(2, f"{key}: the scan stopped at {min(ends)}, stamped {row.time_ms}")

    def _planned_one(self, plan: PlanSeen) -> None:
        group, asked = self.group, plan.question
        held = Held(plan, plan.status, self._moment(0).now_ms)
        if plan.status != "planned" or plan.attempt != 1 or plan.claim_id in group.attempts:
            self._wrong(
                5, f"{plan.window_id} is planned anew as {plan.status}, attempt {plan.attempt}"
            )
        group.attempts[plan.claim_id] = 1
        for key, share in plan.shares.items():
            claimed = group.claimed(key)
            if share.taken & share.lost or (share.taken | share.lost) & (claimed | group.done[key]):
                both = (share.taken | share.lost) & (claimed | group.done[key])
                self._wrong(1, f"{plan.window_id}: {key} {sorted(both)} are in another window")
            if below := [one for one in share.taken | share.lost if one < group.origin[key]]:
                self._wrong(2, f"{plan.window_id}: {key} {below} lie below the group's start")
            self._check_share(held, key, claimed)
            if share.lost and not asked.tolerates_loss:
                self._wrong(
                    8, f"{plan.window_id}: lost {sorted(share.lost)} of {key} without an error"
                )
            if wrong := share.lost - group.lost(key, self._moment(1).start(key)):
                self._wrong(
                    8, f"{plan.window_id}: {key} {sorted(wrong)} are told as lost, and are not"
                )
        self._check_content(plan)
        group.windows[plan.window_id] = held
        group.freeze(plan)

    def _check_share(self, held: Held, key: LogKey, claimed: set[int]) -> None:
        group, plan = self.group, held.plan
        asked, share = plan.question, plan.shares[key]
        start = self._moment(1).start(key)
        rows = self.truth.logs[key].visible(committed_only=asked.committed_only)
        for offset, row in rows.items():
            if offset in share.taken:
                if not group.wants(asked, key, row, surely=False):
                    self._wrong(
                        3,
                        f"{plan.window_id} takes {key} {offset} stamped {row.time_ms}, which it does not ask for",
                    )
                if group.is_late(key, offset, row.time_ms, surely=True):
                    held.late.add((key, offset))
                if group.is_late(key, offset, row.time_ms, surely=False):
                    held.perhaps_late.add((key, offset))
            elif (
                max(group.origin[key], start) <= offset < share.decided_end
                and offset not in group.done[key]
                and offset not in claimed
                and group.wants(asked, key, row, surely=True)
            ):
                number = 2 if asked.since_ms is None else 3
                self._wrong(
                    number, f"{plan.window_id} leaves out {key} {offset} stamped {row.time_ms}"
                )

    def _check_content(self, plan: PlanSeen) -> None:
        if any(plan.holds.values()):
            if plan.content != "records":
                self._wrong(7, f"{plan.window_id} holds offsets and is {plan.content}")
            return
        covered = {
            self.group.covers(plan.shares, plan.question, surely=surely) for surely in (True, False)
        }
        if (plan.content == "covered") not in covered or plan.content == "records":
            self._wrong(7, f"{plan.window_id} is {plan.content}, and covered: {covered}")

    def _lost_for_sure(self, key: LogKey, asked: Iterable[Question]) -> set[int]:
        group = self.group
        lost = group.lost(key, self._moment(1).start(key))
        first = next(iter(asked))
        rows = self.truth.logs[key].visible(committed_only=first.committed_only)
        return {
            offset
            for offset in lost & rows.keys()
            if any(group.wants(one, key, rows[offset], surely=True) for one in asked)
        }

    # --- what follows a plan ------------------------------------------------------------------------

    def _commit(self, call: Call) -> None:
        group, moment = self.group, self._moment(0)
        waiting: list[Held] = []
        for token in call.asked["plans"]:
            held = group.windows.get(token["window_id"])
            if held is None or not held.is_owned_by(token["claim_id"], token["attempt"]):
                self._wrong(11, f"{token} was committed, and is not the newest attempt")
            elif held.is_open:
                waiting.append(held)
        for held in waiting:
            if held.parts and len(held.parts[1]) < held.parts[0]:
                self._wrong(21, f"{held.plan.window_id} was committed without all of its parts")
            topics = {key.topic for key in held.plan.shares}
            if group.recreated(topics):
                self._wrong(16, f"{held.plan.window_id} was committed on a recreated topic")
        if waiting and moment.moved:
            self._wrong(16, f"committed although others moved {dict(moment.moved)}")
        for held in waiting:
            group.commit(held, self._moment(0).now_ms)
        if waiting:
            self._check_committed()

    def _check_committed(self) -> None:
        committed = self._moment(1).committed
        for key in self.group.origin:
            if self.truth.topic_ids.get(key.topic) != key.topic_id:
                continue
            found, base = committed.get((key.topic, key.partition)), self.group.base(key)
            # Without a window with the topic that was committed there may be none.
            if found != base and (found is not None or key[:2] in self.group.settled):
                self._wrong(
                    15, f"{key}: the committed offset is {found}, and the first not done {base}"
                )

    def _abandon(self, call: Call) -> None:
        for token in call.asked["plans"]:
            held = self.group.windows.get(token["window_id"])
            if held is None or held.is_done:
                self._wrong(10, f"{token} was abandoned, and is {held and held.status}")
            elif held.is_open:
                if "claim_id" in token and not held.is_owned_by(
                    token["claim_id"], token["attempt"]
                ):
                    self._wrong(11, f"{token} abandoned what a newer attempt owns")
                self.group.abandon(held)

    def _write_down(self, call: Call) -> None:
        [token] = call.asked["plans"]
        held = self._owned(token)
        if held is not None and held.is_open:
            if held.parts and len(held.parts[1]) < held.parts[0]:
                self._wrong(21, f"{token} was written down without all of its parts")
            held.status, held.touched_ms = "written", self._moment(0).now_ms

    def _split(self, call: Call) -> None:
        [token] = call.asked["plans"]
        held = self._owned(token)
        if held is None:
            return
        for key, share in held.plan.shares.items():
            parts = [one.shares[key].taken for one in call.plans if key in one.shares]
            if sorted(offset for part in parts for offset in part) != sorted(share.taken):
                self._wrong(21, f"{token}: the parts of {key} are not the whole")
        if held.status == "planned" and held.parts is None:
            held.parts, held.touched_ms = (call.asked["count"], set()), self._moment(0).now_ms

    def _report(self, call: Call) -> None:
        [token] = call.asked["plans"]
        held = self._owned(token)
        if held is None or held.status != "planned":
            return
        if held.parts is None or held.parts[0] != call.asked["count"]:
            self._wrong(21, f"{token} reported a part that it was not split into")
            return
        held.parts[1].add(call.asked["part"])
        held.touched_ms = self._moment(0).now_ms
        if len(held.parts[1]) == held.parts[0]:
            held.status = "written"

    def _owned(self, token: Mapping[str, Any]) -> Held | None:
        held = self.group.windows.get(token["window_id"])
        if held is None or not held.is_owned_by(token["claim_id"], token["attempt"]):
            self._wrong(11, f"{token} is not the newest attempt, and was let through")
            return None
        return held

    def _replay(self, call: Call) -> None:
        [plan] = call.plans
        held = self.group.windows.get(call.asked["window_id"])
        if held is None or not held.is_done or held.is_pruned:
            self._wrong(5, f"{plan.window_id} was replayed, and is {held and held.status}")
            return
        if plan.holds != held.plan.holds:
            self._wrong(
                5, f"{plan.window_id}: replayed as {_show(plan)}, committed as {_show(held.plan)}"
            )
        for key, share in plan.shares.items():
            if any(offset < self._moment(1).start(key) for offset in share.taken):
                self._wrong(8, f"{plan.window_id}: replayed, and some of {key} is gone")

    def _delivered(self, call: Call) -> None:
        [token] = call.asked["plans"]
        held = self.group.windows.get(token["window_id"])
        if held is None or held.plan.claim_id != token["claim_id"]:
            return
        rows = [(row[0], row[1], row[2], row[3], row[4]) for row in call.told]
        self.problems += [
            f"{problem} :: {call}" for problem in wrong_rows(self.truth, held.plan, rows)
        ]
        keys = {(key.topic, key.partition): key for key in held.plan.shares}
        for topic, partition, offset, time_ms, late in rows:
            place = keys[topic, partition], offset
            if late and place not in held.perhaps_late:
                self._wrong(
                    6,
                    f"{token['window_id']}: {place[0]} {offset} stamped {time_ms} is flagged late and is not",
                )
            if not late and place in held.late:
                self._wrong(
                    6,
                    f"{token['window_id']}: {place[0]} {offset} stamped {time_ms} is late and not flagged",
                )

    # --- keeping ------------------------------------------------------------------------------------

    def _adopt(self, call: Call) -> None:
        if call.asked["dry_run"]:
            return
        told, moment, group = call.told, self._moment(0), self.group
        expected = []
        rewound: set[str] = set()
        recreated = group.recreated({key.topic for key in group.origin})
        for key in sorted(group.origin):
            if key.topic in recreated:
                continue
            end = moment.end(key, committed_only=bool(group.definition and group.definition[1]))
            base = group.base(key)
            if key not in moment.bounds:
                continue
            if (found := moment.moved.get(key)) is None:
                continue
            to = min(found, end)
            if to < base:
                rewound |= group.cut(key, to)
                expected.append([key.topic, key.partition, "back", base, to])
            else:
                group.done[key] |= set(range(group.origin[key], to))
                expected.append([key.topic, key.partition, "forward", base, group.base(key)])
            group.settled.add(key[:2])
        abandoned = {
            window_id
            for window_id, held in group.windows.items()
            if held.is_open and {key.topic for key in held.plan.shares} & recreated
        }
        for topic in recreated:
            expected += self._begin_again(topic)
        for window_id in rewound:
            group.windows[window_id].status = "rewound"
        for window_id in abandoned:
            group.windows[window_id].status = "abandoned"
            group.frozen.pop(group.windows[window_id].plan.claim_id, None)
        found_moves = [
            [one[name] for name in ("topic", "partition", "cause", "base_before", "base_after")]
            for one in told["moved"]
        ]
        if sorted(found_moves) != sorted(expected):
            self._wrong(14, f"adopted {sorted(found_moves)}, where {sorted(expected)} had moved")
        if (set(told["rewound"]), set(told["abandoned"])) != (rewound, abandoned):
            self._wrong(14, f"told {told}, where {rewound} are rewound and {abandoned} abandoned")
        if expected:
            group.restore_committed()
            self._check_committed()

    def _begin_again(self, topic: str) -> list[list[Any]]:
        group, moment = self.group, self._moment(0)
        new_id = self.truth.topic_ids[topic]
        moved = []
        for old in sorted(key for key in group.origin if key.topic == topic):
            new = LogKey(topic, new_id, old.partition)
            base = group.base(old)
            del group.origin[old], group.done[old], group.committed[old]
            if new in moment.bounds:
                start = moment.start(new)
                group.origin[new], group.done[new], group.committed[new] = start, set(), None
                group.settled.add(new[:2])
                moved.append([topic, old.partition, "recreated", base, start])
        return moved

    def _prune(self, call: Call) -> None:
        for window_id in call.told:
            held = self.group.windows.get(window_id)
            if held is None:
                # Forgotten by another process meanwhile.
                continue
            if held.is_open:
                self._wrong(14, f"{window_id} was pruned, and is {held.status}")
                continue
            age_ms = self._moment(0).now_ms - max(held.touched_ms, held.committed_ms)
            if age_ms <= call.asked["older_than_ms"]:
                self._wrong(14, f"{window_id} was pruned {age_ms} ms after it ended")
            held.is_pruned = True
            if call.asked["forget"]:
                self.group.forget_window(window_id)

    def _list(self, call: Call) -> None:
        found = {plan.window_id: plan for plan in call.plans}
        if found.keys() != self.group.windows.keys():
            self._wrong(10, f"listed {sorted(found)}, where {sorted(self.group.windows)} are known")
            return
        for window_id, held in self.group.windows.items():
            plan = found[window_id]
            if (plan.status, plan.attempt, plan.claim_id) != (
                held.status,
                held.plan.attempt,
                held.plan.claim_id,
            ):
                self._wrong(
                    10,
                    f"{window_id} is {plan.status}/{plan.attempt}, and must be {held.status}/{held.plan.attempt}",
                )
            if not held.is_pruned and plan.holds != held.plan.holds:
                self._wrong(
                    5, f"{window_id} is listed as {_show(plan)}, planned as {_show(held.plan)}"
                )

    # --- inside -------------------------------------------------------------------------------------

    def _moment(self, which: int) -> Moment:
        assert self._call is not None
        moment: Moment = self._call.moments[which]
        return moment

    def _wrong(self, guarantee: int, what: str) -> None:
        self.problems.append(f"({guarantee}) {what} :: {self._call}")


def definition_of(asked: Question) -> tuple[object, ...]:
    """Mode, isolation, topics and what they leave out."""
    mode = None if asked.sweep else "catch up" if asked.since_ms is None else "interval"
    return mode, asked.committed_only, asked.topics, asked.exclude


def same_definition(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Whether two definitions agree; a sweep has no mode."""
    return one[1:] == other[1:] and (None in (one[0], other[0]) or one[0] == other[0])


def _show(plan: PlanSeen) -> str:
    return str({str(key): sorted(offsets) for key, offsets in plan.holds.items()})
