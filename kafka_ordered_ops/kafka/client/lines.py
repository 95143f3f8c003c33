"""The client's own log lines: each is logged once a minute, and kept for a failed call."""

from __future__ import annotations

import logging
import time
from typing import Final, Protocol

from kafka_ordered_ops.kafka.client.calls import DIGITS, client_said
from kafka_ordered_ops.kafka.client.reason_kinds import is_token

#: A repeated line within this time is dropped: a client that cannot connect writes dozens a second.
LOG_REPEAT_S: Final = 60.0
_LOG_LINES_MAX: Final = 1_000


class _DropRepeats(logging.Filter):
    """Pass a line once a minute, regardless of numbers in it, such as ports and times."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is new, or old enough to be repeated."""
        now = time.monotonic()
        line = DIGITS.sub("#", record.getMessage())
        if now - self._seen.get(line, -LOG_REPEAT_S) < LOG_REPEAT_S:
            return False
        if len(self._seen) >= _LOG_LINES_MAX:
            self._seen.clear()
        self._seen[line] = now
        return True


class LineReasons(Protocol):
    """The receiver of the lines."""

    def add_line(self, line: str) -> None:
        """Add a line that may be a reason."""

    def scrub(self, text: str) -> str:
        """Return the text without secrets."""


class ClientLines:
    """The client's ``logger``: its error lines are logged as debug, and kept for a failed call.

    Most of these errors are temporary: processes fence each other's producers in turn, which log CRITICAL.
    """

    def __init__(self, reasons: LineReasons) -> None:
        self._reasons = reasons

    def log(self, level: int, message: str, *args: object) -> None:
        """Log a line, as `logging.Logger.log` does; called by the client."""
        if level < logging.ERROR:
            CLIENT_LOG.log(level, message, *args)
            self._reasons.add_line(message % args if args else message)
            return
        line = message % args if args else message
        if is_token(line):
            self._reasons.add_line(line)
        text = self._reasons.scrub(line)
        CLIENT_LOG.debug("%s", text)
        client_said(text)


#: The logger of the client's own lines, instead of stderr: nothing is shown unless logging is configured.
CLIENT_LOG: Final = logging.getLogger("kafka_ordered_ops.kafka")
CLIENT_LOG.addFilter(_DropRepeats())
CLIENT_LOG.addHandler(logging.NullHandler())
