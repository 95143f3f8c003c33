"""How long it takes to end the native reader, whatever it is doing, and under a quota."""

from __future__ import annotations

import os
import socket
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.embedded.node import HOST
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_reader
from kafka_ordered_ops.kafka.read.native import NativeReader
from tests.conftest import MakeTopic, Produce
from tests.support.readers import needs_native
from tests.support.windows_support import TIMEOUT_S
from tests.support.wire import set_quota

pytestmark = [needs_native, pytest.mark.native, pytest.mark.slow]

ENDS = 10
RECORDS = 100
RECORD_BYTES = 10_000
QUOTA = 200_000.0
SMALL = {"fetch.message.max.bytes": "50000", "fetch.max.bytes": "50000"}


def reader_of(bootstrap: str, topic: str, *, end: int = INT64_MAX, **config: Any) -> ReaderDoor:
    """Of one partition."""
    settings = ClientSettings.of({"bootstrap.servers": bootstrap, "reader": "native", **config})
    wanted = {TopicPartition(topic, 0): OffsetSet.of((0, end))}
    return open_reader(settings, "g", Isolation.READ_COMMITTED, wanted, batch_records=10)


def throttled_s(reader: ReaderDoor) -> float:
    """For how long the broker throttles the reader at a time."""
    assert isinstance(reader, NativeReader)
    return (reader._native and reader._native.throttled_s()) or 0.0


@contextmanager
def quota_of(bootstrap: str, client_id: str) -> Iterator[None]:
    """Clients with this id are throttled, a moment later."""
    set_quota(bootstrap, client_id, "consumer_byte_rate", QUOTA)
    try:
        yield
    finally:
        set_quota(bootstrap, client_id, "consumer_byte_rate", None)


def read_until_throttled(reader: ReaderDoor) -> None:
    """Brokers learn of a quota a moment after it is set."""
    deadline = time.monotonic() + TIMEOUT_S
    while throttled_s(reader) < 0.3:
        assert time.monotonic() < deadline
        reader.turn()


@pytest.mark.long
def test_a_throttled_read_waits_as_the_broker_says(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """At the quota's pace, to the exact end."""
    name, client_id = topic(), f"paced-{group_id}"
    count = 5 * RECORDS
    produce((name, 0, None, os.urandom(RECORD_BYTES), None, ()) for _ in range(count))
    offsets: list[int] = []
    paces = []
    with quota_of(bootstrap, client_id):
        began = time.monotonic()
        with reader_of(bootstrap, name, end=count, **{"client.id": client_id, **SMALL}) as reader:
            for batch in reader.batches():
                column: Any = batch["offset"]
                offsets += column.to_pylist()
                paces.append(throttled_s(reader))
        took_s = time.monotonic() - began
    assert offsets == list(range(count))
    assert max(paces) > 0.1
    # The broker averages over eleven seconds, and a first burst passes.
    assert took_s > count * RECORD_BYTES / QUOTA - 11
    assert count * RECORD_BYTES / took_s < 3 * QUOTA


@contextmanager
def nobody_there() -> Iterator[str]:
    """An address where the handshake of a connection is not answered."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server((HOST, 0), backlog=0))
        address = server.getsockname()
        for _ in range(3):
            # What fits into the backlog.
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield f"{HOST}:{address[1]}"


@contextmanager
def nobody_answers() -> Iterator[str]:
    """An address to which connections are made, and no more."""
    with socket.create_server((HOST, 0)) as server:
        yield f"{HOST}:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "state", ["dialling", "connecting", "waiting", "full", "decoding", "throttled"]
)
def test_it_ends_at_once(bootstrap: str, topic: MakeTopic, produce: Produce, state: str) -> None:
    """While nobody answers, at the end of a log, while nobody takes records, in large batches, and under a quota."""
    name, client_id = topic(config={"compression.type": "zstd"}), f"ended-{uuid.uuid4().hex}"
    config: dict[str, Any] = {"fetch.wait.max.ms": "5000", "client.id": client_id}
    address = bootstrap
    ended_s = []
    with ExitStack() as stack:
        match state:
            case "dialling":
                address = stack.enter_context(nobody_there())
            case "connecting":
                address = stack.enter_context(nobody_answers())
            case "full":
                config |= {"queued.max.messages.kbytes": "1"}
            case "throttled":
                config |= SMALL
                stack.enter_context(quota_of(bootstrap, client_id))
        if state in ("full", "decoding", "throttled"):
            produce((name, 0, None, os.urandom(RECORD_BYTES), None, ()) for _ in range(5 * RECORDS))
        for number in range(ENDS):
            with reader_of(address, name, **config) as reader:
                if state == "throttled":
                    read_until_throttled(reader)
                # Longer each time, so that the end comes at another moment.
                until = time.monotonic() + 0.02 * number
                while not reader.turn() and time.monotonic() < until:
                    pass
                began = time.monotonic()
                reader.close()
                ended_s.append(time.monotonic() - began)
    assert statistics.median(ended_s) < 0.2, ended_s
