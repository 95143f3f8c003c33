"""Where a window's files go, and how they become visible: all at once, and again after a crash.

An attempt writes to a hidden stage, and a marker that comes last makes it complete; see `layout`. How it becomes
visible depends on where it is; see `publisher`. The windows of a folder are distinguished by their ids. Of two groups
that use the same id, the one that comes later is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.output.filesystem import normal_root
from kafka_ordered_ops.output.layout import Facts as Facts
from kafka_ordered_ops.output.layout import Layout
from kafka_ordered_ops.output.parts import in_part_order
from kafka_ordered_ops.output.publisher import publisher_of


@dataclass(frozen=True)
class StagedOutput(Layout):
    """The output of one attempt at a window: everything another process needs to publish or discard it.

    Args:
        root: the folder that holds the output of all windows: a path, a ``file:`` URI, or a prefix in an object
            store, such as ``s3://bucket/lake/orders``.
        window_id: the window.
        claim_id: the plan's claim.
        attempt: the attempt that wrote.
        part: the part of a split window that was written; None: the whole window.
        facts: counts and times of what was written; none before `seal`.
        group_id: the consumer group of the window; None: unknown.
        folder: the name of the folder that readers see; empty: named after the id alone.
        holding: the files that were written; None before `seal`.
        storage_options: credentials and settings of an object store.
        seen_published: whether `found` saw that readers see it.

    Raises:
        ConfigError: an argument that cannot be part of a path, or a part that does not exist.
    """

    seen_published: bool = field(default=False, repr=False, compare=False)

    def exists(self) -> bool:
        """Return whether the stage is there and complete, with all the files that were written.

        Raises:
            SinkError: the file system failed.
        """
        return publisher_of(self).staged(self) is not None

    def is_published(self) -> bool:
        """Return whether readers see the output of this very attempt, with all its rows.

        Raises:
            SinkError: the file system failed.
        """
        return publisher_of(self).shown(self) is not None

    def as_found(self) -> StagedOutput:
        """Return this output with the facts of its stage's marker, if there is one."""
        return publisher_of(self).as_found(self)

    def check_ready(self) -> None:
        """Check, before the window is committed, whether `publish` could publish the output; nothing is changed.

        Raises what `publish` raises.
        """
        self.check_ready_with([self])

    def check_ready_with(self, outputs: Sequence[object]) -> Sequence[object]:
        """Check those of some outputs that are below the same root, of which this is one; return them."""
        together = self._below_the_same_root(outputs)
        publisher_of(self).check_ready(together)
        return together

    def publish(self) -> None:
        """Put the stage in the place of the window's older output. Repeating it changes nothing.

        Raises:
            ConfigError: a part of a split window; only the whole is published.
            SinkError: there is neither a complete stage nor this attempt's published output; or files of it are
                gone; or the place is taken by another group's window, or by something that this package did
                not write; or the file system failed. What is visible stays as it is.
            WindowSupersededError: a newer attempt of the same claim is published already.
        """
        self.publish_with([self])

    def publish_with(self, outputs: Sequence[object]) -> Sequence[object]:
        """Publish those of some outputs that are below the same root, of which this is one; return them."""
        together = self._below_the_same_root(outputs)
        publisher_of(self).publish(together)
        return together

    def discard(self) -> None:
        """Remove the stage, and a whole window's parts; published output stays. Repeating it changes nothing."""
        publisher_of(self).discard(self)

    @staticmethod
    def clean(
        root: str | os.PathLike[str],
        *,
        older_than: timedelta | str = "P7D",
        storage_options: Mapping[str, Any] | None = None,
    ) -> int:
        """Remove what attempts have staged and nobody will finish; return how many files.

        Published files are not touched. Complete stages stay unless readers see something newer of their window, because
        they may have been committed: `OrderedWindows.clean` asks the ledger and removes those of no use as well. The next
        publication of a window removes what its older attempts left.

        Args:
            root: the folder or prefix that the windows were written to.
            older_than: how long ago a stage was last written to. Longer than a written window may wait for its
                commit, and than a job may take.
            storage_options: credentials and settings of the store; None: as the environment has them.

        Raises:
            ConfigError: an invalid argument.
            SinkError: the store or the file system failed.
        """
        from kafka_ordered_ops.output.cleaning import leftovers
        from kafka_ordered_ops.output.roots.leftovers import before, choose

        old = before(older_than, what="older_than")
        stages = leftovers(root, storage_options)
        dead = choose(stages, old).dead
        return sum(map(stages.remove, dead)) + stages.remove_probes(old)

    def _below_the_same_root(self, outputs: Sequence[object]) -> list[StagedOutput]:
        found = [
            one
            for one in outputs
            if isinstance(one, StagedOutput)
            and (one.root, one.storage_options) == (self.root, self.storage_options)
        ]
        for one in found:
            one._check_whole()
        return found

    def _check_whole(self) -> None:
        if self.part is not None:
            raise ConfigError(
                f"{self.part} of window {self.window_id} cannot be published alone: join all parts first "
                "(StagedOutput.merged)"
            )

    @classmethod
    def merged(cls, parts: Sequence[StagedOutput]) -> StagedOutput:
        """Join the complete parts of a split window to one complete stage of the whole window.

        Its files are those of the parts, by name part after part; its facts are those of the parts, added
        up. The parts' stages are gone afterwards. Again, also after a crash anywhere in between: the same
        output, from wherever it got to.

        Raises:
            ConfigError: these are not all parts of one split of one attempt, each once.
            SinkError: a part's stage is not there, or not complete; or the file system failed.
        """
        parts = in_part_order(parts)
        whole = parts[0].whole
        return publisher_of(whole).merged(whole, parts)

    @classmethod
    def found(
        cls,
        result: Mapping[str, Any],
        storage_options: Mapping[str, Any] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
    ) -> StagedOutput | None:
        """Return what an earlier attempt left, from its JSON in the ledger; None if it is gone or has another format.

        An output with missing files counts as gone: it is written again, never published. With `root` it is looked for
        there, wherever it was written: a root may have been moved, together with what is beside it.

        A part counts as there when the whole window's output is. Of a window that was split, the ledger keeps
        ``{"parts": [...]}``: its parts are joined (`merged`). For `OrderedWindows.deliver`.
        """
        parts = result.get("parts")
        try:
            several = parts if isinstance(parts, list) else [dict(result)]
            outputs = [cls.from_json(Fields(one, "result"), storage_options) for one in several]
            if root is not None:
                outputs = [replace(one, root=normal_root(root)) for one in outputs]
            if not isinstance(parts, list):
                return outputs[0]._found()
            return cls.merged(outputs) if all(one._found() for one in outputs) else None
        except (JsonError, ConfigError):
            return None

    def _found(self) -> StagedOutput | None:
        """Return this output as it was found, by as few looks as possible; None if it is gone."""
        whole = self.whole
        if self.part is not None and self.exists():
            return self
        if whole.is_published():
            return replace(self, seen_published=True)
        # Once more: a publication of this attempt may have come between.
        return self if whole.exists() or whole.is_published() else None


def output_of(result: Any, plan: WindowPlan) -> StagedOutput | None:
    """Return the output that a window's result describes; None for a result of another sink or window, or no result.

    Of a window whose parts have reported it is the place of the whole, which has no counts until they are
    joined.
    """
    if not isinstance(result, Mapping):
        return None
    try:
        parts = result.get("parts")
        several = parts if isinstance(parts, list) and parts else [dict(result)]
        output = StagedOutput.from_json(Fields(several[0], "result")).whole
    except JsonError:
        return None
    wanted = (plan.ledger_id, plan.group_id, plan.window_id, plan.claim_id)
    owner = output.owner
    found = (owner.ledger_id, owner.group_id, owner.window_id, owner.claim_id)
    return output if found == wanted else None
