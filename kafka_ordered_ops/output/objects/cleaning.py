"""What attempts have left in an object store; see `output.cleaning`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import groupby
from typing import Any

from kafka_ordered_ops.output.address import control_folder
from kafka_ordered_ops.output.filesystem import UNDER_WAY_NAME, as_sink_error
from kafka_ordered_ops.output.layout import Layout, stages_folder
from kafka_ordered_ops.output.objects.layout import DRAFT_SEAL, SEAL, SEAL_BYTES_MAX
from kafka_ordered_ops.output.objects.reading import shown_output
from kafka_ordered_ops.output.objects.root_owner import found_owner
from kafka_ordered_ops.output.objects.store import Listed, open_store
from kafka_ordered_ops.output.roots.leftovers import Left, told_by

#: Objects that say whose an attempt is.
_MARKS = (SEAL, f"/{DRAFT_SEAL}", f"/{UNDER_WAY_NAME}")

#: Where Spark has its tasks write.
_SPARKS_FOLDER = "/_temporary"


class ObjectLeftovers:
    """The stages of a root in an object store."""

    def __init__(self, root: str, storage_options: Mapping[str, Any] | None) -> None:
        self.root, self._store = root, open_store(root, storage_options)
        self._stages = stages_folder(root)

    def owner(self) -> str | None:
        """Return the ledger that the root belongs to; None if nothing was staged yet."""
        with as_sink_error(f"the owner of {self.root} cannot be looked at"):
            owner, _ = found_owner(self._store, self.root)
        return None if owner is None else owner.ledger_id

    def shown(self, left: Left) -> Layout | None:
        """Return what readers see of the window of an attempt; None if they see nothing of it."""
        if left.told.window_id is None:
            return None
        with as_sink_error(f"the windows below {self.root} cannot be looked at"):
            return shown_output(self._store, Layout(self.root, left.told.window_id, "none", 0))

    def found(self) -> list[Left]:
        """Return what attempts have left: one attempt's seal, parts and drafts together."""
        with as_sink_error(f"the stages of {self.root} cannot be looked at"):
            staged = self._listed(self._stages)
            return [
                self._left(place, {name: staged[name] for name in names})
                for place, names in groupby(staged, key=lambda name: name.partition("~")[0])
            ]

    def remove(self, left: Left) -> int:
        """Remove an attempt's objects, unless it has written since."""
        place = f"{left.window}/{left.attempt}"
        with as_sink_error(f"what {left.attempt} has left in {self._stages} cannot be removed"):
            listed = self._listed(f"{self._stages}/{left.window}")
            mine = {
                name: one
                for name, one in listed.items()
                if f"{left.window}/{name}".partition("~")[0] == place
            }
            if any(one.modified > left.modified for one in mine.values()):
                return 0
            # Seals first: one that is there is never less than it says.
            names = sorted(mine, key=lambda name: not name.endswith(SEAL))
            self._store.delete([f"{self._stages}/{left.window}/{name}" for name in names])
        return len(mine)

    def remove_probes(self, before: datetime) -> int:
        """Remove what killed processes have left of their checks of the store."""
        folder = f"{control_folder(self.root)}/probe"
        with as_sink_error(f"{folder} cannot be cleaned"):
            listed = self._store.listed(folder)
            old = [name for name, one in listed.items() if one.modified < before]
            self._store.delete([f"{folder}/{name}" for name in old])
        return len(old)

    def _listed(self, folder: str) -> dict[str, Listed]:
        found = self._store.listed(folder)
        return {name: one for name, one in found.items() if not _is_marker(name, one)}

    def _left(self, place: str, objects: Mapping[str, Listed]) -> Left:
        window, _, attempt = place.partition("/")
        marks = (name for name in objects if name.endswith(_MARKS))
        contents = (self._store.get(f"{self._stages}/{name}") for name in marks)
        return Left(
            window,
            attempt,
            told_by(
                (one.content for one in contents if one is not None), limit_bytes=SEAL_BYTES_MAX
            ),
            any(name.endswith(SEAL) for name in objects),
            len(objects),
            sum(one.size for one in objects.values()),
            max(one.modified for one in objects.values()),
        )


def _is_marker(name: str, one: Listed) -> bool:
    """Return whether an object is a folder to Hadoop: empty, under a name that ends in a slash.

    A driver that was killed leaves them, and the library can neither name nor delete them: it takes the slash off.
    """
    return not one.size and _SPARKS_FOLDER in name
