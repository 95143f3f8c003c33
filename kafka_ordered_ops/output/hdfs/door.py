"""The only module that calls hdfs-native: the name node's operations, each within a deadline.

If the name node refuses an operation, the `OSError` that a file system would raise is raised, with the address, the
path and the missing right. Nothing here moves a folder *into* another one, as ``hdfs dfs -mv`` does.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.output.address import split_hdfs

if TYPE_CHECKING:
    from hdfs_native import Client

#: The library itself waits forever for a name node that does not answer.
ANSWER_WAIT_S: Final = 120.0

#: The port of a name node whose address has none.
_DEFAULT_PORT: Final = 8020

#: Arguments of the client; all other options are Hadoop's.
_KERBEROS: Final = frozenset({"kerberos_cache", "kerberos_keytab", "kerberos_principal"})

#: Variables that a connection depends on.
_VARIABLES: Final = (
    "HADOOP_CONF_DIR",
    "HADOOP_HOME",
    "HADOOP_PROXY_USER",
    "HADOOP_TOKEN_FILE_LOCATION",
    "HADOOP_USER_NAME",
    "KRB5CCNAME",
    "KRB5_CONFIG",
)

_KINDS: Final[Mapping[str, type[OSError]]] = {
    "AccessControlException": PermissionError,
    "FileAlreadyExistsException": FileExistsError,
    "FileNotFoundException": FileNotFoundError,
    "ParentNotDirectoryException": NotADirectoryError,
    "PathIsNotEmptyDirectoryException": FileExistsError,
}
_RPC_ERROR: Final = re.compile(r'RPCError\("(?:[\w$]+\.)*([\w$]+)", "(.*)', re.DOTALL)
_REASON_LENGTH_MAX: Final = 300

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Entry:
    """A file or a folder in a listing."""

    name: str
    is_folder: bool
    size: int
    modified_ms: int


class Door:
    """The files of one HDFS. Paths are absolute, with scheme and host.

    Every method raises `PermissionError`, `FileNotFoundError`, `FileExistsError` or `NotADirectoryError` if the name
    node reports one, `TimeoutError` if it does not answer, and `OSError` for any other failure.
    """

    def __init__(self, client: Client, *, wait_s: float = ANSWER_WAIT_S) -> None:
        self._client, self._wait_s = client, wait_s

    def entry(self, path: str) -> Entry:
        """Return the file or the folder with this name."""
        return _entry(self._asked("look", path, self._client.get_file_info))

    def listed(self, folder: str) -> list[Entry]:
        """Return the entries of a folder, by name."""
        key = split_hdfs(folder)[1]

        def listed(path: str) -> list[Any]:
            return list(self._client.list_status(path))

        statuses = self._asked("list", folder, listed)
        if len(statuses) == 1 and not statuses[0].isdir and statuses[0].path == key:
            raise NotADirectoryError(f"{folder} is no folder")
        return sorted(map(_entry, statuses), key=lambda entry: entry.name)

    def make_folder(self, path: str, *, parents: bool) -> None:
        """Make a folder; an existing folder is not an error."""
        self._asked("make", path, lambda key: self._client.mkdirs(key, create_parent=parents))

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename in one step, to exactly this name.

        Args:
            source: a file or a folder.
            target: its new path; its parent exists.
            overwrite: replace a file by a file, and an empty folder by a folder.
        """
        to = split_hdfs(target)[1]
        what = f"rename to {target}"
        self._asked(what, source, lambda key: self._client.rename(key, to, overwrite))

    def delete(self, path: str, *, recursive: bool) -> None:
        """Remove a file or a folder; a missing one is not an error."""
        self._asked("delete", path, lambda key: self._client.delete(key, recursive))

    def touch(self, path: str, now_ms: int) -> None:
        """Set the time at which a file or a folder was last modified."""
        self._asked("touch", path, lambda key: self._client.set_times(key, now_ms, now_ms))

    def open(self, path: str) -> File:
        """Open a complete file."""
        return File(self, path, self._asked("read", path, self._client.read))

    def create(self, path: str) -> Upload:
        """Begin a new file in an existing folder."""
        from hdfs_native import WriteOptions

        options = WriteOptions(overwrite=False, create_parent=False)
        writer = self._asked("create", path, lambda key: self._client.create(key, options))
        return Upload(self, path, writer)

    def asked(self, what: str, path: str, call: Callable[[], _Answer]) -> _Answer:
        """Return the result of a call of the library, or raise its error as described above."""
        try:
            return within(self._wait_s, call)
        except TimeoutError as error:
            raise TimeoutError(f"{path}: {what}: {error}") from None
        except (OSError, RuntimeError, ValueError, OverflowError) as error:
            _raise(what, path, error)

    def _asked(self, what: str, path: str, call: Callable[[str], _Answer]) -> _Answer:
        key = split_hdfs(path)[1]
        return self.asked(what, path, lambda: call(key))


class File:
    """A file that is open for reading."""

    def __init__(self, door: Door, path: str, reader: Any) -> None:
        self._door, self._path, self._reader = door, path, reader
        self.size: int = reader.size

    def content(self, start: int, length: int) -> bytes:
        """Return a piece of the file; a shorter one at its end."""
        length = min(length, self.size - start)
        if length <= 0:
            return b""

        def read() -> bytes:
            return bytes(self._reader.read_range(start, length))

        return self._door.asked("read", self._path, read)


class Upload:
    """A file that is being written; others see it once it is closed."""

    def __init__(self, door: Door, path: str, writer: Any) -> None:
        self._door, self._path, self._writer = door, path, writer

    def write(self, content: Any) -> int:
        """Append bytes."""
        written: int = self._door.asked("write", self._path, lambda: self._writer.write(content))
        return written

    def sync(self) -> None:
        """Flush what was written to the data nodes' disks; the file then closes sooner."""
        self._door.asked("write", self._path, self._writer.hsync)

    def close(self) -> None:
        """Complete the file."""
        self._door.asked("close", self._path, self._writer.close)


def within(wait_s: float, call: Callable[[], _Answer]) -> _Answer:
    """Return the result of a call; raise `TimeoutError` if it does not end in time. It then goes on in the background."""
    answers: list[_Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 - raised where the caller is
            errors.append(error)

    thread = threading.Thread(target=run, name="hdfs", daemon=True)
    thread.start()
    thread.join(wait_s)
    if answers:
        return answers[0]
    if not errors:
        raise TimeoutError(f"HDFS did not answer within {wait_s:g} s")
    if type(errors[0]).__name__ == "PanicException":
        raise OSError(f"the client failed: {_line(str(errors[0]))}")
    raise errors[0]


def open_door(
    path: str, options: Mapping[str, Any] | None = None, *, wait_s: float = ANSWER_WAIT_S
) -> Door:
    """Return the door to the HDFS of a path, without connecting.

    Args:
        path: any path in it.
        options: Hadoop's settings by name, added to those of ``HADOOP_CONF_DIR``; and ``kerberos_principal``,
            ``kerberos_keytab`` and ``kerberos_cache``.
        wait_s: how long to wait for any answer.

    Raises:
        ConfigError: hdfs-native is not installed, or the settings name no name node.
    """
    try:
        import hdfs_native as _  # noqa: F401
    except ImportError:
        raise ConfigError(
            "an output in hdfs:// needs hdfs-native, which is not installed: run pip install 'kafka-ordered-ops[hdfs]'"
        ) from None
    settings = tuple(sorted(check_options(options).items()))
    return Door(_connected(split_hdfs(path)[0], settings, surroundings()), wait_s=wait_s)


def check_options(options: object) -> dict[str, str]:
    """Return storage options as Hadoop's settings; raise `ConfigError`, without values, for anything else."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(
        isinstance(name, str) and isinstance(value, str | int) for name, value in options.items()
    ):
        raise ConfigError(
            "storage_options of an output in HDFS are Hadoop's settings: give a mapping of names and values, such as "
            "{'dfs.client.use.datanode.hostname': 'true'}"
        )
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def surroundings() -> tuple[object, ...]:
    """Return what a connection also depends on: the process and its environment."""
    return (os.getpid(), *map(os.environ.get, _VARIABLES))


@lru_cache(maxsize=32)
def _connected(
    host: str, options: tuple[tuple[str, str], ...], _surroundings: tuple[object, ...]
) -> Client:
    from hdfs_native import Client

    config = {name: value for name, value in options if name not in _KERBEROS}
    kerberos: Any = {name: value for name, value in options if name in _KERBEROS}
    try:
        try:
            return Client(host, config, **kerberos)
        except RuntimeError as error:
            # A host that no setting mentions is a name node.
            if "No NameNode hosts" not in str(error) or ":" in host.removeprefix("hdfs://"):
                raise
            return Client(f"{host}:{_DEFAULT_PORT}", config, **kerberos)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"{host} cannot be opened: {_line(str(error))}. Name the name node, as in hdfs://namenode:8020/lake/orders, or "
            "set HADOOP_CONF_DIR to the folder with core-site.xml and hdfs-site.xml"
        ) from None


def _entry(status: Any) -> Entry:
    return Entry(
        status.path.rstrip("/").rpartition("/")[2],
        status.isdir,
        status.length,
        status.modification_time,
    )


def _raise(what: str, path: str, error: Exception) -> NoReturn:
    """Raise a library's error as the `OSError` that a file system would raise."""
    rpc = _RPC_ERROR.search(str(error))
    kind, reason = (rpc[1], _line(rpc[2])) if rpc else ("", _line(str(error)))
    if "is not a directory" in reason:
        # The name node also reports this as a denial of access.
        kind = "ParentNotDirectoryException"
    if kind == "AccessControlException":
        raise PermissionError(f"{path}: access was denied ({what}): {reason}") from None
    if re.search(r"\bis (not|non) empty", reason):
        kind = "PathIsNotEmptyDirectoryException"
    known = next(
        (error_type for error_type in _KINDS.values() if isinstance(error, error_type)), None
    )
    raise (known or _KINDS.get(kind, OSError))(f"{path}: {what} failed: {reason}") from None


def _line(text: str) -> str:
    """Return the first line of a name node's message, without the stack trace."""
    text = re.split(r"\\*n?\s*\\tat |\n\s*at |\\n", text, maxsplit=1)[0]
    text = " ".join(text.replace('\\"', '"').split())
    return text if len(text) <= _REASON_LENGTH_MAX else f"{text[:_REASON_LENGTH_MAX]}..."
