"""Find and remove what attempts left in the stages of a root, in a folder or in an object store.

Nothing that readers see is removed. What a dead replacement moved aside is restored first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from kafka_ordered_ops.output.address import control_folder, is_in_hdfs, is_in_store
from kafka_ordered_ops.output.filesystem import (
    MARKER_BYTES_MAX,
    as_sink_error,
    is_own_folder,
    normal_root,
)
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.hdfs.files import is_scrap
from kafka_ordered_ops.output.hdfs.turn import TURNS
from kafka_ordered_ops.output.layout import (
    MERGING,
    Layout,
    published_tags,
    stages_folder,
)
from kafka_ordered_ops.output.roots.healing import heal_others
from kafka_ordered_ops.output.roots.leftovers import Left, Leftovers, origin_in
from kafka_ordered_ops.output.roots.ownership import (
    STAGE_NAME,
    marks_in,
    remove_tagged,
)
from kafka_ordered_ops.output.roots.root_owner import read_owner


def leftovers(
    root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Leftovers:
    """Return the stages of a root; raise `ConfigError` for an invalid root or option."""
    root = normal_root(root)
    if not is_in_store(root):
        return _Folders(root, storage_options)
    from kafka_ordered_ops.output.objects.cleaning import ObjectLeftovers

    return ObjectLeftovers(root, storage_options)


class _Folders:
    """The stages of a root in a file system: they are folders, and a lock keeps publishers apart."""

    def __init__(self, root: str, storage_options: Mapping[str, Any] | None) -> None:
        self._files = files_for(root, storage_options)
        self.root, self._stages = root, stages_folder(root)

    def owner(self) -> str | None:
        with as_sink_error(f"the owner of {self.root} cannot be read"):
            owner = read_owner(self._files, self.root)
        return None if owner is None else owner.ledger_id

    def shown(self, left: Left) -> Layout | None:
        if (window_id := left.origin.window_id) is None:
            return None
        with as_sink_error(f"the windows below {self.root} cannot be read"):
            tags = published_tags(self._files, self.root, window_id)
            markers = (Layout.read_published(self._files, self.root, tag) for tag in tags)
            return next(
                (marker for marker in markers if marker and marker.window_id == window_id), None
            )

    def found(self) -> list[Left]:
        with as_sink_error(f"the stages of {self.root} cannot be read"):
            # After this, an output that did not reach its place is a stage again, and may be removed.
            heal_others(self._files, self.root)
            return [
                self._left(window, attempt, paths)
                for window in self._files.names(self._stages)
                for attempt, paths in self._attempts(window).items()
            ]

    def remove(self, left: Left) -> int:
        with (
            as_sink_error(f"what {left.attempt} has left in {self._stages} cannot be removed"),
            self._files.locked(self._stages, f"{self._stages}/{left.window}"),
        ):
            paths = self._attempts(left.window).get(left.attempt, [])
            if not paths or self._left(left.window, left.attempt, paths).modified > left.modified:
                return 0
            # Parts before the files that were moved out of them.
            for path in sorted(paths, key=lambda path: path.endswith("~merging")):
                remove_tagged(self._files, self.root, path)
            self._files.remove_if_empty(f"{self._stages}/{left.window}")
        return left.files

    def remove_probes(self, before: datetime) -> int:
        """Remove the files of checks, temporary files and turns that killed processes left in HDFS."""
        if not is_in_hdfs(self.root):
            return 0
        # A check writes to the nearest existing folder.
        places = [self.root, place := control_folder(self.root)]
        while place.count("/") > 2:
            places.append(place := place.rpartition("/")[0])
        old = []
        with as_sink_error(f"what is left beside {self.root} cannot be removed"):
            for place in places:
                # Folders above may be closed to this user.
                with suppress(PermissionError):
                    paths = [f"{place}/{name}" for name in self._files.names(place)]
                    old += [
                        file for file in paths if is_scrap(file) and self._is_older(file, before)
                    ]
            for path in old:
                self._files.remove(path)
            turns = f"{self._stages}/{TURNS}"
            for name in self._files.names(turns):
                if self._is_older(f"{turns}/{name}", before):
                    # Taking a turn puts back what its holder had moved, and removes turns that never started.
                    with self._files.locked(self._stages, f"{self._stages}/{name}"):
                        pass
        return len(old)

    def _is_older(self, path: str, before: datetime) -> bool:
        times = [at for _, _, at in self._files.below(path)]
        return bool(times) and max(times) < before.timestamp()

    def _attempts(self, window: str) -> dict[str, list[str]]:
        """Return the folders of each attempt at a window, without those of other programs."""
        attempts: dict[str, list[str]] = {}
        folder = f"{self._stages}/{window}"
        for name in self._files.names(folder) if self._files.is_folder(folder) else ():
            stage, path = STAGE_NAME.fullmatch(name), f"{folder}/{name}"
            if stage is None or not self._files.is_folder(path):
                continue
            if stage[3] or is_own_folder(self._files, path):
                attempts.setdefault(f"{stage[1]}-{stage[2]}", []).append(path)
        return attempts

    def _left(self, window: str, attempt: str, paths: Sequence[str]) -> Left:
        every = [entry for path in paths for entry in self._files.below(path)]
        markers = [marker for path in paths for marker in marks_in(self._files, self.root, path)]
        complete = [
            path
            for path in paths
            if "~" not in (path.rpartition("/")[2]) or "~part-" in path or path.endswith(MERGING)
        ]
        return Left(
            window,
            attempt,
            origin_in(map(self._files.read, markers), limit_bytes=MARKER_BYTES_MAX),
            any(Layout.read(self._files, self.root, path) is not None for path in complete),
            sum(1 for is_file, _, _ in every if is_file),
            sum(size for is_file, size, _ in every if is_file),
            datetime.fromtimestamp(max((at for _, _, at in every), default=0), UTC),
        )
