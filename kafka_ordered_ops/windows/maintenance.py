"""Maintain a group: adopt changes of other programs, share it with Parallel Consumer, and prune old windows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.cluster_facts import CommittedOffsets
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
    """Adopts, migrates and prunes for one group."""

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
        """Adopt what Parallel Consumer has done; raise `ForeignCommitError` for anything else."""

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
            # Of a hundred thousand windows no more is kept than this.
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
            some = names[at : at + PRUNED_AT_ONCE_MAX]
            pruning = partial(_pruning, some, before_ms=before_ms, forget=forget)
            after = self._ledger.update(self._group, pruning, wanted=some)
            # Some may have been planned again since they were read.
            pruned += [name for name in some if is_pruned(present(after), name, forget=forget)]
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

    # --- inside ----------------------------------------------------------------------------------

    def _tell(self, adopted: Adoption, level: int) -> None:
        for one in adopted.moved:
            _log.log(
                level,
                "group %s: adopted %s: %s, progress moved from %d to %d, %d offsets done beyond",
                self._group,
                one.tp,
                one.cause,
                one.base_before,
                one.base_after,
                one.done.count,
            )

    def _check_written(self, to: ProgressFormat) -> None:
        """Read the group's commits back, and raise `ForeignCommitError` if they are not those of the ledger, to the byte."""
        facts = self._mover.look(settle=False)
        state = facts.view.state
        if state is None or state.format is not to:
            # Migrated on by another process.
            return
        shared = shared_commits(state, facts.topics) if to.is_shared else {}
        moved = {
            str(tp): (partition.committed, None if found is None else found.offset)
            for tp, partition in state
            if tp in facts.logs
            and (
                (found := facts.committed.get(tp)) is None
                or found.offset != partition.committed
                or (found != shared.get(tp) if to.is_shared else not is_own_commit(found))
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
