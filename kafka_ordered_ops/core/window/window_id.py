"""The ids of windows: the same text in the ledger, in results, on the command line, and in folder names."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.arguments import check_text, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.window.window import Window

#: File systems allow names of 255 bytes; a window's folder is ``window_id=`` and the id.
WINDOW_ID_LENGTH_MAX: Final = 200

#: HDFS, Windows and object stores allow these characters in names, and Hive and Spark do not escape them.
_WINDOW_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@~-]*")
_OTHERS: Final = re.compile(r"[^A-Za-z0-9_.@~-]+")

#: Longest readable part of an id: a digest follows, and for a piece of a partition its end.
_READABLE_MAX: Final = 150


def check_window_id(window_id: object) -> str:
    """Return the id unchanged; raise `ConfigError` unless it is a valid folder name."""
    text = check_text(window_id, what="window id", length_max=WINDOW_ID_LENGTH_MAX)
    if not _WINDOW_ID.fullmatch(text):
        suggestion = _safe(text)
        raise ConfigError(
            f"window id {shown(text)} cannot name a folder: use letters, digits, '_', '.', '-', '@' and '~', and begin "
            f"with a letter or digit{f', such as {suggestion}' if suggestion else ''}"
        )
    return text


def is_window_id(text: str) -> bool:
    """Return whether a text can be the id of a window."""
    return len(text) <= WINDOW_ID_LENGTH_MAX and _WINDOW_ID.fullmatch(text) is not None


def default_window_id(group_id: str, window: Window) -> str:
    """Return the default id: the same request of the same group gets the same id.

    Windows sort by time: ``2026-11-20T11-00-00Z_2026-11-20T12-00-00Z-<digest>`` with `since`, else
    ``2026-11-20T12-00-00Z-<digest>``. Starting offsets are left out: they only matter at the group's first plan, and a
    later call without them asks for the same window.
    """
    question = {
        "group": group_id,
        "topics": list(window.topics),
        "exclude": list(window.exclude),
        "since_ms": window.since_ms,
        "cutoff_ms": window.cutoff_ms,
        "sweep": window.sweep,
    }
    times = times_in_id(window.since_ms, window.cutoff_ms)
    return f"{times}-{_digest(strict_json.dumps(question))[:12]}"


def times_in_id(since_ms: int | None, cutoff_ms: int) -> str:
    """Return how the default id of a window with these times begins."""
    bounds = [cutoff_ms] if since_ms is None else [since_ms, cutoff_ms]
    # Milliseconds follow an underscore, which sorts after the Z of a whole second.
    return "_".join(time_text(bound).replace(":", "-").replace(".", "_") for bound in bounds)


def readable_window_id(*names: str, distinct: object) -> str:
    """Return a readable id: names, and a digest of `distinct`, JSON that differs between windows."""
    readable = _safe("-".join(names))[:_READABLE_MAX]
    digest = _digest(strict_json.dumps(distinct))[:12]
    return f"{readable}-{digest}" if readable else digest


def _safe(text: str) -> str:
    return _OTHERS.sub("-", text).lstrip("_.@~-").rstrip("-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
