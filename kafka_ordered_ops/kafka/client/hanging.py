"""Calls of the client that ignore their time-outs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import confluent_kafka as ck

from kafka_ordered_ops.core.errors import BrokerError

#: Calls that have not ended. Each keeps a client with its threads.
HUNG_MAX: Final = 16

_lock = threading.Lock()
_hung: list[threading.Thread] = []


def call_within(timeout_s: float, call: Callable[[], object], *, doing: str) -> None:
    """Make a call that may hang; leave it behind, with its client, when the time is over.

    Raises:
        KafkaException: `_TIMED_OUT`; the call may still do what it was to do.
        BrokerError: so many calls hang already that the process has to be restarted. The call was not made.
    """
    with _lock:
        _hung[:] = [one for one in _hung if one.is_alive()]
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
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
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
