"""What only the native reader has: threads, forks, and the settings that it accepts."""

from __future__ import annotations

import logging
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import ClientSettings, ConfigError, NotShareableError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_reader
from kafka_ordered_ops.kafka.read import native_options
from kafka_ordered_ops.kafka.read.native import NativeReader
from kafka_ordered_ops.kafka.read.reader import RangeReader
from tests.conftest import MakeTopic, Produce
from tests.support.forwarding import forwarded
from tests.support.readers import needs_native
from tests.support.relay_server import free_port

pytestmark = [needs_native, pytest.mark.native]

COMMITTED = Isolation.READ_COMMITTED
#: Nobody listens there.
NOWHERE = "127.0.0.1:9"


def reader_of(bootstrap: str, tp: TopicPartition, **config: Any) -> ReaderDoor:
    """Of a partition, without an end."""
    settings = ClientSettings.of({"bootstrap.servers": bootstrap, **config})
    return open_reader(settings, "g", COMMITTED, {tp: OffsetSet.of((0, INT64_MAX))})


def threads() -> list[str]:
    """Names of the native reader's threads in this process."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            names.append((task / "comm").read_text().strip())
        except OSError:
            continue  # It has ended.
    return [name for name in names if name.startswith("kafka-read")]


def test_threads_come_and_go() -> None:
    """Readers are opened and dropped in hundreds of threads of one process, which an allocator must bear."""
    script = f"""
import threading
from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import open_reader

settings = ClientSettings.of({{"bootstrap.servers": "{NOWHERE}", "reader": "native"}})

def read():
    ranges = {{TopicPartition("orders", 0): OffsetSet.of((0, 9))}}
    with open_reader(settings, "g", Isolation.READ_COMMITTED, ranges) as reader:
        reader.turn()

for _ in range(60):
    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_no_thread_is_left(bootstrap: str, topic: MakeTopic, produce: Produce) -> None:
    """Closing takes a moment, also while a fetch waits at the end of the log."""
    name = topic()
    produce([(name, 0, None, b"x", 1, ())])
    with reader_of(bootstrap, TopicPartition(name, 0), reader="native") as reader:
        while not reader.turn():
            pass
        assert threads()
        began = time.monotonic()
    assert time.monotonic() - began < 0.5
    # A thread that was joined is listed until the kernel has taken it off.
    while threads():
        assert time.monotonic() - began < 5


def test_a_forked_process_has_no_reader(bootstrap: str, topic: MakeTopic, produce: Produce) -> None:
    """The one there says so, and does not hang when it ends."""
    name = topic()
    produce([(name, 0, None, b"x", 1, ())])
    with reader_of(bootstrap, TopicPartition(name, 0), reader="native") as reader:
        while not reader.turn():
            pass
        child = os.fork()
        if child == 0:
            code = 1
            try:
                reader.turn()
            except NotShareableError:
                reader.close()
                del reader
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"ssl.cipher.suites": "a"}, "ssl.cipher.suites"),
        ({"security.protocol": "ssl"}, "ssl.ca.location"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/nowhere"}, "ssl.ca.location"),
        (
            {"security.protocol": "ssl", "ssl.ca.pem": "x", "ssl.key.password": "p"},
            "ssl.key.password",
        ),
        ({"security.protocol": "sasl_plaintext"}, "sasl.mechanism=GSSAPI"),
    ],
)
def test_settings_that_it_does_not_know_are_left_to_librdkafka(
    config: dict[str, str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With a line in the log, once; and if the native reader is asked for, by an error that names the setting."""
    native_options.note_librdkafka_reads.cache_clear()
    tp = TopicPartition("orders", 0)
    with caplog.at_level(logging.INFO):
        assert isinstance(reader_of(NOWHERE, tp, **config), RangeReader)
        reader_of(NOWHERE, tp, **config)
    assert caplog.text.count(why) == 1
    with pytest.raises(ConfigError, match=why):
        reader_of(NOWHERE, tp, reader="native", **config)
    assert isinstance(reader_of(NOWHERE, tp, reader="librdkafka"), RangeReader)
    assert isinstance(reader_of(NOWHERE, tp), NativeReader)


@pytest.mark.parametrize(
    ("given", "brokers"),
    [
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        (" a , PLAINTEXT://b:2", [("a", 9092), ("b", 2)]),
        ("[::1]:3,[::2]", [("::1", 3), ("::2", 9092)]),
    ],
)
def test_forms_of_addresses(given: str, brokers: list[tuple[str, int]]) -> None:
    """As librdkafka takes them."""
    assert native_options._brokers({"bootstrap.servers": given}) == brokers


def test_no_other_reader_is_known() -> None:
    """The error names those there are."""
    with pytest.raises(ConfigError, match="reader"):
        ClientSettings.of({"bootstrap.servers": NOWHERE, "reader": "rust"})


def test_brokers_that_are_too_old_are_read_by_librdkafka(
    bootstrap: str, topic: MakeTopic, produce: Produce, caplog: pytest.LogCaptureFixture
) -> None:
    """The native reader finds out when it connects: batches and scans are whole, and the log says why."""
    name = topic()
    produce([(name, 0, None, b"x", second, ()) for second in range(5)])
    wanted = {TopicPartition(name, 0): OffsetSet.of((1, 5))}
    port = free_port()

    def answer(request: bytes) -> bytes | None:
        # As brokers answer to a version of ApiVersions that they do not know: in version 0.
        unsupported_version = 35
        if b"kafka-ordered-ops-native" not in request:
            return None
        (correlation,) = struct.unpack(">i", request[8:12])
        return struct.pack(">iihi", 10, correlation, unsupported_version, 0)

    native_options.note_librdkafka_reads.cache_clear()
    settings = ClientSettings.of({"bootstrap.servers": f"127.0.0.1:{port}", "reader": "native"})
    with forwarded(port, bootstrap, answer), caplog.at_level(logging.INFO):
        with open_reader(settings, "g", COMMITTED, wanted) as reader:
            offsets = [row["offset"] for batch in reader.batches() for row in batch.to_pylist()]
            assert reader.positions == {TopicPartition(name, 0): 5}
        with open_reader(settings, "g", COMMITTED, wanted) as reader:
            scanned = [offset for batch in reader.timestamps() for offset in batch.offsets.tolist()]
    assert offsets == scanned == [1, 2, 3, 4]
    assert caplog.text.count("older than Kafka 2.8") == 1
