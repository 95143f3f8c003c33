"""Values and keys of records as columns: Avro and Protobuf, with or without a schema registry, JSON, and Debezium's changes.

::

    from kafka_ordered_ops.decoding import Avro

    windows = OrderedWindows({"bootstrap.servers": brokers, "schema.registry.url": "http://registry:8081"}, "orders-hourly")
    windows.run(Window("orders", cutoff=noon, values=Avro(subject="orders-value")), "/lake/orders")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ordered_ops.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.dead_letters import DeadLetter as DeadLetter
    from kafka_ordered_ops.core.window.decoding import Decoding as Decoding
    from kafka_ordered_ops.core.window.formats import Avro as Avro
    from kafka_ordered_ops.core.window.formats import Debezium as Debezium
    from kafka_ordered_ops.core.window.formats import Framing as Framing
    from kafka_ordered_ops.core.window.formats import Infer as Infer
    from kafka_ordered_ops.core.window.formats import Json as Json
    from kafka_ordered_ops.core.window.formats import OnBad as OnBad
    from kafka_ordered_ops.core.window.formats import Protobuf as Protobuf
    from kafka_ordered_ops.core.window.formats import UnknownFields as UnknownFields
    from kafka_ordered_ops.decoding.columns import decode as decode
    from kafka_ordered_ops.kafka.schema_registry import Registry as Registry

#: The module of each public name.
_HOMES = {
    "Avro": "core.window.formats",
    "DeadLetter": "core.window.dead_letters",
    "Debezium": "core.window.formats",
    "Framing": "core.window.formats",
    "Decoding": "core.window.decoding",
    "Infer": "core.window.formats",
    "Json": "core.window.formats",
    "OnBad": "core.window.formats",
    "Protobuf": "core.window.formats",
    "Registry": "kafka.schema_registry",
    "UnknownFields": "core.window.formats",
    "decode": "decoding.columns",
}

if not TYPE_CHECKING:  # A type checker that saw this would let any name pass.
    __getattr__ = lazy_face(__name__, _HOMES)

__all__ = sorted(_HOMES)
