"""The two ways of publishing, and which one a root uses.

*Rename*: in local and mounted folders, and in HDFS, a stage moves into place as a whole. *Manifest*: in object stores,
which cannot rename, a small object that is replaced by conditional writes names the files that make up a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from kafka_ordered_ops.output.address import is_in_store
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.layout import Facts, Layout, Output
from kafka_ordered_ops.output.ports import Files
from kafka_ordered_ops.output.renaming import RenamePublisher


class Publisher(Protocol):
    """How outputs below one root are staged and become visible. Repeating a step changes nothing.

    Every step raises `SinkError` if the place is taken or the store fails, and `publish` also
    `WindowSupersededError` if a newer attempt of the claim is published.
    """

    def check_root(self, output: Layout) -> None:
        """Raise `ConfigError` or `SinkError` if no window like this one may be written to its root."""

    def make(self, drafts: Sequence[tuple[Layout, str]]) -> None:
        """Begin jobs' drafts, each with its token, in a root that was checked."""

    def seal(self, output: Output, token: str, facts: Facts) -> Output:
        """Complete a draft: count the rows of its files, and describe it."""

    def land(self, drafts: Sequence[tuple[Layout, str]]) -> None:
        """Make sealed drafts the attempts' stages."""

    def drop(self, output: Layout, token: str) -> None:
        """Remove a draft; output that has landed stays."""

    def staged(self, output: Output) -> Output | None:
        """Return the attempt's stage as it was sealed, if all of its files exist."""

    def shown(self, output: Output, *, newer: bool = False) -> Output | None:
        """Return the output that readers see, if it is this very attempt's and has all its rows.

        With `newer`, it may also be that of a newer attempt of the claim.
        """

    def as_found(self, output: Output) -> Output:
        """Return an output with the facts of its stage, if there is one."""

    def merged(self, whole: Output, parts: Sequence[Output]) -> Output:
        """Join complete parts to one complete stage of the whole window."""

    def check_ready(self, outputs: Sequence[Layout]) -> None:
        """Raise what `publish` would raise, without changing anything."""

    def publish(self, outputs: Sequence[Layout]) -> None:
        """Make the stages what readers see."""

    def discard(self, output: Layout) -> None:
        """Remove the stage, and a whole window's parts; published output stays."""


_RENAMES: Final = RenamePublisher()


def publisher_of(output: Layout) -> Publisher:
    """Return how an output is published.

    Raises:
        ConfigError: an unknown scheme, a missing library, or invalid options.
    """
    if is_in_store(output.root):
        from kafka_ordered_ops.output.objects.publisher import ManifestPublisher

        return ManifestPublisher(output.root, output.storage_options)
    return _RENAMES


def files_of(root: str, storage_options: Mapping[str, Any] | None = None) -> Files:
    """Return the files of a root as `normal_root` returns it; raise as `publisher_of` does."""
    if is_in_store(root):
        from kafka_ordered_ops.output.objects.files import ObjectFiles
        from kafka_ordered_ops.output.objects.store import open_store

        return ObjectFiles(open_store(root, storage_options))
    return files_for(root, storage_options)
