"""Remove what dead attempts have left in an object store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.output.address import control_folder, is_in_store
from kafka_ordered_ops.output.filesystem import as_sink_error, normal_root
from kafka_ordered_ops.output.objects.layout import SEAL
from kafka_ordered_ops.output.objects.store import open_store


def clean(
    root: str | os.PathLike[str],
    older_than: timedelta,
    storage_options: Mapping[str, Any] | None,
) -> int:
    """See `StagedOutput.clean`."""
    root = normal_root(root)
    if not is_in_store(root):
        raise ConfigError(
            f"{root} is a folder, where each publication removes what attempts have left: there is nothing to clean"
        )
    before = datetime.now(UTC) - older_than
    with as_sink_error(f"the stages of {root} cannot be cleaned"):
        store, control = open_store(root, storage_options), control_folder(root)
        staged = store.listed(f"{control}/stage")
        dead = []
        # One attempt's seal, parts and drafts go together, once the newest of them is old enough.
        for _, names in groupby(staged, key=lambda name: name.partition("~")[0]):
            every = list(names)
            if max(staged[name].modified for name in every) < before:
                dead += every
        probes = store.listed(f"{control}/probe")
        old_probes = [name for name, one in probes.items() if one.modified < before]
        # Seals first: one that is there is never less than it says.
        dead.sort(key=lambda name: not name.endswith(SEAL))
        store.delete([f"{control}/stage/{name}" for name in dead])
        store.delete([f"{control}/probe/{name}" for name in old_probes])
    return len(dead) + len(old_probes)
