"""Three brokers that a test may kill, freeze and restart one at a time.

Each is broker and controller in one, so that a lost node may be the leader of partitions, a coordinator
and the active controller at once, and two of three are left of everything.

Two listeners: the plain one, over which a test may do everything, and one with TLS and SASL (SCRAM), over which a
user may do what it was granted.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    TopicMetadata,
    UserScramCredentialUpsertion,
)

from kafka_ordered_ops.embedded.node import HOST, LOG_FILE, Guard, free_ports, kafka_uuid, launch
from tests.support.certificates import write_certificates
from tests.support.guarded import AUTHORIZER, grant

NODES = (1, 2, 3)
GROUP_OFFSETS = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"
_COORDINATORS = 6

#: Three nodes on two busy cores, from nothing or after a fault.
_WHOLE_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 30.0
_METADATA_TIMEOUT_S = 3.0
_POLL_S = 0.1
_LOG_TAIL_CHARACTERS = 3_000

#: Of every user of the guarded listener.
_PASSWORD = "three-secrets"
_SCRAM = "SCRAM-SHA-512"
_ITERATIONS = 4096

_SETTINGS = {
    **AUTHORIZER,
    "sasl.enabled.mechanisms": _SCRAM,
    "listener.name.guarded.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "listener.name.guarded.ssl.keystore.type": "PEM",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    # For clients that name their rack.
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": str(_COORDINATORS),
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": str(_COORDINATORS),
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # Records of these tests are years old.
    "log.retention.ms": "-1",
    "log.message.timestamp.after.max.ms": str(2**63 - 1),
    "num.network.threads": "2",
    "num.io.threads": "4",
}


class ThreeBrokers:
    """The cluster. In what network it is, whoever starts it decides."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kafka-ordered-ops-three-"))
        self._cluster_id = kafka_uuid()
        left = iter(free_ports(3 * len(NODES)))
        self._ports, self._controller_ports, self._guarded_ports = (
            {node: next(left) for node in NODES} for _ in range(3)
        )
        self._authority, self._keys = write_certificates(self.folder, HOST)
        self._guards: dict[int, Guard] = {}

    @property
    def bootstrap(self) -> str:
        """The value for ``bootstrap.servers``: all three."""
        return ",".join(self.address(node) for node in NODES)

    def address(self, node: int) -> str:
        """One node's address."""
        return f"{HOST}:{self._ports[node]}"

    def rack(self, node: int) -> str:
        """Where a node is: each is alone there."""
        return f"rack-{node}"

    def settings_of(self, user: str) -> dict[str, str]:
        """How a user that was let in (`let_in`) comes to the guarded listener."""
        return {
            "bootstrap.servers": ",".join(
                f"{HOST}:{port}" for port in self._guarded_ports.values()
            ),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self._authority),
            "sasl.mechanism": _SCRAM,
            "sasl.username": user,
            "sasl.password": _PASSWORD,
        }

    def let_in(self, user: str) -> dict[str, str]:
        """Makes a user without any right; returns its settings once every broker knows it."""
        secret = UserScramCredentialUpsertion(
            user,
            ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS),
            _PASSWORD.encode(),
        )
        admin = self._admin(*NODES)
        admin.alter_user_scram_credentials([secret])[user].result(_END_TIMEOUT_S)
        self._await(lambda: self._unknown(user), _WHOLE_TIMEOUT_S)
        return self.settings_of(user)

    def grant(self, user: str, rights: Collection[AclBinding]) -> None:
        """Grants exactly these rights to a user; returns when every broker has taken note."""
        every = [self.address(node) for node in self._guards]
        grant(self.bootstrap, rights, user=user, brokers=every)

    def start(self, *nodes: int) -> None:
        """Starts all three, or some of them first, and returns when those that run know each other."""
        for node in nodes or NODES:
            self._launch(node)
        self._await(lambda: self._missing([*self._guards]), _WHOLE_TIMEOUT_S)

    def stop(self) -> None:
        """Ends all and deletes their data."""
        for guard in self._guards.values():
            guard.end("kill")
        self._guards.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self, node: int) -> None:
        """Ends a node with SIGKILL; its data stay."""
        self._guards.pop(node).end("kill")

    def pause(self, node: int) -> None:
        """Freezes a node: its connections stay open, and nothing answers (SIGSTOP)."""
        self._guards[node].order("stop")

    def resume(self, node: int) -> None:
        """Lets a frozen node go on (SIGCONT)."""
        self._guards[node].order("cont")

    def end(self, node: int) -> None:
        """Ends a node in good order: its leaderships are handed over first."""
        self._guards.pop(node).end("term", _END_TIMEOUT_S)

    def start_again(self, node: int) -> None:
        """Starts a node that was killed or ended, without waiting for it."""
        self._launch(node)

    def heal(self) -> None:
        """Ends every fault, and returns when the cluster is whole."""
        for node in NODES:
            if node in self._guards and self._guards[node].alive:
                self.resume(node)
            else:
                self._launch(node)
        self.await_whole()

    def log(self, node: int) -> str:
        """The end of what a node wrote."""
        file = self.folder / str(node) / LOG_FILE
        return file.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL_CHARACTERS:]

    # --- what the cluster says of itself --------------------------------------------------------

    def topics(self) -> dict[str, TopicMetadata]:
        """The metadata of all topics."""
        return dict(self._admin(*NODES).list_topics(timeout=_METADATA_TIMEOUT_S).topics)

    def leader_of(self, topic: str, partition: int) -> int:
        """The node that leads a partition now; -1 while there is none."""
        return int(self.topics()[topic].partitions[partition].leader)

    def coordinator_of_group(self, group_id: str) -> int:
        """The node that keeps a group's committed offsets."""
        return self._coordinator(GROUP_OFFSETS, group_id)

    def coordinator_of_transactions(self, transactional_id: str) -> int:
        """The node that keeps the state of a transactional id."""
        return self._coordinator(TRANSACTIONS, transactional_id)

    def _coordinator(self, topic: str, name: str) -> int:
        partitions = self.topics()[topic].partitions
        return int(partitions[java_hash(name) % len(partitions)].leader)

    def await_whole(self, timeout_s: float = _WHOLE_TIMEOUT_S) -> None:
        """Until all three are there, and every partition has a leader and all of its replicas in sync."""
        self._await(lambda: self._missing(NODES), timeout_s)

    def await_led(self, without: int, timeout_s: float = _WHOLE_TIMEOUT_S) -> None:
        """Until the cluster has noticed that a node is gone: every partition is led by another."""
        self._await(lambda: self._missing([node for node in NODES if node != without]), timeout_s)

    def create(self, name: str, partitions: int, **config: str) -> str:
        """Makes a topic with three replicas, of which two must have a record."""
        new = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=len(NODES),
            config={"min.insync.replicas": "2", "retention.ms": "-1", **config},
        )
        admin = self._admin(*NODES)
        admin.create_topics([new])[name].result(_WHOLE_TIMEOUT_S)
        self.await_whole()
        return name

    def _unknown(self, user: str) -> str | None:
        for node in self._guards:
            admin = self._admin(node)
            try:
                futures: Any = admin.describe_user_scram_credentials([user])
                futures[user].result(_END_TIMEOUT_S)
            except KafkaException as error:
                return f"{node} does not know {user}: {error}"
        return None

    def _missing(self, nodes: Sequence[int]) -> str | None:
        """What is still wanting for a cluster of exactly these nodes, as each of them sees it.

        One that was frozen has, for a moment, the view of before.
        """
        for asked in nodes:
            try:
                found = self._admin(asked).list_topics(timeout=_METADATA_TIMEOUT_S)
            except KafkaException as error:
                return f"{asked} does not answer: {error}"
            if sorted(found.brokers) != sorted(nodes):
                return f"the brokers are {sorted(found.brokers)}, says {asked}"
            for name, topic in found.topics.items():
                for number, part in topic.partitions.items():
                    in_sync = sorted(part.isrs)
                    if part.leader not in nodes or in_sync != sorted({*part.replicas} & {*nodes}):
                        led = f"led by {part.leader}, in sync are {in_sync}"
                        return f"{name}[{number}] is {led}, says {asked}"
        return None

    def _await(self, missing: Callable[[], str | None], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (wanting := missing()) is not None:
            if time.monotonic() > deadline:
                logs = "".join(f"\n--- {node}\n{self.log(node)}" for node in self._guards)
                raise AssertionError(f"after {timeout_s:.0f} s: {wanting}{logs}")
            time.sleep(_POLL_S)

    def _admin(self, *nodes: int) -> AdminClient:
        servers = ",".join(self.address(node) for node in nodes)
        # A node that is away is what these tests are about; the client's own lines would only look like trouble.
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda _: None}
        return AdminClient({"bootstrap.servers": servers, **quiet})

    def _launch(self, node: int) -> None:
        voters = ",".join(f"{one}@{HOST}:{self._controller_ports[one]}" for one in NODES)
        controller = f"{HOST}:{self._controller_ports[node]}"
        ways_in = f"PLAINTEXT://{self.address(node)},GUARDED://{HOST}:{self._guarded_ports[node]}"
        settings = {
            **_SETTINGS,
            "listener.name.guarded.ssl.keystore.location": str(self._keys),
            "node.id": str(node),
            "broker.rack": self.rack(node),
            "controller.quorum.voters": voters,
            "listeners": f"{ways_in},CONTROLLER://{controller}",
            "advertised.listeners": ways_in,
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,GUARDED:SASL_SSL,CONTROLLER:PLAINTEXT"
            ),
        }
        folder = self.folder / str(node)
        folder.mkdir(exist_ok=True)
        self._guards[node] = launch(
            folder, settings, remove=self.folder, cluster_id=self._cluster_id
        )


@contextmanager
def three_brokers() -> Iterator[ThreeBrokers]:
    """A cluster of three, started, and gone with its data at the end."""
    brokers = ThreeBrokers()
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.stop()


def java_hash(text: str) -> int:
    """What Kafka finds a coordinator's partition by: Java's hash of the text, as it makes it positive."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be")):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >> 31 else value
    return 0 if signed == -(1 << 31) else abs(signed)
