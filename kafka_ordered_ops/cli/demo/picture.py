"""The picture: out-of-order records in the log, and windows that divide it by time, not by offset.

Above, the blizzard week in every partition: each record at its offset and its scheduled time, in the colour
of its window. Below, one cutoff close up, with the offset at which a look-up by time would have ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from kafka_ordered_ops.cli.demo.output import Published
from kafka_ordered_ops.cli.demo.story import PARTITIONS, TOPIC, Story
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.times import time_ms
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.delivery.plots import COLOURS, Records, Row, rows_plot

#: For a README at its full width on a sharp screen.
_WIDTH_INCHES: Final = 13.0

#: The margins around the week, and around the cutoff shown close up.
_WEEK_MARGIN: Final = timedelta(hours=12)
_BEFORE: Final = timedelta(hours=5)
_AFTER: Final = timedelta(hours=3)
_HOUR: Final = timedelta(hours=1)


def draw(published: Published, story: Story, plans: Sequence[WindowPlan], path: Path) -> None:
    """Draw the published records as a PNG file, by the windows of the story's plans."""
    partition = published.int64("partition")
    columns = published.int64("offset"), published.int64("timestamp")
    records = {
        TopicPartition(TOPIC, number): Records(*(column[partition == number] for column in columns))
        for number in range(PARTITIONS)
    }
    windows = list(zip(plans, COLOURS, strict=False))
    first, last = story.steps[0].cutoff - _WEEK_MARGIN, story.steps[-2].cutoff + _WEEK_MARGIN
    week = Row(
        heading=f"{len(published):,} departures from New York in 2013, written when they left, stamped with the time "
        "they were scheduled for; the blizzard week",
        windows=windows[1:-1],
        partitions=list(records),
        times=_between(first, last),
        records=records,
        height_inches=4.2,
    )
    place, tp = _liveliest(plans, records)
    cutoff = story.steps[place].cutoff
    close_up = Row(
        heading=f"Close up: the cutoff {cutoff:%b %d %H:%M} in partition {tp.partition}",
        windows=windows[place : place + 2],
        partitions=[tp],
        times=_between(cutoff - _BEFORE, cutoff + _AFTER),
        offsets=_offsets_near(records[tp], cutoff),
        ticks_ms=[_ms(cutoff + n * _HOUR) for n in range(-5, 4)],
        records=records,
        height_inches=4.6,
    )
    title = "Exact windows over a log that is out of order"
    path.write_bytes(rows_plot(title, [week, close_up], "png", width_inches=_WIDTH_INCHES))


def _liveliest(
    plans: Sequence[WindowPlan], records: Mapping[TopicPartition, Records]
) -> tuple[int, TopicPartition]:
    """Return the daily window and the partition with the most out-of-order and late records."""

    def rank(place: int, tp: TopicPartition) -> tuple[int, int]:
        offsets, stamps_ms = records[tp].offsets, records[tp].timestamps_ms
        part, after = ({part.tp: part for part in plan} for plan in plans[place : place + 2])
        if tp not in part or tp not in after:
            return 0, 0
        head_end = part[tp].head_end or 0
        out_of_order = int((part[tp].taken.mask(offsets) & (offsets >= head_end)).sum())
        late = after[tp].taken.mask(offsets) & after[tp].late.mask(offsets, stamps_ms)
        return min(out_of_order, int(late.sum())), out_of_order + int(late.sum())

    return max(
        ((k, tp) for k in range(1, len(plans) - 2) for tp in records), key=lambda at: rank(*at)
    )


def _offsets_near(records: Records, cutoff: datetime) -> tuple[int, int] | None:
    """Return the offsets of the records around a cutoff; `None` without records."""
    low, high = _between(cutoff - _BEFORE, cutoff + _AFTER)
    near = records.offsets[(records.timestamps_ms >= low) & (records.timestamps_ms < high)]
    return (int(near.min()), int(near.max()) + 1) if near.size else None


def _between(start: datetime, end: datetime) -> TimeRange:
    return TimeRange(_ms(start), _ms(end))


def _ms(moment: datetime) -> int:
    return time_ms(moment, what="time")
