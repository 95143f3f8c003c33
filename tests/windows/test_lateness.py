"""Maximum out-of-orderness on a real broker: where reading may stop, what must not stop it, and what comes late."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from random import Random

import pytest
from confluent_kafka import Producer

from kafka_ordered_ops import Earliest, Window
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.interval_oracle import late_of, stamped
from tests.support.logs import LogWriter, Records, read_plan, visible_records
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at, offsets_of

YEAR_2100_MS = 4_102_444_800_000


def asked(
    topic: str, cutoff: float, lateness: float | None, *, since: float | None = None
) -> Window:
    """Everything before a second, or from one second up to another, with so many seconds of lateness."""
    return Window(
        [topic],
        at(cutoff),
        starting_offsets=Earliest(),
        max_out_of_orderness=None if lateness is None else timedelta(seconds=lateness),
        since=None if since is None else at(since),
    )


class Transactions:
    """Writes records one by one in transactions, whose markers carry the broker's clock of today."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"late-{uuid.uuid4().hex}"}
        )
        self._producer.init_transactions(TIMEOUT_S)

    def write(self, topic: str, seconds: list[float], *, end: str = "commit") -> None:
        """One transaction with these records, committed or aborted."""
        self._producer.begin_transaction()
        for second in seconds:
            time_ms = BASE_MS + round(second * 1000)
            self._producer.produce(topic, value=b"x", partition=0, timestamp=time_ms)
        assert self._producer.flush(TIMEOUT_S) == 0
        getattr(self._producer, f"{end}_transaction")(TIMEOUT_S)


def decided_end(windows: OrderedWindows, window_id: str) -> int:
    """Up to where a window of one partition looked."""
    [part] = windows.show(window_id).plan
    return part.decided_end


def test_reading_stops_behind_the_lateness(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """At the first record stamped at or after cutoff + lateness; what lies behind it comes late with the next."""
    name = topic()
    produce(stamped(name, 1, 12, 3, 19.999, 4, 20, 5, 11))
    first = windows.plan(asked(name, 10, 10), "first")
    assert offsets_of(read_plan(windows.settings, first)) == {0, 2, 4}
    assert (decided_end(windows, "first"), first.scanned) == (5, 4)
    windows.commit(first)
    second = windows.plan(asked(name, 15, 100), "second")
    found = read_plan(windows.settings, second)
    assert offsets_of(found) == {1, 6, 7}
    # 5 is late, written behind the stop; 11 and 12 are this window's own.
    assert {key[2] for key in late_of(second, found)} == {6}


def test_without_lateness_the_whole_log_is_read(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """The default: however far behind a record stands."""
    name = topic()
    produce(stamped(name, 1, 1_000, 10_000, 2))
    plan = windows.plan(asked(name, 10, None), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {0, 3}


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_what_is_not_visible_ends_no_reading(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce, end: str
) -> None:
    """Markers stamped today, and aborted records stamped past the lateness, say nothing about the time."""
    name = topic()
    writer = Transactions(bootstrap)
    writer.write(name, [1, 12])
    writer.write(name, [50, 60] if end == "abort" else [13], end=end)
    writer.write(name, [2])
    produce(stamped(name, 30, 3))
    plan = windows.plan(asked(name, 10, 10), "w")
    times = set(read_plan(windows.settings, plan).values())
    assert times == {BASE_MS + 1000, BASE_MS + 2000}
    windows.commit(plan)
    rest = windows.plan(asked(name, 100, 10), "rest")
    assert len(read_plan(windows.settings, rest)) == (4 if end == "commit" else 3)
    windows.commit(rest)
    state = windows.state()
    assert state is not None
    [(tp, one)] = list(state)
    # Neither is progress held back by any of it.
    assert one.base == rest.partitions[0].decided_end
    assert len(visible_records(bootstrap, {tp: one.base})) == (6 if end == "commit" else 5)


@pytest.mark.parametrize("far_ms", [YEAR_2100_MS, "in two hours"])
def test_a_record_from_the_future_ends_no_reading(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce, far_ms: int | str
) -> None:
    """One wrong clock must not cut every later window short; the record itself waits for its time."""
    # As brokers let in before Kafka 3.6, and where that is configured.
    name = topic(config={"message.timestamp.after.max.ms": str(INT64_MAX)})
    if isinstance(far_ms, str):
        far_ms = round((time.time() + 7_200) * 1000)
    produce(stamped(name, 1, 12))
    produce([(name, 0, None, b"x", far_ms, ())])
    produce(stamped(name, 2, 30, 3))
    plan = windows.plan(asked(name, 10, 10), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {0, 3}
    windows.commit(plan)
    rest = windows.plan(asked(name, 100, 10), "rest")
    assert offsets_of(read_plan(windows.settings, rest)) == {1, 4, 5}


def test_a_stop_lies_above_what_was_read_before(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """What an earlier window read to the end ends no later one: only a record that is new to the group does."""
    name = topic()
    produce(stamped(name, 12, 40, 1, 13))
    wide = windows.plan(asked(name, 11, None), "wide")
    assert offsets_of(read_plan(windows.settings, wide)) == {2}
    windows.commit(wide)
    produce(stamped(name, 14, 50, 2))
    plan = windows.plan(asked(name, 15, 5), "narrow")
    # 40 is past its lateness, and 13 behind it was read before all the same.
    assert offsets_of(read_plan(windows.settings, plan)) == {0, 3, 4}
    assert decided_end(windows, "narrow") == 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_backlog_comes_in_pieces(
    bootstrap: str, topic: MakeTopic, windows: OrderedWindows, seed: int
) -> None:
    """Windows over a backlog each read up to their stop only; together they hold all of it, late or not."""
    random = Random(seed)
    name = topic(partitions=2)
    writer = LogWriter(bootstrap, random)
    places = [(name, 0), (name, 1)]
    for turn in range(8):
        low_ms = BASE_MS + turn * 10_000
        writer.write(places, count=60, low_ms=low_ms, high_ms=low_ms + 14_000)
    delivered: Records = {}
    ends: list[dict[TopicPartition, int]] = []
    for cutoff in (10, 30, 50, 70):
        plan = windows.plan(asked(name, cutoff, 5), f"w{cutoff}")
        found = read_plan(windows.settings, plan)
        assert not found.keys() & delivered.keys()
        assert max(found.values()) < plan.cutoff_ms
        # Each record below the stop that is stamped in time; those behind it are for the next.
        visible = visible_records(bootstrap, {part.tp: part.decided_end for part in plan})
        assert found == {
            key: time_ms
            for key, time_ms in visible.items()
            if time_ms < plan.cutoff_ms and key not in delivered
        }
        earlier = ends[-1] if ends else {}
        late = {
            key
            for key, time_ms in found.items()
            if time_ms < BASE_MS + (cutoff - 20) * 1000
            and key[2] >= earlier.get(TopicPartition(*key[:2]), 0)
        }
        assert late_of(plan, found) == (late if ends else set())
        ends.append({part.tp: part.decided_end for part in plan})
        delivered |= found
        windows.commit(plan)
    # The first windows did not read the backlog to its end.
    assert all(ends[0][tp] < ends[-1][tp] for tp in ends[0])
    last = windows.plan(asked(name, 1_000, None), "last")
    delivered |= read_plan(windows.settings, last)
    windows.commit(last)
    state = windows.state()
    assert state is not None
    assert delivered == visible_records(bootstrap, {tp: one.base for tp, one in state})


def test_an_interval_stops_too_and_what_is_behind_comes_late(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Stamped in the interval, written behind the stop: with the next interval, as late."""
    name = topic()
    produce(stamped(name, 5, 11, 25, 12, 40, 13))
    first = windows.plan(asked(name, 20, 10, since=10), "first")
    assert offsets_of(read_plan(windows.settings, first)) == {1, 3}
    windows.commit(first)
    second = windows.plan(asked(name, 30, 100, since=20), "second")
    found = read_plan(windows.settings, second)
    assert offsets_of(found) == {2, 5}
    assert {key[2] for key in late_of(second, found)} == {5}


def test_several_windows_stop_behind_the_last_of_them(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """In one pass all look as far as the one with the greatest cutoff."""
    name = topic()
    produce(stamped(name, 1, 16, 2, 11, 27, 3))
    first, second = windows.plan_many([asked(name, 10, 5), asked(name, 20, 5)], ["a", "b"])
    assert offsets_of(read_plan(windows.settings, first)) == {0, 2}
    assert offsets_of(read_plan(windows.settings, second)) == {1, 3}
    windows.commit_many([first, second])
    third = windows.plan(asked(name, 30, 100), "c")
    found = read_plan(windows.settings, third)
    assert offsets_of(found) == {4, 5}
    assert {key[2] for key in late_of(third, found)} == {5}


@pytest.mark.slow
def test_lateness_is_decided_by_the_index_only_where_it_proves(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """A head far longer than the lateness is taken without being read."""
    name = topic()
    produce(stamped(name, *range(50), 55, 70, 1))
    plan = windows.plan(asked(name, 60, 5), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == set(range(51))
    assert plan.scanned == 0
    assert decided_end(windows, "w") == 51
