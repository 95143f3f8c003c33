"""Limit calls of the client that ignore their timeouts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import confluent_kafka as ck

from kafka_ordered_ops.core.errors import BrokerError

#: The largest number of hanging calls. Each keeps a client with its threads.
HUNG_MAX: Final = 16

_lock = threading.Lock()
_hung: list[threading.Thread] = []


def call_within(timeout_s: float, call: Callable[[], object], *, doing: str) -> None:
    """Make a call that may hang; abandon it, with its client, at the timeout.

    Raises:
        KafkaException: `_TIMED_OUT`; the call may still succeed.
        BrokerError: too many calls hang already, so the process must be restarted. The call was not made.
    """
    with _lock:
        _hung[:] = [thread for thread in _hung if thread.is_alive()]
        if len(_hung) >= HUNG_MAX:
            raise BrokerError(
                f"{doing}: the Kafka client has not ended {len(_hung)} earlier calls, and each keeps a producer. Restart "
                "this process",
                code="_TIMED_OUT",
            )
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            failures.append(error)

    calling = threading.Thread(target=run, name="kafka-call", daemon=True)
    calling.start()
    calling.join(timeout_s)
    if calling.is_alive():
        with _lock:
            _hung.append(calling)
        raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT))
    if failures:
        raise failures[0]
