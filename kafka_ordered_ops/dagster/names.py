"""Names that Dagster accepts, and one that it accepts only once."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping
from typing import Any

from dagster import AssetKey, AssetsDefinition, BetaWarning, ResourceDefinition


def op_safe(text: str) -> str:
    """Return a text with only the characters that names of ops, sensors and resources may have."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def alone_name(group_id: str, cluster: str) -> str:
    """Return the name of a resource that Dagster accepts only once in a code location; the name states the reason."""
    digest = hashlib.sha256(f"{cluster}\0{group_id}".encode()).hexdigest()[:8]
    return f"kafka_group_{op_safe(group_id)}_may_be_planned_by_one_asset_only_{digest}"


def inputs_name(key: AssetKey) -> str:
    """Return the name of what loads an asset's windows: each asset has its own, and Dagster accepts a name only once."""
    return f"windows_of_{op_safe('__'.join(key.path))}"


def mark() -> ResourceDefinition:
    """Return a resource that an asset requires so that Dagster loads no other asset of the same group and cluster beside it.

    Dagster refuses assets of one job with different resources of one name, and each asset makes its own.
    """
    return ResourceDefinition(_nothing, description="One asset plans a group's windows.")


def with_resources(asset: AssetsDefinition, resources: Mapping[str, Any]) -> AssetsDefinition:
    """Return an asset with resources of its own, besides those of the code location."""
    # The decorator accepts only resources that its function requires.
    attributes = asset.get_attributes_dict()
    attributes["resource_defs"] = {**attributes["resource_defs"], **resources}
    with warnings.catch_warnings():
        # Dagster calls assets' own resources beta.
        warnings.simplefilter("ignore", BetaWarning)
        return AssetsDefinition(**attributes)


def _nothing(_context: object) -> None:
    """Return nothing: only the resource's name matters."""
