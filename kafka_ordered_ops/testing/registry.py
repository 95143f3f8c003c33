"""Where settings with ``bootstrap.servers = memory:<name>`` lead: the models that run in this process."""

from __future__ import annotations

import threading

from kafka_ordered_ops.core.errors import BrokerUnreachableError, ConfigError
from kafka_ordered_ops.testing.cluster import Cluster

_guard = threading.Lock()
_running: dict[str, Cluster] = {}


def register(cluster: Cluster) -> None:
    """Make a cluster reachable by its name; raises `ConfigError` where the name is taken."""
    with _guard:
        if cluster.name in _running:
            raise ConfigError(
                f"an InMemoryKafka {cluster.name!r} runs in this process already: close it first, or leave out the "
                "name to be given a new one"
            )
        _running[cluster.name] = cluster


def unregister(cluster: Cluster) -> None:
    """End that; a cluster that is not registered is left alone."""
    with _guard:
        if _running.get(cluster.name) is cluster:
            del _running[cluster.name]


def reach(name: str) -> Cluster:
    """Return the cluster of a name, as every call of a client finds it.

    Raises:
        BrokerUnreachableError: none of that name runs in this process, or it is made unreachable.
    """
    with _guard:
        cluster = _running.get(name)
        running = sorted(_running)
    if cluster is None:
        raise BrokerUnreachableError(
            f"no InMemoryKafka {name!r} runs in this process ({', '.join(running) or 'none does'}): open it as a "
            "context manager around what uses it. Other processes, such as Spark's executors, cannot reach it",
            code="_RESOLVE",
        )
    if cluster.unreachable:
        raise BrokerUnreachableError(
            f"InMemoryKafka {name!r} is made unreachable: leave the block of `unreachable()`",
            code="_TRANSPORT",
        )
    return cluster
