"""Maintain a group: adopt changes of other programs, share it with Parallel Consumer, and prune old windows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffsets
from kafka_ordered_ops.core.errors import ForeignCommitError
from kafka_ordered_ops.core.group.checks import check_only_forward, unpublished_text
from kafka_ordered_ops.core.group.decisions import adoption, migrating
from kafka_ordered_ops.core.group.decisions.adoption import Adoption
from kafka_ordered_ops.core.group.decisions.migrating import Migration
from kafka_ordered_ops.core.group.decisions.pruning import (
    PRUNED_AT_ONCE_MAX,
    is_pruned,
    may_be_pruned,
    prune,
)
from kafka_ordered_ops.core.group.group_state import Change, GroupView, WindowRecord
from kafka_ordered_ops.core.group.ledger.repair import RestoredRecord
from kafka_ordered_ops.core.group.ledger_rules import is_own_commit
from kafka_ordered_ops.core.group.shared_commits import shared_commits
from kafka_ordered_ops.core.group.transitions import Outcome
from kafka_ordered_ops.core.types import ProgressFormat
from kafka_ordered_ops.windows.checks import present
from kafka_ordered_ops.windows.group_facts import GroupFacts, GroupMover

_log = logging.getLogger("kafka_ordered_ops.windows")


class Maintenance:
    """Adopt, migrate and prune for one group."""

    def __init__(self, mover: GroupMover, *, clock: Callable[[], float]) -> None:
        self._mover = mover
        self._group = mover.group_id
        self._ledger = mover.ledger
        self._clock = clock

    def adopt(self, *, dry_run: bool) -> Adoption:
        """See `OrderedWindows.adopt`."""
        adopted = self._mover.move("an adoption", _adopted, dry_run=dry_run, takes_unknown=True)
        if not dry_run:
            self._tell(adopted, logging.WARNING)
        return adopted

    def take_over(self) -> None:
        """Adopt the progress of Parallel Consumer; raise `ForeignCommitError` for any other change."""

        def decide(facts: GroupFacts) -> tuple[Change | None, Adoption]:
            check_only_forward(facts.view, facts.others)
            return _adopted(facts)

        self._tell(self._mover.move("an adoption", decide, dry_run=False), logging.INFO)

    def migrate(self, to: ProgressFormat, *, adopts: bool, dry_run: bool) -> Migration:
        """See `OrderedWindows.migrate`."""

        def decide(facts: GroupFacts) -> tuple[Change | None, Migration]:
            return migrating.migrate(
                facts.view,
                facts.committed,
                facts.others,
                facts.logs,
                facts.topics,
                to,
                adopts=adopts,
            )

        migration = self._mover.move("a migration", decide, dry_run=dry_run)
        if migration.changed and not dry_run:
            self._check_written(to)
            _log.info("group %s: migrated from %s to %s", self._group, migration.before, to)
        return migration

    def prune(self, older_than: timedelta | str, *, forget: bool) -> list[str]:
        """See `OrderedWindows.prune`."""
        age = as_span(older_than, what="older_than")
        before_ms = int(self._clock() * 1000) - age // timedelta(milliseconds=1)
        old: dict[str, int] = {}

        def keep(record: WindowRecord) -> bool:
            # Keep only this of a hundred thousand windows.
            if may_be_pruned(record, before_ms=before_ms, forget=forget):
                old[record.plan.window_id] = record.touched_at_ms
            return False

        view = self._ledger.read(self._group, keep=keep)
        waiting = [name for name in (view.state.unpublished if view.state else ()) if name in old]
        if waiting:
            _log.warning("group %s: left as they are: %s", self._group, unpublished_text(waiting))
        names = sorted(old.keys() - set(waiting), key=lambda name: (old[name], name))
        pruned: list[str] = []
        for at in range(0, len(names), PRUNED_AT_ONCE_MAX):
            batch = names[at : at + PRUNED_AT_ONCE_MAX]
            pruning = partial(_pruning, batch, before_ms=before_ms, forget=forget)
            after = self._ledger.update(self._group, pruning, wanted=batch)
            # Some windows may have been planned again since they were read.
            pruned += [name for name in batch if is_pruned(present(after), name, forget=forget)]
        return pruned

    def restore(self, offset: int, *, dry_run: bool) -> RestoredRecord:
        """See `OrderedWindows.restore_record`."""
        restored = self._ledger.restore(self._group, offset, dry_run=dry_run)
        if not dry_run:
            _log.warning(
                "group %s: the %s record %r at offset %d of the ledger %s",
                self._group,
                restored.kind,
                restored.name,
                offset,
                "was removed"
                if restored.restored_from is None
                else f"was replaced by the one from offset {restored.restored_from}",
            )
        return restored

    # --- internals -------------------------------------------------------------------------------

    def _tell(self, adopted: Adoption, level: int) -> None:
        for partition in adopted.moved:
            _log.log(
                level,
                "group %s: adopted %s: %s, progress moved from %d to %d, %d offsets done beyond",
                self._group,
                partition.tp,
                partition.cause,
                partition.base_before,
                partition.base_after,
                partition.done.count,
            )

    def _check_written(self, to: ProgressFormat) -> None:
        """Read the group's commits back; raise `ForeignCommitError` unless they match the ledger byte for byte."""
        facts = self._mover.look(settle=False)
        state = facts.view.state
        if state is None or state.format is not to:
            # Another process has migrated the group since.
            return
        shared = shared_commits(state, facts.topics) if to.is_shared else {}
        moved = {
            str(tp): (partition.committed, None if commit is None else commit.offset)
            for tp, partition in state
            if tp in facts.logs
            and (
                (commit := facts.committed.get(tp)) is None
                or commit.offset != partition.committed
                or (commit != shared.get(tp) if to.is_shared else not is_own_commit(commit))
            )
        }
        if moved:
            raise ForeignCommitError(
                f"group {self._group}: the migration to {to} is stored, but the commits of {', '.join(list(moved)[:8])} "
                "are not the ones it wrote: another program committed at the same moment. Stop it, and check the group "
                "(`offsets show`)",
                moved=moved,
            )


def _adopted(facts: GroupFacts) -> tuple[Change | None, Adoption]:
    return adoption.adopt(facts.view, facts.others, facts.logs, facts.topics)


def _pruning(
    names: list[str], *, before_ms: int, forget: bool
) -> Callable[[GroupView, CommittedOffsets], Outcome]:
    def decide(view: GroupView, _: CommittedOffsets) -> Outcome:
        change = prune(view, names, before_ms=before_ms, forget=forget)
        return () if change is None else change

    return decide
