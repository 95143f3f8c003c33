"""The loop of a server: one thread owns the server's whole state, and never waits for the cluster.

Other threads read the log and the topics, and make requests; they post their results here. A client's call is posted as
a job too, and is answered once the log has stored it.
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

from kafka_ordered_ops.core.cluster.membership import MembershipChange
from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    NotReadyError,
    RelayUnavailableError,
    UnknownTopicError,
)
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

#: The wait while records are being written: reports do not wake the loop.
_BUSY_WAIT_S: Final = 0.002
#: How long jobs run before other work gets its turn.
_JOBS_S: Final = 0.005
_GROUP_EVERY_S: Final = 0.05
#: The interval between two looks at time-driven work, while there are jobs.
_LOOK_EVERY_S: Final = 0.02
#: The longest interval without jobs. Work with a known time is done at that time, but the clock may have been changed.
_QUIET_LOOK_S: Final = 1.0
#: How long closing waits for the loop to end.
_CLOSE_S: Final = 10.0

_log = logging.getLogger(__name__)

Job = Callable[[], None]


class Engine:
    """One server's loop.

    Args:
        settings: how to reach the cluster.
        options: what to serve, and how.
        server_id: a unique id, never used by an earlier server.
    """

    server: Server
    groups: Groups
    changes: Changes

    def __init__(self, settings: ClientSettings, options: RelayOptions, server_id: str) -> None:
        self._settings, self._options = settings, options
        self._server_id = server_id
        self._inbox: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._is_stopped = False
        #: For tests: end like a killed process, which does not leave its group.
        self.is_killed = False
        self._failure: BaseException | None = None
        #: Done when the server has joined its group, or failed with the reason why it cannot. It cannot be cancelled.
        self.begun: Future[None] = Future()
        self.begun.set_running_or_notify_cancel()
        #: Unanswered calls; used by the event loops' threads.
        self._calls: set[asyncio.Future[Any]] = set()
        self._is_over = False
        self._guard = threading.Lock()
        self._requests = Requests(settings, self.post)
        self._member: MembershipDoor
        self._replay: Replay
        self._upkeep: Upkeep | None = None
        self._claims: Claims
        self._group_at = self._looked_at = 0.0
        #: Whether something has happened since the last look.
        self._is_stale = True
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> None:
        """Start the loop; see `begun`."""
        self._thread.start()

    def close(self) -> None:
        """End the loop; unanswered calls fail. May be called twice."""
        self._is_stopped = True
        self.post(_nothing)  # The loop may be waiting for a job.
        # Before it has begun, it has no group to leave, and may be waiting for unavailable brokers.
        if self._thread.is_alive() and self.begun.done():
            self._thread.join(_CLOSE_S)

    # --- for other threads ---------------------------------------------------------------------------

    def post(self, job: Job) -> None:
        """Run a job in the loop's thread."""
        self._inbox.put(job)

    def call(self, future: asyncio.Future[Any], job: Job) -> None:
        """Run a job that answers a call; if the server ends first, the call fails. Raise `RelayUnavailableError`."""
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
        return any(partition.is_known for partition in partitions) and all(
            partition.is_known for partition in partitions if partition.is_assigned
        )

    @property
    def is_serving(self) -> bool:
        """Whether reads are served: a partition is served as soon as its own log has been read."""
        return self.is_ready or (
            self._is_signing
            and any(partition.is_mine for partition in list(self.server.partitions.values()))
        )

    @property
    def _is_signing(self) -> bool:
        return self._thread.is_alive() and self.begun.done() and self.signer is not None

    @property
    def ended_by(self) -> BaseException | None:
        """The error that ended the loop; None while it runs, or after `close`."""
        return self._failure

    @property
    def signer(self) -> TokenSigner | None:
        """The signer of tokens; None until the secret has been read."""
        return self.server.leasing.signer if hasattr(self, "server") else None

    def not_ready(self) -> NotReadyError:
        """Return the error of a call before reads are served."""
        return self.server.not_ready() if hasattr(self, "server") else NotReadyError(STARTING)

    @property
    def status(self) -> list[PartitionStatus]:
        """The status of the partitions."""
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
                self._settings,
                letters,
                options.topics.__contains__,
                timeout_s=options.timeout_s,
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
        wait_s = _BUSY_WAIT_S if server.log.waiting else self._quiet_s()
        self._is_stale |= self._do_jobs(wait_s) or server.log.waiting > 0
        server.log.turn()
        now = time.monotonic()
        if now >= self._group_at:
            self._group_at = now + _GROUP_EVERY_S
            self._follow_group()
        # Before the look, so that a read without a wait is served once before it times out.
        self.groups.serve()
        if now >= self._look_at():
            self._looked_at, self._is_stale = now, False
            self.groups.look()
            self.changes.look()
            if self._upkeep is not None:
                self._upkeep.turn()
        self.groups.serve()
        server.answers.flush()

    def _quiet_s(self) -> float:
        """Return the time until something is due, without new jobs."""
        return max(min(self._group_at, self._look_at()) - time.monotonic(), 0.0)

    def _look_at(self) -> float:
        """Return when to look: soon after anything has happened, otherwise when something is due."""
        soon = self._looked_at + _LOOK_EVERY_S
        if self._is_stale or self._upkeep is None:
            return soon
        due_at = min(self.groups.due_at(), self.changes.due_at(), self._upkeep.due_at)
        return max(soon, min(due_at, self._looked_at + _QUIET_LOOK_S))

    def _do_jobs(self, wait_s: float) -> bool:
        """Wait for jobs and run them; return whether there were any."""
        try:
            job = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
        except queue.Empty:
            return False
        ends_at = time.monotonic() + _JOBS_S
        while True:
            job()
            if time.monotonic() >= ends_at:
                return True
            try:
                job = self._inbox.get_nowait()
            except queue.Empty:
                return True

    # --- partitions ----------------------------------------------------------------------------------

    def _know(self, topics: Topics) -> None:
        """Start to read the logs of new partitions; process recreated topics."""
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
            # The other topics are still served; reads report the error.
            _log.warning("the relay's group: %s", error)
            return
        if change is not None:
            self._is_stale = True
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
        """Stop handing out records at once; acknowledgements are still accepted."""
        for tp in partitions:
            self._give_up(tp)

    def _give_up(self, tp: TopicPartition) -> None:
        if (partition := self.server.partitions.get(tp)) is not None:
            partition.lose()
            self.server.stop_serving(partition)


def _nothing() -> None:
    """Do nothing: this job wakes the loop."""
