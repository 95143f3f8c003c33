"""Assets of windows from YAML."""

# Annotations are values here: Dagster reads a component's YAML by them.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import dagster as dg
from dagster.components.resolved.core_models import (
    DailyPartitionsDefinitionModel,
    HourlyPartitionsDefinitionModel,
    TimeWindowPartitionsDefinitionModel,
    WeeklyPartitionsDefinitionModel,
    resolve_partitions_def,
)

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY
from kafka_ordered_ops.dagster.assets.single import window_asset_of
from kafka_ordered_ops.dagster.assets.translator import KafkaWindowTranslator
from kafka_ordered_ops.dagster.assets.window_op import DEFAULT_OP
from kafka_ordered_ops.dagster.automation import catch_up_condition
from kafka_ordered_ops.dagster.check import partitions_live_check
from kafka_ordered_ops.dagster.components.models import (
    ResolvedCheck,
    ResolvedCondition,
    ResolvedJob,
    ResolvedKafka,
    ResolvedKafkaName,
    ResolvedSensor,
    ResolvedTopicPrefix,
    WindowOpFields,
    as_arguments,
    choice,
    function_of,
    span,
    topic_key_below,
)
from kafka_ordered_ops.dagster.components.values import (
    ResolvedFolder,
    ResolvedPolicy,
    ResolvedTable,
    ResolvedWindow,
)
from kafka_ordered_ops.dagster.names import op_safe
from kafka_ordered_ops.dagster.sensor import build_partitions_live_sensor
from kafka_ordered_ops.dagster.settings import OnNotLive, WindowSettings
from kafka_ordered_ops.dagster.step.job import AssetWindows
from kafka_ordered_ops.dagster.step.step_functions import KAFKA, job_without_function
from kafka_ordered_ops.delivery.arguments import with_known_fields
from kafka_ordered_ops.spark.job_checks import check_application
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.jobs import Application


class OrderedWindowScaffolder(dg.Scaffolder[Any]):
    """The scaffold of ``dg scaffold defs``: an hourly asset, named after its folder, that copies a topic of the resource `kafka`."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the file."""
        dg.scaffold_component(request, scaffolded(request.target_path.name))


def scaffolded(name: str) -> dict[str, Any]:
    """Return the fields of an hourly asset that copies the topic of its name."""
    return {
        "key": name,
        "window": {"topics": [name], "starting_offsets": "earliest"},
        "group_id": f"dagster-{name}",
        "partitions": {"type": "hourly", "start_date": "2026-01-01-00:00"},
        "output": f"/tmp/lake/{name}",
        "on_not_live": "fail",
        "grace": "PT15M",
    }


@dg.scaffold_with(OrderedWindowScaffolder)
@with_known_fields
@dataclass(kw_only=True)
class OrderedWindowComponent(dg.Component, dg.Resolvable):
    """Delivers exactly planned windows of Kafka topics, in order, as an asset's partitions.

    It copies the records unchanged into Parquet files below `output`, or submits a Spark application as its `job`. To do
    something else, name a `function`, or derive your own component and override `execute`.

    The fields are the arguments of `build_ordered_window_asset` and of `dagster.AssetSpec`: values by their fields, spans as ISO
    8601 text.

    Raises:
        ConfigError: invalid settings.
    """

    key: dg.ResolvedAssetKey
    group_id: Annotated[
        str,
        dg.Resolver.default(
            description="The consumer group whose progress the windows are; one asset for each group."
        ),
    ]
    partitions: Annotated[
        dg.PartitionsDefinition[str] | None,
        dg.Resolver(
            resolve_partitions_def,
            model_field_type=HourlyPartitionsDefinitionModel
            | DailyPartitionsDefinitionModel
            | WeeklyPartitionsDefinitionModel
            | TimeWindowPartitionsDefinitionModel
            | None,
            description="Intervals of the records' time; without partitions, each run takes all new records.",
        ),
    ] = None
    topics: Annotated[
        Sequence[str] | None,
        dg.Resolver.default(
            description="Names, or regular expressions that begin with ^. Short for a window of these topics.",
            examples=[["orders"]],
        ),
    ] = None
    window: ResolvedWindow = None
    output: ResolvedFolder = None
    table: ResolvedTable = None
    function: Annotated[
        Callable[..., Any] | None,
        dg.Resolver(
            function_of,
            model_field_type=str | None,
            description="The function that delivers the windows: f(window), f(context, window, resources ...) or f(context, windows). "
            "In a module, or, after a dot, in a module beside the YAML file.",
            examples=["my_project.jobs.write_orders", ".jobs.write_orders"],
        ),
    ] = None
    job: ResolvedJob = None
    policy: ResolvedPolicy = None
    grace: Annotated[timedelta | None, span("grace")] = None
    open_lag: Annotated[timedelta | None, span("open_lag")] = None
    on_not_live: Annotated[OnNotLive, choice(OnNotLive, "on_not_live")] = OnNotLive.WARN
    engine: Annotated[Engine | None, choice(Engine, "engine")] = None
    serial: bool = False
    deps: Annotated[
        Sequence[str],
        dg.Resolver.default(
            description="Assets that it depends on besides its topics.",
            examples=[["lake/customers"]],
        ),
    ] = ()
    description: str | None = None
    group_name: Annotated[
        str | None,
        dg.Resolver.default(description="Dagster's group of assets, not a consumer group."),
    ] = None
    owners: Annotated[
        Sequence[str] | None,
        dg.Resolver.default(
            description="People by e-mail address, or teams.", examples=[["team:data"]]
        ),
    ] = None
    tags: dict[str, str] | None = None
    op: Annotated[
        WindowOpFields | None,
        dg.Resolver.default(
            description="The asset's op: tags, retries, a pool, a backfill policy."
        ),
    ] = None
    automation_condition: ResolvedCondition = None
    topic_key_prefix: ResolvedTopicPrefix = "kafka"
    kafka: ResolvedKafka = None
    kafka_resource: ResolvedKafkaName = KAFKA
    sensor: ResolvedSensor = None
    check: ResolvedCheck = None

    @classmethod
    def get_additional_scope(cls) -> Mapping[str, Any]:
        """Return functions for templates, in addition to Dagster's: also in ``post_processing``."""
        return {**super().get_additional_scope(), "catch_up_condition": catch_up_condition}

    def execute(
        self,
        context: dg.AssetExecutionContext,
        windows: AssetWindows,
        *_more: Any,
        **_resources: Any,
    ) -> Any:
        """Deliver a step's windows; override this, with further parameters for resources if needed."""
        self._default_function()(context, windows)

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Return the asset's spec, derived from the default one; override it to change it."""
        return spec

    def topic_key(self, topic: str) -> dg.AssetKey:
        """Return the asset key of an upstream topic; override it to change it."""
        return topic_key_below(self.topic_key_prefix, topic)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the asset, and the resource if this file has a cluster.

        Raises:
            ConfigError: no output, or invalid settings.
        """
        self._check()
        # Each component has its own resource name: two files may name two clusters.
        name = _name_of(self.key) if self.kafka is not None else self.kafka_resource
        asset = window_asset_of(
            key=self._spec(),
            topics=self.topics,
            window=self.window,
            group_id=self.group_id,
            output=self.output or self.table,
            policy=self.policy or DEFAULT_POLICY,
            on_not_live=self.on_not_live,
            grace=self.grace,
            open_lag=self.open_lag,
            engine=self.engine,
            partitions_def=self.partitions,
            translator=_Translator(self),
            kafka_resource=name,
            op=self.op or DEFAULT_OP,
            cluster=self._cluster(),
        )(self._own_function or self._default_function())
        sensors = []
        if self.sensor is not None:
            sensors.append(
                build_partitions_live_sensor(asset, **as_arguments(self.sensor, "sensor"))
            )
        checks = []
        if self.check is not None:
            checks.append(partitions_live_check(asset, **as_arguments(self.check, "check")))
        return dg.Definitions(
            assets=[asset],
            asset_checks=checks,
            sensors=sensors,
            resources={} if self.kafka is None else {name: self.kafka},
        )

    def _spec(self) -> dg.AssetSpec:
        """Return the asset's spec by the file."""
        deps: list[dg.AssetKey | dg.AssetDep] = [
            dg.AssetKey.from_user_string(dep) for dep in self.deps
        ]
        if self.serial:
            before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
            deps.append(dg.AssetDep(self.key, partition_mapping=before))
        return dg.AssetSpec(
            self.key,
            deps=deps,
            description=self.description,
            group_name=self.group_name,
            owners=self.owners,
            tags=self.tags,
            automation_condition=self.automation_condition,
        )

    @property
    def _own_function(self) -> Callable[..., Any] | None:
        """Return the function that replaces a copy or an application; None without one."""
        if self.function is not None:
            return self.function
        is_overridden = type(self).execute is not OrderedWindowComponent.execute
        return self.execute if is_overridden else None

    def _default_function(self) -> Callable[..., Any]:
        return job_without_function(self.job, self.output or self.table)

    def _check(self) -> None:
        key = self.key.to_user_string()
        if self._own_function is not None and self.job is not None:
            raise ConfigError(f"{key} has a function and a job: give one of them")
        if self._own_function is None and self.engine is not None:
            raise ConfigError(
                f"{key} has an engine, which only a function reads with: give the engine in job, as {{engine: ...}}"
            )
        self._default_function()
        if self.output is not None and self.table is not None:
            raise ConfigError(f"{key} has an output and a table: give one of them")
        if isinstance(self.job, Application):
            # Beside the YAML file: a file missing there is missing in every run.
            check_application(self.job.path)
        if self._own_function is None and self.output is None and self.table is None:
            raise ConfigError(
                f"{key} has no output: give it an output or a table, or a function with its own sink"
            )

    def _cluster(self) -> str | None:
        """Return a name that files of the same cluster share: each file has its own resource."""
        if self.kafka is None:
            return None
        brokers = self.kafka.config.get("bootstrap.servers", "")
        return brokers.env_var_name if isinstance(brokers, dg.EnvVar) else brokers


@dataclass(frozen=True)
class _Translator(KafkaWindowTranslator):
    component: OrderedWindowComponent

    def topic_key(self, topic: str) -> dg.AssetKey:
        return self.component.topic_key(topic)

    def asset_spec(self, key: dg.AssetKey, settings: WindowSettings) -> dg.AssetSpec:
        return self.component.get_asset_spec(super().asset_spec(key, settings))


def _name_of(key: dg.AssetKey) -> str:
    return op_safe("__".join(["kafka", *key.path]))
