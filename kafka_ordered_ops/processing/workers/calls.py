"""Calls of the user's function: a result for each record, whatever the function does."""

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

#: Called with a record, or with a list of records.
Function = Callable[[Any], Any]
#: Returns the result of each record; raises nothing.
Call = Callable[[Sequence[Record]], list[Result]]
AsyncCall = Callable[[Sequence[Record]], Awaitable[list[Result]]]

#: Types of return values that show that the function has not run yet.
_NOT_DONE: Final = frozenset({CoroutineType, GeneratorType, AsyncGeneratorType})


def is_async(function: Function) -> bool:
    """Return whether a function is async: by its declaration, or by that of the object's ``__call__``."""
    called = function
    while isinstance(called, functools.partial):
        called = called.func
    return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(
        getattr(called, "__call__", None)  # noqa: B004 - its declaration, not its existence
    )


def call_of(function: Function, *, in_batches: bool, produces: bool = False) -> Call:
    """Return calls of a plain function with one record, or with a list of records.

    If it produces, only a `NewRecord`, a list of them, or None is valid. Anything else fails the record, or the whole batch.
    """
    home = Home()

    def call(records: Sequence[Record]) -> list[Result]:
        try:
            # A copy: the function may change the list.
            value = function(list(records) if in_batches else records[0])
            _end_if_forked(home)
            if type(value) in _NOT_DONE:
                raise _prepared_only(value)
            return _results(records, value, in_batches=in_batches, produces=produces)
        except BaseException as error:  # noqa: BLE001 - any error is the result of these records
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
        except BaseException as error:  # noqa: BLE001 - any error is the result of these records
            _end_if_forked(home, error)
            return failed(records, error)

    return call


def _end_if_forked(home: Home, error: BaseException | None = None) -> None:
    """End a process that the function forked: it would continue as a second worker, without commits.

    The exit code is that of any Python program: 1 after a traceback, the code of a `SystemExit`, or 0.
    """
    if home.is_here:
        return
    if error is None or isinstance(error, SystemExit):
        code = None if error is None else error.code
        os._exit(code if isinstance(code, int) else int(code is not None))
    traceback.print_exception(error)
    os._exit(1)


def _prepared_only(value: Any) -> TypeError:
    """Return the error for a function that returned a coroutine or a generator."""
    if isinstance(value, CoroutineType):
        value.close()
        return TypeError("the function returned a coroutine: declare it with `async def`")
    return TypeError(
        "the function returned a generator, which has not run yet: make it a plain function"
    )


def failed(records: Sequence[Record], error: BaseException) -> list[Result]:
    """Return a result with the error for each record."""
    return [Result(record, None, error) for record in records]


def _results(
    records: Sequence[Record], value: Any, *, in_batches: bool, produces: bool
) -> list[Result]:
    if not in_batches:
        return [Result(records[0], checked_output(value) if produces else value)]
    if value is None:
        return [Result(record) for record in records]
    if not isinstance(value, list | tuple) or len(value) != len(records):
        description = (
            f"{len(value)}" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
        )
        raise TypeError(
            f"the function returned {description} for {len(records)} records: return None, or a list with one value for each"
        )
    values = map(checked_output, value) if produces else value
    return [Result(record, output) for record, output in zip(records, values, strict=True)]
