"""Errors of the embedded broker.

::

    EmbeddedKafkaError
      JarsError            the class path is not exactly the committed list, or cannot be downloaded
      JavaNotFoundError    no Java of at least the version that the broker needs
      BrokerStartError     the broker's process ended, or did not answer in time; with `log_tail`
"""

from __future__ import annotations

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError


class EmbeddedKafkaError(KafkaOrderedOpsError):
    """The embedded broker cannot fulfil a request."""


class JarsError(EmbeddedKafkaError):
    """The broker's jars are missing, altered, too many, or cannot be downloaded; `problems` lists them."""

    problems: tuple[str, ...]


class JavaNotFoundError(EmbeddedKafkaError):
    """No usable Java was found; `tried` lists every place that was checked."""

    tried: tuple[str, ...]


class BrokerStartError(EmbeddedKafkaError):
    """The broker did not start; `log_tail` has its last log lines."""

    log_tail: str
