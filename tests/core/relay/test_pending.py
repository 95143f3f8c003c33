"""How many records each caller holds: never fewer than it does, and none that it does not."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.relay.pending import PendingRecords
from kafka_ordered_ops.core.types import TopicPartition
from tests.support.strategies import members, offset_sets

TPS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
some_offsets = offset_sets.filter(bool)
steps = st.lists(
    st.tuples(
        st.sampled_from(["lease", "extend", "release", "acknowledge", "drop", "time"]),
        st.sampled_from("ab"),
        st.sampled_from(TPS),
        st.sampled_from("gh"),
        st.integers(0, 9),
        some_offsets,
        st.integers(1, 40),
    ),
    max_size=40,
)


@given(steps)
def test_counts_are_those_of_plain_sets(
    script: list[tuple[str, str, TopicPartition, str, int, OffsetSet, int]],
) -> None:
    """A record is its newest lease's until it is done or given back, the lease ends, or the partition is lost."""
    pending = PendingRecords()
    #: By place and offset: the lease; by lease: who holds it, and until when.
    held: dict[tuple[TopicPartition, str, int], str] = {}
    leases: dict[str, tuple[str, int]] = {}
    now_ms = 0
    for what, holder, tp, group, which, offsets, span in script:
        lease_id = list(leases)[which % len(leases)] if leases else "none"
        match what:
            case "lease":
                lease_id = str(len(leases))
                leases[lease_id] = holder, now_ms + span
                held |= {(tp, group, at): lease_id for at in members(offsets)}
                pending.lease(holder, tp, group, lease_id, offsets, now_ms + span)
            case "extend":
                pending.extend(lease_id, now_ms + span)
                if lease_id in leases and lease_id in held.values():
                    by, until_ms = leases[lease_id]
                    leases[lease_id] = by, max(until_ms, now_ms + span)
            case "release":
                pending.release(lease_id, offsets)
                for place in [one for one, by in held.items() if by == lease_id]:
                    if place[2] in offsets:
                        del held[place]
            case "acknowledge":
                pending.acknowledge(tp, group, offsets)
                for place in [one for one in held if one[:2] == (tp, group)]:
                    if place[2] in offsets:
                        del held[place]
            case "drop":
                pending.drop(tp)
                held = {one: by for one, by in held.items() if one[0] != tp}
            case _:
                now_ms += span
        held = {one: by for one, by in held.items() if leases[by][1] > now_ms}
        counts = Counter(leases[one][0] for one in held.values())
        assert {one: pending.count(one, now_ms) for one in "ab"} == {
            one: counts[one] for one in "ab"
        }


def test_nothing_is_left_of_what_is_over() -> None:
    """A server that runs for months keeps no trace of leases, groups or callers that are gone."""
    pending = PendingRecords()
    for at in range(5_000):
        one = OffsetSet.of((at, at + 1))
        pending.lease(f"holder {at}", TPS[0], f"w{at}", str(at), one, 10**9)
        pending.acknowledge(TPS[0], f"w{at}", OffsetSet.of((0, 10**15)))
    assert pending.count("holder 1", 0) == 0
    assert not pending._counts
    assert not pending._leases
    assert not pending._held
    assert len(pending._ends) < 2_000


TEN = OffsetSet.of((0, 10))


def leased() -> PendingRecords:
    """Ten records of one caller, whose lease ends at 100."""
    pending = PendingRecords()
    pending.lease("a", TPS[0], "g", "first", TEN, 100)
    return pending


def test_records_count_until_their_lease_ends_and_no_longer() -> None:
    """At the moment when it ends, others may have them."""
    pending = leased()
    assert [pending.count("a", now_ms) for now_ms in (0, 99, 100, 101)] == [10, 10, 0, 0]


def test_an_extended_lease_ends_when_its_extension_says() -> None:
    """Whether the count is asked for in between or not; an earlier end changes nothing."""
    for looks in ([], [99], [100, 150]):
        pending = leased()
        pending.extend("first", 200)
        pending.extend("first", 50)
        for now_ms in looks:
            assert pending.count("a", now_ms) == 10
        assert [pending.count("a", now_ms) for now_ms in (199, 200)] == [10, 0]


def test_an_end_takes_off_what_is_left_of_the_lease_alone() -> None:
    """Records that are done, given back, or leased again count once, for whoever has them."""
    pending = leased()
    pending.acknowledge(TPS[0], "g", OffsetSet.of((0, 2)))
    pending.release("first", OffsetSet.of((2, 5)))
    pending.lease("b", TPS[0], "g", "second", OffsetSet.of((2, 7)), 300)
    assert (pending.count("a", 99), pending.count("b", 99)) == (3, 5)
    assert (pending.count("a", 100), pending.count("b", 100)) == (0, 5)
    assert (pending.count("a", 300), pending.count("b", 300)) == (0, 0)


def test_ends_are_met_in_their_order_after_many_leases_are_gone() -> None:
    """Leases that are done are forgotten together: those that are left end when they should."""
    pending = PendingRecords()
    for at in reversed(range(5_000)):
        pending.lease("a", TPS[0], "g", str(at), OffsetSet.of((at, at + 1)), 1_000 + at)
        if at % 1_000:
            pending.acknowledge(TPS[0], "g", OffsetSet.of((at, at + 1)))
    found = [pending.count("a", now_ms) for now_ms in (999, 1_000, 2_000, 4_999, 5_000)]
    assert found == [5, 4, 3, 1, 0]
