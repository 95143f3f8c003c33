"""The driver's host: it delivers one window on a cluster, ``cluster_caller.py TASK``, a JSON file; prints what was done."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kafka_ordered_ops import Application, Folder, OrderedWindows, Window
from kafka_ordered_ops.spark import SparkSubmit


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Deliver the window by an application."""
    cutoff = datetime.fromtimestamp(task["cutoff_ms"] / 1000, UTC)
    window = Window(task["topic"], cutoff=cutoff, starting_offsets="earliest")
    job = Application(
        task["application"],
        task["arguments"],
        SparkSubmit(**task["submit"]),
        task["engine"],
        task["ordered"],
    )
    to = Folder(task["output"], storage_options=task["storage_options"])
    with OrderedWindows(task["bootstrap"], group_id=task["group_id"]) as windows:
        done = windows.run(window, to, job=job, window_id="w")
    return {"ran": done.ran, "records": done.records, "output": str(done.output)}


if __name__ == "__main__":
    print("\n" + json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
