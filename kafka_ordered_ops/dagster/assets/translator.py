"""The specs of window assets in Dagster; derive from the translator to change them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dagster import AssetKey, AssetSpec

from kafka_ordered_ops.dagster.settings import WindowSettings

#: How the tag of a kind begins.
_KIND: Final = "dagster/kind/"
#: Attributes of a spec that an asset's own spec replaces. All others are put together.
_REPLACED: Final = (
    "description",
    "group_name",
    "code_version",
    "automation_condition",
    "freshness_policy",
)


class KafkaWindowTranslator:
    """Makes specs of assets, and keys of topics."""

    def topic_key(self, topic: str) -> AssetKey:
        """Return the asset key of a topic."""
        return AssetKey(["kafka", topic])

    def asset_spec(self, key: AssetKey, settings: WindowSettings) -> AssetSpec:
        """Return the spec of a group's windows. It depends on topics by name; the matches of patterns are unknown."""
        named = [topic for topic in settings.untimed_window.topics if not topic.startswith("^")]
        return AssetSpec(
            key,
            deps=[self.topic_key(topic) for topic in named],
            kinds={"kafka"},
            metadata={
                "kafka_ordered_ops/group": settings.group_id,
                "kafka_ordered_ops/topics": ", ".join(settings.untimed_window.topics),
            },
        )


def own_spec(asset: AssetKey | str | Sequence[str] | AssetSpec) -> AssetSpec:
    """Return the spec that the caller gave: of a key, one without attributes."""
    return asset if isinstance(asset, AssetSpec) else AssetSpec(AssetKey.from_coercible(asset))


def with_own(spec: AssetSpec, own: AssetSpec) -> AssetSpec:
    """Return the translator's spec with the attributes of the caller's, which win.

    Dependencies, metadata, owners, tags and kinds are those of both.
    """
    keys = {dep.asset_key for dep in own.deps}
    given: dict[str, Any] = {
        name: value for name in _REPLACED if (value := getattr(own, name)) is not None
    }
    kinds = spec.kinds | own.kinds
    tags = {**spec.tags, **own.tags}
    return spec.replace_attributes(
        deps=[*(dep for dep in spec.deps if dep.asset_key not in keys), *own.deps],
        metadata={**spec.metadata, **own.metadata},
        owners=list(dict.fromkeys([*spec.owners, *own.owners])),
        # A spec has its kinds among its tags.
        tags={name: value for name, value in tags.items() if not name.startswith(_KIND)},
        kinds=kinds,
        **given,
    )
