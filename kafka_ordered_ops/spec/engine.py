"""The engines that read Kafka, by name; needs neither pyspark nor a Kafka client."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from kafka_ordered_ops.core.errors import ConfigError

if TYPE_CHECKING:
    from kafka_ordered_ops.kafka.settings import ClientSettings


class Engine(StrEnum):
    """The engine that reads Kafka."""

    #: The executors, in Python, with this package's own data source.
    PYTHON = "python"
    #: The executors, in Java, with the Kafka connector of the cluster.
    CONNECTOR = "connector"
    #: This process, once, into files that Spark reads.
    LOCAL = "local"

    @classmethod
    def of(cls, name: Engine | str, settings: ClientSettings) -> Engine:
        """Return the engine of this name, or `LOCAL` for a Kafka in memory.

        Raises:
            ConfigError: an unknown engine, or an engine that cannot reach a Kafka in memory.
        """
        try:
            engine = cls(name)
        except ValueError:
            known = ", ".join(repr(known.value) for known in cls)
            raise ConfigError(f"engine {name!r} is unknown; there are {known}") from None
        if settings.memory_name is None:
            return engine
        if engine is cls.CONNECTOR:
            raise ConfigError(
                f"engine 'connector' cannot read memory:{settings.memory_name}: only this process sees a Kafka in "
                "memory. Leave the engine out, or give the address of real brokers"
            )
        # Executors are other processes, and cannot see the memory of this one.
        return cls.LOCAL


def check_engine(engine: object) -> str:
    """Return the engine's name; raise `ConfigError` for an unknown one."""
    names = [known.value for known in Engine]
    if not isinstance(engine, str) or engine not in names:
        raise ConfigError(f"engine is {engine!r}, not one of {', '.join(names)}")
    return str(engine)
