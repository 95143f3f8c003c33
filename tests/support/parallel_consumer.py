"""Confluent's Parallel Consumer, the Java library itself, as a process of its own that tests hold, release and kill."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from confluent_kafka import Producer

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.offset_map.parallel_consumer import decode_parallel_consumer_map
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.embedded.jars import listed_jars
from kafka_ordered_ops.embedded.java import MINIMUM_VERSION, find_java
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.offsets.committed_offsets import (
    CommittedOffset,
    OffsetsReader,
    read_committed_offsets,
    send_offsets_to_transaction,
)
from tests.support.wire import leave_group

_JARS: Final = Path(__file__).with_name("parallel_consumer.sha256")
_SOURCE: Final = Path(__file__).parent / "java" / "HeldConsumer.java"
#: A Java that need not have a compiler compiles it with Eclipse's, which is one of the jars.
_COMPILER: Final = "org.eclipse.jdt.internal.compiler.batch.Main"
_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.02
_LOG_CHARACTERS, _FOUND_CHARACTERS = 4_000, 1_000


class Ordering(StrEnum):
    """Which records the library processes one after the other."""

    UNORDERED = "UNORDERED"
    KEY = "KEY"
    PARTITION = "PARTITION"


class CommitMode(StrEnum):
    """How the library commits its offsets."""

    SYNC = "PERIODIC_CONSUMER_SYNC"
    ASYNC = "PERIODIC_CONSUMER_ASYNCHRONOUS"
    TRANSACTIONAL = "PERIODIC_TRANSACTIONAL_PRODUCER"


#: What a group has committed, by partition; partitions without a commit are left out.
Committed = dict[int, CommittedOffset]
#: The offsets that were processed, by partition, in the order of processing.
Processed = dict[int, list[int]]
_Found = TypeVar("_Found", Committed, Processed)


def offsets_done(committed: Committed) -> dict[int, OffsetSet]:
    """Return the offsets that commits of the library report as done, from the first of each log."""
    return {
        partition: OffsetSet.of((0, one.offset))
        | decode_parallel_consumer_map(one.metadata, one.offset).done
        for partition, one in committed.items()
    }


def commit_exactly(bootstrap: str, group_id: str, topic: str, committed: Committed) -> None:
    """Commit offsets for an empty group, with exactly this metadata, as this package does."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    producer = Producer(settings.producer(transactional_id=f"koo.{group_id}"))
    producer.init_transactions(_TIMEOUT_S)
    producer.begin_transaction()
    offsets = {TopicPartition(topic, number): one for number, one in committed.items()}
    send_offsets_to_transaction(producer, group_id, offsets, timeout_s=_TIMEOUT_S)
    producer.commit_transaction(_TIMEOUT_S)
    # It waits until the transaction has ended, which others that ask may not.
    assert read_committed_offsets(settings, group_id, list(offsets)) == offsets


class ParallelConsumer:
    """One process of the library, the only member of its group.

    Args:
        folder: for its files.
        held: (partition, offset) of records whose processing does not end before `release`. Each takes one thread.
        spare_threads: further threads.
    """

    def __init__(
        self,
        bootstrap: str,
        group_id: str,
        topic: str,
        folder: Path,
        *,
        held: Iterable[tuple[int, int]] = (),
        spare_threads: int = 16,
        ordering: Ordering = Ordering.UNORDERED,
        commit_mode: CommitMode = CommitMode.SYNC,
        commit_interval_s: float = 0.1,
    ) -> None:
        self._bootstrap, self._group = bootstrap, group_id
        mine = Path(tempfile.mkdtemp(prefix="parallel-consumer-", dir=folder))
        self._notes, self._log = mine / "notes", mine / "log"
        self._notes.touch()
        names = [f"{partition}:{offset}" for partition, offset in held]
        interval_ms = round(commit_interval_s * 1_000)
        arguments = [bootstrap, group_id, topic, ordering, len(names) + spare_threads, commit_mode]
        command = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command += ["-cp", class_path(_SOURCE), _SOURCE.stem]
        command += [str(one) for one in (*arguments, interval_ms, self._notes, *names)]
        with ExitStack() as stack:
            settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
            self._offsets = stack.enter_context(OffsetsReader(settings, group_id))
            self._lookup = stack.enter_context(Lookup(settings))
            numbers = self._lookup.topics([topic])[topic].partitions
            self._partitions = [TopicPartition(topic, number) for number in numbers]
            log = stack.enter_context(open(self._log, "wb"))
            self._process = subprocess.Popen(
                [find_java().executable, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._closing = stack.pop_all()

    def __enter__(self) -> ParallelConsumer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self.kill()
        if self._process.stdin is not None:
            # Nobody reads what is left in it.
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        self._closing.close()

    def processed(self) -> Processed:
        """Return the offsets processed so far, acknowledged or not."""
        found: Processed = defaultdict(list)
        # The last line may still be being written.
        for line in self._notes.read_bytes().split(b"\n")[:-1]:
            partition, offset = map(int, line.split())
            found[partition].append(offset)
        return dict(found)

    def committed(self) -> Committed:
        """Return what the group has committed, exact to the byte."""
        found = self._offsets.read(self._partitions, timeout_s=_TIMEOUT_S)
        return {tp.partition: one for tp, one in found.items() if one is not None}

    def wait_processed(
        self, holds: Callable[[Processed], bool], *, timeout_s: float = _TIMEOUT_S
    ) -> Processed:
        """Wait until something holds of what was processed, and return that."""
        return self._wait(self.processed, holds, timeout_s)

    def wait_committed(
        self, holds: Callable[[Committed], bool], *, timeout_s: float = _TIMEOUT_S
    ) -> Committed:
        """Wait until something holds of what is committed, and return that."""
        return self._wait(self.committed, holds, timeout_s)

    def release(self) -> None:
        """Let the held records pass."""
        self._order("release")

    def close(self, *, drain: bool = False, timeout_s: float = _TIMEOUT_S) -> None:
        """Commit and leave the group; with `drain`, process first what has been fetched, held records too."""
        self._order("drain" if drain else "close")
        code = self._process.wait(timeout_s)
        assert code == 0, f"the library ended with {code}: {self._said()}"

    def kill(self) -> None:
        """Kill the process, and wait until its group is empty."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_TIMEOUT_S)
        # Its session would go on for most of a minute.
        deadline = time.monotonic() + _TIMEOUT_S
        while members := self._lookup.group_members(self._group):
            assert time.monotonic() < deadline, members
            for member in members:
                member_id = member.rpartition("(")[2].removesuffix(")")
                leave_group(self._bootstrap, self._group, member_id)

    def _order(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()

    def _wait(
        self, ask: Callable[[], _Found], holds: Callable[[_Found], bool], timeout_s: float
    ) -> _Found:
        deadline = time.monotonic() + timeout_s
        while not holds(found := ask()):
            code = self._process.poll()
            assert code is None, f"the library ended with {code}: {self._said()}"
            assert time.monotonic() < deadline, (
                f"after {timeout_s} s still {str(found)[:_FOUND_CHARACTERS]}: {self._said()}"
            )
            time.sleep(_PAUSE_S)
        return found

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_CHARACTERS:]


@functools.cache
def class_path(source: Path) -> str:
    """Return the jars and a compiled program."""
    return compiled(source, tuple(listed_jars(_JARS, "parallel-consumer")))


@functools.cache
def compiled(source: Path, jars: tuple[Path, ...]) -> str:
    """Return jars and a program that was compiled with them."""
    libraries = ":".join(map(str, jars))
    compiler = ":".join(map(str, listed_jars(_JARS, "parallel-consumer")))
    classes = tempfile.mkdtemp(prefix=f"{source.stem}-classes-")
    atexit.register(shutil.rmtree, classes, ignore_errors=True)
    subprocess.run(
        [
            *(find_java().executable, "-XX:TieredStopAtLevel=1", "-cp", compiler, _COMPILER),
            *("-cp", libraries, f"-{MINIMUM_VERSION}", "-d", classes, source),
        ],
        check=True,
        timeout=_TIMEOUT_S,
    )
    return f"{classes}:{libraries}"
