"""Calls whose order is known, one by one against `docs/guarantees.md`.

A `Judge` is given each call as it ends; what another process does inside a call is given before it. It keeps the
group as it must be (`group.Group`) and writes down what is wrong, each with the number of the guarantee.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.support.oracle.bench import show
from tests.support.oracle.group import Held
from tests.support.oracle.journal import Call
from tests.support.oracle.planning import PlanJudge
from tests.support.oracle.refusals import Refusals
from tests.support.oracle.truth import LogKey
from tests.support.oracle.verdict import wrong_rows


class Judge(PlanJudge):
    """One group whose every call is seen."""

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

    def _mark_written(self, call: Call) -> None:
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
                5, f"{plan.window_id}: replayed as {show(plan)}, committed as {show(held.plan)}"
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

    def _gaps(self, call: Call) -> None:
        """Each record that was looked at and waits between windows is in the row of its gap, or of unknown times."""
        group = self.group
        if group.definition is None:
            assert not call.told
            return
        told: dict[tuple[str, tuple[int, int] | None], tuple[int, int]] = {}
        for topic, times, surely, at_most in call.told:
            told[topic, None if times is None else (times[0], times[1])] = surely, at_most
        waiting: Counter[tuple[str, tuple[int, int] | None]] = Counter()
        seen: Counter[tuple[str, tuple[int, int] | None]] = Counter()
        bare: Counter[str] = Counter()
        topics = {key.topic for key in group.origin}
        topics = {one for one in topics - group.recreated(topics) if group.is_certain(one)}
        for key in [key for key in group.origin if key.topic in topics]:
            rows = self.truth.logs[key].visible(committed_only=bool(group.definition[1]))
            looked_at = max((one.surely.get(key, 0) for one in group.frozen.values()), default=0)
            held = group.done[key] | group.claimed(key)
            bare[key.topic] += self._moment(1).bounds.get(key, (0, 0, 0))[2] - len(rows)
            for offset, row in rows.items():
                gap = group.gap_of(key, row.time_ms)
                if gap is not None and offset >= group.origin[key] and offset not in held:
                    waiting[key.topic, gap] += 1
                    seen[key.topic, gap] += offset < looked_at
        for (topic, gap), count in seen.items():
            at_most = sum(told.get((topic, one), (0, 0))[1] for one in (gap, None))
            if at_most < count:
                self._wrong(4, f"{count} records of {topic} wait in {gap}, and gaps has {told}")
        for (topic, gap), (surely, _) in told.items():
            # An offset without a record counts with those around it.
            if topic in topics and surely > waiting[topic, gap] + bare[topic]:
                self._wrong(
                    4, f"gaps has {told}, where {waiting[topic, gap]} records wait in {gap}"
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
                    5, f"{window_id} is listed as {show(plan)}, planned as {show(held.plan)}"
                )
