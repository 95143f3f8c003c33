"""Plans of one process over records in random order: what a scan has read is not fetched again."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from kafka_ordered_ops import Earliest, WindowPlan
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.interval_oracle import stamped
from tests.support.windows_support import before


@pytest.mark.slow
def test_a_process_reads_each_timestamp_once(
    bootstrap: str,
    topic: MakeTopic,
    produce: Produce,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only new records are fetched, and its plans are those of processes that know nothing."""
    fetched: list[int] = []

    def counting(*arguments: Any, **options: Any) -> Any:
        fetched.append(sum(offsets.count for offsets in arguments[3].values()))
        return open_reader(*arguments, **options)

    monkeypatch.setattr("kafka_ordered_ops.kafka.facts.window_facts.open_reader", counting)
    name, times = topic(), [*range(300)]
    random.Random(1).shuffle(times)
    produce(stamped(name, *times))

    def service(group_id: str) -> OrderedWindows:
        return OrderedWindows({"bootstrap.servers": bootstrap}, group_id, ledger_topic=ledger)

    def planned(windows: OrderedWindows, cutoff: int) -> tuple[WindowPlan, int]:
        fetched.clear()
        plan = windows.plan(before(name, cutoff, Earliest()), f"until-{cutoff}")
        windows.commit(plan)
        return plan, sum(fetched)

    ledger, group_id = f"ledger-{uuid.uuid4().hex[:12]}", f"stays-{name}"
    with service(group_id) as stays:
        for cutoff, new in ((50, 300), (100, 0), (150, 0), (200, 40), (250, 0)):
            if cutoff == 200:
                produce(stamped(name, *random.Random(2).sample(range(160, 340), 40)))
            plan, read = planned(stays, cutoff)
            # Those before the first record past the cutoff are of the window without a look.
            assert new - 10 <= read <= new, cutoff
            with service(f"new-{name}") as knows_nothing:
                other, _ = planned(knows_nothing, cutoff)
            assert [part.taken for part in plan] == [part.taken for part in other]
            assert [part.head_end for part in plan] == [part.head_end for part in other]
