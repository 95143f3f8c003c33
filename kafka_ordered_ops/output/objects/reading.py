"""Find the published files of windows in an object store: those that the manifests name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.output.layout import Layout, stages_folder
from kafka_ordered_ops.output.objects.layout import (
    SEAL,
    Manifest,
    Seal,
    is_own_file,
    manifest_path,
    manifests_folder,
)
from kafka_ordered_ops.output.objects.store import REQUESTS_AT_ONCE, Store, open_store
from kafka_ordered_ops.output.roots.partitions import STAGED_EXAMPLES, check_place, check_staged

_log = logging.getLogger(__name__)


def published_files(
    root: str, window_ids: tuple[str, ...] | None, storage_options: Mapping[str, Any] | None
) -> dict[str, list[str]]:
    """Return the files of published windows by window id: of all windows, or of those in `window_ids`.

    Raises:
        OSError: the store failed.
        SinkError: a manifest cannot be read.
        OutputVersionError: a newer version of this package wrote a manifest.
    """
    store, folder = open_store(root, storage_options), manifests_folder(root)
    if window_ids is None:
        names = [name for name in store.listed(folder) if name.endswith(".json")]
    else:
        names = [f"{window_id}.json" for window_id in window_ids]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="manifests") as pool:
        manifests = list(pool.map(lambda name: _manifest(store, root, f"{folder}/{name}"), names))
    return {
        manifest.output.window_id: [
            f"{root}/{path}" for path in _own_files(manifest.output, manifest.files)
        ]
        for manifest in manifests
        if manifest is not None and manifest.output is not None
    }


def shown_output(store: Store, place: Layout) -> Layout | None:
    """Return the output of a window that readers see; None if they see none. Raise what `published_files` raises."""
    manifest = _manifest(store, place.root, manifest_path(place))
    return None if manifest is None else manifest.output


def check_windows(
    store: Store, root: str, partition_by: PartitionBy | None, *, but: str | None = None
) -> None:
    """Check that the windows of a root, published and staged, are partitioned alike. See `check_folders`.

    Raises:
        ConfigError: there are windows with another partitioning.
        OSError: the store failed.
    """
    like, excluded = Layout(root, "none", "none", 0), but
    folder = manifests_folder(root)
    for name in store.some(folder):
        path = f"{folder}/{name}"
        stored = None if name == f"{excluded}.json" else store.get(path)
        manifest = None if stored is None else Manifest.parse(stored.content, like, path)
        if manifest is not None and manifest.output is not None:
            check_place(root, manifest.output.final_path.removeprefix(f"{root}/"), partition_by)
            break
    folder = stages_folder(root)
    seals = (name for name in store.some(folder) if name.endswith(SEAL))
    others = (name for name in seals if name.partition("/")[0] != excluded)
    for name in islice(others, STAGED_EXAMPLES):
        stored = store.get(path := f"{folder}/{name}")
        seal = None if stored is None else Seal.parse(stored.content, like, path)
        if seal is not None:
            check_staged(seal.output, partition_by)


def _own_files(output: Layout, paths: Iterable[str]) -> list[str]:
    """Return the paths of a window's own files: another program may have written the manifest."""
    named = list(paths)
    own = [path for path in named if is_own_file(output, path)]
    if len(own) < len(named):
        [other, *_] = set(named).difference(own)
        _log.warning(
            "%s names files that are not the window's, which are left out: %d, such as %.200r",
            manifest_path(output),
            len(named) - len(own),
            other,
        )
    return own


def _manifest(store: Store, root: str, path: str) -> Manifest | None:
    stored = store.get(path)
    if stored is None:
        return None
    manifest = Manifest.parse(stored.content, Layout(root, "none", "none", 0), path)
    if manifest is None:
        raise SinkError(
            f"{path} is not a manifest of this package: another program wrote it, or it is damaged"
        )
    return manifest
