"""Publish by renames: for a local or mounted file system, and for HDFS.

A first publication is two renames: the marker out of the stage, and the stage into its place. To replace an older
output, the stage moves to ``swap`` and is exchanged with it in one step, so readers see one or the other at every
moment. Where the file system cannot do that, as in HDFS, or if the older output is in another folder, the older output
moves aside first: for an instant nothing is visible. The next process at the root repairs what a crash has left, see
`healing`, and publishing again has the same result. The marker also lists the files: a stage that has lost some of them
is not published.

Anything in the way that this package did not make, links in particular, is left as it is.

When several windows are published together, each step is done for all of them before the next, so a folder with names
of several windows is synchronized with the disk once. What survives a crash of the system, and by which synchronization::

    nothing before it is sealed     a job dies with the system, and its draft is made again
    a sealed draft, whole           its data files; its marker; its folder, with the names of both
    a stage, once it is reported    the window's folder, each; the folder of all stages, once
    a stage with its tag            the stage, before its marker is moved: without the tag it would be nobody's
    its marker among the markers    the folder of the markers, once; the stage, so that readers find only data in it
    what readers see, once reported the root, or the folder of a date or an hour, once

Each part of a split window has its own stage. Joining the parts moves their files into one folder, which becomes the
window's stage once it is complete. A part keeps its marker until then, so a process that joins again knows that the
missing files of a part have been moved.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.output.contents import check_rows, count
from kafka_ordered_ops.output.filesystem import (
    MARKER_NAME,
    TAG_PREFIX,
    UNDER_WAY_NAME,
    as_sink_error,
    check_own_folder,
    in_name_order,
    is_data,
    is_own_folder,
    marker_path,
    remove_stage,
    tag_in,
)
from kafka_ordered_ops.output.layout import (
    MERGING,
    Facts,
    Layout,
    Output,
    new_tag,
    published_marker,
    swap_folder,
)
from kafka_ordered_ops.output.parts import join_parts, take_part_back
from kafka_ordered_ops.output.ports import Folders
from kafka_ordered_ops.output.roots.healing import OLDER, is_cut_short
from kafka_ordered_ops.output.roots.locking import folders_of, in_batches, locked, look_after
from kafka_ordered_ops.output.roots.ownership import (
    STAGE_NAME,
    check_newest,
    check_not_fewer,
    check_owned,
    check_replaceable,
    is_own_name,
    lost_files,
    other_places,
    remove_tagged,
    shown_marker,
    under_way,
    whole_marker,
)
from kafka_ordered_ops.output.roots.partitions import check_folders, kind_of
from kafka_ordered_ops.output.roots.root_owner import check_root, own_root, record_group


class RenamePublisher:
    """Stages are folders beside the root, and move into place as a whole."""

    # --- a job's draft -----------------------------------------------------------------------------

    def check_root(self, output: Layout) -> None:
        """Check that the root belongs to this ledger and has windows with this window's partitioning."""
        files = folders_of(output)
        with (
            as_sink_error(f"stages below {output.root} cannot be created"),
            locked(files, [output]),
        ):
            names = files.names(output.root)
            check_root(files, output, names)
            check_folders(files, output.root, kind_of(output), but=output.window_id, names=names)

    def make(self, drafts: Sequence[tuple[Layout, str]]) -> None:
        """Make the folders of jobs' drafts, empty."""
        for files, batch in in_batches(drafts[0][0], drafts):
            # Locked: another job may remove a window's empty folder when it ends.
            with locked(files, [output for output, _ in batch]):
                names = files.names(batch[0][0].root)
                for output, token in batch:
                    with as_sink_error(f"the stage {output.draft_path(token)} cannot be created"):
                        self._check_place(files, output, names)
                        self._check_partition_folders(files, output)
                        self._check_stage(files, output)
                own_root(files, batch[0][0], names)
                for output, token in batch:
                    path = output.draft_path(token)
                    with as_sink_error(f"the stage {path} cannot be created"):
                        # A crash of the system ends the job too, so its draft need not survive.
                        files.make_folder(path, durable=False)
                        flag = f"{path}/{UNDER_WAY_NAME}"
                        files.write(flag, under_way(output), durable=False)

    def seal(self, output: Output, token: str, facts: Facts) -> Output:
        """Complete a draft: make its files durable, count their rows, then write the marker."""
        files, path = folders_of(output), output.draft_path(token)
        with as_sink_error(f"the stage {path} cannot be completed"):
            # Late tasks of Spark recreate a removed folder, which would hold only a part of the records.
            if not files.exists(flag := f"{path}/{UNDER_WAY_NAME}"):
                raise output.removed_error(path)
            named = in_name_order(files.names(path))
            files.move_all([(f"{path}/{name}", f"{path}/{new}") for name, new in named.items()])
            files.settle(path, names=False)
            holding = count(files, path)
            check_rows(output.window_id, path, holding, facts.get("records"))
            sealed = replace(output, facts=dict(facts), holding=holding)
            # This also makes the names of the other files in the folder durable.
            files.write(marker_path(path), sealed.marker())
            files.remove(flag)
        return sealed

    def land(self, drafts: Sequence[tuple[Layout, str]]) -> None:
        """Make sealed drafts their attempts' stages; remove the stages of earlier jobs of the attempts."""
        for files, batch in in_batches(drafts[0][0], drafts):
            outputs = [output for output, _ in batch]
            with as_sink_error(_cannot("be completed", outputs)), locked(files, outputs):
                names = files.names(outputs[0].root)
                own_root(files, outputs[0], names)
                self._check_partitions(files, outputs, names)
                asides = [f"{output.stage_path}~older-{token}" for output, token in batch]
                for output in outputs:
                    self._check_place(files, output, names)
                    self._check_stage(files, output)
                    if output.part is not None:
                        take_part_back(files, output)
                # `make` did not make the names of the windows' folders durable.
                with files.together(outputs[0].stages_folder):
                    for (output, token), aside in zip(batch, asides, strict=True):
                        if files.exists(output.stage_path):
                            files.rename(output.stage_path, aside)
                        files.rename(output.draft_path(token), output.stage_path)
                for aside in asides:
                    remove_stage(files, aside)

    def drop(self, output: Layout, token: str) -> None:
        """Remove what a job has written; output that has landed stays."""
        files, path = folders_of(output), output.draft_path(token)
        if not files.exists(output.window_folder):
            return
        with as_sink_error(f"the stage {path} cannot be removed"):
            for folder in (path, output.shared_path(token)):
                remove_stage(files, folder)
            with locked(files, [output]):
                files.remove_if_empty(output.window_folder)

    def _check_place(self, files: Folders, output: Layout, names: Sequence[str]) -> None:
        """Check, before a job runs, that its output can be published."""
        for folder in (output.window_folder, output.stage_path):
            check_own_folder(files, folder)
        if files.exists(output.final_path):
            published = output.read_visible(files, output.root, output.final_path)
            check_owned(files, output, published, output.publisher)
        for place, marker in other_places(files, output, names):
            check_owned(files, place, marker, output.publisher)

    def _check_partitions(
        self, files: Folders, outputs: Sequence[Layout], names: Sequence[str]
    ) -> None:
        """Check that the root's windows are partitioned as these are."""
        by_kind: dict[PartitionBy | None, list[Layout]] = {}
        for output in outputs:
            self._check_partition_folders(files, output)
            by_kind.setdefault(kind_of(output), []).append(output)
        for kind, alike in by_kind.items():
            # Each is compared with all others, so two of them cover every window.
            for output in alike[:2]:
                check_folders(files, output.root, kind, but=output.window_id, names=names)

    def _check_partition_folders(self, files: Folders, output: Layout) -> None:
        for folder in output.partition_folders:
            check_own_folder(files, folder)
            if os.path.ismount(folder):
                raise ConfigError(
                    f"a file system is mounted at {folder}: windows are staged beside {output.root}, and move there by renames, "
                    "which do not cross file systems. Mount it at a folder that the whole root is in, or name another root"
                )

    def _check_stage(self, files: Folders, output: Layout) -> None:
        """Raise `SinkError` if another program made the stage, which the new one would replace."""
        path = output.stage_path
        if files.exists(path) and not is_own_folder(files, path):
            raise SinkError(
                f"{path} is in the way: this package did not create it. Move it away, then run the window again",
                window_id=output.window_id,
            )

    # --- an attempt's stage ------------------------------------------------------------------------

    def staged(self, output: Output) -> Output | None:
        """Return the stage's marker, if the stage is complete and has all the files that were written."""
        files = folders_of(output)
        with as_sink_error(f"the stage {output.stage_path} cannot be read"):
            look_after(files, output)
            if (marker := whole_marker(files, output, output.stage_path)) is not None:
                return marker
            if not files.exists(output.window_folder):
                return None
            # Another job of this attempt may be replacing the stage right now.
            with locked(files, [output]):
                return whole_marker(files, output, output.stage_path)

    def shown(self, output: Output, *, newer: bool = False) -> Output | None:
        """Return the marker of the output that readers see; see `Publisher`."""
        files = folders_of(output)
        with as_sink_error(f"{output.final_path} cannot be read"):
            look_after(files, output)
            marker = shown_marker(files, self._shown_place(files, output))
            if marker is not None or not newer:
                return marker
            visible = output.read_visible(files, output.root, output.final_path)
            for seen in (visible, *(marker for _, marker in other_places(files, output))):
                if (newest := output.newer(seen)) is not output:
                    return shown_marker(files, newest)
            return None

    def as_found(self, output: Output) -> Output:
        """Return an output with the facts of its stage's marker, if there is one."""
        files = folders_of(output)
        with as_sink_error(f"the stage {output.stage_path} cannot be read"):
            look_after(files, output)
            return output.own_marker(files, output.stage_path) or output

    def merged(self, whole: Output, parts: Sequence[Output]) -> Output:
        """Join complete parts to one complete stage of the whole window."""
        files = folders_of(whole)
        with (
            as_sink_error(f"the parts of window {whole.window_id} cannot be joined"),
            locked(files, [whole]),
        ):
            check_own_folder(files, whole.window_folder)
            joined = (
                whole_marker(files, whole, whole.stage_path)
                or shown_marker(files, self._shown_place(files, whole))
                or join_parts(files, whole, parts)
            )
            for part in parts:
                remove_stage(files, part.stage_path)
            remove_stage(files, whole.merging_path)
        return joined

    def discard(self, output: Layout) -> None:
        """Remove the stage, and a whole window's parts; published output stays."""
        files = folders_of(output)
        if not files.exists(output.window_folder) and not is_cut_short(files, output.root):
            return
        with (
            as_sink_error(f"the stage {output.stage_path} cannot be removed"),
            locked(files, [output]),
        ):
            check_own_folder(files, output.window_folder)
            # Parts before the files that were moved out of them: a part that exists always has all its files.
            for name in sorted(files.names(output.window_folder), key=_is_merging):
                is_of_attempt = name == output.stage_name or name.startswith(
                    f"{output.stage_name}~"
                )
                path = f"{output.window_folder}/{name}"
                if is_of_attempt and is_own_name(files, output, path):
                    remove_tagged(files, output.root, path)
            files.remove_if_empty(output.window_folder)

    # --- what readers see --------------------------------------------------------------------------

    def check_ready(self, outputs: Sequence[Layout]) -> None:
        """Raise what `publish` would raise, without changing anything."""
        for files, batch in in_batches(outputs[0], outputs):
            with as_sink_error(_cannot("be published", batch)):
                if not files.exists(batch[0].stages_folder):
                    self._check_ready(files, batch)
                    continue
                with locked(files, batch):
                    self._check_ready(files, batch)

    def _check_ready(self, files: Folders, outputs: Sequence[Layout]) -> None:
        root = outputs[0].root
        names, new = files.names(root), []
        for example in {output.ledger_id: output for output in outputs}.values():
            check_root(files, example, names)
        for output in outputs:
            placed = self._place(files, output, names)
            if self._is_to_be_swapped(files, placed, other_places(files, placed, names)):
                new.append(placed)
        if new:
            self._check_partitions(files, new, names)

    def publish(self, outputs: Sequence[Layout]) -> None:
        """Put stages in the place of the windows' older outputs."""
        for files, batch in in_batches(outputs[0], outputs):
            with as_sink_error(_cannot("be published", batch)), locked(files, batch):
                self._publish(files, batch)

    def _publish(self, files: Folders, outputs: Sequence[Layout]) -> None:
        names = files.names(outputs[0].root)
        new: list[Layout] = []
        seen: list[Layout] = []
        try:
            for output in outputs:
                placed = self._place(files, output, names)
                others = other_places(files, placed, names)
                if not self._is_to_be_swapped(files, placed, others):
                    seen.append(placed)
                    continue
                record_group(files, placed)
                older = [layout.final_path for layout in (placed, *(place for place, _ in others))]
                if older := list(filter(files.exists, older)):
                    self._replace(files, placed, older)
                    self._clean(files, placed)
                else:
                    new.append(placed)
        finally:
            # An error of one window does not stop those before it.
            self._show(files, new, seen)

    def _place(self, files: Folders, output: Output, names: Sequence[str]) -> Output:
        """Return the output in the partition that its stage records: another job of the attempt may have written the stage."""
        staged = output.own_marker(files, output.stage_path)
        if staged is None:
            return self._shown_place(files, output, names)
        return replace(output, partition=staged.partition)

    def _shown_place(
        self, files: Folders, output: Output, names: Sequence[str] | None = None
    ) -> Output:
        """Return the output in the place where readers see this attempt, which may be in another date's or hour's folder."""
        if not output.is_mine(output.read_visible(files, output.root, output.final_path)):
            for place, marker in other_places(files, output, names):
                if place.partition != output.partition and output.is_mine(marker):
                    return place
        return output

    def _is_to_be_swapped(
        self, files: Folders, output: Layout, others: Sequence[tuple[Layout, Layout]]
    ) -> bool:
        """Return whether the stage is still to be moved into place; raise what `publish` raises."""
        check_own_folder(files, output.window_folder)
        published = output.read_visible(files, output.root, output.final_path)
        staged = output.own_marker(files, output.stage_path)
        if staged is None:
            self._check_published(files, output, others)
            return False
        if (lost := lost_files(files, staged, files.sizes(output.stage_path))) is not None:
            visible = self._visible(files, output, others)
            raise output.changed_stage_error(output.stage_path, lost, visible)
        check_replaceable(files, output, published, others)
        for current in (published, *(marker for _, marker in others)):
            if current is not None:
                check_not_fewer(staged, current)
        return True

    def _show(self, files: Folders, new: Sequence[Layout], seen: Sequence[Layout]) -> None:
        """Move stages of unpublished windows into place, and clean up after these and those that are visible already."""
        if new:
            self._take_markers_out(files, new)
        for output in new:
            files.make_folder(output.final_parent)
        # The process that moved the visible ones may have died before its renames were durable.
        with files.together(*(output.final_parent for output in seen)):
            for output in new:
                files.rename(output.stage_path, output.final_path)
        for output in (*seen, *new):
            self._clean(files, output)

    def _replace(self, files: Folders, output: Layout, older: Sequence[str]) -> None:
        """Put a stage in the place of what readers see of its window."""
        [tag], final = self._take_markers_out(files, [output]), output.final_path
        files.make_folder(output.final_parent)
        swap = swap_folder(output.root)
        check_own_folder(files, swap)
        files.make_folder(swap)
        # This entry makes a dead replacement known, so it comes before any change that readers see.
        new = f"{swap}/{tag}"
        files.rename(output.stage_path, new)
        if older == [final] and files.exchange(new, final):
            remove_tagged(files, output.root, new)
            return
        asides = [f"{new}{OLDER}{n}" for n in range(len(older))]
        for path, aside in zip(older, asides, strict=True):
            files.rename(path, aside)
        files.rename(new, final)
        for aside in asides:
            remove_tagged(files, output.root, aside)

    def _take_markers_out(self, files: Folders, outputs: Sequence[Layout]) -> list[str]:
        """Reduce stages to their data and the tags of their markers; return the tags."""
        tags: list[str] = []
        stages = [output.stage_path for output in outputs]
        # Durable before the next step: a folder without tag and marker belongs to nobody. A dead process may have begun this.
        with files.together(*stages):
            for output, stage in zip(outputs, stages, strict=True):
                tags.append(tag := tag_in(files, stage) or new_tag(output.window_id))
                needed = (MARKER_NAME, f"{TAG_PREFIX}{tag}")
                # Checksums that Hadoop writes beside each file, for example.
                for name in files.names(stage):
                    if not is_data(name) and name not in needed:
                        files.remove(f"{stage}/{name}")
                files.make_folder(f"{stage}/{TAG_PREFIX}{tag}", durable=False)
        markers = [
            published_marker(layout.root, tag) for layout, tag in zip(outputs, tags, strict=True)
        ]
        folder = os.path.dirname(markers[0])
        files.make_folder(folder)
        with files.together(folder, *stages):
            for stage, marker in zip(stages, markers, strict=True):
                if files.exists(marker_path(stage)):
                    files.rename(marker_path(stage), marker)
        return tags

    def _check_published(
        self, files: Folders, output: Layout, others: Sequence[tuple[Layout, Layout]]
    ) -> None:
        """Raise unless readers see this attempt's output; for an attempt without a stage."""
        published = output.read_visible(files, output.root, output.final_path)
        if output.is_mine(published):
            if shown_marker(files, output) is not None:
                return
        elif published is not None:
            # A publication removes what older attempts have staged.
            check_newest(output, published)
        for place, other in others:
            check_newest(place, other)
        raise output.no_stage_error(self._visible(files, output, others))

    def _visible(
        self, files: Folders, output: Layout, others: Sequence[tuple[Layout, Layout]]
    ) -> str:
        """Return a sentence on what is in the window's place."""
        published = output.read_visible(files, output.root, output.final_path)
        if published is None and others:
            output, published = others[0]
        if published is None:
            return f"{output.final_path} has no output of this package."
        holds = (
            f"{output.final_path} holds attempt {published.attempt} of claim {published.claim_id}"
        )
        lost = lost_files(files, published, files.sizes(output.final_path))
        return f"{holds}." if lost is None else f"{holds}, of which files are gone: {lost}."

    def _clean(self, files: Folders, output: Layout) -> None:
        """Remove what the published output has made obsolete, and nothing that may still be published."""
        folder = output.window_folder
        for name in files.names(folder) if files.is_folder(folder) else ():
            stage = STAGE_NAME.fullmatch(name)
            newer = stage and stage[1] == output.claim_id and int(stage[2]) > output.attempt
            path = f"{folder}/{name}"
            if not newer and is_own_name(files, output, path):
                remove_tagged(files, output.root, path)
        files.remove_if_empty(folder)


def _cannot(be_done: str, outputs: Sequence[Layout]) -> str:
    """Return the beginning of an error about several windows: the first one's id, and how many more there are."""
    more = f" and {len(outputs) - 1} more" if len(outputs) > 1 else ""
    return f"window {outputs[0].window_id}{more} cannot {be_done} below {outputs[0].root}"


def _is_merging(name: str) -> bool:
    return name.endswith(MERGING)
