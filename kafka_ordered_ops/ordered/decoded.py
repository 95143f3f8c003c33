"""Decode the batches of an ordered read, with the schemas that it began with."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.question import Question
from kafka_ordered_ops.ordered.records.columns import STAGE_SCHEMA

if TYPE_CHECKING:
    from kafka_ordered_ops.decoding.decoder import Decoder


class DecodedBatches:
    """The batches of a read; bytes stay bytes if nothing says how they are encoded."""

    def __init__(self, settings: ClientSettings, question: Question) -> None:
        self._settings = settings
        self._question = question
        #: The batch that is being decoded. It stays while the registry cannot be reached: the engine returns it only once.
        self._undecoded: pa.RecordBatch | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns; the first call looks up the schemas of the read. Raises as `decoder_of` does."""
        return STAGE_SCHEMA if self._decoder is None else self._decoder.schema_of(STAGE_SCHEMA)

    def next(self, batches: Iterator[pa.RecordBatch | None]) -> pa.RecordBatch | None:
        """Return the next batch decoded, or None if there is none now; raise `DecodeError`, or as the registry does.

        After a `RegistryError`, the next call decodes the same batch.
        """
        if self._decoder is None:
            return next(batches)
        if self._undecoded is None:
            self._undecoded = next(batches)
        if self._undecoded is None:
            return None
        decoded = self._decoder.decoded(self._undecoded)
        self._undecoded = None
        return decoded

    @cached_property
    def _decoder(self) -> Decoder | None:
        plan, decoding = self._question.plan, self._question.decoding
        window = None if plan is None else plan.window
        if decoding is not None:
            window = decoding.window(self._question.topics)
        if window is None or not window.is_decoded:
            return None
        # Imported late: most reads need no decoders.
        from kafka_ordered_ops.decoding.decoder import decoder_of

        return decoder_of(window, self._settings)
