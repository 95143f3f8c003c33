"""A state machine over a model in memory: anything that a test can do to it, checked against brute force."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafka_ordered_ops import Earliest, LogTruncatedError, Window, WindowPlan, WindowSupersededError
from kafka_ordered_ops.core.types import Isolation, OnDataLoss, TopicPartition, WindowStatus
from kafka_ordered_ops.kafka.ports import open_lookup, open_reader
from kafka_ordered_ops.testing import InMemoryKafka, Transaction, TransactionState
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.windows_support import BASE_MS, at

#: (partition, offset)
Place = tuple[int, int]

PARTITIONS = 2

partitions = st.integers(0, PARTITIONS - 1)
seconds = st.integers(0, 30)
times = st.lists(seconds, min_size=1, max_size=5)
cutoffs = st.integers(-1, 32)
choices = st.integers(0, 9)


class WindowMachine(RuleBasedStateMachine):
    """One group's windows over one topic. Every window is planned with a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.kafka = InMemoryKafka()
        self.transactions: dict[int, Transaction] = {}
        #: What must be done: what committed windows held, and what somebody else said was done.
        self.done: set[Place] = set()
        self.open: dict[str, WindowPlan] = {}
        self.count = 0

    @initialize(segment_ms=st.sampled_from([3_000, 10**12]), logs=st.lists(times, max_size=4))
    def start(self, segment_ms: int, logs: list[list[int]]) -> None:
        """Logs of one segment, or of many: a broker's index answers by segments."""
        self.kafka.__enter__()
        self.kafka.create_topic("orders", PARTITIONS, {"segment.ms": str(segment_ms)})
        self.windows = OrderedWindows(self.kafka.settings, "g", timeout_s=10)
        self.others = OrderedWindows(self.kafka.settings, "g", timeout_s=10)
        for number, log in enumerate(logs):
            self.write(number % PARTITIONS, log)

    # --- logs -----------------------------------------------------------------------------------

    @rule(partition=partitions, times=times)
    def write(self, partition: int, times: list[int]) -> None:
        """Plain records."""
        for second in times:
            self.kafka.produce("orders", partition=partition, timestamp_ms=BASE_MS + second * 1000)

    @rule(number=st.integers(0, 1), partition=partitions, times=times)
    def send(self, number: int, partition: int, times: list[int]) -> None:
        """Records of a transaction, which is left open."""
        transaction = self.transactions.get(number)
        if transaction is None or transaction.state is not TransactionState.OPEN:
            transaction = self.transactions[number] = self.kafka.transaction(f"tx-{number}")
        for second in times:
            transaction.produce("orders", partition=partition, timestamp_ms=BASE_MS + second * 1000)

    @rule(number=st.integers(0, 1), commits=st.booleans())
    def end(self, number: int, commits: bool) -> None:
        """The end of a transaction."""
        if (transaction := self.transactions.get(number)) is not None:
            (transaction.commit if commits else transaction.abort)()

    @rule(partition=partitions, choice=choices, whole_segments=st.booleans(), cutoff=cutoffs)
    def delete(self, partition: int, choice: int, whole_segments: bool, cutoff: int) -> None:
        """Some of what lies below the last stable offset goes, and a window is planned on the rest."""
        there = [one.offset for one in self.kafka.records("orders", partition)]
        if there:
            forward = self.kafka.expire_records if whole_segments else self.kafka.delete_records
            forward("orders", partition, there[choice % len(there)])
            self._plan(self.windows, cutoff)

    @rule(partition=partitions, chosen=st.sets(st.integers(0, 20)))
    def compact(self, partition: int, chosen: set[int]) -> None:
        """Holes."""
        self.kafka.compact("orders", partition, chosen)

    # --- windows --------------------------------------------------------------------------------

    @rule(cutoff=cutoffs)
    def plan(self, cutoff: int) -> None:
        """A window holds exactly what it must."""
        self._plan(self.windows, cutoff)

    @rule(cutoff=cutoffs, overtaken_by=cutoffs)
    def plan_overtaken(self, cutoff: int, overtaken_by: int) -> None:
        """Another window is planned between the read and the write."""
        self.kafka.before_commit(lambda: self._plan(self.others, overtaken_by))
        self._plan(self.windows, cutoff)

    @precondition(lambda self: self.open)
    @rule(choice=choices)
    def take_up(self, choice: int) -> None:
        """The same offsets, less what is gone; older attempts may not commit."""
        window_id, before = self._chosen(choice)
        plan = self.windows.plan(before.window, window_id)
        assert plan.attempt == before.attempt + 1
        for part, old in zip(plan, before, strict=True):
            assert part.taken | part.lost == old.taken | old.lost
        try:
            self.windows.commit(before)
        except WindowSupersededError:
            self.open[window_id] = plan
            return
        raise AssertionError("an older attempt has committed")

    @precondition(lambda self: self.open)
    @rule(choice=choices, faults=st.sampled_from(["none", "lost", "not stored"]))
    def commit(self, choice: int, faults: str) -> None:
        """Twice, and with answers that are lost: it counts once."""
        window_id, plan = self._chosen(choice)
        if faults == "none":
            self.windows.commit(plan)
        else:
            with self.kafka.lose_answers(stored=faults == "lost"):
                self.windows.commit(plan)
        self.others.commit(plan)
        self._is_done(window_id)

    @precondition(lambda self: self.open)
    @rule(choice=choices, other=choices, does=st.sampled_from(["commit", "abandon", "plan"]))
    def commit_overtaken(self, choice: int, other: int, does: str) -> None:
        """Another window, or the same, is changed between the read and the write."""
        window_id, plan = self._chosen(choice)
        name, another = self._chosen(other)
        between: dict[str, Callable[[], object]] = {
            "commit": lambda: self.others.commit(another),
            "abandon": lambda: self.others.abandon(name),
            "plan": lambda: self._plan(self.others, other),
        }
        self.kafka.before_commit(between[does])
        if does == "abandon" and name == window_id:
            try:
                self.windows.commit(plan)
            except WindowSupersededError:
                del self.open[window_id]
                return
            raise AssertionError("an abandoned window has committed")
        self.windows.commit(plan)
        self._is_done(window_id)
        if does == "abandon":
            del self.open[name]
        elif does == "commit" and name != window_id:
            self._is_done(name)

    @precondition(lambda self: self.open)
    @rule(choice=choices)
    def abandon(self, choice: int) -> None:
        """Its offsets are free."""
        window_id, _ = self._chosen(choice)
        self.windows.abandon(window_id)
        del self.open[window_id]

    # --- behind the group's back ------------------------------------------------------------------

    @rule(partition=st.sets(partitions))
    def expire(self, partition: set[int]) -> None:
        """Committed offsets are forgotten; the ledger knows them."""
        self.kafka.expire_offsets("g", [TopicPartition("orders", one) for one in partition])

    @precondition(lambda self: self.windows.state() is not None)
    @rule(partition=partitions, offset=st.integers(0, 25))
    def adopt(self, partition: int, offset: int) -> None:
        """Somebody else commits, and the group takes that for its progress."""
        tp = TopicPartition("orders", partition)
        state = self.windows.state()
        known = None if state is None else state.partition(tp)
        if known is None:
            return
        self.kafka.commit("g", {tp: offset})
        adopted = self.windows.adopt()
        to = min(offset, self._end_offset(tp))
        if not adopted:
            # It says what the group knew.
            assert offset == known.committed
            return
        mine = {place for place in self.done if place[0] == partition}
        if to < known.base:
            self.done -= mine
        self.done |= {(partition, one) for one in range(to)}

    @rule(partition=partitions, choice=st.integers(0, 40), times=st.just([]) | times)
    def cut(self, partition: int, choice: int, times: list[int]) -> None:
        """A log loses its tail, or nothing but its leader, and may be filled again before anybody looks."""
        tp = TopicPartition("orders", partition)
        with open_lookup(self.windows.settings) as lookup:
            end = lookup.end_offsets([tp], Isolation.READ_UNCOMMITTED)[tp]
        where = choice % (end + 1)
        self.kafka.cut_log("orders", partition, where)
        self.write(partition, times)
        if self.windows.state() is None:
            return
        gone = {place for place in self.done if place[0] == partition and place[1] >= where}
        held = {
            name
            for name, plan in self.open.items()
            if any(one[0] == partition and one[1] >= where for one in _places(plan))
        }
        if gone or held:
            try:
                self._plan(self.others, 1)
            except LogTruncatedError:
                pass
            else:
                raise AssertionError(f"nobody notices that {tp} was cut at {where}")
        self.windows.adopt()
        self.done -= gone
        for name in list(self.open):
            if self.windows.show(name).status is WindowStatus.ABANDONED:
                del self.open[name]
        assert not held & self.open.keys()

    # --- what must hold -------------------------------------------------------------------------

    @invariant()
    def progress_is_what_was_done(self) -> None:
        """Visible records are done exactly when they must be; the committed offset is the first that is not."""
        if not hasattr(self, "windows") or (state := self.windows.state()) is None:
            return
        committed = self.kafka.committed("g")
        for tp, partition in state:
            for offset in self._visible(tp.partition):
                expected = (tp.partition, offset) in self.done or offset < partition.origin
                assert (offset in partition.done) == expected
            if partition.committed is not None and tp in committed:
                assert committed[tp].offset == partition.committed == partition.base

    def teardown(self) -> None:
        """Once all transactions have ended, one more window takes the rest."""
        if not hasattr(self, "windows"):
            return
        for transaction in self.transactions.values():
            transaction.commit()
        self._plan(self.windows, 1_000)
        for window_id, plan in list(self.open.items()):
            self.windows.commit(plan)
            self._is_done(window_id)
        self.progress_is_what_was_done()
        for tp, committed in self.kafka.committed("g").items():
            assert committed.offset == self._end_offset(tp)
        self.kafka.__exit__(None, None, None)

    # --- inside ---------------------------------------------------------------------------------

    def _plan(self, service: OrderedWindows, cutoff: int) -> None:
        self.count += 1
        window_id = f"w{self.count}"
        window = Window(
            ["orders"], at(cutoff), starting_offsets=Earliest(), on_data_loss=OnDataLoss.WARN
        )
        plan = service.plan(window, window_id)
        claimed = {place for one in self.open.values() for place in _places(one)}
        origin = {tp.partition: partition.origin for tp, partition in service.state() or ()}
        expected = {
            (partition, offset)
            for partition in range(PARTITIONS)
            for offset, time_ms in self._visible(partition).items()
            if time_ms < window.cutoff_ms
            and offset >= origin[partition]
            and (partition, offset) not in self.done | claimed
        }
        assert self._read(plan) == expected
        self.open[window_id] = plan

    def _read(self, plan: WindowPlan) -> set[Place]:
        found: list[Place] = []
        columns = ["partition", "offset"]
        with open_reader(
            self.windows.settings, "g", plan.isolation, plan.taken, columns=columns
        ) as reader:
            for batch in pa.Table.from_batches(reader.batches(), reader.schema).to_pylist():
                found.append((batch["partition"], batch["offset"]))
        assert len(found) == len(set(found)), "read twice"
        return set(found)

    def _end_offset(self, tp: TopicPartition) -> int:
        with open_lookup(self.windows.settings) as lookup:
            return lookup.end_offsets([tp], Isolation.READ_COMMITTED)[tp]

    def _visible(self, partition: int) -> dict[int, int]:
        return {one.offset: one.timestamp_ms for one in self.kafka.records("orders", partition)}

    def _chosen(self, choice: int) -> tuple[str, WindowPlan]:
        window_id = sorted(self.open)[choice % len(self.open)]
        return window_id, self.open[window_id]

    def _is_done(self, window_id: str) -> None:
        self.done |= _places(self.open.pop(window_id))


def _places(plan: WindowPlan) -> set[Place]:
    return {
        (part.tp.partition, offset)
        for part in plan
        for start, end in (part.taken | part.lost)
        for offset in range(start, end)
    }
