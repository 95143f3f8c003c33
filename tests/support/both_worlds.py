"""Fixtures: the model in memory and a real broker, each alone or one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.broker_world import BrokerWorld
from tests.support.memory_world import MemoryWorld
from tests.support.worlds import World


@pytest.fixture(params=["memory", pytest.param("broker", marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Each test runs in both worlds."""
    made: World = (
        MemoryWorld()
        if request.param == "memory"
        else BrokerWorld(request.getfixturevalue("bootstrap"))
    )
    with made:
        yield made


@pytest.fixture
def memory() -> Iterator[MemoryWorld]:
    """The model alone."""
    made = MemoryWorld()
    with made:
        yield made


@pytest.fixture
def broker(bootstrap: str) -> Iterator[BrokerWorld]:
    """A real broker alone."""
    made = BrokerWorld(bootstrap)
    with made:
        yield made


def mark_slow_on_a_broker(items: Iterable[pytest.Item], folder: Path, *files: str) -> None:
    """Mark a folder's tests on a broker as slow; only those of some files, if any are named."""
    for item in items:
        is_meant = item.path.parent == folder and (not files or item.path.name in files)
        if is_meant and "[broker" in item.name:
            item.add_marker(pytest.mark.slow)
