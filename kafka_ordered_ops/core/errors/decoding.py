"""Errors of decoding values; public as `core.errors`."""

from __future__ import annotations

from kafka_ordered_ops.core.errors.base import KafkaOrderedOpsError


class DecodeError(KafkaOrderedOpsError):
    """Records have values or keys that cannot be decoded. `topic`, `partition` and `offset` are those of the first one."""

    topic: str | None
    partition: int | None
    offset: int | None
    #: Such records in the batch.
    bad: int


class RegistryError(KafkaOrderedOpsError):
    """The schema registry cannot be reached, or fails."""

    retriable = True
