"""Columns that follow from values of JSON: the exact union of their types, or which two values no column can hold.

The order in which values are added does not matter: fields are in the order of the first record that has them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa

from kafka_ordered_ops.core.errors import DecodeError
from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.json.records import parsed_json

#: A record's topic, partition and offset.
Place: TypeAlias = tuple[str, int, int]

#: Fields, items and columns, at all depths: more are usually data used as keys. They are stored with the group.
FIELDS_MAX: Final = 2_000
#: Types within types; stored columns have at most 32.
_LEVELS_MAX: Final = 30
#: Digits that a double keeps, as the serializers of doubles write them.
_DIGITS_MAX: Final = 17

_TEXT: Final = "a text"
_BOOLEAN: Final = "true or false"
_WHOLE: Final = "a whole number"
_NUMBER: Final = "a number with a point or an exponent"
_LIST: Final = "a list"
_OBJECT: Final = "an object"
_KINDS: Final = {
    str: _TEXT,
    bool: _BOOLEAN,
    int: _WHOLE,
    Decimal: _NUMBER,
    list: _LIST,
    dict: _OBJECT,
}
_PLAIN: Final[dict[frozenset[str], pa.DataType]] = {
    frozenset({_TEXT}): pa.string(),
    frozenset({_BOOLEAN}): pa.bool_(),
    frozenset({_WHOLE}): pa.int64(),
    frozenset({_NUMBER}): pa.float64(),
    frozenset({_WHOLE, _NUMBER}): pa.float64(),
}


@dataclass(slots=True)
class Inferred:
    """What was inferred, with the paths of fields: ``address.city``, ``lines[].price``."""

    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))
    #: Fields that were not known.
    added: list[str] = field(default_factory=list)
    #: Fields in which all values are null, or lists or objects with nothing else in them: no type follows.
    blank: list[str] = field(default_factory=list)
    #: Fields with values that become no column, and in how many values.
    left_out: dict[str, int] = field(default_factory=dict)


class JsonInference:
    """Infers columns from texts, each added with its place.

    Attributes:
        values: the objects that were added.
        bad: how many texts are not objects, and why the first one is not.
    """

    def __init__(self) -> None:
        self.values = 0
        self.bad = 0
        self.first_bad: tuple[Place, str] | None = None
        self._budget = _Budget()
        self._shape = _Shape()

    def add(self, data: bytes, place: Place) -> None:
        """Add a text; raise `DecodeError` for too many different fields."""
        try:
            value = parsed_json(data)
            if type(value) is not dict:
                raise BadValueError("no object")
        except BadValueError as error:
            self.add_bad(place, str(error))
            return
        self.values += 1
        self._shape.add(value, place, 0, self._budget)

    def add_bad(self, place: Place, reason: str) -> None:
        """Count a value that cannot be read as JSON."""
        self.bad += 1
        if self.first_bad is None or place < self.first_bad[0]:
            self.first_bad = place, reason

    def columns(
        self, known: pa.Schema | None = None, given: Collection[str] = (), *, adds: bool = True
    ) -> Inferred:
        """Return the columns of all values.

        Args:
            known: columns that keep their types, and their places before the new ones.
            given: names of columns that are not inferred.
            adds: whether columns are added to the known ones; otherwise such fields are left out.

        Raises:
            DecodeError: no column can hold all values of a field exactly.
        """
        found = Inferred()
        fields = self._shape.fields_like(known or (), found, adds=adds, skip=given)
        found.columns = pa.schema(fields)
        return found


class _Budget:
    """How many fields and items there may still be."""

    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def take(self, name: str, place: Place) -> None:
        self._left -= 1
        if self._left < 0:
            raise _refused(
                place,
                f"{place_text(place)}: up to this value, the objects have more than {FIELDS_MAX:,} different fields, {name[:80]!r} among "
                "them: keys are data, it seems. Give the column that has them the type map",
            )


@dataclass(slots=True)
class _Shape:
    """What was seen in one place of the values."""

    #: Where it was there first, and at which place among its neighbours.
    first: tuple[Place, int] | None = None
    #: Values from which a type follows.
    filled: int = 0
    #: The first place of each kind of value but null.
    kinds: dict[str, Place] = field(default_factory=dict)
    fields: dict[str, _Shape] = field(default_factory=dict)
    item: _Shape | None = None
    #: The first whole numbers that a double does not hold, and that an int64 does not hold, and the first number that a
    #: double does not hold.
    odd: dict[str, tuple[Place, str]] = field(default_factory=dict)

    def add(self, value: Any, place: Place, number: int, budget: _Budget) -> bool:
        """Add a value, the one with this number among its neighbours; return whether a type follows from it."""
        if self.first is None or (place, number) < self.first:
            self.first = place, number
        if value is None:
            return False
        kind = _KINDS[type(value)]
        if (seen := self.kinds.get(kind)) is None or place < seen:
            self.kinds[kind] = place
        is_filled = True
        if kind is _OBJECT:
            is_filled = self._add_fields(value, place, budget)
        elif kind is _LIST:
            is_filled = self._add_items(value, place, budget)
        elif kind is _WHOLE or kind is _NUMBER:
            self._add_number(value, place)
        self.filled += is_filled
        return is_filled

    def _add_fields(self, value: dict[str, Any], place: Place, budget: _Budget) -> bool:
        is_filled = False
        for number, (name, part) in enumerate(value.items()):
            shape = self.fields.get(name)
            if shape is None:
                if not name.isprintable() and not _is_text(name):
                    continue
                budget.take(name, place)
                shape = self.fields[name] = _Shape()
            is_filled |= shape.add(part, place, number, budget)
        return is_filled

    def _add_items(self, value: list[Any], place: Place, budget: _Budget) -> bool:
        if self.item is None:
            budget.take("[]", place)
            self.item = _Shape()
        is_filled = False
        for number, part in enumerate(value):
            is_filled |= self.item.add(part, place, number, budget)
        return is_filled

    def _add_number(self, value: int | Decimal, place: Place) -> None:
        if isinstance(value, Decimal):
            self._note("long", not _fits_double(value), value, place)
        elif not -(2**53) <= value <= 2**53:
            is_large = not -(2**63) <= value < 2**63
            self._note("large", is_large, value, place)
            self._note("inexact", is_large or int(float(value)) != value, value, place)

    def _note(self, what: str, is_so: bool, value: object, place: Place) -> None:
        if is_so and (what not in self.odd or place < self.odd[what][0]):
            self.odd[what] = place, str(value)[:60]

    # --- types -----------------------------------------------------------------------------------

    def fields_like(
        self,
        known: Iterable[Any],
        found: Inferred,
        path: str = "",
        level: int = 0,
        *,
        adds: bool,
        skip: Collection[str] = (),
    ) -> list[pa.Field[Any]]:
        """Return the known fields, and after them the others in the order of their first places."""
        fields: dict[str, pa.Field[Any]] = {}
        for part in known:
            shape, where = self.fields.get(part.name), f"{path}{part.name}"
            if shape is not None and part.name not in skip:
                part = part.with_type(shape._evolved(part.type, found, where, level, adds))
            fields[part.name] = part
        others = [
            (name, shape)
            for name, shape in self.fields.items()
            if name not in fields and name not in skip
        ]
        for name, shape in sorted(others, key=lambda one: one[1].first or ((), 0)):
            where = f"{path}{name}"
            if not shape.filled:
                found.blank.append(where)
            elif adds:
                found.added.append(where)
                fields[name] = pa.field(name, shape._type(found, where, level + 1))
            else:
                found.left_out[where] = shape.filled
        return [*fields.values()]

    def _evolved(self, known: Any, found: Inferred, path: str, level: int, adds: bool) -> Any:
        """Return a known type with the fields that are new in it."""
        if pa.types.is_struct(known) and _OBJECT in self.kinds:
            return pa.struct(self.fields_like(known, found, f"{path}.", level + 1, adds=adds))
        if pa.types.is_list(known) and self.item is not None:
            item = self.item._evolved(known.value_type, found, f"{path}[]", level + 1, adds)
            return pa.list_(item)
        return known

    def _type(self, found: Inferred, path: str, level: int) -> pa.DataType:
        """Return the type that holds all values exactly; raise `DecodeError` if there is none."""
        kinds = frozenset(self.kinds)
        if level > _LEVELS_MAX:
            place = min(self.kinds.values())
            raise _refused(place, f"{place_text(place)} has more than {_LEVELS_MAX} levels", path)
        if kinds == {_OBJECT}:
            nested = Inferred()
            fields = self.fields_like((), nested, f"{path}.", level, adds=True)
            found.blank += nested.blank
            return pa.struct(fields)
        if kinds == {_LIST} and self.item is not None:
            return pa.list_(self.item._type(found, f"{path}[]", level + 1))
        plain = _PLAIN.get(kinds)
        if plain is None:
            (one, place), *others = sorted(self.kinds.items(), key=lambda kind: (kind[1], kind[0]))
            numbers = {_WHOLE, _NUMBER}
            other, second = next(kind for kind in others if {one, kind[0]} != numbers)
            raise _refused(
                place, f"{place_text(place)} has {one}, and {place_text(second)} {other}", path
            )
        self._check_exact(plain, path)
        return plain

    def _check_exact(self, plain: pa.DataType, path: str) -> None:
        if plain == pa.int64() and "large" in self.odd:
            place, text = self.odd["large"]
            raise _refused(place, f"{place_text(place)} has {text}, which is beyond int64", path)
        if plain != pa.float64():
            return
        if "long" in self.odd:
            place, text = self.odd["long"]
            raise _refused(
                place, f"{place_text(place)} has {text}, which a double would change", path
            )
        if "inexact" in self.odd:
            place, text = self.odd["inexact"]
            other = place_text(self.kinds[_NUMBER])
            raise _refused(
                place,
                f"{place_text(place)} has {text}, which a double would change, and {other} has {_NUMBER}",
                path,
            )


def place_text(place: Place) -> str:
    """Return a record's place as text."""
    topic, partition, offset = place
    return f"{topic}[{partition}] at offset {offset}"


def _is_text(name: str) -> bool:
    """Return whether a name can be one of a column: it has no half of a surrogate pair."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fits_double(value: Decimal) -> bool:
    """Return whether a double keeps a number: it has no more digits than doubles have."""
    try:
        number = float(value)
    except OverflowError:
        return False
    if number in (float("inf"), float("-inf")):
        return False
    if Decimal(repr(number)) == value:
        return True
    digits = "".join(map(str, value.as_tuple().digits)).strip("0")
    return len(digits) <= _DIGITS_MAX and abs(number) >= sys.float_info.min


def _refused(place: Place, reason: str, path: str | None = None) -> DecodeError:
    topic, partition, offset = place
    cure = ""
    if path is not None:
        column = path.partition(".")[0].partition("[")[0]
        cure = (
            f" at {path}: no column holds all values exactly. Give the type of {column!r}, and others are bad values: "
            f"Json(pyarrow.schema([({column!r}, ...)]), infer=...)"
        )
    return DecodeError(
        f"columns cannot be inferred: {reason}{cure}. Nothing was planned",
        topic=topic,
        partition=partition,
        offset=offset,
        bad=1,
    )
