"""Counts of values that had fields without a column, where columns are inferred and new fields are left out."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

#: Fields that are counted by their names; the others are counted together.
FIELDS_MAX: Final = 100
#: Characters of a path that are kept.
_PATH_MAX: Final = 200
#: What the facts of an output call the counts, the ones by name with this and the path of the field.
_VALUES: Final = "discarded"
_FIELD: Final = f"{_VALUES}:"
#: The name of all other fields.
_OTHERS: Final = ""


class Discarded:
    """Values with fields that were left out, in all and by the paths of the fields; for any thread."""

    def __init__(self) -> None:
        self.values = 0
        self.fields: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, values: int, fields: Mapping[str, int] | Iterable[str]) -> None:
        """Add values to the count, and their fields."""
        if not values:
            return
        counts = fields if isinstance(fields, Mapping) else dict.fromkeys(fields, values)
        with self._lock:
            self.values += values
            for path, count in counts.items():
                name = path[:_PATH_MAX]
                is_known = name in self.fields or len(self.fields) < FIELDS_MAX
                self.fields[name if is_known else _OTHERS] += count

    def merge(self, other: Discarded, column: str = "") -> None:
        """Add the counts of another one, with the column that its fields are in."""
        prefix = f"{column}." if column else ""
        fields = {f"{prefix}{path}" if path else path: n for path, n in other.fields.items()}
        self.add(other.values, fields)

    def facts(self) -> dict[str, int | None]:
        """Return the counts as facts of an output."""
        fields = {f"{_FIELD}{path}": count for path, count in sorted(self.fields.items())}
        return {_VALUES: self.values, **fields}


def is_count(name: str) -> bool:
    """Return whether a fact is one of these counts; of parts of a window, some may have counted a field, and others not."""
    return name == _VALUES or name.startswith(_FIELD)


def discarded_in(facts: Mapping[str, object]) -> dict[str, object]:
    """Return ``discarded``, and ``discarded_fields`` by their paths, from the facts of an output; empty if nothing was counted."""
    if _VALUES not in facts:
        return {}
    fields = {
        name.removeprefix(_FIELD) or "other fields": count
        for name, count in facts.items()
        if name.startswith(_FIELD)
    }
    return {_VALUES: facts[_VALUES], "discarded_fields": fields}
