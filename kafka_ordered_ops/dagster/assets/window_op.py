"""What Dagster knows of a step besides its assets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dagster import BackfillPolicy, RetryPolicy

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.delivery.arguments import with_known_fields


@with_known_fields
@dataclass(frozen=True, kw_only=True)
class WindowOp:
    """How Dagster runs the step that delivers windows.

    Args:
        tags: the op's tags, for example for the run launcher or the executor.
        retry_policy: attempts of a failed step; errors that no retry can fix are not retried.
        pool: the pool that limits steps running at once. By default there is no limit: attempts of a group fence each
            other.
        backfill_policy: how a backfill is divided into runs. By default one run delivers all windows in one pass; an
            asset that depends on its own partition before has one run for each partition.
    """

    tags: Mapping[str, Any] | None = None
    retry_policy: RetryPolicy | None = None
    pool: str | None = None
    backfill_policy: BackfillPolicy | None = None

    def arguments(self, backfill_policy: BackfillPolicy) -> dict[str, Any]:
        """Return the arguments of `dagster.multi_asset`.

        Args:
            backfill_policy: that of the step, which has a default.
        """
        return {
            "op_tags": self.tags,
            "retry_policy": self.retry_policy,
            "pool": self.pool,
            "backfill_policy": backfill_policy,
        }


#: A step for which nothing is set.
DEFAULT_OP: Final = WindowOp()


def check_op(op: object) -> None:
    """Raise `ConfigError` for what is not a `WindowOp`."""
    if not isinstance(op, WindowOp):
        raise ConfigError(f"op is {shown(op)}: give a WindowOp, such as WindowOp(pool='kafka')")
