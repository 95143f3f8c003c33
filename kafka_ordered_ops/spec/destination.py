"""Where windows go: a folder, a table, or a sink of the caller's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kafka_ordered_ops.core.arguments import path_text, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.core.window.partition import check_partition_by
from kafka_ordered_ops.output.filesystem import normal_root
from kafka_ordered_ops.output.folders import check_scheme
from kafka_ordered_ops.spec.table import Table

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.windows import Staged


@dataclass(frozen=True)
class Folder:
    """A folder, or a prefix in an object store, with a folder of Parquet files for each window.

    Args:
        path: its path, or an address such as ``s3://bucket/lake/orders``.
        partition_by: ``date`` or ``hour``: put the window's folder below ``date=2026-11-20/``, or below
            ``date=2026-11-20/hour=11/``: the UTC time at which it starts. All windows of a folder need the same.
        storage_options: credentials and settings of an object store; None: as the environment has them. They are
            not stored anywhere, so every call needs them.

    Raises:
        ConfigError: not a path, a place where windows cannot be published, or an unknown `partition_by`.
    """

    path: str | os.PathLike[str]
    partition_by: PartitionBy | str | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", check_output(self.path))
        object.__setattr__(self, "partition_by", check_partition_by(self.partition_by))

    @property
    def root(self) -> str:
        """The full path."""
        return os.fspath(self.path)


@runtime_checkable
class Sink(Protocol):
    """Where windows go, other than a folder or a table: one of your own, or a `TableSink`."""

    def write(self, df: Any, plan: WindowPlan, /) -> Staged:
        """Write a window's result to a hidden stage."""

    def found(self, result: Mapping[str, Any], /) -> Staged | None:
        """Find an earlier attempt's output, from its ``to_json``; return None if it is gone."""


Destination = Folder | Table | Sink


def destination_of(
    output: object,
    table: Table | None = None,
    storage_options: Mapping[str, Any] | None = None,
    partition_by: str | None = None,
) -> Destination | None:
    """Return where windows go, from what a caller gave: a path, a sink of its own, or a table; raise `ConfigError`."""
    if isinstance(output, str | os.PathLike):
        return Folder(output, partition_by, storage_options)
    given = {"storage_options": storage_options, "partition_by": check_partition_by(partition_by)}
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"{name} is for an output in a folder or an object store: give output=, or leave it out"
            )
    if output is None:
        return table
    # The class of a sink has the methods of one.
    if isinstance(output, type) or not isinstance(output, Sink):
        raise ConfigError(
            f"output is {shown(output)}: give the path of a folder, or a sink such as TableSink(spark, table)"
        )
    return output


def check_output(output: object) -> str:
    """Return the full path of the folder for outputs; nothing is touched.

    Raises:
        ConfigError: not a path, an empty path, or a place where windows cannot be published.
    """
    text = path_text(output)
    if text is None or "\0" in text or not text.strip():
        raise ConfigError(f"the output folder {shown(output)} is not a path: name a folder")
    root = normal_root(text)
    check_scheme(root)
    return root
