"""Where a window's files go, and how they become visible: all at once, once, and again after a crash.

::

    <root>/window_id=<safe id>/                        what readers see
    <root>/.koo-stage/<safe id>/<claim>-<attempt>/     what an attempt has written; complete with its marker
    <root>/.koo-stage/<safe id>/.replaced/             the older output, for the instant of a publish

The dot hides the stage from Spark, Hive and pyarrow's discovery. The marker ``_window.json`` is written
last, so a folder that has one is complete, and it moves with the folder, so what is published says whose
it is. A publish is two renames (the older folder aside, the stage in its place); between them nothing is
visible, and whoever publishes again ends at the same place from wherever a crash left it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError, SinkError, WindowSupersededError
from kafka_ordered_ops.core.plan import WindowPlan
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.window import check_window_id, safe_name
from kafka_ordered_ops.spark.files import Files, files_for, normal_root, spark_path

#: Version of the JSON that the ledger keeps and that the marker carries.
OUTPUT_VERSION: Final = 1

MARKER_NAME: Final = "_window.json"
STAGE_FOLDER: Final = ".koo-stage"
_REPLACED_FOLDER: Final = ".replaced"

#: A marker is some hundred bytes; something larger is not ours.
_MARKER_BYTES_MAX: Final = 64 * 1024

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
        facts: counts and times of what was written; none before `seal`.

    Raises:
        ConfigError: an argument that cannot be part of a path.
    """

    root: str
    window_id: str
    claim_id: str
    attempt: int
    facts: Facts = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_window_id(self.window_id)
        if not _CLAIM_ID.fullmatch(self.claim_id) or self.attempt < 0:
            raise ConfigError(
                f"claim {self.claim_id[:140]!r}, attempt {self.attempt} of window {self.window_id} cannot name "
                "a folder: a claim id is letters, digits, '_', '.' and '-'; an attempt is not negative"
            )
        object.__setattr__(self, "root", normal_root(self.root))

    @classmethod
    def of(cls, plan: WindowPlan, root: str | os.PathLike[str]) -> StagedOutput:
        """The place for this plan's attempt below `root`; nothing is touched."""
        return cls(os.fspath(root), plan.window_id, plan.claim_id, plan.attempt)

    @property
    def final_path(self) -> str:
        """The folder that readers see once the window is published."""
        return f"{self.root}/window_id={safe_name(self.window_id)}"

    @property
    def stage_path(self) -> str:
        """The hidden folder that this attempt writes to."""
        return f"{self._window_folder}/{self.claim_id}-{self.attempt}"

    @property
    def stage_uri(self) -> str:
        """The hidden folder as Spark takes it."""
        return spark_path(self.stage_path)

    def exists(self) -> bool:
        """Whether the stage is there and complete."""
        return self._is_mine(self._read_marker(files_for(self.root), self.stage_path))

    def is_published(self) -> bool:
        """Whether readers see the output of this very attempt."""
        return self._is_mine(self._read_marker(files_for(self.root), self.final_path))

    def as_found(self) -> StagedOutput:
        """This output with the facts of its stage's marker, if there is one."""
        marker = self._read_marker(files_for(self.root), self.stage_path)
        return marker if marker is not None and self._is_mine(marker) else self

    def prepare(self) -> None:
        """Makes the stage, empty; what the same attempt wrote before is dropped."""
        files = files_for(self.root)
        with _as_sink_error(f"the stage {self.stage_path} cannot be made"):
            files.remove(self.stage_path)
            files.make_folder(self.stage_path)

    def seal(self, facts: Facts) -> StagedOutput:
        """Declares the stage complete: makes its files durable, then writes the marker.

        Returns this output with its facts, as the ledger keeps it.
        """
        files, sealed = files_for(self.root), replace(self, facts=dict(facts))
        with _as_sink_error(f"the stage {self.stage_path} cannot be completed"):
            files.settle(self.stage_path)
            files.write(_marker_path(self.stage_path), sealed._marker())
        return sealed

    def publish(self) -> None:
        """Puts the stage in the place of the window's older output. Again: a no-op.

        Raises:
            SinkError: there is neither a complete stage nor this attempt's published output; or the place
                is taken by something that this package did not write; or the file system failed.
            WindowSupersededError: a newer attempt of the same claim is published already.
        """
        files = files_for(self.root)
        with (
            _as_sink_error(f"window {self.window_id} cannot be published to {self.final_path}"),
            files.locked(f"{self.root}/{STAGE_FOLDER}"),
        ):
            published = self._read_marker(files, self.final_path)
            if published != self:
                if self._is_mine(self._read_marker(files, self.stage_path)):
                    self._check_replaceable(files, published)
                    self._swap(files)
                else:
                    self._restore_replaced(files)
                    self._check_published(files)
            self._clean(files)

    def discard(self) -> None:
        """Removes the stage; what is published stays. Again: a no-op."""
        files = files_for(self.root)
        if not files.exists(self._window_folder):
            return
        with (
            _as_sink_error(f"the stage {self.stage_path} cannot be removed"),
            files.locked(f"{self.root}/{STAGE_FOLDER}"),
        ):
            self._restore_replaced(files)
            files.remove(self.stage_path)
            files.remove_if_empty(self._window_folder)

    def to_json(self) -> dict[str, Any]:
        """Versioned JSON: what the ledger keeps, enough to publish from another process."""
        return {
            "version": OUTPUT_VERSION,
            "root": self.root,
            "window_id": self.window_id,
            "claim_id": self.claim_id,
            "attempt": self.attempt,
            "facts": dict(self.facts),
        }

    @classmethod
    def from_json(cls, fields: Fields) -> StagedOutput:
        """The inverse of `to_json`; raises `JsonError`."""
        if (version := fields.integer("version")) != OUTPUT_VERSION:
            raise JsonError(
                f"output version {version}; this package reads version {OUTPUT_VERSION}"
            )
        try:
            output = cls(
                root=fields.text("root"),
                window_id=fields.text("window_id"),
                claim_id=fields.text("claim_id"),
                attempt=fields.integer("attempt"),
                facts=_facts(fields.anything("facts")),
            )
        except ConfigError as error:
            raise JsonError(str(error)) from error
        fields.done()
        return output

    @classmethod
    def found(cls, result: Mapping[str, Any]) -> StagedOutput | None:
        """What an earlier try left, from what the ledger keeps of it; None where it is gone or not ours.

        For `OrderedWindows.deliver`.
        """
        try:
            output = cls.from_json(Fields(dict(result), "result"))
        except JsonError:
            return None
        return output if output.exists() or output.is_published() else None

    @property
    def _window_folder(self) -> str:
        return f"{self.root}/{STAGE_FOLDER}/{safe_name(self.window_id)}"

    @property
    def _replaced_path(self) -> str:
        return f"{self._window_folder}/{_REPLACED_FOLDER}"

    def _marker(self) -> bytes:
        # Without the root: a table may be moved as a whole.
        content = {name: value for name, value in self.to_json().items() if name != "root"}
        return strict_json.dumps(content).encode()

    def _read_marker(self, files: Files, folder: str) -> StagedOutput | None:
        """What the marker in a folder says; None without one, and for one that is not ours."""
        content = files.read(_marker_path(folder))
        if content is None:
            return None
        try:
            value = strict_json.loads(content, limit_bytes=_MARKER_BYTES_MAX)
            return StagedOutput.from_json(Fields({**value, "root": self.root}, MARKER_NAME))
        except (JsonError, TypeError):
            return None

    def _is_mine(self, marker: StagedOutput | None) -> bool:
        return marker is not None and (marker.window_id, marker.claim_id, marker.attempt) == (
            self.window_id,
            self.claim_id,
            self.attempt,
        )

    def _check_replaceable(self, files: Files, published: StagedOutput | None) -> None:
        """A folder that this package did not write is never replaced, nor is a newer attempt's."""
        if published is None:
            if files.names(self.final_path):
                raise SinkError(
                    f"{self.final_path} is in the way of window {self.window_id}: it has no readable "
                    f"{MARKER_NAME}, so something else wrote it. Move it away, then publish again; the "
                    f"new output waits in {self.stage_path}"
                )
        elif published.window_id != self.window_id:
            raise SinkError(
                f"{self.final_path} holds window {published.window_id!r}, not {self.window_id!r}: it was "
                "copied or renamed by hand. Move it away, then publish again"
            )
        elif published.claim_id == self.claim_id and published.attempt > self.attempt:
            raise WindowSupersededError(
                f"attempt {self.attempt} of window {self.window_id} comes too late: {self.final_path} holds "
                f"attempt {published.attempt} of the same claim {self.claim_id}. Nothing is to be done",
                window_id=self.window_id,
            )

    def _swap(self, files: Files) -> None:
        if files.exists(self.final_path):
            # One left by a crash is older than what is published: it was on its way out.
            files.remove(self._replaced_path)
            files.rename(self.final_path, self._replaced_path)
        files.rename(self.stage_path, self.final_path)

    def _restore_replaced(self, files: Files) -> None:
        """Puts the older output back where a crash between the two renames has left nothing visible."""
        if not files.exists(self.final_path) and files.exists(self._replaced_path):
            files.rename(self._replaced_path, self.final_path)

    def _check_published(self, files: Files) -> None:
        published = self._read_marker(files, self.final_path)
        if self._is_mine(published):
            return
        found = (
            f"holds attempt {published.attempt} of claim {published.claim_id}"
            if published
            else "has no output of this package"
        )
        raise SinkError(
            f"window {self.window_id} cannot be published: there is no complete stage of attempt {self.attempt} "
            f"of claim {self.claim_id} at {self.stage_path}, and {self.final_path} {found}. The files were "
            "deleted, or were written on another machine. Replay the window to write them again",
            window_id=self.window_id,
            claim_id=self.claim_id,
            attempt=self.attempt,
        )

    def _clean(self, files: Files) -> None:
        """Removes what the published output has made worthless, and nothing that may still be published."""
        for name in files.names(self._window_folder):
            claim, _, attempt = name.rpartition("-")
            newer = claim == self.claim_id and attempt.isdigit() and int(attempt) > self.attempt
            if not newer:
                files.remove(f"{self._window_folder}/{name}")
        files.remove_if_empty(self._window_folder)


def _marker_path(folder: str) -> str:
    return f"{folder}/{MARKER_NAME}"


def _facts(value: Any) -> dict[str, int | None]:
    if not isinstance(value, dict) or not all(
        fact is None or type(fact) is int for fact in value.values()
    ):
        raise JsonError("facts are whole numbers or null, by name")
    return value


@contextmanager
def _as_sink_error(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkError(
            f"{what}: {error}. Nothing is lost: once the cause is gone, do the same again"
        ) from error
