"""Records for any number of workers, over HTTP: read, acknowledge, cancel.

::

    from kafka_ordered_ops.relay import RelayClient

    with RelayClient("http://localhost:8642") as client:
        for record in client.records("billing"):
            charge(record)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ordered_ops.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from kafka_ordered_ops.relay.client import AsyncRelayClient as AsyncRelayClient
    from kafka_ordered_ops.relay.client import RelayClient as RelayClient
    from kafka_ordered_ops.relay.client_calls import Delivery as Delivery
    from kafka_ordered_ops.relay.client_calls import Lease as Lease

#: The module of each public name.
_HOMES = {
    "AsyncRelayClient": "relay.client",
    "Delivery": "relay.client_calls",
    "Lease": "relay.client_calls",
    "RelayClient": "relay.client",
}

if not TYPE_CHECKING:  # A type checker that saw this would let any name pass.
    __getattr__ = lazy_face(__name__, _HOMES)

__all__ = sorted(_HOMES)
