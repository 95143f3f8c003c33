"""A topic recreated, a topic that is gone, a log that was cut: what the group's progress is then."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kafka_ordered_ops import (
    Earliest,
    PlanError,
    TopicRecreatedError,
    Window,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group.decisions.adoption import Cause, Moved
from kafka_ordered_ops.core.types import TopicPartition, WindowStatus
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.interval_oracle import (
    commit_as_another,
    foresee_and_adopt,
    interval,
    late_of,
    stamped,
)
from tests.support.logs import await_stored, read_plan, write_afresh
from tests.support.windows_support import (
    BASE_MS,
    TIMEOUT_S,
    at,
    before,
    offsets_of,
    wait_until_gone,
)


def recreate(bootstrap: str, topic: MakeTopic, name: str, partitions: int) -> None:
    """Deletes a topic and makes another one of its name."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    wait_until_gone(bootstrap, name)
    topic(name, partitions=partitions)


@pytest.mark.long
@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_a_topic_made_anew_begins_at_its_start(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, partitions: int
) -> None:
    """With fewer, as many or more partitions than before; open windows that asked for it are abandoned."""
    name = topic(partitions=2)
    for partition in (0, 1):
        write_afresh(bootstrap, name, partition, [BASE_MS + s * 1000 for s in (0, 10, 5, 20)])
    windows.commit(windows.plan(before(name, 1, Earliest()), "old"))
    open_plan = windows.plan(before(name, 12), "open")
    recreate(bootstrap, topic, name, partitions)
    for partition in range(partitions):
        write_afresh(bootstrap, name, partition, [BASE_MS + s * 1000 for s in (15, 3, 30)])
    with pytest.raises(TopicRecreatedError, match="windows adopt"):
        windows.plan(before(name, 12), "next")
    adopted = foresee_and_adopt(windows)
    assert [one.cause for one in adopted.moved] == [Cause.RECREATED] * min(partitions, 2)
    assert (adopted.rewound, adopted.abandoned) == ((), ("open",))
    with pytest.raises(WindowSupersededError):
        windows.commit(open_plan)
    plan = windows.plan(before(name, 12), "next")
    assert {key[1:] for key in read_plan(windows.settings, plan)} == {
        (n, 1) for n in range(partitions)
    }
    windows.commit(plan)
    windows.commit(windows.plan(before(name, 100), "rest"))
    state = windows.state()
    assert state is not None
    assert {tp.partition: one.base for tp, one in state} == dict.fromkeys(range(partitions), 3)
    # What was delivered of the old topic is not to be had any more, and is done all the same.
    assert windows.commit(windows.plan(before(name, 1), "old")).status is WindowStatus.COMMITTED
    with pytest.raises(TopicRecreatedError):
        windows.replay("old")


@pytest.mark.long
def test_a_topic_made_anew_gives_the_others_of_its_open_windows_free(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """What was known of the other topic's times did not speak of what the abandoned window held."""
    gone, other = topic(), topic()
    produce(stamped(gone, 1))
    # The last one is an out-of-order record that the open window takes, between records that it does not take.
    produce(stamped(other, 1, 20, 21, 5, 22))

    def both(cutoff: float) -> Window:
        return Window([gone, other], at(cutoff), starting_offsets=Earliest())

    windows.commit(windows.plan(both(2), "first"))
    windows.plan(both(10), "open")
    recreate(bootstrap, topic, gone, 1)
    assert windows.adopt().abandoned == ("open",)
    plan = windows.plan(both(10), "open")
    assert {key[0::2] for key in read_plan(windows.settings, plan)} == {(other, 3)}


@pytest.mark.long
def test_windows_of_an_older_topic_are_not_rewound_with_the_newer_one(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Their offsets lie in a log that is gone, whatever their numbers."""
    name = topic()
    produce(stamped(name, *range(10)))
    windows.commit(windows.plan(interval(name, 0, 10), "old"))
    recreate(bootstrap, topic, name, 1)
    write_afresh(bootstrap, name, 0, [BASE_MS + 10_000 + n * 1000 for n in range(10)])
    windows.adopt()
    windows.commit(windows.plan(interval(name, 10, 15), "new"))
    commit_as_another(bootstrap, windows.group_id, TopicPartition(name, 0), 2)
    adopted = foresee_and_adopt(windows)
    assert adopted.rewound == ("new",)
    assert windows.show("old").status is WindowStatus.COMMITTED
    # The old window's times are frozen on the old log only.
    write_afresh(bootstrap, name, 0, [BASE_MS + 5_000])
    plan = windows.plan(interval(name, 15, 30), "later")
    found = read_plan(windows.settings, plan)
    assert offsets_of(found) == set(range(5, 10))
    assert late_of(plan, found) == set()


@pytest.mark.long
def test_nothing_is_known_of_partitions_that_a_topic_made_anew_gets_later(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic
) -> None:
    """Whatever was read of a partition of that number in the older topic."""
    name = topic(partitions=2)
    for partition in (0, 1):
        write_afresh(bootstrap, name, partition, [BASE_MS + s * 1000 for s in (0, 20, 21, 22)])
    windows.commit(windows.plan(before(name, 10, Earliest()), "old"))
    recreate(bootstrap, topic, name, 1)
    windows.adopt()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [done] = admin.create_partitions([NewPartitions(name, 2)]).values()
    done.result(TIMEOUT_S)
    write_afresh(bootstrap, name, 1, [BASE_MS + s * 1000 for s in (30, 1, 2, 3)])
    plan = windows.plan(before(name, 10), "new")
    assert {key[1:] for key in read_plan(windows.settings, plan)} == {(1, 1), (1, 2), (1, 3)}


@pytest.mark.long
def test_a_rewound_window_of_a_topic_that_was_made_anew_is_planned_anew(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Of what it delivered nothing is left to be kept, whatever is done in the newer topic."""
    name = topic()
    produce(stamped(name, 1, 2, 3))
    windows.commit(windows.plan(before(name, 10, Earliest()), "w"))
    commit_as_another(bootstrap, windows.group_id, TopicPartition(name, 0), 1)
    assert windows.adopt().rewound == ("w",)
    recreate(bootstrap, topic, name, 1)
    write_afresh(bootstrap, name, 0, [BASE_MS + s * 1000 for s in (1, 2, 3, 12)])
    windows.adopt()
    windows.commit(windows.plan(before(name, 3), "other"))
    plan = windows.plan(before(name, 10), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {2}


@pytest.mark.long
def test_a_topic_that_is_gone_is_left_alone(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """It holds up neither an adoption nor a commit of the others."""
    gone, other = topic(), topic()
    produce(stamped(gone, 1, 2) + stamped(other, 1, 2, 3))
    asked = Window([gone, other], at(2), starting_offsets=Earliest())
    windows.commit(windows.plan(asked, "w"))
    plan = windows.plan(replace(asked, cutoff=at(3)), "open")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([gone])[gone].result(TIMEOUT_S)
    wait_until_gone(bootstrap, gone)
    assert not windows.adopt()
    windows.commit(plan)
    commit_as_another(bootstrap, windows.group_id, TopicPartition(other, 0), 1)
    assert [one.tp.topic for one in windows.adopt().moved] == [other]


@pytest.mark.long
def test_a_log_that_was_cut_behind_progress() -> None:
    """A broker that comes back without its records: none of what is there now was ever delivered."""
    with EmbeddedKafka() as broker:
        name = "orders"
        settings: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap}
        admin = AdminClient(settings)
        new = NewTopic(name, num_partitions=2, config={"retention.ms": "-1"})
        admin.create_topics([new])[name].result(TIMEOUT_S)
        for partition in (0, 1):
            write_afresh(broker.bootstrap, name, partition, [BASE_MS + n * 1000 for n in range(8)])
        with OrderedWindows(settings, "group") as windows:
            windows.commit(windows.plan(before(name, 4, Earliest()), "first"))
            windows.commit(windows.plan(before(name, 6), "second"))
            await_stored(windows)
        broker.kill()
        shutil.rmtree(broker.data_dir / f"{name}-0")
        broker.restart()
        write_afresh(broker.bootstrap, name, 0, [BASE_MS + 100_000 + n * 1000 for n in range(5)])
        with OrderedWindows(settings, "group") as windows:
            with pytest.raises(PlanError, match="windows adopt"):
                windows.plan(before(name, 7), "next")
            adopted = foresee_and_adopt(windows)
            tp = TopicPartition(name, 0)
            assert adopted.moved == (Moved(tp, Cause.TRUNCATED, 6, 0),)
            assert adopted.rewound == ("first", "second")
            plan = windows.plan(before(name, 100), "next")
            found = read_plan(windows.settings, plan)
            assert {key[1:] for key in found} == {(1, 6), (1, 7)}
            windows.abandon(plan.window_id)
            plan = windows.plan(before(name, 150), "all")
            found = read_plan(windows.settings, plan)
            assert {key[1:] for key in found} == {(1, 6), (1, 7), *((0, n) for n in range(5))}
            windows.commit(plan)
            write_afresh(broker.bootstrap, name, 0, [BASE_MS])
            plan = windows.plan(before(name, 200), "rest")
            assert {key[1:] for key in read_plan(windows.settings, plan)} == {(0, 5)}
