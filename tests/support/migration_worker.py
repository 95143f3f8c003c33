"""Migrates a group in a process of its own, and kills it on the way: ``python -m tests.support.migration_worker``.

Arguments: point, bootstrap, group, target. See `tests.support.kill_points`: nothing softens the end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from kafka_ordered_ops.kafka.ledger import ledger, transaction
from kafka_ordered_ops.windows import OrderedWindows
from kafka_ordered_ops.windows.group_facts import GroupMover
from kafka_ordered_ops.windows.upkeep.maintenance import Maintenance


class MigrationKill(StrEnum):
    """Between any two steps of a migration."""

    #: Group and logs are looked at, nobody is fenced.
    AFTER_LOOK = "after_look"
    #: The others are fenced, and the change is decided.
    AFTER_DECISION = "after_decision"
    #: A transaction is open, with the ledger's records.
    BEFORE_OFFSETS = "before_offsets"
    #: It has the offsets as well.
    BEFORE_COMMIT = "before_commit"
    #: All is stored, and nobody was told.
    AFTER_COMMIT = "after_commit"
    #: All is stored, and not read back.
    BEFORE_READ_BACK = "before_read_back"

    @property
    def is_stored(self) -> bool:
        """Whether the migration is done by then."""
        return self in (MigrationKill.AFTER_COMMIT, MigrationKill.BEFORE_READ_BACK)


def _wrap(owner: Any, name: str, *, before: bool = False) -> None:
    """Has a function end the process, when it is called or when it has returned."""
    function: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> None:
        if not before:
            function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, call)


def main() -> None:
    """Migrates."""
    point, bootstrap, group_id, target = sys.argv[1:]
    match MigrationKill(point):
        case MigrationKill.AFTER_LOOK:
            _wrap(GroupMover, "look")
        case MigrationKill.AFTER_DECISION:
            _wrap(ledger, "offsets_to_commit", before=True)
        case MigrationKill.BEFORE_OFFSETS:
            _wrap(transaction, "send_offsets_to_transaction", before=True)
        case MigrationKill.BEFORE_COMMIT:
            _wrap(transaction, "send_offsets_to_transaction")
        case MigrationKill.AFTER_COMMIT:
            _wrap(transaction.FencedTransaction, "_write")
        case MigrationKill.BEFORE_READ_BACK:
            _wrap(Maintenance, "_check_written", before=True)
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
        windows.migrate(target)


if __name__ == "__main__":
    main()
