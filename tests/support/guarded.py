"""Rights on a real cluster: what a principal may do, granted and taken away by whoever may do everything."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kafka_ordered_ops.core.group.ledger_rules import transactional_id
from kafka_ordered_ops.embedded import EmbeddedKafka, Listener, free_port
from tests.support.windows_support import TIMEOUT_S

#: Broker settings: access rules are on, and whoever comes over the plain listener may do everything.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
JOB = "job"


def right(
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    *,
    user: str = JOB,
) -> AclBinding:
    """One right of a principal."""
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def grant(
    bootstrap: str,
    rights: Collection[AclBinding],
    *,
    user: str = JOB,
    brokers: Collection[str] = (),
) -> None:
    """Grants exactly these rights to a principal; returns when each of the brokers has taken note."""
    anything: Any = None
    every = AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        f"User:{user}",
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_acls([every]).values():
        future.result(TIMEOUT_S)
    for future in (admin.create_acls([*rights]) if rights else {}).values():
        future.result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    for broker in brokers or [bootstrap]:
        asked = AdminClient({"bootstrap.servers": broker})
        while {*asked.describe_acls(every).result(TIMEOUT_S)} != {*rights}:
            assert time.monotonic() < deadline, f"{broker} has not taken note of the rights"
            time.sleep(0.05)


def rights_of(
    bootstrap: str, topic: str, ledger: str, group_id: str, *, user: str = JOB
) -> dict[str, AclBinding]:
    """All that planning and committing windows of a topic needs: the table in `docs/ledger.md`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    cluster_id = admin.describe_cluster().result(TIMEOUT_S).cluster_id
    own_id = transactional_id(cluster_id, group_id)
    return {
        what: right(kind, name, operation, user=user)
        for what, kind, name, operation in (
            ("read the topic", ResourceType.TOPIC, topic, AclOperation.READ),
            ("read the ledger", ResourceType.TOPIC, ledger, AclOperation.READ),
            ("write the ledger", ResourceType.TOPIC, ledger, AclOperation.WRITE),
            ("create the ledger", ResourceType.TOPIC, ledger, AclOperation.CREATE),
            ("read the group", ResourceType.GROUP, group_id, AclOperation.READ),
            ("write the transaction", ResourceType.TRANSACTIONAL_ID, own_id, AclOperation.WRITE),
        )
    }


@dataclass(frozen=True)
class Guarded:
    """A broker on which ``job`` may do only what it was granted; its own name may do everything."""

    bootstrap: str
    job: Mapping[str, str]

    def grant(self, *rights: AclBinding) -> None:
        """Grants exactly these rights to the job."""
        grant(self.bootstrap, rights)

    def rights_of(self, topic: str, ledger: str, group_id: str) -> dict[str, AclBinding]:
        """All that planning and committing windows of a topic needs."""
        return rights_of(self.bootstrap, topic, ledger, group_id)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """A broker with access rules."""
    port = free_port()
    properties = {
        **AUTHORIZER,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.guarded.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_job="secret";'
        ),
    }
    way_in = Listener("GUARDED", port, "SASL_PLAINTEXT")
    with EmbeddedKafka(properties, listeners=[way_in]) as kafka:
        job = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "job",
            "sasl.password": "secret",
        }
        yield Guarded(kafka.bootstrap, job)
