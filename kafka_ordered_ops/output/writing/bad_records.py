"""The records that a job leaves out of its output because they cannot be decoded, as a separate output beside it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.window.dead_letters import DeadLetters
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.bad_records import read_bad_records
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.writing.draft import drafts_of
from kafka_ordered_ops.output.writing.stage_files import StageFiles
from kafka_ordered_ops.output.writing.staged_output import StagedOutput

_ERRORS: Final = ("key_error", "value_error")

#: `RECORD_SCHEMA`, with the record's own bytes, and why its key or its value is bad; null for a part that is good.
BAD_SCHEMA: Final = pa.schema([*RECORD_SCHEMA, *(pa.field(name, pa.string()) for name in _ERRORS)])


def bad_table(
    plan: WindowPlan,
    letters: DeadLetters,
    settings: ClientSettings,
    *,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> pa.Table:
    """Return the records that a job has left out of a window, with `BAD_SCHEMA`; raises as `read_bad_records` does."""
    table = read_bad_records(settings, plan, letters, stall_timeout_s=stall_timeout_s)
    errors = [
        pa.chunked_array([[getattr(record, name) for record in letters.records]], pa.string())
        for name in _ERRORS
    ]
    return pa.Table.from_arrays([*table.columns, *errors], schema=BAD_SCHEMA)


def check_beside(
    plans: Sequence[WindowPlan], outputs: Sequence[object], kind: type[object]
) -> None:
    """Raise `ConfigError` for an output of another kind, beside which there is no place for bad records."""
    for plan, output in zip(plans, outputs, strict=True):
        if plan.offsets and not isinstance(output, kind):
            raise ConfigError(
                f"window {plan.window_id} of group {plan.group_id}: on_bad is {plan.window.on_bad}, and the job has reported a "
                f"{type(output).__name__}, beside which there is no place for bad records. Nothing was committed: call write, or name "
                "a topic for them, dead_letter:TOPIC"
            )


def stage_bad(
    plans: Sequence[WindowPlan],
    outputs: Sequence[StagedOutput],
    settings: ClientSettings,
    *,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> None:
    """Stage the records that a job has left out of the windows of one root, for those whose place is beside the output.

    Each window has one file, which may be empty: a replay replaces what an earlier attempt has there.

    Raises:
        ConfigError: an output is not in a folder.
        SinkError, OutputOwnedError: as for any output.
        RecordsLostError, ReadError, BrokerError: as `read_bad_records` does.
    """
    check_beside(plans, outputs, StagedOutput)
    left_out = [
        (plan, output.dead_letters, bad)
        for plan, output in zip(plans, outputs, strict=True)
        if output.dead_letters is not None and (bad := output.bad) is not None
    ]
    if not left_out:
        return
    with drafts_of([bad for *_, bad in left_out]) as drafts:
        folders = [draft.path for draft in drafts]
        with StageFiles(folders, drafts[0].files, BAD_SCHEMA) as files:
            for number, (plan, letters, _) in enumerate(left_out):
                table = bad_table(plan, letters, settings, stall_timeout_s=stall_timeout_s)
                files.write(number, partial(_as_it_is, table))
                drafts[number].seal({"records": table.num_rows, **files.close(number)})


def _as_it_is(table: pa.Table) -> pa.Table:
    return table
