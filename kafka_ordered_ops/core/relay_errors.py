"""Errors of the relay; `core.errors` has the tree that they are part of."""

from __future__ import annotations

from kafka_ordered_ops.core.error_base import KafkaOrderedOpsError


class RelayError(KafkaOrderedOpsError):
    """The relay could not do what a client asked for."""


class LeaseError(RelayError):
    """A lease is invalid, or has ended where it must not have. Nothing was changed."""


class NotReadyError(RelayError):
    """The server has not read its logs to the end yet."""

    retriable = True


class RelayUnavailableError(RelayError):
    """No server of the relay answered in time, or it could not store the change in time. It may have been stored."""

    retriable = True


class RelayLimitError(RelayError):
    """An access token or a server has as many records, groups or requests as it may. Nothing was changed."""

    retriable = True


class AccessDeniedError(RelayError):
    """The access token is missing, unknown, expired, or does not allow this."""


class RelayLogCorruptError(RelayError):
    """A record of the relay's log is unreadable: it is damaged, or another program writes to the topic."""


class RelayLogVersionError(RelayError):
    """A newer version of this package wrote a record of the relay's log."""

    version: int


class RelayLogRecordError(RelayError):
    """A record of the relay's log would be unreadable or too large. It was not written."""

    kind: str
