"""Topics as assets from YAML; the matches of patterns are requested once, and stored."""

# Annotations are values here: Dagster reads a component's YAML by them.

import copy
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import dagster as dg
from dagster.components import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.cluster.cluster_facts import is_pattern, matching_topics
from kafka_ordered_ops.core.errors import BrokerError, ConfigError, UnknownTopicError
from kafka_ordered_ops.core.strict_json import Stored, Texts
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.dagster.assets.translator import KafkaWindowTranslator
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
from kafka_ordered_ops.delivery.arguments import with_known_fields

#: A user waits for a ``dg`` command, so this is shorter than the timeout of a run.
DISCOVERY_TIMEOUT_S: Final = 10.0

#: More topics than a cluster can have.
STATE_BYTES_MAX: Final = 64 * 1024 * 1024
#: Version of the state.
_VERSION: Final = 1

_REFRESH: Final = "dg utils refresh-defs-state"
_log = logging.getLogger(__name__)


class KafkaTopicsScaffolder(dg.Scaffolder[Any]):
    """The scaffold of ``dg scaffold defs``: one topic, named after the folder, observed every five minutes."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the file."""
        condition = "{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}"
        fields = {"topics": [request.target_path.name], "automation_condition": condition}
        dg.scaffold_component(request, fields)


class _VariableNotSetError(ConfigError):
    """The cluster's setting is a variable that is not set in this environment."""


class _InProject(dg.StateBackedComponent):
    """Knows the other components of its project, without a dataclass field, which would be a field in YAML."""

    _tree: dg.ComponentTree | None = None

    @classmethod
    def load(cls, attributes: Any, context: dg.ComponentLoadContext) -> Self:
        """Return the component of a file."""
        component = super().load(attributes, context)
        component._tree = context.component_tree
        return component


@dg.scaffold_with(KafkaTopicsScaffolder)
@with_known_fields
@dataclass(kw_only=True)
class KafkaTopicsComponent(_InProject, dg.Resolvable):
    """Adds Kafka topics to the graph as observable assets, upstream of their windows.

    Topics listed by name need no cluster until they are observed. The topics that match a pattern are requested from the
    cluster by ``dg utils refresh-defs-state``, and by ``dg`` commands during development. They are stored as the
    component's state, from which definitions are loaded.

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
        dg.Resolver.default(description="The op's name; by default built from the topics' names."),
    ] = None
    topic_key_prefix: ResolvedTopicPrefix = "kafka"
    kafka: ResolvedKafka = None
    kafka_resource: ResolvedKafkaName = KAFKA
    defs_state: ResolvedDefsStateConfig = field(
        default_factory=DefsStateConfigArgs.local_filesystem
    )

    def __post_init__(self) -> None:
        # Dagster accepts text for a list, because it may be a template that returns one.
        if isinstance(self.topics, str) or not self.topics:
            raise ConfigError("topics is a list of at least one name or pattern")
        if isinstance(self.exclude, str):
            raise ConfigError("exclude is a list of names or patterns")

    def topic_key(self, topic: str) -> dg.AssetKey:
        """Return the asset key of a topic; override it to change it."""
        return topic_key_below(self.topic_key_prefix, topic)

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Return a topic's spec, derived from the default one, with the key of `topic_key`; override it to change it."""
        return spec

    # --- state ---

    @property
    def defs_state_config(self) -> DefsStateConfig:
        """Where Dagster stores the matches of the patterns: each set of patterns has its own place."""
        key = f"{type(self).__name__}[{self._id}]"
        return DefsStateConfig.from_args(self.defs_state, default_key=key)

    def write_state_to_path(self, state_path: Path) -> None:
        """Request the topics that match the patterns and store them; without patterns, send no request.

        Raises:
            ConfigError: no cluster is known before a run, or an invalid pattern.
            UnknownTopicError: no topic matches.
            BrokerError: the cluster refuses, or cannot be reached.
        """
        # Request the topics before the first byte is written: the previous state survives an error.
        topics = self._matching_topics() if self._patterns else []
        state_path.write_text(strict_json.dumps({"version": _VERSION, "topics": topics}))

    def _matching_topics(self) -> list[str]:
        from kafka_ordered_ops.windows.queries.topics import topic_names

        kafka = _as_set_here(self._cluster())
        # To Kafka, a ledger with another name is not an internal topic.
        exclude = [*self.exclude, *filter(None, [kafka.ledger_topic])]
        return topic_names(
            kafka.client_settings(),
            self._patterns,
            exclude=exclude,
            timeout_s=DISCOVERY_TIMEOUT_S,
        )

    def _cluster(self) -> KafkaResource:
        """Return the cluster, without the resources of a run."""
        if self.kafka is not None:
            return self.kafka
        if self._tree is not None:
            for component in self._tree.get_all_components(of_type=KafkaResourceComponent):
                if component.name == self.kafka_resource:
                    return component.resource
        raise ConfigError(
            f"{', '.join(self._patterns)}: the matching topics are requested before a run, when resources made in "
            f"Python do not exist yet: give the file a kafka, or define {self.kafka_resource!r} with a "
            "KafkaResourceComponent"
        )

    # --- definitions ---

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the assets, and the resource if this file has a cluster.

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
                "The topics that match %s could not be requested; the stored ones are used: %s",
                ", ".join(self._patterns),
                error,
            )
        stored = copy.copy(self)
        stored.defs_state = self.defs_state.model_copy(update={"refresh_if_dev": False})
        return super(KafkaTopicsComponent, stored).build_defs(context)

    def build_defs_from_state(
        self, context: dg.ComponentLoadContext, state_path: Path | None
    ) -> dg.Definitions:
        """Return the definitions, with the patterns' topics from the state, if there is one."""
        if state_path is None and self._patterns:
            _log.warning(
                "The topics that match %s were never requested: run `%s`",
                ", ".join(self._patterns),
                _REFRESH,
            )
        name = self.kafka_resource if self.kafka is None else f"kafka__{self._id}"
        resources = {} if self.kafka is None else {name: self.kafka}
        topics = self._topics([] if state_path is None else _read(state_path))
        if not topics:
            return dg.Definitions(resources=resources)
        topic_assets = build_kafka_topic_assets(
            topics,
            translator=_Translator(self),
            isolation=self.isolation,
            automation_condition=self.automation_condition,
            group_name=self.group_name,
            kafka_resource=name,
            name=self.name or f"observe_{self._id}",
        )
        assets = dg.map_asset_specs(self.get_asset_spec, [topic_assets])
        return dg.Definitions(assets=assets, resources=resources)

    def _topics(self, matches: Sequence[str]) -> list[str]:
        """Return the topics by name and by pattern, without the excluded ones."""
        named = [topic for topic in self.topics if not is_pattern(topic)]
        try:
            return matching_topics(self.topics, self.exclude, {*named, *matches})
        except UnknownTopicError as error:
            if not self._patterns:
                raise ConfigError("every topic is excluded: there is nothing to observe") from error
            return []

    @property
    def _patterns(self) -> list[str]:
        return [topic for topic in self.topics if is_pattern(topic)]

    @property
    def _id(self) -> str:
        """Return an id of the names and patterns, independent of the matches, so that running jobs find their op."""
        cluster = self.kafka_resource
        if self.kafka is not None:
            cluster = _text_of(self.kafka.config.get("bootstrap.servers", ""))
        identity = [[*self.topics], [*self.exclude], cluster, self.topic_key_prefix]
        digest = hashlib.sha256(strict_json.dumps(identity).encode()).hexdigest()[:8]
        return f"{op_safe(self.topics[0])[:40]}_{digest}"


@dataclass(frozen=True)
class _Translator(KafkaWindowTranslator):
    component: KafkaTopicsComponent

    def topic_key(self, topic: str) -> dg.AssetKey:
        return self.component.topic_key(topic)


def _text_of(value: str) -> str:
    """Return a setting, or the name of its variable."""
    return value.env_var_name if isinstance(value, dg.EnvVar) else value


def _as_set_here(kafka: KafkaResource) -> KafkaResource:
    """Return the cluster with the values of its variables, as a run would have it.

    Raises:
        ConfigError: a variable is not set here.
    """
    config: dict[str, str] = {}
    for name, value in kafka.config.items():
        setting = value.get_value() if isinstance(value, dg.EnvVar) else value
        if setting is None:
            raise _VariableNotSetError(f"{name}: the variable {_text_of(value)} is not set")
        config[name] = setting
    return kafka.model_copy(update={"config": config})


class _State(Stored, frozen=True):
    what = "it"

    version: Literal[1]
    topics: Texts


def _read(state_path: Path) -> list[str]:
    try:
        with state_path.open("rb") as file:
            data = file.read(STATE_BYTES_MAX + 1)
        value = strict_json.loads(data, limit_bytes=STATE_BYTES_MAX)
        return list(_State.parse(value, "state").topics)
    except strict_json.JsonError as error:
        raise ConfigError(
            f"the state {state_path} is not this component's ({error}): run `{_REFRESH}`"
        ) from error
