"""Logs that lose their tail, with and without new records in its place: in memory, and on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import Earliest, LogTruncatedError, Window, WindowPlan
from kafka_ordered_ops.core.group.decisions.adoption import Cause, Moved
from kafka_ordered_ops.core.types import TopicPartition, WindowStatus
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.logs import await_stored, cut_file
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at
from tests.support.wire import write_batch


@dataclass(frozen=True)
class Cut:
    """What happens to the log: it ends at an offset, and records of these seconds follow."""

    end: int
    refill: Sequence[float] = ()


#: Steps before the log is cut, and after it.
Scenario = Callable[[OrderedWindows, str], Generator[Cut | None, OrderedWindows, None]]

SCENARIOS: Final[list[Scenario]] = []

#: What every log holds at first.
SECONDS: Final = range(40)


def scenario(function: Scenario) -> Scenario:
    """Puts it on the list."""
    SCENARIOS.append(function)
    return function


def interval(topic: str, since: float, before: float) -> Window:
    """The records of an interval."""
    return Window([topic], at(before), since=at(since), starting_offsets=Earliest())


def before(topic: str, second: float) -> Window:
    """Everything before a second."""
    return Window([topic], at(second), starting_offsets=Earliest())


def sweep(topic: str) -> Window:
    """All that no interval has taken."""
    return Window([topic], at(1_000), sweep=True)


def taken(plan: WindowPlan) -> list[tuple[int, int]]:
    """Its offsets."""
    return [one for part in plan for one in part.taken.ranges]


@scenario
def done_beyond_the_base(
    windows: OrderedWindows, topic: str
) -> Generator[Cut | None, OrderedWindows, None]:
    """A backfill, the newest first: what is done lies beyond the end of the log, its base does not."""
    windows.commit(windows.plan(interval(topic, 20, 36), "new"))
    windows = yield Cut(24)
    with pytest.raises(LogTruncatedError, match="windows adopt") as refused:
        windows.plan(interval(topic, 0, 10), "old")
    # The straggling tail was read as well: its times are in the time map.
    assert refused.value.truncated == {f"{topic}[0]": (40, 24)}
    adopted = windows.adopt()
    tp = TopicPartition(topic, 0)
    assert adopted.moved == (Moved(tp, Cause.TRUNCATED, 0, 0, cut=24),)
    assert adopted.rewound == ("new",)
    assert not windows.adopt()
    windows.commit(windows.plan(interval(topic, 0, 10), "old"))
    assert taken(windows.plan(sweep(topic), "rest")) == [(10, 20)]


@scenario
def filled_again(
    windows: OrderedWindows, topic: str
) -> Generator[Cut | None, OrderedWindows, None]:
    """The log is longer than before, and all that is done lies within it: only the leader's epoch tells."""
    windows.commit(windows.plan(interval(topic, 20, 36), "new"))
    windows = yield Cut(24, [100 + one for one in range(40)])
    with pytest.raises(LogTruncatedError):
        windows.plan(interval(topic, 0, 10), "old")
    foreseen = windows.adopt(dry_run=True)
    assert windows.adopt() == foreseen
    assert foreseen.moved == (Moved(TopicPartition(topic, 0), Cause.TRUNCATED, 0, 0, cut=24),)
    assert not windows.adopt()
    assert taken(windows.plan(sweep(topic), "rest")) == [(0, 20), (24, 64)]


@scenario
def filled_up_to_where_it_was_known(
    windows: OrderedWindows, topic: str
) -> Generator[Cut | None, OrderedWindows, None]:
    """It ends below what is known, and not where it was cut: progress is moved to where it was cut."""
    windows.commit(windows.plan(before(topic, 36), "w"))
    windows = yield Cut(24, [5, 6, 7])
    with pytest.raises(LogTruncatedError):
        windows.plan(before(topic, 50), "next")
    [moved] = windows.adopt().moved
    assert (moved.cause, moved.base_before, moved.base_after) == (Cause.TRUNCATED, 36, 24)
    assert windows.show("w").status is WindowStatus.REWOUND
    assert taken(windows.plan(before(topic, 50), "next")) == [(24, 27)]


@scenario
def cut_below_an_open_window(
    windows: OrderedWindows, topic: str
) -> Generator[Cut | None, OrderedWindows, None]:
    """What it holds is gone, or other records: it can be neither taken up nor committed."""
    plan = windows.plan(before(topic, 30), "w")
    written = windows.mark_written(windows.plan(before(topic, 35), "written"), {"files": 1})
    windows = yield Cut(24, [100] + [5] * 29)
    for refused in (plan, written):
        with pytest.raises(LogTruncatedError):
            windows.commit(refused)
    for window, window_id in ((before(topic, 30), "w"), (before(topic, 50), "next")):
        with pytest.raises(LogTruncatedError):
            windows.plan(window, window_id)
    adopted = windows.adopt()
    assert sorted(adopted.abandoned) == ["w", "written"]
    again = windows.plan(before(topic, 30), "w")
    assert taken(again) == [(0, 24), (25, 54)]
    windows.commit(again)


@scenario
def only_read(windows: OrderedWindows, topic: str) -> Generator[Cut | None, OrderedWindows, None]:
    """Nothing is done behind the cut, but times were read there: they are other records' now."""
    windows.commit(windows.plan(before(topic, 10), "first"))
    windows = yield Cut(24, [5] * 40)
    with pytest.raises(LogTruncatedError):
        windows.plan(before(topic, 12), "second")
    adopted = windows.adopt()
    assert (adopted.rewound, adopted.abandoned) == ((), ())
    second = windows.plan(before(topic, 12), "second")
    assert taken(second) == [(10, 12), (24, 64)]
    [part] = second
    # Written after the window that should have held them had been planned.
    assert [offset for _, offset in part.late.pieces] == [24]


@scenario
def a_replay(windows: OrderedWindows, topic: str) -> Generator[Cut | None, OrderedWindows, None]:
    """What was delivered cannot be read again."""
    windows.commit(windows.plan(before(topic, 36), "w"))
    windows = yield Cut(24, [5] * 40)
    with pytest.raises(LogTruncatedError):
        windows.replay("w")


@scenario
def another_leader(
    windows: OrderedWindows, topic: str
) -> Generator[Cut | None, OrderedWindows, None]:
    """Nothing is lost: everything goes on, and the group knows the new leader."""
    windows.commit(windows.plan(before(topic, 10), "first"))
    plan = windows.plan(before(topic, 20), "second")
    state = windows.state()
    assert state is not None
    epochs = [one.leader_epoch for _, one in state]
    windows = yield None
    windows.commit(plan)
    windows.commit(windows.plan(before(topic, 30), "third"))
    assert not windows.adopt()
    assert windows.replay("first").offsets == 10
    state = windows.state()
    assert state is not None
    assert [one.leader_epoch for _, one in state] > epochs


def name_of(one: Scenario) -> str:
    """Its topic, and its group."""
    return one.__name__.replace("_", "-")


@pytest.mark.parametrize("one", SCENARIOS, ids=name_of)
def test_a_cut_log_is_noticed_in_memory(one: Scenario) -> None:
    """And adopted exactly where it was cut."""
    with InMemoryKafka() as kafka:
        topic = name_of(one)
        kafka.create_topic(topic)

        def write(seconds: Sequence[float]) -> None:
            for second in seconds:
                kafka.produce(topic, timestamp_ms=BASE_MS + round(second * 1000))

        write(SECONDS)
        with OrderedWindows(kafka.settings, topic) as windows:
            steps = one(windows, topic)
            if (cut := next(steps)) is None:
                kafka.change_leader(topic, 0)
            else:
                kafka.cut_log(topic, 0, cut.end)
                write(cut.refill)
            finish(steps, windows)


def finish(steps: Generator[Cut | None, OrderedWindows, None], windows: OrderedWindows) -> None:
    """Takes the steps that are left."""
    with pytest.raises(StopIteration):
        steps.send(windows)


# A broker is started twice.
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cut_log_is_noticed_on_a_broker() -> None:
    """All of them at once: a node that loses power loses the tails of many logs."""
    with EmbeddedKafka() as broker:
        settings: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap}
        topics = [name_of(one) for one in SCENARIOS]
        new = [NewTopic(name, 1, 1, config={"retention.ms": "-1"}) for name in topics]
        admin = AdminClient(settings)
        for made in admin.create_topics(new).values():
            made.result(TIMEOUT_S)

        def write(topic: str, seconds: Sequence[float]) -> None:
            for second in seconds:
                write_batch(broker.bootstrap, topic, [BASE_MS + round(second * 1000)])

        running = []
        for one, topic in zip(SCENARIOS, topics, strict=True):
            write(topic, SECONDS)
            with OrderedWindows(settings, topic) as windows:
                steps = one(windows, topic)
                running.append((topic, steps, next(steps)))
                await_stored(windows)
        broker.kill()
        for topic, _, cut in running:
            if cut is not None:
                cut_file(broker.data_dir, topic, cut.end)
        for checkpoint in broker.data_dir.glob("recovery-point-offset-checkpoint"):
            checkpoint.unlink()
        broker.restart()
        for topic, steps, cut in running:
            if cut is not None:
                write(topic, cut.refill)
            with OrderedWindows(settings, topic) as windows:
                finish(steps, windows)
