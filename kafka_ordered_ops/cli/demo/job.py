"""The demo's Spark job: one window's departures, parsed and published, and the delays in them.

The module imports no Spark: it gets a session and a window's DataFrame, and uses SQL.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kafka_ordered_ops.cli.demo.story import TOPIC, Step
from kafka_ordered_ops.core.window.bounds import Earliest
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.embedded.java import java_home_for_spark
from kafka_ordered_ops.output.layout import WINDOW_PREFIX
from kafka_ordered_ops.output.writing.staged_output import StagedOutput
from kafka_ordered_ops.spark.read.read import read_window
from kafka_ordered_ops.spark.session import local_session
from kafka_ordered_ops.spark.write.write import write_window
from kafka_ordered_ops.windows import Delivery, OrderedWindows

#: Two tables in the output folder: every departure, and the delays.
FLIGHTS_FOLDER: Final = "flights"
DELAYS_FOLDER: Final = "delays"

#: Called with a line for each phase.
Report = Callable[[str], None]

_VALUE: Final = (
    "id bigint, carrier string, flight int, origin string, dest string, sched bigint, delay int"
)
_PARSED: Final = f"from_json(cast(value as string), '{_VALUE}') as parsed"
_RECORD: Final = ("topic", "partition", "offset", "timestamp", "late", "window_id")
_COLUMNS: Final = (
    "parsed.id",
    "parsed.carrier",
    "parsed.flight",
    "tailnum",
    "parsed.origin",
    "parsed.dest",
    "parsed.delay as delay_min",
    *_RECORD,
)
_DELAYS: Final = """
    select carrier, date_trunc('hour', timestamp) as hour, count(*) as departures,
           avg(delay_min) as delay_mean_min, max(delay_min) as delay_max_min
    from demo_departures group by carrier, hour order by hour, carrier
"""


def start_spark() -> Any:
    """Return a local session for the demo's jobs."""
    spark = local_session("kafka-ordered-ops demo", java_home=Path(java_home_for_spark()))
    # Some thousand groups: the default of 200 tasks would be mostly overhead.
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    return spark


def question(step: Step) -> Window:
    """Return what a step asks for."""
    return Window([TOPIC], step.cutoff, starting_offsets=Earliest())


def run_window(
    spark: Any, windows: OrderedWindows, step: Step, folder: Path, report: Report = lambda _: None
) -> Delivery:
    """Complete one window; a repeated call does only the remaining work."""
    report("planning")
    plan = windows.plan(question(step), step.window_id)

    def write(plan: WindowPlan) -> StagedOutput:
        report(f"Spark reads and writes {plan.offsets:,} records")
        staged = _write(spark, windows, plan, folder)
        report("committing")
        return staged

    return windows.deliver(plan, write, StagedOutput.found)


def _write(spark: Any, windows: OrderedWindows, plan: WindowPlan, folder: Path) -> StagedOutput:
    records: Any = read_window(spark, plan, windows.settings, ordered=True)
    departures = records.selectExpr(_PARSED, "cast(key as string) as tailnum", *_RECORD)
    # The records are in order, and a projection keeps it: no sort is needed.
    flights = departures.selectExpr(*_COLUMNS)
    staged = write_window(flights, folder / FLIGHTS_FOLDER, plan, ordered=False)
    # From the stage, so that Kafka is read once.
    spark.read.parquet(staged.stage_uri).createOrReplaceTempView("demo_departures")
    delays = folder / DELAYS_FOLDER / f"{WINDOW_PREFIX}{plan.window_id}"
    # A retry overwrites it with the same. Only the flights use stage, commit and publish.
    spark.sql(_DELAYS).coalesce(1).write.mode("overwrite").parquet(str(delays))
    return staged
