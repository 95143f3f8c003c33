"""Records of which some cannot be decoded, and what is seen of them afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ordered_ops import Earliest, OrderedWindows, Window
from kafka_ordered_ops.decoding import DeadLetter, Json
from tests.support.stages import stages_of
from tests.support.windows_support import at
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


def asked(world: World, before: float = 100, **more: Any) -> Window:
    """Return the window, with its bad records beside the output."""
    return window(world, before, **({"on_bad": "dead_letter"} | more))


def lake_of(tmp_path: Path) -> Path:
    """Return where the output is."""
    return tmp_path / "lake" / "orders"


def staged(root: Path) -> list[str]:
    """Return the windows that have stages."""
    return sorted(path.name for path in stages_of(root).iterdir() if path.is_dir())


def ids(folder: Path) -> list[Any]:
    """The records of all windows that readers see."""
    files = sorted(folder.glob("*/*.parquet"))
    return [
        value and value["id"]
        for file in files
        for value in pq.read_table(file)["value"].to_pylist()
    ]


def bad_rows(folder: Path) -> list[dict[str, Any]]:
    """The bad records of all windows that readers see beside a folder, by partition and offset."""
    root = folder.with_name(f"{folder.name}__bad")
    tables = [pq.ParquetFile(path).read() for path in sorted(root.glob("*/*.parquet"))]
    rows = [row for table in tables for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def bad_places(folder: Path) -> list[tuple[int, int]]:
    """Where they come from."""
    return [(row["partition"], row["offset"]) for row in bad_rows(folder)]


#: Those of `fill`.
BESIDE = [(0, 1), (0, 2), (0, 3)]


#: Delivers one window in a process that kills itself at the nth commit_transaction, or at the nth publication to a folder.
VICTIM = """
import json, os, signal, sys
from datetime import datetime
import kafka_ordered_ops.kafka.ledger.transaction as transaction
from kafka_ordered_ops import Earliest, OrderedWindows, Table, Window

from kafka_ordered_ops.output.renaming import RenamePublisher

bootstrap, group, topic, on_bad, cutoff, output, when, fatal, session, step = sys.argv[1:]
calls = 0

def fatal_step(work, flush=lambda: None):
    global calls
    calls += 1
    if calls == int(fatal) and when == "before":
        flush()
        os.kill(os.getpid(), signal.SIGKILL)
    work()
    if calls == int(fatal):
        os.kill(os.getpid(), signal.SIGKILL)

class Producer(transaction.Producer):
    def commit_transaction(self, *args):
        commit = super().commit_transaction
        fatal_step(lambda: commit(*args), self.flush)

publish = RenamePublisher.publish
if step == "commit":
    transaction.Producer = Producer
else:
    RenamePublisher.publish = lambda self, outputs: fatal_step(lambda: publish(self, outputs))
windows = OrderedWindows({"bootstrap.servers": bootstrap}, group)
window = Window(
    [topic], datetime.fromisoformat(cutoff), starting_offsets=Earliest(),
    values="json:id int64", keys="json:id int64", on_bad=on_bad,
)
spark = None
if session != "null":
    from kafka_ordered_ops.spark.session import local_session
    spark = local_session("victim", cores=1, memory="1g", **json.loads(session))
if output.startswith("delta."):
    output = Table(output)
windows.run(window, output, spark=spark, window_id="w")
raise SystemExit("still alive")
"""


def die_at_commit(
    world: World,
    output: Path | str,
    when: str,
    fatal: int,
    session: dict[str, Any] | None = None,
    *,
    on_bad: str | None = None,
    step: str = "commit",
) -> None:
    """Runs the window in such a process, with a session of Spark if there are arguments for one."""
    names = [world.named(name) for name in ("g", "orders")]
    names.append(on_bad or f"dead_letter:{world.named('bad')}")
    more = [at(100).isoformat(), str(output), when, str(fatal), json.dumps(session), step]
    run = subprocess.run(
        [sys.executable, "-c", VICTIM, world.settings.bootstrap_servers, *names, *more],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
