"""Topics as assets that Dagster observes: their end offsets as a data version, for lineage and automation."""

# Without postponed annotations: Dagster reads the type of a step's context.

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    AssetSpec,
    AutomationCondition,
    BetaWarning,
    DataVersion,
    ObserveResult,
    multi_observable_source_asset,
)

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.arguments import check_choice
from kafka_ordered_ops.core.cluster.cluster_facts import is_pattern
from kafka_ordered_ops.core.cluster.names import is_topic_name
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.dagster.assets.translator import KafkaWindowTranslator
from kafka_ordered_ops.dagster.metadata.tables import table
from kafka_ordered_ops.dagster.names import op_safe
from kafka_ordered_ops.dagster.step.delivery import errors_for_dagster
from kafka_ordered_ops.delivery.arguments import with_known_names

if TYPE_CHECKING:
    from kafka_ordered_ops.dagster.resource import KafkaResource
    from kafka_ordered_ops.windows.queries.topics import TopicEnds

_PREFIX: Final = "kafka_ordered_ops"
_COLUMNS: Final = ("partition", "log_start", "end_offset", "offsets")


@with_known_names
def build_kafka_topic_assets(
    topics: Sequence[str],
    *,
    translator: KafkaWindowTranslator | None = None,
    isolation: Isolation | str = Isolation.READ_COMMITTED,
    automation_condition: AutomationCondition[Any] | None = None,
    group_name: str | None = None,
    kafka_resource: str = "kafka",
    name: str | None = None,
) -> AssetsDefinition:
    """Make topics observable assets, upstream of the assets of their windows.

    An observation's data version changes when the topic's end offsets change, or when the topic is recreated.
    Downstream automation therefore fires for new records, not for another observation of the same records. No record
    is read, and topics that are observed together share their requests.

    Args:
        topics: the topics' names. Patterns are refused.
        translator: makes the topics' keys; pass the same translator as for the window assets.
        isolation: under ``read_committed``, records of an open transaction do not count yet.
        automation_condition: when to observe, such as ``AutomationCondition.on_cron("*/5 * * * *")``. By default you
            start observations, or a job and its schedule do.
        group_name: Dagster's group of assets, not a consumer group.
        kafka_resource: the name of the `KafkaResource`.
        name: the op's name; by default built from the topics' names.

    Raises:
        ConfigError: no topic, a pattern, an invalid topic name, or an invalid isolation.
    """
    if isinstance(topics, str) or not topics:
        raise ConfigError(f"topics is a list of at least one name, not {topics!r}")
    if wrong := [topic for topic in topics if is_pattern(topic) or not is_topic_name(topic)]:
        raise ConfigError(f"{', '.join(wrong)}: an asset is one topic, so name each topic")
    names, isolation = (
        list(dict.fromkeys(topics)),
        check_choice(isolation, Isolation, what="isolation"),
    )
    keys = {topic: (translator or KafkaWindowTranslator()).topic_key(topic) for topic in names}

    def observe(context: AssetExecutionContext) -> Iterator[ObserveResult]:
        kafka = getattr(context.resources, kafka_resource)
        selected = [topic for topic in names if keys[topic] in context.selected_asset_keys]
        with errors_for_dagster():
            ends = _ends(kafka, selected, isolation)
        for topic in selected:
            yield ObserveResult(
                keys[topic],
                metadata=_metadata(ends[topic]),
                data_version=_version(ends[topic]),
            )

    with warnings.catch_warnings():
        # Dagster has no other way to define an observed asset, and this API is beta.
        warnings.simplefilter("ignore", BetaWarning)
        assets: AssetsDefinition = multi_observable_source_asset(
            name=name or _op_name(names),
            specs=[
                AssetSpec(
                    key,
                    description="A Kafka topic. Its end offsets are observed; no record is read.",
                    kinds={"kafka"},
                    group_name=group_name,
                    automation_condition=automation_condition,
                    metadata={f"{_PREFIX}/topic": topic},
                )
                for topic, key in keys.items()
            ],
            can_subset=True,
            required_resource_keys={kafka_resource},
        )(observe)
    return assets


def _ends(
    kafka: "KafkaResource", topics: Sequence[str], isolation: Isolation
) -> "dict[str, TopicEnds]":
    from kafka_ordered_ops.windows.queries.topics import topic_ends

    return topic_ends(kafka.client_settings(), topics, isolation=isolation)


def _version(topic: "TopicEnds") -> DataVersion:
    """Return the data version: the same for the same ends of the same topic, whatever retention has removed."""
    ends = {str(partition.partition): partition.end_offset for partition in topic.partitions}
    text = strict_json.dumps({"topic_id": topic.topic_id, "ends": ends})
    return DataVersion(hashlib.sha256(text.encode()).hexdigest()[:32])


def _metadata(topic: "TopicEnds") -> dict[str, Any]:
    rows = (
        {
            "partition": partition.partition,
            "log_start": partition.log_start,
            "end_offset": partition.end_offset,
            "offsets": partition.end_offset - partition.log_start,
        }
        for partition in topic.partitions
    )
    return {
        f"{_PREFIX}/topic_id": topic.topic_id,
        f"{_PREFIX}/partitions": len(topic.partitions),
        f"{_PREFIX}/offsets": sum(
            partition.end_offset - partition.log_start for partition in topic.partitions
        ),
        f"{_PREFIX}/ends": table(_COLUMNS, rows),
    }


def _op_name(topics: Sequence[str]) -> str:
    """Return an op name that is unique to these topics."""
    readable = op_safe(topics[0])[:40]
    digest = hashlib.sha256(strict_json.dumps(sorted(topics)).encode()).hexdigest()[:8]
    return f"observe_{readable}_{digest}"
