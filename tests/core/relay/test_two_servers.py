"""Two servers, one log, clients that forget and come late: nothing is lost, nothing is handed out while it is held."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.relay.log_records import (
    Acknowledged,
    Extended,
    Leased,
    LogRecord,
    Opened,
    Owned,
    Released,
    decode,
    encode,
)
from kafka_ordered_ops.core.relay.serving import Serving
from kafka_ordered_ops.core.relay.state import PartitionState
from tests.support.strategies import members

GROUP = "g"
#: Some never existed.
OFFSETS = [one for one in range(24) if one % 5 != 3]
END = 24
LEASE_MS = 100


@dataclass
class Server:
    """One server. What it knows is what it has read of the log; frozen is just to make no step."""

    server_id: str
    state: PartitionState = field(default_factory=PartitionState)
    #: Of its newest claim; 0: none.
    epoch: int = 0
    serving: Serving | None = None
    read: int = 0
    #: Written and not read back, by lease id.
    open: dict[str, OffsetSet] = field(default_factory=dict)


class Relay(RuleBasedStateMachine):
    """Steps of servers and clients in any order; each server reads as much of the log as it likes."""

    def __init__(self) -> None:
        super().__init__()
        #: The log as bytes, with positions; what was cut from it is None.
        self.log: list[bytes | None] = []
        self.servers = [Server("a"), Server("b")]
        self.now_ms = 1_000
        #: What clients hold: lease id to offsets, and until when they were promised them.
        self.leases: dict[str, tuple[OffsetSet, int]] = {}
        #: By offset: until when its newest client has it.
        self.held: dict[int, int] = {}
        self.acked: set[int] = set()
        self.count = 0

    @initialize(is_busy=st.booleans())
    def begin(self, is_busy: bool) -> None:
        """From the first record, or with leases, which most of the steps are about."""
        self._append(Opened(GROUP, 0, OffsetSet.of((0, END))))
        if is_busy:
            self.read_log(0, 1)
            self.claim(0)
            self.read_log(0, 1)
            self.read_data(0, END)
            for most in (2, 4):
                self.hand_out(0, most, 1)
            self.read_log(0, 9)

    def _append(self, record: LogRecord) -> None:
        self.log.append(encode(record))

    @rule(who=st.integers(0, 1), most=st.integers(1, 12))
    def read_log(self, who: int, most: int) -> None:
        server = self.servers[who]
        for _ in range(most):
            position = server.state.position
            if position >= len(self.log):
                return
            data = self.log[position]
            if data is None:
                # Cut: the snapshot beyond has it.
                server.state.position += 1
                continue
            record = decode(data)
            server.state.apply(record, position)
            self._follow(server, record)

    def _follow(self, server: Server, record: LogRecord) -> None:
        if isinstance(record, Owned):
            owner = server.state.owner()
            if owner != Owned(server.epoch, server.server_id, "t"):
                server.serving = None
            elif server.serving is None:
                server.serving, server.read = Serving(server.state, GROUP, attempts_max=None), 0
        if isinstance(record, Leased) and record.lease_id in server.open:
            offsets = server.open.pop(record.lease_id)
            if server.serving is not None and server.state.counts(record.lease_id):
                if outrun := server.serving.outrun(offsets):
                    self._append(Released(GROUP, record.lease_id, outrun))
                if offsets := offsets - outrun:
                    self._deliver(record, offsets)

    def _deliver(self, lease: Leased, offsets: OffsetSet) -> None:
        for offset in members(offsets):
            assert self.held.get(offset, 0) <= self.now_ms, f"{offset} is held"
            self.held[offset] = lease.until_ms
        self.leases[lease.lease_id] = offsets, lease.until_ms

    @rule(who=st.integers(0, 1))
    def claim(self, who: int) -> None:
        server = self.servers[who]
        if server.state.position < len(self.log):
            return
        owner = server.state.owner()
        server.epoch = 1 if owner is None else owner.epoch + 1
        server.serving = None
        self._append(Owned(server.epoch, server.server_id, "t"))

    @rule(who=st.integers(0, 1), count=st.integers(1, 9))
    def read_data(self, who: int, count: int) -> None:
        server = self.servers[who]
        if server.serving is None:
            return
        end = min(END, server.read + count)
        found = [one for one in OFFSETS if server.read <= one < end]
        server.serving.arrived(np.array(found, dtype=np.int64), end)
        gaps = OffsetSet.of((server.read, end)) - OffsetSet.from_offsets(
            np.array(found, dtype=np.int64)
        )
        if gaps:
            self._append(Acknowledged(GROUP, gaps))
        server.read = end

    @rule(
        who=st.integers(0, 1),
        most=st.integers(1, 6),
        is_stored=st.integers(0, 5),
        counts=st.booleans(),
    )
    def hand_out(self, who: int, most: int, is_stored: int, counts: bool = True) -> None:
        server = self.servers[who]
        if server.serving is None:
            return
        for attempt, offsets in server.serving.take(most, self.now_ms):
            assert members(offsets) <= set(OFFSETS)
            if not is_stored:
                server.serving.untake(offsets)
                continue
            self.count += 1
            lease_id, until_ms = f"{server.server_id}{self.count}", self.now_ms + LEASE_MS
            server.open[lease_id] = offsets
            counted = attempt if counts else attempt - 1
            self._append(Leased(GROUP, lease_id, server.epoch, offsets, until_ms, counted))

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        offsets, _ = self._some_lease(data)
        if offsets:
            self._append(Acknowledged(GROUP, offsets))
            self.acked |= members(offsets)
            for offset in members(offsets):
                self.held.pop(offset, None)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        offsets, lease_id = self._some_lease(data)
        if offsets:
            self._append(Released(GROUP, lease_id, offsets))
            # Only its newest client can give a record back.
            for offset in members(offsets):
                if self.held.get(offset) == self.leases[lease_id][1]:
                    del self.held[offset]

    @rule(data=st.data(), more_ms=st.integers(0, 2 * LEASE_MS))
    def extend(self, data: st.DataObject, more_ms: int) -> None:
        _, lease_id = self._some_lease(data)
        if lease_id:
            self._extend(lease_id, more_ms)

    @rule(who=st.integers(0, 1), data=st.data(), more_ms=st.integers(2, 2 * LEASE_MS))
    def extend_at_the_end(self, who: int, data: st.DataObject, more_ms: int) -> None:
        """In the last moment; a server that has not read of it takes the records in the next."""
        _, lease_id = self._some_lease(data)
        if lease_id and self.leases[lease_id][1] > self.now_ms:
            self.now_ms = self.leases[lease_id][1] - 1
            self._extend(lease_id, more_ms)
            self.now_ms += 1
            self.hand_out(who, 12, 1)

    def _extend(self, lease_id: str, more_ms: int) -> None:
        offsets, until_ms = self.leases[lease_id]
        later_ms = self.now_ms + more_ms
        self._append(Extended(GROUP, lease_id, later_ms, offsets))
        # Promised is what was stored before the lease ended, whenever its owner reads it.
        if until_ms > self.now_ms:
            self.leases[lease_id] = offsets, max(until_ms, later_ms)
            for offset in members(offsets):
                if self.held.get(offset) == until_ms:
                    self.held[offset] = max(until_ms, later_ms)

    def _some_lease(self, data: st.DataObject) -> tuple[OffsetSet, str]:
        if not self.leases:
            return EMPTY_SET, ""
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        some = data.draw(
            st.sets(st.sampled_from(sorted(members(self.leases[lease_id][0]))), min_size=1)
        )
        return OffsetSet.from_ranges([(one, one + 1) for one in some]), lease_id

    @rule(ms=st.integers(1, 150))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(who=st.integers(0, 1))
    def kill(self, who: int) -> None:
        self.servers[who] = Server(self.servers[who].server_id)

    @rule(who=st.integers(0, 1))
    def cut(self, who: int) -> None:
        """The owner writes a snapshot, and cuts the log below it."""
        server = self.servers[who]
        if server.serving is None:
            return
        server.state.forget_replaced()
        for part in server.state.snapshot():
            self._append(part)
        self.log[: server.state.position] = [None] * server.state.position

    @invariant()
    def acknowledgements_are_true(self) -> None:
        gaps = set(range(END)) - set(OFFSETS)
        for server in self.servers:
            group = server.state.groups.get(GROUP)
            if group is not None:
                assert members(group.acked) <= self.acked | gaps

    def teardown(self) -> None:
        """From any state, one server that goes on and one client that works finish the window."""
        self.kill(0)
        server = self.servers[0]
        for _ in range(60):
            self.read_log(0, 10**6)
            if server.state.groups[GROUP].is_done:
                assert self.acked == set(OFFSETS)
                return
            if server.serving is None:
                self.claim(0)
            self.read_log(0, 10**6)
            self.read_data(0, END)
            self.hand_out(0, 10, 1)
            self.read_log(0, 10**6)
            for lease_id in [one for one in self.leases if self.leases[one][1] > self.now_ms]:
                offsets, _ = self.leases[lease_id]
                self._append(Acknowledged(GROUP, offsets))
                self.acked |= members(offsets)
                for offset in members(offsets):
                    self.held.pop(offset, None)
            self.now_ms += LEASE_MS
        raise AssertionError("records were lost")


TestRelay = Relay.TestCase
TestRelay.settings = settings(stateful_step_count=60, deadline=None)
