"""Where a window's files go, and how they become visible: all at once, and again after a crash.

An attempt writes to a hidden stage, and a marker that comes last makes it complete; see `layout`. How it becomes
visible depends on where it is; see `publisher`. The windows of a folder are distinguished by their ids. Of two groups
that use the same id, the one that comes later is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import Fields, JsonError
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
        group_id: the consumer group of the window; None: unknown, as for outputs of earlier versions.
        folder: the name of the folder that readers see; None: named after the id alone, as by earlier versions.
        holding: the files that were written; None before `seal`, and from earlier versions.
        storage_options: credentials and settings of an object store.

    Raises:
        ConfigError: an argument that cannot be part of a path, or a part that does not exist.
    """

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
        self._check_whole()
        publisher_of(self).check_ready(self)

    def publish(self) -> None:
        """Put the stage in the place of the window's older output. Repeating it changes nothing.

        Raises:
            ConfigError: a part of a split window; only the whole is published.
            SinkError: there is neither a complete stage nor this attempt's published output; or files of it are
                gone; or the place is taken by another group's window, or by something that this package did
                not write; or the file system failed. What is visible stays as it is.
            WindowSupersededError: a newer attempt of the same claim is published already.
        """
        self._check_whole()
        publisher_of(self).publish(self)

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

        Published files are not touched. The next publication of a window removes what its older attempts left, so
        only windows that are never delivered need this.

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

        before = datetime.now(UTC) - as_span(older_than, what="older_than")
        stages = leftovers(root, storage_options)
        old = [one for one in stages.found() if one.modified < before]
        return sum(map(stages.remove, old)) + stages.remove_probes(before)

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
        cls, result: Mapping[str, Any], storage_options: Mapping[str, Any] | None = None
    ) -> StagedOutput | None:
        """Return what an earlier attempt left, from its JSON in the ledger; None if it is gone or has another format.

        An output with missing files counts as gone: it is written again, never published.

        A part counts as there when the whole window's output is. Of a window that was split, the ledger keeps
        ``{"parts": [...]}``: its parts are joined (`merged`). For `OrderedWindows.deliver`.
        """
        parts = result.get("parts")
        try:
            if not isinstance(parts, list):
                output = cls.from_json(Fields(dict(result), "result"), storage_options)
                return output if output._is_there() else None
            outputs = [cls.from_json(Fields(part, "result"), storage_options) for part in parts]
            return cls.merged(outputs) if all(one._is_there() for one in outputs) else None
        except (JsonError, ConfigError):
            return None

    def _is_there(self) -> bool:
        return any(one.exists() or one.is_published() for one in (self, self.whole))


def output_of(result: Any) -> StagedOutput | None:
    """Return the output that a window's result describes; None for a result of another sink, or no result.

    Of a window whose parts have reported it is the place of the whole, which has no counts until they are
    joined.
    """
    if not isinstance(result, Mapping):
        return None
    try:
        parts = result.get("parts")
        if isinstance(parts, list) and parts:
            return StagedOutput.from_json(Fields(parts[0], "result")).whole
        return StagedOutput.from_json(Fields(dict(result), "result"))
    except JsonError:
        return None
