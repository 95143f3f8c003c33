"""What readers see of the windows in an object store: the files that the manifests name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.core.window.window import safe_name
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
    """Return the files of published windows, by window id; of all windows, or of those that are named.

    Raises:
        OSError: the store failed.
        SinkError: a manifest is none that this version reads.
    """
    store, folder = open_store(root, storage_options), manifests_folder(root)
    if window_ids is None:
        names = [name for name in store.listed(folder) if name.endswith(".json")]
    else:
        names = [f"{safe_name(one)}.json" for one in window_ids]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="manifests") as pool:
        manifests = list(pool.map(lambda name: _manifest(store, root, f"{folder}/{name}"), names))
    return {
        one.output.window_id: [f"{root}/{path}" for path in _own_files(one.output, one.files)]
        for one in manifests
        if one is not None and one.output is not None
    }


def shown_output(store: Store, place: Layout) -> Layout | None:
    """Return the output that readers see of a window; None if they see none. Raise as `published_files`."""
    manifest = _manifest(store, place.root, manifest_path(place))
    return None if manifest is None else manifest.output


def check_windows(
    store: Store, root: str, partition_by: PartitionBy | None, *, but: str | None = None
) -> None:
    """Check that the windows of a root are partitioned alike; also those that are staged. See `check_folders`.

    Raises:
        ConfigError: there are windows that are partitioned otherwise.
        OSError: the store failed.
    """
    like, mine = Layout(root, "none", "none", 0), None if but is None else safe_name(but)
    folder = manifests_folder(root)
    for name in store.some(folder):
        found = None if name == f"{mine}.json" else store.get(f"{folder}/{name}")
        manifest = None if found is None else Manifest.parse(found.content, like)
        if manifest is not None and manifest.output is not None:
            check_place(root, manifest.output.final_path.removeprefix(f"{root}/"), partition_by)
            break
    folder = stages_folder(root)
    seals = (name for name in store.some(folder) if name.endswith(SEAL))
    others = (name for name in seals if name.partition("/")[0] != mine)
    for name in islice(others, STAGED_EXAMPLES):
        found = store.get(f"{folder}/{name}")
        seal = None if found is None else Seal.parse(found.content, like)
        if seal is not None:
            check_staged(seal.output, partition_by)


def _own_files(output: Layout, paths: Iterable[str]) -> list[str]:
    """Return those paths that are of a window's files: others may have written the manifest."""
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
    found = store.get(path)
    if found is None:
        return None
    manifest = Manifest.parse(found.content, Layout(root, "none", "none", 0))
    if manifest is None:
        raise SinkError(
            f"{path} is no manifest that this version reads: a newer version wrote it, or another program"
        )
    return manifest
