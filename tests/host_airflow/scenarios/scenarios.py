"""DAGs for the tests of a whole Airflow. Each has a topic, a group and an output folder of its own name."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import (
    DAG,
    Asset,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    PartitionedAssetTimetable,
)

from kafka_ordered_ops import Copy, Policy, Window
from kafka_ordered_ops.airflow import (
    CommitWindowOperator,
    OrderedWindowOperator,
    PartitionsLiveSensor,
    PlanWindowOperator,
    WindowPartOperator,
)

if TYPE_CHECKING:
    from kafka_ordered_ops import WindowPlan
    from kafka_ordered_ops.windows import ClientSettings, Staged

#: Told by the test; tells one session of tests from the next.
RUN = os.environ["SCENARIO_RUN"]
#: Where outputs go, and by which files a held task and its test talk.
OUTPUT = Path(os.environ["SCENARIO_OUTPUT"])

START, END = datetime(2025, 3, 1, tzinfo=UTC), datetime(2025, 3, 2, tzinfo=UTC)
HOURLY = CronDataIntervalTimetable("@hourly", timezone="UTC")

#: A held task goes on when nobody lets it go: it would outlive the test.
HELD_S = 200.0


def dag(dag_id: str, schedule: Any = None, end: datetime | None = END, retries: int = 0) -> DAG:
    """A DAG that makes no runs by itself, once the end is past."""
    return DAG(
        dag_id,
        schedule=schedule,
        start_date=START,
        end_date=end if schedule is not None else None,
        catchup=False,
        default_args={"retries": retries, "retry_delay": timedelta(seconds=1)},
    )


def own(dag_id: str) -> dict[str, Any]:
    """What a DAG has of its own."""
    return {
        "window": Window(f"{dag_id}-{RUN}", starting_offsets="earliest"),
        "group_id": f"{dag_id}-{RUN}",
        "output": str(OUTPUT / dag_id),
    }


class HeldOperator(OrderedWindowOperator):
    """Holds when all records are staged and nothing is committed, and says how it has ended.

    Deaf to Airflow from then on, as a task is that is busy elsewhere.
    """

    def __init__(self, *, together: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        #: Goes on by itself when so many tasks hold at once.
        self.together = together
        self.attempt = 0

    def execute(self, context: Any) -> dict[str, Any]:
        """As the operator, with a file that says how it has ended."""
        try:
            facts = super().execute(context)
        except BaseException as error:
            self._say(f"{self.attempt}.ended", f"{type(error).__name__}: {error}")
            raise
        self._say(f"{self.attempt}.ended", "committed")
        return facts

    def run_job(self, plan: WindowPlan, settings: ClientSettings) -> Staged:
        """As the operator, and then waits."""
        self.attempt = plan.attempt
        staged = super().run_job(plan, settings)
        if self.together:
            self._say(f"{plan.cutoff_ms}.ready", "")
            self._await(lambda: len(list(self._folder.glob("*.ready"))) >= self.together)
        else:
            self._say(f"{plan.attempt}.ready", str(os.getpid()))
            self._await((self._folder / f"{plan.attempt}.go").exists)
        return staged

    @property
    def _folder(self) -> Path:
        return OUTPUT / f"{self.dag_id}.signals"

    def _say(self, name: str, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f"{name}-{os.getpid()}"
        new.write_text(text)
        new.rename(self._folder / name)

    def _await(self, condition: Any) -> None:
        deadline = time.monotonic() + HELD_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody let {self.dag_id} go on")
            time.sleep(0.05)


# --- by time ---------------------------------------------------------------------------------------

with dag("scheduled", HOURLY, end=None):
    OrderedWindowOperator(task_id="orders", mode="catch_up", **own("scheduled"))

with dag("forward", HOURLY):
    HeldOperator(task_id="orders", together=3, mode="interval", **own("forward"))

with dag("backward", HOURLY):
    OrderedWindowOperator(task_id="orders", mode="interval", **own("backward"))

with dag("manual"):
    OrderedWindowOperator(mode="auto", task_id="orders", **own("manual"))

hours = Asset(name="orders by hour", uri="kafka://orders/by-hour")
with dag("partitioned", CronPartitionTimetable("0 * * * *", timezone="UTC")):
    OrderedWindowOperator(
        mode="auto",
        task_id="orders",
        partition_span=timedelta(hours=1),
        outlets=[hours],
        **own("partitioned"),
    )

with DAG(
    "after_partition",
    schedule=PartitionedAssetTimetable(assets=hours),
    start_date=START,
    catchup=False,
):
    OrderedWindowOperator(
        mode="auto",
        task_id="orders",
        partition_span=timedelta(hours=1),
        **{**own("after_partition"), "window": own("partitioned")["window"]},
    )

# --- again, and twice ------------------------------------------------------------------------------

with dag("replayed"):
    OrderedWindowOperator(mode="auto", task_id="orders", **own("replayed"))

with dag("skipped"):
    OrderedWindowOperator(
        mode="auto", task_id="orders", policy=Policy(on_covered="skip"), **own("skipped")
    )

for name in ("killed_task", "killed_worker", "orphaned"):
    with dag(name, retries=2):
        HeldOperator(mode="auto", task_id="orders", **own(name))

for name in ("overtaken", "outlived"):
    with dag(name):
        HeldOperator(mode="auto", task_id="orders", **own(name))

# --- waiting, and in vain --------------------------------------------------------------------------

with dag("live", retries=3):
    sensor = PartitionsLiveSensor(
        task_id="live",
        window=own("live")["window"],
        group_id=own("live")["group_id"],
        window_task_id="orders",
        deferrable=True,
        poke_interval=2,
        timeout=600,
    )
    sensor >> OrderedWindowOperator(mode="auto", task_id="orders", **own("live"))

with DAG(
    "away",
    start_date=START,
    schedule=None,
    default_args={"retries": 1, "retry_delay": timedelta(hours=1)},
):
    OrderedWindowOperator(mode="auto", task_id="orders", kafka_conn_id="kafka_away", **own("away"))

# --- told to others --------------------------------------------------------------------------------

with dag("lineage"):
    OrderedWindowOperator(mode="auto", task_id="orders", **own("lineage"))
    several = own("lineage") | {"group_id": f"lineage-parts-{RUN}"}
    output = several.pop("output") + "-parts"
    plan = PlanWindowOperator(mode="auto", task_id="plan", parts=2, **several)
    part = WindowPartOperator.partial(task_id="part", output=output, job=Copy("local")).expand(
        window=plan.output
    )
    part >> CommitWindowOperator(task_id="commit", window=plan.output, output=output)
