"""Applications whose windows go to a table: what is run when, who dies where, and what the table shows after that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import (
    Application,
    ClientSettings,
    ConfigError,
    Earliest,
    JobFailedError,
    OpenWindow,
    OrderedWindows,
    OutputOwnedError,
    SinkError,
    Table,
    WindowSupersededError,
)
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.delivery.current import windows_of
from kafka_ordered_ops.delivery.job import WindowJob
from kafka_ordered_ops.spark import SparkSubmit
from kafka_ordered_ops.spark.applications.protocol import Submission
from kafka_ordered_ops.spark.applications.tables import table_application
from tests.support.hosts_support import writing
from tests.support.spark_support import plan_of
from tests.support.submit_support import application, fake
from tests.support.table_driver import orders_of, rows_of, staged_in, table_driver
from tests.support.windows_support import before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_ordered_ops import WindowPlan
    from kafka_ordered_ops.windows import Staged

pytestmark = pytest.mark.timeout(300)

#: The offsets of `orders` before 12 s, and the others before 40 s.
FIRST, SECOND = [0, 1, 3], [2, 4, 5]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The table's file."""
    return tmp_path / "table.json"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """An application; the driver here does its work."""
    return application(tmp_path, "")


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "dies", "then"),
    [
        ("append", "staged", ["write", "publish"]),
        ("append", "reported", ["write", "publish"]),
        ("append", "before", ["find", "publish"]),
        ("append", "shown", ["find", "publish"]),
        ("replace", "told", ["find", "publish"]),
    ],
)
def test_a_driver_that_dies_anywhere_ends_well(
    windows: Any,
    bootstrap: str,
    orders: str,
    job: Path,
    table: Path,
    mode: str,
    dies: str,
    then: list[str],
) -> None:
    """The next call does what is left, and shows the rows once; the table is not asked again for a published window."""
    asked = before(orders, 12, Earliest())
    to = Table("lake.orders", mode)
    how, dying = table_driver(job.parent, table), table_driver(job.parent, table, DIES=dies)
    with OrderedWindows(bootstrap, group_id=windows.group_id) as mine:
        told = "Nothing was committed" if dies in ("staged", "reported") else "Nothing is lost"
        with pytest.raises(JobFailedError, match=told):
            mine.run(asked, to, job=Application(job, submit=dying), window_id="w")
        began = len(orders_of(job))
        done = mine.run(asked, to, job=Application(job, submit=how), window_id="w")
        again = mine.run(asked, to, job=Application(job, submit=how), window_id="w")
    assert orders_of(job)[began:] == then
    assert (done.status, done.ran, again.ran) == (WindowStatus.PUBLISHED, "write" in then, False)
    assert (done.records, done.output) == (3, "lake.orders")
    assert rows_of(table) == [("w", FIRST)]
    assert staged_in(table) == 0


class _Dying(OrderedWindows):
    """Dies between two steps, or leaves a window as a commit does that is refused."""

    die_at = ""

    def commit_many(self, plans: Sequence[WindowPlan], staged: Any = None) -> list[WindowPlan]:
        if self.die_at == "written":
            self.mark_written_many(plans, [one.to_json() for one in staged])
        if self.die_at in ("staged", "written"):
            raise KeyboardInterrupt
        return super().commit_many(plans, staged)

    def publish_many(self, plans: Sequence[WindowPlan], staged: Any) -> list[WindowPlan]:
        if self.die_at == "committed":
            raise KeyboardInterrupt
        return super().publish_many(plans, staged)


def _deliver(
    windows: Any,
    orders: str,
    job: Path,
    how: SparkSubmit,
    mode: str = "append",
    table: str = "lake.orders",
) -> list[bool]:
    """Two windows in one pass, as the hosts deliver them."""
    hosted = WindowJob(job=Application(job, submit=how), to=Table(table, mode))
    hosted.check(windows.settings, windows.group_id)
    asked = [before(orders, 12, Earliest()), before(orders, 40, Earliest())]
    write = writing(hosted, windows)
    with hosted.session(windows.settings, asked) as found:
        plans = windows.plan_many(asked, ["a", "b"])
        return [one.ran for one in windows.deliver_many(plans, write, found)]


def _die_at(
    point: str, bootstrap: str, group_id: str, orders: str, job: Path, how: SparkSubmit
) -> None:
    with _Dying(bootstrap, group_id=group_id) as dying:
        dying.die_at = point
        with pytest.raises(KeyboardInterrupt):
            _deliver(dying, orders, job, how)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "then"),
    [
        ("staged", ["write", "publish"]),
        ("written", ["find", "publish"]),
        ("committed", ["find", "publish"]),
    ],
)
def test_windows_of_one_pass_share_each_run(
    bootstrap: str, group_id: str, orders: str, job: Path, table: Path, point: str, then: list[str]
) -> None:
    """Whatever was left of them: one run looks for all, one publishes all; and a caller may die between any two steps."""
    how = table_driver(job.parent, table)
    _die_at(point, bootstrap, group_id, orders, job, how)
    assert rows_of(table) == []
    with OrderedWindows(bootstrap, group_id=group_id) as windows:
        assert _deliver(windows, orders, job, how) == [point == "staged"] * 2
        assert _deliver(windows, orders, job, how) == [False, False]
    assert orders_of(job) == ["write", *then]
    assert rows_of(table) == [("a", FIRST), ("b", SECOND)]
    assert staged_in(table) == 0


@pytest.mark.long
def test_an_attempt_that_was_taken_over_shows_nothing(
    bootstrap: str, group_id: str, orders: str, job: Path, table: Path
) -> None:
    """Its driver comes to its end, but the window is another attempt's by then; what it staged is removed."""
    how = table_driver(job.parent, table)
    asked = before(orders, 12, Earliest())
    to = Table("lake.orders")
    by = table_application(to, job, how)
    with OrderedWindows(bootstrap, group_id=group_id) as slow:

        def write(plan: WindowPlan) -> Staged:
            (staged,) = by.write([plan], slow.settings)
            with OrderedWindows(bootstrap, group_id=group_id) as other:
                assert other.run(asked, to, job=Application(job, submit=how), window_id="w").ran
            return staged

        with pytest.raises(WindowSupersededError):
            slow.deliver(slow.plan(asked, "w"), write, by)
    assert orders_of(job)[-1] == "discard"
    assert rows_of(table) == [("w", FIRST)]
    assert staged_in(table) == 0


@pytest.mark.long
def test_rows_that_are_gone_from_the_stage_are_written_again(
    bootstrap: str, group_id: str, orders: str, job: Path, table: Path
) -> None:
    """Somebody has dropped the staging table after Kafka's commit: the same records are staged and shown."""
    how = table_driver(job.parent, table)
    _die_at("committed", bootstrap, group_id, orders, job, how)
    table.unlink()
    with OrderedWindows(bootstrap, group_id=group_id) as windows:
        assert _deliver(windows, orders, job, how) == [True, True]
    assert rows_of(table) == [("a", FIRST), ("b", SECOND)]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["written", "committed", "published"])
def test_no_table_is_touched_but_the_one_that_is_named(
    bootstrap: str, group_id: str, orders: str, job: Path, table: Path, point: str
) -> None:
    """Others may write the ledger: what is staged elsewhere is read again, and what is published elsewhere is done."""
    how = table_driver(job.parent, table)
    with OrderedWindows(bootstrap, group_id=group_id) as windows:
        if point == "published":
            _deliver(windows, orders, job, how)
        else:
            _die_at(point, bootstrap, group_id, orders, job, how)
        began, before_it = len(orders_of(job)), table.read_text()
        named = table.with_name("other.json")
        other = table_driver(job.parent, named)
        is_done = point == "published"
        assert _deliver(windows, orders, job, other, table="lake.other") == [not is_done] * 2
    assert orders_of(job)[began:] == ([] if is_done else ["write", "publish"])
    assert table.read_text() == before_it
    assert rows_of(named) == ([] if is_done else [("a", FIRST), ("b", SECOND)])


@pytest.mark.long
@pytest.mark.parametrize("point", ["planned", "written"])
def test_rows_of_another_group_are_not_replaced(
    bootstrap: str, group_id: str, orders: str, job: Path, table: Path, point: str
) -> None:
    """Refused in the application, by name; also where its own rows were staged before. Nothing stays claimed."""
    how = table_driver(job.parent, table)
    asked = before(orders, 12, Earliest())
    run: dict[str, Any] = {
        "output": Table("lake.orders", "replace"),
        "job": Application(job, submit=how),
        "window_id": "w",
    }
    if point == "written":
        with _Dying(bootstrap, group_id=group_id) as dying:
            dying.die_at = "written"
            with pytest.raises(KeyboardInterrupt):
                dying.run(asked, **run)
    with OrderedWindows(bootstrap, group_id=f"{group_id}-other") as other:
        other.run(asked, **run)
    with OrderedWindows(bootstrap, group_id=group_id) as windows:
        with pytest.raises(OutputOwnedError, match=r"of group .*-other") as refused:
            windows.run(asked, **run)
        assert refused.value.group_id == f"{group_id}-other"
        assert windows.show("w").status is WindowStatus.ABANDONED
    assert rows_of(table) == [("w", FIRST)]


def test_an_output_that_is_not_the_table_s_is_refused(windows: Any, orders: str, job: Path) -> None:
    """An application with a sink of its own, or one that was submitted for something else."""
    how = fake(
        job.parent,
        """
        from kafka_ordered_ops.spark.applications.protocol import Submission
        from kafka_ordered_ops.spark.applications.result import JobResult
        asked = Submission.read(folder)
        JobResult(({"rows": 1},), None).write(folder, asked.token, asked.plans)
        """,
    )
    plan = windows.plan(before(orders, 12, Earliest()), "w")
    to = Table("lake.orders")
    by = table_application(to, job, how)
    with pytest.raises(SinkError, match=r"not for the table lake\.orders"):
        by.write([plan], windows.settings)
    assert windows.show("w").status is WindowStatus.PLANNED


def test_what_cannot_be_submitted_for_a_table_is_refused(tmp_path: Path, job: Path) -> None:
    """Before anything is planned: a driver that shares no folder with the caller; settings of a session that is not used."""
    client = ClientSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"})
    cluster = SparkSubmit(master="yarn", deploy_mode="cluster", program=fake(tmp_path, "").program)
    to = Table("lake.orders")
    hosted = WindowJob(job=Application(job, submit=cluster), to=to)
    told = r"the table lake\.orders has\s+none: use client mode"
    with pytest.raises(ConfigError, match=told):
        hosted.check(client, "g")
    with (
        OrderedWindows(client, "g") as windows,
        pytest.raises(ConfigError, match=told),
    ):
        windows.run(before("t", 1), Table("lake.orders"), job=Application(job, submit=cluster))
    odd = WindowJob(
        job=Application(job), to=Table("lake.orders", conf={"spark.sql.catalog.lake": "x"})
    )
    with pytest.raises(ConfigError, match=r"conf in its submit"):
        odd.check_form()


def test_a_table_takes_no_path() -> None:
    """In the application: the window has one place."""
    nothing: Any = None
    settings = ClientSettings.from_mapping({"bootstrap.servers": "h:1"})
    submission = Submission("t", (plan_of([]),), None, "python", True, Table("lake.orders"))
    window = OpenWindow(windows_of(submission, settings, None, nothing, Path("/")))
    with pytest.raises(ConfigError, match=r"goes to lake\.orders, and the path is 'out'"):
        window.write(nothing, "out")
