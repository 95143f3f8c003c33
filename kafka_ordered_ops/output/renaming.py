"""Publish by renames: for a local or mounted file system, and for HDFS.

A first publication is two renames: the marker out of the stage, and the stage into its place. To replace an older
output, the stage goes to ``swap`` and changes places with it in one step, so readers see the one or the other at every
moment. Where the file system cannot do that, as HDFS, or where the older output stands elsewhere, it goes aside
first: for an instant nothing is visible. Whoever touches the root next puts right what a crash has left, see
`healing`, and whoever publishes again ends at the same place. The marker also says which files there were: a stage that
has lost some since is not published.

What stands in the way and was not made here, a link in particular, is left as it is.

Of many windows in one pass, each step is made for all before the next, so that a folder that holds names of several is
synchronized with the disk once. What a crash of the system finds, and by which synchronization::

    nothing before it is sealed     a job dies with the system, and its draft is made again
    a sealed draft, whole           its data files; its marker; its folder, with the names of both
    a stage, once it is reported    the window's folder, each; the folder of all stages, once
    a stage with its tag            the stage, before its marker is moved: without the tag it would be nobody's
    its marker among the markers    the folder of the markers, once; the stage, so that readers find only data in it
    what readers see, once told     the root, or the folder of a date or an hour, once

The parts of a split window have stages of their own. Joining them moves their files into one folder, which
becomes the window's stage once it is complete; a part keeps its marker until then, so whoever joins again
knows that what is missing in a part has been moved.
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
        """Look whether the root is this ledger's, and its windows are partitioned as this one is."""
        files = folders_of(output)
        with as_sink_error(f"stages below {output.root} cannot be made"), locked(files, [output]):
            names = files.names(output.root)
            check_root(files, output, names)
            check_folders(files, output.root, kind_of(output), but=output.window_id, names=names)

    def make(self, drafts: Sequence[tuple[Layout, str]]) -> None:
        """Make the folders of jobs' drafts, empty."""
        for files, some in in_batches(drafts[0][0], drafts):
            # Locked: another job that ends may remove a window's folder, if it is empty.
            with locked(files, [output for output, _ in some]):
                names = files.names(some[0][0].root)
                for output, token in some:
                    with as_sink_error(f"the stage {output.draft_path(token)} cannot be made"):
                        self._check_place(files, output, names)
                        self._check_partition_folders(files, output)
                        self._check_stage(files, output)
                own_root(files, some[0][0], names)
                for output, token in some:
                    path = output.draft_path(token)
                    with as_sink_error(f"the stage {path} cannot be made"):
                        # A crash of the system takes the job with it, and its draft need not outlive that.
                        files.make_folder(path, durable=False)
                        flag = f"{path}/{UNDER_WAY_NAME}"
                        files.write(flag, under_way(output), durable=False)

    def seal(self, output: Output, token: str, facts: Facts) -> Output:
        """Complete a draft: make its files durable, count what they hold, then write the marker."""
        files, path = folders_of(output), output.draft_path(token)
        with as_sink_error(f"the stage {path} cannot be completed"):
            # What Spark's tasks write later makes the folder again, and it would hold a part of the records.
            if not files.exists(flag := f"{path}/{UNDER_WAY_NAME}"):
                raise output.removed_error(path)
            named = in_name_order(files.names(path))
            files.move_all([(f"{path}/{name}", f"{path}/{new}") for name, new in named.items()])
            files.settle(path, names=False)
            holding = count(files, path)
            check_rows(output.window_id, path, holding, facts.get("records"))
            sealed = replace(output, facts=dict(facts), holding=holding)
            # With the names of the other files, which are in the same folder.
            files.write(marker_path(path), sealed.marker())
            files.remove(flag)
        return sealed

    def land(self, drafts: Sequence[tuple[Layout, str]]) -> None:
        """Make sealed drafts their attempts' stages; what other jobs of the attempts made of them before goes."""
        for files, some in in_batches(drafts[0][0], drafts):
            outputs = [output for output, _ in some]
            with as_sink_error(_cannot("be completed", outputs)), locked(files, outputs):
                names = files.names(outputs[0].root)
                own_root(files, outputs[0], names)
                self._check_partitions(files, outputs, names)
                asides = [f"{output.stage_path}~older-{token}" for output, token in some]
                for output in outputs:
                    self._check_place(files, output, names)
                    self._check_stage(files, output)
                    if output.part is not None:
                        take_part_back(files, output)
                # `make` left the names of the windows' folders to this.
                with files.together(outputs[0].stages_folder):
                    for (output, token), aside in zip(some, asides, strict=True):
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
        """Look, before a job runs, whether its output could be published."""
        for folder in (output.window_folder, output.stage_path):
            check_own_folder(files, folder)
        if files.exists(output.final_path):
            shown = output.read_visible(files, output.root, output.final_path)
            check_owned(files, output, shown, output.publisher)
        for place, marker in other_places(files, output, names):
            check_owned(files, place, marker, output.publisher)

    def _check_partitions(
        self, files: Folders, outputs: Sequence[Layout], names: Sequence[str]
    ) -> None:
        """Look whether the root's windows are partitioned as these are."""
        by_kind: dict[PartitionBy | None, list[Layout]] = {}
        for output in outputs:
            self._check_partition_folders(files, output)
            by_kind.setdefault(kind_of(output), []).append(output)
        for kind, alike in by_kind.items():
            # Each one is compared with all but itself, so that two compare all of them with all.
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
        """Raise `SinkError` when the stage is not this package's: it would have to go for the new one."""
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
        with as_sink_error(f"the stage {output.stage_path} cannot be looked at"):
            look_after(files, output)
            if (marker := whole_marker(files, output, output.stage_path)) is not None:
                return marker
            if not files.exists(output.window_folder):
                return None
            # Another job of this attempt may be putting its own in its place at this very moment.
            with locked(files, [output]):
                return whole_marker(files, output, output.stage_path)

    def shown(self, output: Output) -> Output | None:
        """Return the marker of what readers see, if that is this very attempt's and has all its rows."""
        files = folders_of(output)
        with as_sink_error(f"{output.final_path} cannot be looked at"):
            look_after(files, output)
            return shown_marker(files, self._shown_place(files, output))

    def as_found(self, output: Output) -> Output:
        """Return an output with the facts of its stage's marker, if there is one."""
        files = folders_of(output)
        with as_sink_error(f"the stage {output.stage_path} cannot be looked at"):
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
            # Parts before what was moved out of them: a part that is there is never less than it says.
            for name in sorted(files.names(output.window_folder), key=_is_merging):
                mine = name == output.stage_name or name.startswith(f"{output.stage_name}~")
                path = f"{output.window_folder}/{name}"
                if mine and is_own_name(files, output, path):
                    remove_tagged(files, output.root, path)
            files.remove_if_empty(output.window_folder)

    # --- what readers see --------------------------------------------------------------------------

    def check_ready(self, outputs: Sequence[Layout]) -> None:
        """Raise what `publish` would raise; nothing is changed."""
        for files, some in in_batches(outputs[0], outputs):
            with as_sink_error(_cannot("be published", some)):
                if not files.exists(some[0].stages_folder):
                    self._check_ready(files, some)
                    continue
                with locked(files, some):
                    self._check_ready(files, some)

    def _check_ready(self, files: Folders, outputs: Sequence[Layout]) -> None:
        root = outputs[0].root
        names, new = files.names(root), []
        for one in {output.ledger_id: output for output in outputs}.values():
            check_root(files, one, names)
        for output in outputs:
            placed = self._place(files, output, names)
            if self._is_to_be_swapped(files, placed, other_places(files, placed, names)):
                new.append(placed)
        if new:
            self._check_partitions(files, new, names)

    def publish(self, outputs: Sequence[Layout]) -> None:
        """Put stages in the place of the windows' older outputs."""
        for files, some in in_batches(outputs[0], outputs):
            with as_sink_error(_cannot("be published", some)), locked(files, some):
                self._publish(files, some)

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
                older = [one.final_path for one in (placed, *(place for place, _ in others))]
                if older := list(filter(files.exists, older)):
                    self._replace(files, placed, older)
                    self._clean(files, placed)
                else:
                    new.append(placed)
        finally:
            # An error of one window is not in the way of those before it.
            self._show(files, new, seen)

    def _place(self, files: Folders, output: Output, names: Sequence[str]) -> Output:
        """Return the output where its stage says that it belongs: another job of the attempt may have written it."""
        staged = output.own_marker(files, output.stage_path)
        if staged is None:
            return self._shown_place(files, output, names)
        return replace(output, partition=staged.partition)

    def _shown_place(
        self, files: Folders, output: Output, names: Sequence[str] | None = None
    ) -> Output:
        """Return the output where readers see this attempt, if they do in other folders of dates and hours."""
        if not output.is_mine(output.read_visible(files, output.root, output.final_path)):
            for place, marker in other_places(files, output, names):
                if place.partition != output.partition and output.is_mine(marker):
                    return place
        return output

    def _is_to_be_swapped(
        self, files: Folders, output: Layout, others: Sequence[tuple[Layout, Layout]]
    ) -> bool:
        """Return whether the stage still has to be moved into place; raise what `publish` raises."""
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
        for shown in (published, *(marker for _, marker in others)):
            if shown is not None:
                check_not_fewer(staged, shown)
        return True

    def _show(self, files: Folders, new: Sequence[Layout], seen: Sequence[Layout]) -> None:
        """Move stages of windows that readers see nothing of into place, and clean up after these and those seen already."""
        if new:
            self._take_markers_out(files, new)
        for output in new:
            files.make_folder(output.final_parent)
        # Who moved those that are seen may have died before that was durable.
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
        # By this entry, a replacement that dies is found: before anything moves that readers see.
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
        """Leave nothing in stages but data, and the tags of their markers; return the tags."""
        tags: list[str] = []
        stages = [output.stage_path for output in outputs]
        # Durable before the next step: a folder whose tag or marker is lost is nobody's. Also where a process died between.
        with files.together(*stages):
            for output, stage in zip(outputs, stages, strict=True):
                tags.append(tag := tag_in(files, stage) or new_tag(output.window_id))
                kept = (MARKER_NAME, f"{TAG_PREFIX}{tag}")
                # Checksums that Hadoop writes beside each file, say.
                for name in files.names(stage):
                    if not is_data(name) and name not in kept:
                        files.remove(f"{stage}/{name}")
                files.make_folder(f"{stage}/{TAG_PREFIX}{tag}", durable=False)
        markers = [published_marker(one.root, tag) for one, tag in zip(outputs, tags, strict=True)]
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
        """Raise unless readers see this attempt's output; for one that has no stage."""
        published = output.read_visible(files, output.root, output.final_path)
        if output.is_mine(published):
            if shown_marker(files, output) is not None:
                return
        elif published is not None:
            # Whoever publishes removes what older attempts have staged.
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
        """Remove what the published output has made worthless, and nothing that may still be published."""
        folder = output.window_folder
        for name in files.names(folder) if files.is_folder(folder) else ():
            stage = STAGE_NAME.fullmatch(name)
            newer = stage and stage[1] == output.claim_id and int(stage[2]) > output.attempt
            path = f"{folder}/{name}"
            if not newer and is_own_name(files, output, path):
                remove_tagged(files, output.root, path)
        files.remove_if_empty(folder)


def _cannot(be_done: str, outputs: Sequence[Layout]) -> str:
    """Return the beginning of an error about the first of some windows, and how many more there are."""
    more = f" and {len(outputs) - 1} more" if len(outputs) > 1 else ""
    return f"window {outputs[0].window_id}{more} cannot {be_done} below {outputs[0].root}"


def _is_merging(name: str) -> bool:
    return name.endswith(MERGING)
