"""Claim the partitions that are assigned to this server by the servers' group.

A log belongs to one relay group. Servers of another group would be assigned the same partitions, and the two would take
them from each other forever. So such a server ends, unless the log's group has no members any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.core.relay.log_records import Served
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.relay.engine.server import Server
from kafka_ordered_ops.relay.leases.partition import Partition

#: The interval between two checks of another group's members; an answer is valid for this time.
_LOOK_EVERY_S: Final = 1.0
#: Added to the session timeout: killed servers of another group stay members until then.
PATIENCE_S: Final = 5.0
#: How many members an error names.
_NAMED_MAX: Final = 3

_log = logging.getLogger(__name__)


class Claims:
    """Claim partitions for a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        #: Other groups, and when to check their members again.
        self._look_at: dict[str, float] = {}
        #: Since when these groups are known to have members.
        self._busy_since: dict[str, float] = {}
        #: Until when these groups count as empty.
        self._empty_until: dict[str, float] = {}

    def claim(self, partition: Partition) -> None:
        """Write a claim to the log of a partition, if the log belongs to this group or may be taken over."""
        own, logged = self._server.options.relay_group, partition.state.relay_group
        if logged not in (None, own) and not self._is_empty(logged, partition.tp):
            return
        claim = partition.make_claim()
        if claim is None:
            return

        def report(error: KafkaOrderedOpsError | None) -> None:
            if error is not None:
                _log.warning("%s cannot be claimed yet: %s", partition.tp, error)
                partition.claim_failed()

        if logged != own:
            # Before the claim, so that every server that reads the claim knows the group too.
            self._server.log.append(partition.tp, Served(own), lambda _: None)
        self._server.log.append(partition.tp, claim, report)

    def _is_empty(self, group: str, tp: TopicPartition) -> bool:
        """Return whether a group is known to have no members; find out if necessary."""
        now = time.monotonic()
        if now < self._empty_until.get(group, 0.0):
            return True
        if now >= self._look_at.get(group, 0.0):
            self._look_at[group] = now + self._server.options.timeout_s
            self._look(group, tp)
        return False

    def _look(self, group: str, tp: TopicPartition) -> None:
        options, requests = self._server.options, self._server.requests

        def answered(members: list[str]) -> None:
            now = time.monotonic()
            self._look_at[group] = now + _LOOK_EVERY_S
            if not members:
                _log.info("relay group %s has no servers: this one takes %s over", group, tp)
                self._empty_until[group] = now + _LOOK_EVERY_S
                self._busy_since.pop(group, None)
                return
            since = self._busy_since.setdefault(group, now)
            if now - since >= options.session_timeout_s + PATIENCE_S:
                raise _of_another_group(tp, options.relay_group, group, members)

        def failed(error: KafkaOrderedOpsError) -> None:
            self._look_at[group] = time.monotonic() + _LOOK_EVERY_S
            if not error.retriable:
                raise error

        requests.ask(lambda: requests.members(group), answered, failed)


def _of_another_group(
    tp: TopicPartition, own: str, group: str, members: Sequence[str]
) -> ConfigError:
    more = f" and {len(members) - _NAMED_MAX} more" if len(members) > _NAMED_MAX else ""
    return ConfigError(
        f"{tp} is served by relay group {group}, which has members: {', '.join(members[:_NAMED_MAX])}{more}. This server is of "
        f"group {own}, and the two would take partitions from each other. Start it with --relay-group {group}. To rename the "
        f"group, stop all servers of {group} first"
    )
