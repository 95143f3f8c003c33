"""Random histories that end in what readers see, judged by an oracle that knows nothing but the promises to them."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

from kafka_ordered_ops.core.group import checks, transitions
from kafka_ordered_ops.core.group.decisions import pruning
from kafka_ordered_ops.core.group.group_state import GroupState, GroupView
from kafka_ordered_ops.core.planning.time_map import TimeMap
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.window.plan import PartitionPlan
from kafka_ordered_ops.output import cleaning, places, root_check
from kafka_ordered_ops.output.objects import publisher
from kafka_ordered_ops.output.roots import locking, ownership
from kafka_ordered_ops.windows.upkeep import maintenance
from tests.support.broker_world import BrokerWorld
from tests.support.examples import BY_DAY
from tests.support.oracle.outputs.child import InProcesses
from tests.support.oracle.outputs.life import live
from tests.support.oracle.outputs.memory import failure_of, live_in_memory
from tests.support.oracle.outputs.roots import FolderRoots
from tests.support.oracle.outputs.steps import VERBS, history
from tests.support.oracle.plain import BrokerPlain

#: Histories of `make test`, in pieces; and of `make nightly`, in so many processes.
HISTORIES, PIECES = 16, 4
HISTORIES_BY_NIGHT, PROCESSES = 5_000, 2
#: What a process prints of a history that fails.
_FAILED = re.compile(r"^(\d+): ", re.MULTILINE)

IS_NIGHT = settings().max_examples > BY_DAY


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("piece", range(PIECES))
def test_readers_keep_what_they_saw(caplog: pytest.LogCaptureFixture, piece: int) -> None:
    """Whatever people and processes do, readers see each committed record once, for good, and exactly flagged."""
    caplog.set_level(logging.CRITICAL)
    for seed in range(piece, HISTORIES, PIECES):
        told = history(seed)
        assert not live_in_memory(told).problems, failure_of(told)


@pytest.mark.skipif(
    not IS_NIGHT, reason="thousands of histories take more than a quarter of an hour"
)
@pytest.mark.timeout(7_200)
def test_readers_keep_what_they_saw_all_night(tmp_path: Path) -> None:
    """The same, in thousands of histories; the command that repeats a failing one is its module and its seed."""
    share = (HISTORIES_BY_NIGHT - HISTORIES) // PROCESSES
    starts = [HISTORIES + number * share for number in range(PROCESSES)]
    command = [sys.executable, "-m", "tests.support.oracle.outputs"]
    logs = [tmp_path / f"{start}.log" for start in starts]
    running = []
    for start, log in zip(starts, logs, strict=True):
        with log.open("w") as out:
            seeds = f"{start}-{start + share - 1}"
            running.append(subprocess.Popen([*command, seeds], stdout=out, stderr=out))
    codes = [one.wait() for one in running]
    told = "".join(log.read_text() for log in logs)
    failed = [int(seed) for seed in _FAILED.findall(told)]
    assert not failed, f"{len(failed)} fail: {failed[:50]}\n" + failure_of(history(failed[0]))
    assert codes == [0] * PROCESSES, told[-2_000:]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_histories_are_full_of_life(caplog: pytest.LogCaptureFixture) -> None:
    """Every verb comes to its end in some histories, and processes die in all that takes more than a moment."""
    caplog.set_level(logging.CRITICAL)
    outcomes = Counter[tuple[str, str]]()
    for seed in range(1_000, 1_080):
        outcomes += live_in_memory(history(seed)).outcomes
    ended = {what for what, outcome in outcomes if outcome == "done"}
    killed = {what for what, outcome in outcomes if outcome == "killed"}
    assert ended >= VERBS
    assert killed >= {"run", "stage", "parts", "many", "replay", "clean"}
    assert outcomes["run", "done"] > 3 * outcomes["run", "refused"]


# --- faults that are put back --------------------------------------------------------------------


def _anybody_may_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ownership, places, publisher):
        monkeypatch.setattr(module, "check_may_replace", lambda *_, **__: None)


class _Unnoticed(tuple[str, ...]):
    """Windows that are there for whoever lists them, and for nobody who asks for one."""

    def __contains__(self, _: object) -> bool:
        return False


def _what_waits_is_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = checks.known_state

    def known(view: GroupView) -> GroupState:
        state = exact(view)
        return replace(state, unpublished=_Unnoticed(state.unpublished))

    monkeypatch.setattr(pruning, "known_state", known)
    # Whoever chooses the windows leaves them out as well: there, nothing is taken away from the old ones.
    monkeypatch.setattr(maintenance, "set", lambda _: frozenset(), raising=False)


def _times_of_late_records_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(part: PartitionPlan, times: TimeRange) -> TimeMap:
        return TimeMap.between(part.taken | part.lost, times)

    monkeypatch.setattr(transitions, "claimed_times", own)


def _nobody_heals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locking, "heal", lambda *_: False)
    for module in (locking, root_check, cleaning):
        monkeypatch.setattr(module, "heal_others", lambda *_: None)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("wrong", "rule", "found_by"),
    [
        (_anybody_may_replace, "(stays)", 28),
        (_what_waits_is_pruned, "(owed)", 10),
        (_times_of_late_records_forgotten, "(3)", 213),
        (_nobody_heals, "(stays)", 89),
    ],
    ids=[
        "anybody may replace what readers see",
        "windows that readers do not see yet are pruned",
        "abandoned late records have the interval's times",
        "nobody heals a replacement that died",
    ],
)
def test_a_fault_that_is_put_back_is_found(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wrong: Callable[[pytest.MonkeyPatch], None],
    rule: str,
    found_by: int,
) -> None:
    """By a history that finds it, of those of `make nightly`; should the histories change, by one of `make test`."""
    caplog.set_level(logging.CRITICAL)
    wrong(monkeypatch)
    found = (live_in_memory(history(seed)).problems for seed in (found_by, *range(HISTORIES)))
    assert any(problem.startswith(rule) for problems in found for problem in problems)


# --- on a broker ---------------------------------------------------------------------------------


def _check_on_broker(bootstrap: str, seed: int, base: Path) -> Counter[tuple[str, str]]:
    told = history(seed, in_store=False, one_cluster=True)
    folders = FolderRoots(str(base / str(seed)), exchanges=told.exchanges)

    def make(suffix: str) -> tuple[BrokerWorld, BrokerPlain]:
        return BrokerWorld(bootstrap, suffix=suffix), BrokerPlain(bootstrap)

    with folders.opened():
        found = live(told, make, folders, uuid.uuid4().hex[:8], InProcesses)
    assert not found.problems, "\n".join([*found.problems, str(told), *found.transcript])
    return found.outcomes


@pytest.mark.long
@pytest.mark.timeout(600)
def test_readers_keep_what_processes_that_end_for_real_have_shown(
    bootstrap: str, tmp_path: Path
) -> None:
    """The same histories on a broker; a process that dies is one of its own, and dies by ``kill -9``."""
    outcomes = _check_on_broker(bootstrap, 2, tmp_path)
    assert any(outcome == "killed" for _, outcome in outcomes)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_readers_keep_it_in_fifty_histories_on_a_broker(bootstrap: str, tmp_path: Path) -> None:
    """The same, for longer."""
    outcomes = sum((_check_on_broker(bootstrap, seed, tmp_path) for seed in range(50)), Counter())
    assert sum(count for (_, outcome), count in outcomes.items() if outcome == "killed") >= 20
