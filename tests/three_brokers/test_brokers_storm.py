"""Two groups at work on a topic that is being written, while brokers are killed, frozen and restarted in turn."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import KafkaException, Producer

from kafka_ordered_ops import Earliest, Window
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC, ledger_partition
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.oracle.journal import Call, Journal, Recorder
from tests.support.oracle.plain import BrokerPlain
from tests.support.oracle.truth import Truth
from tests.support.oracle.verdict import settle, verdict
from tests.support.storm_worker import TIMEOUT_S
from tests.support.three_brokers import TRANSACTIONS, ThreeBrokers
from tests.support.windows_support import BASE_MS, at

PARTITIONS = 6
SPAN_MS = 100_000
WORKERS_EACH = 2

#: Each role is lost in each way once.
LOSSES = 12

#: No call may take longer: its own bound, the socket's for a broker that hangs inside a transaction, and what a
#: busy machine takes.
CALL_S = TIMEOUT_S + 10.0 + 5.0


class Writer:
    """Writes records of all times, in transactions and without, through whatever happens to the brokers."""

    def __init__(self, bootstrap: str, topic: str, random: Random) -> None:
        self._topic = topic
        self._random = random
        self._config: dict[str, str | int] = {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "message.timeout.ms": 20_000,
            "log_level": 0,
        }
        self._plain = Producer(self._config)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            # What became of a batch is seen in the log, whatever the client says.
            with contextlib.suppress(KafkaException):
                self._transaction()
            self._produce(self._plain)
            self._plain.flush(5)
            self._over.wait(0.1)

    def _transaction(self) -> None:
        name = f"writer-{self._random.randrange(3)}-{self._topic}"
        producer = Producer({**self._config, "transactional.id": name})
        producer.init_transactions(20)
        for _ in range(5):
            producer.begin_transaction()
            self._produce(producer)
            end = self._random.choice(
                [
                    producer.commit_transaction,
                    producer.commit_transaction,
                    producer.abort_transaction,
                ]
            )
            end(20)

    def _produce(self, producer: Producer) -> None:
        for _ in range(self._random.randint(1, 20)):
            with contextlib.suppress(BufferError):
                producer.produce(
                    self._topic,
                    value=b"x",
                    partition=self._random.randrange(PARTITIONS),
                    timestamp=BASE_MS + self._random.randrange(SPAN_MS),
                )


@contextmanager
def workers(
    brokers: ThreeBrokers, groups: list[str], topic: str, folder: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes at work until their standard input is closed, or the block ends."""
    arguments = [topic, str(BASE_MS), str(BASE_MS + SPAN_MS)]
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.storm_worker", brokers.bootstrap, group_id),
                *(*arguments, f"{group_id}-{number}", str(folder)),
            ],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        for group_id in groups
        for number in range(WORKERS_EACH)
    ]
    try:
        yield running
    finally:
        for worker in running:
            worker.kill()
            worker.wait()


def storm(
    brokers: ThreeBrokers, groups: list[str], topic: str, random: Random
) -> Counter[tuple[str, str]]:
    """Loses whoever has a role, each role and each kind of loss in turn; how often each came."""
    ledgers = [ledger_partition(LEDGER_TOPIC, group_id).partition for group_id in groups]
    roles: dict[str, Callable[[], int]] = {
        "leader": lambda: brokers.leader_of(topic, random.randrange(PARTITIONS)),
        "leader of the ledger": lambda: brokers.leader_of(LEDGER_TOPIC, random.choice(ledgers)),
        "group coordinator": lambda: brokers.coordinator_of_group(random.choice(groups)),
        "transaction coordinator": lambda: brokers.leader_of(TRANSACTIONS, random.randrange(6)),
    }
    faults = itertools.cycle(["kill", "pause", "end"])
    done: Counter[tuple[str, str]] = Counter()
    for role, fault in itertools.islice(zip(itertools.cycle(roles), faults, strict=False), LOSSES):
        node = roles[role]()
        getattr(brokers, fault)(node)
        done[fault, role] += 1
        brokers.await_led(without=node)
        # Work goes on without it.
        time.sleep(random.uniform(0, 2))
        brokers.heal()
    return done


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_record_is_in_one_window_whichever_brokers_are_lost(
    brokers: ThreeBrokers, tmp_path: Path
) -> None:
    """Leaders and coordinators go in turn under load: nothing lost, nothing twice, and every call ends in time."""
    topic = brokers.create(f"storm-{uuid.uuid4().hex[:6]}", PARTITIONS)
    groups = [f"{name}-{uuid.uuid4().hex[:6]}" for name in ("left", "right")]
    random = Random(groups[0])
    for group_id in groups:
        # Before anything goes wrong the ledger is there, and so are the coordinators' topics.
        with OrderedWindows({"bootstrap.servers": brokers.bootstrap}, group_id) as service:
            service.commit(
                service.plan(Window([topic], at(0), starting_offsets=Earliest()), "first")
            )
    with (
        Writer(brokers.bootstrap, topic, random),
        workers(brokers, groups, topic, tmp_path) as some,
    ):
        lost = storm(brokers, groups, topic, random)
        for worker in some:
            worker.communicate(timeout=2 * CALL_S)
    codes = [worker.returncode for worker in some]
    assert codes == [0] * len(codes), "a worker was told of something that does not pass by itself"

    plain = BrokerPlain(brokers.bootstrap)
    for group_id in groups:
        with (
            OrderedWindows({"bootstrap.servers": brokers.bootstrap}, group_id) as service,
            (tmp_path / f"{group_id}-end.jsonl").open("w") as lines,
        ):
            windows = settle(Recorder(service, "end", lines=lines), [topic], at(10_000))
        journal = Journal.read(*tmp_path.glob(f"{group_id}-*.jsonl"))
        assert verdict(Truth(plain, [topic]).look(), journal, windows) == []
        _check_calls(journal, lost)


def _check_calls(journal: Journal, lost: Counter[tuple[str, str]]) -> None:
    """Work was done in the storm, and no call of it took longer than it may."""
    told = Counter((call.name, call.error or "well") for call in journal)
    longest = max(journal, key=_took_s)
    longest_s = _took_s(longest)
    # For whoever measures: run with -s.
    print(
        f"{sum(lost.values())} losses, {dict(told)}; the longest took {longest_s:.1f} s: {longest}"
    )
    assert told["commit", "well"] >= 5
    assert longest_s < CALL_S, f"{longest} took {longest_s:.0f} s"


def _took_s(call: Call) -> float:
    assert call.ended is not None, f"{call} has no end"
    return (call.ended - call.began) / 1e9
