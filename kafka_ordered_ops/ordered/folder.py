"""A temporary folder: gone at its end, and after a ``kill -9`` with the next one in the same place."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from kafka_ordered_ops.core.errors import SpillError

_PREFIX: Final = "kafka-ordered-ops-"
#: Locked for as long as the process that made the folder lives.
_IN_USE: Final = ".in-use"
#: What is yielded: one level below, so that what is beside it goes with it.
_CONTENT: Final = "content"


@contextmanager
def temporary_folder(parent: str | None) -> Iterator[str]:
    """Yield a new folder in `parent`; None: in the system's folder for temporary files.

    Raises:
        SpillError: it cannot be made.
    """
    parent = parent or tempfile.gettempdir()
    with ExitStack() as stack:
        try:
            os.makedirs(parent, exist_ok=True)
            _remove_left(parent)
            made = tempfile.TemporaryDirectory(
                prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True
            )
            folder = stack.enter_context(made)
            _lock(folder, stack)
            content = os.path.join(folder, _CONTENT)
            os.mkdir(content)
            # What is large goes first: whoever is killed meanwhile leaves a folder that the next one finds.
            stack.callback(shutil.rmtree, content, ignore_errors=True)
        except OSError as error:
            raise SpillError(
                f"no temporary folder can be made in {parent}: {error}. Choose another place, or set TMPDIR"
            ) from error
        yield content


def _lock(folder: str, stack: ExitStack) -> None:
    path = os.path.join(folder, _IN_USE)
    file = open(f"{path}.new", "xb")  # noqa: SIM115 - closed by the stack
    stack.callback(file.close)
    # Locked before it has its name: whoever finds it by that name finds it locked.
    fcntl.flock(file, fcntl.LOCK_EX)
    os.rename(file.name, path)


def _remove_left(parent: str) -> None:
    """Remove the folders of processes that were killed."""
    for name in os.listdir(parent):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(parent, name)
        # In use, on its way in or out, or another user's: none of this one's business.
        with suppress(OSError), open(os.path.join(path, _IN_USE), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(os.path.join(path, _CONTENT), ignore_errors=True)
            shutil.rmtree(path)
