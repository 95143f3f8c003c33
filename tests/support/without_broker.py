"""A plugin of pytest that leaves out tests for which a broker is started: ``-p tests.support.without_broker``."""

from __future__ import annotations

from typing import Final

import pytest

#: Fixtures that start a broker, or three.
_BROKERS: Final = frozenset({"bootstrap", "brokers"})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that need a broker."""
    needing = {item for item in items if _BROKERS & set(getattr(item, "fixturenames", ()))}
    config.hook.pytest_deselected(items=list(needing))
    items[:] = [item for item in items if item not in needing]
