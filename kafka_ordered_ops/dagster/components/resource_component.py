"""A Kafka cluster from YAML, for all assets of a project."""

# Annotations are values here: Dagster reads a component's YAML by them.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import dagster as dg

from kafka_ordered_ops.dagster.components.models import Setting, settings_of
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.step.step_functions import KAFKA
from kafka_ordered_ops.delivery.arguments import with_known_fields


class KafkaResourceScaffolder(dg.Scaffolder[Any]):
    """The scaffold of ``dg scaffold defs``: the resource ``kafka``, a broker on this machine."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the file."""
        config = {"bootstrap.servers": "localhost:9092"}
        dg.scaffold_component(request, {"name": KAFKA, "config": config})


@dg.scaffold_with(KafkaResourceScaffolder)
@with_known_fields
@dataclass(kw_only=True)
class KafkaResourceComponent(dg.Component, dg.Resolvable):
    """Names a Kafka cluster once, as a resource that all assets of a project use.

    A setting that is exactly one environment variable is resolved at run time, and Dagster shows only its name: use
    this for passwords.
    """

    config: Annotated[
        dict[str, Any],
        dg.Resolver(
            settings_of,
            model_field_type=Mapping[str, Setting],
            description="The client's settings, by librdkafka's keys; bootstrap.servers at least.",
            examples=[{"bootstrap.servers": "{{ env.KAFKA_BOOTSTRAP }}"}],
        ),
    ] = field(repr=False)
    name: Annotated[
        str,
        dg.Resolver.default(description="The resource's name; assets use `kafka` by default."),
    ] = KAFKA
    settings_allowed: Annotated[
        Sequence[str],
        dg.Resolver.default(description="Further librdkafka settings to accept from `config`."),
    ] = ()
    ledger_topic: Annotated[
        str | None,
        dg.Resolver.default(description="The topic that holds plans and progress."),
    ] = None

    @property
    def resource(self) -> KafkaResource:
        """The cluster."""
        return KafkaResource(
            config=self.config,
            settings_allowed=list(self.settings_allowed),
            ledger_topic=self.ledger_topic,
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the resource, by its name."""
        return dg.Definitions(resources={self.name: self.resource})
