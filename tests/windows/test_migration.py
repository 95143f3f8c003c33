"""Groups that Parallel Consumer works on as well: in memory, and a migration killed at each step on a broker.

The scripts run on a broker with the others, in `test_model_against_broker`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from random import Random

import pytest

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    ForeignCommitError,
    GroupHandedOverError,
    OffsetMapTooLargeError,
)
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.group.ledger_rules import is_own_commit
from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import ProgressFormat, TopicPartition, WindowStatus
from kafka_ordered_ops.kafka.ports import read_committed_offsets
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support import migration_scripts
from tests.support.interval_oracle import stamped
from tests.support.memory_world import MemoryWorld
from tests.support.migration_worker import MigrationKill
from tests.support.scripts import Script
from tests.support.windows_support import BASE_MS, TIMEOUT_S, before
from tests.support.wire import commit_offsets

SCRIPTS: dict[str, Script] = {
    name: one
    for name, one in migration_scripts.SCRIPTS.items()
    if one.__module__ == migration_scripts.__name__
}
WORKER_TIMEOUT_S = 60


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_goes_through_in_memory(name: str) -> None:
    """Each says itself what must come of it."""
    with MemoryWorld() as world:
        SCRIPTS[name](world)


# --- sizes --------------------------------------------------------------------------------------------


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """A model with a topic in which any record may be stamped late, so that windows leave holes."""
    with InMemoryKafka() as model:
        model.create_topic("orders", 2)
        random = Random(1)
        for _ in range(30_000):
            time_ms = BASE_MS + random.choice((1_000, 50_000))
            model.produce("orders", partition=0, timestamp_ms=time_ms, value=b"")
        model.produce("orders", partition=1, timestamp_ms=BASE_MS, value=b"")
        yield model


def test_a_map_that_does_not_fit_changes_nothing(kafka: InMemoryKafka) -> None:
    """The error names the partition and the size; what fills the holes makes it fit; shared, no such window is planned."""
    now = BASE_MS / 1000 + 1_000
    with OrderedWindows(kafka.settings, "g", clock=lambda: now) as windows:
        windows.commit(windows.plan(before("orders", 10, Earliest()), "early"))
        state, committed = windows.state(), kafka.committed("g")
        for dual in (False, True):
            with pytest.raises(
                OffsetMapTooLargeError, match=r"orders\[0\] \([45],\d{3}\)"
            ) as caught:
                windows.migrate("parallel-consumer", dual=dual)
            assert caught.value.limit == 4_096
        assert (windows.state(), kafka.committed("g")) == (state, committed)
        windows.reset_offsets("earliest")
        windows.migrate("ledger", dual=True)
        state = windows.state()
        with pytest.raises(OffsetMapTooLargeError, match=r"orders\[0\] \([45],\d{3}\)"):
            windows.plan(before("orders", 10), "early")
        assert windows.state() == state
        assert windows.show("early").status is WindowStatus.REWOUND
        windows.commit(windows.plan(before("orders", 100), "all"))
        assert windows.migrate("parallel-consumer").changed
        assert kafka.committed("g")[TopicPartition("orders", 0)] == CommittedOffset(30_000)


@pytest.mark.parametrize("to", ["dual", "kafka", None, 5])
def test_only_two_programs_can_have_a_group(to: object) -> None:
    """Anything else is refused before anything is touched."""
    with InMemoryKafka() as model, OrderedWindows(model.settings, "g") as windows:
        with pytest.raises(ConfigError):
            windows.migrate(to)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="dual"):
            windows.migrate("ledger", dual="yes")  # type: ignore[arg-type]


# --- on a broker -----------------------------------------------------------------------------------------


@pytest.fixture
def halfway(windows: OrderedWindows, topic: MakeTopic, produce: Produce) -> str:
    """A topic of which a window has taken offsets 0, 2, 3 and 6."""
    name = topic()
    produce(stamped(name, 0, 10, 1, 2, 20, 11, 3, 30))
    windows.commit(windows.plan(before(name, 5, Earliest()), "first"))
    return name


def committed(windows: OrderedWindows, topic: str) -> CommittedOffset:
    """What the broker has, to the byte."""
    tp = TopicPartition(topic, 0)
    found = read_committed_offsets(windows.settings, windows.group_id, [tp], timeout_s=TIMEOUT_S)
    commit = found[tp]
    assert commit is not None
    return commit


def killed(bootstrap: str, windows: OrderedWindows, point: MigrationKill, to: str) -> None:
    """Migrates in a process that dies at a point."""
    worker = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.support.migration_worker",
            point,
            bootstrap,
            windows.group_id,
            to,
        ],
        timeout=WORKER_TIMEOUT_S,
        check=False,
    )
    assert worker.returncode == -signal.SIGKILL


@pytest.mark.long
@pytest.mark.parametrize("point", MigrationKill)
def test_a_migration_is_all_or_nothing(
    bootstrap: str, windows: OrderedWindows, halfway: str, point: MigrationKill
) -> None:
    """Killed anywhere, there and back: the old state or the new one, and repeating it completes it."""
    ours = committed(windows, halfway)
    theirs = CommittedOffset(1, encode_parallel_consumer_map(1, OffsetSet.of((2, 4), (6, 7))))
    killed(bootstrap, windows, point, "parallel-consumer")
    state = windows.state()
    assert state is not None
    assert (state.format is ProgressFormat.PARALLEL_CONSUMER) is point.is_stored
    assert committed(windows, halfway) == (theirs if point.is_stored else ours)
    assert windows.migrate("parallel-consumer").changed is not point.is_stored
    assert committed(windows, halfway) == theirs
    with pytest.raises(GroupHandedOverError):
        windows.plan(before(halfway, 100), "rest")
    metadata = encode_parallel_consumer_map(1, OffsetSet.of((2, 4), (5, 7)))
    commit_offsets(bootstrap, windows.group_id, halfway, {0: (1, metadata)})
    killed(bootstrap, windows, point, "ledger")
    assert is_own_commit(committed(windows, halfway)) is point.is_stored
    assert windows.migrate("ledger").changed is not point.is_stored
    rest = windows.plan(before(halfway, 100), "rest")
    assert rest.taken == {TopicPartition(halfway, 0): OffsetSet.of((1, 2), (4, 5), (7, 8))}
    windows.commit(rest)
    assert committed(windows, halfway).offset == 8


def test_another_commit_right_after_a_migration_is_told_of(
    bootstrap: str, windows: OrderedWindows, halfway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read back is not what was written; the migration is stored, and repeating it says so."""
    check = windows._keeper._check_written

    def late(to: ProgressFormat) -> None:
        commit_offsets(bootstrap, windows.group_id, halfway, {0: (1, b"")})
        check(to)

    monkeypatch.setattr(windows._keeper, "_check_written", late)
    with pytest.raises(ForeignCommitError, match="the migration to parallel-consumer is stored"):
        windows.migrate("parallel-consumer")
    assert not windows.migrate("parallel-consumer").changed


def test_what_is_written_has_no_nul(windows: OrderedWindows, halfway: str) -> None:
    """Base and map are Parallel Consumer's to the byte, whether a window or a migration writes them."""
    windows.migrate("parallel-consumer", dual=True)
    found = committed(windows, halfway)
    # Bit by bit from offset 1: done are 2, 3 and 6.
    assert found == CommittedOffset(1, b"bAAGJgA=")
    windows.commit(windows.plan(before(halfway, 12), "next"))
    assert committed(windows, halfway) == CommittedOffset(4, b"bgABAAI=")
