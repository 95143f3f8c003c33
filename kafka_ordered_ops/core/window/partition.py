"""The folders above a window's own folder: the date, or the date and hour, of the window."""

from __future__ import annotations

import re
from typing import Final

from kafka_ordered_ops.core.arguments import check_choice
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import TIME_MS_MIN, time_text
from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.core.window.window import Window

_DATE: Final = r"date=\d{4}-\d\d-\d\d"
#: A number without a leading zero: DuckDB and Hive do not read 09 as a number.
_HOUR: Final = r"hour=(?:1?\d|2[0-3])"

DATE_FOLDER: Final = re.compile(_DATE, re.ASCII)
HOUR_FOLDER: Final = re.compile(_HOUR, re.ASCII)
_PARTITION: Final = re.compile(rf"{_DATE}(?:/{_HOUR})?", re.ASCII)


def check_partition_by(value: object) -> PartitionBy | None:
    """Return how windows are partitioned; raise `ConfigError` for an unknown value."""
    return None if value is None else check_choice(value, PartitionBy, what="partition_by")


def partition_of(window: Window, partition_by: PartitionBy | None) -> str | None:
    """Return the folders above a window's folder, ``date=2026-11-20/hour=11``, in UTC; None without `partition_by`.

    They are the date or hour of the window's start. A window without `since` has the date or hour of its last
    millisecond.

    Raises:
        ConfigError: the interval continues in another date or hour, whose readers would not look here.
    """
    if partition_by is None:
        return None
    last_ms = max(window.cutoff_ms - 1, TIME_MS_MIN)
    last = _folders(last_ms, partition_by)
    if window.since_ms is None or (first := _folders(window.since_ms, partition_by)) == last:
        return last
    raise ConfigError(
        f"the window from {time_text(window.since_ms)} to {time_text(window.cutoff_ms)} has records of {first} and of {last}, "
        f"and partition_by={partition_by.value!r} puts a window's files into one of them (in UTC). Use windows that end "
        f"within one {partition_by.value}{_COARSER[partition_by]}, or leave out partition_by: the folder of a window has its times "
        "in its name"
    )


def partition_kind(partition: str | None) -> PartitionBy | None:
    """Return how a window with these folders is partitioned."""
    if partition is None:
        return None
    return PartitionBy.HOUR if "/" in partition else PartitionBy.DATE


def columns_of(partition: str | None) -> list[str]:
    """Return the columns that readers derive from these folders."""
    return (
        [] if partition is None else [folder.partition("=")[0] for folder in partition.split("/")]
    )


def is_partition(text: str) -> bool:
    """Return whether the text is a path that `partition_of` returns."""
    return _PARTITION.fullmatch(text) is not None


def _folders(moment_ms: int, partition_by: PartitionBy) -> str:
    # 2026-11-20T11:00:00Z
    text = time_text(moment_ms)
    date = f"date={text[:10]}"
    return date if partition_by is PartitionBy.DATE else f"{date}/hour={int(text[11:13])}"


_COARSER: Final = {PartitionBy.DATE: "", PartitionBy.HOUR: ", or partition_by='date'"}
