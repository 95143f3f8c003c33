"""Names that Dagster takes, and one that it takes only once."""

from __future__ import annotations

import hashlib
import re
import warnings

from dagster import AssetsDefinition, BetaWarning, ResourceDefinition


def op_safe(text: str) -> str:
    """A text in the characters of names of ops, sensors and resources: fewer than Kafka's and people's."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def alone_name(group_id: str, cluster: str) -> str:
    """The name of a resource that Dagster takes only once among the assets of a code location; it says why."""
    digest = hashlib.sha256(f"{cluster}\0{group_id}".encode()).hexdigest()[:8]
    return f"kafka_group_{op_safe(group_id)}_may_be_planned_by_one_asset_only_{digest}"


def planned_alone(asset: AssetsDefinition, name: str) -> AssetsDefinition:
    """The asset as one beside which Dagster loads no other of the same group and cluster.

    Dagster refuses assets of one job with different resources of one name, and each asset makes its own.
    """
    alone = {name: ResourceDefinition(_nothing, description="One asset plans a group's windows.")}
    # The decorator takes no resources beside those that its function asks for.
    attributes = asset.get_attributes_dict()
    attributes["resource_defs"] = {**attributes["resource_defs"], **alone}
    with warnings.catch_warnings():
        # That assets may have their own resources, Dagster calls a beta.
        warnings.simplefilter("ignore", BetaWarning)
        return AssetsDefinition(**attributes)


def _nothing(_context: object) -> None:
    """What the resource is: nothing is made of it."""
