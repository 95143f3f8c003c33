"""Calls of the user's function: what came of records, whatever it does."""

from __future__ import annotations

import functools
import inspect
import os
import traceback
from collections.abc import Awaitable, Callable, Sequence
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from kafka_ordered_ops.core.processing.new_record import checked_output
from kafka_ordered_ops.core.processing.record import Record, Result
from kafka_ordered_ops.kafka.client.forks import Home

#: Gets a record, or a list of records.
Function = Callable[[Any], Any]
#: Returns what came of each record; raises nothing.
Call = Callable[[Sequence[Record]], list[Result]]
AsyncCall = Callable[[Sequence[Record]], Awaitable[list[Result]]]

#: Values of functions that have only prepared their work.
_NOT_DONE: Final = frozenset({CoroutineType, GeneratorType, AsyncGeneratorType})


def is_async(function: Function) -> bool:
    """Return whether a function is async: declared so, or an object whose call is."""
    called = function
    while isinstance(called, functools.partial):
        called = called.func
    return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(
        getattr(called, "__call__", None)  # noqa: B004 - how it is declared, not whether there is one
    )


def call_of(function: Function, *, in_batches: bool, produces: bool = False) -> Call:
    """Return calls of a plain function, with one record, or with a list of them.

    If it produces, whatever is no `NewRecord`, list of them, or None fails its record, or all of its batch.
    """
    home = Home()

    def call(records: Sequence[Record]) -> list[Result]:
        try:
            # A list of its own: it may work through it as through a stack.
            value = function(list(records) if in_batches else records[0])
            _end_if_forked(home)
            if type(value) in _NOT_DONE:
                raise _prepared_only(value)
            return _results(records, value, in_batches=in_batches, produces=produces)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it came of these records
            _end_if_forked(home, error)
            return failed(records, error)

    return call


def async_call_of(function: Function, *, in_batches: bool, produces: bool = False) -> AsyncCall:
    """Return calls of an async function; see `call_of`."""
    home = Home()

    async def call(records: Sequence[Record]) -> list[Result]:
        try:
            value = await function(list(records) if in_batches else records[0])
            _end_if_forked(home)
            if type(value) in _NOT_DONE:
                raise _prepared_only(value)
            return _results(records, value, in_batches=in_batches, produces=produces)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it came of these records
            _end_if_forked(home, error)
            return failed(records, error)

    return call


def _end_if_forked(home: Home, error: BaseException | None = None) -> None:
    """End a process that the function has forked: it would go on as a second worker, whose work nobody commits.

    The exit code is that of any Python program: 1 after a traceback, or what `SystemExit` says, or 0.
    """
    if home.is_here:
        return
    if error is None or isinstance(error, SystemExit):
        code = None if error is None else error.code
        os._exit(code if isinstance(code, int) else int(code is not None))
    traceback.print_exception(error)
    os._exit(1)


def _prepared_only(value: Any) -> TypeError:
    """Return the error for a function that has only prepared its work."""
    if isinstance(value, CoroutineType):
        value.close()
        return TypeError("the function returned a coroutine: declare it with `async def`")
    return TypeError(
        "the function returned a generator, which has done nothing yet: make it a plain function"
    )


def failed(records: Sequence[Record], error: BaseException) -> list[Result]:
    """Return that each of some records failed."""
    return [Result(record, None, error) for record in records]


def _results(
    records: Sequence[Record], value: Any, *, in_batches: bool, produces: bool
) -> list[Result]:
    if not in_batches:
        return [Result(records[0], checked_output(value) if produces else value)]
    if value is None:
        return [Result(record) for record in records]
    if not isinstance(value, list | tuple) or len(value) != len(records):
        found = f"{len(value)}" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
        raise TypeError(
            f"the function returned {found} for {len(records)} records: return None, or a list with one value for each"
        )
    values = map(checked_output, value) if produces else value
    return [Result(record, one) for record, one in zip(records, values, strict=True)]
