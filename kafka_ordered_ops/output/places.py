"""Check the place of windows before they are claimed, and adopt a root of another ledger."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.core.window.ownership import (
    Publisher,
    check_may_replace,
    check_root_owner,
)
from kafka_ordered_ops.core.window.partition import DATE_FOLDER, check_partition_by, partition_of
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.address import bad_root, is_in_store
from kafka_ordered_ops.output.filesystem import as_sink_error, normal_root
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.layout import WINDOW_PREFIX, Layout, stages_folder
from kafka_ordered_ops.output.roots.ownership import check_owned, other_places
from kafka_ordered_ops.output.roots.root_owner import RootOwner, owner_path, read_owner, with_groups


class OutputPlace:
    """A folder, or a prefix in an object store, for publishing windows.

    Args:
        root: the root of the outputs.
        storage_options: credentials and settings of an object store.
        partition_by: how the windows are partitioned.
        is_copy: whether records are written as they are, so that their columns are known before they are claimed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        partition_by: str | None = None,
        *,
        is_copy: bool = False,
    ) -> None:
        self._root = normal_root(root)
        self._options = storage_options
        self._partition_by = check_partition_by(partition_by)
        self._is_copy = is_copy

    def check(
        self, publishers: Sequence[Publisher], windows: Mapping[str, Window]
    ) -> Sequence[str]:
        """Return notes on the root, and on that of bad records if the windows have one; changes nothing.

        Raises:
            OutputOwnedError: the root, or the place of a window, belongs to another ledger, group or claim.
            SinkError: another program's files are in the place of a window; or the file system or the store failed.
        """
        notes = self._check(publishers, windows)
        with_bad = [each for each in publishers if windows[each.window_id].has_bad_output]
        if with_bad:
            beside = OutputPlace(bad_root(self._root), self._options, self._partition_by)
            notes += beside._check(with_bad, windows)
        return notes

    def check_columns(self, window: Window, settings: ClientSettings) -> None:
        """Raise `ConfigError` if files cannot have the decoded columns that are copied into them."""
        if not self._is_copy:
            return
        # Imported late: most windows need no decoders.
        from kafka_ordered_ops.decoding.decoder import decoder_of
        from kafka_ordered_ops.output.writing.stage import written_columns

        if (decoder := decoder_of(window, settings)) is not None:
            written_columns(decoder, self._partition_by)

    def _check(self, publishers: Sequence[Publisher], windows: Mapping[str, Window]) -> list[str]:
        with as_sink_error(f"the windows below {self._root} cannot be read"):
            if is_in_store(self._root):
                owner = self._check_store(publishers, windows)
            else:
                owner = self._check_folder(publishers, windows)
        if owner is None:
            return []
        topics = tuple(sorted({name for window in windows.values() for name in window.topics}))
        notes = (
            owner.note_on(name, topics, self._root)
            for name in {publisher.group_id for publisher in publishers}
        )
        return [note for note in notes if note is not None]

    def _check_folder(
        self, publishers: Sequence[Publisher], windows: Mapping[str, Window]
    ) -> RootOwner | None:
        files = files_for(self._root, self._options)
        names = files.names(self._root)
        owner = read_owner(files, self._root, names)
        _check_root(publishers, owner, self._root)
        # Once for all windows: there may be a hundred thousand names.
        folders = {f"{WINDOW_PREFIX}{publisher.window_id}" for publisher in publishers}
        names = [name for name in names if name in folders or DATE_FOLDER.fullmatch(name)]
        for publisher in publishers:
            place = _place_of(
                publisher, windows[publisher.window_id], self._root, self._partition_by
            )
            # Places of other dates, which another process may be replacing right now.
            for _, other in other_places(files, place, names):
                check_may_replace(publisher, other.owner, other.final_path)
            if not files.exists(place.final_path):
                continue
            published = Layout.read_visible(files, self._root, place.final_path)
            if published is None and files.exists(place.stages_folder):
                # Another process may be replacing it right now: wait for its end.
                with files.locked(place.stages_folder, place.window_folder):
                    if not files.exists(place.final_path):
                        continue
                    published = Layout.read_visible(files, self._root, place.final_path)
            check_owned(files, place, published, publisher)
        return None if owner is None else with_groups(files, owner, self._root)

    def _check_store(
        self, publishers: Sequence[Publisher], windows: Mapping[str, Window]
    ) -> RootOwner | None:
        from kafka_ordered_ops.output.objects.reading import shown_output
        from kafka_ordered_ops.output.objects.root_owner import found_owner
        from kafka_ordered_ops.output.objects.store import open_store

        store = open_store(self._root, self._options)
        owner, _ = found_owner(store, self._root)
        _check_root(publishers, owner, self._root)
        for publisher in publishers:
            place = _place_of(
                publisher, windows[publisher.window_id], self._root, self._partition_by
            )
            if (published := shown_output(store, place)) is not None:
                check_may_replace(publisher, published.owner, published.final_path)
        return owner


def adopt_root(
    root: str | os.PathLike[str], ledger_id: str, storage_options: Mapping[str, Any] | None = None
) -> str | None:
    """Make a ledger the owner of a root; return the former owner. Without another owner, return None and change nothing.

    Published windows stay: they record their ledger, and windows of another ledger are never replaced.

    Raises:
        ConfigError: an invalid root or option.
        SinkError: the file system or the store failed.
    """
    root = normal_root(root)
    with as_sink_error(f"{owner_path(root)} cannot be changed"):
        if is_in_store(root):
            from kafka_ordered_ops.output.objects.root_owner import take_root
            from kafka_ordered_ops.output.objects.store import open_store

            return take_root(open_store(root, storage_options), root, ledger_id)
        files = files_for(root, storage_options)
        if read_owner(files, root) is None:
            return None
        with files.locked(stages_folder(root), stages_folder(root)):
            owner = read_owner(files, root)
            if owner is None or owner.ledger_id == ledger_id:
                return None
            files.write(owner_path(root), RootOwner(ledger_id).to_bytes())
            return owner.ledger_id


def _check_root(publishers: Sequence[Publisher], owner: RootOwner | None, root: str) -> None:
    for ledger_id in {publisher.ledger_id for publisher in publishers}:
        if owner is not None:
            check_root_owner(ledger_id, owner.ledger_id, root)


def _place_of(
    publisher: Publisher, window: Window, root: str, partition_by: PartitionBy | None
) -> Layout:
    """Return the place of a window without a claim."""
    return Layout(
        root,
        publisher.window_id,
        "none",
        0,
        group_id=publisher.group_id,
        partition=partition_of(window, partition_by),
    )
