"""Assets of windows from YAML."""

# Annotations are values here: Dagster reads a component's YAML by them.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Final

import dagster as dg
from dagster.components.resolved.core_models import (
    DailyPartitionsDefinitionModel,
    HourlyPartitionsDefinitionModel,
    TimeWindowPartitionsDefinitionModel,
    WeeklyPartitionsDefinitionModel,
    resolve_partitions_def,
)

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    OnDataLoss,
    OnForeignCommit,
    OnOpenClaim,
)
from kafka_ordered_ops.dagster.assets import ordered_window_asset
from kafka_ordered_ops.dagster.automation import catch_up_condition
from kafka_ordered_ops.dagster.check import partitions_live_check
from kafka_ordered_ops.dagster.components.models import (
    ResolvedApplication,
    ResolvedBackfillPolicy,
    ResolvedCheck,
    ResolvedCondition,
    ResolvedIsolation,
    ResolvedKafka,
    ResolvedKafkaName,
    ResolvedSensor,
    ResolvedTopicPrefix,
    Setting,
    WindowOp,
    choice,
    function_of,
    options_of,
    span,
    topic_key_below,
)
from kafka_ordered_ops.dagster.names import op_safe
from kafka_ordered_ops.dagster.sensor import build_partitions_live_sensor
from kafka_ordered_ops.dagster.settings import OnNotLive, WindowSettings
from kafka_ordered_ops.dagster.step.job import AssetWindows
from kafka_ordered_ops.dagster.step.step_functions import KAFKA, job_without_function
from kafka_ordered_ops.dagster.translator import KafkaWindowTranslator
from kafka_ordered_ops.hosting.arguments import with_known_fields
from kafka_ordered_ops.spark.job_checks import check_application
from kafka_ordered_ops.spec.engine import Engine


class OrderedWindowScaffolder(dg.Scaffolder[Any]):
    """The scaffold of ``dg scaffold defs``: an hourly asset, named after its folder, that copies a topic of the resource `kafka`."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the file."""
        name = request.target_path.name
        dg.scaffold_component(
            request,
            {
                "key": name,
                "topics": [name],
                "group_id": f"dagster-{name}",
                "starting_offsets": "earliest",
                "partitions": {"type": "hourly", "start_date": "2026-01-01-00:00"},
                "output": f"/tmp/lake/{name}",
                "on_not_live": "fail",
                "grace": "PT15M",
            },
        )


@dg.scaffold_with(OrderedWindowScaffolder)
@with_known_fields
@dataclass(kw_only=True)
class OrderedWindowComponent(dg.Component, dg.Resolvable):
    """Delivers exactly planned windows of Kafka topics, in order, as an asset's partitions.

    It copies the records unchanged into Parquet files below `output`, or submits a Spark `application`. To do
    something else, name a `function`, or derive your own component and override `execute`.

    The fields are the arguments of `build_ordered_window_asset`, spans as ISO 8601 text.

    Raises:
        ConfigError: invalid settings.
    """

    key: dg.ResolvedAssetKey
    topics: Annotated[
        Sequence[str],
        dg.Resolver.default(
            description="Names, or regular expressions that begin with ^.", examples=[["orders"]]
        ),
    ]
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
    starting_offsets: Annotated[
        str | None,
        dg.Resolver.default(
            description="Where a new group begins.",
            examples=["earliest", "latest", "committed", "2026-01-01T00:00:00Z", "-PT1H"],
        ),
    ] = None
    output: Annotated[
        str | None,
        dg.Resolver.default(
            description="The folder for the windows' files, or a prefix in an object store."
        ),
    ] = None
    storage_options: Annotated[
        dict[str, Any] | None,
        dg.Resolver(
            options_of,
            model_field_type=Mapping[str, Setting] | None,
            description="Credentials and settings of the output's object store.",
            examples=[{"aws_secret_access_key": "{{ env.LAKE_SECRET }}"}],
        ),
    ] = field(default=None, repr=False)
    partition_by: Annotated[
        str | None,
        dg.Resolver.default(
            description="Put windows' folders below one of their date, or of their date and hour.",
            examples=["date", "hour"],
        ),
    ] = None
    table: Annotated[
        str | None,
        dg.Resolver.default(
            description="Instead of output: an existing Delta or Iceberg table.",
            examples=["lake.orders"],
        ),
    ] = None
    table_mode: Annotated[
        str | None,
        dg.Resolver.default(
            description="How rows get into the table.", examples=["append", "replace", "merge"]
        ),
    ] = None
    table_keys: Annotated[
        Sequence[str],
        dg.Resolver.default(
            description="For merge: the columns that identify a row.", examples=[["order_id"]]
        ),
    ] = ()
    delete_tombstones: bool = False
    table_conf: Annotated[
        dict[str, str] | None,
        dg.Resolver.default(description="Settings of the Spark session that writes the table."),
    ] = None
    function: Annotated[
        Callable[..., Any] | None,
        dg.Resolver(
            function_of,
            model_field_type=str | None,
            description="Delivers the windows: f(context, windows, resources ...). In a module, or, after a "
            "dot, in a module beside the YAML file.",
            examples=["my_project.jobs.write_orders", ".jobs.write_orders"],
        ),
    ] = None
    application: ResolvedApplication = None
    application_args: Sequence[str] = ()
    submit: Annotated[
        dict[str, Any] | None,
        dg.Resolver.default(
            description="Options of spark-submit.", examples=[{"master": "local[2]"}]
        ),
    ] = None
    max_out_of_orderness: Annotated[timedelta | None, span("max_out_of_orderness")] = None
    grace: Annotated[timedelta | None, span("grace")] = None
    open_lag: Annotated[timedelta | None, span("open_lag")] = None
    isolation: ResolvedIsolation = Isolation.READ_COMMITTED
    exclude: Sequence[str] = ()
    on_covered: Annotated[OnCovered, choice(OnCovered, "on_covered")] = OnCovered.AUTO
    on_open_claim: Annotated[OnOpenClaim, choice(OnOpenClaim, "on_open_claim")] = (
        OnOpenClaim.STEP_AROUND
    )
    on_data_loss: Annotated[OnDataLoss, choice(OnDataLoss, "on_data_loss")] = OnDataLoss.FAIL
    on_foreign_commit: Annotated[OnForeignCommit, choice(OnForeignCommit, "on_foreign_commit")] = (
        OnForeignCommit.FAIL
    )
    on_not_live: Annotated[OnNotLive, choice(OnNotLive, "on_not_live")] = OnNotLive.WARN
    ordered: bool = True
    engine: Annotated[Engine, choice(Engine, "engine")] = Engine.PYTHON
    redefine: bool = False
    backfill_policy: ResolvedBackfillPolicy = None
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
    pool: str | None = None
    op: Annotated[
        WindowOp | None,
        dg.Resolver.default(description="The asset's op: tags, a retry policy, a pool."),
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
        self._usual()(context, windows)

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
        op = self.op or WindowOp()
        # Each component has its own name for it: two files may name two clusters.
        name = _name_of(self.key) if self.kafka is not None else self.kafka_resource
        asset = ordered_window_asset(
            key=self.key,
            topics=self.topics,
            group_id=self.group_id,
            partitions_def=self.partitions,
            backfill_policy=self.backfill_policy or op.backfill_policy,
            automation_condition=self.automation_condition,
            translator=_Translator(self),
            kafka_resource=name,
            serial=self.serial,
            deps=[dg.AssetKey.from_user_string(one) for one in self.deps],
            description=self.description,
            group_name=self.group_name,
            owners=self.owners,
            tags=self.tags,
            pool=self.pool or op.pool,
            options=op.options(),
            cluster=self._cluster(),
            **{one: getattr(self, one) for one in _SETTINGS},
        )(self._own or self._usual())
        sensors = []
        if self.sensor is not None:
            sensors.append(build_partitions_live_sensor(asset, **self.sensor))
        checks = []
        if self.check is not None:
            checks.append(partitions_live_check(asset, **self.check))
        return dg.Definitions(
            assets=[asset],
            asset_checks=checks,
            sensors=sensors,
            resources={} if self.kafka is None else {name: self.kafka},
        )

    @property
    def _own(self) -> Callable[..., Any] | None:
        """Return the function that replaces a copy or an application; None if there is none."""
        if self.function is not None:
            return self.function
        is_overridden = type(self).execute is not OrderedWindowComponent.execute
        return self.execute if is_overridden else None

    def _usual(self) -> Callable[..., Any]:
        return job_without_function(
            self.application,
            self.application_args,
            self.submit,
            table_conf=self.table_conf,
        )

    def _check(self) -> None:
        key = self.key.to_user_string()
        for name in ("pool", "backfill_policy"):
            if getattr(self, name) is not None and getattr(self.op, name, None) is not None:
                raise ConfigError(f"{key}: {name} is given twice, in op as well")
        if self._own is not None and self.application is not None:
            raise ConfigError(f"{key} has a function and an application: give one of them")
        self._usual()
        if self._own is None and self.application is not None:
            # Beside the YAML file: a file missing there is missing in every run.
            check_application(self.application)
        if self._own is None and self.output is None and self.table is None:
            raise ConfigError(
                f"{key} has no output: give it an output or a table, or a function with its own sink"
            )

    def _cluster(self) -> str | None:
        """Return a name of the cluster that files of the same cluster share: each has its own resource."""
        if self.kafka is None:
            return None
        brokers = self.kafka.config.get("bootstrap.servers", "")
        return brokers.env_var_name if isinstance(brokers, dg.EnvVar) else brokers


#: Fields that are passed on unchanged.
_SETTINGS: Final = tuple(
    name for name in WindowSettings.__dataclass_fields__ if name not in {"topics", "group_id"}
)


@dataclass(frozen=True)
class _Translator(KafkaWindowTranslator):
    component: OrderedWindowComponent

    def topic_key(self, topic: str) -> dg.AssetKey:
        return self.component.topic_key(topic)

    def asset_spec(self, key: dg.AssetKey, settings: WindowSettings) -> dg.AssetSpec:
        return self.component.get_asset_spec(super().asset_spec(key, settings))


def _name_of(key: dg.AssetKey) -> str:
    return op_safe("__".join(["kafka", *key.path]))
