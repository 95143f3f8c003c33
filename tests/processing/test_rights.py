"""A cluster with access rules: the documented rights are enough, and a missing one is named before a record is processed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kafka_ordered_ops import AuthorizationError, OrderedWindows, Window
from kafka_ordered_ops.processing import NewRecord, Processor, Record, process_window
from tests.support.cli_support import cli
from tests.support.guarded import Guarded, right
from tests.support.guarded import guarded as guarded
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

RECORDS = 20


@dataclass
class Job:
    """A principal with a topic, a group, and topics to write to."""

    cluster: Guarded
    topic: str
    out: str
    dead: str
    group_id: str
    ledger: str

    @classmethod
    def of(cls, cluster: Guarded) -> Job:
        """Make the topics, and fill the first."""
        suffix = uuid.uuid4().hex[:8]
        job = cls(cluster, *(f"{one}-{suffix}" for one in ("in", "out", "dead", "g", "koo")))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        names = (job.topic, job.out, job.dead)
        new = [NewTopic(one, 1, config={"retention.ms": "-1"}) for one in names]
        for future in admin.create_topics(new).values():
            future.result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(RECORDS):
            producer.produce(job.topic, value=str(number).encode(), timestamp=BASE_MS + number)
        assert producer.flush(TIMEOUT_S) == 0
        return job

    def rights_to_produce(self) -> dict[str, AclBinding]:
        """Those of `docs/processing.md` for a member that writes."""
        topic, write = ResourceType.TOPIC, AclOperation.WRITE
        return {
            "READ on topic": right(topic, self.topic, AclOperation.READ),
            "READ on group": right(ResourceType.GROUP, self.group_id, AclOperation.READ),
            "WRITE on transactional id": right(
                ResourceType.TRANSACTIONAL_ID, self.group_id, write, ResourcePatternType.PREFIXED
            ),
            "WRITE on dead": right(topic, self.dead, write),
            "WRITE on out": right(topic, self.out, write),
        }

    def rights_of_window(self) -> dict[str, AclBinding]:
        """Those of `docs/ledger.md`, and to write dead letters."""
        rights = self.cluster.rights_of(self.topic, self.ledger, self.group_id)
        dead = right(ResourceType.TOPIC, self.dead, AclOperation.WRITE)
        return {**rights, "write dead letters": dead}

    @property
    def processor(self) -> Processor:
        """With dead letters."""
        return Processor(
            self.cluster.job, retries=0, dead_letter_topic=self.dead, stall_timeout_s=30
        )


@pytest.fixture
def job(guarded: Guarded) -> Job:
    """A new job on the cluster."""
    return Job.of(guarded)


def charge(job: Job, seen: list[int]) -> Callable[[Record], NewRecord]:
    """A function that writes a record for each, but for one that fails."""

    def function(record: Record) -> NewRecord:
        seen.append(record.offset)
        if record.offset == 7:
            raise ValueError("poison")
        return NewRecord(job.out, record.key, record.value)

    return function


@pytest.mark.long
def test_a_member_that_writes_needs_its_documented_rights(job: Job) -> None:
    """Each missing one ends it with an error that names the right; with all of them every record is done."""
    rights = job.rights_to_produce()
    missing = {
        "READ on topic": ("topic", job.topic),
        "READ on group": ("group", job.group_id),
        "WRITE on transactional id": ("transactional id", job.group_id),
        "WRITE on dead": ("WRITE on topic", job.dead),
    }
    for what, told in missing.items():
        job.cluster.grant(*(one for name, one in rights.items() if name != what))
        seen: list[int] = []
        run = job.processor.subscribe(
            job.topic, charge(job, seen), group_id=job.group_id, produce="transactional"
        )
        with pytest.raises(AuthorizationError) as caught:
            next(run)
        assert all(one in str(caught.value) for one in told), (what, caught.value)
        assert not seen, what
    # Where a function writes to is known when it returns: its records are not done.
    job.cluster.grant(*(one for name, one in rights.items() if name != "WRITE on out"))
    run = job.processor.subscribe(
        job.topic, charge(job, []), group_id=job.group_id, produce="transactional"
    )
    with pytest.raises(AuthorizationError, match=job.out):
        list(run)
    job.cluster.grant(*rights.values())
    with job.processor as processor:
        run = processor.subscribe(
            job.topic, charge(job, []), group_id=job.group_id, produce="transactional"
        )
        done = list(islice(run, RECORDS))
    assert sorted(one.record.offset for one in done) == list(range(RECORDS))


@pytest.mark.parametrize("words", [(), ("--cutoff", "now")])
def test_a_read_without_a_group_needs_a_right_on_its_topics_alone(
    job: Job, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Also up to a cutoff, which is planned for nobody: no right on a group, nor on the ledger."""
    job.cluster.grant(right(ResourceType.TOPIC, job.topic, AclOperation.READ))
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in job.cluster.job.items()))
    outcome = cli("read", job.topic, "--config", config, *words)
    assert (outcome.code, outcome.stdout.count("\n")) == (0, RECORDS), outcome.stderr


def test_a_window_needs_the_rights_of_its_group_and_of_its_dead_letters(job: Job) -> None:
    """Each missing one is named, and nothing is processed; with all of them the window is done."""
    rights = job.rights_of_window()
    named = {
        "read the topic": job.topic,
        "read the ledger": job.ledger,
        "write the ledger": job.ledger,
        "read the group": job.group_id,
        "write the transaction": str(rights["write the transaction"].name),
        "write dead letters": job.dead,
    }
    window = Window(job.topic, cutoff=at(100), starting_offsets="earliest")
    seen: list[int] = []

    def attempt() -> int:
        with OrderedWindows(job.cluster.job, job.group_id, ledger_topic=job.ledger) as windows:
            function = charge(job, seen)
            done = process_window(windows, window, function, window_id="w", processor=job.processor)
            return done.succeeded

    # The ledger is there when rights on it are taken away.
    job.cluster.grant(*rights.values())
    with OrderedWindows(job.cluster.job, job.group_id, ledger_topic=job.ledger) as windows:
        windows.plan(window, "w")
    for what, name in named.items():
        job.cluster.grant(
            *(one for key, one in rights.items() if key not in (what, "create the ledger"))
        )
        with pytest.raises(AuthorizationError) as caught:
            attempt()
        assert name in str(caught.value), (what, caught.value)
        assert not seen, what
    job.cluster.grant(*rights.values())
    assert attempt() == RECORDS - 1
    assert sorted(seen) == list(range(RECORDS))
