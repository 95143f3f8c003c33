"""The fence: nothing inside it asks the cluster, what was asked before is checked there, and few changes need it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from typing import Any

import pytest

from kafka_ordered_ops import (
    Earliest,
    ForeignCommitError,
    GroupInUseError,
    KafkaOrderedOpsError,
    LogTruncatedError,
    RecordsLostError,
    SinkError,
    TopicRecreatedError,
    Window,
)
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC
from kafka_ordered_ops.core.types import TopicPartition, WindowStatus
from kafka_ordered_ops.kafka.ledger import ledger as real
from kafka_ordered_ops.kafka.ledger.transaction import FencedTransaction
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.ports import LookupDoor
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.testing import ledger as model
from kafka_ordered_ops.testing.cluster import GroupLock
from kafka_ordered_ops.testing.lookup import MemoryLookup
from kafka_ordered_ops.windows import OrderedWindows, Policy
from tests.support.interval_oracle import commit_as_another
from tests.support.windows_support import BASE_MS, at
from tests.windows.test_delivery import Output, Shelf

TP = TopicPartition("orders", 0)


@dataclass
class Watch:
    """What happens inside fences."""

    is_inside: bool = False
    fences: int = 0
    writes: int = 0
    #: How often the group's members were asked for.
    asked_outside: int = 0
    questions: list[str] = field(default_factory=list)

    def enter(self) -> None:
        """A fence begins."""
        self.is_inside, self.fences = True, self.fences + 1

    def leave(self) -> None:
        """It ends."""
        self.is_inside = False

    def asked(self, name: str, about: Any) -> None:
        """A question; the ledger's own records are no question to the cluster."""
        self.asked_outside += not self.is_inside and name == "group_members"
        topics = {getattr(one, "topic", one) for one in about if not isinstance(about, str)}
        if self.is_inside and topics != {LEDGER_TOPIC}:
            self.questions.append(f"{name}({about})")


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Watches the fences of models and of real brokers."""
    watch = Watch()

    def around(
        owner: type, name: str, before: Callable[..., object], after: Callable[[], object]
    ) -> None:
        method = getattr(owner, name)

        @wraps(method)
        def watched(self: Any, *args: Any, **options: Any) -> Any:
            # What can be gone through once only is looked at here as well.
            args = tuple(list(one) if isinstance(one, Iterator) else one for one in args)
            before(*args)
            try:
                return method(self, *args, **options)
            finally:
                after()

        monkeypatch.setattr(owner, name, watched)

    def nothing(*_: Any) -> None:
        return

    def writes(*_: Any) -> None:
        watch.writes += 1

    for owner in (Lookup, MemoryLookup):
        for name in [one for one in vars(LookupDoor) if not one.startswith("_") and one != "close"]:
            around(owner, name, lambda *args, name=name: watch.asked(name, args[0]), nothing)
    # Behind `init_transactions`, and until the transaction has ended.
    around(real.Ledger, "_read_inside", lambda *_: watch.enter(), nothing)
    around(real.Ledger, "_change", nothing, watch.leave)
    around(FencedTransaction, "_write", writes, nothing)
    around(GroupLock, "__enter__", lambda *_: watch.enter(), nothing)
    around(GroupLock, "__exit__", nothing, watch.leave)
    around(model.MemoryLedger, "_write", writes, nothing)
    return watch


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """The topic ``orders``, one partition; seconds 0, 10, 20, 5, 30, 15 at offsets 0 to 5."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        fill(kafka, "orders")
        yield kafka


@pytest.fixture
def mine(kafka: InMemoryKafka) -> Iterator[OrderedWindows]:
    """The service of a group in memory."""
    with OrderedWindows(kafka.settings, "g", timeout_s=20) as service:
        yield service


@pytest.fixture
def others(kafka: InMemoryKafka) -> Iterator[OrderedWindows]:
    """Another process of the group."""
    with OrderedWindows(kafka.settings, "g", timeout_s=20) as service:
        yield service


def fill(kafka: InMemoryKafka, topic: str, partition: int = 0) -> None:
    """The usual six records."""
    for second in (0, 10, 20, 5, 30, 15):
        kafka.produce(topic, partition=partition, timestamp_ms=BASE_MS + second * 1000, value=b"x")


def before(second: float, *topics: str) -> Window:
    """What is stamped before a second."""
    return Window(list(topics) or ["orders"], at(second), Earliest())


@contextmanager
def after_question(
    windows: OrderedWindows, name: str, step: Callable[[], object]
) -> Iterator[None]:
    """Others act right after the service's next question of this kind."""
    lookup, question, taken = windows._lookup, getattr(windows._lookup, name), []

    def asking(*args: Any, **options: Any) -> Any:
        vars(lookup).pop(name, None)
        found = question(*args, **options)
        taken.append(step())
        return found

    vars(lookup)[name] = asking
    yield
    assert taken, f"{name} was never asked"


# --- what is asked inside ---------------------------------------------------------------------------


def _everything(windows: OrderedWindows, topic: str, move: Callable[[int], object]) -> None:
    """Every call that changes a group's state."""
    shelf = Shelf()
    windows.deliver(windows.plan(before(6, topic), "delivered"), shelf.write, shelf.reopen)
    plan = windows.plan(before(12, topic), "w")
    plan = windows.plan(before(12, topic), "w")
    windows.report(windows.split(plan, 1)[0], {"rows": 1})
    windows.commit(plan)
    windows.plan(before(17, topic), "given-up")
    windows.abandon("given-up")
    later = windows.plan_many([before(17, topic), before(22, topic)], ["a", "b"])
    windows.commit_many(windows.mark_written_many(later, [{}, {}]))
    move(1)
    assert windows.adopt().moved
    windows.prune(timedelta(0), forget=True)
    refused = windows.plan(before(25, topic), "refused")
    move(3)
    with pytest.raises(ForeignCommitError):
        windows.commit(refused, shelf.write(refused))


def test_nothing_in_a_model_is_asked_inside_the_fence(
    kafka: InMemoryKafka, mine: OrderedWindows, watch: Watch
) -> None:
    """Whatever a change needs to know of the cluster is asked before; see the proof that this would be noticed."""
    _everything(mine, "orders", lambda offset: kafka.commit("g", {TP: offset}))
    assert watch.fences >= 12
    assert watch.questions == []


@pytest.mark.slow
def test_nothing_of_brokers_is_asked_inside_the_fence(
    bootstrap: str, windows: OrderedWindows, orders: str, watch: Watch
) -> None:
    """The same with a real cluster; inside are the ledger's end and the committed offsets, which it writes."""
    tp = TopicPartition(orders, 0)
    _everything(
        windows, orders, lambda offset: commit_as_another(bootstrap, windows.group_id, tp, offset)
    )
    assert watch.fences >= 12
    assert watch.questions == []


def test_a_question_inside_the_fence_would_be_noticed(mine: OrderedWindows, watch: Watch) -> None:
    """The watch sees what a decision asks."""
    mine.plan(before(6), "w")

    def asking(*_: Any) -> tuple[()]:
        mine._lookup.topics(["orders"])
        return ()

    mine._ledger.update("g", lambda: asking)
    assert watch.questions == ["topics(['orders'])"]


# --- how many transactions --------------------------------------------------------------------------


def test_a_delivery_costs_two_transactions_after_its_plan(
    mine: OrderedWindows, watch: Watch
) -> None:
    """Written and committed in one, published in the other; without an output there is only the commit."""
    shelf = Shelf()
    plan = mine.plan(before(12), "w")
    assert watch.writes == 1
    assert mine.deliver(plan, shelf.write, shelf.reopen).record.status is WindowStatus.PUBLISHED
    assert watch.writes == 3
    plans = mine.plan_many([before(17), before(22)], ["a", "b"])
    mine.deliver_many(plans, lambda many: [shelf.write(one) for one in many], shelf.reopen)
    assert watch.writes == 6
    mine.commit(mine.plan(before(40), "alone"))
    assert watch.writes == 8


def test_a_delivery_on_brokers_costs_two_transactions_after_its_plan(
    windows: OrderedWindows, orders: str, watch: Watch
) -> None:
    """The same with a real cluster."""
    shelf = Shelf()
    windows.deliver(windows.plan(before(12, orders), "w"), shelf.write, shelf.reopen)
    assert watch.writes == 3
    assert windows.show("w").result == {"name": shelf.published["w"]}


def _recreate(kafka: InMemoryKafka) -> None:
    kafka.delete_topic("orders")
    kafka.create_topic("orders")


REFUSALS: dict[type[KafkaOrderedOpsError], Callable[[InMemoryKafka], object]] = {
    ForeignCommitError: lambda kafka: kafka.commit("g", {TP: 2}),
    GroupInUseError: lambda kafka: kafka.join("g"),
    TopicRecreatedError: _recreate,
    LogTruncatedError: lambda kafka: kafka.cut_log("orders", 0, 1),
}


@pytest.mark.parametrize("refusal", list(REFUSALS))
def test_a_refused_commit_records_what_was_written(
    kafka: InMemoryKafka,
    mine: OrderedWindows,
    watch: Watch,
    refusal: type[KafkaOrderedOpsError],
) -> None:
    """In the same fence: the next attempt finds the output, and nothing is committed or visible."""
    shelf = Shelf()
    plan = mine.plan(before(12), "w")
    REFUSALS[refusal](kafka)
    with pytest.raises(refusal):
        mine.deliver(plan, shelf.write, shelf.reopen)
    record = mine.show("w")
    [name] = shelf.staged
    assert (record.status, record.result) == (WindowStatus.WRITTEN, {"name": name})
    assert (watch.writes, shelf.published) == (2, {})
    # Refused again, it has nothing more to record.
    with pytest.raises(refusal):
        mine.commit(plan, shelf.reopen({"name": name}))
    assert watch.writes == 2


def test_a_window_whose_commit_was_refused_is_only_committed(
    kafka: InMemoryKafka, mine: OrderedWindows
) -> None:
    """Once the members have left, no job runs again."""
    shelf = Shelf()
    plan = mine.plan(before(12), "w")
    with kafka.join("g"), pytest.raises(GroupInUseError):
        mine.deliver(plan, shelf.write, shelf.reopen)
    delivery = mine.deliver(mine.plan(before(12), "w"), shelf.write, shelf.reopen)
    assert (delivery.ran, shelf.jobs, list(shelf.published)) == (False, 1, ["w"])


def test_a_commit_that_is_adopted_first_is_written_once(kafka: InMemoryKafka, watch: Watch) -> None:
    """Refused, adopted, committed: nothing of it is asked of the job."""
    shelf = Shelf()
    with OrderedWindows(kafka.settings, "g") as windows:
        plan = windows.plan(before(12), "w", Policy(on_foreign_commit="adopt"))
        kafka.commit("g", {TP: 2})
        delivery = windows.deliver(plan, shelf.write, shelf.reopen)
    assert (delivery.record.status, shelf.jobs) == (WindowStatus.PUBLISHED, 1)


def test_an_output_that_is_not_there_commits_nothing(mine: OrderedWindows, watch: Watch) -> None:
    """Checked before the fence."""
    plan = mine.plan(before(12), "w")

    class Gone(Output):
        def check_ready(self) -> None:
            raise SinkError("it is not there")

    with pytest.raises(SinkError):
        mine.commit(plan, Gone(Shelf(), "nowhere"))
    assert (mine.show("w").status, watch.writes) == (WindowStatus.PLANNED, 1)


# --- what changes between the questions and the fence -------------------------------------------------


def test_a_commit_looks_again_at_topics_that_came_to_the_group_meanwhile(
    kafka: InMemoryKafka, mine: OrderedWindows, others: OrderedWindows
) -> None:
    """Every commit writes all offsets of the group again, those of topics too that it did not ask about."""
    kafka.create_topic("new")
    fill(kafka, "new")
    plan = mine.plan(before(12), "w")

    def grow() -> None:
        others.commit(others.plan(before(12, "new"), "other", Policy(redefine=True)))
        kafka.expire_offsets("g")

    with after_question(mine, "group_members", grow):
        mine.commit(plan)
    assert {tp.topic: one.offset for tp, one in kafka.committed("g").items()} == {
        "orders": 2,
        "new": 2,
    }


def test_a_commit_that_is_done_asks_nothing(
    kafka: InMemoryKafka, mine: OrderedWindows, watch: Watch
) -> None:
    """Neither members nor a topic that was recreated since matter to what is committed already."""
    done = mine.commit(mine.plan(before(12), "w"))
    REFUSALS[TopicRecreatedError](kafka)
    with kafka.join("g"):
        asked = watch.asked_outside
        assert mine.commit(done) == done
    assert watch.asked_outside == asked


def test_an_adoption_believes_an_offset_that_was_committed_after_it_looked(
    kafka: InMemoryKafka, mine: OrderedWindows
) -> None:
    """It lies beyond the end that was asked, and the log has grown to it: it is not cut back to that end."""
    mine.commit(mine.plan(before(6), "w"))
    kafka.commit("g", {TP: 4})

    def move() -> None:
        fill(kafka, "orders")
        kafka.commit("g", {TP: 11})

    with after_question(mine, "diverged", move):
        [moved] = mine.adopt().moved
    assert moved.base_after == 11
    assert mine.plan(before(100), "rest").taken[TP].ranges == [(11, 12)]


def test_an_adoption_looks_again_at_a_group_that_moved_meanwhile(
    kafka: InMemoryKafka, mine: OrderedWindows, others: OrderedWindows
) -> None:
    """What others planned and committed after its look is not taken for what a cut has lost."""
    mine.commit(mine.plan(before(6), "w"))
    kafka.cut_log("orders", 0, 5)

    def move() -> None:
        others.adopt()
        fill(kafka, "orders")
        others.commit(others.plan(before(100), "later"))

    with after_question(mine, "diverged", move):
        assert not mine.adopt()
    assert kafka.committed("g")[TP].offset == 11
    assert mine.show("later").status is WindowStatus.COMMITTED


def test_a_window_planned_anew_meanwhile_is_looked_at_again(
    kafka: InMemoryKafka, mine: OrderedWindows, others: OrderedWindows
) -> None:
    """Taken up, it would have been asked about the offsets of its older claim alone."""
    mine.plan(before(40), "w")

    def anew() -> None:
        others.abandon("w")
        kafka.add_partitions("orders", 2)
        fill(kafka, "orders", 1)
        others.plan(before(40), "w")
        kafka.delete_records("orders", 1, 3)

    with after_question(mine, "log_starts", anew), pytest.raises(RecordsLostError):
        mine.plan(before(40), "w")
