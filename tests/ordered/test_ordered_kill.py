"""Members of a live group that are killed: nothing is lost, and what is read again is in order."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kafka_ordered_ops.kafka.lookup import Lookup
from tests.support import wire
from tests.support.broker_world import BrokerWorld
from tests.support.windows_support import BASE_MS, TIMEOUT_S

_LEAVE_GROUP = 13

_READS = """
import sys, time
from kafka_ordered_ops.ordered.options import Member, Ordering, ReadLimits
from kafka_ordered_ops.ordered.ordered_reader import OrderedReader
bootstrap, topic, group, path = sys.argv[1:]
with OrderedReader(
    bootstrap, topic, follow=True, group_id=Member(group, commit_interval_s=0.05),
    order=Ordering(grace="PT1000H"),
    limits=ReadLimits(held_records_max=100, temporary_folder=f"{path}-spilled"),
) as reader, open(path, "a") as out:
    print("opened", flush=True)
    for batch in reader:
        for row in batch.select(["partition", "offset", "timestamp", "late"]).to_pylist():
            out.write(f"{row['partition']} {row['offset']} {row['timestamp'].timestamp()} {row['late']}\\n")
        out.flush()
        time.sleep(0.02)
"""


def forget_members(world: BrokerWorld, group_id: str) -> None:
    """The group removes the dead, as it does when their session is over."""
    with Lookup(world.settings) as lookup:
        for member in lookup.group_members(group_id):
            found = re.search(r"\(([^)]*)\)$", member)
            assert found is not None
            names = group_id.encode(), found[1].encode()
            body = b"".join(struct.pack(">h", len(name)) + name for name in names)
            wire._call(world.settings.bootstrap_servers, _LEAVE_GROUP, 0, body)


def returned(path: Path) -> list[tuple[int, int, float, bool]]:
    """What a member has returned; the last line may be half a one."""
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    lines = [line.split() for line in whole.split("\n") if line]
    return [(int(p), int(offset), float(at), late == "True") for p, offset, at, late in lines]


@pytest.mark.long
def test_killed_members_lose_nothing(broker: BrokerWorld, tmp_path: Path) -> None:
    """Killed anywhere, with records held in memory and on disk: the next one goes on at or before where it was."""
    broker.create("orders", partitions=2)
    count, batch = 6_000, 100
    name, group = broker.named("orders"), broker.named("live")
    bootstrap = broker.settings.bootstrap_servers
    # The second partition is behind: what comes of the first is held.
    for start in range(0, count, batch):
        times = [BASE_MS + n * 10 for n in range(start, start + batch)]
        wire.write_batch(bootstrap, name, times, partition=0)
    ahead = 0
    path = tmp_path / "returned"
    seen: set[tuple[int, int]] = set()
    for number in range(5):
        file = path.with_name(f"returned-{number}")
        with subprocess.Popen(
            [sys.executable, "-c", _READS, bootstrap, name, group, str(file)],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                deadline = time.monotonic() + 2 * TIMEOUT_S
                wanted = (number + 1) * 2 * count // 5
                while len(seen | {row[:2] for row in returned(file)}) < wanted - 2:
                    assert time.monotonic() < deadline, (number, len(seen), len(returned(file)))
                    if ahead < wanted // 2:
                        times = [BASE_MS + 5 + n * 10 for n in range(ahead, ahead + batch)]
                        wire.write_batch(bootstrap, name, times, partition=1)
                        ahead += batch
                    time.sleep(0.01)
            finally:
                process.kill()
        found = returned(file)
        for partition in (0, 1):
            offsets = [row[1] for row in found if row[0] == partition]
            # Without a hole, and no further on than where the one before was.
            first = min(offsets, default=0)
            assert offsets == list(range(first, first + len(offsets)))
            assert all((partition, offset) in seen for offset in range(first))
        assert [row[2] for row in found] == sorted(row[2] for row in found)
        assert not any(row[3] for row in found)
        seen |= {row[:2] for row in found}
        stored = broker.committed("orders", group_id="live")
        for partition in (0, 1):
            end = (stored[str(broker.tp("orders", partition))] or (0, b""))[0]
            assert all((partition, offset) in seen for offset in range(end))
        forget_members(broker, group)
    assert len(seen) >= 2 * count - 2
