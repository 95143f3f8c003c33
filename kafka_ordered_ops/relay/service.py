"""One server of the relay: `Relay`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from kafka_ordered_ops.core.arguments import check_count, check_timeout_s
from kafka_ordered_ops.core.cluster.names import check_group
from kafka_ordered_ops.core.errors import (
    ClosedError,
    ConfigError,
    LeaseError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.relay.log_records import TEXT_CHARACTERS_MAX
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings
from kafka_ordered_ops.relay.engine.changes import Chosen
from kafka_ordered_ops.relay.engine.engine import Engine
from kafka_ordered_ops.relay.leases.reads import Read
from kafka_ordered_ops.relay.options import RelayOptions
from kafka_ordered_ops.relay.ports import (
    Delivered,
    LeasedOffsets,
    LeasePlace,
    PartitionStatus,
    Reader,
)
from kafka_ordered_ops.relay.tokens import Lease

#: The largest number of records of one read.
RECORDS_MAX = 100_000


class Relay:
    """Hand out the records of topics to any number of clients, and store their acknowledgements.

    Servers with the same topics share the partitions. Leases and acknowledgements are stored in Kafka, so any server can
    accept an acknowledgement, and a server may be killed at any time. An async context manager; its methods are for the
    event loop that entered it.

    Args:
        settings: the bootstrap servers, or a mapping of client settings.
        options: what to serve, and how.
    """

    def __init__(self, settings: GivenSettings, options: RelayOptions) -> None:
        self._settings = ClientSettings.of(settings)
        self._options = options
        self.server_id = uuid.uuid4().hex
        self._engine: Engine | None = None

    async def __aenter__(self) -> Relay:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Create the topics of the log if necessary, and join the group of the servers.

        Raises:
            UnknownTopicError: a topic does not exist.
            BrokerError: the cluster refuses a request, or cannot be reached.
        """
        engine = self._engine = Engine(self._settings, self._options, self.server_id)
        engine.start()
        try:
            await asyncio.wrap_future(engine.begun)
        except asyncio.CancelledError:
            engine.close()
            raise

    async def close(self) -> None:
        """Leave the group; waiting calls fail. May be called twice, and during the start."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.close)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are served."""
        return self._options.topics

    @property
    def is_ready(self) -> bool:
        """Whether reads are served: the logs of this server's partitions have been read."""
        return self._engine is not None and self._engine.is_ready

    @property
    def ended_by(self) -> BaseException | None:
        """The error that ended this server; see `RelayService.ended_by`."""
        return None if self._engine is None else self._engine.ended_by

    def status(self) -> list[PartitionStatus]:
        """Return this server's status by topic, partition and group; it is about half a second old."""
        return [] if self._engine is None else self._engine.status

    def place_of(self, token: str) -> LeasePlace:
        """Return the topic and group of a lease; raise `LeaseError` for an invalid token."""
        lease = self._lease_of(token)
        return LeasePlace(lease.tp.topic, lease.group)

    async def read(
        self,
        group: str,
        *,
        records_max: int,
        wait_s: float,
        lease_s: float,
        topics: frozenset[str] | None = None,
        reader: Reader | None = None,
    ) -> tuple[list[Delivered], bool]:
        """Lease up to `records_max` records; see `RelayService.read`."""
        engine = self._open_engine()
        check_group(group, length_max=TEXT_CHARACTERS_MAX)
        check_count(records_max, what="records_max", least=1, greatest=RECORDS_MAX)
        check_timeout_s(lease_s, what="lease_s")
        if unknown := sorted((topics or frozenset()) - self.topics):
            raise UnknownTopicError(
                f"this relay does not serve {', '.join(unknown)}: it serves {', '.join(sorted(self.topics))}",
                topics=unknown,
            )
        if not engine.is_serving:
            raise engine.not_ready()
        future: asyncio.Future[tuple[list[Delivered], bool]] = self._future()
        read = Read(
            group,
            records_max,
            time.monotonic() + max(wait_s, 0.0),
            round(lease_s * 1_000),
            topics,
            reader,
            future,
        )
        engine.call(future, lambda: engine.groups.read(read))
        return await future

    async def acknowledge(self, leases: Sequence[LeasedOffsets]) -> None:
        """Acknowledge records; see `RelayService.acknowledge`."""
        engine, chosen = self._open_engine(), self._chosen(leases)
        await self._call(lambda future: engine.changes.acknowledge(chosen, future))

    async def cancel(self, leases: Sequence[LeasedOffsets]) -> None:
        """Give records back; see `RelayService.cancel`."""
        engine, chosen = self._open_engine(), self._chosen(leases)
        await self._call(lambda future: engine.changes.cancel(chosen, future))

    async def extend(self, tokens: Sequence[str], lease_s: float) -> list[int]:
        """Extend leases to `lease_s` from now; see `RelayService.extend`."""
        check_timeout_s(lease_s, what="lease_s")
        engine, leases = self._open_engine(), [self._lease_of(token) for token in tokens]
        lease_ms = round(lease_s * 1_000)
        until: list[int] = await self._call(
            lambda future: engine.changes.extend(leases, lease_ms, future)
        )
        return until

    async def open_window(
        self, plan: WindowPlan, group: str | None = None, reader: Reader | None = None
    ) -> str:
        """Open a group with exactly the offsets of a plan; see `RelayService.open_window`."""
        name = plan.window_id if group is None else group
        check_group(name, length_max=TEXT_CHARACTERS_MAX)
        if not plan.partitions:
            raise ConfigError(
                f"the plan of window {plan.window_id} has no partitions: nothing can be handed out"
            )
        plan.window.check_bytes("a relay")
        if plan.isolation is not self._options.isolation:
            raise ConfigError(
                f"window {plan.window_id} was planned with isolation {plan.isolation}, and this relay reads with isolation "
                f"{self._options.isolation}: they see different records. Use the same one"
            )
        if unknown := sorted({part.tp.topic for part in plan} - self.topics):
            raise UnknownTopicError(
                f"this relay does not serve {', '.join(unknown)} of window {plan.window_id}",
                topics=unknown,
            )
        engine = self._open_engine()
        opened: str = await self._call(
            lambda future: engine.changes.open_window(plan, name, reader, future)
        )
        return opened

    async def _call(self, job: Callable[[asyncio.Future[Any]], None]) -> Any:
        engine, future = self._open_engine(), self._future()
        if not engine.begun.done():
            raise engine.not_ready()
        engine.call(future, lambda: job(future))
        return await future

    def _chosen(self, leases: Sequence[LeasedOffsets]) -> list[Chosen]:
        chosen = []
        for token, offsets in leases:
            lease = self._lease_of(token)
            if offsets is not None and not offsets <= lease.offsets:
                other = offsets - lease.offsets
                raise LeaseError(
                    f"offset {other.first} of {lease.tp} is not in the lease that is to be changed: pass offsets of records "
                    "that came with it"
                )
            chosen.append((lease, lease.offsets if offsets is None else offsets))
        return chosen

    def _lease_of(self, token: str) -> Lease:
        engine = self._open_engine()
        if engine.signer is None:
            raise engine.not_ready()
        return engine.signer.lease_of(token)

    def _future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise ClosedError("the relay is closed: use it inside its `async with` block")
        return self._engine
