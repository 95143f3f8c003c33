"""The settings that all windows of an asset share: everything but their times."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from dagster import AssetKey

from kafka_ordered_ops.core.arguments import check_choice, shown
from kafka_ordered_ops.core.cluster.names import check_group
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.templates import check_rendered
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy, check_policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.core.window.window_id import readable_window_id
from kafka_ordered_ops.dagster.storage import check_options
from kafka_ordered_ops.delivery.arguments import with_known_fields, with_known_names
from kafka_ordered_ops.delivery.full_paths import check_full_path
from kafka_ordered_ops.spec.asked import span_of, window_asked
from kafka_ordered_ops.spec.destination import Folder, destination_of
from kafka_ordered_ops.spec.engine import Engine, check_engine
from kafka_ordered_ops.spec.table import Table
from kafka_ordered_ops.spec.writable import check_storage_options


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
class WindowSettings:
    """The settings that all windows of an asset share.

    Args:
        topics: names, or regular expressions that begin with ``^``. Short for ``window=Window(topics)``.
        window: the topics and their options, a `Window` without times, which come from the partitions or runs.
        group_id: the consumer group whose progress the windows are; one asset for each group.
        policy: what to do about conflicting windows and programs. A delivered window that is materialized again is
            read again; ``on_covered="skip"`` reports it without running the job, and ``fail`` fails the step. Windows
            whose records other windows have taken are never read again: ``fail`` fails the step, the other values
            skip the windows and fail the check ``windows_complete``.
        on_not_live: what to do if the partitions have not reached the cutoff yet.
        grace: how long after the cutoff a partition without newer records counts as idle; None means never.
        open_lag: also take a partition that has not ended, up to this long before the run began. Later runs of the
            partition take the remaining records. By default such a partition is refused.
        output: the destination of the windows: a path or a `Folder`, whose storage options may be ``EnvVar``s, which
            the step resolves, or dagster-aws's ``S3Resource``; or a `Table`. Without an output, the function delivers
            the windows itself.
        engine: the engine that reads Kafka for a function: ``python``, ``connector`` or ``local``.

    Raises:
        ConfigError: no topic, no group, or an invalid value.
    """

    topics: str | Sequence[str] | None = None
    window: Window | None = None
    group_id: str
    policy: Policy = DEFAULT_POLICY
    on_not_live: OnNotLive | str = OnNotLive.WARN
    grace: timedelta | str | None = None
    open_lag: timedelta | str | None = None
    output: str | os.PathLike[str] | Folder | Table | None = field(default=None, compare=False)
    engine: Engine | str | None = None

    def __post_init__(self) -> None:
        window = window_asked(self.topics, self.window)
        check_rendered(window, "the window")
        object.__setattr__(self, "window", window)
        check_group(self.group_id)
        check_policy(self.policy)
        choice = check_choice(self.on_not_live, OnNotLive, what="on_not_live")
        object.__setattr__(self, "on_not_live", choice)
        if self.engine is not None:
            check_engine(self.engine)
        object.__setattr__(self, "output", _output_of(self.output))
        for name in ("grace", "open_lag"):
            object.__setattr__(self, name, span_of(getattr(self, name), name))

    @property
    def untimed_window(self) -> Window:
        """The topics and their options, without times, which come from the partitions or runs."""
        if self.window is None:
            raise AssertionError("__post_init__ sets the window")
        return self.window

    @property
    def folder(self) -> Folder | None:
        """The folder for the windows' files, with unresolved storage options."""
        return self.output if isinstance(self.output, Folder) else None

    @property
    def table(self) -> Table | None:
        """The table for the windows' rows."""
        return self.output if isinstance(self.output, Table) else None

    @classmethod
    def among(cls, values: Mapping[str, Any]) -> WindowSettings:
        """Return the settings among a function's arguments; raise `ConfigError`."""
        return cls(
            **{
                setting.name: values[setting.name]
                for setting in fields(cls)
                if setting.name in values
            }
        )


def _output_of(output: object) -> Folder | Table | None:
    if isinstance(output, Folder):
        check_full_path(output.path, what="output")
        check_options(output.storage_options)
        # Check only the form: the step resolves the options.
        destination_of(replace(output, storage_options=None))
        check_storage_options(output.storage_options, output.root)
        return output
    if isinstance(output, str | os.PathLike):
        check_full_path(output, what="output")
    to = destination_of(output)
    if not isinstance(to, Folder | Table | None):
        raise ConfigError(
            f"output is {shown(output)}: give a path, a Folder or a Table; a function may deliver to a sink of its own"
        )
    return to


@with_known_names
def window_id_of(asset_key: AssetKey | str | Sequence[str], name: str) -> str:
    """Return the id of a partition's window: the same for every attempt and every run.

    Args:
        asset_key: the asset.
        name: the partition's key; of an asset without partitions, the id of the first run.
    """
    path = AssetKey.from_coercible(asset_key).path
    return readable_window_id(name, ".".join(path), distinct=[path, name])
