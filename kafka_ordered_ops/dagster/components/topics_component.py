"""Topics as assets from YAML; what patterns mean is asked once, and remembered."""

# Annotations are values here: Dagster reads a component's YAML by them.

import copy
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Self

import dagster as dg
from dagster.components import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.cluster_facts import is_pattern, matching_topics
from kafka_ordered_ops.core.errors import BrokerError, ConfigError, UnknownTopicError
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.dagster.components.models import (
    ResolvedCondition,
    ResolvedIsolation,
    ResolvedKafka,
    ResolvedKafkaName,
    ResolvedTopicPrefix,
    topic_key_below,
)
from kafka_ordered_ops.dagster.components.resource_component import KafkaResourceComponent
from kafka_ordered_ops.dagster.names import op_safe
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.step.step_functions import KAFKA
from kafka_ordered_ops.dagster.topics import build_kafka_topic_assets
from kafka_ordered_ops.dagster.translator import KafkaWindowTranslator
from kafka_ordered_ops.hosting.arguments import with_known_fields

#: Somebody sits before a ``dg`` command that asks; less than a run has.
DISCOVERY_TIMEOUT_S: Final = 10.0

#: More topics than a cluster can have.
STATE_BYTES_MAX: Final = 64 * 1024 * 1024

_REFRESH: Final = "dg utils refresh-defs-state"
_log = logging.getLogger(__name__)


class KafkaTopicsScaffolder(dg.Scaffolder[Any]):
    """What ``dg scaffold defs`` writes: one topic, named as the folder, looked at every five minutes."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Writes the file."""
        condition = "{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}"
        given = {"topics": [request.target_path.name], "automation_condition": condition}
        dg.scaffold_component(request, given)


class _VariableNotSetError(ConfigError):
    """The cluster is told by a variable that is set elsewhere: where runs are."""


class _InProject(dg.StateBackedComponent):
    """Knows the other components of its project. A field of a dataclass would be one of the YAML file."""

    _tree: dg.ComponentTree | None = None

    @classmethod
    def load(cls, attributes: Any, context: dg.ComponentLoadContext) -> Self:
        """The component of a file."""
        made = super().load(attributes, context)
        made._tree = context.component_tree
        return made


@dg.scaffold_with(KafkaTopicsScaffolder)
@with_known_fields
@dataclass(kw_only=True)
class KafkaTopicsComponent(_InProject, dg.Resolvable):
    """Puts Kafka topics into the graph, upstream of the assets of their windows, to be observed.

    Topics by name need no cluster until they are looked at. Which topics a pattern means only a cluster knows: it
    is asked by ``dg utils refresh-defs-state``, and by ``dg`` commands while a project is developed. The answer is
    kept as the component's state, and definitions are loaded from that.

    The fields are the arguments of `build_kafka_topic_assets`.

    Raises:
        ConfigError: invalid settings.
    """

    topics: Annotated[
        Sequence[str],
        dg.Resolver.default(
            description="Names, or regular expressions that begin with ^.",
            examples=[["orders", "^payments-.*"]],
        ),
    ]
    exclude: Annotated[
        Sequence[str],
        dg.Resolver.default(description="Names or regular expressions to leave out."),
    ] = ()
    isolation: ResolvedIsolation = Isolation.READ_COMMITTED
    automation_condition: ResolvedCondition = None
    group_name: str | None = None
    name: Annotated[
        str | None,
        dg.Resolver.default(description="The op's name; by default made of the topics' names."),
    ] = None
    topic_key_prefix: ResolvedTopicPrefix = "kafka"
    kafka: ResolvedKafka = None
    kafka_resource: ResolvedKafkaName = KAFKA
    defs_state: ResolvedDefsStateConfig = field(
        default_factory=DefsStateConfigArgs.local_filesystem
    )

    def __post_init__(self) -> None:
        # Dagster takes any text for a list, since it may be a template that makes one.
        if isinstance(self.topics, str) or not self.topics:
            raise ConfigError("topics is a list of at least one name or pattern")
        if isinstance(self.exclude, str):
            raise ConfigError("exclude is a list of names or patterns")

    def topic_key(self, topic: str) -> dg.AssetKey:
        """Return the asset key of a topic; to be overridden."""
        return topic_key_below(self.topic_key_prefix, topic)

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """A topic's spec, made of the one by default; to be overridden. The key is `topic_key`'s."""
        return spec

    # --- state ---

    @property
    def defs_state_config(self) -> DefsStateConfig:
        """Where Dagster keeps what the patterns mean: another place for another question."""
        key = f"{type(self).__name__}[{self._id}]"
        return DefsStateConfig.from_args(self.defs_state, default_key=key)

    def write_state_to_path(self, state_path: Path) -> None:
        """Asks the cluster what the patterns mean, and writes it down; asks nothing where there are none.

        Raises:
            ConfigError: no cluster is known before a run, or what is no pattern.
            UnknownTopicError: no topic matches.
            BrokerError: the cluster refuses, or cannot be reached.
        """
        # All is known before the first byte is written: what was there before outlives an error.
        found = self._ask() if self._patterns else []
        state_path.write_text(strict_json.dumps({"topics": found}))

    def _ask(self) -> list[str]:
        from kafka_ordered_ops.windows.queries.topics import topic_names

        kafka = _as_set_here(self._cluster())
        # A ledger of another name than usual is no internal topic to Kafka.
        exclude = [*self.exclude, *filter(None, [kafka.ledger_topic])]
        return topic_names(
            kafka.client_settings(),
            self._patterns,
            exclude=exclude,
            timeout_s=DISCOVERY_TIMEOUT_S,
        )

    def _cluster(self) -> KafkaResource:
        """The cluster, before there is a run that has resources."""
        if self.kafka is not None:
            return self.kafka
        if self._tree is not None:
            for one in self._tree.get_all_components(of_type=KafkaResourceComponent):
                if one.name == self.kafka_resource:
                    return one.resource
        raise ConfigError(
            f"{', '.join(self._patterns)}: which topics that means is asked before a run, when resources made in "
            f"Python are not there yet: give the file a kafka, or name {self.kafka_resource!r} by a "
            "KafkaResourceComponent"
        )

    # --- definitions ---

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The assets, and the resource if the cluster is given here.

        Raises:
            ConfigError: invalid settings.
        """
        if not self._patterns:
            return self.build_defs_from_state(context, None)
        try:
            return super().build_defs(context)
        except (BrokerError, UnknownTopicError, _VariableNotSetError) as error:
            if not self.defs_state.refresh_if_dev:
                raise
            _log.warning(
                "Which topics %s means could not be asked, so they are the ones known before: %s",
                ", ".join(self._patterns),
                error,
            )
        known = copy.copy(self)
        known.defs_state = self.defs_state.model_copy(update={"refresh_if_dev": False})
        return super(KafkaTopicsComponent, known).build_defs(context)

    def build_defs_from_state(
        self, context: dg.ComponentLoadContext, state_path: Path | None
    ) -> dg.Definitions:
        """The same, with the patterns' topics as they were found; without state there are none."""
        if state_path is None and self._patterns:
            _log.warning(
                "Which topics %s means was never asked: run `%s`",
                ", ".join(self._patterns),
                _REFRESH,
            )
        name = self.kafka_resource if self.kafka is None else f"kafka__{self._id}"
        resources = {} if self.kafka is None else {name: self.kafka}
        topics = self._topics([] if state_path is None else _read(state_path))
        if not topics:
            return dg.Definitions(resources=resources)
        made = build_kafka_topic_assets(
            topics,
            translator=_Translator(self),
            isolation=self.isolation,
            automation_condition=self.automation_condition,
            group_name=self.group_name,
            kafka_resource=name,
            name=self.name or f"observe_{self._id}",
        )
        assets = dg.map_asset_specs(self.get_asset_spec, [made])
        return dg.Definitions(assets=assets, resources=resources)

    def _topics(self, found: Sequence[str]) -> list[str]:
        """The names, and what was found for the patterns, less the excluded."""
        named = [topic for topic in self.topics if not is_pattern(topic)]
        try:
            return matching_topics(self.topics, self.exclude, {*named, *found})
        except UnknownTopicError as error:
            if not self._patterns:
                raise ConfigError("every topic is excluded: there is nothing to observe") from error
            return []

    @property
    def _patterns(self) -> list[str]:
        return [topic for topic in self.topics if is_pattern(topic)]

    @property
    def _id(self) -> str:
        """Of this question and no other; the same whatever is found, so that runs in between find their op."""
        cluster = self.kafka_resource
        if self.kafka is not None:
            cluster = _text_of(self.kafka.config.get("bootstrap.servers", ""))
        asked = [[*self.topics], [*self.exclude], cluster, self.topic_key_prefix]
        digest = hashlib.sha256(strict_json.dumps(asked).encode()).hexdigest()[:8]
        return f"{op_safe(self.topics[0])[:40]}_{digest}"


@dataclass(frozen=True)
class _Translator(KafkaWindowTranslator):
    component: KafkaTopicsComponent

    def topic_key(self, topic: str) -> dg.AssetKey:
        return self.component.topic_key(topic)


def _text_of(value: str) -> str:
    """A setting, or the name of the variable that has it."""
    return value.env_var_name if isinstance(value, dg.EnvVar) else value


def _as_set_here(kafka: KafkaResource) -> KafkaResource:
    """The cluster with the values of its variables, as a run would have it.

    Raises:
        ConfigError: one is not set here.
    """
    config: dict[str, str] = {}
    for name, value in kafka.config.items():
        found = value.get_value() if isinstance(value, dg.EnvVar) else value
        if found is None:
            raise _VariableNotSetError(f"{name}: the variable {_text_of(value)} is not set")
        config[name] = found
    return kafka.model_copy(update={"config": config})


def _read(state_path: Path) -> list[str]:
    try:
        known = strict_json.loads(state_path.read_bytes(), limit_bytes=STATE_BYTES_MAX)
        return [str(topic) for topic in known["topics"]]
    except (strict_json.JsonError, KeyError, TypeError) as error:
        raise ConfigError(f"the state is not this component's: run `{_REFRESH}`") from error
