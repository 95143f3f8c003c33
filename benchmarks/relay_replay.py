"""How long a server of the relay takes to read its log: ``python -m benchmarks.relay_replay``.

A fresh process starts on a log that other servers have written, and no snapshot has cut. Time counts from the start of
the process until the logs of all partitions are read.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.relay.log_records import (
    Acknowledged,
    Extended,
    Leased,
    LogRecord,
    Opened,
    Owned,
    Released,
)
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.relay.log import LogWriter, prepare_topics
from kafka_ordered_ops.relay.options import RelayOptions
from kafka_ordered_ops.relay.service import Relay

#: Records of a read: most clients take one at a time, which makes the longest log.
_READS: Final = (1, 1, 1, 1, 10, 100, 500)
#: Leases that are not acknowledged yet: so many clients are at work.
_AT_WORK: Final = 200
_WAITING_MAX: Final = 50_000
_TIMEOUT_S: Final = 120.0
_NO_SNAPSHOT: Final = 2**40


def main() -> None:
    """Print the time of each start."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relay_replay")
    parser.add_argument("--records", type=int, default=1_000_000, help="of the log")
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--start-on", nargs=2, metavar=("BOOTSTRAP", "TOPIC"), default=None)
    asked = parser.parse_args()
    if asked.start_on is not None:
        asyncio.run(_start(*asked.start_on))
        return
    with EmbeddedKafka() as kafka:
        _fill(kafka.bootstrap, "orders", asked.partitions, asked.records)
        for number in range(asked.starts):
            begun = time.monotonic()
            again = [sys.executable, "-m", "benchmarks.relay_replay", "--start-on"]
            subprocess.run([*again, kafka.bootstrap, "orders"], check=True, timeout=_TIMEOUT_S)
            took_s = time.monotonic() - begun
            print(f"start {number + 1}: {took_s:.1f} s", flush=True)


async def _start(bootstrap: str, topic: str) -> None:
    options = RelayOptions(
        topics=frozenset({topic}),
        relay_group=f"relay-{secrets.token_hex(4)}",
        snapshot_records=_NO_SNAPSHOT,
    )
    cpu_s = time.process_time()
    async with Relay(bootstrap, options) as one:
        while not (one.is_ready and all(each.is_replayed for each in one.status())):
            await asyncio.sleep(0.02)
        print(f"CPU {time.process_time() - cpu_s:.1f} s", flush=True)


def _fill(bootstrap: str, topic: str, partitions: int, records: int) -> None:
    settings = ClientSettings.of(bootstrap)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(_TIMEOUT_S)
    with open_lookup(settings, timeout_s=_TIMEOUT_S) as lookup:
        facts = lookup.topics([topic])
        prepare_topics(settings, lookup, facts, _TIMEOUT_S)
    begun = time.monotonic()
    with ExitStack() as stack:
        log = LogWriter(settings, stack, timeout_s=_TIMEOUT_S)
        for number in range(partitions):
            tp = TopicPartition(topic, number)
            made = _log(facts[topic].topic_id, records // partitions, random.Random(number))
            for record in made:
                log.append(tp, record, _check)
                while log.waiting > _WAITING_MAX:
                    log.turn()
        while log.waiting:
            log.turn()
    print(f"{records:,} records written in {time.monotonic() - begun:.0f} s", flush=True)


def _check(error: KafkaOrderedOpsError | None) -> None:
    if error is not None:
        raise error


def _log(topic_id: str, count: int, chance: random.Random) -> Iterator[LogRecord]:
    """The log of one partition: two groups, whose clients lease, acknowledge, and now and then extend or give back."""
    yield Owned(1, secrets.token_hex(16), topic_id)
    groups = ("billing", "audit")
    for group in groups:
        yield Opened(group, 0)
    written = 3
    now_ms = int(time.time() * 1_000)
    at = dict.fromkeys(groups, 0)
    at_work: deque[Leased] = deque()
    while written < count:
        if len(at_work) < _AT_WORK:
            group = chance.choice(groups)
            end = at[group] + chance.choice(_READS)
            lease_id = secrets.token_hex(16)
            lease = Leased(group, lease_id, 1, OffsetSet.of((at[group], end)), now_ms + 60_000, 1)
            at[group] = end
            at_work.append(lease)
            yield lease
        else:
            at_work.rotate(chance.randrange(_AT_WORK))
            lease = at_work.popleft()
            what = chance.random()
            if what < 0.02:
                yield Extended(lease.group, lease.lease_id, lease.until_ms + 60_000, lease.offsets)
                at_work.append(lease)
            elif what < 0.04:
                yield Released(lease.group, lease.lease_id, lease.offsets)
                lease_id = secrets.token_hex(16)
                again = Leased(
                    lease.group, lease_id, 1, lease.offsets, lease.until_ms, lease.attempt + 1
                )
                written += 1
                at_work.append(again)
                yield again
            else:
                yield Acknowledged(lease.group, lease.offsets)
        now_ms += 1
        written += 1


if __name__ == "__main__":
    main()
