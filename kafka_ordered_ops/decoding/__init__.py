"""Values and keys of records as columns: Avro, with or without a schema registry, and JSON.

::

    from kafka_ordered_ops.decoding import Avro, decode

    with windows.open(Window("orders", cutoff=noon)) as window:
        window.write(decode(window, values=Avro(registry="http://registry:8081", subject="orders-value")), "/lake/orders")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ordered_ops.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from kafka_ordered_ops.decoding.columns import decode as decode
    from kafka_ordered_ops.decoding.formats import Avro as Avro
    from kafka_ordered_ops.decoding.formats import Framing as Framing
    from kafka_ordered_ops.decoding.formats import Json as Json
    from kafka_ordered_ops.decoding.formats import OnBad as OnBad
    from kafka_ordered_ops.decoding.formats import UnknownFields as UnknownFields
    from kafka_ordered_ops.kafka.schema_registry import Registry as Registry

#: The module of each public name.
_HOMES = {
    "Avro": "decoding.formats",
    "Framing": "decoding.formats",
    "Json": "decoding.formats",
    "OnBad": "decoding.formats",
    "Registry": "kafka.schema_registry",
    "UnknownFields": "decoding.formats",
    "decode": "decoding.columns",
}

if not TYPE_CHECKING:  # A type checker that saw this would let any name pass.
    __getattr__ = lazy_face(__name__, _HOMES)

__all__ = sorted(_HOMES)
