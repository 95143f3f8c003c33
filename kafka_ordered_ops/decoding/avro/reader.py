"""The reader of a column of Avro, in Python; it has the plan of each writer, for the native reader too."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.formats import Avro, Framing
from kafka_ordered_ops.decoding.avro.native import NativeAvroReader
from kafka_ordered_ops.decoding.avro.plan import Step, plan_of
from kafka_ordered_ops.decoding.avro.records import record_reader
from kafka_ordered_ops.decoding.avro.schema import AvroType, parse_avro
from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.column_reader import ColumnReader, NotNativeError, ValueReader
from kafka_ordered_ops.decoding.frames import ID_BYTES, content, glue_id, id_end, schema_id
from kafka_ordered_ops.kafka.schema_registry import SchemaClient


class AvroReader(ValueReader):
    """Decodes in Python; has the plan of each writer, for the native reader too."""

    def __init__(self, avro: Avro, registry: SchemaClient | None) -> None:
        self._framing = avro.framing
        self._reader: AvroType = parse_avro(avro.schema or "", avro.references)
        self.arrow = self._reader.arrow
        self._registry = registry if avro.needs_registry else None
        #: By the writer schema's id; 0 for that of all values.
        self._reads: dict[int, Callable[[bytes], Any]] = {}
        #: That of all values.
        self._plan: Step | None = None
        if not avro.needs_registry:
            writer = self._reader if avro.writer is None else parse_avro(avro.writer)
            self._plan = plan_of(writer, self._reader)
            self._reads[0] = record_reader(self._plan)
        elif registry is None:
            raise ConfigError(
                f"{avro!r}: the schema of each value comes from a registry, by its id. Name the registry, give writer=, or say with "
                "framing='none' that no id stands before a value"
            )

    def native(self, module: ModuleType) -> ColumnReader:
        """Return the native reader of the same values; raise `NotNativeError`."""
        if self._framing is Framing.GLUE:
            raise NotNativeError("values have the frames of AWS Glue")
        id_bytes = ID_BYTES.get(self._framing, 0)
        return NativeAvroReader(module, self, id_bytes, self._plan, self._plan_of)

    def read(self, data: bytes) -> Any:
        """Return a value; raise `BadValueError`, or as the registry does."""
        if self._registry is None:
            return self._reads[0](content(data, self._framing))
        if self._framing is Framing.GLUE:
            writer = self._registry.id_of(glue_id(data))
            start, data = 0, content(data, self._framing)
        else:
            start = id_end(data, self._framing)
            writer = schema_id(data, start)
        if writer not in self._reads:
            plan = self._plan_of(writer)
            self._reads[writer] = _refused(plan) if isinstance(plan, str) else record_reader(plan)
        return self._reads[writer](data[start:])

    def _plan_of(self, schema_id: int) -> Step | str:
        """Return the plan for values with an id, or why they are bad."""
        registry = self._registry
        written = None if registry is None else registry.schema(schema_id)
        name = schema_id if registry is None else registry.name(schema_id)
        if written is None:
            return f"the registry has no schema {name}"
        if written.kind != "AVRO":
            return f"schema {name} is {written.kind}, not Avro"
        try:
            return plan_of(parse_avro(written.text, written.reference_texts), self._reader)
        except ConfigError as error:
            return f"schema {name}: {error}"


def _refused(reason: str) -> Callable[[bytes], Any]:
    def read(_: bytes) -> Any:
        raise BadValueError(reason)

    return read
