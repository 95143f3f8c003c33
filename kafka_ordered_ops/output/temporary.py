"""A folder for what an attempt reads first: gone at its end, and after a ``kill -9`` with the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Final

from kafka_ordered_ops.output.address import control_folder
from kafka_ordered_ops.output.filesystem import as_sink_error
from kafka_ordered_ops.output.folders import files_for

_PREFIX: Final = "read-"
#: Locked for as long as the process that made the folder lives.
_IN_USE: Final = ".in-use"
#: What is yielded: a root of windows, whose stages are beside it.
_ROWS: Final = "rows"


@contextmanager
def temporary_folder(root: str | None) -> Iterator[str]:
    """Yield a temporary folder beside the outputs in `root`; None: in the system's temporary folder.

    Raises:
        SinkError: it cannot be made.
    """
    with as_sink_error(f"there is no folder for what is read first, in {root or 'TMPDIR'}"):
        beside = None if root is None else control_folder(root)
        if root is not None and beside is not None:
            files_for(root).make_folder(beside)
            _remove_left(beside)
        made = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=beside)
    with made as folder, nullcontext() if root is None else _in_use(folder):
        # One level below: what is beside it goes with it.
        rows = os.path.join(folder, _ROWS)
        with as_sink_error(f"the folder {rows} cannot be made"):
            os.mkdir(rows)
        yield rows


@contextmanager
def _in_use(folder: str) -> Iterator[None]:
    path = os.path.join(folder, _IN_USE)
    with ExitStack() as stack:
        with as_sink_error(f"{path} cannot be locked"):
            file = stack.enter_context(open(f"{path}.new", "xb"))
            # Locked before it has its name: whoever finds it by that name finds it locked.
            fcntl.flock(file, fcntl.LOCK_EX)
            os.rename(file.name, path)
        yield


def _remove_left(root: str) -> None:
    """Remove the folders of processes that were killed."""
    for name in os.listdir(root):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(root, name)
        try:
            with open(os.path.join(path, _IN_USE), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
        except OSError:
            # In use, on its way in or out, or another user's: none of this one's business.
            continue
