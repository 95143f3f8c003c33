"""Exit codes, and errors as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import FrameType
from typing import Any

from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.core.errors.rights import MissingRight


class ExitCode(IntEnum):
    """Exit codes for scripts."""

    DONE = 0
    #: The same command may succeed later.
    FAILED_RETRIABLE = 1
    #: The command itself is wrong; nothing was touched.
    USAGE = 2
    NOT_LIVE = 3
    #: The same command will fail again until a person changes something.
    FAILED = 4
    #: Nothing was delivered: other windows have taken, or hold, all requested records.
    COVERED = 5
    #: Ctrl-C, as shells count it.
    INTERRUPTED = 130
    #: The reader of our output went away (``| head``), as shells count it.
    BROKEN_PIPE = 141


def end_well(_signal: int, _frame: FrameType | None) -> None:
    """End a server: a signal's handler. As an exception, so that resources are closed."""
    import typer  # Not at the top: the demo runs without typer.

    raise typer.Exit(ExitCode.DONE)


def exit_code(error: BaseException) -> ExitCode:
    """Return the exit code of an error."""
    if isinstance(error, ConfigError):
        return ExitCode.USAGE
    if isinstance(error, KafkaOrderedOpsError) and error.retriable:
        return ExitCode.FAILED_RETRIABLE
    return ExitCode.FAILED


def error_json(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON: its type, message, facts, and whether to retry."""
    facts = error.facts if isinstance(error, KafkaOrderedOpsError) else {}
    plain = {
        name: json_value
        for name, value in facts.items()
        if (json_value := _plain(value)) is not ...
    }
    retriable = exit_code(error) is ExitCode.FAILED_RETRIABLE
    return named_error(type(error).__name__, str(error), retriable=retriable, facts=plain)


def named_error(
    kind: str,
    message: str,
    *,
    retriable: bool = False,
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return other failures in the same form: wrong usage, an interruption."""
    return {
        "error": {
            "type": kind,
            "message": message,
            "retriable": retriable,
            "facts": dict(facts or {}),
        }
    }


def _plain(value: Any) -> Any:
    """Return the value as JSON; an ellipsis where JSON has no such value."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, MissingRight):
        return value.to_json()
    if isinstance(value, Mapping):
        return {
            str(key): plain for key, item in value.items() if (plain := _plain(item)) is not ...
        }
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray):
        return [plain for item in value if (plain := _plain(item)) is not ...]
    return ...
