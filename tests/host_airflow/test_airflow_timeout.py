"""A task that passes its ``execution_timeout``, which Airflow ends by a signal."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.execution_time import timeout

from kafka_ordered_ops import OpenWindow
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.airflow_context import Make, context_of, offsets_in, outputs_of
from tests.support.airflow_context import kafka_connection as kafka_connection
from tests.support.airflow_context import make as make

#: What runs a task with a timeout; its exception is elsewhere before Airflow 3.2.
TIMEOUT: Any = timeout


def test_in_the_middle_of_a_job(
    make: Make, windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """Its rows are staged, and nothing is shown; the next attempt delivers the same window."""
    root = tmp_path / "out"

    def too_long(window: OpenWindow) -> None:
        window.write(window.to_arrow())
        signal.raise_signal(signal.SIGALRM)

    task = make(window_id="w", job=too_long, output=str(root))
    with pytest.raises(TIMEOUT.AirflowTaskTimeout), TIMEOUT.timeout(600):
        task.execute(context_of(12))
    task.on_kill()
    assert windows.show("w").status is WindowStatus.PLANNED
    assert outputs_of(root) == []
    facts = make(window_id="w").execute(context_of(12, try_number=2))
    assert (facts["attempt"], offsets_in(facts["output"])) == (2, [0, 3, 1])
