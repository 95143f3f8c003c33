"""Where a window's files go, and how they become visible: all at once, and again after a crash.

An attempt writes to a hidden stage, and a marker that comes last makes it complete; see `layout`. A
publish is two renames (the older folder aside, the stage in its place); between them nothing is visible, and
whoever publishes again ends at the same place from wherever a crash left it. The marker also says which
files there were: a stage that has lost some since is not published.

The windows of a folder are distinguished by their ids. Of two groups that use the same id, the one that comes
later is refused. What stands in the way and was not made here, a link in particular, is left as it is.

The parts of a split window have stages of their own. Joining them moves their files into one folder, which
becomes the window's stage once it is complete; a part keeps its marker until then, so whoever joins again
knows that what is missing in a part has been moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_ordered_ops.core.errors import (
    ConfigError,
    SinkError,
)
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.output.filesystem import (
    LocalFiles,
    as_sink_error,
    check_own_folder,
    files_for,
    is_own_folder,
    remove_stage,
)
from kafka_ordered_ops.output.layout import MERGING, Layout
from kafka_ordered_ops.output.layout import STAGE_FOLDER as STAGE_FOLDER
from kafka_ordered_ops.output.layout import Facts as Facts
from kafka_ordered_ops.output.ownership import (
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


@dataclass(frozen=True)
class StagedOutput(Layout):
    """The output of one attempt at a window: everything another process needs to publish or discard it.

    Args:
        root: the folder that holds the output of all windows: a path or a ``file:`` URI.
        window_id: the window.
        claim_id: the plan's claim.
        attempt: the attempt that wrote.
        part: the part of a split window that was written; None: the whole window.
        facts: counts and times of what was written; none before `seal`.
        group_id: the consumer group of the window; None: unknown, as for outputs of earlier versions.
        holding: the files that were written; None before `seal`, and from earlier versions.

    Raises:
        ConfigError: an argument that cannot be part of a path, or a part that does not exist.
    """

    def exists(self) -> bool:
        """Return whether the stage is there and complete, with all the files that were written.

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
        """Return whether readers see the output of this very attempt, with all its rows.

        Raises:
            SinkError: the file system failed.
        """
        with as_sink_error(f"{self.final_path} cannot be looked at"):
            return shown_marker(files_for(self.root), self) is not None

    def as_found(self) -> StagedOutput:
        """Return this output with the facts of its stage's marker, if there is one."""
        with as_sink_error(f"the stage {self.stage_path} cannot be looked at"):
            return self.own_marker(files_for(self.root), self.stage_path) or self

    def check_place(self, files: LocalFiles) -> None:
        """Look, before a job runs, whether its output could be published.

        Raises:
            SinkError: the window's place is taken: by the window of another group, or by something that this
                package did not write.
        """
        for folder in (self.window_folder, self.stage_path):
            check_own_folder(files, folder)
        if files.exists(self.final_path):
            check_owned(files, self, StagedOutput.read(files, self.root, self.final_path))

    def check_ready(self) -> None:
        """Check, before the window is committed, whether `publish` could publish the output; nothing is changed.

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
        """Put the stage in the place of the window's older output. Repeating it changes nothing.

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

    def _is_to_be_swapped(self, files: LocalFiles) -> bool:
        """Return whether the stage still has to be moved into place; raise what `publish` raises."""
        if self.part is not None:
            raise ConfigError(
                f"{self.part} of window {self.window_id} cannot be published alone: join all parts first "
                "(StagedOutput.merged)"
            )
        check_own_folder(files, self.window_folder)
        published = StagedOutput.read(files, self.root, self.final_path)
        if published == self and shown_marker(files, self) is not None:
            return False
        staged = self.own_marker(files, self.stage_path)
        if staged is None:
            self._check_published(files)
            return False
        if (lost := lost_files(files, staged, files.sizes(self.stage_path))) is not None:
            raise SinkError(
                f"window {self.window_id} is not published: {self.stage_path} no longer holds what was written "
                f"there: {lost}. {self._visible(files)} Run the window again, or replay it, to write its files again",
                window_id=self.window_id,
                claim_id=self.claim_id,
                attempt=self.attempt,
            )
        check_replaceable(files, self, published)
        return True

    def discard(self) -> None:
        """Remove the stage, and a whole window's parts; published output stays. Repeating it changes nothing."""
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
                mine = name == self.stage_name or name.startswith(f"{self.stage_name}~")
                if mine and is_own_name(files, self, name):
                    remove_stage(files, f"{self.window_folder}/{name}")
            files.remove_if_empty(self.window_folder)

    @classmethod
    def merged(cls, parts: Sequence[StagedOutput]) -> StagedOutput:
        """Join the complete parts of a split window to one complete stage of the whole window.

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

    @classmethod
    def found(cls, result: Mapping[str, Any]) -> StagedOutput | None:
        """Return what an earlier attempt left, from its JSON in the ledger; None if it is gone or has another format.

        An output with missing files counts as gone: it is written again, never published.

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

    def _swap(self, files: LocalFiles) -> None:
        if files.exists(self.final_path):
            # One left by a crash is older than what is published: it was on its way out.
            files.remove(self.replaced_path)
            files.rename(self.final_path, self.replaced_path)
        files.rename(self.stage_path, self.final_path)

    def _restore_replaced(self, files: LocalFiles) -> None:
        """Put the older output back where a crash between the two renames has left nothing visible."""
        if not files.exists(self.final_path) and is_own_folder(files, self.replaced_path):
            files.rename(self.replaced_path, self.final_path)

    def _check_published(self, files: LocalFiles) -> None:
        """Raise unless readers see this attempt's output; for one that has no stage."""
        published = StagedOutput.read(files, self.root, self.final_path)
        if self.is_mine(published):
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

    def _visible(self, files: LocalFiles) -> str:
        """Return a sentence on what is in the window's place."""
        published = StagedOutput.read(files, self.root, self.final_path)
        if published is None:
            return f"{self.final_path} has no output of this package."
        holds = f"{self.final_path} holds attempt {published.attempt} of claim {published.claim_id}"
        lost = lost_files(files, published, files.sizes(self.final_path))
        return f"{holds}." if lost is None else f"{holds}, of which files are gone: {lost}."

    def _clean(self, files: LocalFiles) -> None:
        """Remove what the published output has made worthless, and nothing that may still be published."""
        for name in files.names(self.window_folder):
            stage = STAGE_NAME.fullmatch(name)
            newer = stage and stage[1] == self.claim_id and int(stage[2]) > self.attempt
            if not newer and is_own_name(files, self, name):
                remove_stage(files, f"{self.window_folder}/{name}")
        files.remove_if_empty(self.window_folder)


def read_marker(files: LocalFiles, root: str, folder: str) -> StagedOutput | None:
    """Return the output that a folder's marker describes; None without a valid marker."""
    return StagedOutput.read(files, root, folder)


def _is_merging(name: str) -> bool:
    return name.endswith(MERGING)


def output_of(result: Any) -> StagedOutput | None:
    """Return the output that a window's result describes; None for a result of another sink, or no result.

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
