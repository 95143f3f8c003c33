"""Translate a failed change of a group's state to an error."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from kafka_ordered_ops.core.errors import (
    BrokerUnreachableError,
    CommitUnknownError,
    KafkaOrderedOpsError,
    WindowFencedError,
)
from kafka_ordered_ops.kafka.client.errors import FaultReasons, translate

_FENCED_CODES: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError._STATE,
        # The error of a producer that was fenced while writing.
        KafkaError._FATAL,
    }
)
_FINAL_CODES: Final = frozenset(
    {
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.UNSUPPORTED_VERSION,
    }
)


def judged(
    error: KafkaException, where: str, reasons: FaultReasons, *, timeout_s: float
) -> KafkaOrderedOpsError:
    """Return the error to raise for a client's error if the attempt is the last; retriable unless it is final."""
    code = error.args[0].code()
    translated = translate(error, doing="changing the group's state", where=where, reasons=reasons)
    if code in _FINAL_CODES:
        return translated
    if code in _FENCED_CODES:
        return WindowFencedError(
            f"{where}: other processes changed the group's state again and again for {timeout_s:g} s, "
            f"or its transactions timed out ({error}). Run the same window again"
        )
    # Within the deadline, every error that is not final is retried, whatever the client's code.
    return (
        translated
        if translated.retriable
        else BrokerUnreachableError(str(translated), code=str(code))
    )


def unknown_outcome(error: Exception, where: str, *, timeout_s: float) -> CommitUnknownError:
    """Return the error for a commit that may have been stored: the ledger could not be read back."""
    return CommitUnknownError(
        f"{where}: no answer to a commit within {timeout_s:g} s, and the ledger could not be read back ({error}): "
        "the change may have been stored. Run the same window again: it finds out"
    )
