"""Where a window's output is stored, and what its marker contains.

::

    <root>/window_id=<id>/                                           what readers see: its files, and
    <root>/window_id=<id>/.koo-<tag>/                                an empty folder that names its marker
    <root>/date=2026-11-20/hour=11/window_id=...                     the same with `partition_by`
    <parent>/.koo/<name>/windows/<tag>.json                          the marker of what readers see
    <parent>/.koo/<name>/stage/<id>/<claim>-<attempt>/               what an attempt has written; complete with its marker
    <parent>/.koo/<name>/stage/<id>/<claim>-<attempt>~...            on the way to a stage: a job's draft, say
    <parent>/.koo/<name>/swap/<tag>/                                 for the instant of a replacement; see `healing`

``<parent>/<name>`` is the root: no glob over the data matches what is beside it. For an object store see `objects.layout`.

The marker ``_window.json`` is written last into a stage, so a stage with a marker is complete. Files without data, even
hidden ones, break readers; empty folders do not. So the marker leaves the stage before the stage is published, and the
tag moves with the folder: it leads from a published folder to its owner.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Final, Literal, Self, TypeVar

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.core.strict_json import JsonError, Stored, Text, Texts
from kafka_ordered_ops.core.window.dead_letters import (
    DeadLetters,
    StoredDeadLetters,
    with_dead_letters,
)
from kafka_ordered_ops.core.window.ownership import OutputOwner, Publisher
from kafka_ordered_ops.core.window.partition import (
    check_partition_by,
    is_partition,
    partition_of,
)
from kafka_ordered_ops.core.window.plan import PlanPart, WindowPlan
from kafka_ordered_ops.core.window.window_id import check_window_id
from kafka_ordered_ops.output.address import bad_root, control_folder, spark_path
from kafka_ordered_ops.output.contents import Holding
from kafka_ordered_ops.output.filesystem import (
    MARKER_BYTES_MAX,
    as_sink_error,
    marker_path,
    normal_root,
    tag_in,
)
from kafka_ordered_ops.output.ports import Folders
from kafka_ordered_ops.output.versions import check_output_version

#: Version of the JSON that the ledger keeps and that the marker carries.
OUTPUT_VERSION: Final = 1

#: Fields of this JSON in every version: JSON without them is another program's.
_NAMES: Final = ("window_id", "claim_id", "attempt", "ledger", "facts")

#: The length of all names of topics that an output lists.
TOPICS_LENGTH_MAX: Final = 8 * 1024

#: The prefix of a published window's folder; readers of the whole root take it for a column.
WINDOW_PREFIX: Final = "window_id="
MERGING: Final = "~merging"

#: A claim id becomes part of a path.
_CLAIM_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")

#: Counts and times of what was written: whole numbers, or None if unknown.
Facts = Mapping[str, int | None]


#: The class of an output: what is read back has the same.
Output = TypeVar("Output", bound="Layout")


@dataclass(frozen=True)
class Layout:
    """The place of one attempt's output, and what was written there; see `StagedOutput`."""

    root: str
    window_id: str
    claim_id: str
    attempt: int
    part: PlanPart | None = None
    facts: Facts = field(default_factory=dict)
    group_id: str | None = None
    holding: Holding | None = None
    #: Credentials and settings of an object store: known to this process only, neither stored nor shown.
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    #: The folders above the window's, such as ``date=2026-11-20/hour=11``; None if there are none.
    partition: str | None = None
    #: The ledger of the window, as ``cluster id/topic id``.
    ledger_id: str = ""
    #: The topics that the window asks for.
    topics: tuple[str, ...] = ()
    #: Earlier claims of the window, whose output this one may replace.
    replaces: tuple[str, ...] = ()
    #: Whether it may replace an output with more rows.
    allow_fewer: bool = False
    #: The records that the job has left out, if the window's bad records become dead letters.
    dead_letters: DeadLetters | None = None

    def __post_init__(self) -> None:
        check_window_id(self.window_id)
        if not _CLAIM_ID.fullmatch(self.claim_id) or self.attempt < 0:
            raise ConfigError(
                f"claim {self.claim_id[:140]!r}, attempt {self.attempt} of window {self.window_id} cannot name "
                "a folder: a claim id is letters, digits, '_', '.' and '-'; an attempt is not negative"
            )
        if self.part is not None and not 0 <= self.part.index < self.part.count:
            raise ConfigError(f"window {self.window_id} has no {self.part}")
        if self.partition is not None and not is_partition(self.partition):
            raise ConfigError(f"{self.partition[:140]!r} are not folders of a date and an hour")
        object.__setattr__(self, "root", normal_root(self.root))

    @classmethod
    def of(
        cls,
        plan: WindowPlan,
        root: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        partition_by: str | None = None,
    ) -> Self:
        """Return the place for this plan's attempt below `root`; nothing is read or written."""
        return cls(
            normal_root(root),
            plan.window_id,
            plan.claim_id,
            plan.attempt,
            plan.part,
            group_id=plan.group_id,
            storage_options=storage_options,
            partition=partition_of(plan.window, check_partition_by(partition_by)),
            ledger_id=plan.ledger_id,
            topics=_noted_topics(plan.window.topics),
            replaces=plan.replaces,
            allow_fewer=plan.allow_fewer,
        )

    @property
    def owner(self) -> OutputOwner:
        """The owner of this output."""
        return OutputOwner(
            self.ledger_id, self.group_id or "", self.window_id, self.claim_id, self.attempt
        )

    @property
    def publisher(self) -> Publisher:
        """The publisher that wants to replace what readers see in its place."""
        claims = (self.claim_id, *self.replaces)
        return Publisher(self.ledger_id, self.group_id or "", self.window_id, claims)

    @property
    def whole(self) -> Self:
        """The place of the whole window's output; a whole output itself."""
        return self if self.part is None else replace(self, part=None, facts={}, holding=None)

    @property
    def bad(self) -> Self | None:
        """The output of the records that the job has left out, for a place beside this one; None if they have no such place."""
        if self.dead_letters is None or self.dead_letters.topic is not None:
            return None
        # Another claim may find fewer of them.
        own: Any = {"facts": {}, "holding": None, "dead_letters": None, "allow_fewer": True}
        return replace(self, root=bad_root(self.root), **own)

    @property
    def final_path(self) -> str:
        """The folder that readers see once the window is published."""
        return f"{self.final_parent}/{self.folder}"

    @property
    def folder(self) -> str:
        """The name of the folder that readers see."""
        return f"{WINDOW_PREFIX}{self.window_id}"

    @property
    def final_parent(self) -> str:
        """The parent of the folder that readers see."""
        return self.root if self.partition is None else f"{self.root}/{self.partition}"

    @property
    def partition_folders(self) -> list[str]:
        """The folders between the root and the folder that readers see."""
        names = [] if self.partition is None else self.partition.split("/")
        return [f"{self.root}/{'/'.join(names[: n + 1])}" for n in range(len(names))]

    def placed_as(self, other: Layout | None) -> Self:
        """Return this output in the place of another output of the same window, if there is one."""
        if other is None:
            return self
        return replace(self, partition=other.partition)

    @property
    def stage_path(self) -> str:
        """The hidden folder that this attempt writes to."""
        return f"{self.window_folder}/{self.stage_name}"

    @property
    def merging_path(self) -> str:
        """The hidden folder in which the parts of the whole window are joined."""
        return f"{self.whole.stage_path}{MERGING}"

    def draft_path(self, token: str) -> str:
        """Return the hidden folder that one job of the attempt writes to."""
        return f"{self.stage_path}~draft-{token}"

    def shared_path(self, token: str) -> str:
        """Return a hidden folder for files of several windows, before they are distinguished."""
        return f"{self.stage_path}~shared-{token}"

    @property
    def stage_uri(self) -> str:
        """The hidden folder as a URI for Spark."""
        return spark_path(self.stage_path)

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON for the ledger, enough to publish from another process."""
        result = {
            "version": OUTPUT_VERSION,
            "root": self.root,
            "window_id": self.window_id,
            "claim_id": self.claim_id,
            "attempt": self.attempt,
            "part": None if self.part is None else self.part.to_json(),
            "facts": dict(self.facts),
            "ledger": self.ledger_id,
            "topics": list(self.topics),
            "replaces": list(self.replaces),
            "allow_fewer": self.allow_fewer,
            "group": self.group_id,
            "holding": None if self.holding is None else self.holding.to_json(),
            "partition": self.partition,
        }
        return with_dead_letters(result, self.dead_letters)

    @classmethod
    def from_json(cls, value: Any, storage_options: Mapping[str, Any] | None = None) -> Self:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        stored = _Stored.parse(value, "output")
        try:
            letters = None if stored.dead_letters is None else stored.dead_letters.value
            fields = stored.fields(dead_letters=letters)
            return cls(**fields, storage_options=storage_options)
        except ConfigError as error:
            raise JsonError(str(error)) from error

    @property
    def stage_name(self) -> str:
        """The name of this attempt's stage among those of the window."""
        part = self.part
        suffix = "" if part is None else f"~part-{part.index:05d}-of-{part.count:05d}"
        return f"{self.claim_id}-{self.attempt}{suffix}"

    @property
    def stages_folder(self) -> str:
        """The hidden folder of all stages; in a file system, its lock keeps publishers apart."""
        return stages_folder(self.root)

    @property
    def window_folder(self) -> str:
        """The hidden folder of the window's stages."""
        return f"{self.stages_folder}/{self.window_id}"

    def marker(self) -> bytes:
        """Return the content of the marker."""
        # Without the root: a table may be moved as a whole.
        own = replace(self, dead_letters=None).to_json()
        content = {name: value for name, value in own.items() if name != "root"}
        return strict_json.dumps(content).encode()

    def own_marker(self, files: Folders, folder: str) -> Self | None:
        """Return a folder's marker if it belongs to this attempt or to a part of it."""
        marker = self.read(files, self.root, folder)
        return marker if self.is_mine(marker) else None

    def is_mine(self, marker: Layout | None) -> bool:
        """Return whether a marker is that of this very attempt and part."""
        if marker is None:
            return False
        identity = (self.owner, self.root, self.part)
        return (marker.owner, marker.root, marker.part) == identity

    def newer(self, marker: Layout | None) -> Self:
        """Return the output of the newer attempt of this claim that a marker describes, in its place; else this output."""
        if marker is None or marker.attempt <= self.attempt:
            return self
        newest = replace(self.placed_as(marker), attempt=marker.attempt)
        return newest if newest.is_mine(marker) else self

    @classmethod
    def read(cls, files: Folders, root: str, folder: str) -> Self | None:
        """Return the output that a stage's marker describes, in the stage or moved out; None without a valid marker."""
        with as_sink_error(f"the marker of {folder} cannot be read"):
            content = files.read(marker_path(folder))
        if content is None:
            return cls.read_visible(files, root, folder)
        return cls.parsed(content, root, marker_path(folder))

    @classmethod
    def read_visible(cls, files: Folders, root: str, folder: str) -> Self | None:
        """Return the output that the marker of a folder that readers see describes; None without a valid marker."""
        with as_sink_error(f"the marker of {folder} cannot be read"):
            tag = tag_in(files, folder)
            while tag is not None:
                if (content := files.read(published_marker(root, tag))) is not None:
                    return cls.parsed(content, root, published_marker(root, tag))
                # The window may have been replaced in the meantime.
                before, tag = tag, tag_in(files, folder)
                if tag == before:
                    break
        return None

    @classmethod
    def read_tagged(cls, files: Folders, root: str, tag: str) -> Self | None:
        """Return the output that a moved marker describes, wherever its folder is."""
        path = published_marker(root, tag)
        content = files.read(path)
        return None if content is None else cls.parsed(content, root, path)

    @classmethod
    def read_published(cls, files: Folders, root: str, tag: str) -> Self | None:
        """Return the output that a published marker describes, if its folder is where the marker says."""
        marker = cls.read_tagged(files, root, tag)
        return None if marker is None or tag_in(files, marker.final_path) != tag else marker

    @classmethod
    def parsed(cls, content: bytes, root: str, path: str) -> Self | None:
        """Return the output that a marker describes; None for a file of another program.

        Raises:
            OutputVersionError: a newer version of this package wrote the marker.
        """
        try:
            value = strict_json.loads(content, limit_bytes=MARKER_BYTES_MAX)
            check_marker_version(value, f"the marker {path}")
            return cls.from_json({**value, "root": root})
        except (JsonError, TypeError):
            return None

    def removed_error(self, path: str) -> SinkError:
        """Return the error of a job whose draft was removed while it wrote."""
        return SinkError(
            f"window {self.window_id}: {path} was removed while this job wrote to it. Another "
            f"job of attempt {self.attempt} was published meanwhile, or the window was abandoned: leave "
            "it to that job",
            window_id=self.window_id,
        )

    def incomplete_part_error(self, lost: str | None = None) -> SinkError:
        """Return the error of a part that cannot be joined; `lost` describes how its files differ, if it was complete."""
        return SinkError(
            f"{self.part} of window {self.window_id} is not complete at {self.stage_path}"
            f"{f' ({lost})' if lost else ''}: it was deleted, is being written again, or was written on another machine. "
            "Run this part again, then join",
            window_id=self.window_id,
            claim_id=self.claim_id,
            attempt=self.attempt,
        )

    def changed_stage_error(self, place: str, lost: str, visible: str) -> SinkError:
        """Return the error of a stage whose files are not those that were written; `lost` describes how they differ."""
        return SinkError(
            f"window {self.window_id} is not published: {place} no longer holds what was written there: {lost}. "
            f"{visible} Run the window again, or replay it, to write its files again",
            window_id=self.window_id,
            claim_id=self.claim_id,
            attempt=self.attempt,
        )

    def no_stage_error(self, visible: str) -> SinkError:
        """Return the error of an output without anything to publish; `visible` is a sentence on what readers see."""
        return SinkError(
            f"window {self.window_id} cannot be published: there is no complete stage of attempt {self.attempt} "
            f"of claim {self.claim_id} at {self.stage_path}. {visible} The files were "
            "deleted, or were written on another machine. Replay the window to write them again",
            window_id=self.window_id,
            claim_id=self.claim_id,
            attempt=self.attempt,
        )


class _Stored(Stored, frozen=True, rename={"group_id": "group", "ledger_id": "ledger"}):
    what = "the output"

    version: Literal[1]
    root: Text
    window_id: Text
    claim_id: Text
    attempt: int
    part: PlanPart | None
    facts: dict[str, int | None]
    ledger_id: Text
    topics: Texts
    replaces: Texts
    allow_fewer: bool
    group_id: Text | None
    holding: Holding | None
    partition: Text | None
    dead_letters: StoredDeadLetters | None = None


def check_marker_version(value: Any, what: str) -> None:
    """Raise `OutputVersionError` for the JSON of an output of another version; `what` names its place."""
    check_output_version(value, OUTPUT_VERSION, _NAMES, what)


def stages_folder(root: str) -> str:
    """Return the hidden folder of all stages of a root."""
    return f"{control_folder(root)}/stage"


def swap_folder(root: str) -> str:
    """Return the hidden folder of what moves during a replacement."""
    return f"{control_folder(root)}/swap"


def published_marker(root: str, tag: str) -> str:
    """Return the path of the marker of a folder that readers see."""
    return f"{_markers_folder(root)}/{tag}.json"


def published_tags(files: Folders, root: str, window_id: str) -> list[str]:
    """Return the tags of a window's folders that readers may see."""
    beginning = tag_beginning(window_id)
    names = files.names(_markers_folder(root))
    return [name.removesuffix(".json") for name in names if name.startswith(beginning)]


def new_tag(window_id: str) -> str:
    """Return a new tag for a window's folder: its beginning identifies the window."""
    return f"{tag_beginning(window_id)}{uuid.uuid4().hex[:8]}"


def tag_beginning(window_id: str) -> str:
    """Return the beginning of the tags of a window's folders; two windows hardly ever share one."""
    return hashlib.sha256(window_id.encode()).hexdigest()[:8]


def _markers_folder(root: str) -> str:
    return f"{control_folder(root)}/windows"


def _noted_topics(topics: Sequence[str]) -> tuple[str, ...]:
    """Return the first of a window's topics: enough for a note about its root, and short in each marker and result."""
    sizes = accumulate(len(name) for name in topics)
    return tuple(
        name for name, size in zip(topics, sizes, strict=True) if size <= TOPICS_LENGTH_MAX
    )
