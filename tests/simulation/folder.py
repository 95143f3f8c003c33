"""A folder of outputs in a real file system, whose commands take turns; a process may die before each of them.

`disk.disk` is the package's only access to local files: its module `os` is replaced, and what goes around it. A change
takes its turn, and so does a look whose answer may be old by the next one: a list of names, and a file that is read.
What a crash of the whole system would lose is not simulated.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Final

import pytest

from kafka_ordered_ops.disk import disk
from kafka_ordered_ops.disk.disk import CONTROL_FOLDER
from kafka_ordered_ops.output.roots import leftovers
from tests.simulation.scheduler import Scheduler

#: In memory, where the machine has such a place.
_PLACE: Final = "/dev/shm" if os.path.isdir("/dev/shm") else None

#: How much more often a process dies before a name changes, which is where it leaves things half done.
_DEADLY: Final = 5

_exchange: Final = disk._exchange


@dataclass(frozen=True)
class Shown:
    """A window's folder, as readers find it: the contents of its files, and other names in it."""

    contents: tuple[Any, ...]
    others: frozenset[str]


class SimulatedFolder:
    """The folder that the roots of a history are in. A context manager."""

    def __init__(self, scheduler: Scheduler, *, exchanges: bool) -> None:
        self._scheduler = scheduler
        #: Whether the file system can exchange two folders.
        self.exchanges = exchanges
        #: How many changes there were.
        self.changes = 0
        self.path = ""
        #: When files and folders were changed, on the clock of the history, by their inodes.
        self.times_s: dict[int, float] = {}
        self._temporary = tempfile.TemporaryDirectory(prefix="koo-simulated-", dir=_PLACE)

    def __enter__(self) -> SimulatedFolder:
        self.path = self._temporary.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._temporary.__exit__(kind, error, traceback)

    # --- for the oracle ---------------------------------------------------------------------------

    def shown(self, root: str) -> dict[str, Shown]:
        """Return what readers of a root find, by the names of its folders."""
        names = os.listdir(root) if os.path.isdir(root) else []
        return {name: self._shown(f"{root}/{name}") for name in sorted(names)}

    def hidden(self, root: str) -> set[str]:
        """Return the names of the files beside a root that are not of all its windows, and of folders in which some may be."""
        control = Path(root).parent / CONTROL_FOLDER / Path(root).name
        of_all = {"owner.json", "groups.json", "stage/.lock"}
        names = {
            str(path.relative_to(control))
            for path in control.rglob("*")
            # A process may die before it removes the folder of a window, or before a temporary file has its name.
            if not (path.is_dir() and path.parent.parent == control) and path.suffix != ".tmp"
        }
        return names - {"stage", "windows", "swap"} - of_all

    @staticmethod
    def _shown(folder: str) -> Shown:
        names = sorted(os.listdir(folder))
        data = [name for name in names if not name.startswith((".", "_"))]
        contents = tuple(json.loads(Path(folder, name).read_bytes()) for name in data)
        return Shown(contents, frozenset(names) - frozenset(data))

    # --- commands ---------------------------------------------------------------------------------

    def command(self, what: str, name: str, parent: int | None, *, deadly: int = 1) -> None:
        """Come to a command about a name in a folder that is open."""
        self._scheduler.command(f"{what} {self._relative(name, parent)}", deadly=deadly)

    def changed(self, *places: tuple[int, str]) -> None:
        """Take down that names in open folders have changed."""
        self.changes += 1
        now_s = self._scheduler.now_s
        for parent, name in places:
            self.times_s[os.fstat(parent).st_ino] = now_s
            with suppress(FileNotFoundError):
                self.times_s[os.lstat(name, dir_fd=parent).st_ino] = now_s

    def now(self) -> datetime:
        """Return the time of the history."""
        return datetime.fromtimestamp(self._scheduler.now_s, UTC)

    def _relative(self, name: str, parent: int | None) -> str:
        folder = "" if parent is None else os.readlink(f"/proc/self/fd/{parent}")
        return f"{folder}/{name}".removeprefix(f"{self.path}/")


#: Returns the folder of the running history, if it has one.
Running = Callable[[], SimulatedFolder | None]


class _Os:
    """The module `os`, for `disk.disk` alone."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Open a file: it is created, read or locked; or a folder, which is a step of a path."""
        folder = self._running()
        if folder is None or dir_fd is None or flags & os.O_DIRECTORY:
            return os.open(path, flags, mode, dir_fd=dir_fd)
        creates = flags & os.O_CREAT
        folder.command("create" if creates else "open", path, dir_fd)
        descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
        if creates:
            folder.changed((dir_fd, path))
        return descriptor

    def listdir(self, path: int) -> list[str]:
        """List the names in a folder, in the same order on each file system."""
        if (folder := self._running()) is not None:
            folder.command("list", ".", path)
        return sorted(os.listdir(path))

    def fwalk(self, *args: Any, **options: Any) -> Iterator[tuple[str, list[str], list[str], int]]:
        """Walk through folders, with names in the same order on each file system."""
        for path, folders, names, descriptor in os.fwalk(*args, **options):
            yield path, folders, sorted(names), descriptor

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int) -> None:
        """Make a folder."""
        self._do("make", [(dir_fd, path)], lambda: os.mkdir(path, mode, dir_fd=dir_fd))

    def unlink(self, path: str, *, dir_fd: int) -> None:
        """Remove a file."""
        self._do("unlink", [(dir_fd, path)], lambda: os.unlink(path, dir_fd=dir_fd))

    def rmdir(self, path: str, *, dir_fd: int) -> None:
        """Remove a folder."""
        self._do("remove", [(dir_fd, path)], lambda: os.rmdir(path, dir_fd=dir_fd))

    def rename(self, old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        """Rename a file or a folder."""
        places = [(src_dir_fd, old), (dst_dir_fd, new)]
        options = {"src_dir_fd": src_dir_fd, "dst_dir_fd": dst_dir_fd}
        self._do("rename", places, lambda: os.rename(old, new, **options))

    replace = rename

    def fsync(self, descriptor: int) -> None:
        """Do nothing: the system does not crash."""

    def _do(self, what: str, places: list[tuple[int, str]], change: Callable[[], None]) -> None:
        folder = self._running()
        if folder is None:
            change()
            return
        parent, name = places[-1]
        if len(places) == 1:
            folder.command(what, name, parent)
        else:
            folder.command(f"{what} {places[0][1]} to", name, parent, deadly=_DEADLY)
        change()
        folder.changed(*places)


def put_in(patch: pytest.MonkeyPatch, running: Running) -> None:
    """Replace what `disk.disk` does its commands with."""

    def flock(file: Any, operation: int) -> None:
        if (folder := running()) is not None:
            folder.command("lock", "", file.fileno())
        fcntl.flock(file, operation)

    def exchange() -> Callable[[int, str, int, str], int] | None:
        folder, call = running(), _exchange()
        if folder is None or call is None or not folder.exchanges:
            return call if folder is None else None

        def exchanged(of: int, old: str, to: int, new: str) -> int:
            folder.command(f"exchange {old} with", new, to, deadly=_DEADLY)
            number = call(of, old, to, new)
            folder.changed((of, old), (to, new))
            return number

        return exchanged

    def below(self: disk.Disk, path: str) -> Iterator[tuple[bool, int, float]]:
        folder = running()
        if folder is None:
            raise AssertionError("a folder is measured outside of a history")
        for place in [Path(path), *sorted(Path(path).rglob("*"))]:
            status = place.lstat()
            yield place.is_file(), status.st_size, folder.times_s[status.st_ino]

    def now(zone: tzinfo) -> datetime:
        folder = running()
        return datetime.now(zone) if folder is None else folder.now()

    patch.setattr(disk, "os", _Os(running))
    constants = {name: getattr(fcntl, name) for name in ("LOCK_EX", "LOCK_NB")}
    patch.setattr(disk, "fcntl", SimpleNamespace(flock=flock, **constants))
    removal = SimpleNamespace(rmtree=lambda name, dir_fd: disk.remove_in(dir_fd, name))
    patch.setattr(disk, "shutil", removal)
    patch.setattr(disk, "_exchange", exchange)
    patch.setattr(disk.Disk, "below", below)
    # Stages have the age that they have on the clock of the history.
    patch.setattr(leftovers, "datetime", SimpleNamespace(now=now))
