"""Where a window's output is in an object store, and what the small objects beside it hold.

::

    <root>/window_id=<times>-<digest>/<claim>-<attempt>-<generation>-part-00000.parquet    what readers see
    <parent>/.koo/<name>/windows/<safe id>.json                                     which of them make up the window
    <parent>/.koo/<name>/stage/<safe id>/<claim>-<attempt>~draft-<token>/           what a job has written
    <parent>/.koo/<name>/stage/<safe id>/<claim>-<attempt>~seal.json                which files make up the stage

``<parent>/<name>`` is the root. A window is published when its *manifest* names its files. Manifests move by conditional
writes alone, each with a higher *generation*, which is in the names of the files too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.strict_json import Fields, JsonError, once
from kafka_ordered_ops.core.window.window import digest_in, id_digest, safe_name
from kafka_ordered_ops.output.address import SMALL_BYTES_MAX, control_folder
from kafka_ordered_ops.output.layout import WINDOW_PREFIX, Layout, Output
from kafka_ordered_ops.output.roots.ownership import check_newest

#: Version of the JSON in manifests and seals.
_VERSION: Final = 1

#: A window of a hundred thousand files has less.
SEAL_BYTES_MAX: Final = SMALL_BYTES_MAX

SEAL: Final = "~seal.json"
#: In a draft's folder: what becomes the stage's seal.
DRAFT_SEAL: Final = "_window.json"

#: As many digits as every number of 64 bits can have.
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
    def parse(cls, content: bytes, like: Output) -> Seal | None:
        """Return the inverse of `to_bytes`; None for what is no seal."""
        try:
            fields = Fields(strict_json.loads(content, limit_bytes=SEAL_BYTES_MAX), "seal")
            return cls(_output(fields.anything("output"), like), _files(fields))
        except (JsonError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class Manifest:
    """What readers see of a window; of one that is published for the first time, nothing yet."""

    generation: int
    output: Layout | None
    #: The files in the order of their rows, by their paths below the root, with their sizes.
    files: Mapping[str, int]
    #: Of who is publishing the next state, if anybody.
    publisher: str | None = None
    #: Files in another folder that it has replaced, and that may still be there: by their paths below the root.
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
                **({"left": list(self.left)} if self.left else {}),
            }
        ).encode()

    @classmethod
    def parse(cls, content: bytes, like: Output) -> Manifest | None:
        """Return the inverse of `to_bytes`, with outputs of the class of `like`; None for what is no manifest."""
        try:
            fields = Fields(strict_json.loads(content, limit_bytes=SEAL_BYTES_MAX), "manifest")
            output = fields.anything("output")
            return cls(
                fields.integer("generation", least=1, greatest=GENERATION_MAX),
                None if output is None else _output(output, like),
                _files(fields),
                fields.text_or_none("publisher"),
                tuple(fields.texts("left")) if "left" in fields else (),
            )
        except (JsonError, KeyError, TypeError):
            return None

    def missing(self, output: Layout, present: Mapping[str, int]) -> int:
        """Return how many of its files are not among those that are in an output's place."""
        folder = output.final_path.removeprefix(f"{output.root}/")
        there = {f"{folder}/{name}": size for name, size in present.items()}
        return sum(there.get(path) != size for path, size in self.files.items())


def visible(output: Layout, manifest: Manifest | None, present: Mapping[str, int]) -> str:
    """Return a sentence on what is in the place of an output's window."""
    if manifest is None or (shown := manifest.output) is None:
        return f"{output.final_path} has no output of this package."
    holds = f"{output.final_path} holds attempt {shown.attempt} of claim {shown.claim_id}"
    missing = manifest.missing(output, present)
    return f"{holds}, of which {missing:,} files are gone." if missing else f"{holds}."


def manifests_folder(root: str) -> str:
    """Return where the manifests of a root are."""
    return f"{control_folder(root)}/windows"


def manifest_path(output: Layout) -> str:
    """Return where the manifest of an output's window is."""
    return f"{manifests_folder(output.root)}/{safe_name(output.window_id)}.json"


def seal_path(output: Layout) -> str:
    """Return where the seal of an output's stage is."""
    return f"{output.stage_path}{SEAL}"


def final_name(output: Layout, generation: int, number: int) -> str:
    """Return the name of a published file in its window's folder."""
    return f"{output.claim_id}-{output.attempt}-{generation:06d}-part-{number:05d}.parquet"


def generation_of(name: str) -> int | None:
    """Return the generation of a published file; None for a file that is not of this package."""
    found = _FILE_NAME.fullmatch(name)
    return None if found is None else int(found[2])


def next_generation(output: Layout, before: Manifest, present: Mapping[str, int]) -> int:
    """Return the generation after those that a manifest, and the files of the window's own claims, have."""
    mine = (name for name in present if claim_of(name) in output.publisher.claims)
    newest = max(before.generation, *(generation_of(name) or 0 for name in mine), 0)
    if newest >= GENERATION_MAX:
        raise SinkError(
            f"{manifest_path(output)}, or a file in {output.final_path}, has generation {newest}, and there is none after "
            "it: another program wrote it. Move it away, then run the window again",
            window_id=output.window_id,
        )
    return newest + 1


def is_own_file(output: Layout, path: str) -> bool:
    """Return whether a path below the root is that of a published file of an output's window, whatever its times."""
    return is_published_file(path) and _digest_of(path) == id_digest(output.window_id)


def is_published_file(path: str) -> bool:
    """Return whether a path below the root is that of a published file of some window."""
    *above, folder, name = ["", *path.split("/")]
    return (
        generation_of(name) is not None
        and folder.startswith(WINDOW_PREFIX)
        and _digest_of(path) is not None
        # Folders of dates and hours.
        and not {".", ".."} & set(above)
        and "" not in above[1:]
    )


def _digest_of(path: str) -> str | None:
    *_, folder, _ = ["", *path.split("/")]
    return digest_in(folder.removeprefix(WINDOW_PREFIX))


def claim_of(name: str) -> str | None:
    """Return the claim of a published file; None for a file that is not of this package."""
    found = _FILE_NAME.fullmatch(name)
    return None if found is None else found[1]


def _described(output: Layout) -> dict[str, Any]:
    # Without the root: a prefix may be copied as a whole.
    return {name: value for name, value in output.to_json().items() if name != "root"}


def _output(value: Any, like: Output) -> Output:
    return type(like).from_json(
        Fields({**value, "root": like.root}, "output"), like.storage_options
    )


def _files(fields: Fields) -> dict[str, int]:
    if (version := fields.integer("version")) != _VERSION:
        raise JsonError(f"version {version}; this package reads version {_VERSION}")
    return once(
        ((one.text("path"), one.integer("bytes", least=0)) for one in fields.objects("files")),
        "file",
    )


def check_newest_shown(output: Layout, manifest: Manifest | None) -> None:
    """Raise `WindowSupersededError` for an output that is older than the published one of its claim."""
    if manifest is not None and (shown := manifest.output) is not None:
        check_newest(output.placed_as(shown), shown)


def like(output: Output, found: Layout) -> Output:
    """Return what was parsed with the class of `output` as such."""
    if not isinstance(found, type(output)):
        raise TypeError(f"{type(found).__name__} is not a {type(output).__name__}")
    return found
