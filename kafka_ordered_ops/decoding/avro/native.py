"""Decode columns of Avro by the native extension, which follows the same plans as Python does."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

import pyarrow as pa

from kafka_ordered_ops.decoding.avro.plan import (
    Branches,
    Default,
    Entries,
    Items,
    Member,
    Plain,
    Record,
    Refused,
    Step,
    Symbols,
)
from kafka_ordered_ops.decoding.avro.records import unknown_symbol
from kafka_ordered_ops.decoding.avro.values import DAYS
from kafka_ordered_ops.decoding.bad import ColumnTooLargeError
from kafka_ordered_ops.decoding.column_reader import (
    NotNativeError,
    Reasons,
    ValueReader,
    python_decodes,
)
from kafka_ordered_ops.decoding.native_columns import buffers_of

_Array: TypeAlias = "pa.Array[Any]"
#: A step as the extension takes it: kind, numbers, texts and bytes.
_Told: TypeAlias = tuple[str, list[int], list[str], bytes]
#: The plan for values with this id, or why they are bad.
PlanOf: TypeAlias = Callable[[int], Step | str]


class NativeAvroReader:
    """Decodes the values of one column.

    Args:
        module: the extension.
        python: decodes the same in Python, also what the extension turns out not to know.
        id_bytes: how long the id before a value is, after a zero byte; 0 for none.
        plan: the plan for all values, whatever their ids; None if the ids decide.
        plan_of: returns the plan for an id; raises as the registry does.

    Raises:
        NotNativeError: the extension does not know the type, or the plan.
    """

    needs_keys = False

    def __init__(
        self,
        module: ModuleType,
        python: ValueReader,
        id_bytes: int,
        plan: Step | None,
        plan_of: PlanOf,
    ) -> None:
        self.arrow = python.arrow
        self._python: ValueReader = python
        self._plan_of = plan_of
        self._is_python_needed = False
        schema = pa.schema([pa.field("value", self.arrow)]).serialize().to_pybytes()
        try:
            self._decoder = module.AvroDecoder(schema, id_bytes, plan is None)
        except RuntimeError as error:
            raise NotNativeError(str(error)) from None
        if plan is not None:
            self._add(0, plan)

    def read_column(self, values: _Array, keys: _Array | None = None) -> tuple[_Array, Reasons]:
        """Return the decoded values, null for bad ones, and why they are bad; see `ColumnReader`."""
        if self._is_python_needed:
            return self._python.read_column(values)
        buffers = buffers_of(values)
        try:
            for writer in self._decoder.unknown(buffers):
                self._learn(writer)
            column, reasons = self._decoder.decode(buffers)
        except OverflowError:
            raise ColumnTooLargeError from None
        except (NotNativeError, RuntimeError) as error:
            python_decodes(str(error))
            self._is_python_needed = True
            return self._python.read_column(values)
        return pa.array(column), dict(reasons)

    def _learn(self, writer: int) -> None:
        plan = self._plan_of(writer)
        if isinstance(plan, str):
            self._decoder.refuse(writer, plan)
        else:
            self._add(writer, plan)

    def _add(self, writer: int, plan: Step) -> None:
        try:
            self._decoder.add(writer, steps_of(plan))
        except ValueError as error:
            raise NotNativeError(str(error)) from None


def steps_of(plan: Step) -> list[_Told]:
    """Return a plan as a list of steps, each after those that it uses."""
    steps: list[_Told] = []
    places: dict[int, int] = {}

    def place_of(step: Step) -> int:
        if id(step) not in places:
            told = _told(step, place_of)
            places[id(step)] = len(steps)
            steps.append(told)
        return places[id(step)]

    place_of(plan)
    return steps


def _told(step: Step, place_of: Callable[[Step], int]) -> _Told:
    match step:
        case Plain():
            return _plain(step)
        case Symbols():
            names = zip(step.symbols, step.writer.symbols, strict=True)
            texts = [
                unknown_symbol(step.reader, written) if symbol is None else symbol
                for symbol, written in names
            ]
            return "symbols", [int(symbol is not None) for symbol in step.symbols], texts, b""
        case Record():
            columns = {part.name: number for number, part in enumerate(step.reader.fields)}
            numbers: list[int] = []
            for name, part in (*step.fields, *step.defaults):
                numbers += [-1 if name is None else columns[name], place_of(part)]
            return "record", numbers, [], b""
        case Items():
            return "array", [place_of(step.item), int(step.is_empty)], [], b""
        case Entries():
            return "map", [place_of(step.value)], [], b""
        case Branches():
            return "union", [place_of(part) for part in step.steps], [], b""
        case Member():
            members: Any = step.union.arrow
            return "member", [members.get_field_index(step.name), place_of(step.step)], [], b""
        case Refused():
            return "refused", [], [step.reason], b""
        case Default():
            return "default", [place_of(step.step)], [], step.data


def _plain(step: Plain) -> _Told:
    writer, reader = step.writer, step.reader
    kind, numbers = writer.kind, [writer.size] if writer.kind == "fixed" else []
    if reader.logical == "decimal":
        size = writer.size if writer.kind == "fixed" else -1
        kind, numbers = "decimal", [size, reader.precision]
    elif reader.logical == "uuid":
        kind, numbers = "bytes uuid" if reader.kind == "fixed" else "text uuid", []
    elif day := DAYS.get(reader.logical or ""):
        kind, numbers = "time", [int(writer.kind == "long"), day]
    elif (writer.kind, reader.kind) == ("bytes", "string"):
        # Checked as a text is.
        kind = "string"
    return kind, numbers, [], b""
