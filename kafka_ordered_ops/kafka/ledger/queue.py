"""Turns: processes that change the same group at once go one after the other.

The fence alone is safe but not fair: each attempt fences the running one, so that with many processes few attempts
succeed, and some processes have none for minutes. A process that was fenced, or finds others waiting, therefore draws
a *ticket*: a record in the group's ledger partition, outside any transaction. The order is first come, first served,
commits before plans. A ticket is only a hint: a process that ignores tickets, a wrong clock, or a ticket that cannot
be written cost time, never a wrong change.

A ticket is valid as long as its holder renews it. Tickets of a killed process are skipped after `_LIVE_S`, and removed
by the next process that finishes. The next in line prepares what fences nobody: a plan's draft, and the connections.
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

#: The current change is before all waiting ones.
_NOW: Final = -1
#: A commit makes room for others and frees a job that is done.
COMMITS: Final = 0
PLANS: Final = 1

#: The interval of renewals, and their validity.
_BEAT_S: Final = 0.7
_LIVE_S: Final = 3.0
#: Whose ticket cannot be read for so long goes without one.
_UNSEEN_MAX_S: Final = 5.0
#: A change that takes longer than its transaction may is fenced by the next one, as without tickets.
_TURN_MAX_S: Final = TRANSACTION_TIMEOUT_MS / 1000

#: Time between two reads of the queue by the next one, and more for each further ticket ahead: as long as its change
#: may take, so that the last in a long queue does not read often.
_LOOK_FIRST_S: Final = 0.015
_LOOK_EACH_S: Final = 0.06
_LOOK_MAX_S: Final = 0.8

_FLUSH_TIMEOUT_S: Final = 2.0

#: A ticket that is written twice is harmless, and a producer's id is one more answer to wait for. In order, lest a
#: renewal come after the ticket's removal.
_CONFIG: Final = {"enable.idempotence": "false", "max.in.flight": "1", "linger.ms": "0"}

#: Tickets of one group: many more than processes ever wait. Without further ones, the fence alone decides.
_TICKETS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a change that was fenced waits before its next attempt.

    Each attempt fences the running one. Tickets keep most of them apart. For the others, the pauses grow until
    conflicts are rare, and their random spread keeps two from colliding for ever.
    """

    first_s: float
    max_s: float
    #: The place in the line.
    rank: int

    def pause_s(self, attempt: int) -> float:
        """Return a pause after the attempt of this number, from 0."""
        grown_s: float = min(self.first_s * 2 ** min(attempt, 10), self.max_s)
        return grown_s * random.uniform(0.5, 1.5)


#: A commit frees resources and ends a finished job: it is before plans.
COMMITTING: Final = Pace(0.05, 2.0, COMMITS)
PLANNING: Final = Pace(0.1, 4.0, PLANS)


@dataclass(frozen=True, slots=True)
class _Ticket:
    rank: int
    #: Where it was drawn: the order among those of one rank.
    offset: int
    #: `time.monotonic` of the last sign of life.
    seen_s: float


class Line:
    """The tickets of one group, as far as its ledger partition was read."""

    def __init__(self, group_id: str) -> None:
        self._group = group_id
        self._tickets: dict[str, _Ticket] = {}

    def take(self, offset: int, key: bytes, value: bytes | None, timestamp_ms: int) -> bool:
        """Take in a record of the ledger; return whether it was a ticket, of whatever group."""
        if b'"turn"' not in key:
            return False
        parsed = parse_key(key, (_KIND,))
        if parsed is None:
            return False
        group_id, _, name, _ = parsed
        if group_id == self._group:
            # Another program's ticket of no rank says nothing.
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
        """Return how many live tickets go before one; before a newcomer, with None."""
        now_s = time.monotonic()
        own = self._tickets.get(name) if name is not None else None
        return sum(
            one.seen_s > now_s - _LIVE_S
            for other, one in self._tickets.items()
            if other != name and (own is None or (one.rank, one.offset) < (own.rank, own.offset))
        )

    def __contains__(self, name: str) -> bool:
        return name in self._tickets

    def dead(self) -> list[str]:
        """Return the tickets whose holders have long been silent."""
        before_s = time.monotonic() - 10 * _LIVE_S
        return [name for name, one in self._tickets.items() if one.seen_s < before_s]


class Tickets:
    """Writes the tickets of one process.

    The client is opened for the first ticket, and kept: each new one takes a tenth of a second until it can write, and
    more connections than a change itself.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._producer: Producer | None = None

    def write(self, where: TopicPartition, group_id: str, name: str, rank: int | None) -> None:
        """Write a ticket, or remove it; `flush` sees to it that the others can read it."""
        key = record_key(group_id, RecordName(_KIND, name), 0)
        value = None if rank is None else str(rank).encode()
        try:
            producer = self._opened(where.topic)
            producer.produce(where.topic, key=key, value=value, partition=where.partition)
            producer.poll(0)
        except (KafkaException, BufferError) as error:
            # The change itself will report a broker that is down.
            _log.debug("group %s: a ticket was not written: %s", group_id, error)
            self._producer = None

    def flush(self) -> None:
        """Wait, a little, until the broker has what was written."""
        if self._producer is not None:
            self._producer.flush(_FLUSH_TIMEOUT_S)

    def _opened(self, topic: str) -> Producer:
        if self._producer is None:
            reasons = FaultReasons(self._settings.secret_values())
            config = {**self._settings.producer(), **_CONFIG}
            self._producer = open_client(Producer, config, reasons)
            warm_up(self._producer, topic, timeout_s=_FLUSH_TIMEOUT_S)
        return self._producer


class Place:
    """One change's place in the line, once it has one. A context manager, which leaves the line."""

    def __init__(self, tickets: Tickets, where: TopicPartition, group_id: str, rank: int) -> None:
        self._tickets = tickets
        self._where = where
        self._group = group_id
        #: Of its kind; `_rank` is the current one.
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
        """Return when it is this change's turn, no other waits, or the deadline is near.

        `look` reads the queue; `contended` is true if this change was fenced. `when_next` is called once before the
        turn, if that has to be waited for.
        """
        if not self._is_in_line and not contended:
            self._line = look()
            if not self._line.ahead_of(None):
                return
        if contended and self._rank == _NOW:
            # Who fenced it is at it now: it goes next.
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
        """Return when at most one other goes first, or the deadline is near."""
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
        # Not read as far as its own ticket, the line says nothing yet of those before it.
        is_partial = self._name not in line and time.monotonic() - self._drawn_s < _UNSEEN_MAX_S
        return max(line.ahead_of(self._name), int(is_partial))

    def _start_renewing(self) -> None:
        """Renew the ticket while the change is made: a process that is slow, as all are on a busy machine, is not dead."""
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
    """A place in the line that is kept until a draft counts: one that is made in turn is not overtaken.

    Args:
        make: makes a place.
        look: reads the queue.
        is_busy: whether somebody waits, as far as the queue was read.
        timeout_s: how long to wait at most: the turn is only a courtesy.
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
        #: None: not in the line.
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
        """Let the others go on; may be called twice."""
        place, self.place = self.place, None
        if place is not None:
            place.leave()
