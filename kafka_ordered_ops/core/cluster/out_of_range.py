"""Where to continue reading if a position is outside of its log."""

from __future__ import annotations

from enum import StrEnum

from kafka_ordered_ops.core.errors import RecordsLostError
from kafka_ordered_ops.core.types import TopicPartition


class OnOutOfRange(StrEnum):
    """What to do with a position that is outside of its log.

    `FAIL` raises `RecordsLostError`. The others log a warning and continue reading: `WARN` at the nearest offset of the
    log, `EARLIEST` at its start, and `LATEST` at its end.
    """

    FAIL = "fail"
    WARN = "warn"
    EARLIEST = "earliest"
    LATEST = "latest"


def offset_in_log(
    tp: TopicPartition, offset: int, policy: OnOutOfRange, *, log_start: int, log_end: int
) -> tuple[int, str | None]:
    """Return the offset to read from, and a warning to log if it differs from `offset`.

    Raises:
        RecordsLostError: the offset is outside of the log, and the policy is to fail.
    """
    if log_start <= offset <= log_end:
        return offset, None
    is_below = offset < log_start
    lost = (offset, log_start) if is_below else (log_end, offset)
    facts = (
        f"{tp} holds offsets [{log_start}, {log_end}), and is to be read from offset {offset}: "
        + ("retention or deletion removed records" if is_below else "the log ends before it")
    )
    if policy is OnOutOfRange.FAIL:
        raise RecordsLostError(
            f"{facts}. Choose another offset, or an on_data_loss other than 'fail'",
            lost={str(tp): [lost]},
        )
    goes_to_start = is_below if policy is OnOutOfRange.WARN else policy is OnOutOfRange.EARLIEST
    start = log_start if goes_to_start else log_end
    return (
        start,
        f"{facts}. Reading continues at offset {start}, because on_data_loss is '{policy}'",
    )
