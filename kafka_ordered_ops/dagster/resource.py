"""A Kafka cluster as a resource."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dagster import ConfigurableResource
from dagster_shared.libraries import DagsterLibraryRegistry
from pydantic import Field

from kafka_ordered_ops.delivery.arguments import arguments, check_names, with_known_names
from kafka_ordered_ops.delivery.full_paths import check_full_files

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import ClientSettings, OrderedWindows

# The web page lists it among the libraries of a code location, with this package's version.
DagsterLibraryRegistry.register("kafka-ordered-ops", "0.1.0", is_dagster_package=False)


class KafkaResource(ConfigurableResource[Any]):
    """A Kafka cluster: the client's settings, and the topic of the groups' plans and progress.

    ::

        KafkaResource(
            config={
                "bootstrap.servers": "localhost:9092",
                "sasl.password": dg.EnvVar("KAFKA_PASSWORD"),
            }
        )

    Settings that carry a guarantee, such as auto-commit, are overridden. The resource holds no connection, and never
    shows its settings.
    """

    config: dict[str, str] = Field(
        description="The client's settings, by librdkafka's keys; bootstrap.servers at least.",
        repr=False,
        # The web page of resources shows the values of other fields.
        json_schema_extra={"dagster__is_secret": True},
    )
    settings_allowed: list[str] = Field(
        default_factory=list,
        description="Further librdkafka settings to accept from `config`.",
    )
    ledger_topic: str | None = Field(
        default=None,
        description="The topic that holds plans and progress; a default topic if not set.",
    )

    def __init__(self, **values: Any) -> None:
        check_names(type(self).__name__, values, type(self).model_fields)
        super().__init__(**values)

    def client_settings(self) -> ClientSettings:
        """Return the settings; raise `ConfigError` for refused settings."""
        from kafka_ordered_ops.windows import ClientSettings

        check_full_files(self.config)
        return ClientSettings.from_mapping(
            self.config, extra_allowed=self.settings_allowed, option="settings_allowed"
        )

    @with_known_names
    def open_windows(
        self,
        group_id: str,
        *,
        run_id: str | None = None,
        owner: str | None = None,
        ledger_topic: str | None = None,
        timeout_s: float | None = None,
        lookup_timeout_s: float | None = None,
        stall_timeout_s: float | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> OrderedWindows:
        """Return the service for a consumer group, for your own functions; use it as a context manager.

        Takes the arguments of `OrderedWindows`; None means its default.

        Args:
            group_id: the group.
            ledger_topic: the topic that holds plans and progress; by default the resource's.

        Raises:
            ConfigError: settings that are refused.
        """
        ledger_topic = ledger_topic or self.ledger_topic
        options = arguments(locals(), own=["group_id"])
        from kafka_ordered_ops.windows import OrderedWindows

        return OrderedWindows(self.client_settings(), group_id, **options)
