"""Process a planned window, or a part of it, and write down each call: BOOTSTRAP GROUP WINDOW_ID LOG [PART]."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from kafka_ordered_ops import WindowPlan
from kafka_ordered_ops.processing import Processor, Record, process_window
from kafka_ordered_ops.windows import OrderedWindows


def main() -> None:
    """Resume the window's plan, as a task's next attempt does."""
    bootstrap, group_id, window_id, path, *part = sys.argv[1:]
    log = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def call(record: Record) -> None:
        time.sleep(0.005)
        os.write(log, f"{record.partition}:{record.offset}\n".encode())

    with OrderedWindows(bootstrap, group_id) as windows:
        processor = Processor(bootstrap, ordering="unordered", max_concurrency=4)
        options: Any = {"processor": processor, "commit_interval_s": 0.3}
        if part:
            plan = WindowPlan.from_text(Path(part[0]).read_text())
            process_window(windows, plan, call, **options)
        else:
            window = windows.show(window_id).plan.window
            process_window(windows, window, call, window_id=window_id, **options)


if __name__ == "__main__":
    main()
