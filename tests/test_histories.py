"""Random histories in memory, judged call by call by an oracle that knows nothing but the guarantees."""

from __future__ import annotations

import logging

import pytest
from hypothesis import settings

from kafka_ordered_ops.core import scan_fold
from tests.memory_world import MemoryWorld
from tests.oracle.histories import History, history, problems_of, smaller
from tests.oracle.plain import MemoryPlain

#: Hundreds by day, thousands in the nightly profile.
HISTORIES = 3 * settings().max_examples
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
def test_random_histories_keep_every_promise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, piece: int
) -> None:
    """Anything that can happen to a group, in any order, also between a look and its claim."""
    # Chunks of two records, so that short logs have many.
    monkeypatch.setattr(scan_fold, "CHUNK_RECORDS", 2)
    caplog.set_level(logging.CRITICAL)
    for seed in range(piece, HISTORIES, PIECES):
        told = history(seed)
        assert not live(told), failure_of(told)
