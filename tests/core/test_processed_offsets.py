"""Processed offsets as a value: its JSON, the laws of its union, and how a fold of the ledger holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.group.group_state import Change, GroupDefinition, GroupState
from kafka_ordered_ops.core.group.ledger.records import LedgerFold
from kafka_ordered_ops.core.group.processed import ProcessedOffsets
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet, union_of
from kafka_ordered_ops.core.strict_json import JsonError, JsonVersionError
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from tests.support.examples import examples
from tests.support.strategies import large_offset_sets, offset_sets

partitions = st.builds(
    TopicPartition, st.sampled_from(["orders", "payments", "a.b_c-D9"]), st.integers(0, 3)
)
by_partition = st.dictionaries(partitions, offset_sets | large_offset_sets, max_size=4)

WHERE = TopicPartition("ledger", 0)


def read(value: object) -> ProcessedOffsets:
    """The record from its text."""
    data = strict_json.dumps(value).encode()
    return ProcessedOffsets.from_json(strict_json.loads(data, limit_bytes=10**8))


@settings(max_examples=examples(100))
@given(st.text(max_size=20).filter(lambda text: text.isprintable()), by_partition)
def test_what_is_written_is_read(claim_id: str, offsets: dict[TopicPartition, OffsetSet]) -> None:
    """Every record, and equal ones have equal text."""
    processed = ProcessedOffsets(claim_id, {}).with_more(offsets)
    assert read(processed.to_json()) == processed
    turned = ProcessedOffsets(claim_id, {}).with_more(dict(reversed(list(offsets.items()))))
    assert strict_json.dumps(turned.to_json()) == strict_json.dumps(processed.to_json())


@settings(max_examples=examples(60))
@given(st.lists(by_partition, max_size=3))
def test_order_and_repetition_do_not_matter(some: list[dict[TopicPartition, OffsetSet]]) -> None:
    """It is the union of all, by partition; partitions without offsets are left out."""
    every = {tp for one in some for tp in one}
    union = {tp: union_of(one.get(tp, EMPTY_SET) for one in some) for tp in every}
    expected = ProcessedOffsets("c", {tp: one for tp, one in union.items() if one})
    for order in permutations(some):
        found = ProcessedOffsets("c", {})
        for one in (*order, *order):
            found = found.with_more(one)
        assert found == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"version": 1, "claim_id": "c"},
        {"version": 1, "claim_id": 5, "partitions": []},
        {"version": 1, "claim_id": "c", "partitions": [], "more": 1},
        {"version": 0, "claim_id": "c", "partitions": []},
        {"version": 1, "claim_id": "c", "partitions": [{"topic": "t", "partition": 0}]},
        *(
            {
                "version": 1,
                "claim_id": "c",
                "partitions": [{"topic": "t", "partition": 0, "offsets": offsets}] * times,
            }
            for offsets, times in (([0], 1), ([0, 0], 1), ([-1, 3], 1), ([0, 2.5], 1), ([0, 1], 2))
        ),
    ],
)
def test_anything_else_is_refused(wrong: object) -> None:
    """By name, and a newer version by its own error."""
    with pytest.raises(JsonError) as caught:
        read(wrong)
    assert not isinstance(caught.value, JsonVersionError)


def test_a_newer_version_is_told_apart() -> None:
    """A reader of a newer record is asked to upgrade."""
    with pytest.raises(JsonVersionError, match="version 2"):
        read({"version": 2, "anything": 1})


class Log:
    """A ledger's partition: what a fold is given, and from which it fetches again."""

    def __init__(self) -> None:
        self.values: dict[int, bytes | None] = {}
        self.fetched: list[int] = []

    def fetch(self, offsets: Sequence[int]) -> Mapping[int, bytes]:
        """The values that are asked for."""
        self.fetched += offsets
        return {one: value for one in offsets if (value := self.values[one]) is not None}


@pytest.mark.parametrize("held_bytes_max", [0, 10**7])
def test_a_fold_holds_no_more_than_its_bound(held_bytes_max: int) -> None:
    """Values are let go and fetched again where they are wanted; a record of several parts too."""
    log = Log()
    fold = LedgerFold(WHERE, "g", fetch=log.fetch, held_bytes_max=held_bytes_max)
    definition = GroupDefinition(None, Isolation.READ_COMMITTED, ("t",), ())
    tp = TopicPartition("t", 0)
    expected = {}
    for sequence, ranges in enumerate((5, 150_000, 10), start=1):
        offsets = OffsetSet.from_ranges([(4 * n, 4 * n + 3) for n in range(ranges)])
        expected = {"w": ProcessedOffsets("c", {tp: offsets})}
        state = GroupState("g", sequence, definition, (), {}, ())
        for key, value, headers in list(fold.messages(Change(state, (), processed=expected))):
            offset = len(log.values)
            log.values[offset] = value
            fold.take(offset, key, value, lambda told=headers: told)  # type: ignore[misc]
        fold.has_read_all()
        assert fold.view().processed == {}
        log.fetched.clear()
        assert fold.view(processed=["w", "another"]).processed == expected
        assert bool(log.fetched) == (held_bytes_max == 0)
        # Parsed once.
        log.fetched.clear()
        assert fold.view(processed=["w"]).processed == expected
        assert log.fetched == []
    forgotten = Change(GroupState("g", 9, definition, (), {}, ()), (), forgotten=("w",))
    tombstones = [key for key, value, _ in fold.messages(forgotten) if value is None]
    assert tombstones == [b'["g","processed","w",0]']
