"""The connection's hook: its test, and the service for your own functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka_ordered_ops.airflow.compat import AirflowNotFoundException, BaseHook
from kafka_ordered_ops.airflow.connection import (
    DEFAULT_CONN_ID,
    extra_of,
    ledger_option,
    settings_from,
)
from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.delivery.arguments import with_known_names

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import ClientSettings, OrderedWindows


#: A user waits for the answer on a web page.
TEST_TIMEOUT_S: Final = 10.0


class KafkaWindowsHook(BaseHook):
    """Windows by a connection, for your own functions and for the connection's test.

    ::

        with KafkaWindowsHook("kafka_default", group_id="orders-hourly").get_conn() as windows:
            print(windows.list())

    The hook accepts any connection whose extra field has client settings. Connections of type ``kafka`` belong to the
    Apache Kafka provider, whose own test lists topics. A connection of type ``kafka_windows`` has the same settings, a
    form for them, and this hook for its button "Test".

    Args:
        kafka_conn_id: the connection.
        group_id: the consumer group; by default the connection's ``group.id``, if it is set.
        ledger_topic: the topic that holds plans and progress.
        timeout_s: the timeout of each request of the connection's test.
    """

    conn_name_attr = "kafka_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "kafka_windows"
    hook_name = "Kafka windows"

    @with_known_names
    def __init__(
        self,
        kafka_conn_id: str = DEFAULT_CONN_ID,
        group_id: str | None = None,
        *,
        ledger_topic: str | None = None,
        timeout_s: float = TEST_TIMEOUT_S,
    ) -> None:
        super().__init__()
        self.kafka_conn_id = kafka_conn_id
        self.group_id = group_id
        self.ledger_topic = ledger_topic
        self.timeout_s = timeout_s

    def get_conn(self) -> OrderedWindows:
        """Return the service for the group; close it, or use it as a context manager.

        Raises:
            AirflowNotFoundException: there is no such connection.
            ConfigError: its settings are refused, or the group is missing.
        """
        from kafka_ordered_ops.windows import OrderedWindows

        settings, group_id = self._settings()
        if group_id is None:
            raise ConfigError(
                f"no consumer group: give group_id=, or set group.id in connection {self.kafka_conn_id}"
            )
        return OrderedWindows(settings, group_id, **ledger_option(self.ledger_topic))

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the cluster answers and lets this principal plan and commit windows, with the reason as text.

        Checks the rights on the group, its transactional id and the ledger's topic. Changes nothing.
        """
        from kafka_ordered_ops.windows.queries.rights import missing_rights

        try:
            settings, group_id = self._settings()
            missing = missing_rights(
                settings, group_id, timeout_s=self.timeout_s, **ledger_option(self.ledger_topic)
            )
        except (KafkaOrderedOpsError, AirflowNotFoundException) as error:
            return False, f"{type(error).__name__}: {error}"
        if missing:
            return False, f"Connected, but rights are missing: {'; '.join(map(str, missing))}"
        if group_id is None:
            return True, (
                "Connected. The ledger is allowed. The rights on the group and its transactional id were not checked, as "
                "group.id is not set"
            )
        return True, f"Connected. Windows of group {group_id} can be planned and committed"

    def _settings(self) -> tuple[ClientSettings, str | None]:
        extra = extra_of(self.kafka_conn_id)
        settings = settings_from(self.kafka_conn_id, extra)
        group_id = self.group_id or extra.get("group.id")
        return settings, None if not group_id else str(group_id)
