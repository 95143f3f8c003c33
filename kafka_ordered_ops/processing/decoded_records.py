"""Decode records for the function: values as Python has them, in place of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.errors import DecodeError
from kafka_ordered_ops.core.processing.record import Record
from kafka_ordered_ops.core.window.formats import OnBad
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.settings import ClientSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_ordered_ops.decoding.decoder import Decoder


class RecordDecoder:
    """Decodes records before each call of the function. For any thread; pickled for worker processes.

    The queue holds bytes: they take less memory, keep the order by key, and are what a dead letter has.
    """

    def __init__(self, decoder: Decoder) -> None:
        # Reasons by row.
        self._decoder = replace(decoder, on_bad=OnBad.KEEP, flatten=False)
        self.may_wait = decoder.registry is not None

    def __call__(self, records: Sequence[Record]) -> list[Record | DecodeError]:
        """Return each record as the function gets it, or the error of one that cannot be decoded; raise as the registry does."""
        from kafka_ordered_ops.decoding.bad import BadValueError
        from kafka_ordered_ops.decoding.python_values import python_values

        batch = self._decoder.decoded(_batch_of(records))
        columns = {part: python_values(batch.column(part)) for part in ("key", "value")}
        reasons: dict[str, list[Any]] = {
            part: batch.column(f"{part}_error").to_pylist()
            for part in columns
            if batch.schema.get_field_index(f"{part}_error") >= 0
        }
        decoded: list[Record | DecodeError] = []
        for row, record in enumerate(records):
            parts = {part: values[row] for part, values in columns.items()}
            bad = {
                part: str(value)
                for part, value in parts.items()
                if isinstance(value, BadValueError)
            }
            bad |= {part: found[row] for part, found in reasons.items() if found[row] is not None}
            decoded.append(_error(record, bad) if bad else record._replace(**parts))
        return decoded


def record_decoder(window: Window | None, settings: ClientSettings) -> RecordDecoder | None:
    """Return what decodes the records of a source, with the schemas of now; `None` leaves bytes.

    Raises:
        ConfigError: an invalid schema, or an argument that has no meaning for single records.
        RegistryError, AuthenticationError: the registry fails, or refuses the credentials.
    """
    if window is None or not window.is_decoded:
        return None
    window.check_for_function()
    # Imported late: most functions get bytes.
    from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
    from kafka_ordered_ops.decoding.decoder import decoder_of

    decoder = decoder_of(window, settings)
    if decoder is None:
        return None
    decoder.schema_of(RECORD_SCHEMA)
    return RecordDecoder(decoder)


def _batch_of(records: Sequence[Record]) -> pa.RecordBatch:
    import pyarrow as pa

    from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA

    names = ("topic", "partition", "offset", "key", "value", "headers")
    columns: list[list[Any]] = [[getattr(record, name) for record in records] for name in names]
    columns[-1] = [
        [{"key": name, "value": value} for name, value in headers] for headers in columns[-1]
    ]
    schema = pa.schema([RECORD_SCHEMA.field(name) for name in names])
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _error(record: Record, bad: Mapping[str, str]) -> DecodeError:
    reasons = "; ".join(f"the {part} cannot be decoded: {reason}" for part, reason in bad.items())
    return DecodeError(
        f"{record.topic}[{record.partition}] at offset {record.offset}: {reasons}",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        bad=1,
    )
