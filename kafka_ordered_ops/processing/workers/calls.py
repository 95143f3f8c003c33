"""Calls of the user's function: a result for each record, whatever the function does."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import traceback
from collections.abc import Awaitable, Callable, Sequence
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, Protocol

from kafka_ordered_ops.core.errors import DecodeError
from kafka_ordered_ops.core.processing.new_record import checked_output
from kafka_ordered_ops.core.processing.record import Record, Result
from kafka_ordered_ops.kafka.client.lifetime import Home

#: Called with a record, or with a list of records.
Function = Callable[[Any], Any]
#: Returns the result of each record; raises nothing.
Call = Callable[[Sequence[Record]], list[Result]]
AsyncCall = Callable[[Sequence[Record]], Awaitable[list[Result]]]


class Decode(Protocol):
    """Returns each record as the function gets it, or the error of one that cannot be decoded."""

    #: Whether it may wait for a schema registry.
    may_wait: bool

    def __call__(self, records: Sequence[Record]) -> list[Record | DecodeError]:
        """Raise as the registry does."""


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


def call_of(
    function: Function, *, in_batches: bool, produces: bool = False, decode: Decode | None = None
) -> Call:
    """Return calls of a plain function with one record, or with a list of records.

    If it produces, only a `NewRecord`, a list of them, or None is valid. Anything else fails the record, or the whole batch. A
    record that cannot be decoded fails alone.
    """
    home = Home()

    def call(records: Sequence[Record], given: Sequence[Record] | None = None) -> list[Result]:
        try:
            # A copy: the function may change the list.
            value = function(_argument(given or records, in_batches=in_batches))
            _end_if_forked(home)
            if type(value) in _NOT_DONE:
                raise _prepared_only(value)
            return _results(records, value, in_batches=in_batches, produces=produces)
        except BaseException as error:  # noqa: BLE001 - any error is the result of these records
            _end_if_forked(home, error)
            return failed(records, error)

    def decoded_call(records: Sequence[Record]) -> list[Result]:
        try:
            decoded = _Decoded(records, decode(records) if decode else [])
        except Exception as error:  # noqa: BLE001 - of the registry
            return failed(records, error)
        return decoded.results(call(decoded.good, decoded.given) if decoded.good else [])

    return call if decode is None else decoded_call


def async_call_of(
    function: Function, *, in_batches: bool, produces: bool = False, decode: Decode | None = None
) -> AsyncCall:
    """Return calls of an async function; see `call_of`."""
    home = Home()

    async def call(
        records: Sequence[Record], given: Sequence[Record] | None = None
    ) -> list[Result]:
        try:
            value = await function(_argument(given or records, in_batches=in_batches))
            _end_if_forked(home)
            if type(value) in _NOT_DONE:
                raise _prepared_only(value)
            return _results(records, value, in_batches=in_batches, produces=produces)
        except BaseException as error:  # noqa: BLE001 - any error is the result of these records
            _end_if_forked(home, error)
            return failed(records, error)

    async def decoded_call(records: Sequence[Record]) -> list[Result]:
        try:
            if decode is None or not decode.may_wait:
                decoded = _Decoded(records, decode(records) if decode else [])
            else:
                decoded = _Decoded(records, await asyncio.to_thread(decode, records))
        except Exception as error:  # noqa: BLE001 - of the registry
            return failed(records, error)
        return decoded.results(await call(decoded.good, decoded.given) if decoded.good else [])

    return call if decode is None else decoded_call


class _Decoded:
    """Records, and what they are decoded to."""

    def __init__(self, records: Sequence[Record], decoded: Sequence[Record | DecodeError]) -> None:
        self._pairs = list(zip(records, decoded, strict=True))
        #: The records that the function gets, as they were read, and as they are decoded.
        self.good = [record for record, one in self._pairs if not isinstance(one, DecodeError)]
        self.given = [one for one in decoded if not isinstance(one, DecodeError)]

    def results(self, of_good: Sequence[Result]) -> list[Result]:
        """Return the results of all records, in their order."""
        found = iter(of_good)
        return [
            Result(record, None, one) if isinstance(one, DecodeError) else next(found)
            for record, one in self._pairs
        ]


def _argument(records: Sequence[Record], *, in_batches: bool) -> Any:
    return list(records) if in_batches else records[0]


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
