"""A temporary folder for records that do not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kafka_ordered_ops.core.errors import SpillError
from kafka_ordered_ops.disk.temporary import private_folder, system_folder


@contextmanager
def temporary_folder(parent: str | None) -> Iterator[str]:
    """Yield a new folder in `parent`, and remove it at the end. `None` means the system's folder for temporary files.

    Also remove folders that killed processes left there.

    Raises:
        SpillError: the folder cannot be created.
    """
    parent = parent or system_folder()
    with ExitStack() as stack:
        try:
            folder, _ = stack.enter_context(private_folder(parent))
        except OSError as error:
            raise SpillError(
                f"no temporary folder can be created in {parent}: {error}. Choose another place, or set TMPDIR"
            ) from error
        yield folder
