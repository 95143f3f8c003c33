"""Random histories in memory, judged call by call by an oracle that knows nothing but the guarantees."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from kafka_ordered_ops.core.group import checks, transitions
from kafka_ordered_ops.core.planning import planning
from kafka_ordered_ops.core.planning.time_map import TimeMap
from kafka_ordered_ops.core.time_ranges import LateSteps, TimeRange, TimeSplit
from kafka_ordered_ops.core.window.plan import PartitionPlan
from tests.support.examples import examples
from tests.support.memory_world import MemoryWorld
from tests.support.oracle.histories import History, history, smaller
from tests.support.oracle.life import problems_of
from tests.support.oracle.plain import MemoryPlain

#: Twenty by day, thousands by night.
HISTORIES = examples(100, by_day=20)
PIECES = 4


def live(told: History, transcript: list[str] | None = None) -> list[str]:
    """What was wrong in a history."""
    world = MemoryWorld()
    with world:
        return problems_of(told, world, MemoryPlain(world.kafka), transcript=transcript)


def failure_of(told: History) -> str:
    """A failing history, made as small as it goes, with what its calls were told."""
    [number, *_] = live(told)[0].split(")")

    def fails_alike(shorter: History) -> bool:
        problems = live(shorter)
        return bool(problems) and problems[0].startswith(number)

    small = smaller(told, fails_alike)
    transcript: list[str] = []
    problems = live(small, transcript)
    return "\n".join([f"seed {told.seed}:", *problems[:5], str(small), "", *transcript])


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("piece", range(PIECES))
def test_random_histories_keep_every_promise(caplog: pytest.LogCaptureFixture, piece: int) -> None:
    """Anything that can happen to a group, in any order, also between a look and its claim."""
    caplog.set_level(logging.CRITICAL)
    for seed in range(piece, HISTORIES, PIECES):
        told = history(seed)
        assert not live(told), failure_of(told)


def _any_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "check_owned", lambda record, plan: None)


def _late_one_offset_later(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = LateSteps.mask
    monkeypatch.setattr(LateSteps, "mask", lambda self, at, ms: exact(self, at - 1, ms))


def _cutoffs_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = TimeSplit.labels
    monkeypatch.setattr(TimeSplit, "labels", lambda self, ms: exact(self, ms - 1))


def _late_by_offset_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LateSteps, "in_interval", lambda self, since_ms: self)


def _times_of_late_records_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(part: PartitionPlan, times: TimeRange) -> TimeMap:
        return TimeMap.between(part.taken | part.lost, times)

    monkeypatch.setattr(transitions, "claimed_times", own)


def _intervals_take_untimed_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "without_untimed", lambda times: [times])


@pytest.mark.parametrize(
    ("wrong", "guarantee"),
    [
        (_any_attempt, "(11)"),
        (_late_one_offset_later, "(6)"),
        (_late_by_offset_alone, "(6)"),
        (_cutoffs_inclusive, "(3)"),
        (_times_of_late_records_forgotten, "(3)"),
        (_intervals_take_untimed_records, "(3)"),
    ],
    ids=[
        "any attempt commits",
        "late one offset later",
        "late by the offset alone",
        "cutoffs inclusive",
        "abandoned late records have the interval's times",
        "intervals take records without a timestamp",
    ],
)
def test_what_is_wrong_by_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wrong: Callable[[pytest.MonkeyPatch], None],
    guarantee: str,
) -> None:
    """A package that is broken a little fails by the guarantee that it breaks, within a few histories."""
    caplog.set_level(logging.CRITICAL)
    wrong(monkeypatch)
    found = (live(history(seed)) for seed in range(100))
    assert any(problem.startswith(guarantee) for problems in found for problem in problems)
