"""Check who owns the output in a window's place; the rule is in `core.window.ownership`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.window.ownership import (
    Publisher,
    check_may_replace,
    fewer_error,
)
from kafka_ordered_ops.core.window.ownership import check_newest as check_newest_attempt
from kafka_ordered_ops.core.window.partition import DATE_FOLDER
from kafka_ordered_ops.output.contents import rows_in
from kafka_ordered_ops.output.filesystem import (
    GOING_NAME,
    MARKER_BYTES_MAX,
    MARKER_NAME,
    UNDER_WAY_NAME,
    is_own_folder,
    remove_stage,
    tag_in,
)
from kafka_ordered_ops.output.layout import (
    Layout,
    Output,
    published_marker,
    published_tags,
)
from kafka_ordered_ops.output.parts import sizes_of_part
from kafka_ordered_ops.output.ports import Folders
from kafka_ordered_ops.output.roots.leftovers import StageOrigin, origin_in

_log = logging.getLogger(__name__)

#: Version of the JSON beside a draft. `origin_in` reads fields that every version has.
_UNDER_WAY_VERSION: Final = 1

#: The name of an attempt's folder: no claim id contains the first character of the last group.
STAGE_NAME: Final = re.compile(r"([A-Za-z0-9_.-]+)-(\d+)(~.*)?")


def check_replaceable(
    files: Folders,
    output: Layout,
    published: Layout | None,
    others: Iterable[tuple[Layout, Layout]],
) -> None:
    """Raise if the folder to replace is of another program, another group or a newer attempt; `others` are `other_places`."""
    if files.exists(output.final_path):
        check_owned(files, output, published, output.publisher)
    if published is not None:
        check_newest(output, published)
    for place, other in others:
        check_owned(files, place, other, output.publisher)
        check_newest(place, other)


def other_places(
    files: Folders, output: Output, names: Sequence[str] | None = None
) -> list[tuple[Output, Output]]:
    """Return the folders of other dates and hours that hold this window, with their markers.

    The holder of the window's lock may pass the names in the root, so that they are read only once.
    """
    places = []
    names = files.names(output.root) if names is None else names
    if output.partition is not None and output.folder in names:
        place = replace(output, partition=None)
        if (marker := output.read_visible(files, output.root, place.final_path)) is not None:
            places.append((place, marker))
    if not any(map(DATE_FOLDER.fullmatch, names)):
        return places
    # There may be thousands of folders to search; all markers are in one folder.
    for tag in published_tags(files, output.root, output.window_id):
        marker = output.read_published(files, output.root, tag)
        if marker is None or marker.partition is None or marker.window_id != output.window_id:
            continue
        if marker.final_path != output.final_path:
            places.append((output.placed_as(marker), marker))
    return places


def check_owned(
    files: Folders, output: Layout, published: Layout | None, publisher: Publisher
) -> None:
    """Raise `SinkError` unless the folder in the window's place is an older output of the publisher's window."""
    if published is None or not files.is_folder(output.final_path):
        raise SinkError(
            f"{output.final_path} is in the way of window {output.window_id}: it is not a folder with a readable "
            f"marker, so another program made it{lost_marker(files, output.root, output.final_path)}. Move it away, then run "
            "the window again",
            window_id=output.window_id,
        )
    check_may_replace(publisher, published.owner, output.final_path)


def lost_marker(files: Folders, root: str, folder: str) -> str:
    """Return the end of a sentence about a published folder whose marker is gone; empty for any other folder."""
    if (tag := tag_in(files, folder)) is None:
        return ""
    return (
        f", or it was copied or moved without its marker, {published_marker(root, tag)}: what is beside the root moves "
        "with it"
    )


def check_newest(output: Layout, published: Layout) -> None:
    """Raise `WindowSupersededError` for an output that is older than the published one of its claim."""
    check_newest_attempt(output.owner, published.owner, output.final_path)


def check_not_fewer(output: Layout, published: Layout) -> None:
    """Raise `FewerRecordsError` for an output with fewer rows than the one that it would replace.

    Another attempt of the same claim has the same records. Its job may produce fewer rows from them, but a copy may not.
    """
    rows, published_rows = (
        None if layout.holding is None else layout.holding.rows for layout in (output, published)
    )
    is_same = output.claim_id == published.claim_id and not _are_copies(output, published)
    if (
        output.allow_fewer
        or is_same
        or rows is None
        or published_rows is None
        or rows >= published_rows
    ):
        return
    raise fewer_error(
        output.window_id,
        output.group_id or "",
        f"{output.final_path} shows {published_rows:,} rows, and the new output has {rows:,}",
    )


def _are_copies(*outputs: Layout) -> bool:
    """Return whether the outputs are copies of the records: only then were late records counted."""
    return all(output.facts.get("late") is not None for output in outputs)


def is_own_name(files: Folders, output: Layout, path: str) -> bool:
    """Return whether a stage of the window was made by this package for this ledger and group."""
    name = path.rpartition("/")[2]
    stage = STAGE_NAME.fullmatch(name)
    if stage is None or not files.is_folder(path):
        return False
    kind = stage[3] or ""
    if (not kind or kind.startswith("~part-")) and not is_own_folder(files, path):
        return False
    # The folder that a job shares among its windows has no marker; the job's draft has one.
    marks = marks_in(files, output.root, path.replace("~shared-", "~draft-"))
    return may_be_of(output, origin_in(map(files.read, marks), limit_bytes=MARKER_BYTES_MAX))


def may_be_of(output: Layout, origin: StageOrigin) -> bool:
    """Return whether a stage may be of an output's ledger and group, as far as its markers record them."""
    is_group = None in (origin.group_id, output.group_id) or origin.group_id == output.group_id
    return is_group and origin.ledger_id in (None, output.ledger_id)


def remove_tagged(files: Folders, root: str, folder: str) -> None:
    """Remove a folder and the marker that was moved out of it; the first step ends its existence as an output."""
    if (tag := tag_in(files, folder)) is not None:
        with suppress(FileNotFoundError):
            files.rename(published_marker(root, tag), f"{folder}/{GOING_NAME}")
    remove_stage(files, folder)


def under_way(output: Layout) -> bytes:
    """Return the content of a draft's marker while the draft is written."""
    content = {
        "version": _UNDER_WAY_VERSION,
        "ledger": output.ledger_id,
        "group": output.group_id,
        "window_id": output.window_id,
    }
    return strict_json.dumps(content).encode()


def marks_in(files: Folders, root: str, folder: str) -> Iterator[str]:
    """Yield the paths at which the markers of a stage or a draft may be."""
    yield from (f"{folder}/{name}" for name in (MARKER_NAME, UNDER_WAY_NAME))
    if (tag := tag_in(files, folder)) is not None:
        yield published_marker(root, tag)


def lost_files(files: Folders, marker: Layout, sizes: Mapping[str, int]) -> str | None:
    """Return a text on how the files differ from those that a marker lists; None if they do not differ."""
    if marker.holding is not None:
        return None if marker.holding.is_of(sizes) else marker.holding.difference(sizes)
    return "its marker does not say which files were written"


def whole_marker(files: Folders, output: Output, folder: str) -> Output | None:
    """Return the attempt's own marker in a folder if all listed files exist; log a warning if some do not."""
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
    """Return the marker of the output that readers see, if it is this very attempt's and has all its rows."""
    marker = output.read_visible(files, output.root, output.final_path)
    if marker is None or not output.is_mine(marker):
        return None
    sizes = files.sizes(output.final_path)
    lost = lost_files(files, marker, sizes)
    if lost is None:
        return marker
    # The owner of the table may have rewritten its files, for example as larger ones.
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
