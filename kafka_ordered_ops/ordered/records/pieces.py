"""The offsets that several windows take from each partition, as one set with the window of each offset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.offset_set import BoolArray, Int64Array, OffsetSet
from kafka_ordered_ops.core.time_ranges import LateSteps
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.core.window.plan import PartitionPlan, WindowPlan


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one window in one partition."""

    #: The index of the window among the plans that are read together.
    window: int
    window_id: str
    #: Records at or above it are out-of-order records; `None` if these are unknown.
    head_end: int | None
    late: LateSteps


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Some offsets of one partition, and the window of each of them."""

    tp: TopicPartition
    wanted: OffsetSet
    #: The shares of the windows with offsets in `wanted`.
    shares: tuple[Share, ...]
    #: Wanted offsets from ``starts[n]`` to ``starts[n + 1]``, exclusive, belong to ``shares[owners[n]]``. Ascending; the
    #: first start is at or below all wanted offsets.
    starts: Int64Array
    owners: Int64Array

    def owners_of(self, offsets: Int64Array) -> Int64Array:
        """Return the index of the share of each wanted offset."""
        numbers: Int64Array = self.owners[np.searchsorted(self.starts, offsets, side="right") - 1]
        return numbers

    def windows_of(self, owners: Int64Array) -> Int64Array:
        """Return the index of the window of each record, from the index of its share."""
        return np.array([share.window for share in self.shares], dtype=np.int64)[owners]

    def out_of_order_of(self, owners: Int64Array, offsets: Int64Array) -> BoolArray:
        """Return for each record whether it is known to be out of order in its window."""
        ends = (INT64_MAX if share.head_end is None else share.head_end for share in self.shares)
        head_ends = np.fromiter(ends, dtype=np.int64)
        out_of_order: BoolArray = offsets >= head_ends[owners]
        return out_of_order

    def late_of(
        self, owners: Int64Array, offsets: Int64Array, timestamps_ms: Int64Array
    ) -> BoolArray:
        """Return for each record whether it is late in its own window."""
        if len(self.shares) == 1:
            return self.shares[0].late.mask(offsets, timestamps_ms)
        late = np.zeros(offsets.size, dtype=np.bool_)
        for owner in np.unique(owners).tolist():
            mine = owners == owner
            late[mine] = self.shares[owner].late.mask(offsets[mine], timestamps_ms[mine])
        return late

    def narrowed(self, wanted: OffsetSet) -> Piece:
        """Return the piece with only some of its offsets, at least one, and without the shares of others."""
        low, high = np.searchsorted(self.starts, (wanted.first, wanted.end - 1), side="right")
        starts, owners = self.starts[low - 1 : high], self.owners[low - 1 : high]
        # A run of one owner is needed if it starts inside a wanted range, or if the next wanted range starts before the
        # run's end.
        at = np.searchsorted(wanted.boundaries, starts, side="right")
        following = np.append(wanted.boundaries, INT64_MAX)[at]
        needed = (at % 2 == 1) | (following < np.append(starts[1:], INT64_MAX))
        unique_owners, numbers = np.unique(owners[needed], return_inverse=True)
        starts, owners = _changes(starts[needed], numbers)
        shares = tuple(self.shares[owner] for owner in unique_owners.tolist())
        return Piece(self.tp, wanted, shares, starts, owners)


def pieces_of(plans: Sequence[WindowPlan]) -> list[Piece]:
    """Return the offsets of the plans, one piece for each partition, in the plans' order of partitions.

    Raises:
        ConfigError: two plans take the same offset.
    """
    by_partition: dict[TopicPartition, list[tuple[int, PartitionPlan]]] = defaultdict(list)
    for window, plan in enumerate(plans):
        for part in plan:
            if part.taken:
                by_partition[part.tp].append((window, part))
    return [_piece(plans, tp, parts) for tp, parts in by_partition.items()]


def check_together(plans: Sequence[WindowPlan]) -> None:
    """Check that plans can be read or written in one pass.

    Raises:
        ConfigError: there is no plan, there are two groups or isolations, formats or schemas differ, or a window is duplicated.
    """
    # A single plan is a sequence as well, of partitions.
    value: Any = plans
    is_list = isinstance(value, Sequence) and not isinstance(value, WindowPlan)
    if not is_list or not all(isinstance(plan, WindowPlan) for plan in value):
        raise ConfigError(
            "plans must be a list of window plans: pass the plans that `plan` returned"
        )
    if not plans:
        raise ConfigError("there is no plan: pass at least one")
    for first, second in pairwise(plans):
        if (first.group_id, first.isolation) != (second.group_id, second.isolation):
            raise ConfigError(
                f"window {first.window_id} is of group {first.group_id} and {first.isolation}, window "
                f"{second.window_id} of group {second.group_id} and {second.isolation}: windows in "
                "one pass must have the same group and isolation. Take them one after the other"
            )
        if first.window.decoding != second.window.decoding:
            raise ConfigError(
                f"group {first.group_id}: windows {first.window_id} and {second.window_id} were planned with different formats or "
                "schemas, and one pass has the same for all windows. Take them one after the other"
            )
    window_ids: set[str] = set()
    for plan in plans:
        if plan.window_id in window_ids:
            raise ConfigError(
                f"window {plan.window_id} of group {plan.group_id} is duplicated among {len(plans)} plans: "
                "their records could not be distinguished. Pass each window once, and parts of one window one "
                "by one"
            )
        window_ids.add(plan.window_id)


def _piece(
    plans: Sequence[WindowPlan], tp: TopicPartition, parts: Sequence[tuple[int, PartitionPlan]]
) -> Piece:
    bounds = np.concatenate([part.taken.bounds for _, part in parts])
    owners = np.repeat(np.arange(len(parts)), [len(part.taken) for _, part in parts])
    by_start = np.argsort(bounds[:, 0], kind="stable")
    bounds, owners = bounds[by_start], owners[by_start]
    overlaps = np.flatnonzero(bounds[1:, 0] < bounds[:-1, 1])
    if overlaps.size:
        at = int(overlaps[0])
        first, second = (plans[parts[int(owners[n])][0]].window_id for n in (at, at + 1))
        raise ConfigError(
            f"{tp} offset {int(bounds[at + 1, 0])} belongs to window {first} and to window {second}: plans of "
            "one group share offsets only if one of them is no longer valid. Plan both again"
        )
    # Ranges of different windows that touch are one wanted range.
    apart = bounds[1:, 0] > bounds[:-1, 1]
    starts, ends = bounds[np.append(True, apart), 0], bounds[np.append(apart, True), 1]
    shares = tuple(
        Share(window, plans[window].window_id, part.head_end, part.late) for window, part in parts
    )
    return Piece(
        tp,
        OffsetSet(np.column_stack((starts, ends)).ravel()),
        shares,
        *_changes(bounds[:, 0], owners),
    )


def _changes(starts: Int64Array, owners: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return only the starts at which the owner changes."""
    changes = np.append(True, np.diff(owners) != 0)
    return starts[changes], owners[changes]
