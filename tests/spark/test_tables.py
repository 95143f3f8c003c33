"""Windows as rows of Delta and Iceberg tables: staged, committed, shown once, whatever dies in between."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    OutputOwnedError,
    OutputVersionError,
    SinkError,
    WindowCoveredError,
    WindowPlan,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group.decisions.splitting import shares
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.spark import read_window
from kafka_ordered_ops.spark.write.table_errors import beside_others
from kafka_ordered_ops.spark.write.table_output import TableOutput
from kafka_ordered_ops.windows import OrderedWindows
from kafka_ordered_ops.windows.delivery import Delivery
from tests.support.spark_support import Crash, part_of, plan_of, spark
from tests.support.tables_support import (
    COLUMNS,
    WAREHOUSE,
    Lake,
    any_lake,
    lake,
    lake_spark,
    offsets,
)
from tests.support.windows_support import before

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["any_lake", "lake", "lake_spark", "spark"]  # fixtures

pytestmark = [
    pytest.mark.spark41,
    pytest.mark.timeout(600),
]

#: By offset, of the records of `orders`: what the windows that end at 12 s and at 40 s take.
FIRST, SECOND = (0, 1, 3), (2, 4, 5)


def _plan(window_id: str = "2026-11-20T11-00~e", *, attempt: int = 1) -> WindowPlan:
    return plan_of(
        [part_of("orders", 0, OffsetSet.of((0, 9)))], window_id=window_id, attempt=attempt
    )


def _deliver(windows: OrderedWindows, lake: Lake, plan: WindowPlan) -> Delivery:
    """One attempt, as a new process makes it: reads Kafka, writes the table."""
    sink = lake.sink

    def write(plan: WindowPlan) -> TableOutput:
        return sink.write(read_window(lake.spark, plan, windows.settings).select(*COLUMNS), plan)

    return windows.deliver(plan, write, sink.found)


def _shown(topic: str, *values: int) -> list[tuple[str, int, int]]:
    return [(topic, 0, value) for value in values]


def test_windows_show_once_in_either_order(
    windows: OrderedWindows, orders: str, lake: Lake
) -> None:
    """The later one first; again, and nothing runs; the rows are those of the plans, and nothing waits."""
    first = windows.plan(before(orders, 12, Earliest()), "a~e")
    second = windows.plan(before(orders, 40), "its.b")
    for plan in (second, first):
        delivery = _deliver(windows, lake, plan)
        assert (delivery.ran, delivery.record.status) == (True, WindowStatus.PUBLISHED)
    for seconds, window_id in ((12, "a~e"), (40, "its.b")):
        again = _deliver(windows, lake, windows.plan(before(orders, seconds), window_id))
        assert not again.ran
    assert lake.rows() == {"a~e": _shown(orders, *FIRST), "its.b": _shown(orders, *SECOND)}
    assert lake.staged_count() == 0


class _Dying(OrderedWindows):
    """Dies at its n-th step."""

    die_at = ""

    def commit_many(self, plans: Sequence[WindowPlan], staged: Any = None) -> list[WindowPlan]:
        self._die("staged")
        if self.die_at == "written":
            # As a commit that is refused leaves it.
            self.mark_written_many(plans, [one.to_json() for one in staged])
        self._die("written")
        return super().commit_many(plans, staged)

    def publish_many(self, plans: Sequence[WindowPlan], staged: Any) -> list[WindowPlan]:
        self._die("committed")
        return super().publish_many(plans, staged)

    def _die(self, point: str) -> None:
        if self.die_at == point:
            raise Crash


def _die_in_publish(lake: Lake, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Around the two changes that publishing makes to tables."""
    format_class = type(lake.sink.format)
    stage_class = type(lake.sink.format.stage)
    show, remove = format_class.show, stage_class.clear

    def shown(*arguments: Any) -> bool:
        show(*arguments)
        raise Crash

    def removed(*arguments: Any) -> None:
        remove(*arguments)
        raise Crash

    if point == "shown":
        monkeypatch.setattr(format_class, "show", shown)
    elif point == "removed":
        monkeypatch.setattr(stage_class, "clear", removed)


@pytest.mark.parametrize("point", ["staged", "written", "committed", "shown", "removed"])
def test_a_try_that_dies_anywhere_ends_well(
    bootstrap: str,
    group_id: str,
    orders: str,
    any_lake: Lake,
    point: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next attempt shows the same rows once; the job runs again only where the ledger knew of no stage."""
    lake, settings = any_lake, {"bootstrap.servers": bootstrap}
    asked = before(orders, 12, Earliest())
    dying = _Dying(settings, group_id)
    with dying, monkeypatch.context() as patch:
        dying.die_at = point
        _die_in_publish(lake, point, patch)
        plan = dying.plan(asked, "w")
        with pytest.raises((Crash, SinkError)) as died:
            _deliver(dying, lake, plan)
        assert isinstance(died.value, Crash) or isinstance(died.value.__cause__, Crash)
    if point in ("staged", "written", "committed"):
        assert lake.rows() == {}
    with OrderedWindows(settings, group_id) as windows:
        again = _deliver(windows, lake, windows.plan(asked, "w"))
        assert again.record.status is WindowStatus.PUBLISHED
        assert again.ran == (point == "staged")
        assert lake.rows() == {"w": _shown(orders, *FIRST)}
        assert lake.staged_count() == 0
        _deliver(windows, lake, windows.plan(before(orders, 40), "next"))
        assert lake.rows()["next"] == _shown(orders, *SECOND)


def test_a_try_that_is_killed_in_the_table_s_commit_ends_well(
    bootstrap: str, windows: OrderedWindows, orders: str, any_lake: Lake
) -> None:
    """Kill -9 of the driver: whether its commit came through is unknown, and the next attempt finds out."""
    lake = any_lake
    warehouse = lake.spark.conf.get(WAREHOUSE)
    words = (bootstrap, windows.group_id, orders, lake.table, lake.mode, warehouse)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.table_worker", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert windows.show("w").status is WindowStatus.COMMITTED
    again = _deliver(windows, lake, windows.plan(before(orders, 12), "w"))
    assert (again.ran, again.record.status) == (False, WindowStatus.PUBLISHED)
    assert lake.rows() == {"w": _shown(orders, *FIRST)}
    assert lake.staged_count() == 0


def test_a_try_that_was_taken_over_shows_nothing(
    windows: OrderedWindows, orders: str, lake: Lake
) -> None:
    """Its rows wait, its commit is refused, and they are removed; the newer attempt's are what shows."""
    asked = before(orders, 12, Earliest())
    slow = windows.plan(asked, "w")

    def write(plan: WindowPlan) -> TableOutput:
        windows.plan(asked, "w")
        return lake.sink.write(_wrong(lake), plan)

    with pytest.raises(WindowSupersededError):
        windows.deliver(slow, write, lake.sink.found)
    assert (lake.rows(), lake.staged_count()) == ({}, 0)
    _deliver(windows, lake, windows.plan(asked, "w"))
    # To the ledger every attempt of a committed claim may say so; to the table it may not.
    with pytest.raises(WindowSupersededError, match="comes too late"):
        lake.sink.write(_wrong(lake), slow)
    assert lake.rows() == {"w": _shown(orders, *FIRST)}


def _wrong(lake: Lake) -> DataFrame:
    return lake.frame(100)


def test_a_replay_replaces_what_shows(windows: OrderedWindows, orders: str, lake: Lake) -> None:
    """The same claim and attempt, another result; also one without any rows."""
    _deliver(windows, lake, windows.plan(before(orders, 12, Earliest()), "w"))
    _deliver(windows, lake, windows.plan(before(orders, 40), "other"))
    for kept in ("offset > 0", "false"):
        plan = windows.replay("w")
        rows = read_window(lake.spark, plan, windows.settings).where(kept).select(*COLUMNS)
        windows.publish(plan, lake.sink.write(rows, plan))
        shown = lake.rows()
        assert shown.pop("other") == _shown(orders, *SECOND)
        assert shown == ({"w": _shown(orders, 1, 3)} if kept != "false" else {})


def test_publishing_again_changes_nothing(lake: Lake) -> None:
    """In the same process, in another one, and by an attempt that looked before the first one was through."""
    output = lake.sink.write(lake.frame(1, 2), _plan())
    twin = lake.sink.found(output.to_json())
    assert twin is not None
    output.publish()
    output.publish()
    twin.publish()
    assert lake.rows() == {_plan().window_id: offsets(1, 2)}
    assert (output.to_json(), twin.published) == (twin.to_json(), True)


def test_publishers_at_the_same_time_show_each_window_once(lake: Lake, tmp_path: Path) -> None:
    """Three windows, one of them by two publishers; in Delta even where their files are not kept apart."""
    at_once = lake
    if lake.format == "delta":
        at_once = replace(lake, table=f"delta.`{tmp_path}/flat`")
        lake.spark.sql(f"CREATE TABLE {at_once.table} USING delta AS SELECT * FROM {lake.table}")
    sink = at_once.sink
    outputs = [sink.write(at_once.frame(n), _plan(name)) for n, name in enumerate("abc")]
    twin = sink.found(outputs[0].to_json())
    assert twin is not None
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(TableOutput.publish, [*outputs, twin]))
    assert at_once.rows() == {name: offsets(n) for n, name in enumerate("abc")}
    assert at_once.staged_count() == 0


@pytest.mark.parametrize(("failures", "comes_through"), [(0, True), (3, True), (99, False)])
def test_what_others_have_changed_is_looked_at_again(failures: int, comes_through: bool) -> None:
    """A reading that Iceberg refuses, as the table has moved on; a bounded number of times, and nothing else."""
    told = [
        RuntimeError(
            "IllegalStateException: Failed to enforce scan consistency: resolved Spark ..."
        )
    ] * failures

    def look() -> str:
        if told:
            raise told.pop()
        return "found"

    if comes_through:
        assert beside_others(look) == "found"
    else:
        with pytest.raises(RuntimeError, match="consistency"):
            beside_others(look)
        assert 80 < len(told) < 99
    told = [RuntimeError("out of memory")] * 2
    with pytest.raises(RuntimeError, match="memory"):
        beside_others(look)
    assert len(told) == 1


@pytest.mark.parametrize("shown", [0, 1])
def test_a_commit_on_an_old_look_changes_nothing(lake: Lake, shown: int) -> None:
    """The table itself refuses it, or skips it: no check that was made before could hold it back."""
    sink, window_id = lake.sink, _plan().window_id
    for attempt in range(1, shown + 1):
        sink.write(lake.frame(attempt), _plan(attempt=attempt)).publish()
    late = sink.write(lake.frame(8), _plan(attempt=8))
    state = sink.format.look(late.write)
    sink.write(lake.frame(9), _plan(attempt=9)).publish()
    refused = (
        pytest.raises(Exception, match="Found conflicting")
        if lake.format == "iceberg"
        else nullcontext()
    )
    with refused:
        sink.format.show(late.write, 1, state.basis)
    assert lake.rows() == {window_id: offsets(9)}


def test_an_older_claim_s_rows_are_replaced(lake: Lake) -> None:
    """A window that was rewound is planned again, and its attempts begin at one again."""
    sink, window_id = lake.sink, _plan().window_id
    sink.write(lake.frame(1, 2), _plan(attempt=7)).publish()
    again = replace(_plan(), claim_id="claim2", replaces=("claim1",))
    sink.write(lake.frame(2, 3), again).publish()
    assert lake.rows() == {window_id: offsets(2, 3)}


def test_a_window_of_another_group_is_never_replaced(lake: Lake) -> None:
    """Two groups may use the same ids: refused before the job, and also if the other one comes while it runs."""
    staged = lake.sink.write(lake.frame(2), replace(_plan(), group_id="others"))
    lake.sink.write(lake.frame(1), _plan()).publish()
    for refused in (staged.check_ready, staged.publish):
        with pytest.raises(OutputOwnedError, match="of group orders-hourly"):
            refused()
    with pytest.raises(OutputOwnedError, match="of group orders-hourly"):
        lake.sink.write(lake.frame(2), replace(_plan(), group_id="others"))
    assert lake.rows() == {_plan().window_id: offsets(1)}


def test_an_empty_window_is_published(lake: Lake) -> None:
    """Nothing shows, and the table knows it: a second publication finds it done."""
    output = lake.sink.write(lake.frame(), _plan())
    output.publish()
    assert lake.rows() == {}
    assert lake.sink.format.look(output.write).shown == output.write


def test_rows_deleted_from_the_stage_are_written_again(lake: Lake) -> None:
    """Nobody can publish them; a published output counts as there whatever happened to its rows."""
    output = lake.sink.write(lake.frame(1, 2), _plan())
    told = output.to_json()
    lake.spark.sql(f"DELETE FROM {lake.staging}")
    assert lake.sink.found(told) is None
    with pytest.raises(SinkError, match="holds 0 of 2 rows"):
        output.publish()
    again = lake.sink.write(lake.frame(1, 2), _plan(attempt=2))
    again.publish()
    lake.spark.sql(f"DELETE FROM {lake.table}")
    assert lake.sink.found(again.to_json()) == again


def test_a_newer_try_s_stage_survives_an_older_one(lake: Lake) -> None:
    """Publishing removes what has become worthless, and nothing that may still be published."""
    sink = lake.sink
    dead, mine, newer = (sink.write(lake.frame(n), _plan(attempt=n)) for n in (1, 2, 3))
    mine.publish()
    assert (dead.is_staged(), newer.is_staged()) == (False, True)
    newer.discard()
    newer.discard()
    assert (newer.is_staged(), lake.staged_count()) == (False, 0)


def test_foreign_results_are_not_found(lake: Lake) -> None:
    """Those of other sinks, of other tables, and damaged ones; a newer version is an error."""
    told = lake.sink.write(lake.frame(1), _plan()).to_json()
    for result in (
        {},
        {"rows": 3},
        {**told, "table": "x"},
        {**told, "a": 1},
    ):
        assert lake.sink.found(result) is None
    with pytest.raises(OutputVersionError, match="version 99"):
        lake.sink.found({**told, "version": 99})


def _without_a_column(lake: Lake) -> object:
    return lake.sink.write(lake.frame(1).drop("value"), _plan())


def _with_another_column(lake: Lake) -> object:
    return lake.sink.write(lake.frame(1).selectExpr("*", "1 AS more"), _plan())


def _into_no_table(lake: Lake) -> object:
    table = lake.table.removesuffix("`") + "_missing" + ("`" if "`" in lake.table else "")
    return replace(lake, table=table).sink


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (_without_a_column, "Missing: value\\. Not in the table: none"),
        (_with_another_column, "Missing: none\\. Not in the table: more"),
        (_into_no_table, "Create it before the first window"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_job(
    lake: Lake, given: Callable[[Lake], object], told: str
) -> None:
    """A missing column would be filled with nulls, or fail after minutes of reading."""
    with pytest.raises(ConfigError, match=told):
        given(lake)


def test_plans_that_a_table_cannot_hold_are_refused(lake: Lake) -> None:
    """A covered window, whose rows others deliver; a part of one."""
    covered = replace(_plan(), content=PlanContent.COVERED)
    with pytest.raises(WindowCoveredError):
        lake.sink.write(lake.frame(), covered)
    with pytest.raises(ConfigError, match="part"):
        lake.sink.write(lake.frame(1), shares(_plan(), 2)[0])
