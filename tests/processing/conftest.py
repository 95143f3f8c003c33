"""The worlds of per-record processing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.both_worlds import broker as broker
from tests.support.both_worlds import mark_slow_on_a_broker
from tests.support.both_worlds import memory as memory
from tests.support.both_worlds import world as world


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a broker, members of groups join, and transactions are settled: for some seconds."""
    mark_slow_on_a_broker(items, Path(__file__).parent, "test_exactly_once.py", "test_group.py")
