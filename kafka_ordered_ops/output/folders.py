"""The file system of a root that supports atomic renames of folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.output.address import is_in_hdfs, is_in_store, is_local
from kafka_ordered_ops.output.filesystem import LocalFiles
from kafka_ordered_ops.output.ports import Folders


def files_for(root: str, storage_options: Mapping[str, Any] | None = None) -> Folders:
    """Return the file system of a root as `normal_root` returns it, if it supports atomic renames.

    Raises:
        ConfigError: a scheme other than ``file:`` and ``hdfs:``, a missing library, or invalid options.
    """
    if is_in_hdfs(root):
        from kafka_ordered_ops.output.hdfs.door import open_door
        from kafka_ordered_ops.output.hdfs.files import HdfsFiles

        return HdfsFiles(open_door(root, storage_options), root)
    if not is_local(root):
        raise _unknown_scheme_error(root)
    return LocalFiles(root)


def check_scheme(root: str) -> None:
    """Raise `ConfigError` for a root, as `normal_root` returns it, with an unsupported scheme."""
    if not (is_local(root) or is_in_hdfs(root) or is_in_store(root)):
        raise _unknown_scheme_error(root)


def _unknown_scheme_error(root: str) -> ConfigError:
    return ConfigError(
        f"windows cannot be staged and published below {root!r}: {root.partition(':')[0]}: is neither a file system with an atomic "
        "rename nor an object store that this package knows. Name a local or mounted folder, or hdfs://, s3://, "
        "gs:// or abfss://, or use a Delta or Iceberg table. Or write with your own sink that "
        "replaces by window id (plan.window_id, plan.claim_id and plan.attempt identify the output), and "
        "commit the window after it"
    )
