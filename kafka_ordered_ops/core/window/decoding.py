"""How records are decoded, as one value, for readers that have no window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_ordered_ops.core.arguments import check_flag, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.dead_letters import DeadLetter, as_on_bad
from kafka_ordered_ops.core.window.formats import OnBad
from kafka_ordered_ops.core.window.stored_formats import GivenFormat, as_format
from kafka_ordered_ops.core.window.window import Window


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the values and keys of records are encoded, for an `OrderedReader` or a `Processor`.

    Args:
        values: as in a `Window`: `Avro`, `Json`, `Protobuf` or `Debezium`, or their text; None leaves bytes.
        keys: the same for keys.
        on_bad: what happens to what cannot be decoded: ``fail`` or ``keep``.
        flatten: put the fields of a struct in its place.

    Raises:
        ConfigError: an invalid argument, or neither `values` nor `keys`.
    """

    values: GivenFormat | None = None
    keys: GivenFormat | None = None
    on_bad: OnBad | DeadLetter | str = OnBad.FAIL
    flatten: bool = False

    def __post_init__(self) -> None:
        for name, value in (
            ("values", as_format(self.values, "values")),
            ("keys", as_format(self.keys, "keys")),
            ("on_bad", as_on_bad(self.on_bad)),
            ("flatten", check_flag(self.flatten, what="flatten")),
        ):
            object.__setattr__(self, name, value)
        if self.values is None and self.keys is None:
            raise ConfigError(
                "decoding has neither values nor keys: say how one of them is encoded"
            )

    def window(self, topics: Sequence[str]) -> Window:
        """Return a window of topics that is decoded in this way."""
        return Window(
            topics, values=self.values, keys=self.keys, on_bad=self.on_bad, flatten=self.flatten
        )


def check_decoding(value: object) -> Decoding | None:
    """Return the value unchanged; raise `ConfigError` for anything else than a `Decoding` or None."""
    if value is not None and not isinstance(value, Decoding):
        raise ConfigError(f"decoding is {shown(value)}: give Decoding(values=..., keys=...)")
    return value
