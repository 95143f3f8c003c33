"""Check that windows can be written to an output, before any is planned."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.partition import check_partition_by, partition_of
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.disk.disk import Disk
from kafka_ordered_ops.output.address import control_folder, is_in_hdfs, is_in_store
from kafka_ordered_ops.output.filesystem import as_sink_error
from kafka_ordered_ops.spec.destination import check_output

#: System errors that make a folder permanently unusable.
_FOR_GOOD: Final = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)


def check_writable(
    output: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    partition_by: str | None = None,
) -> None:
    """Write a hidden file to the output folder and next to it, or to the folders in which these will be created.

    Nothing is left behind, not even the folder: the call may still be refused for another reason. An object store is
    tested once for each root and process, including conditional writes.

    Raises:
        ConfigError: as `check_output`; or this process may not write to the folder; or the folder is a mount point, whose
            parent is on another file system; or the store has no conditional writes; or there are options without a store;
            or the output has windows with another `partition_by`.
        SinkError: another error of the file system.
    """
    from kafka_ordered_ops.output.root_check import check_root

    root = check_output(output)
    if is_in_store(root):
        from kafka_ordered_ops.output.objects.probe import check_store

        check_store(root, storage_options)
    elif is_in_hdfs(root):
        from kafka_ordered_ops.output.hdfs.probe import check_hdfs

        check_hdfs(root, storage_options)
    else:
        _check_folder(root, storage_options)
    check_root(root, storage_options, check_partition_by(partition_by))


def _check_folder(root: str, storage_options: Mapping[str, Any] | None) -> None:
    if storage_options is not None:
        raise ConfigError(
            f"storage_options are for an object store, but the output is the folder {root}: leave them out"
        )
    control = control_folder(root)
    with as_sink_error(f"the output folder {root} cannot be used"):
        with _refusing(f"windows cannot be written to {root}"):
            place = _nearest(root)
            with tempfile.TemporaryFile(dir=place):
                pass
        why = f"windows cannot be written to {root}: unpublished files are stored beside it, in {control}"
        with _refusing(why):
            Disk().check(control)
        with _refusing(why), tempfile.TemporaryDirectory(dir=_nearest(control)) as folder:
            _check_moves(folder, place, why)


@contextmanager
def _refusing(why: str) -> Iterator[None]:
    """Raise `ConfigError` for system errors that will not go away: this process may not write to a folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FOR_GOOD:
            raise
        raise ConfigError(
            f"{why}: {error.strerror}. Name a folder that this process may write to, in a folder that it may write to"
        ) from error


def _check_moves(folder: str, root: str, why: str) -> None:
    """Raise `ConfigError` unless a folder can be renamed into the root, as publishing does."""
    inner = os.path.join(folder, f".koo-try-{os.path.basename(folder)}")
    moved = os.path.join(root, os.path.basename(inner))
    os.mkdir(inner)
    try:
        os.rename(inner, moved)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise ConfigError(
            f"{why}, which is on another file system: {root} is a mount point. Name a folder below {root}"
        ) from error
    os.rmdir(moved)


def check_storage_options(
    storage_options: object | None, output: str | os.PathLike[str] | None
) -> None:
    """Raise `ConfigError` for options without an output; `check_writable` refuses options for a folder."""
    if storage_options is not None and output is None:
        raise ConfigError(
            "storage_options are for an output in an object store: give output=, or leave them out"
        )


def check_partitioned(
    partition_by: str | None,
    output: str | os.PathLike[str] | None,
    windows: Iterable[Window] = (),
) -> None:
    """Raise `ConfigError` for an unknown `partition_by`, one without an output, or windows that do not fit into one."""
    checked = check_partition_by(partition_by)
    if checked is not None and output is None:
        raise ConfigError(
            f"partition_by={checked.value!r} is for the folders of an output: give output=, or leave it out"
        )
    for window in windows:
        partition_of(window, checked)


def _nearest(path: str) -> str:
    """Return the path, or its nearest existing parent."""
    while True:
        try:
            os.lstat(path)
        except FileNotFoundError:
            path = os.path.dirname(path)
        else:
            return path
