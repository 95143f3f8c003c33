"""The ledger's replicas: those the whole cluster should give it, whoever is down while it is made."""

from __future__ import annotations

import json
import logging
import re
import uuid

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import BrokerUnreachableError, ClientSettings, LedgerUnavailableError
from kafka_ordered_ops.core.group.ledger_rules import (
    LEDGER_CONFIG,
    LEDGER_PARTITIONS,
    Replication,
    in_sync_config,
    ledger_replicas,
)
from kafka_ordered_ops.kafka.client.errors import FaultReasons
from kafka_ordered_ops.kafka.internal_topics import InternalTopics
from kafka_ordered_ops.kafka.ledger.topic import LedgerTopic
from kafka_ordered_ops.kafka.lookup import Lookup
from tests.support.own_network import own_network
from tests.support.relay_servers import wait_until
from tests.support.three_brokers import ThreeBrokers

TIMEOUT_S = 60.0


@pytest.mark.parametrize(
    ("brokers", "wanted", "replicas"),
    [(1, 0, 1), (1, 1, 1), (2, 0, 2), (2, 3, 3), (1, 3, 3), (3, 1, 3), (9, 0, 3), (2, 1, 2)],
)
def test_a_new_ledger_gets_the_replicas_of_the_whole_cluster(
    brokers: int, wanted: int, replicas: int
) -> None:
    """Three where the cluster has them, known by its brokers or by what it makes of its own transactions."""
    assert ledger_replicas(brokers=brokers, wanted=wanted) == replicas
    assert in_sync_config(replicas).get("min.insync.replicas") == ("2" if replicas == 3 else None)


@given(
    st.integers(1, 6).flatmap(
        lambda size: st.lists(
            st.lists(st.integers(1, size), min_size=1, max_size=4, unique=True), min_size=1
        )
    ),
    st.frozensets(st.integers(1, 6)),
)
def test_the_reassignment_that_a_warning_gives_is_the_cure(
    replicas: list[list[int]], up: frozenset[int]
) -> None:
    """Every partition keeps its replicas and gets the missing ones, on brokers that exist; then it is well."""
    found = Replication(
        "ledger", up.union(*replicas), tuple(tuple(one) for one in replicas), min_in_sync=2
    )
    faults = found.faults("here:9092")
    if not faults:
        assert min(map(len, replicas)) >= min(3, len(found.brokers))
        return
    [fault] = faults
    told = re.search(r"ledger\.json: (\{.*\})\. Then", fault)
    assert told is not None
    moves = json.loads(told[1])["partitions"]
    assert [move["partition"] for move in moves] == list(range(len(replicas)))
    for move, before in zip(moves, replicas, strict=True):
        assert move["topic"] == "ledger"
        assert move["replicas"][: len(before)] == before
        assert len({*move["replicas"]}) == len(move["replicas"]) >= found.enough
        assert {*move["replicas"]} <= found.brokers
    cured = Replication("ledger", found.brokers, tuple(tuple(m["replicas"]) for m in moves), 2)
    assert cured.faults("here:9092") == []


@pytest.mark.parametrize(
    ("brokers", "replicas", "min_in_sync", "warnings"),
    [
        ({1}, 1, 1, []),
        ({1, 2}, 2, 1, []),
        ({1, 2}, 1, 1, ["1 of 2 replicas"]),
        ({1, 2, 3}, 3, 2, []),
        ({1, 2, 3}, 3, None, []),
        ({1, 2, 3}, 3, 1, ["min.insync.replicas=1"]),
        ({1, 2, 3}, 2, 2, ["2 of 3 replicas"]),
        ({1, 2, 3, 4}, 1, 1, ["1 of 3 replicas", "min.insync.replicas=1"]),
    ],
)
def test_what_may_lose_progress_is_told(
    brokers: set[int], replicas: int, min_in_sync: int | None, warnings: list[str]
) -> None:
    """Too few replicas, and changes that one broker alone may hold; never on one broker."""
    every = (tuple(sorted(brokers)[:replicas]),) * LEDGER_PARTITIONS
    faults = Replication("ledger", frozenset(brokers), every, min_in_sync).faults("here:9092")
    assert len(faults) == len(warnings)
    for fault, part in zip(faults, warnings, strict=True):
        assert part in fault
        assert "--bootstrap-server here:9092" in fault


def _topic(bootstrap: str, name: str) -> LedgerTopic:
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    return LedgerTopic(settings, Lookup(settings), name, FaultReasons())


def _ensure(bootstrap: str, name: str) -> None:
    """Create another topic of this package's own, by the same rule."""
    with InternalTopics(ClientSettings.from_mapping({"bootstrap.servers": bootstrap})) as topics:
        topics.ensure(name, 2, {"retention.ms": "-1"})


def _replicas(bootstrap: str, name: str) -> list[int]:
    """How many each partition has; a new name spreads over the brokers one by one."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found: list[int] = []

    def is_known() -> bool:
        topic = admin.list_topics(timeout=TIMEOUT_S).topics.get(name)
        found.extend(len(one.replicas) for one in (topic.partitions if topic else {}).values())
        return topic is not None

    wait_until(is_known)
    return found


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the ledger says, and not what the client says about a broker that is down."""
    return [
        one.getMessage()
        for one in caplog.records
        if one.name == "kafka_ordered_ops.ledger" and one.levelno == logging.WARNING
    ]


@pytest.fixture
def name() -> str:
    """A ledger of the test's own."""
    return f"__ledger-{uuid.uuid4().hex[:12]}"


def test_one_broker_gets_one_replica_without_a_word(
    bootstrap: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster of one has no other choice, and nobody can do anything about it."""
    assert _topic(bootstrap, name).open(create=True)
    assert _topic(bootstrap, name).open(create=False)
    assert _replicas(bootstrap, name) == [1] * LEDGER_PARTITIONS
    assert _warnings(caplog) == []


@pytest.mark.parametrize("fault", ["kill", "pause"])
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_ledger_made_while_a_broker_is_down_has_three_replicas(
    brokers: ThreeBrokers, name: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One is placed on the broker that is down, and is in sync when it is back."""
    brokers.create(f"orders-{fault}", 3)
    getattr(brokers, fault)(3)
    brokers.await_led(without=3)
    assert _topic(brokers.bootstrap, name).open(create=True)
    assert _replicas(brokers.bootstrap, name) == [3] * LEDGER_PARTITIONS
    _ensure(brokers.bootstrap, f"{name}-other")
    assert _replicas(brokers.bootstrap, f"{name}-other") == [3, 3]
    brokers.heal()  # and waits until all are in sync
    assert _topic(brokers.bootstrap, name).open(create=False)
    assert _warnings(caplog) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_ledger_that_may_lose_progress_is_told_once_a_process(
    brokers: ThreeBrokers, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is used as it is; each fault is one warning, with the command that fixes it."""
    config = {**LEDGER_CONFIG, "min.insync.replicas": "1"}
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.create_topics([NewTopic(name, LEDGER_PARTITIONS, 2, config=config)])[name].result(
        TIMEOUT_S
    )
    for _ in range(3):
        assert _topic(brokers.bootstrap, name).open(create=True)
    warnings = _warnings(caplog)
    assert len(warnings) == 2
    assert "2 of 3 replicas" in warnings[0]
    assert "kafka-reassign-partitions" in warnings[0]
    assert "min.insync.replicas=1" in warnings[1]
    assert "kafka-configs" in warnings[1]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_ledger_is_made_while_the_third_broker_has_never_been_there(name: str) -> None:
    """The cluster keeps three replicas of its own state, so one to come is waited for: a retriable error."""
    with own_network() as network, network.entered():
        brokers = ThreeBrokers()
        try:
            brokers.start(1, 2)
            topic = _topic(brokers.bootstrap, name)
            with pytest.raises(LedgerUnavailableError, match="too few brokers") as caught:
                topic.open(create=True)
            assert caught.value.retriable
            assert not topic.open(create=False)
            with pytest.raises(BrokerUnreachableError, match="too few brokers") as other:
                _ensure(brokers.bootstrap, f"{name}-other")
            assert other.value.retriable
            brokers.start(3)
            assert topic.open(create=True)
            assert _replicas(brokers.bootstrap, name) == [3] * LEDGER_PARTITIONS
            _ensure(brokers.bootstrap, f"{name}-other")
            assert _replicas(brokers.bootstrap, f"{name}-other") == [3, 3]
        finally:
            brokers.stop()
