"""The two kinds of publishing, and which one a root has.

*Rename*: local and mounted folders, and HDFS; a stage moves into place as a whole. *Manifest*: object stores, which cannot
rename; a small object that moves by conditional writes names the files that make up a window.
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

    Every step raises `SinkError` when the place is taken or the store fails, and `publish` also
    `WindowSupersededError` when a newer attempt of the claim is published.
    """

    def check_root(self, output: Layout) -> None:
        """Raise `ConfigError` or `SinkError` when no window like this one may be written to its root."""

    def make(self, drafts: Sequence[tuple[Layout, str]]) -> None:
        """Begin jobs' drafts, each with its token, in a root that was checked."""

    def seal(self, output: Output, token: str, facts: Facts) -> Output:
        """Complete a draft: count what its files hold, and describe it."""

    def land(self, drafts: Sequence[tuple[Layout, str]]) -> None:
        """Make sealed drafts the attempts' stages."""

    def drop(self, output: Layout, token: str) -> None:
        """Remove a draft; output that has landed stays."""

    def staged(self, output: Output) -> Output | None:
        """Return the attempt's stage as it was sealed, if all of it is there."""

    def shown(self, output: Output) -> Output | None:
        """Return what readers see, if that is this very attempt's and has all its rows."""

    def as_found(self, output: Output) -> Output:
        """Return an output with the facts of its stage, if there is one."""

    def merged(self, whole: Output, parts: Sequence[Output]) -> Output:
        """Join complete parts to one complete stage of the whole window."""

    def check_ready(self, outputs: Sequence[Layout]) -> None:
        """Raise what `publish` would raise; nothing is changed."""

    def publish(self, outputs: Sequence[Layout]) -> None:
        """Make the stages what readers see."""

    def discard(self, output: Layout) -> None:
        """Remove the stage, and a whole window's parts; published output stays."""


_RENAMES: Final = RenamePublisher()


def publisher_of(output: Layout) -> Publisher:
    """Return how an output is published.

    Raises:
        ConfigError: a scheme that this package does not know, a library that is missing, or invalid options.
    """
    if is_in_store(output.root):
        from kafka_ordered_ops.output.objects.publisher import ManifestPublisher

        return ManifestPublisher(output.root, output.storage_options)
    return _RENAMES


def files_of(root: str, storage_options: Mapping[str, Any] | None = None) -> Files:
    """Return the files of a root as `normal_root` gives it; raises as `publisher_of` does."""
    if is_in_store(root):
        from kafka_ordered_ops.output.objects.files import ObjectFiles
        from kafka_ordered_ops.output.objects.store import open_store

        return ObjectFiles(open_store(root, storage_options))
    return files_for(root, storage_options)
