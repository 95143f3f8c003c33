"""Dead letters of windows: their topic is checked before a window is planned; records for it are read again for its commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from kafka_ordered_ops.core.cluster.cluster_facts import is_selected
from kafka_ordered_ops.core.dead_letter_headers import headers_about
from kafka_ordered_ops.core.errors import ConfigError, UnknownTopicError
from kafka_ordered_ops.core.group.group_state import Change, WindowRecord
from kafka_ordered_ops.core.processing.new_record import NewRecord
from kafka_ordered_ops.core.window.dead_letters import BadRecord, DeadLetters, dead_letters_in
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.bad_records import read_bad_records
from kafka_ordered_ops.kafka.ports import LookupDoor
from kafka_ordered_ops.kafka.rights import check_may_write
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Reads the records that a window has left out, as they are to be written.
ReadLetters = Callable[[WindowPlan, DeadLetters], Sequence[NewRecord]]


def check_topic(
    window: Window,
    settings: ClientSettings,
    lookup: LookupDoor,
    ledger_topic: str,
    *,
    timeout_s: float,
) -> None:
    """Check the topic for a window's dead letters, if it has one.

    Raises:
        ConfigError: it is one of the window's topics, or the ledger.
        UnknownTopicError: it does not exist. It is not created.
        AuthorizationError: this principal may not write to it.
        BrokerError: the cluster refuses the request, or cannot be reached.
    """
    if (wanted := window.dead_letter) is None or (topic := wanted.topic) is None:
        return
    if topic == ledger_topic or is_selected(topic, window.topics, window.exclude):
        raise ConfigError(
            f"on_bad is {wanted}, and {topic} is {'the ledger' if topic == ledger_topic else 'one of the topics of the window'}: "
            "name another topic"
        )
    # First, so that a principal without any right gets the error that names the missing right.
    check_may_write(settings, topic, timeout_s=timeout_s)
    if not lookup.existing([topic]):
        raise UnknownTopicError(
            f"the topic for dead letters does not exist: {topic}. Create it, or name another one in on_bad",
            topics=[topic],
        )


class CommitLetters:
    """The dead letters of one commit: read before the fence, and again if the ledger names other records inside it."""

    def __init__(self, plans: Sequence[WindowPlan], read: ReadLetters) -> None:
        self._plans = {plan.window_id: plan for plan in plans}
        self._read = read
        self._wanted: dict[str, DeadLetters] = {}
        self._records: dict[str, Sequence[NewRecord]] = {}

    def prepare(self) -> None:
        """Read the records that are wanted, before the fence."""
        for name, letters in self._wanted.items():
            if name not in self._records:
                self._records[name] = self._read(self._plans[name], letters)

    def with_records(self, change: Change) -> Change | None:
        """Return the commit with the dead letters of the windows that it commits; None if they are not read yet.

        Raises `ConfigError` for a window whose job did not report which records it has left out.
        """
        wanted = {
            record.plan.window_id: letters
            for record in change.records
            if (letters := self._letters(record)) is not None
            and letters.records
            # Others are staged, and published with the output.
            and letters.topic is not None
        }
        if wanted != self._wanted or wanted.keys() != self._records.keys():
            self._wanted, self._records = wanted, {}
            return None
        records = [record for name in wanted for record in self._records[name]]
        return replace(change, dead_letters=tuple(records))

    def _letters(self, record: WindowRecord) -> DeadLetters | None:
        if record.result is None:
            check_reported(self._plans[record.plan.window_id], {})
        return dead_letters_in(record.result)


def check_reported(plan: WindowPlan, result: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a new result of an open window that does not say which records its job has left out."""
    window = plan.window
    if window.dead_letter is None or not plan.offsets or plan.status.is_done:
        return
    if dead_letters_in(result) is None:
        raise ConfigError(
            f"window {plan.window_id} of group {plan.group_id}: on_bad is {window.on_bad}, and its result does not say which records "
            "were left out. Nothing was committed: deliver it by run or open, or commit the output of stage_windows; or use "
            "on_bad='keep'"
        )


def read_letters(
    settings: ClientSettings, plan: WindowPlan, letters: DeadLetters, *, stall_timeout_s: float
) -> list[NewRecord]:
    """Return the records that a window has left out for a topic, as they are in Kafka, with headers about them.

    Raises:
        ConfigError: a record has a header that Kafka's clients would change.
        RecordsLostError, ReadError, BrokerError: raised by `read_bad_records`.
    """
    topic = letters.topic
    if topic is None:
        raise AssertionError(letters)
    table = read_bad_records(settings, plan, letters, stall_timeout_s=stall_timeout_s)
    timestamps: Any = table.column("timestamp").cast(pa.int64())
    # Python's times end with the year 9999.
    rows = table.drop_columns(["timestamp"]).to_pylist()
    return [
        _letter(topic, plan, bad, row, at_ms)
        for bad, row, at_ms in zip(letters.records, rows, timestamps.to_pylist(), strict=True)
    ]


def _letter(
    topic: str, plan: WindowPlan, bad: BadRecord, row: Mapping[str, Any], at_ms: int
) -> NewRecord:
    added = headers_about(
        {
            "topic": bad.topic,
            "partition": str(bad.partition),
            "offset": str(bad.offset),
            "timestamp_ms": str(at_ms),
            "group": plan.group_id,
            "window_id": plan.window_id,
            "error_type": "DecodeError",
            "error": bad.reason,
        }
    )
    own = [(header["key"], header["value"]) for header in row["headers"] or ()]
    # Kafka takes no negative timestamp of a producer.
    timestamp_ms = at_ms if at_ms >= 0 else None
    try:
        return NewRecord(topic, row["key"], row["value"], (*own, *added), timestamp_ms)
    except ConfigError as error:
        raise ConfigError(
            f"{bad.topic}[{bad.partition}] at offset {bad.offset} cannot be written to {topic} as it is: {error}. Nothing was "
            f"committed: abandon window {plan.window_id} of group {plan.group_id}, and run it with on_bad='keep'"
        ) from error


def letters_reader(settings: ClientSettings, stall_timeout_s: float) -> ReadLetters:
    """Return a function that reads dead letters from the settings' cluster."""
    return partial(read_letters, settings, stall_timeout_s=stall_timeout_s)
