"""kill -9 inside the one transaction: before it is committed, and after, before anybody was told."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from kafka_ordered_ops import Earliest, Window
from kafka_ordered_ops.core.types import TopicPartition, WindowStatus
from kafka_ordered_ops.kafka.ledger.ledger import Ledger
from kafka_ordered_ops.kafka.ledger.log import LedgerLog
from kafka_ordered_ops.kafka.offsets.committed_offsets import read_committed_offsets
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.logs import read_plan
from tests.support.windows_support import BASE_MS, at

#: Plans and commits one window in a process that kills itself at the nth commit_transaction.
VICTIM = """
import os, signal, sys
from datetime import datetime
import kafka_ordered_ops.kafka.ledger.transaction as transaction
from kafka_ordered_ops import Earliest, OrderedWindows, Window

bootstrap, group, topic, cutoff, when, fatal = sys.argv[1:]
calls = 0

class Producer(transaction.Producer):
    def commit_transaction(self, *args):
        global calls
        calls += 1
        if calls == int(fatal) and when == "before":
            self.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit_transaction(*args)
        if calls == int(fatal):
            os.kill(os.getpid(), signal.SIGKILL)

transaction.Producer = Producer
windows = OrderedWindows({"bootstrap.servers": bootstrap}, group)
plan = windows.plan(Window([topic], datetime.fromisoformat(cutoff), starting_offsets=Earliest()), "w")
windows.mark_written(plan, {"written": True})
windows.commit(plan)
raise SystemExit("still alive")
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("fatal", "status_before", "status_after"),
    [
        pytest.param(1, None, WindowStatus.PLANNED, id="plan"),
        pytest.param(2, WindowStatus.PLANNED, WindowStatus.WRITTEN, id="write-down"),
        pytest.param(3, WindowStatus.WRITTEN, WindowStatus.COMMITTED, id="commit"),
    ],
)
def test_a_death_inside_a_transaction_leaves_all_of_it_or_nothing(
    bootstrap: str,
    topic: MakeTopic,
    group_id: str,
    produce: Produce,
    when: str,
    fatal: int,
    status_before: WindowStatus | None,
    status_after: WindowStatus,
) -> None:
    """The next attempt takes over at once, finds out what was stored, and commits the same records once."""
    name = topic()
    produce((name, 0, None, b"x", BASE_MS + second * 1000, ()) for second in [0, 10, 20, 5])
    arguments = [bootstrap, group_id, name, at(12).isoformat(), when, str(fatal)]
    run = subprocess.run(
        [sys.executable, "-c", VICTIM, *arguments], capture_output=True, text=True, check=False
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    tp = TopicPartition(name, 0)
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
        # Taking up fences the dead one, and so ends what it left open.
        plan = windows.plan(Window([name], at(12), starting_offsets=Earliest()), "w")
        assert plan.status is (
            (status_before if when == "before" else status_after) or WindowStatus.PLANNED
        )
        assert len(read_plan(windows.settings, plan)) == 3
        windows.commit(plan)
        found = read_committed_offsets(windows.settings, group_id, [tp], timeout_s=30)[tp]
        assert found is not None
        assert found.offset == 2
        rest = windows.plan(Window([name], at(100)), "rest")
        assert set(read_plan(windows.settings, rest)) == {(name, 0, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("when", ["committed", "ledger"])
def test_a_commit_of_another_try_between_two_reads_is_neither_loss_nor_foreign(
    bootstrap: str,
    topic: MakeTopic,
    group_id: str,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    """Whoever is overtaken inside its fence finds that out by being fenced, and commits after the other."""
    name = topic()
    produce((name, 0, None, b"x", BASE_MS + second * 1000, ()) for second in [0, 10, 20])
    settings = {"bootstrap.servers": bootstrap}
    with OrderedWindows(settings, group_id) as slow, OrderedWindows(settings, group_id) as quick:
        mine = slow.plan(Window([name], at(5), starting_offsets=Earliest()), "mine")
        other = quick.plan(Window([name], at(15)), "other")
        overtaken: list[bool] = []
        # Only inside the fence; there the committed offsets are read first.
        read_committed, read_ledger = Ledger.committed_offsets, Ledger._read
        fenced: list[bool] = []

        def overtake() -> None:
            if not overtaken:
                overtaken.append(True)
                quick.commit(other)

        def read_committed_late(self: Ledger, *args: Any, **kwargs: Any) -> Any:
            fenced.append(True)
            if when == "committed":
                overtake()
            return read_committed(self, *args, **kwargs)

        def read_ledger_late(self: Ledger, group_id: str, deadline: float) -> LedgerLog:
            if when == "ledger" and fenced:
                overtake()
            return read_ledger(self, group_id, deadline)

        monkeypatch.setattr(Ledger, "committed_offsets", read_committed_late)
        monkeypatch.setattr(Ledger, "_read", read_ledger_late)
        slow.commit(mine)
        assert overtaken
        assert [record.status.is_done for record in slow.list()] == [True, True]
        tp = TopicPartition(name, 0)
        found = read_committed_offsets(slow.settings, group_id, [tp], timeout_s=30)[tp]
        assert found is not None
        assert found.offset == 2
