"""The common parts of the components' YAML files: clusters, sensors, spans, ops, and the keys of topics."""

# Annotations are values here: Dagster reads a component's YAML by them.

import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import dagster as dg
from dagster.components.resolved.core_models import (
    MultiRunBackfillPolicyModel,
    SingleRunBackfillPolicyModel,
    resolve_backfill_policy,
)

from kafka_ordered_ops.core.arguments import check_choice
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.dagster.check import CHECK_NAME
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.sensor import PARTITIONS_MAX
from kafka_ordered_ops.hosting.window_spec import span_of

#: One variable and nothing else: resolved when a run begins, and shown by its name only.
_VARIABLE: Final = re.compile(r"\{\{\s*env\.(\w+)\s*\}\}")

#: A client's settings in YAML.
Setting = str | bool | int | float


def _check_fields(given: object, model: type[Any], name: str) -> None:
    """Raise `ConfigError` for a text: Dagster accepts text for any field, because it may be a template."""
    if not isinstance(given, model):
        raise ConfigError(f"{name} is a mapping of fields, not {given!r}")


# --- choices -----------------------------------------------------------------------------------------


def choice(kind: type[StrEnum], what: str) -> dg.Resolver:
    """Return the resolver of a choice, given as text or template: ``dg check yaml`` refuses any other text."""

    def resolve(context: dg.ResolutionContext, value: Any) -> StrEnum:
        return check_choice(context.resolve_value(value), kind, what=what)

    words = [one.value for one in kind]
    pattern = rf"^({'|'.join(words)})$|\{{\{{"
    # The first versions of Dagster 1.13 lack this parameter; there `dg check defs` finds the error.
    can_say = "json_schema_extra" in inspect.signature(dg.Resolver).parameters
    more: dict[str, Any] = {"json_schema_extra": {"pattern": pattern}} if can_say else {}
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
    return {name: _setting(context, value) for name, value in config.items()}


def options_of(
    context: dg.ResolutionContext, options: Mapping[str, Setting] | None
) -> dict[str, Any] | None:
    """Return storage options as text; environment variables stay unresolved, as in `settings_of`."""
    return None if options is None else settings_of(context, options)


def _setting(context: dg.ResolutionContext, value: Setting) -> Any:
    if isinstance(value, str):
        if variable := _VARIABLE.fullmatch(value.strip()):
            return dg.EnvVar(variable[1])
        return str(context.resolve_value(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kafka_of(
    context: dg.ResolutionContext, given: KafkaSettingsModel | None
) -> KafkaResource | None:
    if given is None:
        return None
    _check_fields(given, KafkaSettingsModel, "kafka")
    topic: Any = given.ledger_topic
    return KafkaResource(
        config=settings_of(context, given.config),
        settings_allowed=list(context.resolve_value(given.settings_allowed)),
        ledger_topic=context.resolve_value(topic),
    )


#: A file's own cluster.
ResolvedKafka = Annotated[
    KafkaResource | None,
    dg.Resolver(
        _kafka_of,
        model_field_type=KafkaSettingsModel | None,
        description="The cluster; by default that of the resource `kafka_resource`.",
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
            f"{value!r} is not an automation condition: give a template that makes one, such as "
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
    context: dg.ResolutionContext, given: LiveSensorModel | None
) -> dict[str, Any] | None:
    if given is None:
        return None
    _check_fields(given, LiveSensorModel, "sensor")
    status = dg.DefaultSensorStatus.RUNNING if given.running else dg.DefaultSensorStatus.STOPPED
    return {
        "name": context.resolve_value(given.name or "") or None,
        "lookback": _span_of(context, given.lookback, "lookback"),
        "every": _span_of(context, given.every, "every"),
        "partitions_max": given.partitions_max,
        "minimum_interval_seconds": given.minimum_interval_seconds,
        "default_status": status,
        "tags": context.resolve_value(dict(given.tags)),
    }


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


def _check_of(context: dg.ResolutionContext, given: LiveCheckModel | None) -> dict[str, Any] | None:
    if given is None:
        return None
    _check_fields(given, LiveCheckModel, "check")
    lag = _span_of(context, given.lag, "lag")
    return {"name": given.name, "lag": lag, "blocking": given.blocking}


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

#: How a backfill is divided into runs.
ResolvedBackfillPolicy = Annotated[
    dg.BackfillPolicy | None,
    dg.Resolver(
        resolve_backfill_policy,
        model_field_type=SingleRunBackfillPolicyModel | MultiRunBackfillPolicyModel | None,
        description="How a backfill is divided into runs; by default one run, all windows in one pass.",
    ),
]


class RetriesModel(dg.Model):
    """Retries of a failed step, in YAML: Dagster's `RetryPolicy`, the delay as a span."""

    max_retries: int = 1
    delay: str | None = None
    backoff: Literal["linear", "exponential"] | None = None
    jitter: Literal["full", "plus_minus"] | None = None


def _retries_of(context: dg.ResolutionContext, given: RetriesModel | None) -> dg.RetryPolicy | None:
    if given is None:
        return None
    _check_fields(given, RetriesModel, "retry_policy")
    delay = _span_of(context, given.delay, "delay")
    return dg.RetryPolicy(
        max_retries=given.max_retries,
        delay=None if delay is None else delay.total_seconds(),
        backoff=None if given.backoff is None else dg.Backoff(given.backoff.upper()),
        jitter=None if given.jitter is None else dg.Jitter(given.jitter.upper()),
    )


@dataclass(kw_only=True)
class WindowOp(dg.Resolvable):
    """The op of an asset, in YAML, as in Dagster's own components."""

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
    backfill_policy: ResolvedBackfillPolicy = None

    def options(self) -> dict[str, Any]:
        """Return arguments of `dagster.multi_asset` for which the asset has no parameter."""
        given = {"op_tags": self.tags, "retry_policy": self.retry_policy}
        return {name: value for name, value in given.items() if value is not None}


# --- functions and topics --------------------------------------------------------------------------


def function_of(context: dg.ResolutionContext, name: str | None) -> Callable[..., Any] | None:
    """Return a function by its name: in a module, or, after a dot, in a module beside the YAML file.

    Raises:
        ConfigError: the name is not that of a function.
    """
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


def _file_of(context: dg.ResolutionContext, path: str | None) -> str | None:
    value: Any = context.resolve_value(path or "")
    return str(context.resolve_source_relative_path(value)) if value else None


#: A Spark application: its path, relative to the YAML file, as scripts in Dagster's own components.
ResolvedApplication = Annotated[
    str | None,
    dg.Resolver(
        _file_of,
        model_field_type=str | None,
        description="A Spark application that gets its windows: a Python file beside this file, or below it.",
        examples=["job.py"],
    ),
]


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
