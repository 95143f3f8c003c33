"""One group, in turn of our windows and of the real Parallel Consumer: each goes on exactly where the other stopped."""

from __future__ import annotations

from random import Random

import pytest

from kafka_ordered_ops import GroupHandedOverError
from kafka_ordered_ops.core.types import ProgressFormat
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic
from tests.interop.conftest import Consume
from tests.support.parallel_consumer import CommitMode
from tests.support.turns import Ending, Turns
from tests.support.windows_support import before

_PARTITIONS = 3
_ROUNDS = 20


@pytest.fixture
def turns(
    windows: OrderedWindows,
    bootstrap: str,
    topic: MakeTopic,
    consume: Consume,
    request: pytest.FixtureRequest,
) -> Turns:
    """A group and a topic of its own, without records."""
    name = topic(partitions=_PARTITIONS)
    return Turns(windows, bootstrap, name, consume, Random(request.node.name))


@pytest.mark.long
@pytest.mark.parametrize(("ending", "commit_mode"), list(zip(Ending, CommitMode, strict=True)))
def test_a_window_begins_where_the_library_stopped(
    turns: Turns, ending: Ending, commit_mode: CommitMode
) -> None:
    """A new group of windows takes exactly what the library has not acknowledged, holes included."""
    turns.write(2_000)
    turns.library(ending, turns.sample(8), commit_mode)
    turns.window(30)
    turns.window()
    assert not turns.rest


@pytest.mark.long
def test_the_library_begins_where_windows_stopped_and_hands_back(turns: Turns) -> None:
    """Windows by time leave holes; handed over, it processes exactly those, and returns the group half-way."""
    turns.write(800)
    turns.window(20)
    turns.window(40)
    assert turns.windows.migrate(ProgressFormat.PARALLEL_CONSUMER).changed
    with pytest.raises(GroupHandedOverError):
        turns.windows.plan(before(turns.topic, 60))
    turns.library(Ending.KILLED, turns.sample(8))
    turns.library(Ending.KILLED_BUSY)
    turns.write(200)
    turns.library(Ending.CLOSED, turns.sample(8))
    assert turns.windows.migrate(ProgressFormat.LEDGER).changed
    turns.window()
    assert not turns.rest


@pytest.mark.long
def test_both_run_in_turn_while_both_formats_are_written(turns: Turns) -> None:
    """Windows adopt what the library has done since, and the library what windows have, without a step between."""
    turns.write(800)
    turns.window(10)
    turns.windows.migrate(ProgressFormat.PARALLEL_CONSUMER, dual=True)
    turns.library(Ending.KILLED, turns.sample(8))
    turns.window(30)
    turns.write(200)
    turns.library(Ending.KILLED_BUSY)
    turns.window(50)
    turns.library(Ending.CLOSED)
    assert not turns.rest


@pytest.mark.long
def test_no_record_is_lost_or_taken_twice_in_random_turns(turns: Turns) -> None:
    """Twenty rounds of either, ended in any way, with moves between all formats."""
    random, windows = turns.random, turns.windows
    turns.write(200)
    turns.library(Ending.KILLED_BUSY, turns.sample(8))
    turns.window(1)
    for number in range(_ROUNDS):
        turns.write(random.randint(1, 150))
        if random.random() < 0.3:
            _migrate(windows, random.choice(list(ProgressFormat)))
        if random.random() < 0.5:
            if _format_of(windows) is ProgressFormat.PARALLEL_CONSUMER:
                _migrate(windows, random.choice([ProgressFormat.LEDGER, ProgressFormat.DUAL]))
            turns.window(2 + number + random.random())
        else:
            if _format_of(windows) is ProgressFormat.LEDGER:
                shared = [ProgressFormat.PARALLEL_CONSUMER, ProgressFormat.DUAL]
                _migrate(windows, random.choice(shared))
            turns.library(
                random.choice(list(Ending)),
                turns.sample(random.randint(0, 8)),
                random.choice(list(CommitMode)),
            )
    _migrate(windows, ProgressFormat.LEDGER)
    turns.window()
    assert not turns.rest


def _format_of(windows: OrderedWindows) -> ProgressFormat:
    state = windows.state()
    assert state is not None
    return state.format


def _migrate(windows: OrderedWindows, to: ProgressFormat) -> None:
    if to is ProgressFormat.DUAL:
        windows.migrate(ProgressFormat.LEDGER, dual=True)
    else:
        windows.migrate(to)
    assert _format_of(windows) is to
