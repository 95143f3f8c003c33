"""Where a window's files are written, and how they become visible: all at once, and also after a crash.

An attempt writes to a hidden stage. The marker, which is written last, makes it complete; see `layout`. How a stage
becomes visible depends on its storage; see `publisher`. The ids distinguish the windows of a folder. If two groups use
the same id, the later one is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.output.filesystem import normal_root
from kafka_ordered_ops.output.layout import Facts as Facts
from kafka_ordered_ops.output.layout import Layout, check_marker_version
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
        dead_letters: the records that the job has left out.
        seen_published: whether `found` saw that readers see it.

    Raises:
        ConfigError: an argument that cannot be part of a path, or a part that does not exist.
    """

    seen_published: bool = field(default=False, repr=False, compare=False)

    def exists(self) -> bool:
        """Return whether the stage exists and is complete, with all the files that were written.

        Raises:
            SinkError: the file system failed.
        """
        return publisher_of(self).staged(self) is not None and self._has_bad()

    def is_published(self) -> bool:
        """Return whether readers see the output of this very attempt, with all its rows.

        Raises:
            SinkError: the file system failed.
        """
        return publisher_of(self).shown(self) is not None

    def as_found(self) -> StagedOutput:
        """Return this output with the facts from its stage's marker, if there is one."""
        return publisher_of(self).as_found(self)

    def check_ready(self) -> None:
        """Check, before the window is committed, that `publish` can publish the output, without changing anything.

        Raises what `publish` raises.
        """
        self.check_ready_with([self])

    def check_ready_with(self, outputs: Sequence[object]) -> Sequence[object]:
        """Check those of several outputs that are below this output's root; return them."""
        together = self._below_the_same_root(outputs)
        if bad := self._bad_of(together):
            publisher_of(bad[0]).check_ready(bad)
        publisher_of(self).check_ready(together)
        return together

    def publish(self) -> None:
        """Put the stage in the place of the window's older output. Repeating it changes nothing.

        Records that the job has left out for a place beside the output are published there first.

        Raises:
            ConfigError: a part of a split window; only the whole is published.
            SinkError: there is neither a complete stage nor this attempt's published output; or some of its files are
                gone; or the place is taken by another group's window, or by something that this package did
                not write; or the file system failed. The visible output stays as it is.
            WindowSupersededError: a newer attempt of the same claim is published already.
        """
        self.publish_with([self])

    def publish_with(self, outputs: Sequence[object]) -> Sequence[object]:
        """Publish those of several outputs that are below this output's root; return them."""
        together = self._below_the_same_root(outputs)
        if bad := self._bad_of(together):
            publisher_of(bad[0]).publish(bad)
        publisher_of(self).publish(together)
        return together

    @staticmethod
    def _bad_of(outputs: Sequence[StagedOutput]) -> list[StagedOutput]:
        """Return what is to be published before these outputs, for those that readers do not see."""
        pairs = [(output, output.bad) for output in outputs]
        # Bad records of an output that readers see were published before it, and may have been removed since.
        return [bad for output, bad in pairs if bad is not None and not output.is_published()]

    def _has_bad(self) -> bool:
        """Return whether the records that the job has left out for a place beside the output are staged or published there."""
        return (bad := self.bad) is None or bad.exists() or bad.is_published()

    def discard(self) -> None:
        """Remove the stage, and a whole window's parts; published output stays. Repeating it changes nothing."""
        publisher_of(self).discard(self)
        if self.bad is not None:
            self.bad.discard()

    @staticmethod
    def clean(
        root: str | os.PathLike[str],
        *,
        older_than: timedelta | str = "P7D",
        storage_options: Mapping[str, Any] | None = None,
    ) -> int:
        """Remove stages that nobody will finish; return how many files.

        Published files are not touched. Complete stages stay unless readers see a newer output of their window, because
        they may have been committed: `OrderedWindows.clean` asks the ledger, and removes obsolete ones too. The next
        publication of a window removes what its older attempts left.

        Args:
            root: the folder or prefix that the windows were written to.
            older_than: how long ago a stage was last written to. Use more than a written window may wait for its
                commit, and more than a job may take.
            storage_options: credentials and settings of the store; None uses those of the environment.

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
        siblings = [
            output
            for output in outputs
            if isinstance(output, StagedOutput)
            and (output.root, output.storage_options) == (self.root, self.storage_options)
        ]
        for output in siblings:
            output._check_whole()
        return siblings

    def _check_whole(self) -> None:
        if self.part is not None:
            raise ConfigError(
                f"{self.part} of window {self.window_id} cannot be published alone: join all parts first "
                "(StagedOutput.merged)"
            )

    @classmethod
    def merged(cls, parts: Sequence[StagedOutput]) -> StagedOutput:
        """Join the complete parts of a split window to one complete stage of the whole window.

        Its files are those of the parts, named part after part; its facts combine those of the parts. The
        parts' stages are removed. Repeating it, also after a crash at any point, resumes and returns the same output.

        Raises:
            ConfigError: the outputs are not all parts of one split of one attempt, each once.
            SinkError: a part's stage is missing or incomplete; or the file system failed.
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
        """Return what an earlier attempt left, by its JSON in the ledger; None if it is gone or of another sink.

        An output with missing files counts as gone: it is written again, never published. With `root`, it is searched
        there instead of where it was written: a root may have been moved, together with the stages beside it.

        A part counts as existing if the whole window's output exists. For a split window, the ledger stores
        ``{"parts": [...]}``: its parts are joined (`merged`). For `OrderedWindows.deliver`.

        Raises:
            OutputVersionError: a newer version of this package wrote the output.
        """
        parts = result.get("parts")
        several = parts if isinstance(parts, list) else [dict(result)]
        for record in several:
            check_marker_version(record, "the ledger's record of a window's output")
        try:
            outputs = [cls.from_json(value, storage_options) for value in several]
            if root is not None:
                outputs = [replace(output, root=normal_root(root)) for output in outputs]
            found = [output._found() for output in outputs]
            if not found or None in found:
                return None
            if not isinstance(parts, list):
                return found[0]
            # A replay may have published the whole window.
            return found[0] if found[0] and found[0].part is None else cls.merged(outputs)
        except (JsonError, ConfigError):
            return None

    def _found(self) -> StagedOutput | None:
        """Return this output if it exists, with as few reads as possible; None if it is gone."""
        whole = self.whole
        if self.part is not None and self.exists():
            return self
        if (seen := publisher_of(whole).shown(whole, newer=True)) is not None:
            if seen.attempt == self.attempt:
                return replace(self, seen_published=True)
            # A replay that died has published it, and the ledger does not have it yet.
            own: Any = {
                "storage_options": self.storage_options,
                "dead_letters": self.dead_letters,
            }
            return replace(seen, seen_published=True, **own)
        # Checked again: this attempt may have been published in between.
        return self if whole.exists() or whole.is_published() else None


def output_of(result: Any, plan: WindowPlan) -> StagedOutput | None:
    """Return the output that a window's result describes; None without a result, or for another sink, window or version.

    For a split window, return the place of the whole, which has no counts until the parts are joined.
    """
    if not isinstance(result, Mapping):
        return None
    try:
        parts = result.get("parts")
        several = parts if isinstance(parts, list) and parts else [dict(result)]
        output = StagedOutput.from_json(several[0]).whole
    except JsonError:
        return None
    expected = (plan.ledger_id, plan.group_id, plan.window_id, plan.claim_id)
    owner = output.owner
    actual = (owner.ledger_id, owner.group_id, owner.window_id, owner.claim_id)
    return output if actual == expected else None
