"""The models that run in this process, for settings with ``bootstrap.servers = memory:<name>``."""

from __future__ import annotations

import threading

from kafka_ordered_ops.core.errors import BrokerUnreachableError, ConfigError
from kafka_ordered_ops.testing.cluster import Cluster

_guard = threading.Lock()
_running: dict[str, Cluster] = {}


def register(cluster: Cluster) -> None:
    """Make a cluster reachable by its name; raise `ConfigError` if the name is taken."""
    with _guard:
        if cluster.name in _running:
            raise ConfigError(
                f"an InMemoryKafka {cluster.name!r} runs in this process already: close it first, or leave out the "
                "name to get a new one"
            )
        _running[cluster.name] = cluster


def unregister(cluster: Cluster) -> None:
    """Undo `register`; a cluster that is not registered is left alone."""
    with _guard:
        if _running.get(cluster.name) is cluster:
            del _running[cluster.name]


def reach(name: str) -> Cluster:
    """Return the cluster with a name; every call of a client looks it up.

    Raises:
        BrokerUnreachableError: no cluster with this name runs in this process, or it is made unreachable.
    """
    with _guard:
        cluster = _running.get(name)
        running = sorted(_running)
    if cluster is None:
        raise BrokerUnreachableError(
            f"no InMemoryKafka {name!r} runs in this process ({', '.join(running) or 'none does'}): open it as a "
            "context manager around the code that uses it. Other processes, such as Spark's executors, cannot reach it",
            code="_RESOLVE",
        )
    if cluster.unreachable:
        raise BrokerUnreachableError(
            f"InMemoryKafka {name!r} is made unreachable: leave the block of `unreachable()`",
            code="_TRANSPORT",
        )
    return cluster
