"""The options of a relay server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafka_ordered_ops.core.arguments import check_count, check_text, check_timeout_s
from kafka_ordered_ops.core.cluster.membership import check_member_topics
from kafka_ordered_ops.core.cluster.names import check_group
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.relay.log_records import TEXT_CHARACTERS_MAX
from kafka_ordered_ops.core.types import GroupProtocol, Isolation, OnDataLoss
from kafka_ordered_ops.core.window.bounds import Bound, Earliest
from kafka_ordered_ops.relay.limits import Limits
from kafka_ordered_ops.relay.log import check_topics

#: The servers of one relay are the members of this group.
RELAY_GROUP: Final = "kafka-ordered-ops-relay"
ATTEMPTS_MAX: Final = 5
#: Without a heartbeat for this time, a server's partitions are assigned to others.
SESSION_TIMEOUT_S: Final = 10.0
TIMEOUT_S: Final = 10.0
COMMIT_INTERVAL_S: Final = 5.0
#: The number of log records between two snapshots.
SNAPSHOT_RECORDS: Final = 50_000
_LIMITS: Final = Limits()
_NAME_LENGTH_MAX: Final = 200


@dataclass(frozen=True, kw_only=True)
class RelayOptions:
    """The options of a relay server; invalid values raise `ConfigError`.

    Args:
        topics: names of existing topics. All servers of a relay serve the same topics.
        relay_group: the group of the servers. A server ends if another group's servers serve one of its topics.
        server_name: unique among the running servers, and the same after a restart. A killed server that restarts
            with its name within `session_timeout_s` gets its partitions back at once. Only with the protocol ``classic``.
        isolation: under ``read_committed``, aborted records and those of open transactions are not visible.
        starting_offsets: where groups without a committed offset begin.
        attempts_max: after this many leases without an acknowledgement, a record goes to the dead-letter topic; None sets
            no limit. Leases of readers that may not acknowledge do not count.
        dead_letter_topic: an existing topic; None hands out records without a limit.
        on_data_loss: whether records that retention removed before they were read, or that cannot be decoded, stop their
            partition, or are acknowledged with a warning.
        records_max: how many records of one group are held in one partition.
        held_bytes_max: approximate bytes of the held records of all groups and partitions.
        groups_max: how many groups are read at the same time.
        session_timeout_s: how long the partitions of a dead server wait for another one.
        protocol: the group protocol with which the servers share the partitions.
        timeout_s: the timeout of each write and each request.
        commit_interval_s: how often the groups' committed offsets are updated.
        snapshot_records: the approximate length of a partition's log before it is trimmed.
    """

    topics: frozenset[str]
    relay_group: str = RELAY_GROUP
    server_name: str | None = None
    isolation: Isolation = Isolation.READ_COMMITTED
    starting_offsets: Bound = Earliest()  # noqa: RUF009 - a frozen value
    attempts_max: int | None = ATTEMPTS_MAX
    dead_letter_topic: str | None = None
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    records_max: int = _LIMITS.held_records_max
    held_bytes_max: int = _LIMITS.held_bytes_max
    groups_max: int = _LIMITS.groups_max
    session_timeout_s: float = SESSION_TIMEOUT_S
    protocol: GroupProtocol = GroupProtocol.CLASSIC
    timeout_s: float = TIMEOUT_S
    commit_interval_s: float = COMMIT_INTERVAL_S
    snapshot_records: int = SNAPSHOT_RECORDS

    def __post_init__(self) -> None:
        check_topics(check_member_topics(self.topics))
        check_group(self.relay_group, what="relay_group", length_max=TEXT_CHARACTERS_MAX)
        if self.server_name is not None:
            check_text(self.server_name, what="server_name", length_max=_NAME_LENGTH_MAX)
            if self.protocol is GroupProtocol.CONSUMER:
                # Brokers refuse a name until its last owner has left or its session has ended.
                raise ConfigError(
                    f"server_name {self.server_name!r} cannot be used with the group protocol consumer: brokers would refuse "
                    "a server that was killed and comes back. Leave out one of the two"
                )
        if self.attempts_max is not None:
            check_count(self.attempts_max, what="attempts_max", least=1, greatest=1_000_000)
        if self.dead_letter_topic in self.topics:
            raise ConfigError(
                f"dead_letter_topic {self.dead_letter_topic!r} is one of the topics that are served. Name another topic"
            )
        for what in ("session_timeout_s", "timeout_s", "commit_interval_s"):
            check_timeout_s(getattr(self, what), what=what)
        for what in ("records_max", "held_bytes_max", "groups_max", "snapshot_records"):
            check_count(getattr(self, what), what=what, least=1, greatest=2**40)
