"""Whose an output is: one window's is never published for another, nor one group's over another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    OutputOwnedError,
    SinkError,
    StagedOutput,
    Table,
    Window,
    WindowMismatchError,
    WindowPlan,
    WindowSupersededError,
    stage_window,
    stage_windows,
)
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.output.filesystem import MARKER_NAME
from kafka_ordered_ops.output.published import published
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.spark.write.table_formats import TableState
from kafka_ordered_ops.spark.write.table_output import TableOutput
from kafka_ordered_ops.spark.write.table_write import TableCommit, TableWrite
from kafka_ordered_ops.spec.table import TableMode
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.stages import stages_of


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """Two topics with ten records each."""
    with InMemoryKafka() as made:
        for topic in ("one", "two"):
            made.create_topic(topic, 1)
            for n in range(10):
                made.produce(topic, value=topic.encode(), timestamp_ms=1000 * n)
        yield made


@pytest.fixture
def one(kafka: InMemoryKafka) -> Iterator[OrderedWindows]:
    """A group on the first topic."""
    with OrderedWindows(kafka.settings, "group-one") as windows:
        yield windows


@pytest.fixture
def two(kafka: InMemoryKafka) -> Iterator[OrderedWindows]:
    """Another group, on the second topic."""
    with OrderedWindows(kafka.settings, "group-two") as windows:
        yield windows


def plan_of(windows: OrderedWindows, window_id: str = "w", seconds: int = 4) -> WindowPlan:
    """A window of the group's topic."""
    cutoff = datetime.fromtimestamp(seconds, UTC)
    topic = windows.group_id.removeprefix("group-")
    return windows.plan(Window([topic], cutoff, starting_offsets=Earliest()), window_id)


def staged(windows: OrderedWindows, plan: WindowPlan, root: Path) -> StagedOutput:
    """What a job of it has written."""
    return stage_window(plan, windows.settings, root)


def topics_seen(output: StagedOutput) -> set[Any]:
    """Whose records a reader of the window's folder finds."""
    files = Path(output.final_path).glob("part-*")
    return {topic for file in files for topic in pq.read_table(file)["topic"].to_pylist()}


def test_a_window_of_another_group_is_refused_before_the_job(
    one: OrderedWindows, two: OrderedWindows, tmp_path: Path
) -> None:
    """The same id in the same folder: the second group's job does not begin, and nothing of the first goes."""
    plan = plan_of(one)
    mine = staged(one, plan, tmp_path)
    one.commit(plan, mine)
    other = plan_of(two)
    with pytest.raises(SinkError, match=r"of group group-one, and window w of group group-two"):
        staged(two, other, tmp_path)
    assert two.show("w").status is WindowStatus.PLANNED
    assert topics_seen(mine) == {"one"}
    assert two.commit(other, staged(two, other, tmp_path / "own")).status is WindowStatus.PUBLISHED


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_groups_that_stage_at_once_the_later_one_is_refused(
    one: OrderedWindows, two: OrderedWindows, tmp_path: Path, first: int
) -> None:
    """Before its offsets are done; its files wait, and the first one's stay visible."""
    groups = [one, two][:: 1 if first == 0 else -1]
    plans = [plan_of(group_id) for group_id in groups]
    outputs = [staged(*pair, tmp_path) for pair in zip(groups, plans, strict=True)]
    groups[0].commit(plans[0], outputs[0])
    assert outputs[1].exists()
    with pytest.raises(SinkError, match="Write to another output"):
        groups[1].commit(plans[1], outputs[1])
    with pytest.raises(SinkError, match="Write to another output"):
        outputs[1].publish()
    assert groups[1].show("w").status is WindowStatus.PLANNED
    assert topics_seen(outputs[0]) == {groups[0].group_id.removeprefix("group-")}
    assert outputs[1].exists()


def test_windows_of_two_groups_share_a_folder_by_different_ids(
    one: OrderedWindows, two: OrderedWindows, tmp_path: Path
) -> None:
    """Only equal ids meet; readers of the folder find both."""
    for group_id, window_id in ((one, "a"), (two, "b")):
        plan = plan_of(group_id, window_id)
        group_id.commit(plan, staged(group_id, plan, tmp_path))
    assert list(published(tmp_path)) == ["a", "b"]


def test_the_marker_says_whose_window_it_is(one: OrderedWindows, tmp_path: Path) -> None:
    """For people, and for whoever publishes next."""
    output = staged(one, plan_of(one), tmp_path)
    assert b'"group":"group-one"' in (Path(output.stage_path) / MARKER_NAME).read_bytes()


# --- an output and its plan ------------------------------------------------------------------


class Told:
    """A user's sink that says what it likes of its output."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told, self.published = told, 0

    def to_json(self) -> Mapping[str, Any]:
        return self.told

    def publish(self) -> None:
        self.published += 1

    def discard(self) -> None:
        pass


Ways = Callable[[OrderedWindows, Sequence[WindowPlan], Sequence[Any]], object]

WAYS: dict[str, Ways] = {
    "commit": lambda windows, plans, outputs: windows.commit(plans[0], outputs[0]),
    "commit_many": lambda windows, plans, outputs: windows.commit_many(plans, outputs),
    "publish": lambda windows, plans, outputs: windows.publish(plans[0], outputs[0]),
    "publish_many": lambda windows, plans, outputs: windows.publish_many(plans, outputs),
    "mark_written": lambda windows, plans, outputs: windows.mark_written(
        plans[0], outputs[0].to_json()
    ),
    "mark_written_many": lambda windows, plans, outputs: windows.mark_written_many(
        plans, [one.to_json() for one in outputs]
    ),
    "deliver": lambda windows, plans, outputs: windows.deliver(
        plans[0], lambda _: outputs[0], lambda _: None
    ),
    "deliver_many": lambda windows, plans, outputs: windows.deliver_many(
        plans, lambda _: outputs, lambda _: None
    ),
}

ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def state_of(windows: OrderedWindows, root: Path) -> object:
    """All that a refused call might have changed."""
    files = sorted(path for path in root.rglob("*") if path.name != ".lock")
    return windows.show_many(["a", "b"]), files


@ways
@pytest.mark.parametrize("own", [True, False], ids=["staged", "user's"])
@pytest.mark.parametrize("committed", [False, True])
def test_outputs_of_the_wrong_windows_change_nothing(
    one: OrderedWindows, tmp_path: Path, way: Ways, own: bool, committed: bool
) -> None:
    """In the wrong order, each is another window's: refused, and nothing is written, committed or visible."""
    plans = [plan_of(one, "a", 3), plan_of(one, "b", 6)]
    outputs: list[Any] = stage_windows(plans, one.settings, tmp_path)
    if not own:
        outputs = [Told({"window_id": plan.window_id, "rows": 1}) for plan in plans]
    if committed:
        plans = one.commit_many(plans)
    before = state_of(one, tmp_path)
    with pytest.raises(WindowMismatchError, match="window_id 'b' instead of 'a'") as raised:
        way(one, plans, outputs[::-1])
    assert raised.value.facts["differences"]["window_id"] == ("a", "b")
    assert state_of(one, tmp_path) == before
    assert own or not any(one.published for one in outputs)


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize(
    "way", ["commit_many", "publish_many", "mark_written_many", "deliver_many"]
)
def test_more_or_fewer_outputs_than_plans_change_nothing(
    one: OrderedWindows, tmp_path: Path, way: str, change: int
) -> None:
    """The numbers are told, before anything is written."""
    plans = [plan_of(one, "a", 3), plan_of(one, "b", 6)]
    outputs = stage_windows(plans, one.settings, tmp_path)
    if way == "publish_many":
        plans = one.commit_many(plans)
    before = state_of(one, tmp_path)
    given = outputs[:-1] if change < 0 else [*outputs, outputs[0]]
    with pytest.raises(ConfigError, match=rf"2 plans and {2 + change} (outputs|results)"):
        WAYS[way](one, plans, given)
    assert state_of(one, tmp_path) == before


def test_an_output_of_another_claim_group_or_later_attempt_is_refused(
    one: OrderedWindows, two: OrderedWindows, tmp_path: Path
) -> None:
    """An earlier attempt's output is the window's own; whatever else it may be of is named."""
    first = plan_of(one)
    output = staged(one, first, tmp_path)
    plan = plan_of(one)
    assert plan.attempt == first.attempt + 1
    fields = output.to_json()
    wrong: dict[str, Any] = {
        "claim_id": "other",
        "group": "group-two",
        "attempt": plan.attempt + 1,
        "part": {"index": 0, "count": 2},
    }
    for name, value in wrong.items():
        other = StagedOutput.from_json({**fields, name: value})
        with pytest.raises(WindowMismatchError, match=name):
            one.commit(plan, other)
    with pytest.raises(WindowMismatchError, match="claim_id"):
        two.commit(plan_of(two), output)
    assert one.show("w").status is WindowStatus.PLANNED
    assert one.commit(plan, output).status is WindowStatus.PUBLISHED


def test_a_part_reports_its_own_output(one: OrderedWindows, tmp_path: Path) -> None:
    """Another part's, or the whole window's, is refused; nothing is reported."""
    plan = plan_of(one)
    parts = one.split(plan, 2)
    outputs = [staged(one, part, tmp_path) for part in parts]
    for wrong in (outputs[1], StagedOutput.of(plan, tmp_path)):
        with pytest.raises(WindowMismatchError, match="part"):
            one.report(parts[0], wrong)
    record = [one.report(*pair) for pair in zip(parts, outputs, strict=True)][-1]
    assert record.parts is not None
    assert not record.parts.missing


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"rows": 5, "group": "emea", "attempt": 7, "part": 3},
        {"write": {"group": "emea"}},
        {"write": "w"},
    ],
)
def test_a_sink_that_does_not_say_whose_its_output_is_is_believed(
    one: OrderedWindows, told: dict[str, Any]
) -> None:
    """Words that a sink uses for something of its own are its own."""
    output = Told(told)
    assert one.commit(plan_of(one), output).status is WindowStatus.PUBLISHED
    assert output.published == 1


def test_what_a_function_returns_is_no_claim(one: OrderedWindows) -> None:
    """A reported result may speak of any window."""
    reported = Reported.of({"window_id": "another", "claim_id": "another"})
    assert one.commit(plan_of(one), reported).status is WindowStatus.PUBLISHED


def test_an_attempt_whose_stage_was_cleaned_is_told_that_it_is_superseded(
    one: OrderedWindows, tmp_path: Path
) -> None:
    """Its stage is gone because another attempt was published, or planned again: nothing is to be done."""
    slow = plan_of(one)
    output = staged(one, slow, tmp_path)
    newer = plan_of(one)
    one.commit(newer, staged(one, newer, tmp_path))
    with pytest.raises(WindowSupersededError):
        one.commit(slow, output)
    given_up = plan_of(one, "x", 6)
    waiting = staged(one, given_up, tmp_path)
    one.abandon("x")
    again = plan_of(one, "x", 6)
    one.commit(again, staged(one, again, tmp_path))
    with pytest.raises(WindowSupersededError):
        one.commit(given_up, waiting)
    assert [path.name for path in stages_of(tmp_path).iterdir()] == [".lock"]


class FakeTable:
    """What `TableOutput` asks of a format before the commit: whose rows show."""

    def __init__(self, shown: TableWrite | None, staged_rows: int = 0) -> None:
        told = () if shown is None else (TableCommit(shown, TableMode.REPLACE, 3),)
        self.state = TableState(told)
        self.target = Table("lake.orders", "replace")
        self.facts = SimpleNamespace(
            table="lake.orders", format="delta", may_show=lambda _: shown is not None, at=None
        )
        self.stage = SimpleNamespace(name="lake.staging", count=lambda _: staged_rows)

    def look(self, _: TableWrite, *, turn: int, since: int | None) -> TableState:
        return self.state


@pytest.mark.parametrize(
    ("group_id", "staged_rows", "error", "message"),
    [
        (None, 3, None, ""),
        ("group-one", 3, None, ""),
        ("group-two", 3, OutputOwnedError, "of group group-two"),
        (None, 2, SinkError, "holds 2 of 3 rows"),
    ],
)
def test_a_table_is_looked_at_before_the_commit(
    one: OrderedWindows,
    monkeypatch: pytest.MonkeyPatch,
    group_id: str | None,
    staged_rows: int,
    error: type[Exception] | None,
    message: str,
) -> None:
    """Another group's rows in the window's place, or staged rows that are gone, leave the window uncommitted."""
    plan = plan_of(one)
    write = TableWrite.of(plan)
    shown = None if group_id is None else replace(write, group_id=group_id, token="abc")
    table: Any = FakeTable(shown, staged_rows)
    output = TableOutput(table, write, {"records": 3, "elapsed_ms": 1})
    monkeypatch.setattr(TableOutput, "publish", lambda _: None)
    if error is None:
        assert one.commit(plan, output).status is WindowStatus.PUBLISHED
        return
    with pytest.raises(error, match=message):
        one.commit(plan, output)
    assert one.show("w").status is WindowStatus.PLANNED


def test_a_table_s_output_is_of_its_plan(one: OrderedWindows) -> None:
    """What is written down of it says whose it is, too."""
    plans = [plan_of(one, "a", 3), plan_of(one, "b", 6)]
    table: Any = FakeTable(None)
    other = TableOutput(table, TableWrite.of(plans[1]), {"records": 0, "elapsed_ms": 1})
    with pytest.raises(WindowMismatchError, match="window_id 'b' instead of 'a'"):
        one.commit(plans[0], other)
