"""The settings that all windows of an asset share: everything but their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Any

from dagster import AssetKey

from kafka_ordered_ops.core.arguments import check_choice
from kafka_ordered_ops.dagster.storage import StorageOptions, check_options
from kafka_ordered_ops.hosting.arguments import with_known_fields
from kafka_ordered_ops.hosting.full_paths import check_full_path
from kafka_ordered_ops.hosting.window_spec import WindowSpec, span_of
from kafka_ordered_ops.spark.job_checks import (
    check_partitioned,
    check_spark_conf,
    check_storage_options,
)
from kafka_ordered_ops.spec.destination import Folder, check_output
from kafka_ordered_ops.spec.engine import check_engine
from kafka_ordered_ops.spec.table import Table, table_of_parameters


class OnNotLive(StrEnum):
    """A step's action if a topic's partitions have not reached the cutoff yet.

    Records before the cutoff may still be written then. A later window takes them, flagged late. Warn: continue and
    fail the asset's check as a warning. Fail: fail the step before anything is planned. Ignore: do not check.
    """

    WARN = "warn"
    FAIL = "fail"
    IGNORE = "ignore"


@with_known_fields
@dataclass(frozen=True, kw_only=True)
class WindowSettings(WindowSpec):
    """The settings that all windows of an asset share.

    Args:
        topics: names, or regular expressions that begin with ``^``.
        group_id: the consumer group whose progress the windows are; one asset for each group.
        starting_offsets: where a new group begins: a bound, or its text: ``earliest``, ``latest``, ``committed``, a
            time, ``-PT1H``.
        max_out_of_orderness: None reads to the end of the log.
        isolation: ``read_committed`` or ``read_uncommitted``.
        exclude: names or patterns to leave out.
        on_covered: what to do with a delivered window that is materialized again. ``auto`` and ``replay`` read the
            same records again; ``skip`` reports the window without running the job; ``fail`` fails the step. Windows
            whose records other windows have taken are never read again: ``fail`` fails the step, the others skip
            them and fail the check ``windows_complete``.
        on_open_claim: what to do about other open windows that may hold some of the records.
        on_data_loss: ``fail``, or ``warn``: record as lost what retention removed or cannot be read, and continue.
        on_foreign_commit: fail if another program moved the group's committed offset, or adopt it.
        on_not_live: what to do if the partitions have not reached the cutoff yet.
        grace: how long after the cutoff a partition without newer records counts as idle; None: never.
        open_lag: also take a partition that has not ended, up to this long before the run began. Later runs of the
            partition take the rest. None: such a partition is refused.
        output: the folder for the windows' files, or a prefix in an object store; None: the job has its own sink.
        storage_options: credentials and settings of the store, by obstore's names: texts, or ``EnvVar``s, which the step
            resolves. Or dagster-aws's ``S3Resource``. None: as the step's environment has them. Dagster never shows them.
        partition_by: ``date`` or ``hour``: put windows' folders in `output` below ``date=2026-11-20/``, or below
            ``date=2026-11-20/hour=11/``: the UTC time at which they start.
        table: instead of `output`, an existing Delta or Iceberg table, ``lake.orders``. A function writes to it with
            ``windows.write``; without one, records are copied by Spark. The step uses the Spark session of the process,
            and starts one if there is none.
        table_mode: how rows get into the table: ``append`` (the default), ``replace`` or ``merge``; see
            `kafka_ordered_ops.spark.TableSink`.
        table_keys: for ``merge``, the columns that identify a row.
        delete_tombstones: with ``merge``, a row whose ``value`` is null deletes the row with its key.
        table_conf: Spark's settings of the session that the step starts for `table`.
        ordered: total order by (timestamp, topic, partition, offset).
        engine: who reads Kafka: ``python``, ``connector`` or ``local``.
        redefine: make this asset's topics, mode and isolation the group's, and this asset the one that plans its
            windows: for one run, after the asset was renamed or changed.

    Raises:
        ConfigError: no topic, no group, or an invalid value.
    """

    on_not_live: OnNotLive | str = OnNotLive.WARN
    grace: timedelta | str | None = None
    open_lag: timedelta | str | None = None
    output: str | None = None
    storage_options: StorageOptions | None = field(default=None, repr=False, compare=False)
    partition_by: str | None = None
    table: str | None = None
    table_mode: str | None = None
    table_keys: str | Sequence[str] = ()
    delete_tombstones: bool = False
    table_conf: Mapping[str, str] | None = None
    ordered: bool = True
    engine: str = "python"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice = check_choice(self.on_not_live, OnNotLive, what="on_not_live")
        object.__setattr__(self, "on_not_live", choice)
        check_engine(self.engine)
        if self.output is not None:
            check_full_path(self.output, what="output")
            check_output(self.output)
        check_options(self.storage_options)
        check_storage_options(self.storage_options, self.output)
        check_partitioned(self.partition_by, self.output)
        _ = self.target
        if self.table_conf is not None:
            check_spark_conf(self.table_conf)
        for name in ("grace", "open_lag"):
            object.__setattr__(self, name, span_of(getattr(self, name), name))

    @property
    def target(self) -> Table | None:
        """The table, and how rows get into it; raises `ConfigError`."""
        return table_of_parameters(
            self.table,
            self.table_mode,
            self.table_keys,
            self.delete_tombstones,
            output=self.output,
            prefix="table_",
        )

    def destination(self, storage_options: Mapping[str, Any] | None) -> Folder | Table | None:
        """Return where the windows go; None: the asset's function delivers them itself."""
        if self.output is None:
            return self.target
        return Folder(self.output, self.partition_by, storage_options)

    @classmethod
    def among(cls, given: Mapping[str, Any]) -> WindowSettings:
        """Return the settings among a function's arguments; raise `ConfigError`."""
        return cls(**{one.name: given[one.name] for one in fields(cls)})


def window_id_of(key: AssetKey, name: str) -> str:
    """Return a window's id: the same for every attempt and every run of a partition."""
    return f"{key.to_user_string()}/{name}"
