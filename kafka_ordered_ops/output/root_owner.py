"""The ledger that a root of outputs belongs to, and the groups that publish there.

``<parent>/.koo/<name>/owner.json`` is written once, by a conditional create, when a window is first staged below the
root. From then on windows of any other ledger are refused, until the root is adopted (`places.adopt_root`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.window.ownership import check_root_owner
from kafka_ordered_ops.output.address import control_folder
from kafka_ordered_ops.output.layout import Layout
from kafka_ordered_ops.output.ports import Folders

_log = logging.getLogger(__name__)

_VERSION: Final = 1

#: Some hundred groups with their topics have less.
OWNER_BYTES_MAX: Final = 1024**2


@dataclass(frozen=True)
class RootOwner:
    """Whose the windows below a root are."""

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
        """Return the inverse of `to_bytes`; raise `SinkError` for anything else."""
        try:
            fields = Fields(strict_json.loads(content, limit_bytes=OWNER_BYTES_MAX), "owner")
            if (version := fields.integer("version")) != _VERSION:
                raise JsonError(f"version {version}; this package reads version {_VERSION}")
            owner = cls(fields.text("ledger"), _groups(fields.anything("groups")))
            fields.done()
        except JsonError as error:
            raise SinkError(
                f"{path} should say which ledger the windows beside it belong to, and cannot be read ({error}): another "
                "program wrote it, or a newer version of this package. Restore it, or move it away; then the next window "
                "that is staged there writes it again"
            ) from error
        return owner

    def with_group(self, output: Layout) -> RootOwner | None:
        """Return the owner with a group that publishes for the first time; None if it is known."""
        group_id = output.group_id or ""
        known = self.groups.get(group_id)
        if known is not None and set(output.topics) <= set(known):
            return None
        topics = tuple(sorted({*(known or ()), *output.topics}))
        return replace(self, groups={**self.groups, group_id: topics})

    def note_on(self, group_id: str, topics: tuple[str, ...], root: str) -> str | None:
        """Return a note if a group publishes for the first time where others have windows of the same topics."""
        if group_id in self.groups:
            return None
        others = [name for name, known in self.groups.items() if not set(topics).isdisjoint(known)]
        if not others:
            return None
        return (
            f"group {group_id} publishes below {root} for the first time, and {', '.join(others[:5])} published windows of the "
            "same topics there: readers of the root see records twice that both groups deliver. If the group was renamed, "
            "continue with the former name, or write to another root"
        )


def owner_path(root: str) -> str:
    """Return where it is recorded."""
    return f"{control_folder(root)}/owner.json"


def read_owner(files: Folders, root: str) -> RootOwner | None:
    """Return the owner of a folder's windows; None if none was staged yet."""
    path = owner_path(root)
    content = files.read(path, limit_bytes=OWNER_BYTES_MAX)
    return None if content is None else RootOwner.parse(content, path)


def own_root(files: Folders, output: Layout) -> RootOwner:
    """Return the owner, after it was recorded at first use. The caller holds the root's lock.

    Raises:
        OutputOwnedError: the root belongs to another ledger.
    """
    owner = read_owner(files, output.root)
    if owner is None:
        files.create(owner_path(output.root), RootOwner(output.ledger_id).to_bytes())
        # In HDFS, publishers of other windows are at work at the same time.
        owner = read_owner(files, output.root) or RootOwner(output.ledger_id)
    check_root_owner(output.ledger_id, owner.ledger_id, output.root)
    return owner


def record_group(files: Folders, output: Layout) -> None:
    """Record that a group publishes, at its first publication. The caller holds the root's lock."""
    owner = own_root(files, output)
    if (newer := owner.with_group(output)) is not None:
        if note := owner.note_on(output.group_id or "", output.topics, output.root):
            _log.warning("%s", note)
        files.write(owner_path(output.root), newer.to_bytes())


def _groups(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or not all(
        isinstance(topics, list) and all(isinstance(one, str) for one in topics)
        for topics in value.values()
    ):
        raise JsonError("groups are lists of topics, by name")
    return {name: tuple(topics) for name, topics in value.items()}
