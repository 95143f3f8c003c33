"""Outputs that are staged, published or cleaned in a wrong way: in an object store, and in a folder. See `mutants`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from kafka_ordered_ops import SinkError, WindowSupersededError
from kafka_ordered_ops.output import filesystem
from kafka_ordered_ops.output.filesystem import (
    MARKER_NAME,
    TAG_PREFIX,
    LocalFiles,
    marker_path,
)
from kafka_ordered_ops.output.layout import Layout, new_tag, published_marker
from kafka_ordered_ops.output.objects.layout import Manifest
from kafka_ordered_ops.output.objects.publisher import ManifestPublisher
from kafka_ordered_ops.output.ports import Folders
from kafka_ordered_ops.output.renaming import RenamePublisher
from kafka_ordered_ops.output.roots import locking
from kafka_ordered_ops.windows import delivery
from kafka_ordered_ops.windows.queries.group import GroupQueries
from tests.simulation.store import SimulatedStore


def published_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Publish outputs, then commit their windows."""
    finish = delivery._finish

    def early(steps: Any, plans: Any, outputs: Mapping[str, Any], again: Any) -> None:
        with suppress(SinkError, WindowSupersededError):
            for plan in plans:
                outputs[plan.window_id].publish()
        finish(steps, plans, outputs, again)

    patch.setattr(delivery, "_finish", early)


def written_without_conditions(patch: pytest.MonkeyPatch) -> None:
    """Write over whatever another process has written."""
    exact = SimulatedStore.put_if

    def anyway(self: SimulatedStore, path: str, content: bytes, seen: Any) -> Any:
        found = self._objects.get(path)
        return exact(self, path, content, None if found is None else found.state)

    patch.setattr(SimulatedStore, "put_if", anyway)


def named_before_they_are_copied(patch: pytest.MonkeyPatch) -> None:
    """Write the names of the files with the claim to publish them."""
    put = ManifestPublisher._put

    def early(self: ManifestPublisher, output: Any, manifest: Manifest, seen: Any) -> Any:
        if manifest.publisher is not None and (seal := self._seal(output)) is not None:
            names = manifest.left[len(manifest.left) - len(seal.files) :]
            files = dict(zip(names, seal.files.values(), strict=True))
            manifest = replace(manifest, output=seal.output, files=files)
        return put(self, output, manifest, seen)

    patch.setattr(ManifestPublisher, "_put", early)


def output_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """Commit windows without their outputs."""

    def nothing(steps: Any, plans: Any, outputs: Mapping[str, Any], again: Any) -> None:
        steps.commit_many([plan for plan in plans if plan.status.is_open])

    patch.setattr(delivery, "_finish", nothing)


# --- in a folder ---------------------------------------------------------------------------------


def replaced_by_two_renames(patch: pytest.MonkeyPatch) -> None:
    """Move the older folder aside, though the file system can exchange the two."""
    patch.setattr(LocalFiles, "exchange", lambda self, first, second: False)


def root_not_locked(patch: pytest.MonkeyPatch) -> None:
    """Take every lock at once."""
    patch.setattr(filesystem, "try_lock", lambda file: True)


def nothing_healed(patch: pytest.MonkeyPatch) -> None:
    """Leave what is in the folder of replacements."""
    patch.setattr(locking, "is_cut_short", lambda files, root: False)


def marker_moved_before_its_tag(patch: pytest.MonkeyPatch) -> None:
    """Move the marker out of a stage that has no tag yet."""

    def early(self: RenamePublisher, files: Folders, outputs: Sequence[Layout]) -> list[str]:
        tags = [new_tag(output.window_id) for output in outputs]
        for output, tag in zip(outputs, tags, strict=True):
            marker, stage = published_marker(output.root, tag), output.stage_path
            files.make_folder(marker.rpartition("/")[0])
            if files.exists(marker_path(stage)):
                files.rename(marker_path(stage), marker)
            for name in files.names(stage):
                if name.startswith("_") and name != MARKER_NAME:
                    files.remove(f"{stage}/{name}")
            files.make_folder(f"{stage}/{TAG_PREFIX}{tag}")
        return tags

    patch.setattr(RenamePublisher, "_take_markers_out", early)


def dead_replays_not_found(patch: pytest.MonkeyPatch) -> None:
    """Look for the output that the ledger has, and for no newer one."""
    patch.setattr(Layout, "newer", lambda self, marker: self)


def cleaned_without_asking(patch: pytest.MonkeyPatch) -> None:
    """Need no stage."""
    patch.setattr(GroupQueries, "needed_outputs", lambda self, outputs: set())
