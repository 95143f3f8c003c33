"""Errors of the relay; `core.errors` has the whole tree."""

from __future__ import annotations

from kafka_ordered_ops.core.errors.base import KafkaOrderedOpsError


class RelayError(KafkaOrderedOpsError):
    """The relay could not do what a client asked for."""


class LeaseError(RelayError):
    """A lease is invalid, or has ended too early for the call. Nothing was changed."""


class NotReadyError(RelayError):
    """The server has not read its logs to the end yet."""

    retriable = True


class RelayUnavailableError(RelayError):
    """No relay server answered in time, or the server could not store the change in time. It may have been stored."""

    retriable = True


class RelayLimitError(RelayError):
    """An access token or a server has reached its limit of records, groups or requests. Nothing was changed."""

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
