"""Reads and writes windows over Spark Connect: ``python -m tests.support.connect_script BOOTSTRAP GROUP TOPIC FOLDER``.

Prints one JSON object. A process of its own: Connect and a classic session do not go together in one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from kafka_ordered_ops import Earliest, KafkaOrderedOpsError
from kafka_ordered_ops.spark import read_window, read_windows, write_window, write_windows
from kafka_ordered_ops.spark.failures import named_error
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.windows_support import before, delete_before


def main() -> None:
    """Runs everything once."""
    bootstrap, group_id, topic, folder = sys.argv[1:]
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    told: dict[str, Any] = {"session": type(spark).__module__}
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
        questions = [before(topic, end, Earliest()) for end in (12, 25, 100)]
        plans = windows.plan_many(questions, ["a", "b", "c"])

        def rows(*, ordered: bool) -> list[tuple[str, int]]:
            frame = read_windows(spark, plans, windows.settings, ordered=ordered)
            return [(row.window_id, row.offset) for row in frame.collect()]

        told["rows"] = sorted(rows(ordered=False))
        told["in order"] = rows(ordered=True)
        # Two readings side by side: a name that Connect looks up late must not lead to the other one.
        first, second = (read_window(spark, plan, windows.settings) for plan in plans[:2])
        told["apart"] = [[row.offset for row in one.collect()] for one in (first, second)]
        outputs = {
            "many": write_windows(
                read_windows(spark, plans, windows.settings, ordered=True), folder, plans
            ),
            "one": [
                write_window(
                    read_window(spark, plans[0], windows.settings), f"{folder}/one", plans[0]
                )
            ],
            "staged": [
                write_window(
                    read_window(
                        spark,
                        plans[0],
                        windows.settings,
                        engine="local",
                        local_root=f"{folder}/stage",
                    ),
                    f"{folder}/staged",
                    plans[0],
                )
            ],
        }
        told["facts"] = {
            name: [dict(one.facts) for one in found] for name, found in outputs.items()
        }
        windows.commit_many(plans, outputs["many"])
        told["published"] = [one.final_path for one in outputs["many"]]

        delete_before(bootstrap, topic, 2)
        told["errors"] = [
            _kind(lambda: write_window(first, f"{folder}/lost", plans[0])),
            _kind(
                lambda: write_windows(
                    read_windows(spark, plans, windows.settings), f"{folder}/lost", plans
                )
            ),
            _kind(first.collect),
        ]
    spark.stop()
    print(json.dumps(told))


def _kind(action: Callable[[], object]) -> str:
    """How an action fails, as this package names it."""
    try:
        action()
    except KafkaOrderedOpsError as error:
        return type(error).__name__
    except Exception as error:  # noqa: BLE001 - Spark's own, with ours inside
        return f"Spark's, with {type(named_error(error)).__name__}"
    return "none"


if __name__ == "__main__":
    main()
