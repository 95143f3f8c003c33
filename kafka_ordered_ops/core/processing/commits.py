"""How a group's progress is committed, and how outputs are written: the two go together."""

from __future__ import annotations

from enum import StrEnum

from kafka_ordered_ops.core.arguments import check_choice
from kafka_ordered_ops.core.errors import ConfigError


class CommitMode(StrEnum):
    """What a commit of a group's progress waits for.

    `PERIODIC_ASYNC`: reading continues during a commit. `PERIODIC_SYNC`: reading waits for the answer.
    `TRANSACTIONAL`: each commit is a Kafka transaction; reading waits for its end.
    """

    PERIODIC_ASYNC = "periodic_async"
    PERIODIC_SYNC = "periodic_sync"
    TRANSACTIONAL = "transactional"


class ProduceMode(StrEnum):
    """How the outputs of a function are written.

    `IDEMPOTENT`: at least once; a record counts as done when all replicas in sync have its outputs. `TRANSACTIONAL`: in the
    transaction that commits their record, exactly once.
    """

    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"


def modes_of(
    commit: CommitMode | str | None, produce: ProduceMode | str | None
) -> tuple[CommitMode, ProduceMode | None]:
    """Return checked modes; by default, the commit mode that fits the outputs. Raise `ConfigError` for invalid modes."""
    mode = None if produce is None else check_choice(produce, ProduceMode, what="produce")
    is_transactional = mode is ProduceMode.TRANSACTIONAL
    if commit is None:
        default = CommitMode.TRANSACTIONAL if is_transactional else CommitMode.PERIODIC_ASYNC
        return default, mode
    chosen = check_choice(commit, CommitMode, what="commit")
    if mode is not None and (chosen is CommitMode.TRANSACTIONAL) != is_transactional:
        raise ConfigError(
            f"commit={str(chosen)!r} with produce={str(mode)!r}: transactional outputs need transactional commits, and other "
            "outputs do not allow them. Leave out commit"
        )
    return chosen, mode
