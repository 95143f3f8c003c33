"""Where a window's output is in an object store, and the content of the small objects beside it.

::

    <root>/window_id=<id>/<claim>-<attempt>-<generation>-part-00000.parquet      what readers see
    <parent>/.koo/<name>/windows/<id>.json                                    which of them make up the window
    <parent>/.koo/<name>/stage/<id>/<claim>-<attempt>~draft-<token>/          what a job has written
    <parent>/.koo/<name>/stage/<id>/<claim>-<attempt>~seal.json               which files make up the stage

``<parent>/<name>`` is the root. A window is published when its *manifest* names its files. Manifests move by conditional
writes alone, each with a higher *generation*, which is also in the names of the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.strict_json import Count, JsonError, Stored, Text, Texts, once
from kafka_ordered_ops.core.window.window_id import is_window_id
from kafka_ordered_ops.output.address import SMALL_BYTES_MAX, control_folder
from kafka_ordered_ops.output.layout import (
    WINDOW_PREFIX,
    Layout,
    Output,
    check_marker_version,
)
from kafka_ordered_ops.output.roots.ownership import check_newest
from kafka_ordered_ops.output.versions import check_output_version

#: Version of the JSON in manifests and seals.
_VERSION: Final = 1

#: Enough for a window of a hundred thousand files.
SEAL_BYTES_MAX: Final = SMALL_BYTES_MAX

SEAL: Final = "~seal.json"
#: In a draft's folder: what becomes the stage's seal.
DRAFT_SEAL: Final = "_window.json"

#: The largest number of 18 digits, which all fit into 64 bits.
GENERATION_MAX: Final = 10**18 - 1

_FILE_NAME: Final = re.compile(
    r"([A-Za-z0-9_.-]+)-[0-9]{1,19}-([0-9]{1,18})-part-[0-9]{5,18}\.parquet"
)


@dataclass(frozen=True)
class Seal:
    """The files of a complete stage, in the order of their rows: by their paths below the window's stages."""

    output: Layout
    files: Mapping[str, int]

    def to_bytes(self) -> bytes:
        """Return the content of the seal."""
        files = [{"path": path, "bytes": size} for path, size in self.files.items()]
        return strict_json.dumps(
            {"version": _VERSION, "output": _described(self.output), "files": files}
        ).encode()

    @classmethod
    def parse(cls, content: bytes, like: Output, path: str) -> Seal | None:
        """Parse the content of `to_bytes`; return None for an object of another program.

        Raises:
            OutputVersionError: a newer version of this package wrote it.
        """
        try:
            stored = _StoredSeal.parse(_value(content, f"the seal {path}"), "seal")
            return cls(_output(stored.output, like), _files(stored.files))
        except JsonError:
            return None


@dataclass(frozen=True)
class Manifest:
    """What readers see of a window; nothing yet while it is published for the first time."""

    generation: int
    output: Layout | None
    #: The files in the order of their rows, by their paths below the root, with their sizes.
    files: Mapping[str, int]
    #: The id of the process that is publishing the next state, if any.
    publisher: str | None = None
    #: Replaced files in other folders that may still exist, by their paths below the root.
    left: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the content of the manifest."""
        files = [{"path": path, "bytes": size} for path, size in self.files.items()]
        return strict_json.dumps(
            {
                "version": _VERSION,
                "generation": self.generation,
                "publisher": self.publisher,
                "output": None if self.output is None else _described(self.output),
                "files": files,
                "left": list(self.left),
            }
        ).encode()

    @classmethod
    def parse(cls, content: bytes, like: Output, path: str) -> Manifest | None:
        """Parse the content of `to_bytes`, with an output of the class of `like`; return None for another program's object.

        Raises:
            OutputVersionError: a newer version of this package wrote it.
        """
        try:
            stored = _StoredManifest.parse(_value(content, f"the manifest {path}"), "manifest")
            return cls(
                stored.generation,
                None if stored.output is None else _output(stored.output, like),
                _files(stored.files),
                stored.publisher,
                stored.left,
            )
        except JsonError:
            return None

    def missing(self, output: Layout, present: Mapping[str, int]) -> int:
        """Return how many of the manifest's files are not among those in an output's place."""
        folder = output.final_path.removeprefix(f"{output.root}/")
        there = {f"{folder}/{name}": size for name, size in present.items()}
        return sum(there.get(path) != size for path, size in self.files.items())


def visible(output: Layout, manifest: Manifest | None, present: Mapping[str, int]) -> str:
    """Return a sentence on what is in the place of an output's window."""
    if manifest is None or (published := manifest.output) is None:
        return f"{output.final_path} has no output of this package."
    holds = f"{output.final_path} holds attempt {published.attempt} of claim {published.claim_id}"
    missing = manifest.missing(output, present)
    return f"{holds}, of which {missing:,} files are gone." if missing else f"{holds}."


def manifests_folder(root: str) -> str:
    """Return the folder of a root's manifests."""
    return f"{control_folder(root)}/windows"


def manifest_path(output: Layout) -> str:
    """Return the path of the manifest of an output's window."""
    return f"{manifests_folder(output.root)}/{output.window_id}.json"


def seal_path(output: Layout) -> str:
    """Return the path of the seal of an output's stage."""
    return f"{output.stage_path}{SEAL}"


def final_name(output: Layout, generation: int, number: int) -> str:
    """Return the name of a published file in its window's folder."""
    return f"{output.claim_id}-{output.attempt}-{generation:06d}-part-{number:05d}.parquet"


def generation_of(name: str) -> int | None:
    """Return the generation of a published file; None for a file that is not of this package."""
    match = _FILE_NAME.fullmatch(name)
    return None if match is None else int(match[2])


def next_generation(output: Layout, before: Manifest, present: Mapping[str, int]) -> int:
    """Return the generation after those of a manifest and of the files of the window's own claims."""
    own = (name for name in present if claim_of(name) in output.publisher.claims)
    newest = max(before.generation, *(generation_of(name) or 0 for name in own), 0)
    if newest >= GENERATION_MAX:
        raise SinkError(
            f"{manifest_path(output)}, or a file in {output.final_path}, has generation {newest}, and there is none after "
            "it: another program wrote it. Move it away, then run the window again",
            window_id=output.window_id,
        )
    return newest + 1


def is_own_file(output: Layout, path: str) -> bool:
    """Return whether a path below the root is that of a published file of an output's window, in any partition."""
    return is_published_file(path) and path.split("/")[-2] == output.folder


def is_published_file(path: str) -> bool:
    """Return whether a path below the root is that of a published file of some window."""
    *above, folder, name = ["", *path.split("/")]
    return (
        generation_of(name) is not None
        and folder.startswith(WINDOW_PREFIX)
        and is_window_id(folder.removeprefix(WINDOW_PREFIX))
        # Above are folders of dates and hours.
        and not {".", ".."} & set(above)
        and "" not in above[1:]
    )


def claim_of(name: str) -> str | None:
    """Return the claim of a published file; None for a file that is not of this package."""
    match = _FILE_NAME.fullmatch(name)
    return None if match is None else match[1]


def _described(output: Layout) -> dict[str, Any]:
    # Without the root: a prefix may be copied as a whole.
    return {name: value for name, value in output.to_json().items() if name != "root"}


class _StoredFile(Stored, frozen=True):
    path: Text
    bytes: Count


class _StoredSeal(Stored, frozen=True):
    what = "the seal"

    version: Literal[1]
    output: dict[str, Any]
    files: list[_StoredFile]


class _StoredManifest(Stored, frozen=True):
    what = "the manifest"

    version: Literal[1]
    generation: Annotated[int, Meta(ge=1, le=GENERATION_MAX)]
    publisher: Text | None
    output: dict[str, Any] | None
    files: list[_StoredFile]
    left: Texts


def _value(content: bytes, what: str) -> Any:
    """Return the JSON of a manifest or a seal that no newer version of this package wrote."""
    value = strict_json.loads(content, limit_bytes=SEAL_BYTES_MAX)
    check_output_version(value, _VERSION, ("output", "files"), what)
    if isinstance(value, dict):
        check_marker_version(value.get("output"), f"the output in {what}")
    return value


def _output(value: dict[str, Any], like: Output) -> Output:
    return type(like).from_json({**value, "root": like.root}, like.storage_options)


def _files(files: list[_StoredFile]) -> dict[str, int]:
    return once(((file.path, file.bytes) for file in files), "file")


def check_newest_shown(output: Layout, manifest: Manifest | None) -> None:
    """Raise `WindowSupersededError` for an output that is older than the published one of its claim."""
    if manifest is not None and (published := manifest.output) is not None:
        check_newest(output.placed_as(published), published)


def like(output: Output, parsed: Layout) -> Output:
    """Return a parsed output as one of the class of `output`."""
    if not isinstance(parsed, type(output)):
        raise TypeError(f"{type(parsed).__name__} is not a {type(output).__name__}")
    return parsed
