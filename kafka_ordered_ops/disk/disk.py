"""Files and folders by their paths, each step of which is opened relative to the one before it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from io import BufferedReader, BufferedWriter, FileIO, IOBase
from typing import Final, TypeVar

from kafka_ordered_ops.disk.trust import check_trusted

#: Beside a root, outside of it: no glob over the data reaches what is below.
CONTROL_FOLDER: Final = ".koo"

#: By the umask; and never for everybody, who could put something of theirs there.
_FOLDER_MODE: Final = 0o775
FILE_MODE: Final = 0o666
PRIVATE_MODE: Final = 0o600

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: To go through a folder, one needs no right to list it.
_STEP: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
#: A pipe is not waited for.
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

#: Linux's number: both names change places.
_RENAME_EXCHANGE: Final = 2
#: A kernel or a file system that cannot; some sandboxes answer so of calls that they do not know.
_NO_EXCHANGE: Final = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)

_Seen = TypeVar("_Seen")
_Make = Callable[[int, str], None]


class Disk:
    """The local file system, as far as it is this package's own.

    What is changed below a `CONTROL_FOLDER` must belong to a trusted user: see `check_trusted`. What is only read may be anybody's.

    Args:
        root: a folder of the user's, by whatever links it is reached; no link is followed below it. None: none.
    """

    def __init__(self, root: str | None = None) -> None:
        self._root = root

    # --- looking -----------------------------------------------------------------------------------

    def read(self, path: str, limit_bytes: int, *, trusted: bool = False) -> bytes | None:
        """Return the content of a small file, cut one byte behind the limit; None where there is no regular file."""
        try:
            with self.open(path, trusted=trusted) as file:
                return file.read(limit_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, path: str, *, trusted: bool = False) -> BufferedReader:
        """Return a regular file; raise `FileNotFoundError` where something else has its name."""
        with self._parent(path, trusted=trusted) as (parent, name):
            if not stat.S_ISREG(os.lstat(name, dir_fd=parent).st_mode):
                raise FileNotFoundError(errno.ENOENT, "it is no regular file", path)
            descriptor = os.open(name, _READ, dir_fd=parent)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return open(descriptor, "rb")
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "it is no regular file", path)

    def open_own(self, path: str) -> FileIO:
        """Return a file of this process's user, to be locked; raise an `OSError` for anything else."""
        with self._parent(path, trusted=True) as (parent, name):
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(name, flags, dir_fd=parent)
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            return open(descriptor, "r+b", buffering=0)
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it is no file of this process's user", path)

    def is_mine(self, folder: str) -> bool:
        """Return whether this is a folder of this process's user, and nobody else may write to it."""
        found = self.look(folder)
        return (
            found is not None
            and stat.S_ISDIR(found.st_mode)
            and found.st_uid == os.geteuid()
            and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        )

    def look(self, path: str, *, trusted: bool = False) -> os.stat_result | None:
        """Return what has this name, a link as such; None where nothing has it."""
        try:
            with self._parent(path, trusted=trusted) as (parent, name):
                return os.lstat(name, dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_folder(self, path: str) -> bool:
        """Return whether this is a folder; a link to one is none."""
        found = self.look(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def names(self, folder: str, *, trusted: bool = False) -> list[str]:
        """Return the names in a folder, sorted; none when there is no folder."""
        return sorted(self.seen_in(folder, os.listdir, trusted=trusted) or ())

    def seen_in(
        self, folder: str, look: Callable[[int], _Seen], *, trusted: bool = False
    ) -> _Seen | None:
        """Return what a look finds in the one folder that has this name all the while; None when there is no folder.

        One that is replaced meanwhile is emptied under the eyes of who looks at it.
        """
        while True:
            try:
                with self.held(folder, trusted=trusted) as descriptor:
                    found = _looked(descriptor, look)
                    # While the one is held, no other gets its inode.
                    with self.held(folder, trusted=trusted) as again:
                        if found and os.path.samestat(os.fstat(descriptor), os.fstat(again)):
                            return found[0]
            except (FileNotFoundError, NotADirectoryError):
                return None

    def files_in(self, folder: str, wanted: Callable[[str], bool]) -> dict[str, os.stat_result]:
        """Return what there is of some names in a folder, sorted by name; empty when there is no folder."""

        def look(descriptor: int) -> dict[str, os.stat_result]:
            names = sorted(filter(wanted, os.listdir(descriptor)))
            return {name: os.lstat(name, dir_fd=descriptor) for name in names}

        return self.seen_in(folder, look) or {}

    def below(self, folder: str) -> Iterator[tuple[bool, int, float]]:
        """Yield of a folder and all that is in it: whether it is a file, its size and when it was written, in s."""
        with suppress(FileNotFoundError, NotADirectoryError), self.held(folder) as descriptor:
            for _, _, names, one in os.fwalk(dir_fd=descriptor):
                found = os.fstat(one)
                yield False, found.st_size, found.st_mtime
                for name in names:
                    # Its job may just have moved or removed it.
                    with suppress(FileNotFoundError):
                        found = os.lstat(name, dir_fd=one)
                        yield True, found.st_size, found.st_mtime

    def check(self, path: str) -> None:
        """Raise `PermissionError` unless what there is on the way to a folder of this package's, and it, are trusted."""
        with suppress(FileNotFoundError), self.held(path, trusted=True):
            pass

    # --- changing ----------------------------------------------------------------------------------

    def create(self, path: str, mode: int = FILE_MODE) -> BufferedWriter:
        """Return a file that was not there before; raise `FileExistsError`."""
        with self._parent(path, trusted=True) as (parent, name):
            descriptor = os.open(name, os.O_WRONLY | _NEW, mode, dir_fd=parent)
        return open(descriptor, "wb")

    def append(self, path: str, mode: int = PRIVATE_MODE) -> FileIO:
        """Return a file, made if it is missing, to whose end is written."""
        with self._parent(path, trusted=True) as (parent, name):
            descriptor = _own_file(parent, name, os.O_WRONLY | os.O_APPEND, mode, path)
        return open(descriptor, "ab", buffering=0)

    def write(self, path: str, content: bytes, *, durable: bool = True) -> None:
        """Write a small file so that it is there whole or not at all: without `durable` only while the system runs."""
        with self._parent(path, trusted=True) as (parent, name):
            temporary = f"{name}.tmp"
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=parent)
            try:
                descriptor = os.open(temporary, os.O_WRONLY | _NEW, FILE_MODE, dir_fd=parent)
                with open(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    if durable:
                        os.fsync(descriptor)
                os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            if durable:
                _sync(".", parent)

    def make_folder(self, path: str, *, durable: bool = True) -> None:
        """Make a folder and its parents, where missing: with rights by the umask, and none to write for everybody."""
        start, steps, is_own = self._steps(path)
        if not is_own and not self._is_inside(path):
            _make_users(path)
            return
        _make_users(start)
        with self._through(start, steps, is_own, make=partial(_make, durable=durable)):
            pass

    def make_private(self, path: str) -> None:
        """Make one folder that nobody else may look into; raise `FileExistsError`."""
        with self._parent(path, trusted=True) as (parent, name):
            os.mkdir(name, 0o700, dir_fd=parent)

    def own_private(self, path: str) -> None:
        """Make one folder that nobody else may look into, unless there is one; raise an `OSError` for anything else."""
        with suppress(FileExistsError):
            self.make_private(path)
        with self._parent(path, trusted=True) as (parent, name):
            descriptor = _step(parent, name, path)
        try:
            check_trusted(os.fstat(descriptor), path)
        finally:
            os.close(descriptor)

    def rename(self, source: str, target: str, *, durable: bool = True) -> None:
        """Rename a folder or a file in one step; `target` does not exist."""
        with (
            self._parent(source, trusted=True) as (of, old),
            self._parent(target, trusted=True) as (to, new),
        ):
            os.rename(old, new, src_dir_fd=of, dst_dir_fd=to)
            if durable:
                _sync_both(to, of)

    def exchange(self, one: str, other: str) -> bool:
        """Let two folders change places in one step; False, with nothing changed, where that cannot be done.

        Linux can, on most local file systems.
        """
        exchange = _exchange()
        with (
            self._parent(one, trusted=True) as (of, old),
            self._parent(other, trusted=True) as (to, new),
        ):
            number = errno.ENOSYS if exchange is None else exchange(of, old, to, new)
            if number in _NO_EXCHANGE:
                return False
            if number:
                raise OSError(number, os.strerror(number), one, None, other)
            _sync_both(to, of)
        return True

    def remove(self, path: str, last: Callable[[str], bool] | None = None) -> None:
        """Remove a file, or a folder with all that is in it; links are removed, never followed.

        Args:
            path: what is removed; nothing may be there.
            last: whether a name in the folder goes after the others.
        """
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            self._parent(path, trusted=True) as (parent, name),
        ):
            remove_in(parent, name, last)

    def remove_if_empty(self, folder: str) -> None:
        """Remove a folder that holds nothing."""
        with suppress(OSError), self._parent(folder, trusted=True) as (parent, name):
            os.rmdir(name, dir_fd=parent)

    def settle(self, folder: str, wanted: Callable[[str], bool], *, names: bool = True) -> None:
        """Make durable what others wrote below a folder in files of wanted names; with `names`, also its own names."""
        with self.held(folder, trusted=True) as descriptor:
            for path, _, files, one in os.fwalk(topdown=False, dir_fd=descriptor):
                for name in filter(wanted, files):
                    _sync(name, one)
                if names or path != ".":
                    os.fsync(one)

    def sync(self, folder: str) -> None:
        """Make the names in a folder durable; of one that is gone, there are none."""
        with suppress(FileNotFoundError), self.held(folder, trusted=True) as descriptor:
            os.fsync(descriptor)

    def lock(self, path: str) -> FileIO:
        """Return a file, made if it is missing, for `try_lock`; closing it frees the lock.

        Only who may write beside it can open it: who could read it could lock it, and stop everybody.
        """
        with self._parent(path, trusted=True) as (parent, name):
            is_shared = os.fstat(parent).st_mode & stat.S_IWGRP
            mode = 0o660 if is_shared else PRIVATE_MODE
            descriptor = _own_file(parent, name, os.O_RDWR, mode, path)
        return open(descriptor, "r+b", buffering=0)

    @contextmanager
    def held(self, folder: str, *, trusted: bool = False) -> Iterator[int]:
        """Yield a descriptor of a folder."""
        start, steps, is_own = self._steps(folder)
        if not is_own and not self._is_inside(folder):
            # The user's own names for places may be links.
            start, steps = folder, []
        with self._through(start, steps, trusted and is_own) as descriptor:
            listed = os.open(".", _FOLDER, dir_fd=descriptor)
        try:
            yield listed
        finally:
            os.close(listed)

    # --- the way to a name -------------------------------------------------------------------------

    @contextmanager
    def _parent(self, path: str, *, trusted: bool) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the folder that a path is in, and its name there."""
        start, steps, is_own = self._steps(path)
        *above, name = steps
        with self._through(start, above, trusted and is_own) as parent:
            try:
                yield parent, name
            except OSError as error:
                # The whole path, for whoever reads it.
                if error.filename == name:
                    error.filename = path
                if error.filename2 == name:
                    error.filename2 = path
                raise

    def _is_inside(self, path: str) -> bool:
        return self._root is not None and path.startswith(f"{self._root}/")

    def _steps(self, path: str) -> tuple[str, list[str], bool]:
        """Return the user's folder that a path begins with, the names below it, and whether these are this package's."""
        parts = path.split("/")
        if CONTROL_FOLDER in parts:
            at = parts.index(CONTROL_FOLDER)
            return "/".join(parts[:at]) or "/", parts[at:], True
        if self._root is not None and self._is_inside(path):
            return self._root, path[len(self._root) + 1 :].split("/"), False
        parent, name = os.path.split(path)
        return parent or ".", [name], False

    @contextmanager
    def _through(
        self, start: str, steps: list[str], check: bool, *, make: _Make | None = None
    ) -> Iterator[int]:
        """Yield a descriptor of a folder, reached step by step; each may be made, and is checked."""
        descriptor = os.open(start, _STEP)
        try:
            for number, name in enumerate(steps):
                where = "/".join([start.rstrip("/"), *steps[: number + 1]])
                if make is not None:
                    make(descriptor, name)
                below = _step(descriptor, name, where)
                os.close(descriptor)
                descriptor = below
                if check:
                    check_trusted(os.fstat(descriptor), where)
            yield descriptor
        finally:
            os.close(descriptor)


def _looked(descriptor: int, look: Callable[[int], _Seen]) -> tuple[_Seen] | None:
    """Return what a look finds; None when what it looked at went meanwhile: the next look knows."""
    try:
        return (look(descriptor),)
    except (FileNotFoundError, NotADirectoryError):
        return None


def try_lock(file: IOBase) -> bool:
    """Lock a file for as long as it is open; return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_in(parent: int, name: str, last: Callable[[str], bool] | None = None) -> None:
    """Remove what has a name in a folder that is held; see `Disk.remove`."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    try:
        for inner in sorted(os.listdir(descriptor), key=last):
            if stat.S_ISDIR(os.lstat(inner, dir_fd=descriptor).st_mode):
                shutil.rmtree(inner, dir_fd=descriptor)
            else:
                os.unlink(inner, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=parent)


def _step(parent: int, name: str, where: str) -> int:
    """Return a descriptor of a folder in another one."""
    try:
        return os.open(name, _STEP | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            told = "it is a link or a file, and this package keeps its own folder there"
            raise NotADirectoryError(errno.ENOTDIR, told, where) from None
        error.filename = where
        raise


def _make(parent: int, name: str, *, durable: bool = True) -> None:
    """Make a folder in another one, unless there is something of its name."""
    try:
        os.mkdir(name, _FOLDER_MODE, dir_fd=parent)
    except FileExistsError:
        return
    above = os.fstat(parent).st_mode
    if name == CONTROL_FOLDER and above & stat.S_ISGID and above & stat.S_IWGRP:
        # A folder for a group: each of its users has roots there.
        _let_group_write(parent, name)
    if durable:
        _sync(".", parent)


def _make_users(path: str) -> None:
    """Make a folder of the user's and its parents, where missing; their names may be links."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        above, name = os.path.split(folder)
        descriptor = os.open(above, _STEP)
        try:
            _make(descriptor, name)
        finally:
            os.close(descriptor)
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)


def _let_group_write(parent: int, name: str) -> None:
    descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) | stat.S_IRWXG)
    finally:
        os.close(descriptor)


def _own_file(parent: int, name: str, access: int, mode: int, path: str) -> int:
    """Return a descriptor of a regular file that is trusted, made if it is missing."""
    flags = access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        with suppress(FileNotFoundError):
            descriptor = os.open(name, flags, dir_fd=parent)
            break
        with suppress(FileExistsError):
            descriptor = os.open(name, access | _NEW, mode, dir_fd=parent)
            # Whatever the umask.
            os.fchmod(descriptor, mode)
            return descriptor
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FileExistsError(errno.EEXIST, "it is in the way: it is no regular file", path)
        check_trusted(found, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@cache
def _exchange() -> Callable[[int, str, int, str], int] | None:
    """Return what exchanges two names in folders and returns the number of its error, or 0; None where there is no such call."""
    try:
        # Some builds of Python have no ctypes, and some C libraries no such function.
        import ctypes

        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, AttributeError, OSError, TypeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def exchange(of: int, one: str, to: int, other: str) -> int:
        names = (of, os.fsencode(one), to, os.fsencode(other))
        return ctypes.get_errno() if call(*names, _RENAME_EXCHANGE) else 0

    return exchange


def _sync_both(to: int, of: int) -> None:
    """Make a rename durable."""
    # The new name before the old one: a folder that shows up twice after a crash is no loss.
    _sync(".", to)
    if not os.path.samestat(os.fstat(to), os.fstat(of)):
        _sync(".", of)


def _sync(name: str, parent: int) -> None:
    mode = os.lstat(name, dir_fd=parent).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return
    descriptor = os.open(name, _READ, dir_fd=parent)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
