"""Who owns what is in the place of a window's output: only output of this package and the same group is replaced."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import SinkError, WindowSupersededError
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.core.window.partition import DATE_FOLDER
from kafka_ordered_ops.core.window.window import digest_in, id_digest
from kafka_ordered_ops.output.contents import rows_in
from kafka_ordered_ops.output.filesystem import (
    MARKER_BYTES_MAX,
    UNDER_WAY_NAME,
    is_own_folder,
    marker_path,
    remove_stage,
    tag_in,
)
from kafka_ordered_ops.output.layout import (
    REPLACED_FOLDER,
    WINDOW_PREFIX,
    Layout,
    Output,
    published_marker,
    published_tags,
)
from kafka_ordered_ops.output.parts import sizes_of_part
from kafka_ordered_ops.output.ports import Folders

_log = logging.getLogger(__name__)

#: A folder of an attempt: no claim id has the last group's first character.
STAGE_NAME: Final = re.compile(r"([A-Za-z0-9_.-]+)-(\d+)(~.*)?")


def check_replaceable(files: Folders, output: Layout, published: Layout | None) -> None:
    """Refuse to replace a folder of another program, of another group, or of a newer attempt."""
    if files.exists(output.final_path):
        check_owned(files, output, published)
    if files.exists(output.replaced_path) and not is_own_folder(files, output.replaced_path):
        raise SinkError(
            f"{output.replaced_path} is in the way of window {output.window_id}: it has no readable marker, so "
            "another program wrote it. Move it away, then publish again"
        )
    if published is not None:
        check_newest(output, published)
    for place, other in other_places(files, output):
        check_owned(files, place, other)
        check_newest(place, other)
    # After a crash between the two renames, this is what readers saw last.
    if (aside := output.read(files, output.root, output.replaced_path)) is not None:
        check_same_owner(output, aside)
        check_newest(output.placed_as(aside), aside)


def other_places(files: Folders, output: Output) -> list[tuple[Output, Output]]:
    """Return folders of other names that hold this window, and their markers: by an earlier version, or of other times."""
    found = []
    names = files.names(output.root)
    for name in names:
        folder = name.removeprefix(WINDOW_PREFIX)
        if name == folder or digest_in(folder) != id_digest(output.window_id):
            continue
        place = replace(output, folder=folder, partition=None)
        marker = output.read(files, output.root, place.final_path)
        if place.final_path != output.final_path and marker is not None:
            found.append((place, marker))
    if not any(map(DATE_FOLDER.fullmatch, names)):
        return found
    # There may be thousands of folders to look into; markers are all in one.
    for tag in published_tags(files, output.root, output.window_id):
        marker = output.read_published(files, output.root, tag)
        if marker is None or marker.partition is None or marker.window_id != output.window_id:
            continue
        if marker.final_path != output.final_path:
            found.append((output.placed_as(marker), marker))
    return found


def check_owned(files: Folders, output: Layout, published: Layout | None) -> None:
    """Raise `SinkError` unless what stands in the window's place is an older output of this group's window."""
    if published is None or not files.is_folder(output.final_path):
        raise SinkError(
            f"{output.final_path} is in the way of window {output.window_id}: it is not a folder with a readable "
            f"marker, so another program made it{lost_marker(files, output.root, output.final_path)}. Move it away, then run "
            f"the window again; what an attempt has written is in {output.stage_path}",
            window_id=output.window_id,
        )
    check_same_owner(output, published)


def lost_marker(files: Folders, root: str, folder: str) -> str:
    """Return the end of a sentence about a published folder whose marker is gone; empty for any other folder."""
    if (tag := tag_in(files, folder)) is None:
        return ""
    return (
        f", or it was copied or moved without its marker, {published_marker(root, tag)}: what is beside the root moves "
        "with it"
    )


def check_same_owner(output: Layout, published: Layout) -> None:
    """Raise `SinkError` for the output of another window, or of another group's."""
    if published.window_id != output.window_id:
        raise SinkError(
            f"{output.final_path} holds window {published.window_id!r}, not {output.window_id!r}: it was "
            "copied or renamed by hand. Move it away, then publish again"
        )
    # Before groups were recorded, a claim was all that told whose an output is.
    if published.claim_id != output.claim_id and published.group_id != output.group_id:
        whose = (
            f"group {published.group_id}"
            if published.group_id is not None
            else f"claim {published.claim_id}, which an earlier version wrote without its group's name"
        )
        raise SinkError(
            f"{output.final_path} holds window {output.window_id} of {whose}, but this window is of group {output.group_id} "
            "and would replace it. Nothing was changed. Give each group its own folder, or "
            "its windows other ids; if the older output is not needed, move its folder away",
            window_id=output.window_id,
            group_id=output.group_id,
        )


def check_newest(output: Layout, published: Layout) -> None:
    """Raise `WindowSupersededError` for an output that is older than the published one of its claim."""
    if published.claim_id == output.claim_id and published.attempt > output.attempt:
        raise WindowSupersededError(
            f"attempt {output.attempt} of window {output.window_id} comes too late: {output.final_path} holds "
            f"attempt {published.attempt} of the same claim {output.claim_id}. There is nothing to do",
            window_id=output.window_id,
        )


def restore_replaced(files: Folders, output: Layout) -> None:
    """Put the older output back where a crash between the two renames has left nothing visible."""
    if files.exists(output.final_path) or not is_own_folder(files, output.replaced_path):
        return
    place = output.placed_as(output.read(files, output.root, output.replaced_path))
    if files.exists(place.final_path) or other_places(files, output):
        return
    files.make_folder(place.final_parent)
    files.rename(output.replaced_path, place.final_path)


def is_own_name(files: Folders, output: Layout, path: str) -> bool:
    """Return whether one of the window's stages is of this package, and not of another group."""
    name = path.rpartition("/")[2]
    if name == REPLACED_FOLDER:
        return is_own_folder(files, path)
    stage = STAGE_NAME.fullmatch(name)
    if stage is None or not files.is_folder(path):
        return False
    kind = stage[3] or ""
    if (not kind or kind.startswith("~part-")) and not is_own_folder(files, path):
        return False
    # What a job shares among its windows says nothing of itself; its draft does.
    group_id = _group_in(files, path.replace("~shared-", "~draft-"))
    return None in (group_id, output.group_id) or group_id == output.group_id


def remove_tagged(files: Folders, root: str, folder: str) -> None:
    """Remove a folder, and the marker that was taken out of it."""
    if (tag := tag_in(files, folder)) is not None:
        files.remove(published_marker(root, tag))
    remove_stage(files, folder)


def under_way(group_id: str | None) -> bytes:
    """Return the content of a draft's marker while the draft is written."""
    return strict_json.dumps({"group": group_id}).encode()


def _group_in(files: Folders, folder: str) -> str | None:
    """Return the group that a stage or a draft says it is of; None where it says nothing."""
    paths = (marker_path(folder), f"{folder}/{UNDER_WAY_NAME}")
    return first_group(map(files.read, paths))


def first_group(contents: Iterable[bytes | None]) -> str | None:
    """Return the group that the first of some markers, seals and markers of drafts names; None if none does."""
    for content in contents:
        try:
            value = strict_json.loads(content or b"", limit_bytes=MARKER_BYTES_MAX)
        except JsonError:
            continue
        if isinstance(value, dict) and isinstance(value.get("output"), dict):
            value = value["output"]
        group_id = value.get("group") if isinstance(value, dict) else None
        if isinstance(group_id, str):
            return group_id
    return None


def lost_files(files: Folders, marker: Layout, sizes: Mapping[str, int]) -> str | None:
    """Return how the files differ from those that a marker lists; None if they do not differ."""
    if marker.holding is not None:
        return None if marker.holding.is_of(sizes) else marker.holding.difference(sizes)
    # By an earlier version: all that it knows of its files is how many they are.
    written = marker.facts.get("files")
    if written is None or written == len(sizes):
        return None
    return f"{written:,} files were written, but {len(sizes):,} exist"


def whole_marker(files: Folders, output: Output, folder: str) -> Output | None:
    """Return the own marker of a folder if all files that it lists exist; log a warning if some do not."""
    marker = output.own_marker(files, folder)
    if marker is None:
        return None
    sizes = files.sizes(folder) if output.part is None else sizes_of_part(files, output)
    lost = lost_files(files, marker, sizes)
    if lost is None:
        return marker
    _log.warning("%s no longer holds what was written: %s. It counts as gone.", folder, lost)
    return None


def shown_marker(files: Folders, output: Output) -> Output | None:
    """Return the marker of what readers see, if that is this very attempt's and has all its rows."""
    marker = output.own_marker(files, output.final_path)
    if marker is None:
        return None
    sizes = files.sizes(output.final_path)
    lost = lost_files(files, marker, sizes)
    if lost is None:
        return marker
    # Whoever owns the table may have written its files again: larger ones, say.
    holding = marker.holding
    if holding is not None and holding.rows is not None:
        try:
            names = list(holding.relevant(sizes))
            if rows_in(files, output.final_path, names) == holding.rows:
                return marker
        except SinkError as error:
            lost = error.message
    _log.warning("%s no longer holds what was published: %s.", output.final_path, lost)
    return None
