"""Plans whose order is known: what each of them takes, leaves out and says, against `docs/guarantees.md`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.support.oracle.bench import Bench, show
from tests.support.oracle.group import Held
from tests.support.oracle.journal import Call, PlanSeen, Question
from tests.support.oracle.truth import LogKey
from tests.support.oracle.verdict import DONE

#: A record stamped further ahead of the clock ends no scan.
FUTURE_MS: Final = 3_600_000


class PlanJudge(Bench):
    """Judges plans: new ones, and those that are taken up."""

    def _plan(self, call: Call) -> None:
        asked = [Question.from_json(one) for one in call.asked["windows"]]
        fresh: list[tuple[PlanSeen, Question]] = []
        for plan, question, window_id in zip(
            call.plans, asked, call.asked["window_ids"], strict=True
        ):
            if plan.window_id != window_id:
                self._wrong(5, f"{window_id} was asked for, and {plan.window_id} came")
            held = self.group.windows.get(plan.window_id)
            if held is None and plan.window_id in self.group.forgotten:
                self._recalled(plan, question)
            elif held is not None and (held.is_open or held.is_done):
                self._taken_up(held, plan, question)
            else:
                if held is not None:
                    self._planned_again(held)
                fresh.append((plan, question))
        if fresh:
            self._planned([plan for plan, _ in fresh], fresh[0][1], call)

    def _recalled(self, plan: PlanSeen, asked: Question) -> None:
        """A window that was delivered and forgotten is covered, and takes nothing."""
        if not self.group.forgotten[plan.window_id].same_as(asked):
            self._wrong(5, f"another question under the forgotten id {plan.window_id} was answered")
        if (plan.content, plan.status) != ("covered", "committed") or plan.shares:
            self._wrong(
                7,
                f"{plan.window_id} was forgotten, and is {plan.status} {plan.content}: {show(plan)}",
            )
        now_ms = self._moment(0).now_ms
        held = Held(plan, "committed", now_ms, now_ms, is_pruned=True)
        self.group.windows[plan.window_id] = held

    def _planned_again(self, held: Held) -> None:
        if held.status == "rewound":
            self.group.delivered.add(held.plan.window_id)
        if held.status == "rewound" and self._still_done(held.plan):
            self._wrong(5, f"{held.plan.window_id} was planned again, and some of it is still done")

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
                5, f"{plan.window_id}: other offsets than before: {show(before)}, {show(plan)}"
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
            if asked.out_of_orderness_ms is None or row is None:
                self._wrong(2, f"{key} was looked at up to {min(ends)}, and ends at {low}")
                continue
            stop_ms = max(plan.question.cutoff_ms for plan in plans) + asked.out_of_orderness_ms
            if not stop_ms <= row.time_ms < after.now_ms + FUTURE_MS:
                self._wrong(2, f"{key}: the scan stopped at {min(ends)}, stamped {row.time_ms}")

    def _planned_one(self, plan: PlanSeen) -> None:
        group, asked = self.group, plan.question
        held = Held(plan, plan.status, self._moment(0).now_ms)
        if plan.status != "planned" or plan.attempt != 1 or plan.claim_id in group.attempts:
            self._wrong(
                5, f"{plan.window_id} is planned again as {plan.status}, attempt {plan.attempt}"
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
                # Of another time than the interval's, or written after a window of its time was planned.
                is_early = asked.since_ms is not None and row.time_ms < asked.since_ms
                if is_early or group.is_late(key, offset, row.time_ms, surely=True):
                    held.late.add((key, offset))
                if is_early or group.is_late(key, offset, row.time_ms, surely=False):
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


def definition_of(asked: Question) -> tuple[object, ...]:
    """Mode, isolation, topics and what they leave out."""
    mode = None if asked.sweep else "catch up" if asked.since_ms is None else "interval"
    return mode, asked.committed_only, asked.topics, asked.exclude


def same_definition(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Whether two definitions agree; a sweep has no mode."""
    return one[1:] == other[1:] and (None in (one[0], other[0]) or one[0] == other[0])
