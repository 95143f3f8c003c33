"""The joined state of the log: a function of the records and their positions, not of the order of reading."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.relay.log_batch import sorted_batch
from kafka_ordered_ops.core.relay.log_records import (
    RECORD_BYTES_MAX,
    Acknowledged,
    Extended,
    Finished,
    Leased,
    LogRecord,
    Opened,
    Owned,
    Released,
    Served,
    decode,
    encode,
)
from kafka_ordered_ops.core.relay.state import PartitionState
from tests.support.strategies import members, offset_sets

groups = st.sampled_from(["one", "two"])
ids = st.integers(0, 9).map(str)
times = st.integers(1, 100)
unfinished = st.one_of(
    st.builds(Owned, st.integers(1, 4), st.sampled_from("ab"), st.just("topic id")),
    st.builds(Served, groups),
    st.builds(
        Opened, groups, st.integers(0, 9), st.none() | offset_sets, st.sampled_from([None, "by"])
    ),
    st.builds(Extended, groups, ids, times, offset_sets),
    st.builds(Released, groups, ids, offset_sets),
    st.builds(Acknowledged, groups, offset_sets),
    st.builds(
        Leased,
        groups,
        st.just("its position"),
        st.integers(1, 4),
        offset_sets,
        times,
        st.integers(0, 4),
    ),
)
finished = st.builds(Finished, st.just("two"), st.integers(0, 9), st.sampled_from("xy"))
Log = list[tuple[int, LogRecord]]


def test_the_latest_groups() -> None:
    """All that go on, and the windows that ended last, by their places in the log and not by when they were read."""
    state = PartitionState()
    for name, position in (("third", 30), ("first", 10), ("second", 20)):
        state.apply(Finished(name, 1, "x"), position)
    state.apply(Opened("open", 0), 5)
    assert state.latest_groups(2) == ["open", "second", "third"]
    assert state.latest_groups(5) == ["first", "open", "second", "third"]


def _log(records: list[LogRecord]) -> Log:
    """Give each record its position, and each lease an id; let extensions and releases be of these, or of lost ones."""
    log: Log = []
    leases = {
        f"at {at}": one for at, one in enumerate(records) if isinstance(one, Leased) and one.offsets
    }
    names = [*leases, *"0123456789"]
    for at, one in enumerate(records):
        if isinstance(one, Leased):
            one = replace(one, lease_id=f"at {at}")
        elif isinstance(one, Extended | Released):
            name = names[int(one.lease_id) % len(names)]
            lease = leases.get(name) or Leased("one", name, 1, OffsetSet.of((3, 9)), 1, 1)
            is_whole = isinstance(one, Extended)
            offsets = lease.offsets if is_whole else lease.offsets & one.offsets
            one = replace(one, group=lease.group, lease_id=name, offsets=offsets)
        log.append((at, one))
    return log


logs = st.lists(unfinished | finished, max_size=24).map(_log)
unfinished_logs = st.lists(unfinished, max_size=24).map(_log)


def _read(log: Log) -> PartitionState:
    state = PartitionState()
    for position, record in log:
        state.apply(record, position)
    return state


def _merged(*states: PartitionState) -> PartitionState:
    result = PartitionState()
    for one in states:
        result.merge(one)
    return result


@given(logs, st.data())
def test_the_order_of_reading_does_not_matter(log: Log, data: st.DataObject) -> None:
    """Nor do records that are read twice, nor a first reading that ended early."""
    part = log[: data.draw(st.integers(0, len(log)))]
    again = data.draw(st.lists(st.sampled_from(log), max_size=9)) if log else []
    shuffled = data.draw(st.permutations(log + again))
    in_order = _read(log)
    assert _read(shuffled) == in_order
    assert _read(part + log) == in_order


@given(logs, st.data())
def test_records_that_are_read_together_are_the_same(log: Log, data: st.DataObject) -> None:
    """Whichever records are together, in whatever order; also after others that were read one by one."""
    cuts = data.draw(st.lists(st.integers(0, len(log)), max_size=3).map(sorted))
    shuffled = data.draw(st.permutations(log)) if data.draw(st.booleans()) else log
    state = PartitionState()
    for start, end in pairwise([0, *cuts, len(log)]):
        some = shuffled[start:end]
        if data.draw(st.booleans()):
            for position, record in some:
                state.apply(record, position)
        else:
            position = max((one for one, _ in some), default=-1) + 1
            state.fold(sorted_batch([(at, encode(one)) for at, one in some], position))
    assert state == _read(log)


@given(logs, st.data())
def test_looking_changes_nothing(log: Log, data: st.DataObject) -> None:
    """What was looked up between two records has no part in the state."""
    looked = PartitionState()
    for position, record in data.draw(st.permutations(log)):
        looked.apply(record, position)
        for group in looked.groups.values():
            assert group.leases is not None
            assert (group.base is None) == (not group.is_opened)
            assert group.is_done in (True, False)
    assert looked == _read(log)


@given(logs, st.data())
def test_joining_is_a_join(log: Log, data: st.DataObject) -> None:
    """Commutative, associative, idempotent; and three servers that read different records know all of them together."""
    places = data.draw(st.lists(st.integers(0, 2), min_size=len(log), max_size=len(log)))
    a, b, c = (
        _read([one for one, place in zip(log, places, strict=True) if place == which])
        for which in range(3)
    )
    assert _merged(a, b) == _merged(b, a)
    assert _merged(_merged(a, b), c) == _merged(a, _merged(b, c)) == _read(log)
    assert _merged(a, a) == a


@given(logs, st.data())
def test_a_snapshot_and_the_rest_are_everything(log: Log, data: st.DataObject) -> None:
    """Also if the records after it are read before it, and if its parts are read in any order."""
    cut = data.draw(st.integers(0, len(log)))
    parts = [decode(encode(one)) for one in _read(log[:cut]).snapshot()]
    end = len(log)
    written = [(end + number, one) for number, one in enumerate(parts)]
    expected = _read(log)
    expected.position = end + len(parts)
    assert _read(data.draw(st.permutations(log[cut:] + written))) == expected
    assert _read(data.draw(st.permutations(log + written))) == expected


@given(unfinished_logs)
def test_void_leases_never_count(log: Log) -> None:
    """A lease counts unless a newer epoch was claimed before it."""
    state = _read(log)
    for position, record in log:
        if isinstance(record, Leased):
            claimed = [one.epoch for at, one in log if isinstance(one, Owned) and at < position]
            is_void = record.epoch < max(claimed, default=0)
            left = record.offsets - state.groups[record.group].acked
            assert (record.lease_id in state.groups[record.group].leases) == (
                not is_void and bool(left)
            )
            assert not (is_void and state.counts(record.lease_id))


@given(unfinished_logs)
def test_progress_is_what_was_acknowledged(log: Log) -> None:
    """Against plain sets: done wins over every lease, a window is done when all of it is, the base is the first gap."""
    state = _read(log)
    for name, group in state.groups.items():
        acked: set[int] = set().union(
            *(
                members(one.offsets)
                for _, one in log
                if isinstance(one, Acknowledged) and one.group == name
            )
        )
        assert members(group.acked) == acked
        opened = [one for _, one in log if isinstance(one, Opened) and one.group == name]
        assert group.is_opened == bool(opened)
        if opened and opened[0].offsets is not None:
            left = members(opened[0].offsets) - acked
            assert group.is_done == (not left)
            assert not left or group.base == min(left)
        elif opened:
            assert not group.is_done
            assert group.base == next(
                one for one in range(opened[0].start, 10**3) if one not in acked
            )
        now_ms = 50
        assert not members(group.pending(now_ms)) & acked


@given(logs, logs)
def test_replaced_leases_can_be_forgotten(log: Log, later: Log) -> None:
    """In a state that was read in order: the newest lease of an offset, and when it is free, stay the same."""
    kept, forgot = _read(log), _read(log)
    forgot.forget_replaced()
    assert _newest(kept) == _newest(forgot)
    for position, record in later:
        if not isinstance(record, Leased | Owned | Extended | Released):
            for state in (kept, forgot):
                state.apply(record, len(log) + position)
    assert _newest(kept) == _newest(forgot)


def _newest(state: PartitionState) -> dict[tuple[str, int], tuple[str, int]]:
    """The newest lease of each offset, and when the last one of it ends."""
    found: dict[tuple[str, int], tuple[str, int]] = {}
    for name, group in state.groups.items():
        for lease in sorted(group.leases.values(), key=lambda one: (one.attempt, one.position)):
            for offset in members(group.left(lease.offsets)):
                _, last_ms = found.get((name, offset), ("", 0))
                found[name, offset] = lease.lease_id, max(last_ms, lease.ends_ms(offset))
    return found


def test_of_two_claims_of_one_epoch_the_first_counts() -> None:
    """Both servers read the same end of the log; the second one claims again."""
    state = _read([(0, Owned(1, "a", "t")), (1, Owned(1, "b", "t"))])
    assert state.owner() == Owned(1, "a", "t")
    state.apply(Owned(2, "b", "t"), 2)
    assert state.owner() == Owned(2, "b", "t")


def test_memory_does_not_grow_with_what_is_done() -> None:
    """Leases of acknowledged records are forgotten while the log is read."""
    state = PartitionState()
    state.apply(Opened("g", 0), 0)
    for at in range(20_000):
        one = OffsetSet.of((at, at + 1))
        state.apply(Leased("g", str(at), 1, one, 10**9, 1), 2 * at + 1)
        state.apply(Acknowledged("g", one), 2 * at + 2)
    assert len(list(state.groups["g"].all_leases())) < 5_000
    assert state.groups["g"].base == 20_000


@pytest.mark.parametrize("name", ["g", "\x01" * 255])
def test_a_large_state_is_written_in_parts(name: str) -> None:
    """Each part is a record that brokers accept, whatever the names are."""
    state = PartitionState()
    scattered = OffsetSet.from_ranges(
        [(one, one + 1) for one in range(10**12, 10**12 + 120_000, 2)]
    )
    state.apply(Opened(name, 5, OffsetSet(scattered.boundaries[:60_000])), 0)
    state.apply(Acknowledged(name, scattered), 1)
    for at in range(3_000):
        state.apply(Leased(name, f"{at:032x}", 1, OffsetSet.of((at, at + 1)), 10**13, 1), 2 + at)
    parts = state.snapshot()
    assert 1 < len(parts) < 20
    assert all(len(encode(one)) <= RECORD_BYTES_MAX for one in parts)
    assert [(one.part, one.parts) for one in parts] == [
        (number, len(parts)) for number in range(1, len(parts) + 1)
    ]
    read = PartitionState()
    for one in parts:
        read.apply(one, one.position - 1)
    assert read == state


def test_the_first_beginning_of_a_group_counts() -> None:
    """Two owners may have looked it up: whichever record is read first, the one at the lower position counts."""
    beginnings: Log = [(3, Opened("g", 5)), (7, Opened("g", 9)), (1, Opened("g", 2))]
    assert _read(beginnings).groups["g"].start == 2


def test_a_finished_window_is_done_and_small() -> None:
    """Nothing that is read of it later changes that; another window under its name is noticed."""
    state = PartitionState()
    some = OffsetSet.from_ranges([(one, one + 1) for one in range(0, 1_000, 2)])
    state.apply(Opened("w", 0, some), 0)
    state.apply(Leased("w", "one", 1, some, 10**9, 1), 1)
    group = state.groups["w"]
    assert group.finish() is None
    state.apply(Acknowledged("w", some), 2)
    before = sum(len(encode(one)) for one in state.snapshot())
    end = group.finish()
    assert end is not None
    state.apply(end, 3)
    assert group.finish() is None
    late: Log = [
        (4, Acknowledged("w", OffsetSet.of((0, 1)))),
        (5, Released("w", "one", OffsetSet.of((0, 1)))),
        (6, Extended("w", "one", 10**10, some)),
        (7, Opened("w", 0, some)),
    ]
    for position, record in late:
        state.apply(record, position)
    assert group.is_opened
    assert group.is_window
    assert group.is_done
    assert group.base == 999
    assert not group.leases
    assert not group.left(some)
    assert group.is_about(some)
    assert not group.is_about(OffsetSet.of((0, 999)))
    [snapshot] = state.snapshot()
    assert len(encode(snapshot)) < 200 < before


def test_the_newest_ends_of_windows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server forgets the same window at the same place of the log, also after a snapshot."""
    monkeypatch.setattr("kafka_ordered_ops.core.relay.state.FINISHED_MAX", 3)
    log: Log = [(at, Finished(f"w{9 - at}", at, "x")) for at in range(9)]
    for cut in range(9):
        read = PartitionState()
        for at, part in enumerate(_read(log[:cut]).snapshot()):
            read.apply(part, at)
        for position, record in log[cut:]:
            read.apply(record, position)
        assert sorted(read.groups) == ["w1", "w2", "w3"]
    assert len(_read([*log, (9, Opened("w9", 5))]).groups) == 4
