"""The real Parallel Consumer on the tests' group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support.parallel_consumer import ParallelConsumer


class Consume(Protocol):
    """Starts the library on a topic for the test's group; see `ParallelConsumer` for the arguments."""

    def __call__(self, topic: str, **arguments: Any) -> ParallelConsumer: ...


@pytest.fixture
def consume(bootstrap: str, group_id: str, tmp_path: Path) -> Iterator[Consume]:
    """Starts the library; what still runs at the end of the test is killed."""
    with ExitStack() as stack:

        def start(topic: str, **arguments: Any) -> ParallelConsumer:
            consumer = ParallelConsumer(bootstrap, group_id, topic, tmp_path, **arguments)
            return stack.enter_context(consumer)

        yield start
