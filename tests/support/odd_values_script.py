"""Gives odd values to public calls and commands, in a process of its own: it may be ended by a signal.

Arguments: the brokers, a topic. Writes a line of JSON before each call, and one with what came of it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import typer

from kafka_ordered_ops import (
    KafkaOrderedOpsError,
    OrderedReader,
    OrderedWindows,
    ReadLimits,
    Window,
)
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.cli.app import app
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.processing import NewRecord, Processor

#: A call that accepts the value may wait for records, or serve.
_LIMIT_S = 0.5
_NOON = "2026-11-20T12:00:00Z"

TEXTS = [
    "caf\udce9",
    "\ud800",
    "a\0b",
    "",
    " ",
    " g",
    "g ",
    "x" * 100_000,
    "^[",
    "^(",
    "..",
    "-1",
    "99999999999999999999",
    "nan",
    "\u202e\u0007",
    "user:secret@host:1",
]
OTHERS: list[Any] = [b"x", 1.5, float("nan"), [], {}, object(), None, 10**30]

#: One of so many calls is tried: prime to their number, so that each gets other values.
_EACH = 2

#: Not tried: they make their own broker.
_WITHOUT = {"demo", "broker"}


class _Late(KeyboardInterrupt):
    """The value was accepted, and the call has more to do. Event loops let only an interrupt out of a signal handler."""


class _Timer:
    """Ends a call by `_Late`, and again where code that must not raise (a callback, a finalizer) swallowed it."""

    def __init__(self) -> None:
        self._is_running = False

    def __enter__(self) -> None:
        self._is_running = True
        signal.setitimer(signal.ITIMER_REAL, _LIMIT_S, 2.0)

    def __exit__(self, *_raised: object) -> None:
        self._is_running = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def ring(self, _signal: int, _frame: object) -> None:
        if self._is_running:
            raise _Late


_TIMER = _Timer()


def calls(brokers: str, topic: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Public calls, each with one odd value."""
    for value in [*TEXTS, *OTHERS]:
        yield "settings", partial(_list, value, "g")
        yield "group", partial(_list, brokers, value)
        yield "ledger", partial(_list, brokers, "g", ledger_topic=value)
        yield "topic", partial(_preview, brokers, topics=value)
        yield "topics", partial(_preview, brokers, topics=[topic, value])
        yield "exclude", partial(_preview, brokers, topics="^odd.*", exclude=value)
        yield "cutoff", partial(_preview, brokers, topics=topic, cutoff=value)
        yield "window id", partial(_preview, brokers, topics=topic, window_id=value)
        yield "reset of a topic", partial(_reset, brokers, "earliest", topics=value)
        yield "show", partial(_show, brokers, value)
        yield "read topic", partial(_read, brokers, value)
        yield "read group", partial(_read, brokers, topic, group_id=value, follow=True)
        yield "process", partial(_process, brokers, value)
        yield "header", partial(NewRecord, topic, None, b"", ((value, b""),))
        yield "new record", partial(NewRecord, value, None, b"")
        for key in ("client.id", "sasl.mechanism", "ssl.ca.location", "socket.timeout.ms", "debug"):
            yield key, partial(_list, {"bootstrap.servers": brokers, key: value}, "g")
        if isinstance(value, str | bytes | float):
            yield "reset of a partition", partial(_reset, brokers, {TopicPartition(value, 0): 0})  # type: ignore[arg-type]
        if isinstance(value, str):
            yield "key", partial(_list, {"bootstrap.servers": brokers, value: "x"}, "g")


def _service(brokers: Any, group: Any = "odd-g", **options: Any) -> OrderedWindows:
    return OrderedWindows(brokers, group, timeout_s=3, **options)


def _reset(brokers: Any, to: Any, **options: Any) -> object:
    with _service(brokers) as windows:
        return windows.reset_offsets(to, dry_run=True, **options)


def _show(brokers: Any, window_id: Any) -> object:
    with _service(brokers) as windows:
        return windows.show(window_id)


def _process(brokers: Any, topics: Any) -> object:
    return next(iter(Processor(brokers).subscribe(topics, print, group_id="odd-g")), None)


def _list(brokers: Any, group: Any, **options: Any) -> object:
    with _service(brokers, group, **options) as windows:
        return windows.list()


def _preview(
    brokers: Any, *, cutoff: Any = _NOON, window_id: Any = None, topics: Any, exclude: Any = ()
) -> object:
    with _service(brokers) as windows:
        window = Window(topics, cutoff=cutoff, exclude=exclude, starting_offsets="earliest")
        return windows.preview(window, window_id)


def _read(brokers: Any, topics: Any, **options: Any) -> object:
    with OrderedReader(
        brokers, topics, limits=ReadLimits(timeout_s=3, stall_timeout_s=3), **options
    ) as reader:
        return reader.poll(0.2)


def commands(brokers: str, topic: str) -> Iterator[tuple[str, list[str]]]:
    """Each command with an odd value for each of its arguments and options, in turn."""
    root: Any = typer.main.get_command(app)
    at = 0
    needed = {
        "-g": "odd-g",
        "-t": topic,
        "topic": topic,
        "--cutoff": _NOON,
        "window_id": "w",
        "-o": os.devnull,
        "--older-than": "P1D",
        "--to": "earliest",
        "--base": "1",
        "--done": "1",
        "root": "no-such-root",
        "name": "n",
        "--tokens": "tokens.json",
        "--topics": topic,
        "--groups": "*",
        "offset": "0",
    }
    for path, command in _leaves(root, []):
        names = {one.opts[0] for one in command.params}
        for one in command.params:
            if getattr(one, "is_flag", False):
                continue
            at += 1
            for value in (TEXTS[at * 7 % len(TEXTS)],):
                if "\0" in value:
                    # No process can be given one.
                    value = TEXTS[0]
                words = list(path)
                if "-b" in names and one.opts[0] != "-b":
                    words += ["-b", brokers]
                tail: list[str] = []
                for other in command.params:
                    name, is_odd = other.opts[0], other is one
                    if not (is_odd or other.required):
                        continue
                    text = value if is_odd else needed[name]
                    if other.param_type_name == "argument":
                        tail.append(text)
                    else:
                        words += [f"{name}={text}"] if name.startswith("--") else [name, text]
                if "--dry-run" in {opt for every in command.params for opt in every.opts}:
                    words.append("--dry-run")
                yield " ".join([*path, one.opts[0]]), [*words, "--", *tail] if tail else words


def _leaves(command: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    for name, one in getattr(command, "commands", {}).items():
        if name in _WITHOUT:
            continue
        if hasattr(one, "commands"):
            yield from _leaves(one, [*path, name])
        else:
            yield [*path, name], one


def _outcome(call: Callable[[], object]) -> dict[str, Any]:
    try:
        with _TIMER:
            call()
    except KafkaOrderedOpsError as error:
        return {"error": type(error).__name__, "text": str(error)}
    except _Late:
        return {"error": None}
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
        if _is_late(error):
            return {"error": None}
        told = traceback.format_exc()[-1_500:]
        return {"error": type(error).__name__, "text": told, "raw": True}
    return {"error": None}


def _is_late(error: BaseException | None) -> bool:
    """Whether the timer is behind an error: C code that is interrupted raises `SystemError`."""
    while error is not None:
        if isinstance(error, _Late):
            return True
        error = error.__cause__ or error.__context__
    return False


def _run(words: list[str]) -> dict[str, Any]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = _outcome(lambda: main(words))
    text = out.getvalue() + err.getvalue()
    return {
        **found,
        "raw": found.get("raw", False) or ("Traceback" in text and "_Late" not in text),
        "text": text,
    }


def _told(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def tried(brokers: str, topic: str) -> None:
    """Try all."""
    signal.signal(signal.SIGALRM, _TIMER.ring)
    os.chdir(tempfile.mkdtemp())
    for at, (name, call) in enumerate(calls(brokers, topic)):
        if at % _EACH:
            continue
        _told({"call": name})
        _told(_outcome(call))
    for name, words in commands(brokers, topic):
        _told({"call": name, "words": [word[:40] for word in words]})
        _told(_run(words))


if __name__ == "__main__":
    tried(*sys.argv[1:])
