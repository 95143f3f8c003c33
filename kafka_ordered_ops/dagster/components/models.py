"""The common parts of the components' YAML files: clusters, sensors, spans, ops, and the keys of topics."""

# Annotations are values here: Dagster reads a component's YAML by them.

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

import dagster as dg
from dagster.components.resolved.core_models import (
    MultiRunBackfillPolicyModel,
    SingleRunBackfillPolicyModel,
    resolve_backfill_policy,
)

from kafka_ordered_ops.core.arguments import check_choice, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.dagster.assets.window_op import WindowOp
from kafka_ordered_ops.dagster.check import CHECK_NAME
from kafka_ordered_ops.dagster.components.values import hidden_setting, job_of_file
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.sensor import PARTITIONS_MAX
from kafka_ordered_ops.spec.asked import span_of
from kafka_ordered_ops.spec.jobs import Application, Copy

#: A client's settings in YAML.
Setting = str | bool | int | float


def _check_fields(value: object, model: type[Any], name: str) -> None:
    """Raise `ConfigError` for text: Dagster accepts text for any field, because it may be a template."""
    if not isinstance(value, model):
        raise ConfigError(f"{name} is a mapping of fields, not {value!r}")


# --- choices -----------------------------------------------------------------------------------------


def choice(kind: type[StrEnum], what: str) -> dg.Resolver:
    """Return the resolver of a choice, written as text or a template: ``dg check yaml`` refuses any other text."""

    def resolve(context: dg.ResolutionContext, value: Any) -> StrEnum:
        return check_choice(context.resolve_value(value), kind, what=what)

    words = [member.value for member in kind]
    pattern = rf"^({'|'.join(words)})$|\{{\{{"
    # The first versions of Dagster 1.13 lack this parameter; there `dg check defs` finds the error.
    takes_schema = "json_schema_extra" in inspect.signature(dg.Resolver).parameters
    more: dict[str, Any] = {"json_schema_extra": {"pattern": pattern}} if takes_schema else {}
    return dg.Resolver(resolve, model_field_type=str, examples=words, **more)


#: See `core.types.Isolation`.
ResolvedIsolation = Annotated[Isolation, choice(Isolation, "isolation")]


# --- a cluster -------------------------------------------------------------------------------------


class KafkaSettingsModel(dg.Model):
    """A cluster, in YAML: the fields of `KafkaResource`."""

    config: Mapping[str, Setting]
    settings_allowed: Sequence[str] = ()
    ledger_topic: str | None = None


def settings_of(context: dg.ResolutionContext, config: Mapping[str, Setting]) -> dict[str, Any]:
    """Return a client's settings as text; environment variables stay unresolved.

    Passwords are therefore resolved at run time, and Dagster shows only the variable's name.
    """
    return {name: hidden_setting(context, value) for name, value in config.items()}


def _kafka_of(
    context: dg.ResolutionContext, model: KafkaSettingsModel | None
) -> KafkaResource | None:
    if model is None:
        return None
    _check_fields(model, KafkaSettingsModel, "kafka")
    topic: Any = model.ledger_topic
    return KafkaResource(
        config=settings_of(context, model.config),
        settings_allowed=list(context.resolve_value(model.settings_allowed)),
        ledger_topic=context.resolve_value(topic),
    )


#: A file's own cluster.
ResolvedKafka = Annotated[
    KafkaResource | None,
    dg.Resolver(
        _kafka_of,
        model_field_type=KafkaSettingsModel | None,
        description="The cluster; by default the cluster of the resource `kafka_resource`.",
    ),
]

#: The resource of a project.
ResolvedKafkaName = Annotated[
    str,
    dg.Resolver.default(description="The name of a KafkaResource that is defined elsewhere."),
]


# --- spans and conditions --------------------------------------------------------------------------


def _span_of(context: dg.ResolutionContext, text: Any, what: str) -> timedelta | None:
    return span_of(context.resolve_value(text), what)


def span(what: str) -> dg.Resolver:
    """Return the resolver of a span of time, given as ISO 8601 text; an error for invalid text names the field."""

    def resolve(context: dg.ResolutionContext, text: Any) -> timedelta | None:
        return _span_of(context, text, what)

    return dg.Resolver(resolve, model_field_type=str | None, examples=["PT15M"])


def _condition_of(
    context: dg.ResolutionContext, text: str | None
) -> dg.AutomationCondition[Any] | None:
    value: Any = context.resolve_value(text or "") or None
    if value is not None and not isinstance(value, dg.AutomationCondition):
        raise ConfigError(
            f"{value!r} is not an automation condition: give a template that returns one, such as "
            '"{{ dg.AutomationCondition.eager() }}"'
        )
    return value


#: When Dagster starts runs by itself.
ResolvedCondition = Annotated[
    dg.AutomationCondition[Any] | None,
    dg.Resolver(
        _condition_of,
        model_field_type=str | None,
        description="When Dagster starts runs by itself.",
        examples=["{{ dg.AutomationCondition.on_cron('*/5 * * * *') }}"],
    ),
]


# --- a sensor and a check --------------------------------------------------------------------------------------


class LiveSensorModel(dg.Model):
    """A sensor for the asset, in YAML: the arguments of `build_partitions_live_sensor`, spans as text."""

    name: str | None = None
    lookback: str | None = None
    every: str | None = None
    partitions_max: int = PARTITIONS_MAX
    minimum_interval_seconds: int = 60
    running: bool = False
    tags: Mapping[str, str] = {}


def _sensor_of(
    context: dg.ResolutionContext, model: LiveSensorModel | None
) -> dict[str, Any] | None:
    if model is None:
        return None
    _check_fields(model, LiveSensorModel, "sensor")
    status = dg.DefaultSensorStatus.RUNNING if model.running else dg.DefaultSensorStatus.STOPPED
    return {
        "name": context.resolve_value(model.name or "") or None,
        "lookback": _span_of(context, model.lookback, "lookback"),
        "every": _span_of(context, model.every, "every"),
        "partitions_max": model.partitions_max,
        "minimum_interval_seconds": model.minimum_interval_seconds,
        "default_status": status,
        "tags": context.resolve_value(dict(model.tags)),
    }


def as_arguments(value: object, what: str) -> dict[str, Any]:
    """Return the arguments of a sensor or a check; raise `ConfigError` for what a template has put in their place."""
    if not isinstance(value, dict):
        raise ConfigError(f"{what}: {shown(value)} is not a mapping")
    return value


#: The arguments of a sensor.
ResolvedSensor = Annotated[
    dict[str, Any] | None,
    dg.Resolver(
        _sensor_of,
        model_field_type=LiveSensorModel | None,
        description="A sensor that requests partitions as soon as they are live.",
    ),
]


class LiveCheckModel(dg.Model):
    """A check of the topics, in YAML: the arguments of `partitions_live_check`, the span as text."""

    name: str = CHECK_NAME
    lag: str | None = None
    blocking: bool = True


def _check_of(context: dg.ResolutionContext, model: LiveCheckModel | None) -> dict[str, Any] | None:
    if model is None:
        return None
    _check_fields(model, LiveCheckModel, "check")
    lag = _span_of(context, model.lag, "lag")
    return {"name": model.name, "lag": lag, "blocking": model.blocking}


#: The arguments of a check.
ResolvedCheck = Annotated[
    dict[str, Any] | None,
    dg.Resolver(
        _check_of,
        model_field_type=LiveCheckModel | None,
        description="A check that can run at any time: have the partitions reached a cutoff?",
    ),
]


# --- an op -----------------------------------------------------------------------------------------


class RetriesModel(dg.Model):
    """Retries of a failed step, in YAML: Dagster's `RetryPolicy`, the delay as a span."""

    max_retries: int = 1
    delay: str | None = None
    backoff: Literal["linear", "exponential"] | None = None
    jitter: Literal["full", "plus_minus"] | None = None


def _retries_of(context: dg.ResolutionContext, model: RetriesModel | None) -> dg.RetryPolicy | None:
    if model is None:
        return None
    _check_fields(model, RetriesModel, "retry_policy")
    delay = _span_of(context, model.delay, "delay")
    return dg.RetryPolicy(
        max_retries=model.max_retries,
        delay=None if delay is None else delay.total_seconds(),
        backoff=None if model.backoff is None else dg.Backoff(model.backoff.upper()),
        jitter=None if model.jitter is None else dg.Jitter(model.jitter.upper()),
    )


@dataclass(frozen=True, kw_only=True)
class WindowOpFields(WindowOp, dg.Resolvable):
    """The op of an asset, in YAML: the fields of `WindowOp`."""

    tags: Annotated[
        dict[str, Any] | None,
        dg.Resolver.default(description="Tags, for example for the run launcher or the executor."),
    ] = None
    retry_policy: Annotated[
        dg.RetryPolicy | None,
        dg.Resolver(
            _retries_of,
            model_field_type=RetriesModel | None,
            description="Retries of a failed step; errors that no retry can fix are not retried.",
        ),
    ] = None
    pool: str | None = None
    backfill_policy: Annotated[
        dg.BackfillPolicy | None,
        dg.Resolver(
            resolve_backfill_policy,
            model_field_type=SingleRunBackfillPolicyModel | MultiRunBackfillPolicyModel | None,
            description="How a backfill is divided into runs; by default one run, all windows in one pass.",
        ),
    ] = None


# --- functions and topics --------------------------------------------------------------------------


def function_of(context: dg.ResolutionContext, name: str | None) -> Callable[..., Any] | None:
    """Return a function by its name: in a module, or, after a dot, in a module beside the YAML file.

    Raises:
        ConfigError: the name does not lead to a function.
    """
    if name is None:
        return None
    module, _, function = name.rpartition(".")
    if module.startswith(".") or name.startswith("."):
        load = dg.ComponentLoadContext.from_resolution_context(context)
        home = load.defs_relative_module_name(load.path)
        module = f"{home}{module}" if module else home
    target = getattr(importlib.import_module(module), function, None) if module else None
    if not callable(target):
        raise ConfigError(f"function {name!r} does not name a function: give module.function")
    return target  # type: ignore[no-any-return]


def _file_of(context: dg.ResolutionContext, path: str) -> str:
    return str(context.resolve_source_relative_path(path))


#: A job, by the fields of `Application` or `Copy`: the file is named relative to the YAML file, as scripts in Dagster's
#: own components.
ResolvedJob = Annotated[Application | Copy | None, job_of_file(_file_of)]


#: The prefix of the topics' keys in the graph of assets.
ResolvedTopicPrefix = Annotated[
    str,
    dg.Resolver.default(
        description="The prefix of the topics' asset keys: the same for topics and windows.",
        examples=["kafka", "cluster-1/kafka"],
    ),
]


def topic_key_below(prefix: str, topic: str) -> dg.AssetKey:
    """Return the asset key of a topic."""
    return dg.AssetKey([*(part for part in prefix.split("/") if part), topic])
