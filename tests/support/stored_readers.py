"""Writers and readers of stored formats where they need more than one call; see `tests.support.stored_formats`."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from kafka_ordered_ops import StagedOutput, WindowPlan
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.group.group_state import (
    Change,
)
from kafka_ordered_ops.core.group.ledger.records import LedgerFold
from kafka_ordered_ops.core.group.summaries import WindowSummary
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.spark.write.table_write import TableCommit
from tests.support.stored_values import CHANGE, GROUP, HOUR_MS, NOON_MS, PLACE, PLAN, SIGNER, WINDOW


def as_text(value: Any) -> bytes:
    """JSON as the package writes it."""
    return strict_json.dumps(value).encode()


def raised(*place: str) -> Callable[[bytes], bytes]:
    """What raises the version of a JSON text, or of an object in it."""

    def newer(content: bytes) -> bytes:
        value = json.loads(content)
        inner = value
        for key in place:
            inner = inner[key]
        inner["version"] += 1
        return as_text(value)

    return newer


def first_byte(content: bytes) -> bytes:
    """The same with the version in its first byte raised."""
    return bytes([content[0] + 1]) + content[1:]


def parsed(content: bytes) -> Any:
    """A text as stored JSON."""
    return strict_json.loads(content, limit_bytes=10**7)


def ledger_messages(change: Change) -> bytes:
    """All messages of a transaction: key, value, headers."""
    fold = LedgerFold(PLACE, GROUP)
    return as_text(
        [
            [key.decode(), None if value is None else value.decode(), headers]
            for key, value, headers in fold.messages(change)
        ]
    )


def from_ledger(content: bytes) -> Change:
    """The change that the messages make of a new group, as views and lists of it have it."""
    fold = LedgerFold(PLACE, GROUP)
    for offset, (key, value, headers) in enumerate(parsed(content)):
        fold.take(offset, key, value, lambda headers=headers: headers)  # type: ignore[misc]
    fold.has_read_all()
    ids = [one.plan.window_id for one in CHANGE.records]
    view = fold.view([*ids, "ancient"], processed=[PLAN.window_id], everything=True)
    assert not fold.newly_dropped()
    assert not view.unreadable
    assert view.state is not None
    listed = {one.window_id: one for one in fold.summaries().windows}
    assert listed == {name: WindowSummary.of(one) for name, one in view.windows.items()}
    return Change(
        view.state,
        tuple(view.windows[one] for one in ids),
        time_maps=view.time_maps,
        forgotten=("ancient",),
        forgotten_records=view.forgotten,
        processed=view.processed,
    )


def newer_record(kind: str, *place: str) -> Callable[[bytes], bytes]:
    """What raises the version of a kind of record, or of a format in it, among the messages of a transaction."""

    def newer(content: bytes) -> bytes:
        messages = json.loads(content)
        [message, *_] = [one for one in messages if json.loads(one[0])[1] == kind and one[1]]
        message[1] = raised(*place)(message[1].encode()).decode()
        return as_text(messages)

    return newer


def summary_text(value: WindowSummary) -> bytes:
    """The header with a summary."""
    text = value.to_text()
    assert text is not None
    return text.encode()


def newer_summary(content: bytes) -> bytes:
    """A summary whose version, its first value, is raised."""
    version, *rest = json.loads(content)
    return as_text([version + 1, *rest])


def output_from(content: bytes) -> StagedOutput | None:
    """The output in a result, wherever it is: what `found` does before it looks at a disk."""

    class Unseen(StagedOutput):
        def _found(self) -> StagedOutput | None:
            return StagedOutput(**{name: getattr(self, name) for name in self.__dataclass_fields__})

    return Unseen.found(parsed(content))


def iceberg_commit(content: bytes) -> TableCommit | None:
    """What a snapshot of Iceberg shows."""
    from kafka_ordered_ops.spark.write.table_iceberg import _commit_of

    return _commit_of("lake.orders", content.decode(), None, None)


def delta_metadata(value: tuple[TableCommit, int]) -> bytes:
    """What a commit of Delta carries."""
    from kafka_ordered_ops.spark.write.table_delta import _metadata

    return _metadata(*value).encode()


def from_delta(content: bytes) -> Any:
    """What a commit of Delta shows."""
    from kafka_ordered_ops.spark.write.table_delta import _told

    return _told(content.decode(), "lake.orders")


def newer_token(content: bytes) -> bytes:
    """A token of a server that signs the next version."""
    data = base64.urlsafe_b64decode(content + b"=" * (-len(content) % 4))
    body = first_byte(data[32:])
    return base64.urlsafe_b64encode(SIGNER._signature(body) + body).rstrip(b"=")


def access_token() -> Any:
    """A line of the tokens file, as a value."""
    from kafka_ordered_ops.relay.http.access import TokenEntry
    from kafka_ordered_ops.relay.limits import TokenLimits
    from kafka_ordered_ops.relay.rights import Access, Names, Verb

    access = Access(
        "reader",
        frozenset({Verb.READ}),
        Names(frozenset({"orders"}), "topic"),
        Names(frozenset({"billing-*"}), "group"),
        TokenLimits(pending_max=5, lease_s_max=60.0),
    )
    return TokenEntry(access, "0f" * 32, NOON_MS)


def from_access(content: bytes) -> Any:
    """The only line of a tokens file."""
    from kafka_ordered_ops.relay.http.access import read_entries

    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        [entry] = read_entries(Path(file.name))
    return entry


def cursor() -> Any:
    """A Dagster sensor's cursor."""
    from kafka_ordered_ops.dagster.sensing.cursor import AssetCursor, Cursor

    asked = (
        TimeRange(NOON_MS - 2 * HOUR_MS, NOON_MS - HOUR_MS),
        TimeRange(NOON_MS, NOON_MS + HOUR_MS),
    )
    return Cursor({"lake/orders": AssetCursor(asked, ("orders[1] has no record after 12:00",))})


def from_cursor(content: bytes) -> Any:
    """A cursor from its text."""
    from kafka_ordered_ops.dagster.sensing.cursor import Cursor

    return Cursor.from_text(content.decode())


def topics_state(topics: list[str]) -> bytes:
    """The state of a component with these topics."""
    from kafka_ordered_ops.dagster import KafkaTopicsComponent

    class Component(KafkaTopicsComponent):
        def _matching_topics(self) -> list[str]:
            return topics

    with tempfile.NamedTemporaryFile() as file:
        Component.write_state_to_path(unmade(Component, topics=["^orders.*"]), Path(file.name))
        return Path(file.name).read_bytes()


def unmade(kind: type[Any], **fields: Any) -> Any:
    """An object of a host's class, without what the host does when it makes one."""
    made = object.__new__(kind)
    made.__dict__.update(fields)
    return made


def from_topics_state(content: bytes) -> list[str]:
    """The topics in a state."""
    from kafka_ordered_ops.dagster.components.topics_component import _read

    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return _read(Path(file.name))


def question() -> Any:
    """An Airflow sensor's question."""
    from kafka_ordered_ops.airflow.support.question import Question, Until

    return Question(
        "kafka_default",
        GROUP,
        WINDOW,
        window_id=PLAN.window_id,
        grace=timedelta(minutes=10),
        ledger_topic="ledger",
        until=Until.CAUGHT_UP,
    )


def from_question(content: bytes) -> Any:
    """A question from its JSON."""
    from kafka_ordered_ops.airflow.support.question import Question

    return Question.from_json(parsed(content))


def planned(plan: WindowPlan) -> bytes:
    """What the planning task returns."""
    from kafka_ordered_ops.airflow import PlanWindowOperator
    from kafka_ordered_ops.airflow.support.times import CutoffSource, WindowTimes

    assert plan.window.cutoff is not None
    times = WindowTimes(plan.window.cutoff, plan.window.since, CutoffSource.INTERVAL)
    task = unmade(
        PlanWindowOperator, kafka_conn_id="kafka_default", ledger_topic="ledger", parts=None
    )
    windows: Any = None
    return as_text(PlanWindowOperator._result(task, windows, plan, times))


def from_planned(content: bytes) -> WindowPlan:
    """The plan that the next task continues."""
    from kafka_ordered_ops.airflow.operators.follower import WindowFollower, as_planned

    facts = WindowFollower.planned_facts(unmade(WindowFollower, window=content.decode()))
    assert (facts["group"], facts["window_id"]) == (PLAN.group_id, PLAN.window_id)
    return as_planned(replace(PLAN, claim_id="", attempt=0), facts)
