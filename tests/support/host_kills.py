"""Hosts' tasks that end what they work with by kill -9, themselves or their store; and what readers find in the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.objects.store import Store, open_store
from kafka_ordered_ops.output.publisher import files_of

#: In the folder of outputs: the process of the store that restarts whenever it dies.
STORE_PID: Final = "store.pid"


class Kill(NamedTuple):
    """Who dies, and before which of its task's writes to the store."""

    victim: str
    number: int
    #: Of the probe's writes; else of those that follow.
    in_probe: bool = False


#: By the hour of the window. A task writes a draft's mark, its file, its seal, and the stage; after Kafka's commit it
#: takes the manifest, removes older copies, makes its own, names them in the manifest, and removes what is left.
KILLS: Final[Mapping[int, Kill]] = {
    0: Kill("task", 3, in_probe=True),
    1: Kill("task", 2),
    2: Kill("task", 4),
    3: Kill("task", 5),
    4: Kill("task", 7),
    5: Kill("task", 8),
    6: Kill("store", 3),
    7: Kill("store", 8),
}

_WRITES: Final = ("put", "put_if", "copy", "delete")


def kill_once(signals: Path, hour: int, *, victim: str = "task", pid: int | None = None) -> None:
    """Send the kill of this hour, unless an earlier attempt has.

    Args:
        signals: where a file for each hour says who was killed.
        hour: of the window.
        victim: its name.
        pid: its process; None: the store's, or this one.
    """
    told = signals / f"{hour}.killed"
    if told.exists():
        return
    signals.mkdir(parents=True, exist_ok=True)
    told.write_text(victim)
    if pid is None:
        pid = int((signals.parent / STORE_PID).read_text()) if victim == "store" else os.getpid()
    os.kill(pid, signal.SIGKILL)


def killing_between_writes(signals: Path, hour: int) -> None:
    """Let this process send the kill of an hour between two writes to a store."""
    victim, left, in_probe = KILLS[hour]

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def one(self: Store, *arguments: Any) -> Any:
            nonlocal left
            left -= ("/probe/" in str(arguments[0])) is in_probe
            if left == 0:
                kill_once(signals, hour, victim=victim)
            return original(self, *arguments)

        return one

    for name in _WRITES:
        setattr(Store, name, counted(getattr(Store, name)))


def killed(signals: Path) -> dict[int, str]:
    """Who was killed, by the hour of the window."""
    return {int(one.stem): one.read_text() for one in signals.glob("*.killed")}


def check_exact(root: str, options: Mapping[str, Any], wanted: list[tuple[int, int]]) -> None:
    """Readers of the manifests and of the prefix find these records once and in the order of time, and nothing is left.

    Args:
        root: of windows whose ids sort by time.
        options: of the store.
        wanted: partitions and offsets, sorted.
    """
    store = open_store(root, options)
    for paths in (
        files(root, storage_options=options),
        [f"{root}/{name}" for name in store.listed(root)],
    ):
        rows: list[tuple[Any, int, int]] = []
        for path in paths:
            with files_of(root, options).open(path) as file:
                table = pq.read_table(file, columns=["timestamp", "partition", "offset"])
            rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
        assert rows == sorted(rows)
        assert sorted((partition, offset) for _, partition, offset in rows) == wanted
    assert left_over(root, options) == []


def left_over(root: str, options: Mapping[str, Any]) -> list[str]:
    """What is in the store beside windows that readers see, and their manifests."""
    store, (parent, _, name) = open_store(root, options), root.rpartition("/")
    control = [one for one in store.listed(f"{parent}/.koo/{name}") if "windows/" not in one]
    named = {path.removeprefix(f"{root}/") for path in files(root, storage_options=options)}
    return [*control, *(one for one in store.listed(root) if one not in named)]
