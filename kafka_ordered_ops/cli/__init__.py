"""The command line: ``kafka-ordered-ops``, also as ``python -m kafka_ordered_ops.cli``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from kafka_ordered_ops import __version__

__all__ = ["main"]

#: As in `kafka_ordered_ops.cli.exits`; repeated here, where nothing is loaded yet.
_USAGE = 2
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["--version"]:
        # Before slow imports.
        print(f"kafka-ordered-ops {__version__}")
        return 0
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        print(
            f"kafka-ordered-ops: the command line needs {' and '.join(missing)}: "
            "pip install 'kafka-ordered-ops[cli]'",
            file=sys.stderr,
        )
        return _USAGE
    try:
        from kafka_ordered_ops.cli.app import run
    except KeyboardInterrupt:
        # Loading takes long enough for a Ctrl-C.
        return _INTERRUPTED
    return run(words)
