"""Failures of a store: retry the temporary ones, and raise the others as named errors."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

from kafka_ordered_ops.kafka.client.calls import within
from kafka_ordered_ops.output.address import Address

_log = logging.getLogger(__name__)

#: How long a call is retried while a store fails, unless the public call ends earlier: a minute, and some pauses.
RIDE_OUT_S: Final = 75.0
_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 5.0

#: A server's own failures, and connections that were refused or cut, even within an answer.
_PASSING: Final = re.compile(
    r"status code: (408|429|500|502|503|504)|RequestTimeout|error sending request|body error|Content-Range header not present"
)
#: The addresses at which a cloud's machine finds its credentials; without an answer, this is another machine.
_NO_CLOUD: Final = re.compile(r"169\.254\.\d+\.\d+|metadata\.google\.internal")

#: The rights that an operation needs, by the store.
_RIGHTS: Final = {
    "s3": {
        "get": "s3:GetObject (and s3:ListBucket)",
        "put": "s3:PutObject",
        "copy": "s3:GetObject and s3:PutObject",
        "list": "s3:ListBucket",
        "delete": "s3:DeleteObject",
    },
    "gs": {
        "get": "storage.objects.get",
        "put": "storage.objects.create and storage.objects.delete (to replace)",
        "copy": "storage.objects.get and storage.objects.create",
        "list": "storage.objects.list",
        "delete": "storage.objects.delete",
    },
    "abfss": dict.fromkeys(
        ("get", "put", "copy", "list", "delete"), "the role Storage Blob Data Contributor"
    ),
}

#: The library's errors by name, because only `store` imports the library.
_DENIED: Final = frozenset({"PermissionDeniedError", "UnauthenticatedError"})

_REASON_LENGTH_MAX: Final = 300

_Answer = TypeVar("_Answer")


def ridden_out(what: str, call: Callable[[], _Answer]) -> _Answer:
    """Return the result of a call; repeat the call while the store or the connection to it fails.

    Args:
        what: the call, for the log.
        call: a repeatable call: a write whose answer was lost may have been done.

    Raises:
        Exception: the call's last error, once it has failed for `RIDE_OUT_S` or the public call's time is over.
    """
    end, pause_s, is_first = within(RIDE_OUT_S), _PAUSE_S, True
    while True:
        try:
            return call()
        except Exception as error:
            pause_s = min(pause_s * random.uniform(1.5, 2.5), _PAUSE_MAX_S)
            if not _passes(error) or end.left_s <= pause_s:
                raise
            if is_first:
                _log.info(
                    "%s failed, and is repeated for %.0f s: %s", what, end.left_s, reason_of(error)
                )
            is_first = False
        time.sleep(pause_s)


def _passes(error: Exception) -> bool:
    text = str(error)
    return _PASSING.search(text) is not None and _NO_CLOUD.search(text) is None


def raise_named(address: Address, operation: str, path: str, error: Exception) -> NoReturn:
    """Raise a library's error as an `OSError` with the place and the missing right."""
    reason = reason_of(error)
    right = _RIGHTS[address.scheme][operation]
    # Without the cause, whose text may contain a signed address.
    if re.search(r"NoSuchBucket|ContainerNotFound|bucket does not exist", str(error)):
        raise FileNotFoundError(
            f"{path}: there is no bucket {address.bucket}, or not for these credentials. Create it, or correct its name"
        ) from None
    if isinstance(error, FileNotFoundError):
        raise FileNotFoundError(f"{path} does not exist ({operation}): {reason}") from None
    is_denied = isinstance(error, PermissionError) or type(error).__name__ in _DENIED
    if is_denied or re.search(r"\b40[13] (Forbidden|Unauthorized)\b", str(error)):
        raise PermissionError(
            f"{path}: access was denied ({operation}). Give the credentials {right}, or other credentials with "
            f"storage_options: {reason}"
        ) from None
    raise OSError(f"{path}: {operation} failed: {reason}") from None


def reason_of(error: BaseException) -> str:
    """Return a store's message in one line, without addresses, which may contain secrets."""
    text = " ".join(str(error).split("\n\nDebug source", 1)[0].split())
    text = re.sub(r"\?\S*", "?...", text)
    return text if len(text) <= _REASON_LENGTH_MAX else f"{text[:_REASON_LENGTH_MAX]}..."
