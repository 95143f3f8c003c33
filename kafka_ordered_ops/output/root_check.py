"""Check, before a window is planned, that the windows of its root have the same partitioning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.output.address import is_in_store
from kafka_ordered_ops.output.filesystem import as_sink_error
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.roots.healing import heal_others
from kafka_ordered_ops.output.roots.partitions import check_folders


def check_root(
    root: str, storage_options: Mapping[str, Any] | None, partition_by: PartitionBy | None
) -> None:
    """Check that the windows of a root, as `normal_root` returns it, are partitioned alike.

    Nothing is changed, except that leftovers of dead publications are repaired.

    Raises:
        ConfigError: there are windows with another partitioning.
        SinkError: the file system or the store failed.
    """
    with as_sink_error(f"the windows below {root} cannot be read"):
        if is_in_store(root):
            from kafka_ordered_ops.output.objects.reading import check_windows
            from kafka_ordered_ops.output.objects.store import open_store

            check_windows(open_store(root, storage_options), root, partition_by)
        else:
            files = files_for(root, storage_options)
            heal_others(files, root)
            check_folders(files, root, partition_by)
