"""What other programs may have written into a group's records: refused by name, with what removes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafka_ordered_ops.core.cluster.names import is_topic_name
from kafka_ordered_ops.core.errors import LedgerCorruptError, LedgerVersionError
from kafka_ordered_ops.core.group.group_state import SEQUENCE_MAX, GroupState, WindowRecord
from kafka_ordered_ops.core.group.ledger.messages import (
    GENERATION,
    PARTS,
    RECORD_PARTS_MAX,
    RecordName,
)
from kafka_ordered_ops.core.strict_json import JsonError, whole_number
from kafka_ordered_ops.core.types import INT32_MAX, TopicPartition
from kafka_ordered_ops.core.window.plan import ATTEMPT_MAX

#: Beyond half of what can be written, nothing is believed: the next changes must be possible.
_SEQUENCE_BELIEVED: Final = SEQUENCE_MAX // 2
_ATTEMPT_BELIEVED: Final = ATTEMPT_MAX // 2

#: Longer than any id or partition that this package writes.
_NAME_SHOWN_MAX: Final = 600

#: A value of the record may be in the reason.
_WHY_SHOWN_MAX: Final = 400

#: Writes one record again as it was before somebody wrote over it.
_RESTORE: Final = "`windows restore-record --group {group} {offset}`"

_CURES: Final = {
    "state": f"Another program writes to the topic, or the record was damaged. {_RESTORE} restores it. If that is not possible, "
    "`offsets reset --group {group} --topic TOPIC --to committed` removes the group's records from the ledger and keeps "
    "its committed offsets: plan with starting_offsets='committed' then. Records that were done beyond these offsets are "
    "delivered again",
    "window": f"{_RESTORE} restores it. Or abandon the window: that removes the record and releases its offsets. While it is "
    "open, no window is planned",
    "forgotten": f"The window was delivered and forgotten. {_RESTORE} restores the record. Or abandon the window: that "
    "removes it",
    "times": "It is left out: the next plan reads these times again, and removes the record",
    "processed": "It is left out: records that were processed since the window was planned are processed again",
}


#: For every kind of record.
_NEWER: Final = (
    "Upgrade this package to the version that wrote it. If no newer version works on the group, another program wrote the "
    f"record: {_RESTORE} puts back what was there before"
)


def damage_error(
    where: TopicPartition, group_id: str, record: RecordName, offset: int, why: str
) -> LedgerCorruptError:
    """Return the error of a record that cannot be read; its newest part is at this offset."""
    cure = _CURES[record.kind].format(group=group_id, offset=offset)
    return LedgerCorruptError(
        f"group {group_id}: {_named(where, record, offset)} cannot be read: {why[:_WHY_SHOWN_MAX]}. {cure}"
    )


def version_error(
    where: TopicPartition, group_id: str, record: RecordName, offset: int, why: str
) -> LedgerVersionError:
    """Return the error of a record that a newer version wrote, or another program; its newest part is at this offset."""
    cure = _NEWER.format(group=group_id, offset=offset)
    return LedgerVersionError(
        f"group {group_id}: {_named(where, record, offset)} is of a newer version: {why[:_WHY_SHOWN_MAX]}. {cure}"
    )


def _named(where: TopicPartition, record: RecordName, offset: int) -> str:
    name = record.name if len(record.name) <= _NAME_SHOWN_MAX else f"{record.name[:40]}..."
    return f"the {record.kind} record {name!r} at offset {offset} of the ledger {where}"


def place_in_record(headers: Mapping[str, str | bytes | None]) -> tuple[int, int]:
    """Return the write that a part belongs to, and the number of parts; raise `JsonError`."""
    generation = whole_number(headers.get(GENERATION), greatest=SEQUENCE_MAX)
    return generation, whole_number(headers.get(PARTS), least=1, greatest=RECORD_PARTS_MAX)


def count_of(header: str | bytes | None) -> int:
    """Return a count from a header; 0 where there is none, or none that can be one."""
    try:
        return whole_number(header, greatest=SEQUENCE_MAX)
    except JsonError:
        return 0


def partition_of(name: str) -> TopicPartition:
    """Return the partition that a record's name stands for; raise `JsonError`."""
    topic, _, number = name.removesuffix("]").rpartition("[")
    tp = TopicPartition(topic, whole_number(number, greatest=INT32_MAX, what="its partition"))
    # Of several names for one partition, only its own is written again.
    if str(tp) != name or not is_topic_name(topic):
        raise JsonError("its name is not a partition")
    return tp


def check_state(state: GroupState, group_id: str) -> None:
    """Raise `JsonError` for the state of another group, or one that no group reaches."""
    if state.group_id != group_id:
        raise JsonError(f"it is the state of group {state.group_id!r}")
    if state.sequence > _SEQUENCE_BELIEVED:
        raise JsonError(f"no group reaches its sequence, {state.sequence}")


def check_window(record: WindowRecord, group_id: str, window_id: str) -> None:
    """Raise `JsonError` for another window than the key's, or an attempt that no window reaches."""
    plan = record.plan
    if (plan.group_id, plan.window_id) != (group_id, window_id):
        raise JsonError(f"it is window {plan.window_id!r} of group {plan.group_id!r}")
    if plan.attempt > _ATTEMPT_BELIEVED:
        raise JsonError(f"no window reaches its attempt, {plan.attempt}")
