"""Intervals on a real broker: exact, late records told, and what none of them covers left for a sweep."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from random import Random

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_ordered_ops import Earliest, RecordsLostError, Window
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.planning import scan_fold
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.types import INT64_MIN, OnDataLoss, PlanContent
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.interval_oracle import IntervalOracle, interval, late_of, stamped, sweep
from tests.support.logs import LogWriter, Records, read_plan, write_afresh
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at, delete_before, offsets_of
from tests.support.wire import write_batch

STEP_S = 10
#: A series leaves its first interval, and every record stamped before or behind it, to the sweep.
INTERVALS = 6


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of eight records, so that short logs have many."""
    monkeypatch.setattr(scan_fold, "CHUNK_RECORDS", 8)


def _ms(second: float) -> int:
    return BASE_MS + round(second * 1000)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forward", "backward", "random"])
@pytest.mark.parametrize("seed", range(2))
def test_every_record_is_in_at_most_one_interval(
    bootstrap: str, topic: MakeTopic, windows: OrderedWindows, order: str, seed: int
) -> None:
    """Planned in any order, several open at once, some abandoned, records written all the while.

    Each holds what is stamped in its times and waits, and what is late; the sweep takes all the rest.
    """
    random = Random(f"{order} {seed}")
    name = topic(partitions=random.randint(2, 5))
    writer = LogWriter(bootstrap, random)
    oracle = IntervalOracle(windows, bootstrap, name)
    # The last partition stays empty at first.
    written = [(name, number) for number in range(random.randint(1, 2))]
    # Roughly in order, so that much is decided by what is known of whole chunks.
    for second in range(-20, 90, 10):
        writer.write(written, count=25, low_ms=_ms(second), high_ms=_ms(second + 15))
    oracle.look()
    starts = [float(n * STEP_S) for n in range(1, INTERVALS + 1)]
    if order == "backward":
        starts.reverse()
    elif order == "random":
        random.shuffle(starts)
        # Of other lengths, and over each other.
        starts += [random.uniform(0, 70) for _ in range(3)]
    for number, since in enumerate(starts):
        cutoff = since + (STEP_S if number < INTERVALS else random.uniform(1, 25))
        oracle.plan(f"w{number}", interval(name, since, cutoff))
        while len(oracle.open) > 2:
            chosen = random.choice(sorted(oracle.open))
            if random.random() < 0.3:
                oracle.abandon(chosen)
            else:
                oracle.commit(chosen, read=random.random() < 0.3)
        oracle.check_gaps()
        if random.random() < 0.5:
            everywhere = [(tp.topic, tp.partition) for tp in oracle.ends]
            writer.write(everywhere, count=40, low_ms=_ms(-20), high_ms=_ms(90))
            oracle.look()
    oracle.commit(*oracle.open)
    oracle.plan("sweep", sweep(name, 1_000))
    oracle.commit("sweep", read=True)
    assert oracle.delivered == oracle.visible
    state = windows.state()
    assert state is not None
    assert {tp: one.base for tp, one in state} == oracle.ends
    assert windows.gaps() == []


def test_an_interval_holds_its_own_times_and_what_is_late(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Since counts, the cutoff does not; late is what was stamped in an interval planned before."""
    name = topic()
    produce(stamped(name, 5, 10, 19.999, 20, 9.999, 25))
    first = windows.plan(interval(name, 10, 20), "first")
    assert offsets_of(read_plan(windows.settings, first)) == {1, 2}
    windows.commit(first)
    produce(stamped(name, 12, 7, 31))
    second = windows.plan(interval(name, 20, 30), "second")
    found = read_plan(windows.settings, second)
    # 12 is late; 5, 9.999 and 7 are of no interval that was planned.
    assert offsets_of(found) == {3, 5, 6}
    assert {offset for _, _, offset in late_of(second, found)} == {6}
    windows.commit(second)
    rest = windows.plan(sweep(name, 100), "rest")
    swept = read_plan(windows.settings, rest)
    assert offsets_of(swept) == {0, 4, 7, 8}
    assert late_of(rest, swept) == set()


def test_a_late_record_goes_no_further_than_the_cutoff(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """A wide interval was planned; what is late for it goes to the windows that end behind it."""
    name = topic()
    produce(stamped(name, 1))
    windows.commit(windows.plan(interval(name, 0, 40), "wide"))
    produce(stamped(name, 5, 25, 35))
    plan = windows.plan(interval(name, 20, 30), "narrow")
    found = read_plan(windows.settings, plan)
    assert offsets_of(found) == {1, 2}
    assert {offset for _, _, offset in late_of(plan, found)} == {1, 2}
    windows.commit(plan)
    assert offsets_of(read_plan(windows.settings, windows.plan(interval(name, 30, 40), "n"))) == {3}


def test_gaps_tell_the_times_and_the_counts(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Before the first interval and between two of them; what lies behind the last one is no gap."""
    name = topic()
    produce(stamped(name, *range(0, 60, 2)))
    assert windows.gaps() == []
    windows.plan(interval(name, 40, 50), "later")
    windows.plan(interval(name, 10, 20), "earlier")
    gaps = {gap.times: gap for gap in windows.gaps()}
    assert list(gaps) == [
        TimeRange(INT64_MIN, _ms(10)),
        TimeRange(_ms(20), _ms(40)),
    ]
    before, between = gaps.values()
    # The broker's index tells where second 10 begins; the scan behind it kept bounds of whole chunks.
    assert (before.topic, before.partitions, before.offsets) == (name, 1, 5)
    assert between.offsets <= 10 <= between.offsets_at_most
    assert windows.preview(sweep(name, 50), "s").offsets == 15
    windows.commit(windows.plan(sweep(name, 50), "s"))
    assert windows.gaps() == []


@pytest.mark.parametrize(("since", "cutoff"), [(40, 50), (0, 8)])
def test_gaps_count_what_an_abandoned_interval_had_read(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce, since: int, cutoff: int
) -> None:
    """What is known of its times is forgotten with it; that records wait there is not."""
    name = topic()
    produce(stamped(name, 5, 15, 25, 45, 7))
    windows.commit(windows.plan(interval(name, 10, 20), "kept"))
    windows.plan(interval(name, since, cutoff), "given-up")
    windows.abandon("given-up")
    # Second 5 and, behind all others, second 7.
    rows = [one for one in windows.gaps() if one.times in (None, TimeRange(INT64_MIN, _ms(10)))]
    assert sum(row.offsets_at_most for row in rows) >= 2
    assert windows.plan(sweep(name, 20), "s").offsets == 2


def test_records_without_a_time_wait_for_the_sweep(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic
) -> None:
    """Stamped -1 and 0 in the log: an interval that begins with 1970 takes the second, only a sweep the first."""
    name = topic()
    write_batch(bootstrap, name, [-1, 0, _ms(5), -1, 1])
    epoch = datetime.fromtimestamp(0, UTC)
    first = windows.plan(
        Window([name], epoch.replace(microsecond=1000), since=epoch, starting_offsets=Earliest()),
        "first",
    )
    assert {part.taken for part in first} == {OffsetSet.of((1, 2))}
    windows.commit(first)
    assert [gap.times for gap in windows.gaps()] == [TimeRange(INT64_MIN, 0)]
    rest = windows.plan(Window([name], at(0), since=epoch.replace(microsecond=1000)), "rest")
    assert {part.taken for part in rest} == {OffsetSet.of((4, 5))}
    windows.commit(rest)
    last = windows.plan(sweep(name, 100), "last")
    assert {part.taken for part in last} == {OffsetSet.of((0, 1), (2, 4))}
    windows.commit(last)
    assert _bases(windows) == [5]
    # The sweep covered all times before its cutoff, but an interval still takes no record without a time.
    write_batch(bootstrap, name, [_ms(99), -1])
    late = windows.plan(interval(name, 100, 110), "late")
    assert {part.taken for part in late} == {OffsetSet.of((5, 6))}
    windows.commit(late)
    assert [(gap.times, gap.offsets_at_most) for gap in windows.gaps()] == [(TimeRange(-1, 0), 1)]
    again = windows.plan(sweep(name, 100), "again")
    assert {part.taken for part in again} == {OffsetSet.of((6, 7))}
    windows.commit(again)
    assert windows.gaps() == []


@pytest.mark.parametrize("who", ["its own hour", "another hour", "the same interval", "a sweep"])
def test_a_late_record_keeps_its_time_when_its_window_is_abandoned(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce, who: str
) -> None:
    """An interval took it out of another hour: after the abandon, the next window that asks for its time takes it."""
    name = topic()
    produce(stamped(name, 1, *range(15, 95, 10)))
    windows.plan(interval(name, 0, 10), "first")
    covered = windows.plan(interval(name, 0, 10), "covered")
    assert covered.content is PlanContent.COVERED
    windows.commit(covered)
    windows.abandon("first")
    took_it = windows.plan(interval(name, 50, 60), "late")
    found = read_plan(windows.settings, took_it)
    assert offsets_of(found) == {0, 5}
    assert {offset for _, _, offset in late_of(took_it, found)} == {0}
    windows.abandon("late")
    asked, taken, late = {
        "its own hour": (interval(name, 0, 10), {0}, set()),
        "another hour": (interval(name, 30, 40), {0, 3}, {0}),
        "the same interval": (interval(name, 50, 60), {0, 5}, {0}),
        "a sweep": (sweep(name, 20), {0, 1}, set()),
    }[who]
    plan = windows.plan(asked, "next")
    found = read_plan(windows.settings, plan)
    assert offsets_of(found) == taken
    assert {offset for _, _, offset in late_of(plan, found)} == late


def test_the_loss_of_a_late_record_is_reported_to_its_own_hour(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Retention removes it after the abandon of the interval that took it late: its own hour raises, and so does a sweep."""
    name = topic()
    produce(stamped(name, 1, *range(15, 95, 10)))
    windows.plan(interval(name, 0, 10), "first")
    windows.commit(windows.plan(interval(name, 0, 10), "covered"))
    windows.abandon("first")
    windows.plan(interval(name, 50, 60), "late")
    windows.abandon("late")
    delete_before(bootstrap, name, 1)
    for asked in (interval(name, 0, 10), sweep(name, 10)):
        with pytest.raises(RecordsLostError) as caught:
            windows.plan(asked, "own")
        assert caught.value.lost == {f"{name}[0]": [(0, 1)]}


def test_a_loss_of_unknown_times_is_reported_again_after_an_abandon(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """No window has read the record, so its time is unknown: the next window raises, whatever its times."""
    name = topic()
    produce(stamped(name, 10))
    windows.commit(windows.plan(interval(name, 10, 20), "first"))
    produce(stamped(name, 41, 42))
    delete_before(bootstrap, name, 2)
    tolerant = Window([name], at(30), since=at(20), on_data_loss=OnDataLoss.WARN)
    assert windows.plan(tolerant, "tolerant").lost
    windows.abandon("tolerant")
    with pytest.raises(RecordsLostError) as caught:
        windows.plan(interval(name, 40, 50), "own")
    assert caught.value.lost == {f"{name}[0]": [(1, 2)]}


def test_records_of_earlier_intervals_on_a_new_partition_are_late(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Their interval was planned before the partition was there: the next window takes them, the sweep the rest."""
    name = topic()
    produce(stamped(name, 15))
    windows.commit(windows.plan(interval(name, 10, 20), "first"))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [done] = admin.create_partitions([NewPartitions(name, 2)]).values()
    done.result(TIMEOUT_S)
    write_afresh(bootstrap, name, 1, [_ms(15), _ms(5), _ms(25)])
    second = windows.plan(interval(name, 20, 30), "second")
    found = read_plan(windows.settings, second)
    assert {key[1:] for key in found} == {(1, 0), (1, 2)}
    assert {key[1:] for key in late_of(second, found)} == {(1, 0)}
    windows.commit(second)
    [gap] = windows.gaps()
    assert (gap.times, gap.partitions) == (TimeRange(INT64_MIN, _ms(10)), 1)
    rest = windows.plan(sweep(name, 20), "rest")
    assert {key[1:] for key in read_plan(windows.settings, rest)} == {(1, 1)}


@pytest.mark.slow
def test_intervals_planned_at_once_by_several_processes_share_nothing(
    bootstrap: str, topic: MakeTopic, windows: OrderedWindows
) -> None:
    """Each from its own connection, at the same moment: together exactly what there is."""
    name = topic(partitions=2)
    writer = LogWriter(bootstrap, Random(0))
    writer.write([(name, 0), (name, 1)], count=300, low_ms=_ms(0), high_ms=_ms(40))
    plans, failures = {}, []
    gate = threading.Barrier(4)

    def work(number: int) -> None:
        try:
            with OrderedWindows(windows.settings, windows.group_id) as own:
                gate.wait(TIMEOUT_S)
                asked = interval(name, number * 10, number * 10 + 10)
                plans[number] = own.plan(asked, f"w{number}")
        except BaseException as error:
            failures.append(error)
            raise

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(240)
    assert failures == []
    oracle = IntervalOracle(windows, bootstrap, name)
    oracle.look()
    seen: Records = {}
    for number, plan in plans.items():
        records = read_plan(windows.settings, plan)
        low, high = _ms(number * 10), _ms(number * 10 + 10)
        assert records == {k: t for k, t in oracle.visible.items() if low <= t < high}
        seen |= records
    assert seen == oracle.visible


def test_lost_records_of_a_gap_are_no_interval_s_loss(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Retention takes what no interval covers: the next interval goes on, and the sweep is told."""
    name = topic()
    produce(stamped(name, 0, 1, 2, 10, 11))
    windows.commit(windows.plan(interval(name, 10, 20), "first"))
    produce(stamped(name, 21))
    delete_before(bootstrap, name, 4)
    second = windows.plan(interval(name, 20, 30), "second")
    assert offsets_of(read_plan(windows.settings, second)) == {5}
    assert second.lost == {}
    windows.commit(second)
    with pytest.raises(RecordsLostError) as caught:
        windows.plan(sweep(name, 100), "rest")
    assert caught.value.lost == {f"{name}[0]": [(0, 3)]}
    tolerant = Window([name], at(100), sweep=True, on_data_loss=OnDataLoss.WARN)
    windows.commit(windows.plan(tolerant, "rest"))
    assert _bases(windows) == [6]


def test_lost_records_that_nobody_had_read_belong_to_the_next_window(
    bootstrap: str, windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """They may have been its own: it stops, or writes them down as lost."""
    name = topic()
    produce(stamped(name, 10, 11))
    windows.commit(windows.plan(interval(name, 10, 20), "first"))
    produce(stamped(name, 21, 22, 23))
    delete_before(bootstrap, name, 4)
    asked = interval(name, 20, 30)
    with pytest.raises(RecordsLostError) as caught:
        windows.plan(asked, "second")
    assert caught.value.lost == {f"{name}[0]": [(2, 4)]}


def test_a_covered_interval_is_not_an_empty_one(
    windows: OrderedWindows, topic: MakeTopic, produce: Produce
) -> None:
    """Within times that were planned: covered. Beyond them, with nothing there: empty."""
    name = topic()
    produce(stamped(name, 5, 15))
    windows.commit(windows.plan(interval(name, 0, 20), "day"))
    assert windows.plan(interval(name, 0, 10), "hour").content is PlanContent.COVERED
    assert windows.plan(interval(name, 20, 30), "next").content is PlanContent.EMPTY
    assert windows.plan(interval(name, 15, 25), "across").content is PlanContent.COVERED
    assert windows.plan(interval(name, 25, 35), "beyond").content is PlanContent.EMPTY


def _bases(windows: OrderedWindows) -> list[int]:
    state = windows.state()
    assert state is not None
    return [one.base for _, one in state]
