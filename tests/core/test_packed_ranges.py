"""Sets of many ranges in stored text: small, exact, and within bounds whatever the text claims."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, WindowPlan
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.group.group_state import GroupState
from kafka_ordered_ops.core.group.processed import ProcessedOffsets
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.core.types import INT64_MAX
from kafka_ordered_ops.core.window.packed_ranges import pack, unpack
from kafka_ordered_ops.core.window.plan import PLAN_RANGES_MAX, ranges_from_json, ranges_to_json
from tests.core.test_stored_text import CHANGE, PLAN, STATE
from tests.support.examples import examples
from tests.support.stored_text import memory_bound

MANY = OffsetSet.from_ranges([(3 * one + 7, 3 * one + 9) for one in range(1_000)])


def _text(steps: list[int]) -> str:
    """Return the stored form of any steps, as `pack` would write them."""
    apart = np.array(steps, dtype="<i8").view(np.uint8).reshape(-1, 8).T.tobytes()
    return f"{len(steps) // 2}:{base64.b64encode(zlib.compress(apart)).decode()}"


@settings(max_examples=examples(60))
@given(st.sets(st.integers(0, INT64_MAX), min_size=2, max_size=300))
def test_any_set_survives(edges: set[int]) -> None:
    """Up to the largest offset, with steps of any size."""
    rising = sorted(edges)[: len(edges) // 2 * 2]
    offsets = OffsetSet.from_edges(rising)
    assert unpack(pack(offsets), len(offsets)) == offsets
    assert ranges_from_json(ranges_to_json(offsets)) == offsets


def test_few_ranges_are_numbers_that_people_can_read() -> None:
    """Start, length, gap, length."""
    assert ranges_to_json(OffsetSet.of((5, 8), (10, 11))) == [5, 3, 2, 1]
    assert isinstance(ranges_to_json(MANY), str)


def test_records_in_random_order_take_few_bits() -> None:
    """A window of half the records of a log without any order: less than three bits a record in the stored text."""
    records = 1_000_000
    taken = np.flatnonzero(np.random.default_rng(1).random(records) < 0.5)
    text = ranges_to_json(OffsetSet.from_offsets(taken.astype(np.int64)))
    assert len(text) * 8 < 3 * records


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "number of ranges"),
        ("1000", "1,000 ranges"),
        ("0:", "number of ranges"),
        (f"{PLAN_RANGES_MAX + 1}:", "number of ranges"),
        ("2:!!", "2 ranges"),
        ("2:" + base64.b64encode(b"no").decode(), "decompressed"),
        ("3:" + _text([0, 1, 1, 1])[2:], "48 bytes"),
        ("1:" + _text([0, 1, 1, 1])[2:], "16 bytes"),
        (_text([-1, 2]), "do not rise"),
        (_text([0, 0]), "do not rise"),
        (_text([1, 2, -1, 4]), "do not rise"),
        (_text([INT64_MAX, INT64_MAX]), "do not rise"),
        (_text([1, INT64_MAX, INT64_MAX, 3]), "do not rise"),
    ],
)
def test_what_is_no_set_is_refused(text: str, named: str) -> None:
    """By the one error of stored text."""
    with pytest.raises(JsonError, match=named):
        ranges_from_json(text)


def test_a_small_text_cannot_fill_the_memory() -> None:
    """Packed ranges take hardly any room: a record's are counted while it is read, over all of its partitions."""
    # 8 MiB for a partition when unpacked, and a few KiB in the text.
    bomb = _text([1] * (1 << 20))
    count = PLAN_RANGES_MAX // (1 << 19) + 2
    plan, state, processed = PLAN.to_json(), STATE.to_json(), CHANGE.processed["w"].to_json()
    [part] = plan["partitions"][:1]
    plan["partitions"] = [{**part, "partition": one, "taken": bomb} for one in range(count)]
    [topic] = state["topics"][:1]
    share = topic["partitions"][0]
    topic["partitions"] = [{**share, "partition": one, "done": bomb} for one in range(count)]
    [own] = processed["partitions"][:1]
    processed["partitions"] = [{**own, "partition": one, "offsets": bomb} for one in range(count)]
    with pytest.raises(ConfigError, match="more than 10,000,000 ranges"):
        WindowPlan.from_text(strict_json.dumps(plan))
    for read, value in ((GroupState, state), (ProcessedOffsets, processed)):
        with pytest.raises(JsonError, match="more than 10,000,000 ranges"):
            read.from_json(value)


def test_packed_text_is_read_in_bounded_memory() -> None:
    """A text that unpacks to more than it names is not unpacked further."""
    text = "1:" + base64.b64encode(zlib.compress(bytes(64 << 20))).decode()
    with memory_bound(32 << 20), pytest.raises(JsonError, match="16 bytes"):
        ranges_from_json(text)
