"""The specs of window assets in Dagster; derive from the translator to change them."""

from __future__ import annotations

from dagster import AssetKey, AssetSpec

from kafka_ordered_ops.dagster.settings import WindowSettings


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
