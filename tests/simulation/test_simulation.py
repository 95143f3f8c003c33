"""Histories of several processes on a Kafka that loses, delays and doubles answers; a seed decides all of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from tests.simulation.clients import patched
from tests.simulation.histories import History, live
from tests.simulation.mutants import MUTANTS, Mutant

#: By night, one for fifteen of `test_protocol.py`, which are faster.
HISTORIES = int(os.environ.get("SIMULATED_HISTORIES", "240")) // 15
PIECES = 4
#: A wrong protocol that its history does not find any more is found within so many.
FOUND_WITHIN = 500


@pytest.fixture(autouse=True)
def simulated(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.MonkeyPatch]:
    """What is below the package's code is simulated; a test may patch more."""
    caplog.set_level(logging.CRITICAL)
    with patched() as monkeypatch:
        yield monkeypatch


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("piece", range(PIECES))
def test_histories_keep_every_guarantee(piece: int) -> None:
    """Whatever dies, comes late or is lost: each record is delivered, visible and once, and progress never goes down."""
    for seed in range(piece, HISTORIES, PIECES):
        outcome = live(History.of(seed))
        assert outcome.problem is None, str(outcome)


def test_histories_are_full_of_life() -> None:
    """Processes die, answers are lost and late, topics are recreated, and others come first, in a handful of histories."""
    outcomes = [live(History.of(seed)) for seed in (*range(6, 14), 29, 162)]
    told = {line.strip() for outcome in outcomes for line in outcome.told}
    assert sum(outcome.crashes for outcome in outcomes) >= 3
    assert told >= {"lost", "late", "unanswered", "twice", "refused: FENCED"}
    assert told >= {"TopicRecreatedError", "UnknownTopicError"}
    assert any(": exchange " in line for line in told)
    assert {outcome.history.exchanges for outcome in outcomes if outcome.history.folder} == {
        True,
        False,
    }


@pytest.mark.parametrize("seed", [3, 162])
def test_a_history_repeats(seed: int) -> None:
    """A seed is a history: told again, it is the same to the last command, in a store and in a folder."""
    first, again = (live(History.of(seed)) for _ in range(2))
    assert first.told == again.told
    assert f"python -m tests.simulation {seed}" in str(first)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_wrong_protocol_is_found(simulated: pytest.MonkeyPatch, mutant: Mutant) -> None:
    """A protocol that is wrong by one thing breaks a guarantee in some history."""
    mutant.put(simulated)
    assert any(
        live(History.of(seed)).problem is not None
        for seed in (mutant.found_by, *range(FOUND_WITHIN))
    )
