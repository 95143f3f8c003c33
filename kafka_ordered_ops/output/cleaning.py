"""What attempts have left in the stages of a root, and its removal: in a folder, and in an object store.

Nothing is removed that readers see, and nothing that stands aside for the instant of a publication.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from kafka_ordered_ops.output.address import is_in_store
from kafka_ordered_ops.output.filesystem import (
    MARKER_NAME,
    UNDER_WAY_NAME,
    as_sink_error,
    is_own_folder,
    normal_root,
    tag_in,
)
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.layout import (
    REPLACED_FOLDER,
    Layout,
    old_stages_folder,
    published_marker,
    stages_folder,
)
from kafka_ordered_ops.output.leftovers import Left, Leftovers
from kafka_ordered_ops.output.ownership import (
    STAGE_NAME,
    first_group,
    remove_tagged,
    restore_replaced,
)


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
    """Below a folder: the stages are folders, and a lock keeps publishers apart."""

    def __init__(self, root: str, storage_options: Mapping[str, Any] | None) -> None:
        self._files = files_for(root, storage_options)
        self._root, self._stages = root, stages_folder(root)
        #: Those of earlier versions too.
        self._places = (self._stages, old_stages_folder(root))

    def found(self) -> list[Left]:
        with as_sink_error(f"the stages of {self._root} cannot be looked at"):
            return [
                self._left(window, attempt, paths)
                for window in sorted({one for at in self._places for one in self._files.names(at)})
                for attempt, paths in self._attempts(window).items()
            ]

    def remove(self, left: Left) -> int:
        with (
            as_sink_error(f"what {left.attempt} has left in {self._stages} cannot be removed"),
            ExitStack() as locks,
        ):
            for place in filter(self._files.is_folder, self._places):
                locks.enter_context(self._files.locked(place, f"{place}/{left.window}"))
            paths = self._attempts(left.window).get(left.attempt, [])
            if not paths or self._left(left.window, left.attempt, paths).modified > left.modified:
                return 0
            # Parts before what was moved out of them.
            for path in sorted(paths, key=lambda path: path.endswith("~merging")):
                remove_tagged(self._files, self._root, path)
            self._restore(left.window)
            for place in self._places:
                self._files.remove_if_empty(f"{place}/{left.window}")
        return left.files

    def _restore(self, window: str) -> None:
        """Put back what the removed attempt had moved aside, if it was killed before it was published."""
        aside = f"{self._stages}/{window}/{REPLACED_FOLDER}"
        if (output := Layout.read(self._files, self._root, aside)) is not None:
            restore_replaced(self._files, output)

    def remove_probes(self, before: datetime) -> int:
        return 0

    def _attempts(self, window: str) -> dict[str, list[str]]:
        """Return the folders of each attempt at a window; another program's are left out."""
        found: dict[str, list[str]] = {}
        for folder in (f"{place}/{window}" for place in self._places):
            for name in self._files.names(folder) if self._files.is_folder(folder) else ():
                stage, path = STAGE_NAME.fullmatch(name), f"{folder}/{name}"
                if stage is None or not self._files.is_folder(path):
                    continue
                if stage[3] or is_own_folder(self._files, path):
                    found.setdefault(f"{stage[1]}-{stage[2]}", []).append(path)
        return found

    def _left(self, window: str, attempt: str, paths: Sequence[str]) -> Left:
        every = [one for path in paths for one in self._files.below(path)]
        markers = (marker for path in paths for marker in self._markers(path))
        return Left(
            window,
            attempt,
            first_group(map(self._files.read, markers)),
            sum(1 for is_file, _, _ in every if is_file),
            sum(size for is_file, size, _ in every if is_file),
            datetime.fromtimestamp(max((at for _, _, at in every), default=0), UTC),
        )

    def _markers(self, folder: str) -> Iterator[str]:
        """Yield where the markers of a stage or a draft may be."""
        yield from (f"{folder}/{name}" for name in (MARKER_NAME, UNDER_WAY_NAME))
        if (tag := tag_in(self._files, folder)) is not None:
            yield published_marker(self._root, tag)
