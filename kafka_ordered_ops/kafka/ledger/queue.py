"""Turns: processes that change the same group at the same time take turns.

The fence alone is safe but not fair: each attempt fences the running one, so with many processes few attempts succeed, and
some processes have no success for minutes. So a process that was fenced, or finds others waiting, draws a *ticket*: a record
in the group's ledger partition, outside any transaction. The order is first come, first served, commits before plans. A
ticket is only a hint: a process that ignores tickets, a wrong clock, or a ticket that cannot be written costs time, but
never causes a wrong change.

A ticket is valid as long as its holder renews it. Tickets of a killed process are skipped after `_LIVE_S`, and the next
process that finishes removes them. The next process in line prepares the work that fences nobody: a plan's draft, and the
connections.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Final

from confluent_kafka import KafkaException, Producer

from kafka_ordered_ops.core.group.ledger.messages import RecordName, parse_key, record_key
from kafka_ordered_ops.core.group.turn import GroupTurn
from kafka_ordered_ops.core.strict_json import JsonError, whole_number
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.client.calls import waits_for
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client
from kafka_ordered_ops.kafka.ledger.writing import warm_up
from kafka_ordered_ops.kafka.settings import TRANSACTION_TIMEOUT_MS, ClientSettings

_log = logging.getLogger("kafka_ordered_ops.ledger")

_KIND: Final = "turn"

#: The rank of the current change, before all waiting ones.
_NOW: Final = -1
#: The rank of commits: they free resources, and end jobs that are done.
COMMITS: Final = 0
PLANS: Final = 1

#: The interval of renewals, and their validity.
_BEAT_S: Final = 0.7
_LIVE_S: Final = 3.0
#: A process that cannot read its own ticket for this time continues without one.
_UNSEEN_MAX_S: Final = 5.0
#: A change that takes longer than its transaction's timeout is fenced by the next one, as without tickets.
_TURN_MAX_S: Final = TRANSACTION_TIMEOUT_MS / 1000

#: The time between two reads of the queue by the next in line, and the time added for each further ticket ahead: about the
#: time of a change, so that the last in a long queue reads rarely.
_LOOK_FIRST_S: Final = 0.015
_LOOK_EACH_S: Final = 0.06
_LOOK_MAX_S: Final = 0.8

_FLUSH_TIMEOUT_S: Final = 2.0

#: A ticket that is written twice is harmless, and a producer id would be another answer to wait for. In order, so that a
#: renewal never follows the ticket's removal.
_CONFIG: Final = {"enable.idempotence": "false", "max.in.flight": "1", "linger.ms": "0"}

#: The largest number of tickets of one group, many more than processes ever wait. Beyond it, the fence alone decides.
_TICKETS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a fenced change waits before its next attempt.

    Each attempt fences the running one. Tickets keep most attempts apart. For the others, the pauses grow until
    conflicts are rare, and their random spread keeps two processes from colliding forever.
    """

    first_s: float
    max_s: float
    #: The rank in the line.
    rank: int

    def pause_s(self, attempt: int) -> float:
        """Return a pause after the attempt of this number, from 0."""
        grown_s: float = min(self.first_s * 2 ** min(attempt, 10), self.max_s)
        return grown_s * random.uniform(0.5, 1.5)


#: A commit frees resources and ends a finished job, so it goes before plans.
COMMITTING: Final = Pace(0.05, 2.0, COMMITS)
PLANNING: Final = Pace(0.1, 4.0, PLANS)


@dataclass(frozen=True, slots=True)
class _Ticket:
    rank: int
    #: The offset of the first record: the order among tickets of one rank.
    offset: int
    #: The `time.monotonic` time of the last renewal.
    seen_s: float


class Line:
    """The tickets of one group, as far as its ledger partition has been read."""

    def __init__(self, group_id: str) -> None:
        self._group = group_id
        self._tickets: dict[str, _Ticket] = {}

    def take(self, offset: int, key: bytes, value: bytes | None, timestamp_ms: int) -> bool:
        """Process a record of the ledger; return whether it was a ticket, of any group."""
        if b'"turn"' not in key:
            return False
        parsed = parse_key(key, (_KIND,))
        if parsed is None:
            return False
        group_id, _, name, _ = parsed
        if group_id == self._group:
            # A ticket without a valid rank is another program's, and is ignored.
            with suppress(JsonError):
                rank = None if value is None else whole_number(value, least=_NOW, greatest=PLANS)
                self._set(name, rank, offset, timestamp_ms)
        return True

    def _set(self, name: str, rank: int | None, offset: int, timestamp_ms: int) -> None:
        if rank is None:
            self._tickets.pop(name, None)
            return
        age_s = max(time.time() - timestamp_ms / 1000, 0.0)
        seen_s = time.monotonic() - age_s
        known = self._tickets.get(name)
        if known is None and len(self._tickets) < _TICKETS_MAX:
            self._tickets[name] = _Ticket(rank, offset, seen_s)
        elif known is not None:
            self._tickets[name] = replace(known, rank=rank, seen_s=seen_s)

    def ahead_of(self, name: str | None) -> int:
        """Return how many live tickets go before a ticket; for None, before a newcomer."""
        now_s = time.monotonic()
        own = self._tickets.get(name) if name is not None else None
        return sum(
            ticket.seen_s > now_s - _LIVE_S
            for other, ticket in self._tickets.items()
            if other != name
            and (own is None or (ticket.rank, ticket.offset) < (own.rank, own.offset))
        )

    def __contains__(self, name: str) -> bool:
        return name in self._tickets

    def dead(self) -> list[str]:
        """Return the tickets that have not been renewed for a long time."""
        before_s = time.monotonic() - 10 * _LIVE_S
        return [name for name, ticket in self._tickets.items() if ticket.seen_s < before_s]


class Tickets:
    """Write the tickets of one process.

    The client is opened for the first ticket and kept: a new one needs a tenth of a second before it can write, and more
    connections than a change itself.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._producer: Producer | None = None

    def write(self, where: TopicPartition, group_id: str, name: str, rank: int | None) -> None:
        """Write or remove a ticket; after `flush`, other processes can read it."""
        key = record_key(group_id, RecordName(_KIND, name), 0)
        value = None if rank is None else str(rank).encode()
        try:
            producer = self._open_producer(where.topic)
            producer.produce(where.topic, key=key, value=value, partition=where.partition)
            producer.poll(0)
        except (KafkaException, BufferError) as error:
            # The change itself will report a broker that is down.
            _log.debug("group %s: a ticket was not written: %s", group_id, error)
            self._producer = None

    def flush(self) -> None:
        """Wait briefly until the broker has stored the writes."""
        if self._producer is not None:
            self._producer.flush(_FLUSH_TIMEOUT_S)

    def _open_producer(self, topic: str) -> Producer:
        if self._producer is None:
            reasons = FaultReasons(self._settings.secret_values())
            config = {**self._settings.producer(), **_CONFIG}
            self._producer = open_client(Producer, config, reasons)
            warm_up(self._producer, topic, timeout_s=_FLUSH_TIMEOUT_S)
        return self._producer


class Place:
    """One change's place in the line, if it needs one. A context manager, which leaves the line at its end."""

    def __init__(self, tickets: Tickets, where: TopicPartition, group_id: str, rank: int) -> None:
        self._tickets = tickets
        self._where = where
        self._group = group_id
        #: The rank of its kind; `_rank` is the current one.
        self._kind_rank = self._rank = rank
        self._name = uuid.uuid4().hex[:12]
        self._is_in_line = False
        self._line: Line | None = None
        self._drawn_s = self._beaten_s = 0.0
        self._is_over = Event()
        self._renewal: Thread | None = None

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Leave the line; may be called twice."""
        if not self._is_in_line:
            return
        self._stop_renewing()
        for name in [self._name, *(self._line.dead() if self._line else [])]:
            self._tickets.write(self._where, self._group, name, None)
        self._tickets.flush()
        self._is_in_line = False

    def wait(
        self,
        look: Callable[[], Line],
        *,
        contended: bool,
        deadline: float,
        when_next: Callable[[], object] | None = None,
    ) -> None:
        """Return when it is this change's turn, no other change waits, or the deadline is near.

        `look` reads the queue; `contended` is true if this change was fenced. `when_next` is called once before the turn,
        if there is a wait.
        """
        if not self._is_in_line and not contended:
            self._line = look()
            if not self._line.ahead_of(None):
                return
        if contended and self._rank == _NOW:
            # The process that fenced this change is running now; this change goes next.
            self._stop_renewing()
            self._rank = self._kind_rank
            self._say()
        self.approach(look, deadline=deadline)
        if when_next is not None:
            when_next()
        self._wait_for(0, look, deadline)
        self._rank = _NOW
        self._say()
        self._tickets.flush()
        self._start_renewing()

    def approach(self, look: Callable[[], Line], *, deadline: float) -> None:
        """Return when at most one other change goes first, or the deadline is near."""
        if not self._is_in_line:
            self._is_in_line = True
            self._drawn_s = time.monotonic()
            self._say()
            self._tickets.flush()
            _log.debug("group %s: others change it at the same time, waiting in line", self._group)
        self._wait_for(1, look, deadline)

    def _wait_for(self, ahead_max: int, look: Callable[[], Line], deadline: float) -> None:
        while (ahead := self._ahead(look)) > ahead_max:
            waits_for(f"its place: {ahead} other changes of the group go first")
            pause_s = min(_LOOK_FIRST_S + _LOOK_EACH_S * (ahead - 1), _LOOK_MAX_S)
            if time.monotonic() + pause_s >= deadline:
                return
            time.sleep(pause_s * random.uniform(0.7, 1.3))

    def _ahead(self, look: Callable[[], Line]) -> int:
        if time.monotonic() - self._beaten_s > _BEAT_S:
            self._say()
        line = self._line = look()
        # Until the line has been read up to this change's own ticket, the tickets before it are unknown.
        is_partial = self._name not in line and time.monotonic() - self._drawn_s < _UNSEEN_MAX_S
        return max(line.ahead_of(self._name), int(is_partial))

    def _start_renewing(self) -> None:
        """Renew the ticket during the change: a slow process, for example on a busy machine, is not dead."""
        if self._renewal is None:
            self._is_over.clear()
            self._renewal = Thread(target=self._renew, name="koo-turn", daemon=True)
            self._renewal.start()

    def _renew(self) -> None:
        until_s = time.monotonic() + _TURN_MAX_S
        while not self._is_over.wait(_BEAT_S) and time.monotonic() < until_s:
            self._say()

    def _stop_renewing(self) -> None:
        if self._renewal is not None:
            self._is_over.set()
            self._renewal.join()
            self._renewal = None

    def _say(self) -> None:
        self._beaten_s = time.monotonic()
        self._tickets.write(self._where, self._group, self._name, self._rank)


class TurnInLine(GroupTurn):
    """A place in the line that is kept until a draft is stored: a draft made in turn is not overtaken.

    Args:
        make: creates a place.
        look: reads the queue.
        is_busy: returns whether another process waits, as far as the queue was read.
        timeout_s: the longest wait: the turn is only a courtesy.
    """

    def __init__(
        self,
        make: Callable[[], Place],
        look: Callable[[], Line],
        is_busy: Callable[[], bool],
        timeout_s: float,
    ) -> None:
        self._make = make
        self._look = look
        self._is_busy = is_busy
        self._timeout_s = timeout_s
        #: None while not in the line.
        self.place: Place | None = None

    def take(self, *, overtaken: bool, early: bool) -> bool:
        """See `GroupTurn`."""
        if self.place is None:
            if not overtaken and not self._is_busy():
                return False
            self.place = self._make()
        deadline = time.monotonic() + self._timeout_s
        if early:
            self.place.approach(self._look, deadline=deadline)
        else:
            self.place.wait(self._look, contended=True, deadline=deadline)
        return True

    def leave(self) -> None:
        """Leave the line; may be called twice."""
        place, self.place = self.place, None
        if place is not None:
            place.leave()
