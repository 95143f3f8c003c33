"""The Spark session that a host keeps from the check of a table to the publication of its windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.output.reported import EarlierOutputs, PublishedElsewhere, Reported
from kafka_ordered_ops.spec.table import Table

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import Staged

#: Finds what an earlier attempt has written.
Found = Callable[[Mapping[str, Any]], "Staged | None"]


@contextmanager
def table_session(
    target: Table | None,
    *,
    conf: Mapping[str, str],
    stopped: Callable[[], bool],
    copies: bool,
    java_home: Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
    output: str | None = None,
) -> Iterator[Found]:
    """Check a table in a session that lasts as long as the block; yield what finds earlier outputs.

    What the block does with Spark in this process uses the same session. A session that was there before is used, and
    left alone. Without a target, nothing is started.

    Args:
        target: the table, or None.
        conf: Spark's settings.
        stopped: whether the job is to end.
        copies: whether records are copied as they are, so that the table must have their columns.
        java_home: see `job_session`.
        storage_options: of the earlier outputs, if they are in an object store.
        output: without a target, the root of the outputs.

    Raises:
        ConfigError: there is no Spark, or the table is not as required.
    """
    if target is None:
        yield EarlierOutputs(output, storage_options)
        return
    from kafka_ordered_ops.spark.job_session import job_session
    from kafka_ordered_ops.spark.write.table_windows import found_in_table, table_sink

    with job_session(f"table {target.name}", conf, stopped, java_home) as spark:
        sink = table_sink(spark, target)
        if copies:
            sink.check_copy()

        yield _InTable(partial(found_in_table, sink))


@dataclass(frozen=True)
class _InTable:
    """Finds outputs of earlier attempts in a table, and reports."""

    in_table: Found

    def __call__(self, result: Mapping[str, Any]) -> Staged | None:
        return self.in_table(result) or Reported.found(result)

    def elsewhere(self, result: Mapping[str, Any]) -> PublishedElsewhere:
        """Return the output of a published window that was published to another place."""
        return PublishedElsewhere(result)

    def left(self, result: Mapping[str, Any]) -> Staged | None:
        """Return the output of another window of the group."""
        return self.in_table(result)
