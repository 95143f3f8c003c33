"""Tests of windows that run in both worlds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.both_worlds import mark_slow_on_a_broker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a broker, topics are made and windows are committed: for some seconds."""
    names = ("test_window_dead_letters.py", "test_bad_output.py")
    mark_slow_on_a_broker(items, Path(__file__).parent, *names)
