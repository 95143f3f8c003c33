"""Destinations of windows: a folder, a table, or the caller's own sink."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kafka_ordered_ops.core.arguments import path_text, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.masked import MASK, shown_fields
from kafka_ordered_ops.core.templates import check_rendered, if_literal, is_literal
from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.core.window.partition import check_partition_by
from kafka_ordered_ops.output.filesystem import normal_root
from kafka_ordered_ops.output.folders import check_scheme
from kafka_ordered_ops.spec.table import Table

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.windows import Staged


@dataclass(frozen=True, repr=False)
class Folder:
    """A folder, or a prefix in an object store, with a folder of Parquet files for each window.

    Args:
        path: its path, or a URL such as ``s3://bucket/lake/orders``.
        partition_by: ``date`` or ``hour``: put the window's folder below ``date=2026-11-20/``, or below
            ``date=2026-11-20/hour=11/``, for the UTC time at which it starts. All windows of a folder need the same value.
        storage_options: credentials and settings of an object store; None means those of the environment. They are
            not stored anywhere, so every call needs them.
        storage_conn_id: instead of `storage_options`, an Airflow connection of type ``aws``,
            ``google_cloud_platform``, ``wasb`` or ``adls``. The worker reads it when the task runs.

    Raises:
        ConfigError: not a path, a place where windows cannot be published, an unknown `partition_by`, or options that are
            not a mapping.
    """

    path: str | os.PathLike[str]
    partition_by: PartitionBy | str | None = None
    storage_options: Mapping[str, Any] | None = None
    storage_conn_id: str | None = None

    def __post_init__(self) -> None:
        # The part of the path that a connection adds is known only when a task runs.
        if self.storage_conn_id is None:
            if_literal(self.path, check_output)
        checked = if_literal(self.partition_by, check_partition_by)
        object.__setattr__(self, "partition_by", checked)
        options: object = self.storage_options
        if isinstance(options, str | bytes | int | float | Sequence) and is_literal(options):
            raise _no_options(options)
        if self.storage_options is not None and self.storage_conn_id is not None:
            raise ConfigError(
                "storage_options and storage_conn_id are both given: give the credentials once"
            )

    @property
    def root(self) -> str:
        """The full path; raises `ConfigError` for a template."""
        return check_output(self.path)

    def __repr__(self) -> str:
        storage_options: object = self.storage_options
        options = (
            dict.fromkeys(storage_options, MASK) if isinstance(storage_options, Mapping) else MASK
        )
        return shown_fields(
            self,
            path=self.path,
            partition_by=None if self.partition_by is None else str(self.partition_by),
            storage_options=None if storage_options is None else options,
            storage_conn_id=self.storage_conn_id,
        )


@runtime_checkable
class Sink(Protocol):
    """A destination of windows other than a folder or a table: your own sink, or a `TableSink`."""

    def write(self, df: Any, plan: WindowPlan, /) -> Staged:
        """Write a window's result to a hidden stage."""

    def found(self, result: Mapping[str, Any], /) -> Staged | None:
        """Find an earlier attempt's output, from its ``to_json``; return None if it is gone."""


Destination = Folder | Table | Sink

#: A destination as callers pass it: a path means a `Folder`.
Output = str | os.PathLike[str] | Destination | None


def destination_of(output: object) -> Destination | None:
    """Return the destination of windows: a path means a `Folder`.

    Raises:
        ConfigError: neither a path nor a `Folder`, a `Table` or a sink; or a destination that only Airflow can open.
    """
    if output is None or isinstance(output, Table):
        to: Destination | None = output
    elif isinstance(output, str | os.PathLike):
        to = Folder(output)
    elif isinstance(output, Folder):
        to = output
        options: object = output.storage_options
        if not isinstance(options, Mapping | None):
            raise _no_options(options)
        if output.storage_conn_id is not None:
            raise ConfigError(
                f"storage_conn_id is {output.storage_conn_id!r}, an Airflow connection, and this is not an Airflow task: "
                "give storage_options"
            )
    # The class of a sink also has its methods.
    elif isinstance(output, type) or not isinstance(output, Sink):
        raise ConfigError(
            f"output is {shown(output)}: give the path of a folder, a Folder, a Table, or a sink such as TableSink(spark, table)"
        )
    else:
        return output
    if to is not None:
        check_rendered(to, "the output")
    return to


def _no_options(options: object) -> ConfigError:
    # The message omits the value, which may be a secret.
    return ConfigError(f"storage_options is a {type(options).__name__}: give a mapping, or None")


def check_output(output: object) -> str:
    """Return the full path of the folder for outputs, without touching the file system.

    Raises:
        ConfigError: not a path, an empty path, or a place where windows cannot be published.
    """
    text = path_text(output)
    if text is None or "\0" in text or not text.strip():
        raise ConfigError(f"the output folder {shown(output)} is not a path: name a folder")
    root = normal_root(text)
    check_scheme(root)
    return root
