"""The loop of a server: everything it knows belongs to this one thread, which never waits for the cluster.

Threads read the log and the topics, and make requests; what comes of it is posted here. A call of a client becomes a
job as well, and is answered when the log has it.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, Final

from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    NotReadyError,
    RelayUnavailableError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.membership import MembershipChange
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import MembershipDoor, open_member
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.processing.dead_letters import check_dead_letter_topic
from kafka_ordered_ops.relay.engine.changes import Changes
from kafka_ordered_ops.relay.engine.claims import Claims
from kafka_ordered_ops.relay.engine.groups import Groups
from kafka_ordered_ops.relay.engine.replay import Replay
from kafka_ordered_ops.relay.engine.requests import Requests, Topics
from kafka_ordered_ops.relay.engine.server import STARTING, Server
from kafka_ordered_ops.relay.engine.upkeep import Upkeep
from kafka_ordered_ops.relay.leases.partition import Partition
from kafka_ordered_ops.relay.log import PREFIX, LogWriter
from kafka_ordered_ops.relay.options import RelayOptions
from kafka_ordered_ops.relay.ports import PartitionStatus
from kafka_ordered_ops.relay.tokens import TokenSigner

#: While records are being written: a report wakes nobody.
_BUSY_WAIT_S: Final = 0.002
_IDLE_WAIT_S: Final = 0.02
#: Jobs done before the other work gets its turn.
_JOBS_MAX: Final = 1_000
_GROUP_EVERY_S: Final = 0.05
_LOOK_EVERY_S: Final = 0.02
#: Closing waits so long for the loop to end.
_CLOSE_S: Final = 10.0

_log = logging.getLogger(__name__)

Job = Callable[[], None]


class Engine:
    """One server's loop.

    Args:
        settings: how to reach the cluster.
        options: what is served, and how.
        server_id: unique, also among the servers that were.
    """

    server: Server
    groups: Groups
    changes: Changes

    def __init__(self, settings: ClientSettings, options: RelayOptions, server_id: str) -> None:
        self._settings, self._options = settings, options
        self._server_id = server_id
        self._inbox: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._is_stopped = False
        #: For tests: it ends like a killed process, which leaves no group.
        self.is_killed = False
        self._failure: BaseException | None = None
        #: Done when it takes part in its group, or failed with what keeps it from that. Nobody can cancel it.
        self.begun: Future[None] = Future()
        self.begun.set_running_or_notify_cancel()
        #: Calls that are not answered; of the event loops' threads.
        self._calls: set[asyncio.Future[Any]] = set()
        self._is_over = False
        self._guard = threading.Lock()
        self._requests = Requests(settings, self.post)
        self._member: MembershipDoor
        self._replay: Replay
        self._upkeep: Upkeep | None = None
        self._claims: Claims
        self._group_at = self._look_at = 0.0
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> None:
        """Begin; see `begun`."""
        self._thread.start()

    def close(self) -> None:
        """End; what is not answered fails. May be called twice."""
        self._is_stopped = True
        # Before it has begun, it has no group to leave, and may wait for brokers that are away.
        if self._thread.is_alive() and self.begun.done():
            self._thread.join(_CLOSE_S)

    # --- for other threads ---------------------------------------------------------------------------

    def post(self, job: Job) -> None:
        """Do a job in the loop's thread."""
        self._inbox.put(job)

    def call(self, future: asyncio.Future[Any], job: Job) -> None:
        """Do a job that answers a call; when the server ends before, the call fails. Raises `RelayUnavailableError`."""
        with self._guard:
            if self._is_over:
                raise self._ended()
            self._calls.add(future)
        future.add_done_callback(self._answered)

        def run() -> None:
            try:
                job()
            except KafkaOrderedOpsError as error:
                self.server.answers.fail(future, error)

        self.post(run)

    def _answered(self, future: asyncio.Future[Any]) -> None:
        with self._guard:
            self._calls.discard(future)

    @property
    def is_ready(self) -> bool:
        """Whether the logs of this server's partitions have been read."""
        if not self._is_signing:
            return False
        partitions = list(self.server.partitions.values())
        return any(one.is_known for one in partitions) and all(
            one.is_known for one in partitions if one.is_assigned
        )

    @property
    def is_serving(self) -> bool:
        """Whether reads are served: a partition is as soon as its own log has been read."""
        return self.is_ready or (
            self._is_signing and any(one.is_mine for one in list(self.server.partitions.values()))
        )

    @property
    def _is_signing(self) -> bool:
        return self._thread.is_alive() and self.begun.done() and self.signer is not None

    @property
    def ended_by(self) -> BaseException | None:
        """What ended the loop; None: nothing has, or `close`."""
        return self._failure

    @property
    def signer(self) -> TokenSigner | None:
        """What signs tokens; None until the secret was read."""
        return self.server.leasing.signer if hasattr(self, "server") else None

    def not_ready(self) -> NotReadyError:
        """Return the error of a call that comes before reads are served."""
        return self.server.not_ready() if hasattr(self, "server") else NotReadyError(STARTING)

    @property
    def status(self) -> list[PartitionStatus]:
        """What is known of the partitions."""
        return [] if self._upkeep is None else self._upkeep.status

    # --- the loop ------------------------------------------------------------------------------------

    def _run(self) -> None:
        stack = ExitStack()
        try:
            self._open(stack)
            self.begun.set_result(None)
            while not self._is_stopped:
                self._turn()
        except BaseException as error:  # noqa: BLE001 - given to all who wait
            self._failure = error
            if self.begun.done():
                is_bug = not isinstance(error, KafkaOrderedOpsError)
                _log.error("the relay has ended: %s", error, exc_info=is_bug)
        finally:
            self._end(stack)
            if not self.begun.done():
                self.begun.set_exception(self._failure)

    def _open(self, stack: ExitStack) -> None:
        options = self._options
        topics = self._requests.topics(options.topics)
        if (letters := options.dead_letter_topic) is not None:
            check_dead_letter_topic(
                self._settings, letters, options.topics, timeout_s=options.timeout_s
            )
        log = LogWriter(self._settings, stack, timeout_s=options.timeout_s)
        self.server = Server(
            self._settings, options, self._server_id, self.post, self._requests, log
        )
        self.changes = Changes(self.server)
        self._claims = Claims(self.server)
        self.groups = Groups(self.server, stack)
        stack.callback(self.groups.close)
        self._replay = Replay(self.server, self.groups.opened)
        stack.callback(self._replay.close)
        self._upkeep = Upkeep(self.server, self._know)
        self._know(topics)
        self.groups.at_start = frozenset(self.server.partitions)
        self._member = stack.enter_context(
            open_member(
                self._settings,
                options.relay_group,
                sorted(options.topics),
                on_revoke=self._revoked,
                timeout_s=options.timeout_s,
                session_timeout_s=options.session_timeout_s,
                protocol=options.protocol,
                instance_id=options.server_name,
            )
        )

    def _end(self, stack: ExitStack) -> None:
        with self._guard:
            self._is_over = True
            left = list(self._calls)
        if hasattr(self, "server"):
            for future in left:
                self.server.answers.fail(future, self._ended())
            self.server.answers.flush()
        self._requests.close()
        if self.is_killed:
            self._replay.close()
            self.groups.close()
        else:
            stack.close()

    def _ended(self) -> RelayUnavailableError:
        why = "" if self._failure is None else f" ({self._failure})"
        return RelayUnavailableError(f"this server of the relay has ended{why}. Call another one")

    def _turn(self) -> None:
        server = self.server
        self._do_jobs(_BUSY_WAIT_S if server.log.waiting else _IDLE_WAIT_S)
        server.log.turn()
        now = time.monotonic()
        if now >= self._group_at:
            self._group_at = now + _GROUP_EVERY_S
            self._follow_group()
        # Before the look: a read without a wait is served once before its time is over.
        self.groups.serve()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            self.groups.look()
            self.changes.look()
            if self._upkeep is not None:
                self._upkeep.turn()
        self.groups.serve()
        server.answers.flush()

    def _do_jobs(self, wait_s: float) -> None:
        try:
            job = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
            for _ in range(_JOBS_MAX):
                job()
                job = self._inbox.get_nowait()
        except queue.Empty:
            return
        job()

    # --- partitions ----------------------------------------------------------------------------------

    def _know(self, topics: Topics) -> None:
        """Begin to read the log of partitions that are new; take note of topics that were recreated."""
        known, new = self.server.partitions, []
        for name, facts in topics.data.items():
            logged = topics.log.get(PREFIX + name)
            there = () if logged is None else logged.partitions
            for number in facts.partitions:
                tp = TopicPartition(name, number)
                if tp in known:
                    if known[tp].topic_id != facts.topic_id:
                        self.server.stop_serving(known[tp])
                        known[tp].recreated(facts.topic_id)
                    if isinstance(known[tp].problem, UnknownTopicError):
                        known[tp].problem = None
                elif number in there:
                    known[tp] = Partition(tp, self._server_id, facts.topic_id)
                    new.append(known[tp])
        self._replay.begin(new)

    def _follow_group(self) -> None:
        try:
            change = self._member.poll()
        except UnknownTopicError as error:
            # The others are served as before; reads report it.
            _log.warning("the relay's group: %s", error)
            return
        if change is not None:
            self._change(change)
        for partition in self.server.partitions.values():
            if not partition.is_assigned and partition.tp in self._member.assignment:
                partition.gain()
            if partition.is_claim_due:
                self._claims.claim(partition)

    def _change(self, change: MembershipChange) -> None:
        for tp in change.lost:
            self._give_up(tp)
        for tp in change.gained:
            if (partition := self.server.partitions.get(tp)) is not None:
                partition.gain()

    def _revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Hand out nothing more, at once; acknowledgements are taken as before."""
        for tp in partitions:
            self._give_up(tp)

    def _give_up(self, tp: TopicPartition) -> None:
        if (partition := self.server.partitions.get(tp)) is not None:
            partition.lose()
            self.server.stop_serving(partition)
