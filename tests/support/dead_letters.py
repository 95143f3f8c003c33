"""Records of which some cannot be decoded, and what is seen of them afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ordered_ops import Earliest, OrderedWindows, Window
from kafka_ordered_ops.decoding import DeadLetter, Json
from tests.support.worlds import World

JSON = Json(pa.schema([("id", pa.int64())]))
CONTENT: list[Any] = [
    (1, b'{"id": 1}', b'{"id": 1}', ()),
    (2, b'{"id": 2}', b"{", (("h", b"1"), ("h", None), ("", b""))),
    (3, b"nothing", b'{"id": 3}', ()),
    (4, b"nothing", b"nothing", ()),
    (5, None, None, ()),
    (6, b'{"id": 6}', b'{"id": 6}', ()),
]


def fill(world: World) -> None:
    """Writes three good records and three bad ones, and makes the topic for those."""
    world.create("orders", 2)
    world.create("bad")
    world.write_content("orders", 0, CONTENT)
    world.write_content("orders", 1, CONTENT[:1])


def window(world: World, before: float = 100, **more: Any) -> Window:
    """The window of a time, whose bad records go to the topic."""
    options: dict[str, Any] = {"starting_offsets": Earliest(), "values": JSON, "keys": JSON}
    options |= {"on_bad": DeadLetter(world.named("bad"))}
    return world.window(before, **(options | more))


def service(world: World) -> OrderedWindows:
    """The service of the script's group."""
    return OrderedWindows(world.settings, world.named("g"))


def places(world: World) -> list[tuple[bytes, bytes]]:
    """Where the dead letters come from, as they say themselves."""
    facts = [
        {header["key"]: header["value"] for header in row["headers"]} for row in world.stored("bad")
    ]
    return sorted((fact["koo.partition"], fact["koo.offset"]) for fact in facts)


BAD = [(b"0", b"1"), (b"0", b"2"), (b"0", b"3")]


def ids(folder: Path) -> list[Any]:
    """The records of all windows that readers see."""
    files = sorted(folder.glob("*/*.parquet"))
    return [
        value and value["id"]
        for file in files
        for value in pq.read_table(file)["value"].to_pylist()
    ]
