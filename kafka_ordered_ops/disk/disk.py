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

#: Beside a root, not inside it: a glob over the data does not match its files.
CONTROL_FOLDER: Final = ".koo"

#: Reduced by the umask. Never writable for all users: they could plant files there.
_FOLDER_MODE: Final = 0o775
FILE_MODE: Final = 0o666
PRIVATE_MODE: Final = 0o600

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Passing through a folder does not need the right to list it.
_STEP: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
#: Opening a pipe does not block.
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

#: Linux's flag to exchange two names.
_RENAME_EXCHANGE: Final = 2
#: Errors of a kernel or file system without an exchange. Some sandboxes return them for calls that they do not know.
_NO_EXCHANGE: Final = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)

_Result = TypeVar("_Result")
_Make = Callable[[int, str], None]


class Disk:
    """The local file system, for this package's own files.

    Files that are changed below a `CONTROL_FOLDER` must belong to a trusted user: see `check_trusted`. Files that are only read may
    belong to any user.

    Args:
        root: a folder of the user, which may be reached through links; below it, links are not followed. `None` means no folder.
    """

    def __init__(self, root: str | None = None) -> None:
        self._root = root

    # --- reading -----------------------------------------------------------------------------------

    def read(self, path: str, limit_bytes: int, *, trusted: bool = False) -> bytes | None:
        """Return the content of a small file, cut one byte past the limit; `None` without a regular file of this name."""
        try:
            with self.open(path, trusted=trusted) as file:
                return file.read(limit_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, path: str, *, trusted: bool = False) -> BufferedReader:
        """Open a regular file; raise `FileNotFoundError` for anything else of this name."""
        with self._parent(path, trusted=trusted) as (parent, name):
            if not stat.S_ISREG(os.lstat(name, dir_fd=parent).st_mode):
                raise FileNotFoundError(errno.ENOENT, "it is not a regular file", path)
            descriptor = os.open(name, _READ, dir_fd=parent)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return open(descriptor, "rb")
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "it is not a regular file", path)

    def open_own(self, path: str) -> FileIO:
        """Open a file of this process's user, to be locked; raise an `OSError` for anything else."""
        with self._parent(path, trusted=True) as (parent, name):
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(name, flags, dir_fd=parent)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            return open(descriptor, "r+b", buffering=0)
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it is not a file of this process's user", path)

    def is_mine(self, folder: str) -> bool:
        """Return whether this is a folder of this process's user that other users cannot write to."""
        status = self.look(folder)
        return (
            status is not None
            and stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.geteuid()
            and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        )

    def look(self, path: str, *, trusted: bool = False) -> os.stat_result | None:
        """Return the status of a file, a folder or a link; `None` if the name does not exist."""
        try:
            with self._parent(path, trusted=trusted) as (parent, name):
                return os.lstat(name, dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_folder(self, path: str) -> bool:
        """Return whether this is a folder, and not a link to one."""
        status = self.look(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def names(self, folder: str, *, trusted: bool = False) -> list[str]:
        """Return the names in a folder, sorted; empty without a folder."""
        return sorted(self.seen_in(folder, os.listdir, trusted=trusted) or ())

    def seen_in(
        self, folder: str, look: Callable[[int], _Result], *, trusted: bool = False
    ) -> _Result | None:
        """Return the result of `look` for a folder that keeps its name meanwhile; `None` without a folder.

        A folder that is replaced meanwhile may be emptied while it is read.
        """
        while True:
            try:
                with self.held(folder, trusted=trusted) as descriptor:
                    result = _look_once(descriptor, look)
                    # While the folder is held, no other folder can get its inode.
                    with self.held(folder, trusted=trusted) as again:
                        if result and os.path.samestat(os.fstat(descriptor), os.fstat(again)):
                            return result[0]
            except (FileNotFoundError, NotADirectoryError):
                return None

    def files_in(self, folder: str, is_wanted: Callable[[str], bool]) -> dict[str, os.stat_result]:
        """Return the status of the wanted names in a folder, sorted by name; empty without a folder."""

        def look(descriptor: int) -> dict[str, os.stat_result]:
            names = sorted(filter(is_wanted, os.listdir(descriptor)))
            return {name: os.lstat(name, dir_fd=descriptor) for name in names}

        return self.seen_in(folder, look) or {}

    def below(self, folder: str) -> Iterator[tuple[bool, int, float]]:
        """Yield, for a folder and everything in it, whether it is a file, its size, and its modification time in s."""
        with suppress(FileNotFoundError, NotADirectoryError), self.held(folder) as descriptor:
            for _, _, names, directory in os.fwalk(dir_fd=descriptor):
                status = os.fstat(directory)
                yield False, status.st_size, status.st_mtime
                for name in names:
                    # Its job may just have moved or removed it.
                    with suppress(FileNotFoundError):
                        status = os.lstat(name, dir_fd=directory)
                        yield True, status.st_size, status.st_mtime

    def check(self, path: str) -> None:
        """Raise `PermissionError` unless a folder of this package and its existing parents are trusted."""
        with suppress(FileNotFoundError), self.held(path, trusted=True):
            pass

    # --- changing ----------------------------------------------------------------------------------

    def create(self, path: str, mode: int = FILE_MODE) -> BufferedWriter:
        """Create a file; raise `FileExistsError` if it exists."""
        with self._parent(path, trusted=True) as (parent, name):
            descriptor = os.open(name, os.O_WRONLY | _NEW, mode, dir_fd=parent)
        return open(descriptor, "wb")

    def append(self, path: str, mode: int = PRIVATE_MODE) -> FileIO:
        """Open a file to append to, created if missing."""
        with self._parent(path, trusted=True) as (parent, name):
            descriptor = _own_file(parent, name, os.O_WRONLY | os.O_APPEND, mode, path)
        return open(descriptor, "ab", buffering=0)

    def write(self, path: str, content: bytes, *, durable: bool = True) -> None:
        """Write a small file completely or not at all; with `durable`, also if the system crashes."""
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
        """Create a folder and its missing parents, with permissions by the umask, and never writable for all users."""
        start, steps, is_own = self._steps(path)
        if not is_own and not self._is_inside(path):
            _make_users(path)
            return
        _make_users(start)
        with self._through(start, steps, is_own, make=partial(_make, durable=durable)):
            pass

    def make_private(self, path: str) -> None:
        """Create one folder that other users cannot read; raise `FileExistsError`."""
        with self._parent(path, trusted=True) as (parent, name):
            os.mkdir(name, 0o700, dir_fd=parent)

    def own_private(self, path: str) -> None:
        """Create one folder that other users cannot read, unless it exists; raise an `OSError` for anything else of this name."""
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

    def exchange(self, first: str, second: str) -> bool:
        """Exchange two folders in one step; return False, with nothing changed, where that is not supported.

        Linux supports it on most local file systems.
        """
        exchange = _exchange()
        with (
            self._parent(first, trusted=True) as (of, old),
            self._parent(second, trusted=True) as (to, new),
        ):
            number = errno.ENOSYS if exchange is None else exchange(of, old, to, new)
            if number in _NO_EXCHANGE:
                return False
            if number:
                raise OSError(number, os.strerror(number), first, None, second)
            _sync_both(to, of)
        return True

    def remove(self, path: str, last: Callable[[str], bool] | None = None) -> None:
        """Remove a file, or a folder with its contents; links are removed, never followed.

        Args:
            path: the file or folder, which may be missing.
            last: whether a name in the folder is removed after the others.
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

    def settle(self, folder: str, is_wanted: Callable[[str], bool], *, names: bool = True) -> None:
        """Make files of wanted names below a folder durable, which others wrote; with `names`, also the names in the folder."""
        with self.held(folder, trusted=True) as descriptor:
            for path, _, files, directory in os.fwalk(topdown=False, dir_fd=descriptor):
                for name in filter(is_wanted, files):
                    _sync(name, directory)
                if names or path != ".":
                    os.fsync(directory)

    def sync(self, folder: str) -> None:
        """Make the names in a folder durable; do nothing without a folder."""
        with suppress(FileNotFoundError), self.held(folder, trusted=True) as descriptor:
            os.fsync(descriptor)

    def lock(self, path: str) -> FileIO:
        """Open a file for `try_lock`, created if missing; closing it frees the lock.

        Only users that may write to its folder can open it: a user who can read it could lock it, and block all others.
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
            readable = os.open(".", _FOLDER, dir_fd=descriptor)
        try:
            yield readable
        finally:
            os.close(readable)

    # --- paths -------------------------------------------------------------------------------------

    @contextmanager
    def _parent(self, path: str, *, trusted: bool) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the folder that a path is in, and its name there."""
        start, steps, is_own = self._steps(path)
        *above, name = steps
        with self._through(start, above, trusted and is_own) as parent:
            try:
                yield parent, name
            except OSError as error:
                # The whole path, for the reader of the message.
                if error.filename == name:
                    error.filename = path
                if error.filename2 == name:
                    error.filename2 = path
                raise

    def _is_inside(self, path: str) -> bool:
        return self._root is not None and path.startswith(f"{self._root}/")

    def _steps(self, path: str) -> tuple[str, list[str], bool]:
        """Return the user's folder at the start of a path, the names below it, and whether these belong to this package."""
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
        """Yield a descriptor of a folder, opened step by step; each step may be created, and is checked."""
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


def _look_once(descriptor: int, look: Callable[[int], _Result]) -> tuple[_Result] | None:
    """Return the result of `look`; `None` if a name disappeared meanwhile, so that the caller repeats it."""
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
    """Remove a name in a folder that is held open; see `Disk.remove`."""
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
            reason = "it is a link or a file, and this package keeps its own folder there"
            raise NotADirectoryError(errno.ENOTDIR, reason, where) from None
        error.filename = where
        raise


def _make(parent: int, name: str, *, durable: bool = True) -> None:
    """Create a folder in another one, unless its name exists."""
    try:
        os.mkdir(name, _FOLDER_MODE, dir_fd=parent)
    except FileExistsError:
        return
    above = os.fstat(parent).st_mode
    if name == CONTROL_FOLDER and above & stat.S_ISGID and above & stat.S_IWGRP:
        # The folder is shared by a group, whose users have roots there.
        _let_group_write(parent, name)
    if durable:
        _sync(".", parent)


def _make_users(path: str) -> None:
    """Create a folder of the user and its missing parents; their names may be links."""
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
    """Return a descriptor of a trusted regular file, created if missing."""
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
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileExistsError(errno.EEXIST, "it is not a regular file", path)
        check_trusted(status, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@cache
def _exchange() -> Callable[[int, str, int, str], int] | None:
    """Return a function that exchanges two names and returns an errno, or 0; `None` where the system has no such call."""
    try:
        # Some builds of Python have no ctypes, and some C libraries no such function.
        import ctypes

        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, AttributeError, OSError, TypeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def exchange(of: int, old: str, to: int, new: str) -> int:
        names = (of, os.fsencode(old), to, os.fsencode(new))
        return ctypes.get_errno() if call(*names, _RENAME_EXCHANGE) else 0

    return exchange


def _sync_both(to: int, of: int) -> None:
    """Make a rename durable."""
    # The new name before the old one: after a crash, a folder with two names is better than one with none.
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
