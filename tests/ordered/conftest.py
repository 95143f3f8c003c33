"""The worlds of ordered reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.broker_world import BrokerWorld
from tests.support.memory_world import MemoryWorld
from tests.support.worlds import World


@pytest.fixture(params=["memory", "broker"])
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
