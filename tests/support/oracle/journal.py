"""What calls of the package were asked and what they answered: written down by whoever makes them.

A `Recorder` stands before an `OrderedWindows` and writes each call into a journal, one line when it begins and one
when it ends; a process that is killed leaves the first line only. Lines are JSON, so that journals of many
processes on one machine can be read together: their times are of one clock.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from kafka_ordered_ops import KafkaOrderedOpsError, Window, WindowPlan
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.oracle.truth import LogKey

#: Offsets as half-open ranges.
Ranges = list[list[int]]
#: One delivered record: topic, partition, offset, time in ms, whether it is flagged late.
DeliveredRow = tuple[str, int, int, int, bool]

_INT64_MIN = -(2**63)

T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """What a window asks for, as the caller said it."""

    topics: tuple[str, ...]
    exclude: tuple[str, ...]
    since_ms: int | None
    cutoff_ms: int
    sweep: bool
    out_of_orderness_ms: int | None
    committed_only: bool
    tolerates_loss: bool
    start: str | None

    @property
    def low_ms(self) -> int:
        """The first time that it asks for."""
        return _INT64_MIN if self.since_ms is None else self.since_ms

    def same_as(self, other: Question) -> bool:
        """Whether both ask for the same records; how loss is handled, and the start, may differ."""
        mine, theirs = dict(vars(self)), dict(vars(other))
        for name in ("tolerates_loss", *(["start"] if None in (self.start, other.start) else [])):
            del mine[name], theirs[name]
        return mine == theirs

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Question:
        """From a journal's line."""
        names = {name: tuple(found[name]) for name in ("topics", "exclude")}
        return cls(**{**found, **names})

    @classmethod
    def of(cls, window: Window) -> Question:
        """From what was given to the package."""
        return cls(
            topics=tuple(window.topics),
            exclude=tuple(window.exclude),
            since_ms=window.since_ms,
            cutoff_ms=window.cutoff_ms,
            sweep=window.sweep,
            out_of_orderness_ms=window.out_of_orderness_ms,
            committed_only=window.isolation.value == "read_committed",
            tolerates_loss=window.on_data_loss.value == "warn",
            start=None if window.starting_offsets is None else str(window.starting_offsets),
        )


@dataclass(frozen=True)
class Share:
    """One partition of a plan."""

    taken: frozenset[int]
    lost: frozenset[int]
    decided_end: int


@dataclass(frozen=True)
class PlanSeen:
    """A plan as a call returned it."""

    group: str
    window_id: str
    claim_id: str
    attempt: int
    status: str
    content: str
    question: Question
    shares: Mapping[LogKey, Share]

    @property
    def holds(self) -> dict[LogKey, frozenset[int]]:
        """The offsets that are the window's: those to be read, and those that are lost."""
        return {key: share.taken | share.lost for key, share in self.shares.items()}

    @classmethod
    def of(cls, plan: WindowPlan) -> PlanSeen:
        """From the public value."""
        return cls.from_json(_plan_json(plan))

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> PlanSeen:
        """From a journal's line."""
        return cls(
            **{
                name: found[name]
                for name in ("group", "window_id", "claim_id", "attempt", "status", "content")
            },
            question=Question.from_json(found["question"]),
            shares={
                LogKey(*key): Share(_offsets(taken), _offsets(lost), decided_end)
                for key, taken, lost, decided_end in found["shares"]
            },
        )


@dataclass
class Call:
    """One call: when it began and ended on the journal's clock, what it was given, what came of it."""

    actor: str
    number: int
    name: str
    asked: Mapping[str, Any]
    began: int
    #: None: the process died in it, or is still at it.
    ended: int | None = None
    plans: list[PlanSeen] = field(default_factory=list)
    #: The name of the error's class; None: it ended well, or never.
    error: str | None = None
    #: Whether the error is one of those that the package documents.
    documented: bool = True
    message: str = ""
    #: Whatever else came of it.
    told: Any = None
    #: What there was to see just before and just after; where nobody looked, nothing.
    moments: tuple[Any, Any] = (None, None)

    @property
    def went_well(self) -> bool:
        """Whether it returned."""
        return self.ended is not None and self.error is None

    def __str__(self) -> str:
        return f"{self.actor}#{self.number} {self.name} {json.dumps(self.asked, default=str)[:300]}"


class Journal:
    """Calls of one or of many processes."""

    def __init__(self, calls: Iterable[Call] = ()) -> None:
        self.calls = list(calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self.calls)

    @classmethod
    def read(cls, *paths: Path) -> Journal:
        """From the files of several recorders; a killed process may leave half a line."""
        journal = cls()
        for path in paths:
            begun: dict[int, Call] = {}
            for line in path.read_text().splitlines(keepends=True):
                if not line.endswith("}\n"):
                    continue
                found = json.loads(line)
                if "began" in found:
                    call = begun[found["number"]] = Call(**found)
                    journal.calls.append(call)
                else:
                    call = begun[found.pop("number")]
                    found["plans"] = [PlanSeen.from_json(one) for one in found["plans"]]
                    for name, value in found.items():
                        setattr(call, name, value)
        journal.calls.sort(key=lambda call: call.began)
        return journal


class Recorder:
    """An `OrderedWindows` whose calls are written down, in memory or as lines of a file.

    Whatever a call raises is written down and raised again. `clock` tells the order of calls; `look` is called
    before and after each of them, and `heard` with each call that has ended.
    """

    def __init__(
        self,
        service: OrderedWindows,
        actor: str,
        *,
        journal: Journal | None = None,
        lines: TextIO | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        look: Callable[[], Any] = lambda: None,
        heard: Callable[[Call], Any] = lambda _: None,
    ) -> None:
        self.service = service
        self.actor = actor
        self._journal = journal
        self._lines = lines
        self._clock = clock
        self._look = look
        self._heard = heard
        self._numbers = itertools.count()

    def plan(self, window: Window, window_id: str, **options: Any) -> WindowPlan:
        """Plans one window."""
        return self.plan_many([window], [window_id], **options)[0]

    def plan_many(
        self, windows: Sequence[Window], window_ids: Sequence[str], **options: Any
    ) -> list[WindowPlan]:
        """Plans windows together."""
        asked = {
            "windows": [vars(Question.of(window)) for window in windows],
            "window_ids": list(window_ids),
            "redefine": bool(getattr(options.get("policy"), "redefine", False)),
            "policy": str(options.get("policy") or ""),
        }
        return self._call(
            "plan",
            asked,
            lambda: self.service.plan_many(windows, window_ids, **options),
            plans=lambda made: made,
        )

    def commit(self, *plans: WindowPlan) -> list[WindowPlan]:
        """Commits windows in one transaction."""
        return self._call(
            "commit",
            {"plans": [_token(plan) for plan in plans]},
            lambda: self.service.commit_many(list(plans)),
            plans=lambda made: made,
        )

    def mark_written(self, plan: WindowPlan, result: Mapping[str, Any]) -> WindowPlan:
        """Says that the sink holds all of it."""
        return self._call(
            "mark_written",
            {"plans": [_token(plan)]},
            lambda: self.service.mark_written(plan, result),
            plans=lambda made: [made],
        )

    def abandon(self, window: str | WindowPlan) -> None:
        """Gives a window up, by its id or as the attempt that holds it."""
        token = {"window_id": window} if isinstance(window, str) else _token(window)
        self._call(
            "abandon",
            {"plans": [token]},
            lambda: self.service.abandon(window),
            told=lambda record: record.status.value,
        )

    def split(self, plan: WindowPlan, count: int) -> tuple[WindowPlan, ...]:
        """Shares of a window."""
        return self._call(
            "split",
            {"plans": [_token(plan)], "count": count},
            lambda: self.service.split(plan, count),
            plans=lambda made: list(made),
        )

    def report(self, part: WindowPlan, result: Mapping[str, Any]) -> None:
        """Says that a share is delivered."""
        assert part.part is not None
        self._call(
            "report",
            {"plans": [_token(part)], "part": part.part.index, "count": part.part.count},
            lambda: self.service.report(part, result),
        )

    def replay(self, window_id: str) -> WindowPlan:
        """The plan of a committed window."""
        return self._call(
            "replay",
            {"window_id": window_id},
            lambda: self.service.replay(window_id),
            plans=lambda made: [made],
        )

    def adopt(self, *, dry_run: bool = False) -> Any:
        """Takes over what happened behind the group's back."""
        return self._call(
            "adopt",
            {"dry_run": dry_run},
            lambda: self.service.adopt(dry_run=dry_run),
            told=lambda adoption: adoption.to_json(),
        )

    def prune(self, older_than: Any, *, forget: bool) -> list[str]:
        """Cuts down or forgets old windows."""
        return self._call(
            "prune",
            {"older_than_ms": round(older_than.total_seconds() * 1000), "forget": forget},
            lambda: self.service.prune(older_than, forget=forget),
            told=list,
        )

    def list(self) -> Any:
        """Every window."""
        return self._call(
            "list",
            {},
            self.service.list,
            plans=lambda records: [record.plan for record in records],
            told=lambda records: {
                record.plan.window_id: record.pruned is not None for record in records
            },
        )

    def gaps(self) -> Any:
        """Where records wait for a sweep."""
        return self._call(
            "gaps",
            {},
            self.service.gaps,
            told=lambda gaps: [
                [gap.topic, gap.times and list(gap.times), gap.offsets, gap.offsets_at_most]
                for gap in gaps
            ],
        )

    def delivered(self, plan: WindowPlan, rows: Iterable[DeliveredRow]) -> None:
        """Writes down what somebody read of a plan."""
        self.delivered_from(plan, lambda: rows)

    def delivered_from(self, plan: WindowPlan, read: Callable[[], Iterable[DeliveredRow]]) -> None:
        """Reads a plan, and writes down what came."""
        self._call(
            "delivered",
            {
                "plans": [_token(plan)],
                "first": [
                    [[part.tp.topic, part.topic_id, part.tp.partition], part.taken.first]
                    for part in plan
                    if part.taken
                ],
            },
            lambda: [list(row) for row in read()],
            told=lambda told: told,
        )

    def _call(
        self,
        name: str,
        asked: Mapping[str, Any],
        step: Callable[[], T],
        *,
        plans: Callable[[T], Iterable[WindowPlan]] = lambda _: (),
        told: Callable[[T], Any] = lambda _: None,
    ) -> T:
        before = self._look()
        call = Call(self.actor, next(self._numbers), name, asked, self._clock())
        self._write({key: vars(call)[key] for key in ("actor", "number", "name", "asked", "began")})
        raw: list[dict[str, Any]] = []
        try:
            outcome = step()
            raw = [_plan_json(plan) for plan in plans(outcome)]
            call.told = told(outcome)
        except Exception as error:
            call.error, call.message = type(error).__name__, str(error)
            call.documented = isinstance(error, KafkaOrderedOpsError)
            raise
        finally:
            call.ended = self._clock()
            call.plans = [PlanSeen.from_json(one) for one in raw]
            call.moments = before, self._look()
            ending = {
                key: vars(call)[key]
                for key in ("number", "ended", "error", "documented", "message", "told")
            }
            self._write({**ending, "plans": raw})
            if self._journal is not None:
                self._journal.calls.append(call)
            self._heard(call)
        return outcome

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._lines is not None:
            self._lines.write(json.dumps(line) + "\n")
            self._lines.flush()


def _token(plan: WindowPlan) -> dict[str, Any]:
    return {"window_id": plan.window_id, "claim_id": plan.claim_id, "attempt": plan.attempt}


def _plan_json(plan: WindowPlan) -> dict[str, Any]:
    return {
        "group": plan.group_id,
        "window_id": plan.window_id,
        "claim_id": plan.claim_id,
        "attempt": plan.attempt,
        "status": plan.status.value,
        "content": plan.content.value,
        "question": vars(Question.of(plan.window)),
        "shares": [
            [
                [part.tp.topic, part.topic_id, part.tp.partition],
                [list(one) for one in part.taken.ranges],
                [list(one) for one in part.lost.ranges],
                part.decided_end,
            ]
            for part in plan
        ],
    }


def _offsets(ranges: Ranges) -> frozenset[int]:
    return frozenset(offset for start, end in ranges for offset in range(start, end))
