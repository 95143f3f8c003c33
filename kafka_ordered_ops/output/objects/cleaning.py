"""Find and remove what attempts left in an object store; see `output.cleaning`."""

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
from kafka_ordered_ops.output.roots.leftovers import Left, origin_in

#: The ends of the names of objects that record the owner of an attempt.
_MARKS = (SEAL, f"/{DRAFT_SEAL}", f"/{UNDER_WAY_NAME}")

#: The folder that Spark's tasks write to.
_SPARKS_FOLDER = "/_temporary"


class ObjectLeftovers:
    """The stages of a root in an object store."""

    def __init__(self, root: str, storage_options: Mapping[str, Any] | None) -> None:
        self.root, self._store = root, open_store(root, storage_options)
        self._stages = stages_folder(root)

    def owner(self) -> str | None:
        """Return the ledger that the root belongs to; None if nothing was staged yet."""
        with as_sink_error(f"the owner of {self.root} cannot be read"):
            owner, _ = found_owner(self._store, self.root)
        return None if owner is None else owner.ledger_id

    def shown(self, left: Left) -> Layout | None:
        """Return the output of an attempt's window that readers see; None if they see none."""
        if left.origin.window_id is None:
            return None
        with as_sink_error(f"the windows below {self.root} cannot be read"):
            return shown_output(self._store, Layout(self.root, left.origin.window_id, "none", 0))

    def found(self) -> list[Left]:
        """Return what attempts left: the seal, parts and drafts of an attempt together."""
        with as_sink_error(f"the stages of {self.root} cannot be read"):
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
            own = {
                name: entry
                for name, entry in listed.items()
                if f"{left.window}/{name}".partition("~")[0] == place
            }
            if any(entry.modified > left.modified for entry in own.values()):
                return 0
            # Seals first: a seal that exists always has all its files.
            names = sorted(own, key=lambda name: not name.endswith(SEAL))
            self._store.delete([f"{self._stages}/{left.window}/{name}" for name in names])
        return len(own)

    def remove_probes(self, before: datetime) -> int:
        """Remove the objects of checks that killed processes left."""
        folder = f"{control_folder(self.root)}/probe"
        with as_sink_error(f"{folder} cannot be cleaned"):
            listed = self._store.listed(folder)
            old = [name for name, entry in listed.items() if entry.modified < before]
            self._store.delete([f"{folder}/{name}" for name in old])
        return len(old)

    def _listed(self, folder: str) -> dict[str, Listed]:
        listed = self._store.listed(folder)
        return {name: entry for name, entry in listed.items() if not _is_marker(name, entry)}

    def _left(self, place: str, objects: Mapping[str, Listed]) -> Left:
        window, _, attempt = place.partition("/")
        marks = (name for name in objects if name.endswith(_MARKS))
        contents = (self._store.get(f"{self._stages}/{name}") for name in marks)
        return Left(
            window,
            attempt,
            origin_in(
                (stored.content for stored in contents if stored is not None),
                limit_bytes=SEAL_BYTES_MAX,
            ),
            any(name.endswith(SEAL) for name in objects),
            len(objects),
            sum(entry.size for entry in objects.values()),
            max(entry.modified for entry in objects.values()),
        )


def _is_marker(name: str, entry: Listed) -> bool:
    """Return whether an object is a folder to Hadoop: empty, with a name that ends in a slash.

    A killed driver leaves such objects. The library can neither name nor delete them: it strips the slash.
    """
    return not entry.size and _SPARKS_FOLDER in name
