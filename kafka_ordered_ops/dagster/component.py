"""Assets of windows from YAML."""

# Annotations are values here: Dagster reads a component's YAML by them.

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import dagster as dg
from dagster.components.resolved.core_models import (
    DailyPartitionsDefinitionModel,
    HourlyPartitionsDefinitionModel,
    MultiRunBackfillPolicyModel,
    SingleRunBackfillPolicyModel,
    TimeWindowPartitionsDefinitionModel,
    WeeklyPartitionsDefinitionModel,
    resolve_backfill_policy,
    resolve_partitions_def,
)

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import parse_duration_ms
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    OnDataLoss,
    OnForeignCommit,
    OnOpenClaim,
)
from kafka_ordered_ops.dagster.assets import KAFKA, ordered_window_asset
from kafka_ordered_ops.dagster.job import AssetWindows
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.sensor import build_partitions_live_sensor
from kafka_ordered_ops.dagster.settings import ENGINES, OnNotLive, WindowSettings
from kafka_ordered_ops.dagster.translator import KafkaWindowTranslator

#: One variable and nothing else: known when a run begins, and shown by its name alone.
_VARIABLE: Final = re.compile(r"\{\{\s*env\.(\w+)\s*\}\}")


class KafkaSettingsModel(dg.Model):
    """A cluster, in YAML: the fields of `KafkaResource`."""

    config: Mapping[str, str | bool | int | float]
    settings_allowed: Sequence[str] = ()
    ledger_topic: str | None = None


class LiveSensorModel(dg.Model):
    """A sensor for the asset, in YAML: the arguments of `build_partitions_live_sensor`, spans as text."""

    name: str | None = None
    lookback: str | None = None
    every: str | None = None
    minimum_interval_seconds: int = 60
    running: bool = False


def _sensor_of(
    context: dg.ResolutionContext, given: LiveSensorModel | None
) -> dict[str, Any] | None:
    if given is None:
        return None
    status = dg.DefaultSensorStatus.RUNNING if given.running else dg.DefaultSensorStatus.STOPPED
    return {
        "name": context.resolve_value(given.name or "") or None,
        "lookback": _span_of(context, given.lookback),
        "every": _span_of(context, given.every),
        "minimum_interval_seconds": given.minimum_interval_seconds,
        "default_status": status,
    }


def _kafka_of(
    context: dg.ResolutionContext, given: KafkaSettingsModel | None
) -> KafkaResource | None:
    if given is None:
        return None
    topic: Any = given.ledger_topic
    return KafkaResource(
        config={name: _setting(context, value) for name, value in given.config.items()},
        settings_allowed=list(context.resolve_value(given.settings_allowed)),
        ledger_topic=context.resolve_value(topic),
    )


def _setting(context: dg.ResolutionContext, value: str | bool | int | float) -> Any:
    """One of a client's settings, as text; a variable of the environment stays one.

    So passwords are read where a run is, and Dagster shows the variable's name instead of them.
    """
    if isinstance(value, str):
        if variable := _VARIABLE.fullmatch(value.strip()):
            return dg.EnvVar(variable[1])
        return str(context.resolve_value(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _span_of(context: dg.ResolutionContext, text: Any) -> timedelta | None:
    value = context.resolve_value(text)
    if value is None:
        return None
    return timedelta(milliseconds=parse_duration_ms(str(value), what="the span"))


def _function_of(context: dg.ResolutionContext, name: str | None) -> Callable[..., Any] | None:
    if name is None:
        return None
    module, _, function = name.rpartition(".")
    if module.startswith(".") or name.startswith("."):
        load = dg.ComponentLoadContext.from_resolution_context(context)
        home = load.defs_relative_module_name(load.path)
        module = f"{home}{module}" if module else home
    found = getattr(importlib.import_module(module), function, None) if module else None
    if not callable(found):
        raise ConfigError(f"function {name!r} is not the name of a function as module.function")
    return found  # type: ignore[no-any-return]


_Span = Annotated[
    timedelta | None,
    dg.Resolver(_span_of, model_field_type=str | None, examples=["PT15M"]),
]


class OrderedWindowScaffolder(dg.Scaffolder[Any]):
    """What ``dg scaffold defs`` writes: an hourly asset that is named as its folder, and copies a topic."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Writes the file."""
        name = request.target_path.name
        dg.scaffold_component(
            request,
            {
                "key": name,
                "topics": [name],
                "group_id": f"dagster-{name}",
                "start": "earliest",
                "partitions": {"type": "hourly", "start_date": "2026-01-01-00:00"},
                "output": f"data/{name}",
                "on_not_live": "fail",
                "grace": "PT15M",
                "kafka": {"config": {"bootstrap.servers": "localhost:9092"}},
            },
        )


@dg.scaffold_with(OrderedWindowScaffolder)
@dataclass(kw_only=True)
class OrderedWindowComponent(dg.Component, dg.Resolvable):
    """Delivers exactly planned windows of Kafka topics, in order, as an asset's partitions.

    It copies the records as they are into Parquet files below `output`, or submits a Spark `application`. To do
    something else, name a `function`, or derive a component of your own and override `execute`.

    The fields are the arguments of `build_ordered_window_asset`, spans as ISO 8601 text.

    Raises:
        ConfigError: settings that cannot be.
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
            description="The consumer group whose progress the windows are: the asset's own."
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
            description="Intervals of the records' time; without any, each run takes what is new.",
        ),
    ] = None
    start: Annotated[
        str | None,
        dg.Resolver.default(
            description="Where a new group begins.",
            examples=["earliest", "latest", "committed", "2026-01-01T00:00:00Z", "-PT1H"],
        ),
    ] = None
    output: Annotated[
        str | None,
        dg.Resolver.default(description="The folder for the windows' files."),
    ] = None
    function: Annotated[
        Callable[..., Any] | None,
        dg.Resolver(
            _function_of,
            model_field_type=str | None,
            description="Delivers the windows: f(context, windows, resources ...). One of a module, or, after a "
            "dot, of one beside the YAML file.",
            examples=["my_project.jobs.write_orders", ".jobs.write_orders"],
        ),
    ] = None
    application: Annotated[
        str | None,
        dg.Resolver.default(description="A Spark application that asks for its windows."),
    ] = None
    application_args: Sequence[str] = ()
    submit: Annotated[
        dict[str, Any] | None,
        dg.Resolver.default(
            description="How spark-submit is run.", examples=[{"master": "local[2]"}]
        ),
    ] = None
    allowed_lateness: _Span = None
    grace: _Span = None
    isolation: Isolation = Isolation.READ_COMMITTED
    exclude: Sequence[str] = ()
    on_covered: OnCovered = OnCovered.REPLAY
    on_open_claim: OnOpenClaim = OnOpenClaim.STEP_AROUND
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    on_foreign_commit: OnForeignCommit = OnForeignCommit.FAIL
    on_not_live: OnNotLive = OnNotLive.WARN
    ordered: bool = True
    engine: Annotated[
        str, dg.Resolver.default(description="Who reads Kafka.", examples=list(ENGINES))
    ] = "python"
    backfill_policy: Annotated[
        dg.BackfillPolicy | None,
        dg.Resolver(
            resolve_backfill_policy,
            model_field_type=SingleRunBackfillPolicyModel | MultiRunBackfillPolicyModel | None,
            description="How a backfill is cut into runs; by default it is one, all windows in one pass.",
        ),
    ] = None
    pool: str | None = None
    kafka: Annotated[
        KafkaResource | None,
        dg.Resolver(
            _kafka_of,
            model_field_type=KafkaSettingsModel | None,
            description="The cluster; without it the one of the resource `kafka_resource`.",
        ),
    ] = None
    kafka_resource: Annotated[
        str,
        dg.Resolver.default(description="The name of a KafkaResource that is defined elsewhere."),
    ] = KAFKA

    sensor: Annotated[
        dict[str, Any] | None,
        dg.Resolver(
            _sensor_of,
            model_field_type=LiveSensorModel | None,
            description="A sensor that asks for the partitions as soon as they are live.",
        ),
    ] = None

    def execute(
        self,
        context: dg.AssetExecutionContext,
        windows: AssetWindows,
        *_more: Any,
        **_resources: Any,
    ) -> Any:
        """What a step does with its windows; to be overridden, also with resources after them."""
        if self.application is None:
            windows.copy()
            return
        windows.submit(self.application, self.application_args, self._how())

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """The asset's spec, made of the one by default; to be overridden."""
        return spec

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The asset, and the resource if the cluster is given here.

        Raises:
            ConfigError: there is nowhere to write to, or settings that cannot be.
        """
        self._check()
        # Each component has a name of its own for it: two files may name two clusters.
        name = _name_of(self.key) if self.kafka is not None else self.kafka_resource
        asset = ordered_window_asset(
            key=self.key,
            topics=self.topics,
            group_id=self.group_id,
            partitions_def=self.partitions,
            backfill_policy=self.backfill_policy,
            translator=_Translator(self),
            kafka_resource=name,
            pool=self.pool,
            **{one: getattr(self, one) for one in _SETTINGS},
        )(self._job())
        sensors = []
        if self.sensor is not None:
            sensors.append(build_partitions_live_sensor(asset, **self.sensor))
        resources = {} if self.kafka is None else {name: self.kafka}
        return dg.Definitions(assets=[asset], sensors=sensors, resources=resources)

    def _job(self) -> Callable[..., Any]:
        if self.function is not None:
            return self.function
        if type(self).execute is not OrderedWindowComponent.execute:
            return self.execute

        def delivered(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
            """Copies the windows' records as Parquet, or runs a Spark application for them."""
            self.execute(context, windows)

        return delivered

    def _check(self) -> None:
        key = self.key.to_user_string()
        if self.engine not in ENGINES:
            raise ConfigError(f"{key}: engine is {self.engine!r}, not one of {', '.join(ENGINES)}")
        is_own = self.function is not None or (
            type(self).execute is not OrderedWindowComponent.execute
        )
        if is_own and self.application is not None:
            raise ConfigError(f"{key} has a function and an application: which one is to deliver?")
        if self.application is None and (self.application_args or self.submit is not None):
            raise ConfigError(f"{key}: application_args and submit are an application's")
        self._how()
        if not is_own and self.output is None:
            raise ConfigError(
                f"{key} has nowhere to write to: give it an output, or a function with a sink of its own"
            )

    def _how(self) -> Any:
        if self.submit is None:
            return None
        # Imported late: most components submit nothing.
        from kafka_ordered_ops.spark import DeployMode, SparkSubmit

        arguments = dict(self.submit)
        try:
            if "deploy_mode" in arguments:
                arguments["deploy_mode"] = DeployMode(arguments["deploy_mode"])
            return SparkSubmit(**arguments)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"submit is no way to run spark-submit: {error}") from error


#: What is passed on as it is.
_SETTINGS: Final = tuple(
    name for name in WindowSettings.__dataclass_fields__ if name not in {"topics", "group_id"}
)


@dataclass(frozen=True)
class _Translator(KafkaWindowTranslator):
    component: OrderedWindowComponent

    def asset_spec(self, key: dg.AssetKey, settings: WindowSettings) -> dg.AssetSpec:
        return self.component.get_asset_spec(super().asset_spec(key, settings))


def _name_of(key: dg.AssetKey) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", "__".join(["kafka", *key.path]))
