"""Histories in memory: clusters of the package's model, folders or an object store, and a seed for every name."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Final
from unittest.mock import patch

from kafka_ordered_ops.output.writing import stage
from tests.support.memory_world import MemoryWorld
from tests.support.oracle.outputs.life import Told, live
from tests.support.oracle.outputs.roots import FolderRoots, StoreRoots
from tests.support.oracle.outputs.steps import History, smaller
from tests.support.oracle.plain import MemoryPlain, Plain
from tests.support.worlds import World

#: A folder in memory, where there is one: what is written there need not reach a disk.
_IN_MEMORY: Final = Path("/dev/shm")

#: The same in each run: what comes first in a listing depends on names.
_SUFFIX: Final = "memory"


def live_in_memory(told: History) -> Told:
    """Live through a history."""
    with _seeded(told.seed):
        if told.in_store:
            roots = StoreRoots()
            with roots.opened():
                return live(told, _cluster, roots, _SUFFIX)
        with tempfile.TemporaryDirectory(
            prefix="koo-outputs-", dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
        ) as base:
            folders = FolderRoots(base, exchanges=told.exchanges)
            with folders.opened():
                return live(told, _cluster, folders, _SUFFIX)


def failure_of(told: History, say: Callable[[str], None] = lambda _: None) -> str:
    """Return a failing history, made as short as it can be, with what its calls came to."""
    rule = _rule(live_in_memory(told))

    def fails_alike(shorter: History) -> bool:
        say(f"... {len(shorter.steps)} steps")
        return _rule(live_in_memory(shorter)) == rule

    small = smaller(told, fails_alike)
    found = live_in_memory(small)
    return "\n".join(
        [
            *found.problems[:5],
            "",
            str(small),
            "",
            *found.transcript,
            "",
            f"repeat it with: python -m tests.support.oracle.outputs {told.seed}",
        ]
    )


def _rule(found: Told) -> str:
    """Return the rule that was broken first; empty when none was."""
    return found.problems[0].partition(")")[0] if found.problems else ""


def _cluster(suffix: str) -> tuple[World, Plain]:
    world = MemoryWorld(suffix=suffix)
    return world, MemoryPlain(world.kafka)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Let the same history be the same each time: names decide what comes first in a listing, and times what is new."""
    random, passed_s = Random(seed), 0.0

    def monotonic() -> float:
        nonlocal passed_s
        passed_s += random.random() / 50
        return passed_s

    def name() -> uuid.UUID:
        return uuid.UUID(int=random.getrandbits(128), version=4)

    clock = SimpleNamespace(monotonic=monotonic)
    with patch.object(uuid, "uuid4", name), patch.object(stage, "time", clock):
        yield
