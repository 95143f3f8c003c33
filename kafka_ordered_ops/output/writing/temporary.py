"""A temporary folder beside the outputs, for files that an attempt reads first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka_ordered_ops.ordered.folder import temporary_folder as folder_in
from kafka_ordered_ops.output.address import control_folder, is_local


@contextmanager
def temporary_folder(root: str | None) -> Iterator[str]:
    """Yield a temporary folder beside the outputs in `root`, or in the system's for None or an object store.

    Raises:
        SpillError: the folder cannot be created.
    """
    beside = None if root is None or not is_local(root) else control_folder(root)
    with folder_in(beside) as folder:
        yield folder
