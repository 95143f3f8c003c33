"""The ledger that a root of outputs belongs to, and the groups that publish there.

``<parent>/.koo/<name>/owner.json`` is written once, by a conditional create, when a window is first staged below the
root. From then on windows of any other ledger are refused, until the root is adopted (`places.adopt_root`). The groups
are in ``groups.json`` beside it; in an object store they are in the same object.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, Literal

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.cluster.cluster_facts import is_pattern, is_selected
from kafka_ordered_ops.core.errors import ConfigError, OutputVersionError, SinkError
from kafka_ordered_ops.core.strict_json import JsonError, Stored, Text
from kafka_ordered_ops.core.window.ownership import check_root_owner
from kafka_ordered_ops.output.address import control_folder
from kafka_ordered_ops.output.layout import Layout
from kafka_ordered_ops.output.ports import Folders
from kafka_ordered_ops.output.roots.ownership import lost_marker
from kafka_ordered_ops.output.roots.partitions import window_folders
from kafka_ordered_ops.output.versions import check_output_version

_log = logging.getLogger(__name__)

_VERSION: Final = 1

#: Enough for several hundred groups with their topics.
OWNER_BYTES_MAX: Final = 1024**2

#: How many windows are searched for the owner if its file was lost.
WINDOWS_LOOKED_AT: Final = 8


@dataclass(frozen=True)
class RootOwner:
    """The owner of the windows below a root."""

    ledger_id: str
    #: The groups that publish there, with the topics of their windows.
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        groups = {name: list(topics) for name, topics in sorted(self.groups.items())}
        content = {"version": _VERSION, "ledger": self.ledger_id, "groups": groups}
        return strict_json.dumps(content).encode()

    @classmethod
    def parse(cls, content: bytes, path: str) -> RootOwner:
        """Parse the content of `to_bytes`; raise `SinkError` for anything else, `OutputVersionError` for another version."""
        try:
            value = strict_json.loads(content, limit_bytes=OWNER_BYTES_MAX)
            check_output_version(value, _VERSION, ("ledger",), path)
            stored = _Stored.parse(value, "owner")
        except JsonError as error:
            raise SinkError(
                f"{path} should say which ledger the windows beside it belong to, and cannot be read ({error}): another "
                "program wrote it. Restore it, or move it away; then the next window "
                "that is staged there writes it again"
            ) from error
        return cls(stored.ledger, stored.groups)

    def with_group(self, output: Layout) -> RootOwner | None:
        """Return the owner with a group that publishes for the first time; None if there is nothing to record."""
        group_id = output.group_id or ""
        known = self.groups.get(group_id)
        # A group without topics had too many to record.
        if known == () or (known is not None and set(output.topics) <= set(known)):
            return None
        topics = tuple(sorted({*(known or ()), *output.topics}))
        newer = replace(self, groups={**self.groups, group_id: topics})._of_a_bounded_size()
        return None if newer == self else newer

    def _of_a_bounded_size(self) -> RootOwner:
        """Return the owner within the size limit: the largest groups, which serve only for a note, lose topics or are left out."""
        groups = dict(self.groups)
        while len((owner := replace(self, groups=groups)).to_bytes()) > OWNER_BYTES_MAX:
            largest = max(groups, key=lambda name: (sum(map(len, groups[name])), len(name)))
            if not groups[largest]:
                del groups[largest]
            else:
                groups[largest] = ()
        if groups != self.groups:
            _log.warning(
                "The groups that publish below a root of ledger %s have too many topics to record all of them: there is no "
                "note about a second group with the same topics as the largest ones",
                self.ledger_id,
            )
        return owner

    def note_on(self, group_id: str, topics: tuple[str, ...], root: str) -> str | None:
        """Return a note if a group publishes for the first time where other groups have windows of the same topics.

        Topics are names, or patterns as windows have them.
        """
        if group_id in self.groups:
            return None
        others = [name for name, known in self.groups.items() if _have_common(topics, known)]
        if not others:
            return None
        return (
            f"group {group_id} publishes below {root} for the first time, and {', '.join(others[:5])} published windows of the "
            "same topics there: readers of the root see records twice that both groups deliver. If the group was renamed, "
            "continue with the former name, or write to another root"
        )


class _Stored(Stored, frozen=True):
    what = "the owner"

    version: Literal[1]
    ledger: Text
    groups: dict[str, tuple[str, ...]]


def owner_path(root: str) -> str:
    """Return the path of the owner's file."""
    return f"{control_folder(root)}/owner.json"


def _groups_path(root: str) -> str:
    """Return the path of the groups' file, which is not the owner's: in HDFS, `adopt_root` keeps no publisher out."""
    return f"{control_folder(root)}/groups.json"


def read_owner(files: Folders, root: str, names: Sequence[str] | None = None) -> RootOwner | None:
    """Return the owner of a folder's windows; None if nothing was staged yet. A lost owner is read from a window.

    The caller may pass the names in the root, so that they are read only once.

    Raises:
        SinkError: the owner cannot be read; or it was lost together with the markers of the windows.
    """
    return _recorded(files, root) or _owner_of_windows(files, root, names)


def with_groups(files: Folders, owner: RootOwner, root: str) -> RootOwner:
    """Return an owner with the groups that publish below its root."""
    content = files.read(_groups_path(root), limit_bytes=OWNER_BYTES_MAX)
    # After an adoption, publishers of the former ledger may still write the file. A damaged file only loses a note.
    try:
        known = owner if content is None else RootOwner.parse(content, _groups_path(root))
    except OutputVersionError:
        # Rewriting the file would lose what a newer version recorded.
        raise
    except SinkError:
        return owner
    return known if known.ledger_id == owner.ledger_id else owner


def check_root(files: Folders, output: Layout, names: Sequence[str] | None = None) -> None:
    """Raise `OutputOwnedError` if the root, in which these names are, belongs to another ledger."""
    if (owner := read_owner(files, output.root, names)) is not None:
        check_root_owner(output.ledger_id, owner.ledger_id, output.root)


def own_root(files: Folders, output: Layout, names: Sequence[str] | None = None) -> RootOwner:
    """Return the owner, recorded at first use. The caller holds the root's lock, and has checked the place.

    Raises:
        OutputOwnedError: the root belongs to another ledger.
    """
    owner = _recorded(files, output.root)
    if owner is None:
        owner = _owner_of_windows(files, output.root, names)
        owner = owner or RootOwner(output.ledger_id)
        check_root_owner(output.ledger_id, owner.ledger_id, output.root)
        files.create(owner_path(output.root), owner.to_bytes())
        # In HDFS, publishers of other windows work at the same time.
        owner = _recorded(files, output.root) or owner
    check_root_owner(output.ledger_id, owner.ledger_id, output.root)
    return owner


def record_group(files: Folders, output: Layout) -> None:
    """Record that a group publishes, at its first publication. The caller holds the root's lock."""
    owner = with_groups(files, own_root(files, output), output.root)
    if (newer := owner.with_group(output)) is not None:
        if note := owner.note_on(output.group_id or "", output.topics, output.root):
            _log.warning("%s", note)
        files.write(_groups_path(output.root), newer.to_bytes())


def lost_owner_error(root: str, place: str, lost: str) -> SinkError:
    """Return the error about a root whose owner is gone and a window there that does not record its owner."""
    return SinkError(
        f"{owner_path(root)} is gone, so it is not known which ledger the windows below {root} belong to, and {place} does "
        f"not say it: another program made it{lost}. Restore what was beside the root, or move that window away"
    )


def _recorded(files: Folders, root: str) -> RootOwner | None:
    path = owner_path(root)
    content = files.read(path, limit_bytes=OWNER_BYTES_MAX)
    return None if content is None else RootOwner.parse(content, path)


def _owner_of_windows(files: Folders, root: str, names: Sequence[str] | None) -> RootOwner | None:
    """Return the ledger of a published window as the owner; None if there is no window of this package."""
    error = None
    for name in islice(window_folders(files, root, names), WINDOWS_LOOKED_AT):
        folder = f"{root}/{name}"
        if (marker := Layout.read_visible(files, root, folder)) is not None:
            return RootOwner(marker.ledger_id)
        if error is None and (lost := lost_marker(files, root, folder)):
            error = lost_owner_error(root, folder, lost)
    if error is not None:
        raise error
    return None


def _have_common(topics: Sequence[str], known: Sequence[str]) -> bool:
    """Return whether two lists of names and patterns certainly have a topic in common."""
    return not set(topics).isdisjoint(known) or _select(topics, known) or _select(known, topics)


def _select(patterns: Sequence[str], names: Sequence[str]) -> bool:
    patterns = [pattern for pattern in patterns if is_pattern(pattern)]
    # Another program may have written the record, and it only serves for a note.
    with suppress(ConfigError):
        return any(is_selected(name, patterns, ()) for name in names if not is_pattern(name))
    return False
