"""Records for any number of workers, over HTTP: read, acknowledge, cancel.

::

    from kafka_ordered_ops.relay import RelayClient

    with RelayClient("http://localhost:8642") as client:
        for record in client.records("billing"):
            charge(record)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_ordered_ops.relay.client import AsyncRelayClient as AsyncRelayClient
    from kafka_ordered_ops.relay.client import RelayClient as RelayClient
    from kafka_ordered_ops.relay.client_calls import Delivery as Delivery
    from kafka_ordered_ops.relay.client_calls import Lease as Lease
else:  # A type checker that saw this would let any name pass.

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


#: Where each public name lives.
_HOMES = {
    "AsyncRelayClient": "client",
    "Delivery": "client_calls",
    "Lease": "client_calls",
    "RelayClient": "client",
}

__all__ = sorted(_HOMES)
