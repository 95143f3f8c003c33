"""The target of written bytes: stdout, or a file that appears only when it is complete."""

from __future__ import annotations

import io
import os
import select
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from kafka_ordered_ops.cli.show.printable import in_json
from kafka_ordered_ops.core.errors import ConfigError, SinkError

_STDOUT: Final = 1


class Target(io.RawIOBase):
    """A file descriptor without a buffer.

    Args:
        fd: the descriptor; its owner closes it.
        name: for errors.
    """

    def __init__(self, fd: int, name: str) -> None:
        self._fd, self._name = fd, name
        self._is_over = False

    def writable(self) -> bool:
        """Return True, as Arrow requires."""
        return True

    def write(self, data: Any, /) -> int:
        """Write all bytes.

        Raises:
            BrokenPipeError: the reader of the pipe is gone.
            SinkError: the disk is full, for example.
        """
        remaining = memoryview(data).cast("B")
        size = remaining.nbytes
        while remaining and not self._is_over:
            try:
                remaining = remaining[os.write(self._fd, remaining) :]
            except BlockingIOError:
                # Another process that shares the pipe has made it non-blocking.
                select.select([], [self._fd], [])
            except BrokenPipeError:
                self.end()
                # Without its errno: click would handle EPIPE itself.
                raise BrokenPipeError from None
            except OSError as error:
                self.end()
                raise SinkError(f"{self._name} cannot be written: {error.strerror}") from error
        return size

    def end(self) -> None:
        """Drop what is written from now on: the closing bytes of a format would look like a complete result."""
        self._is_over = True

    def check_read(self) -> None:
        """Raise `BrokenPipeError` if the reader of the pipe is gone: without records, no write would notice."""
        look = select.poll()
        look.register(self._fd, 0)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in look.poll(0)):
            self.end()
            raise BrokenPipeError


class TerminalTarget(Target):
    """A terminal: control characters are written as JSON escapes."""

    def write(self, data: Any, /) -> int:
        """Write whole lines of text; raises as `Target.write`."""
        super().write(in_json(str(memoryview(data).cast("B"), "utf-8")).encode())
        return memoryview(data).nbytes


@contextmanager
def opened(path: Path | None, *, follow: bool, is_terminal: bool = False) -> Iterator[Target]:
    """Open stdout, or a file, which replaces an earlier one when the block ends without an error.

    With `follow`, the file exists from the beginning, and must be new: earlier records would not be read again. With
    `is_terminal`, stdout is a terminal.

    Raises:
        ConfigError: the file cannot be created, or exists already.
    """
    if path is None:
        yield (TerminalTarget if is_terminal else Target)(_STDOUT, "stdout")
        return
    if _is_special(path):
        with _descriptor(path, os.O_WRONLY) as fd:
            yield Target(fd, str(path))
    elif follow:
        with _descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            yield Target(fd, str(path))
    else:
        # Not a link to it.
        with _replacing(path.resolve()) as target:
            yield target


@contextmanager
def _replacing(path: Path) -> Iterator[Target]:
    beside = path.with_name(f".{path.name[:200]}.{uuid.uuid4().hex[:12]}")
    with _descriptor(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, destination=path) as fd:
        try:
            yield Target(fd, str(path))
            os.fsync(fd)
            os.replace(beside, path)
        except BaseException as error:
            with suppress(OSError):
                beside.unlink()
            if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
                raise SinkError(f"{path} cannot be written: {error.strerror}") from error
            raise


@contextmanager
def _descriptor(path: Path, flags: int, *, destination: Path | None = None) -> Iterator[int]:
    destination = destination or path
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        raise ConfigError(
            f"{destination} exists: with --follow give a new file, or append by: … >> {destination}"
        ) from None
    except OSError as error:
        raise ConfigError(f"{destination} cannot be written: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _is_special(path: Path) -> bool:
    """Return whether a path is not a regular file, but for example a named pipe or a device."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{path} cannot be written: it is a folder")
    return not stat.S_ISREG(mode)
