"""The example DAG with the relay: its tasks, called as Airflow calls them."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_ordered_ops.relay.http.server import Listening
from tests.support.memory_world import MemoryWorld
from tests.support.relay_server import serving
from tests.support.relay_servers import relay
from tests.support.windows_support import TIMEOUT_S

EXAMPLE = Path(__file__).parents[2] / "example_dags" / "airflow_relay.py"


@pytest.fixture
def example() -> Any:
    """The DAG's file."""
    pytest.importorskip("airflow", reason="the extra airflow is not installed")
    spec = importlib.util.spec_from_file_location("airflow_relay", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.slow
def test_tasks_share_the_window(
    example: Any, memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty tasks process the records of three partitions once, and the window can be committed after them."""
    memory.create("orders", 3)
    for partition in range(3):
        memory.write("orders", partition, *range(50))
    windows = memory.windows()
    plan = windows.plan(memory.window(40, starting_offsets="earliest"), "w")
    hook = SimpleNamespace(get_conn=lambda: _Open(windows))
    monkeypatch.setattr(example, "KafkaWindowsHook", lambda group_id: hook)
    with (
        serving(Listening(port=0), lambda: relay(memory)) as running,
        ThreadPoolExecutor(example.TASKS) as pool,
    ):
        monkeypatch.setattr(example, "RELAY", [running.url])
        group = example.hand_out.function({"window_id": plan.window_id})
        tasks = [pool.submit(example.charge.function, group, n) for n in range(example.TASKS)]
        assert sum(one.result(TIMEOUT_S) for one in tasks) == 3 * 40
    assert windows.commit(plan).status.is_done


class _Open:
    """A service that its owner closes."""

    def __init__(self, windows: Any) -> None:
        self._windows = windows

    def __enter__(self) -> Any:
        return self._windows

    def __exit__(self, *exc_info: object) -> None:
        pass


def test_order_of_the_tasks(example: Any) -> None:
    """Plan, hand out, process, commit."""
    dag = example.plan.dag
    upstream = {name: set(dag.get_task(name).upstream_task_ids) for name in dag.task_ids}
    assert upstream == {
        "plan": set(),
        "hand_out": {"plan"},
        "charge": {"hand_out"},
        "commit": {"charge", "plan"},
    }
