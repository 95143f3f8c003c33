"""What holds a step, or a job of it, in the middle, and by which files it talks with its test.

As a file for spark-submit it is a job, run through Pipes, that holds before it writes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

#: A held step goes on when nobody lets it go: it would outlive the test.
HELD_S: Final = 200.0
_LOOK_S: Final = 0.1


def say(name: str, what: str, text: str = "") -> None:
    """Tells the test something of a scenario, and never half of it."""
    folder = _folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{what}.part"
    part.write_text(text)
    part.rename(folder / what)


def hold(name: str, attempt: int) -> None:
    """Says that it is there, with its process, and waits until the test lets this attempt go.

    Raises:
        TimeoutError: nobody has.
    """
    say(name, f"{attempt}.ready", str(os.getpid()))
    deadline = time.monotonic() + HELD_S
    while not (_folder(name) / f"{attempt}.go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody has let the step go")
        time.sleep(_LOOK_S)


def _folder(name: str) -> Path:
    return Path(os.environ["SCENARIO_OUTPUT"]) / f"{name}.signals"


def _main() -> None:
    from dagster_pipes import open_dagster_pipes
    from pyspark.sql import SparkSession

    from kafka_ordered_ops.spark import planned_windows, read_windows, write_windows

    with open_dagster_pipes() as pipes:
        told = pipes.extras
        spark = SparkSession.builder.getOrCreate()
        settings = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP"]}
        plans, client = planned_windows(settings, told["group"], told["attempts"])
        orders = read_windows(spark, plans, client, ordered=True)
        hold("piped", plans[0].attempt)
        write_windows(orders, told["output"], plans)
        say("piped", f"{plans[0].attempt}.written")
        pipes.report_asset_materialization({"attempt": plans[0].attempt})


if __name__ == "__main__":
    _main()
