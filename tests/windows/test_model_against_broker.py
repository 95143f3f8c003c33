"""The model in memory is held true: the same scripts run on it and on a real broker, with the same outcome."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from kafka_ordered_ops.core.planning import scan_fold
from tests.support.broker_world import BrokerWorld
from tests.support.examples import examples
from tests.support.memory_world import MemoryWorld
from tests.support.migration_scripts import SCRIPTS
from tests.support.scripts import Script
from tests.support.walks import wander
from tests.support.window_machine import WindowMachine


def transcript_of(world: MemoryWorld | BrokerWorld, script: Script) -> list[object]:
    """What a script saw."""
    with world:
        script(world)
        return list(world.transcript)


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_sees_the_same_in_memory_and_on_a_broker(bootstrap: str, name: str) -> None:
    """Plans, records, errors and their facts, committed offsets, states: step by step."""
    on_broker = transcript_of(BrokerWorld(bootstrap), SCRIPTS[name])
    in_memory = transcript_of(MemoryWorld(), SCRIPTS[name])
    assert in_memory == on_broker


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_random_walk_sees_the_same_in_memory_and_on_a_broker(bootstrap: str, seed: int) -> None:
    """Forty steps of anything."""
    walk = partial(wander, seed=seed, steps=40)
    assert transcript_of(MemoryWorld(), walk) == transcript_of(BrokerWorld(bootstrap), walk)


# Long enough for a failure to be made small.
@pytest.mark.long
@pytest.mark.timeout(900)
def test_windows_in_memory_are_what_brute_force_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens in whatever order: each record once, in the right window, and exact progress."""
    # Chunks of two records, so that short logs have many.
    monkeypatch.setattr(scan_fold, "CHUNK_RECORDS", 2)
    run_state_machine_as_test(
        WindowMachine, settings=settings(max_examples=examples(60), stateful_step_count=30)
    )
