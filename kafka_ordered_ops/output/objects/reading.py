"""What readers see of the windows in an object store: the files that the manifests name."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.window.window import safe_name
from kafka_ordered_ops.output.layout import Layout
from kafka_ordered_ops.output.objects.layout import Manifest, manifests_folder
from kafka_ordered_ops.output.objects.store import REQUESTS_AT_ONCE, Store, open_store


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
        one.output.window_id: [f"{root}/{path}" for path in one.files]
        for one in manifests
        if one is not None and one.output is not None
    }


def a_published_place(store: Store, root: str) -> str | None:
    """Return the folder of some published window, by its path in the root; None where there is none.

    Raises:
        OSError: the store failed.
    """
    folder, like = manifests_folder(root), Layout(root, "none", "none", 0)
    for name in store.some(folder):
        found = store.get(f"{folder}/{name}")
        manifest = None if found is None else Manifest.parse(found.content, like)
        if manifest is not None and manifest.output is not None:
            return manifest.output.final_path.removeprefix(f"{root}/")
    return None


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
