"""The file system operations that publishing needs, for a local file system."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final
from urllib.parse import unquote, urlsplit

from kafka_ordered_ops.core.arguments import path_text, shown
from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.core.strict_json import JsonError, loads
from kafka_ordered_ops.disk.disk import CONTROL_FOLDER, Disk, try_lock
from kafka_ordered_ops.output.address import (
    SCHEME,
    is_in_hdfs,
    is_in_store,
    root_in_hdfs,
    root_in_store,
)
from kafka_ordered_ops.output.ports import Files, Folders

if TYPE_CHECKING:
    import pyarrow as pa

#: Publishing holds the lock for a few renames and deletes; a longer wait means that another process hangs.
LOCK_WAIT_S: Final = 60.0
#: The number of windows that are published under one lock: seconds on a slow disk.
_WINDOWS_TOGETHER: Final = 50
_LOCK_POLL_S: Final = 0.05
LOCK_NAME: Final = ".lock"

#: Written last into a stage: a stage with a marker is complete.
MARKER_NAME: Final = "_window.json"

#: An empty folder in a published one, whose name leads to the marker. Readers of files ignore it.
TAG_PREFIX: Final = ".koo-"

#: A marker has a few hundred bytes; a larger file is not ours.
MARKER_BYTES_MAX: Final = 64 * 1024

#: In a draft while it is written, and in a stage while it is removed. Spark and Hive do not read them as data.
UNDER_WAY_NAME: Final = "_under_way"
GOING_NAME: Final = "_going"

#: A folder with one of these was made here. They are removed last, so that an interrupted removal can go on.
_OWN_NAMES: Final = (MARKER_NAME, UNDER_WAY_NAME, GOING_NAME)
_TAG: Final = re.compile(re.escape(TAG_PREFIX) + r"[0-9a-f]{16}")

#: Linux limits paths to 4,096 bytes, and the names of a window, a stage and a file follow the root's.
_ROOT_BYTES_MAX: Final = 3_072


class LocalFiles:
    """A local or mounted POSIX file system, as publishing needs it. A change is durable when the call returns.

    Args:
        root: the root of the outputs, below which no link is followed; None allows any path.
    """

    windows_together = _WINDOWS_TOGETHER

    def __init__(self, root: str | None = None) -> None:
        self._disk = Disk(root)
        #: In the block of `together`: the folders with new names, each once.
        self._renamed_into: dict[str, None] | None = None

    def read(self, path: str, *, limit_bytes: int = MARKER_BYTES_MAX) -> bytes | None:
        """Return the content of a small file, cut one byte past the limit; None if there is no file.

        Only regular files count: a link is not followed, and a pipe is not waited for.
        """
        return self._disk.read(path, limit_bytes)

    def open(self, path: str) -> BinaryIO:
        """Return a data file for random access."""
        return self._disk.open(path)

    footer = open

    @contextmanager
    def sink(self, path: str) -> Iterator[pa.NativeFile]:
        """Take a new file's content in the block; durable once its folder has been settled."""
        import pyarrow as pa

        # Closed in any case: an open file keeps its disk space even after its removal.
        with self._disk.create(path) as file, pa.PythonFile(file, mode="w") as sink:
            yield sink

    def write(self, path: str, content: bytes, *, durable: bool = True) -> None:
        """Write a small file atomically."""
        self._disk.write(path, content, durable=durable)

    def create(self, path: str, content: bytes) -> bool:
        """Write a small file unless there is one; return whether it was written. The caller holds the root's lock."""
        if self.exists(path):
            return False
        self.write(path, content)
        return True

    def exists(self, path: str) -> bool:
        """Return whether anything has this name, a dangling link included."""
        return self._disk.look(path) is not None

    def is_folder(self, path: str) -> bool:
        """Return whether this is a folder; a link to a folder is not one."""
        return self._disk.is_folder(path)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; empty if there is no folder."""
        return self._disk.names(folder)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the data files in a folder, with their sizes.

        Raises:
            SinkError: something with the name of a data file is not a file.
        """
        entries = self._disk.files_in(folder, is_data)
        for name, status in entries.items():
            if not stat.S_ISREG(status.st_mode):
                raise foreign_file_error(f"{folder}/{name}")
        return {name: status.st_size for name, status in entries.items()}

    def make_folder(self, path: str, *, durable: bool = True) -> None:
        """Make a folder and its parents, where missing."""
        self._disk.make_folder(path, durable=durable)

    def rename(self, source: str, target: str) -> None:
        """Rename a folder or a file in one step; `target` does not exist."""
        self._disk.rename(source, target, durable=self._renamed_into is None)
        if self._renamed_into is not None:
            self._renamed_into[os.path.dirname(target)] = None

    @contextmanager
    def together(self, *folders: str) -> Iterator[None]:
        """Make the new names of what the block renames durable at its end, and the names in `folders` after them."""
        self._renamed_into = {}
        try:
            yield
        finally:
            renamed_into, self._renamed_into = self._renamed_into, None
            for folder in dict.fromkeys((*renamed_into, *folders)):
                self._disk.sync(folder)

    def exchange(self, first: str, second: str) -> bool:
        """Exchange two folders in one step; return False, with nothing changed, where that is not supported."""
        return self._disk.exchange(first, second)

    def move(self, source: str, target: str) -> None:
        """Move a file in one step; durable once the target's folder has been settled."""
        self._disk.rename(source, target, durable=False)

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        """Move files, each in one step."""
        for source, target in moves:
            self.move(source, target)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; links are removed, never followed."""
        self._disk.remove(path, last=_is_own_name)

    def remove_if_empty(self, folder: str) -> None:
        """Remove a folder that holds nothing."""
        self._disk.remove_if_empty(folder)

    def below(self, folder: str) -> Iterator[tuple[bool, int, float]]:
        """Yield, for a folder and everything in it, whether it is a file, its size, and its modification time in s."""
        return self._disk.below(folder)

    def settle(self, folder: str, *, names: bool = True) -> None:
        """Make durable the data that others wrote below a folder; without `names`, not the names in the folder itself."""
        self._disk.settle(folder, is_data, names=names)

    @contextmanager
    def locked(self, folder: str, window_folder: str | None = None) -> Iterator[None]:
        """Keep other publishers of the same root out, across processes; the system frees a dead process's lock.

        One lock covers all windows, because its file must stay and a window's folder is removed.

        Raises:
            SinkError: another process did not release the lock in time, or `folder` is not a folder.
        """
        check_own_folder(self, folder)
        self.make_folder(folder)
        path = f"{folder}/{LOCK_NAME}"
        deadline = time.monotonic() + LOCK_WAIT_S
        # The file stays: deleting a lock that others may have open lets two of them in.
        with self._disk.lock(path) as file:
            while not try_lock(file):
                if time.monotonic() >= deadline:
                    raise SinkError(
                        f"another process has held {path} for {LOCK_WAIT_S:g} s: it is publishing "
                        "below the same folder, or hangs. Run the same window again when that process is done"
                    )
                time.sleep(_LOCK_POLL_S)
            yield


def normal_root(root: str | os.PathLike[str]) -> str:
    """Return the normalized name of a root folder: an absolute path, or a URI with one scheme for each store.

    Another process, with another working directory, may publish the window.

    Raises:
        ConfigError: an empty or invalid name, a bare bucket, or a ``file:`` URI of another machine.
    """
    text = path_text(root)
    if text is None:
        raise ConfigError(
            f"the root folder for a window's output is {shown(root)}: give text or a Path"
        )
    if not text.strip():
        raise ConfigError("the root folder for a window's output is empty: name a folder")
    if is_in_store(text):
        return root_in_store(text)
    if is_in_hdfs(text):
        return root_in_hdfs(text)
    local = _local_root(text)
    try:
        local.encode()
    except UnicodeEncodeError:
        local = "\0"
    if "\0" in local:
        raise ConfigError(
            f"{text!r} cannot be the root folder for a window's output: its name has a NUL, or bytes that are not "
            "UTF-8, which the ledger and Parquet readers cannot hold. Name another folder"
        )
    if os.path.basename(local) in ("", CONTROL_FOLDER):
        raise ConfigError(
            f"{local!r} cannot be the root folder for a window's output: what readers must not see is stored beside the "
            f"root, in {CONTROL_FOLDER}. Name a folder below it"
        )
    if len(local.encode()) > _ROOT_BYTES_MAX:
        raise ConfigError(
            f"the root folder for a window's output has a name of {len(local.encode()):,} bytes, and at most "
            f"{_ROOT_BYTES_MAX:,} are allowed: name one nearer to the file system's root"
        )
    return local


def _local_root(text: str) -> str:
    scheme = SCHEME.match(text)
    if scheme is None:
        return os.path.abspath(text)
    if scheme[1].lower() != "file":
        return text.rstrip("/")
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigError(
            f"{text!r} is not a local folder: write it as file:///folder or as a plain path"
        )
    return os.path.abspath(unquote(parts.path, errors="surrogateescape"))


def marker_path(folder: str) -> str:
    """Return where a folder's marker is."""
    return f"{folder}/{MARKER_NAME}"


def tag_in(files: Folders, folder: str) -> str | None:
    """Return the tag of a folder that is ready for readers; None for any other folder."""
    before: list[str] = []
    while files.is_folder(folder):
        tags = list(filter(_TAG.fullmatch, files.names(folder)))
        for name in tags:
            if files.is_folder(f"{folder}/{name}"):
                return name.removeprefix(TAG_PREFIX)
        # The window may have been replaced in the meantime.
        if tags == before:
            return None
        before = tags
    return None


def check_own_folder(files: Folders, path: str) -> None:
    """Raise `SinkError` when a place for a folder of this package is taken by a file or a link.

    The target of a link is not ours: it is neither written nor deleted.
    """
    if files.exists(path) and not files.is_folder(path):
        raise SinkError(
            f"{path} is in the way: it is a link or a file, and this package keeps its own folder there. "
            "Move it away, then run the window again; nothing was changed"
        )


def is_own_folder(files: Folders, path: str) -> bool:
    """Return whether this package made the folder: it has a marker or a flag, or is empty."""
    if not files.is_folder(path):
        return False
    flags = (UNDER_WAY_NAME, GOING_NAME)
    if not files.names(path) or any(files.read(f"{path}/{name}") is not None for name in flags):
        return True
    if tag_in(files, path) is not None:
        return True
    # Markers are written whole or not at all.
    marker = files.read(marker_path(path))
    try:
        value = None if marker is None else loads(marker, limit_bytes=MARKER_BYTES_MAX)
    except JsonError:
        return False
    return isinstance(value, dict) and "window_id" in value


def remove_stage(files: Folders, folder: str) -> None:
    """Remove a folder that may be complete; from the first step on, it is not complete any more.

    A link in its place is removed itself: its target stays.
    """
    if files.is_folder(folder) and files.exists(marker := marker_path(folder)):
        files.rename(marker, f"{folder}/{GOING_NAME}")
    files.remove(folder)


def _is_own_name(name: str) -> bool:
    return name in _OWN_NAMES or _TAG.fullmatch(name) is not None


def is_data(name: str) -> bool:
    """Return whether a file is part of the output, by the rule of Spark and Hive."""
    return not name.startswith((".", "_"))


def foreign_file_error(path: str) -> SinkError:
    """Return the error of something that has the name of a data file and is not a file."""
    return SinkError(f"{path} is not a file of this package: remove it, then run the window again")


def data_names(files: Files, folder: str) -> list[str]:
    """Return the names of an output's files in the order of its rows."""
    return in_row_order(filter(is_data, files.names(folder)))


def in_row_order(names: Iterable[str]) -> list[str]:
    """Sort the names of an output's files by the rows in them."""
    # The numbers in a name: the part, the task, and the file of the task. Large numbers have more digits than their
    # padding; the rest of the name is the same for all files of one folder.
    return sorted(names, key=lambda name: [int(digits) for digits in re.findall(r"\d+", name)])


#: A file's name as Spark writes it: with its task, and with its number among the task's files.
_OF_TASK: Final = re.compile(r"(part-)(\d+)(-.*-c)(\d+)(\..*)")


def in_name_order(names: Sequence[str]) -> dict[str, str]:
    """Return new names for files whose names do not sort in the order of their rows.

    Spark pads the numbers to five and three digits; larger numbers have more.
    """
    groups_of = {name: match.groups() for name in names if (match := _OF_TASK.fullmatch(name))}
    task, file = (max((len(groups[n]) for groups in groups_of.values()), default=0) for n in (1, 3))
    wider = {
        name: f"{part}{int(of_task):0{task}d}{run}{int(number):0{file}d}{kind}"
        for name, (part, of_task, run, number, kind) in groups_of.items()
    }
    return {name: new for name, new in wider.items() if new != name}


@contextmanager
def as_sink_error(what: str) -> Iterator[None]:
    """Raise a file system's error as a `SinkError` that names the operation."""
    try:
        yield
    except OSError as error:
        raise SinkError(
            f"{what}: {error}. Nothing is lost: fix the cause and run the window again"
        ) from error
