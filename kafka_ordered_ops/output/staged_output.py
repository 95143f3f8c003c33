"""Where a window's files go, and how they become visible: all at once, once, and again after a crash.

::

    <root>/window_id=<safe id>/                        what readers see
    <root>/.koo-stage/<safe id>/<claim>-<attempt>/     what an attempt has written; complete with its marker
    <root>/.koo-stage/<safe id>/.replaced/             the older output, for the instant of a publish
    <root>/.koo-stage/<safe id>/<claim>-<attempt>~...  on the way to a stage: a job's draft, say

The dot hides the stage from Spark, Hive and pyarrow's discovery. The marker ``_window.json`` is written
last, so a folder that has one is complete, and it moves with the folder, so what is published says whose
it is. A publish is two renames (the older folder aside, the stage in its place); between them nothing is
visible, and whoever publishes again ends at the same place from wherever a crash left it. The marker also
says which files there were: a stage that has lost some since is not published.

The windows of a folder are told apart by their ids. Of two groups that use the same id, the one that comes
later is refused. What stands in the way and was not made here, a link in particular, is left as it is.

The parts of a split window have stages of their own. Joining them moves their files into one folder, which
becomes the window's stage once it is complete; a part keeps its marker until then, so whoever joins again
knows that what is missing in a part has been moved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import (
    ConfigError,
    SinkError,
)
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.window.plan import PlanPart, WindowPlan
from kafka_ordered_ops.core.window.window import check_window_id, safe_name
from kafka_ordered_ops.output.contents import Holding
from kafka_ordered_ops.output.filesystem import (
    MARKER_BYTES_MAX,
    MARKER_NAME,
    Files,
    as_sink_error,
    check_own_folder,
    files_for,
    is_own_folder,
    marker_path,
    normal_root,
    remove_stage,
    spark_path,
)
from kafka_ordered_ops.output.ownership import (
    REPLACED_FOLDER,
    STAGE_NAME,
    check_newest,
    check_owned,
    check_replaceable,
    is_own_name,
    lost_files,
    shown_marker,
    whole_marker,
)
from kafka_ordered_ops.output.parts import in_part_order, join_parts

#: Version of the JSON that the ledger keeps and that the marker carries.
OUTPUT_VERSION: Final = 1

STAGE_FOLDER: Final = ".koo-stage"
_MERGING: Final = "~merging"

#: A claim id becomes part of a path.
_CLAIM_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")

#: Counts and times of what was written: whole numbers, or None where there is nothing to say.
Facts = Mapping[str, int | None]


@dataclass(frozen=True)
class StagedOutput:
    """What one attempt at a window wrote: everything another process needs to publish it, or to drop it.

    Args:
        root: the folder that holds the output of all windows: a path or a ``file:`` URI.
        window_id: the window.
        claim_id: the plan's claim.
        attempt: the attempt that wrote.
        part: the share of a split window that was written; None: the whole window.
        facts: counts and times of what was written; none before `seal`.
        group: the consumer group whose window it is; None: not known, as in what earlier versions have written.
        holding: the files that were written; None before `seal`, and from earlier versions.

    Raises:
        ConfigError: an argument that cannot be part of a path, or a part that there cannot be.
    """

    root: str
    window_id: str
    claim_id: str
    attempt: int
    part: PlanPart | None = None
    facts: Facts = field(default_factory=dict)
    group: str | None = None
    holding: Holding | None = None

    def __post_init__(self) -> None:
        check_window_id(self.window_id)
        if not _CLAIM_ID.fullmatch(self.claim_id) or self.attempt < 0:
            raise ConfigError(
                f"claim {self.claim_id[:140]!r}, attempt {self.attempt} of window {self.window_id} cannot name "
                "a folder: a claim id is letters, digits, '_', '.' and '-'; an attempt is not negative"
            )
        if self.part is not None and not 0 <= self.part.index < self.part.count:
            raise ConfigError(f"window {self.window_id} has no {self.part}")
        object.__setattr__(self, "root", normal_root(self.root))

    @classmethod
    def of(cls, plan: WindowPlan, root: str | os.PathLike[str]) -> StagedOutput:
        """The place for this plan's attempt below `root`; nothing is touched."""
        return cls(
            normal_root(root),
            plan.window_id,
            plan.claim_id,
            plan.attempt,
            plan.part,
            group=plan.group,
        )

    @property
    def whole(self) -> StagedOutput:
        """The place of the whole window's output; of a whole output, itself."""
        return self if self.part is None else replace(self, part=None, facts={}, holding=None)

    @property
    def final_path(self) -> str:
        """The folder that readers see once the window is published."""
        return f"{self.root}/window_id={safe_name(self.window_id)}"

    @property
    def stage_path(self) -> str:
        """The hidden folder that this attempt writes to."""
        return f"{self.window_folder}/{self._stage_name}"

    @property
    def merging_path(self) -> str:
        """A hidden folder in which the parts of the whole window come together."""
        return f"{self.whole.stage_path}{_MERGING}"

    @property
    def stage_uri(self) -> str:
        """The hidden folder as Spark takes it."""
        return spark_path(self.stage_path)

    def exists(self) -> bool:
        """Whether the stage is there and complete, with all the files that were written.

        Raises:
            SinkError: the file system failed.
        """
        files = files_for(self.root)
        with as_sink_error(f"the stage {self.stage_path} cannot be looked at"):
            if whole_marker(files, self, self.stage_path) is not None:
                return True
            if not files.exists(self.window_folder):
                return False
            # Another job of this attempt may be putting its own in its place at this very moment.
            with files.locked(self.stages_folder):
                return whole_marker(files, self, self.stage_path) is not None

    def is_published(self) -> bool:
        """Whether readers see the output of this very attempt, with all its rows.

        Raises:
            SinkError: the file system failed.
        """
        with as_sink_error(f"{self.final_path} cannot be looked at"):
            return shown_marker(files_for(self.root), self) is not None

    def as_found(self) -> StagedOutput:
        """This output with the facts of its stage's marker, if there is one."""
        with as_sink_error(f"the stage {self.stage_path} cannot be looked at"):
            return self.own_marker(files_for(self.root), self.stage_path) or self

    def check_place(self, files: Files) -> None:
        """Looks, before a job runs, whether its output could be published.

        Raises:
            SinkError: the window's place is taken: by the window of another group, or by something that this
                package did not write.
        """
        for folder in (self.window_folder, self.stage_path):
            check_own_folder(files, folder)
        if files.exists(self.final_path):
            check_owned(files, self, read_marker(files, self.root, self.final_path))

    def check_ready(self) -> None:
        """Looks, before the window is committed, whether `publish` could publish this; nothing is changed.

        Raises what `publish` raises.
        """
        files = files_for(self.root)
        with as_sink_error(f"window {self.window_id} cannot be published to {self.final_path}"):
            if not files.exists(self.stages_folder):
                self._is_to_be_swapped(files)
                return
            with files.locked(self.stages_folder):
                self._is_to_be_swapped(files)

    def publish(self) -> None:
        """Puts the stage in the place of the window's older output. Again: a no-op.

        Raises:
            ConfigError: a part of a split window; only the whole is published.
            SinkError: there is neither a complete stage nor this attempt's published output; or files of it are
                gone; or the place is taken by another group's window, or by something that this package did
                not write; or the file system failed. What is visible stays as it is.
            WindowSupersededError: a newer attempt of the same claim is published already.
        """
        files = files_for(self.root)
        with (
            as_sink_error(f"window {self.window_id} cannot be published to {self.final_path}"),
            files.locked(self.stages_folder),
        ):
            if self._is_to_be_swapped(files):
                self._swap(files)
            self._clean(files)

    def _is_to_be_swapped(self, files: Files) -> bool:
        """Whether the stage goes into the place; False: it is there. Raises what `publish` raises."""
        if self.part is not None:
            raise ConfigError(
                f"{self.part} of window {self.window_id} is not published by itself: join all parts first "
                "(StagedOutput.merged)"
            )
        check_own_folder(files, self.window_folder)
        published = read_marker(files, self.root, self.final_path)
        if published == self and shown_marker(files, self) is not None:
            return False
        staged = self.own_marker(files, self.stage_path)
        if staged is None:
            self._check_published(files)
            return False
        if (lost := lost_files(files, staged, files.sizes(self.stage_path))) is not None:
            raise SinkError(
                f"window {self.window_id} is not published: {self.stage_path} is no longer what was written "
                f"there: {lost}. {self._visible(files)} Run the window again, or replay it, to write its files again",
                window_id=self.window_id,
                claim_id=self.claim_id,
                attempt=self.attempt,
            )
        check_replaceable(files, self, published)
        return True

    def discard(self) -> None:
        """Removes the stage, a whole window's parts too; what is published stays. Again: a no-op."""
        files = files_for(self.root)
        if not files.exists(self.window_folder):
            return
        with (
            as_sink_error(f"the stage {self.stage_path} cannot be removed"),
            files.locked(self.stages_folder),
        ):
            check_own_folder(files, self.window_folder)
            self._restore_replaced(files)
            # Parts before what was moved out of them: a part that is there is never less than it says.
            for name in sorted(files.names(self.window_folder), key=_is_merging):
                mine = name == self._stage_name or name.startswith(f"{self._stage_name}~")
                if mine and is_own_name(files, self, name):
                    remove_stage(files, f"{self.window_folder}/{name}")
            files.remove_if_empty(self.window_folder)

    @classmethod
    def merged(cls, parts: Sequence[StagedOutput]) -> StagedOutput:
        """Joins the complete parts of a split window to one complete stage of the whole window.

        Its files are those of the parts, by name part after part; its facts are those of the parts, added
        up. The parts' stages are gone afterwards. Again, also after a crash anywhere in between: the same
        output, from wherever it got to.

        Raises:
            ConfigError: these are not all parts of one split of one attempt, each once.
            SinkError: a part's stage is not there, or not complete; or the file system failed.
        """
        parts = in_part_order(parts)
        whole = parts[0].whole
        files = files_for(whole.root)
        with (
            as_sink_error(f"the parts of window {whole.window_id} cannot be joined"),
            files.locked(whole.stages_folder),
        ):
            check_own_folder(files, whole.window_folder)
            joined = (
                whole_marker(files, whole, whole.stage_path)
                or shown_marker(files, whole)
                or join_parts(files, whole, parts)
            )
            for part in parts:
                remove_stage(files, part.stage_path)
            remove_stage(files, whole.merging_path)
        return joined

    def to_json(self) -> dict[str, Any]:
        """Versioned JSON: what the ledger keeps, enough to publish from another process."""
        fields: dict[str, Any] = {
            "version": OUTPUT_VERSION,
            "root": self.root,
            "window_id": self.window_id,
            "claim_id": self.claim_id,
            "attempt": self.attempt,
            "part": None if self.part is None else self.part.to_json(),
            "facts": dict(self.facts),
        }
        if self.group is not None:
            fields["group"] = self.group
        if self.holding is not None:
            fields["holding"] = self.holding.to_json()
        return fields

    @classmethod
    def from_json(cls, fields: Fields) -> StagedOutput:
        """The inverse of `to_json`; raises `JsonError`."""
        if (version := fields.integer("version")) != OUTPUT_VERSION:
            raise JsonError(
                f"output version {version}; this package reads version {OUTPUT_VERSION}"
            )
        part = fields.object_or_none("part")
        try:
            output = cls(
                root=fields.text("root"),
                window_id=fields.text("window_id"),
                claim_id=fields.text("claim_id"),
                attempt=fields.integer("attempt"),
                part=None if part is None else PlanPart.from_json(part),
                facts=_facts(fields.anything("facts")),
                group=fields.text("group") if "group" in fields else None,
                holding=Holding.from_json(fields.object("holding"))
                if "holding" in fields
                else None,
            )
        except ConfigError as error:
            raise JsonError(str(error)) from error
        fields.done()
        return output

    @classmethod
    def found(cls, result: Mapping[str, Any]) -> StagedOutput | None:
        """What an earlier try left, from what the ledger keeps of it; None where it is gone or not ours.

        One whose files are not all there is gone: it is written again, never published.

        A part counts as there when the whole window's output is. Of a window that was split, the ledger keeps
        ``{"parts": [...]}``: its parts are joined (`merged`). For `OrderedWindows.deliver`.
        """
        parts = result.get("parts")
        try:
            if not isinstance(parts, list):
                output = cls.from_json(Fields(dict(result), "result"))
                return output if output._is_there() else None
            outputs = [cls.from_json(Fields(part, "result")) for part in parts]
            return cls.merged(outputs) if all(one._is_there() for one in outputs) else None
        except (JsonError, ConfigError):
            return None

    def _is_there(self) -> bool:
        return any(one.exists() or one.is_published() for one in (self, self.whole))

    @property
    def _stage_name(self) -> str:
        part = self.part
        suffix = "" if part is None else f"~part-{part.index:05d}-of-{part.count:05d}"
        return f"{self.claim_id}-{self.attempt}{suffix}"

    @property
    def stages_folder(self) -> str:
        """The hidden folder of all stages; its lock keeps publishers apart."""
        return f"{self.root}/{STAGE_FOLDER}"

    @property
    def window_folder(self) -> str:
        """The hidden folder of the window's stages."""
        return f"{self.stages_folder}/{safe_name(self.window_id)}"

    @property
    def replaced_path(self) -> str:
        """Where the older output is for the instant of a publish."""
        return f"{self.window_folder}/{REPLACED_FOLDER}"

    def marker(self) -> bytes:
        """The marker's content."""
        # Without the root: a table may be moved as a whole.
        content = {name: value for name, value in self.to_json().items() if name != "root"}
        return strict_json.dumps(content).encode()

    def own_marker(self, files: Files, folder: str) -> StagedOutput | None:
        """What the marker in a folder says, if it is that of this very attempt, or part of it."""
        marker = read_marker(files, self.root, folder)
        return marker if self._is_mine(marker) else None

    def _is_mine(self, marker: StagedOutput | None) -> bool:
        if marker is None or (
            None not in (marker.group, self.group) and marker.group != self.group
        ):
            return False
        return _place(marker) == _place(self)

    def _swap(self, files: Files) -> None:
        if files.exists(self.final_path):
            # One left by a crash is older than what is published: it was on its way out.
            files.remove(self.replaced_path)
            files.rename(self.final_path, self.replaced_path)
        files.rename(self.stage_path, self.final_path)

    def _restore_replaced(self, files: Files) -> None:
        """Puts the older output back where a crash between the two renames has left nothing visible."""
        if not files.exists(self.final_path) and is_own_folder(files, self.replaced_path):
            files.rename(self.replaced_path, self.final_path)

    def _check_published(self, files: Files) -> None:
        """Raises unless readers see this attempt's output; for one that has no stage."""
        published = read_marker(files, self.root, self.final_path)
        if self._is_mine(published):
            if shown_marker(files, self) is not None:
                return
        elif published is not None:
            # Whoever publishes removes what older attempts have staged.
            check_newest(self, published)
        raise SinkError(
            f"window {self.window_id} cannot be published: there is no complete stage of attempt {self.attempt} "
            f"of claim {self.claim_id} at {self.stage_path}. {self._visible(files)} The files were "
            "deleted, or were written on another machine. Replay the window to write them again",
            window_id=self.window_id,
            claim_id=self.claim_id,
            attempt=self.attempt,
        )

    def _visible(self, files: Files) -> str:
        """A sentence on what is in the window's place."""
        published = read_marker(files, self.root, self.final_path)
        if published is None:
            return f"{self.final_path} has no output of this package."
        holds = f"{self.final_path} holds attempt {published.attempt} of claim {published.claim_id}"
        lost = lost_files(files, published, files.sizes(self.final_path))
        return f"{holds}." if lost is None else f"{holds}, of which files are gone: {lost}."

    def _clean(self, files: Files) -> None:
        """Removes what the published output has made worthless, and nothing that may still be published."""
        for name in files.names(self.window_folder):
            stage = STAGE_NAME.fullmatch(name)
            newer = stage and stage[1] == self.claim_id and int(stage[2]) > self.attempt
            if not newer and is_own_name(files, self, name):
                remove_stage(files, f"{self.window_folder}/{name}")
        files.remove_if_empty(self.window_folder)


def read_marker(files: Files, root: str, folder: str) -> StagedOutput | None:
    """What the marker in a folder below `root` says; None without one, and for one that is not ours."""
    with as_sink_error(f"{marker_path(folder)} cannot be read"):
        content = files.read(marker_path(folder))
    if content is None:
        return None
    try:
        value = strict_json.loads(content, limit_bytes=MARKER_BYTES_MAX)
        return StagedOutput.from_json(Fields({**value, "root": root}, MARKER_NAME))
    except (JsonError, TypeError):
        return None


def _place(output: StagedOutput) -> tuple[object, ...]:
    return (output.root, output.window_id, output.claim_id, output.attempt, output.part)


def _is_merging(name: str) -> bool:
    return name.endswith(_MERGING)


def _facts(value: Any) -> dict[str, int | None]:
    if not isinstance(value, dict) or not all(
        fact is None or type(fact) is int for fact in value.values()
    ):
        raise JsonError("facts are whole numbers or null, by name")
    return value


def output_of(result: Any) -> StagedOutput | None:
    """The output that a window's result tells of; None for a result of another sink, or none.

    Of a window whose parts have reported it is the place of the whole, which has no counts until they are
    joined.
    """
    if not isinstance(result, Mapping):
        return None
    try:
        parts = result.get("parts")
        if isinstance(parts, list) and parts:
            return StagedOutput.from_json(Fields(parts[0], "result")).whole
        return StagedOutput.from_json(Fields(dict(result), "result"))
    except JsonError:
        return None
