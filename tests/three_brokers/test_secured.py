"""Three brokers with TLS, SCRAM and access rules: exactly the rights of `docs/ledger.md` are needed, and enough.

Principals come over the guarded listener; the test itself grants and takes away over the plain one.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AclBinding, AclOperation, AdminClient, NewTopic, ResourceType

from kafka_ordered_ops import AuthenticationError, AuthorizationError, BrokerError, Earliest, Window
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_PARTITIONS, ledger_partition
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.guarded import right, rights_of
from tests.support.logs import read_plan
from tests.support.three_brokers import NODES, ThreeBrokers
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at
from tests.three_brokers.test_brokers_lost import retried

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

RECORDS = 60
_COMPACTED = {"cleanup.policy": "compact", "min.insync.replicas": "2"}

Captured = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Team:
    """A principal with a topic, a group and a ledger of its own."""

    brokers: ThreeBrokers
    user: str
    settings: dict[str, str]
    topic: str
    group_id: str
    ledger: str
    rights: dict[str, AclBinding]

    @classmethod
    def of(cls, brokers: ThreeBrokers, user: str) -> Team:
        """Lets the principal in and grants it the documented rights."""
        topic = brokers.create(f"orders-{user}", 3)
        ledger, group_id = f"koo-{user}", f"hourly-{user}"
        new = NewTopic(ledger, LEDGER_PARTITIONS, len(NODES), config=_COMPACTED)
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([new])[ledger].result(TIMEOUT_S)
        brokers.await_whole()
        producer = Producer({"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True})
        for number in range(RECORDS):
            stamp = BASE_MS + number * 1000
            producer.produce(topic, value=b"x", partition=number % 3, timestamp=stamp)
        assert producer.flush(TIMEOUT_S) == 0
        rights = rights_of(brokers.bootstrap, topic, ledger, group_id, user=user)
        # The ledger is there: whoever made it had this right.
        del rights["create the ledger"]
        rights["see the ledger's settings"] = right(
            ResourceType.TOPIC, ledger, AclOperation.DESCRIBE_CONFIGS, user=user
        )
        team = cls(brokers, user, brokers.let_in(user), topic, group_id, ledger, rights)
        team.grant()
        return team

    def grant(self, *, without: str | None = None) -> None:
        """Grants the documented rights, or all but one."""
        kept = [one for what, one in self.rights.items() if what != without]
        self.brokers.grant(self.user, kept)

    def open(self) -> OrderedWindows:
        """The service, as a new process of the team has it."""
        return OrderedWindows(self.settings, self.group_id, ledger_topic=self.ledger, timeout_s=60)

    def window(self, seconds: int) -> Window:
        """All records before a moment."""
        return Window([self.topic], at(seconds), starting_offsets=Earliest())

    @property
    def transactional_id(self) -> str:
        """The literal id that the team has a right on."""
        return str(self.rights["write the transaction"].name)


@pytest.fixture
def team(brokers: ThreeBrokers) -> Iterator[Callable[[str], Team]]:
    """Makes teams, whose rights go with the test."""
    made: list[Team] = []

    def make(name: str) -> Team:
        made.append(Team.of(brokers, f"{name}-{uuid.uuid4().hex[:6]}"))
        return made[-1]

    yield make
    for one in made:
        brokers.grant(one.user, [])


def run(team: Team, folder: Path, capfd: Captured, *words: str) -> tuple[int, Any]:
    """A command of the command line as the team's principal: exit code and JSON."""
    config = folder / "client.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in team.settings.items()))
    capfd.readouterr()
    code = main([*words, "--config", str(config), "--ledger-topic", team.ledger, "--json"])
    return int(code), json.loads(capfd.readouterr().out)


@pytest.mark.long
def test_exactly_the_documented_rights_are_enough_and_each_is_needed(
    team: Callable[[str], Team],
    tmp_path: Path,
    capfd: Captured,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With all of them everything works and nothing is warned of; without one, the error and doctor name that one."""
    own = team("ann")
    with caplog.at_level(logging.WARNING), own.open() as windows:
        preview = windows.preview(own.window(20), "first")
        plan = windows.plan(own.window(20), "first")
        assert plan.taken == preview.taken
        read = read_plan(windows.settings, plan)
        assert len(read) == 20
        windows.commit(plan)
        assert windows.live(own.window(20)).is_live
        assert [one.plan.window_id for one in windows.list()] == ["first"]
    assert [one.message for one in caplog.records if one.name == "kafka_ordered_ops.ledger"] == []
    where = ("-g", own.group_id)
    code, found = run(own, tmp_path, capfd, "groups", "list")
    assert (code, [one["group"] for one in found["groups"]]) == (0, [own.group_id])
    code, found = run(own, tmp_path, capfd, "lag", *where)
    assert (code, found["lag"]) == (0, RECORDS - 20)
    code, found = run(own, tmp_path, capfd, "doctor", *where)
    states = {one["name"]: one for one in found["checks"]}
    assert (code, states["rights"]["state"], states["ledger"]["state"]) == (0, "ok", "ok")
    printed = f"--operation WRITE --transactional-id {own.transactional_id}"
    assert own.transactional_id in states["transactions"]["text"]
    assert states["transactions"]["text"].endswith(printed)

    needed = {
        "read the topic": f"READ on topic {own.topic}",
        "read the ledger": f"READ on topic {own.ledger}",
        "write the ledger": f"WRITE on topic {own.ledger}",
        "read the group": f"READ on group {own.group_id}",
        "write the transaction": f"WRITE on transactional id {own.transactional_id}",
    }
    for without, named in needed.items():
        own.grant(without=without)
        with own.open() as windows:
            with pytest.raises(AuthorizationError) as caught:
                windows.plan(own.window(40), "second")
            assert [str(one) for one in caught.value.missing] == [named], without
            assert own.settings["sasl.password"] not in str(caught.value)
        code, found = run(own, tmp_path, capfd, "doctor", *where)
        failed = [one["text"] for one in found["checks"] if one["state"] == "failed"]
        assert (code, failed) == (4, [f"missing: {named}"]), without
    own.grant(without="see the ledger's settings")
    code, found = run(own, tmp_path, capfd, "doctor", *where)
    [warned] = [one["text"] for one in found["checks"] if one["state"] == "warning"]
    assert (code, "DESCRIBE_CONFIGS" in warned) == (0, True)
    own.grant()
    with own.open() as windows:
        plan = windows.plan(own.window(40), "second")
        assert (plan.attempt, plan.offsets) == (1, 20)
        assert windows.commit(plan).status.is_done


@pytest.mark.long
@pytest.mark.parametrize("of_the_group", [False, True])
def test_asking_for_rights_does_not_disturb_a_change_that_is_under_way(
    team: Callable[[str], Team], tmp_path: Path, capfd: Captured, of_the_group: bool
) -> None:
    """Doctor asks about the very id that a transaction has open, and that transaction commits.

    One that is open in the group's own partition hides its end, and doctor says so.
    """
    own = team("ann")
    of_group = ledger_partition(own.ledger, own.group_id).partition
    partition = of_group if of_the_group else (of_group + 1) % LEDGER_PARTITIONS
    producer = Producer({**own.settings, "transactional.id": own.transactional_id})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(own.ledger, key=b"other", value=b"x", partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    code, found = run(own, tmp_path, capfd, "doctor", "-g", own.group_id)
    failed = [one["text"] for one in found["checks"] if one["state"] == "failed"]
    assert (code, len(failed)) == ((4, 1) if of_the_group else (0, 0)), failed
    assert all(f"{own.ledger}[{partition}]" in one for one in failed)
    assert all("a transaction of another process is open there" in one for one in failed)
    producer.commit_transaction(TIMEOUT_S)


def test_one_team_cannot_fence_read_or_change_another_team_s_group(
    brokers: ThreeBrokers, team: Callable[[str], Team]
) -> None:
    """Whatever it tries with its own rights is refused, and the other's open window is as it was."""
    mine, theirs = team("ann"), team("bob")
    with theirs.open() as windows:
        windows.commit(windows.plan(theirs.window(20), "first"))
        plan = windows.plan(theirs.window(40), "second")

    def refused(call: Callable[[], object]) -> int:
        with pytest.raises(KafkaException) as caught:
            call()
        return int(caught.value.args[0].code())

    def fence() -> None:
        settings = {**mine.settings, "transactional.id": theirs.transactional_id}
        Producer(settings).init_transactions(TIMEOUT_S)

    def write() -> None:
        errors: list[KafkaError | None] = []
        producer = Producer(mine.settings)
        producer.produce(
            theirs.ledger, b"{}", key=b"x", on_delivery=lambda error, _: errors.append(error)
        )
        assert producer.flush(TIMEOUT_S) == 0
        [error] = errors
        assert error is not None
        raise KafkaException(error)

    def read() -> None:
        # A client fetches nothing from a topic whose description is refused.
        admin = AdminClient({**mine.settings})
        error = admin.list_topics(theirs.ledger, timeout=TIMEOUT_S).topics[theirs.ledger].error
        assert error is not None
        raise KafkaException(error)

    def commit() -> None:
        offsets = [TopicPartition(mine.topic, 0, 1)]
        asked = ConsumerGroupTopicPartitions(theirs.group_id, offsets)
        admin = AdminClient({**mine.settings})
        admin.alter_consumer_group_offsets([asked])[theirs.group_id].result(TIMEOUT_S)

    assert refused(fence) == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert refused(write) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert refused(read) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert refused(commit) == KafkaError.GROUP_AUTHORIZATION_FAILED
    # The package itself, by mistake: the other's group on the own ledger, and the own group on the other's.
    for group_id, ledger in ((theirs.group_id, mine.ledger), (mine.group_id, theirs.ledger)):
        with (
            OrderedWindows(mine.settings, group_id, ledger_topic=ledger, timeout_s=60) as windows,
            pytest.raises(AuthorizationError),
        ):
            windows.plan(mine.window(20), "w")
    with OrderedWindows(mine.settings, theirs.group_id, ledger_topic=theirs.ledger) as windows:
        for look in (windows.list, windows.state, windows.summaries):
            with pytest.raises(AuthorizationError, match=f"READ on topic {theirs.ledger}"):
                look()
    with theirs.open() as windows:
        assert windows.show("second").plan == plan
        assert windows.commit(plan).status.is_done


def test_a_cluster_with_another_password_is_refused_by_name(brokers: ThreeBrokers) -> None:
    """TLS and SCRAM are really on: neither a wrong password nor a plain connection gets in."""
    user = f"eve-{uuid.uuid4().hex[:6]}"
    settings = {**brokers.let_in(user), "sasl.password": "another"}
    with (
        OrderedWindows(settings, "g", timeout_s=20) as windows,
        pytest.raises(AuthenticationError),
    ):
        windows.list()
    settings = {**brokers.settings_of(user), "security.protocol": "SASL_PLAINTEXT"}
    with OrderedWindows(settings, "g", timeout_s=5) as windows, pytest.raises(BrokerError):
        windows.list()


@pytest.mark.long
def test_windows_stay_exact_while_leaders_and_coordinators_are_killed(
    brokers: ThreeBrokers, team: Callable[[str], Team]
) -> None:
    """With its rights alone: each role is lost by SIGKILL before a plan or a commit; in the end no record is missing and none comes twice."""
    own = team("ann")
    roles: list[Callable[[], int]] = [
        lambda: brokers.leader_of(own.topic, 0),
        lambda: brokers.leader_of(own.ledger, ledger_partition(own.ledger, own.group_id).partition),
        lambda: brokers.coordinator_of_group(own.group_id),
        lambda: brokers.coordinator_of_transactions(own.transactional_id),
    ]
    seen: list[tuple[str, int, int]] = []
    with own.open() as windows:
        windows.commit(windows.plan(own.window(0), "none"))

        def deliver(seconds: int, role: Callable[[], int], *, is_planned: bool) -> None:
            if is_planned:
                windows.plan(own.window(seconds), f"w{seconds}")
            brokers.kill(lost := role())
            plan = retried(lambda: windows.plan(own.window(seconds), f"w{seconds}"))
            seen.extend(retried(lambda: read_plan(windows.settings, plan)))
            assert retried(lambda: windows.commit(plan)).status.is_done
            brokers.start_again(lost)
            brokers.await_whole()

        for number, role in enumerate(roles, 1):
            deliver(number * RECORDS // len(roles), role, is_planned=number % 2 == 0)
    assert sorted(seen) == [
        (own.topic, partition, offset) for partition in range(3) for offset in range(RECORDS // 3)
    ]
