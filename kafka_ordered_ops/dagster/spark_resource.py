"""A Spark session as a resource, for steps that run Spark in their own process."""

from __future__ import annotations

from typing import Any

from dagster import ConfigurableResource, InitResourceContext
from pydantic import Field, PrivateAttr

from kafka_ordered_ops.delivery.arguments import check_names
from kafka_ordered_ops.spark.environment import has_session
from kafka_ordered_ops.spark.job_checks import check_session


class SparkResource(ConfigurableResource[Any]):
    """A Spark session of the step's process: started on first use, and stopped with the run.

    ::

        SparkResource(conf={"spark.driver.memory": "2g"})

    It runs on ``local[*]`` unless `conf` sets another ``spark.master``. A session that already runs in the process is
    used, and left running. You can use dagster-pyspark's ``PySparkResource`` instead: both have the session as
    ``spark_session``.
    """

    conf: dict[str, str] = Field(
        default_factory=dict, description="Spark's settings, such as spark.driver.memory."
    )
    _started: Any = PrivateAttr(default=None)

    def __init__(self, **values: Any) -> None:
        check_names(type(self).__name__, values, type(self).model_fields)
        super().__init__(**values)

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Check that Spark can start here, before anything is planned.

        Raises:
            ConfigError: pyspark is not installed, there is no Java, or invalid settings.
            EnvironmentConflictError: pyspark and pyspark-client are both installed.
        """
        check_session(self.conf, java_home=None)

    @property
    def spark_session(self) -> Any:
        """The session.

        Raises:
            ConfigError: as for `setup_for_execution`, or Java did not start.
        """
        # Imported late: definitions load no Spark.
        from kafka_ordered_ops.spark.session import local_session

        is_ours = not has_session()
        session = local_session("dagster", conf=self.conf)
        if is_ours:
            self._started = session
        return session

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stop the session, if it was started here."""
        if self._started is not None:
            self._started.stop()
            self._started = None
