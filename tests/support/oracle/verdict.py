"""Logs and journals of many processes against `docs/guarantees.md`, whoever was killed in between.

For a group in which everything was done by plans, commits and abandonments at once, in an order that is known only
as far as one call ended before another began. At the end `settle` finishes what is open and takes the rest; `verdict`
then says what is wrong, each line with the number of the guarantee that it breaks. Call it with all journals:

    truth = Truth(BrokerPlain(bootstrap), [topic]).look()
    windows = settle(recorder, [topic], cutoff)
    assert not verdict(truth.look(), Journal.read(*folder.glob("*.jsonl")), windows)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kafka_ordered_ops import Earliest, Window
from kafka_ordered_ops.core.types import OnDataLoss
from tests.support.oracle.journal import Call, DeliveredRow, Journal, PlanSeen, Recorder, Share
from tests.support.oracle.plain import Row
from tests.support.oracle.truth import LogKey, Truth

#: Kafka's timestamp of a record that has none.
NO_TIMESTAMP: Final = -1

OPEN: Final = frozenset({"planned", "written"})
DONE: Final = frozenset({"committed", "published"})

#: What a process may be told when others work on its windows, or when brokers die under it.
STORM_ERRORS: Final = frozenset(
    {
        "BrokerUnreachableError",
        "CommitUnknownError",
        "LedgerUnavailableError",
        "ReadTimeoutError",
        "WindowFencedError",
        "WindowSupersededError",
    }
)


def settle(
    recorder: Recorder, topics: Sequence[str], cutoff: datetime, *, in_intervals: bool = False
) -> list[PlanSeen]:
    """Takes up and commits what is open, takes all that is left before a cutoff, and lists every window."""
    for record in recorder.list():
        if record.status.is_open:
            recorder.commit(recorder.plan(record.plan.window, record.plan.window_id))
    rest = Window(
        list(topics),
        cutoff,
        starting_offsets=Earliest(),
        sweep=in_intervals,
        on_data_loss=OnDataLoss.WARN,
        allow_future_cutoff=True,
    )
    recorder.commit(recorder.plan(rest, "the-rest-of-it"))
    return [PlanSeen.of(record.plan) for record in recorder.list()]


def verdict(
    truth: Truth,
    journal: Journal,
    windows: Sequence[PlanSeen],
    *,
    origins: Mapping[LogKey, int] | None = None,
    allowed_errors: Collection[str] = STORM_ERRORS,
) -> list[str]:
    """What is wrong, best first; empty when every guarantee held.

    Args:
        truth: the topics of the group, read after everything has ended.
        journal: what all processes were told.
        windows: all windows of the group at the end, none of them open.
        origins: where the group began; from the start of each log when left out.
        allowed_errors: by class name; any other one is a failure.
    """
    return list(_Verdict(truth, journal, windows, origins or {}, allowed_errors).problems())


def first_missing(offsets: Collection[int], start: int) -> int:
    """The first offset from `start` on that is not among them."""
    while start in offsets:
        start += 1
    return start


def visible_rows(truth: Truth, plan: PlanSeen) -> dict[LogKey, dict[int, Row]]:
    """The records that readers of a plan are given, by log and offset."""
    found = {}
    for key, share in plan.shares.items():
        log = truth.logs.get(key)
        rows = {} if log is None else log.visible(committed_only=plan.question.committed_only)
        found[key] = {offset: rows[offset] for offset in sorted(share.taken) if offset in rows}
    return found


@dataclass
class _Claim:
    """One claim, and between which moments it was made; as far as anybody was told."""

    plan: PlanSeen
    after: int
    before: int
    is_abandoned: bool = False


class _Verdict:
    def __init__(
        self,
        truth: Truth,
        journal: Journal,
        windows: Sequence[PlanSeen],
        origins: Mapping[LogKey, int],
        allowed_errors: Collection[str],
    ) -> None:
        self._truth = truth
        self._journal = journal
        self._windows = windows
        self._origins = origins
        self._allowed = allowed_errors
        self._done = [plan for plan in windows if plan.status in DONE]
        self._claims = _claims_of(journal, windows)
        #: Who holds each offset at the end.
        self._holders: dict[LogKey, dict[int, list[PlanSeen]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for plan in self._done:
            for key, offsets in plan.holds.items():
                for offset in offsets:
                    self._holders[key][offset].append(plan)

    def problems(self) -> Iterator[str]:
        yield from self._errors()
        yield from self._one_plan_for_a_claim()
        yield from self._one_try_for_an_attempt()
        yield from self._acknowledged()
        yield from self._each_record_once()
        yield from self._committed_offsets()
        yield from self._only_what_was_asked()
        yield from self._nothing_left_out()
        yield from self._deliveries()

    def _errors(self) -> Iterator[str]:
        for call in self._journal:
            if call.error is not None and not (call.documented and call.error in self._allowed):
                yield f"(22) {call}: {call.error}: {call.message}"

    def _one_plan_for_a_claim(self) -> Iterator[str]:
        seen = [
            plan
            for call in self._journal
            if call.name in ("plan", "commit", "mark_written", "replay", "list")
            for plan in call.plans
            if plan.shares
        ]
        for plan in [*seen, *(one for one in self._windows if one.shares)]:
            first = self._claims[plan.claim_id].plan
            if plan.holds != first.holds:
                yield f"(5) {_name(plan)}: attempt {plan.attempt} holds other offsets than attempt {first.attempt}"

    def _one_try_for_an_attempt(self) -> Iterator[str]:
        owners: dict[tuple[str, int], Call] = {}
        for call in self._journal:
            for plan in call.plans if call.name == "plan" else ():
                if plan.status not in OPEN:
                    continue
                other = owners.setdefault((plan.claim_id, plan.attempt), call)
                if other is not call:
                    yield f"(11) {_name(plan)}: attempt {plan.attempt} was given to {other} and to {call}"

    def _acknowledged(self) -> Iterator[str]:
        by_id = {plan.window_id: plan for plan in self._windows}
        for plan in self._windows:
            if plan.status in OPEN:
                yield f"(4) {_name(plan)} is open: settle the group before it is judged"
        for call in self._journal:
            if call.name != "commit" or not call.went_well:
                continue
            for token in call.asked["plans"]:
                found = by_id.get(token["window_id"])
                if found is None or (found.claim_id, found.status in DONE) != (
                    token["claim_id"],
                    True,
                ):
                    yield f"(10) {token}: the commit was acknowledged to {call.actor}, and it is {found and found.status}"

    def _each_record_once(self) -> Iterator[str]:
        for key, holders in self._holders.items():
            for offset, plans in holders.items():
                if len(plans) > 1:
                    yield f"(1) {key} offset {offset} is in {[_name(plan) for plan in plans]}"
        committed_only = all(plan.question.committed_only for plan in self._windows)
        for key, log in self._truth.logs.items():
            if self._truth.topic_ids.get(key.topic) != key.topic_id:
                continue
            origin = self._origins.get(key, 0)
            missing = [
                offset
                for offset in log.visible(committed_only=committed_only)
                if offset >= origin and offset not in self._holders[key]
            ]
            if missing:
                yield f"(4) {key}: {len(missing)} visible records are in no window: {missing[:20]}"

    def _committed_offsets(self) -> Iterator[str]:
        if not self._done:
            return
        committed = self._truth.plain.committed(self._done[0].group)
        for key in {key for plan in self._done for key in plan.shares}:
            if self._truth.topic_ids.get(key.topic) != key.topic_id:
                continue
            origin = self._origins.get(key, self._truth.logs[key].start)
            expected = first_missing(self._holders[key], origin)
            found = committed.get((key.topic, key.partition))
            if found != expected:
                yield f"(15) {key}: the committed offset is {found}, and the first one not done {expected}"

    def _only_what_was_asked(self) -> Iterator[str]:
        for plan in self._done:
            asked = plan.question
            for key, rows in visible_rows(self._truth, plan).items():
                for offset, row in rows.items():
                    own = asked.low_ms <= row.time_ms < asked.cutoff_ms
                    late = row.time_ms < asked.low_ms and self._frozen(plan, key, row, None)
                    is_untimed = asked.since_ms is not None and row.time_ms == NO_TIMESTAMP
                    if is_untimed or not (own or late):
                        yield f"(3) {_name(plan)} holds {key} offset {offset}, stamped {row.time_ms}: not asked for"

    def _nothing_left_out(self) -> Iterator[str]:
        """Whoever took a record of a window's times did so before the window was planned."""
        if any(call.name == "abandon" and not self._tells_offsets(call) for call in self._journal):
            return
        freed: dict[LogKey, set[int]] = defaultdict(set)
        for claim in self._claims.values():
            for key, offsets in claim.plan.holds.items():
                freed[key] |= offsets if claim.is_abandoned else frozenset()
        for claim in self._claims.values():
            asked = claim.plan.question
            for key, share in claim.plan.shares.items():
                if key not in self._truth.logs:
                    continue
                rows = self._truth.logs[key].visible(committed_only=asked.committed_only)
                for offset, row in rows.items():
                    if not (asked.low_ms <= row.time_ms < asked.cutoff_ms) or offset in freed[key]:
                        continue
                    if not self._origins.get(key, 0) <= offset < share.decided_end:
                        continue
                    for holder in self._holders[key][offset]:
                        other = self._claims[holder.claim_id]
                        if other is not claim and other.after > claim.before:
                            yield f"(2) {_name(claim.plan)} left out {key} offset {offset}, which {_name(holder)} took later"

    def _tells_offsets(self, call: Call) -> bool:
        """Whether it is known which claim was abandoned."""
        return all(
            any(claim.plan.window_id == token["window_id"] for claim in self._claims.values())
            for token in call.asked["plans"]
        )

    def _deliveries(self) -> Iterator[str]:
        for call in self._journal:
            if call.name != "delivered" or not call.went_well:
                continue
            [token] = call.asked["plans"]
            claim = self._claims.get(token["claim_id"])
            if claim is None:
                continue
            rows: list[DeliveredRow] = [tuple(row) for row in call.told]
            yield from wrong_rows(self._truth, claim.plan, rows)
            for topic, partition, offset, time_ms, late in rows:
                key = next(
                    one
                    for one in claim.plan.shares
                    if (one.topic, one.partition) == (topic, partition)
                )
                row = Row(time_ms, None, committed=True)
                if claim.plan.question.low_ms > time_ms:
                    if not late:
                        yield f"(6) {_name(claim.plan)}: {key} offset {offset} is stamped before the interval, and not flagged"
                    continue
                if late and not self._frozen(claim.plan, key, row, offset):
                    yield f"(6) {_name(claim.plan)}: {key} offset {offset} is flagged late, and no window of its time looked only below it"
                if not late and self._surely_frozen(claim, key, row, offset):
                    yield f"(6) {_name(claim.plan)}: {key} offset {offset} is late and not flagged"

    def _frozen(self, plan: PlanSeen, key: LogKey, row: Row, offset: int | None) -> bool:
        """Whether a window may have been planned before for a record's time, below its offset."""
        mine = self._claims[plan.claim_id]
        return any(
            other is not mine
            and other.after <= mine.before
            and _speaks_of(other.plan, key, row.time_ms, offset)
            for other in self._claims.values()
        )

    def _surely_frozen(self, mine: _Claim, key: LogKey, row: Row, offset: int) -> bool:
        return any(
            other is not mine
            and not other.is_abandoned
            and other.before < mine.after
            and _speaks_of(other.plan, key, row.time_ms, offset)
            for other in self._claims.values()
        )


def wrong_rows(truth: Truth, plan: PlanSeen, rows: Sequence[DeliveredRow]) -> Iterator[str]:
    """Whether delivered rows are the plan's visible records, each once, in total order."""
    expected = {
        (row.time_ms, key.topic, key.partition, offset)
        for key, found in visible_rows(truth, plan).items()
        for offset, row in found.items()
    }
    told = [(time_ms, topic, partition, offset) for topic, partition, offset, time_ms, _ in rows]
    if told != sorted(told):
        yield f"(18) {_name(plan)}: the rows are in no order of time, topic, partition, offset"
    if len(set(told)) != len(told):
        yield f"(17) {_name(plan)}: rows came twice"
    # Compaction may have taken a record before it was read, or after.
    surplus = {row for row in set(told) - expected if not _was_compacted(truth, plan, row)}
    if expected - set(told) or surplus:
        yield f"(17) {_name(plan)}: missing {sorted(expected - set(told))[:10]}, surplus {sorted(surplus)[:10]}"


def _was_compacted(truth: Truth, plan: PlanSeen, row: tuple[int, str, int, int]) -> bool:
    _, topic, partition, offset = row
    return any(
        offset in share.taken and offset in truth.logs[key].compacted
        for key, share in plan.shares.items()
        if (key.topic, key.partition) == (topic, partition) and key in truth.logs
    )


def _speaks_of(plan: PlanSeen, key: LogKey, time_ms: int, offset: int | None) -> bool:
    share: Share | None = plan.shares.get(key)
    asked = plan.question
    return (
        share is not None
        and asked.low_ms <= time_ms < asked.cutoff_ms
        and (offset is None or offset >= share.decided_end)
    )


def _claims_of(journal: Journal, windows: Sequence[PlanSeen]) -> dict[str, _Claim]:
    """Every claim that anybody was told of; one whose maker was killed is bounded by who saw it first."""
    begun: dict[str, int] = {}
    for call in journal:
        for window_id in call.asked["window_ids"] if call.name == "plan" else ():
            begun[window_id] = min(call.began, begun.get(window_id, call.began))
    last = max((call.ended or call.began for call in journal), default=0)
    claims: dict[str, _Claim] = {}
    for call in sorted(journal, key=lambda one: one.ended or last):
        for plan in call.plans if call.name in ("plan", "list", "commit", "replay") else ():
            if plan.claim_id in claims or not plan.claim_id:
                continue
            is_new = call.name == "plan" and plan.attempt == 1
            after = call.began if is_new else begun.get(plan.window_id, 0)
            claims[plan.claim_id] = _Claim(plan, after, call.ended or last)
    for plan in windows:
        claims.setdefault(plan.claim_id, _Claim(plan, begun.get(plan.window_id, 0), last))
    kept = {plan.claim_id for plan in windows if plan.status in DONE | OPEN}
    for claim_id, claim in claims.items():
        claim.is_abandoned = claim_id not in kept
    return claims


def _name(plan: PlanSeen) -> str:
    return f"{plan.window_id}/{plan.claim_id[:6]}"
