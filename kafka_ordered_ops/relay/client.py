"""Clients of the relay, for synchronous and for async code."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import httpx

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.relay.client_calls import (
    Calls,
    Delivery,
    Lease,
    Pause,
    Reply,
    Send,
    Steps,
    Taken,
    read_body,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_ordered_ops.core.processing.record import Record

#: For connecting: a server that is down must not delay the attempt at the next one.
_CONNECT_TIMEOUT_S: Final = 3.0
#: The variable with the access token, unless the token is an argument.
TOKEN_VARIABLE: Final = "KAFKA_ORDERED_OPS_RELAY_TOKEN"

_T = TypeVar("_T")
#: The certificates to trust: the default ones, or those of a context.
Verify = bool | ssl.SSLContext


class RelayClient:
    """Read and acknowledge records through servers of the relay. For one thread at a time.

    Every call is retried, at another server if there are several, until `timeout_s` has passed. Retries are harmless: if the
    answer to a read is lost, its records are handed out again when their lease ends.

    Args:
        servers: URLs of servers, such as ``http://localhost:8642``, or one of them.
        token: the access token. Default: the environment variable ``KAFKA_ORDERED_OPS_RELAY_TOKEN``.
        plain_http: also send the token over ``http://`` to other machines, where it can be read in transit.
        verify: an `ssl.SSLContext`, for your own authority or client certificate.
        timeout_s: how long to retry a call.

    Raises:
        ConfigError: the URL of a server or the token is invalid, or the token would be sent without encryption.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        token: str | None = None,
        plain_http: bool = False,
        verify: Verify = True,
        timeout_s: float = 60.0,
    ) -> None:
        headers = _headers(token)
        self._calls = Calls(
            servers,
            has_token="authorization" in headers,
            plain_http=plain_http,
            timeout_s=timeout_s,
        )
        self._http = httpx.Client(headers=headers, verify=verify, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def read(
        self,
        group: str,
        *,
        records_max: int = 500,
        wait_s: float = 10.0,
        lease_s: float = 60.0,
        topics: str | Iterable[str] | None = None,
    ) -> Delivery:
        """Read records that no other client of the group holds.

        Args:
            group: the client group, or the name that `window` returned.
            records_max: the largest number of records, up to 10,000.
            wait_s: how long to wait for the first record, up to 30 s.
            lease_s: how long this client holds the records, from 1 s to an hour.
            topics: selects records of these topics.

        Raises:
            AccessDeniedError: the access token does not allow it.
            UnknownTopicError: the relay does not serve a topic.
            RelayLimitError: a limit of the token is reached: records, groups or requests.
            RelayUnavailableError: no server answered in time.
        """
        body = read_body(group, records_max, lease_s, topics)
        return self._run(self._calls.deliver(body, wait_s))

    def read_table(
        self,
        group: str,
        *,
        records_max: int = 10_000,
        wait_s: float = 10.0,
        lease_s: float = 60.0,
        topics: str | Iterable[str] | None = None,
    ) -> tuple[pa.Table, bool]:
        """Read records as an Arrow table with the additional columns ``lease``, ``lease_until`` and ``attempt``; see `read`.

        Returns:
            The table, and whether every record of the window is acknowledged.
        """
        body = read_body(group, records_max, lease_s, topics)
        return self._run(self._calls.table(body, wait_s))

    def acknowledge(self, *leases: Lease | str, offsets: Iterable[int] | None = None) -> None:
        """Acknowledge records; return once this is stored. This also works after the lease has ended.

        Args:
            leases: leases or their tokens.
            offsets: acknowledge only these offsets of a single lease.

        Raises:
            LeaseError: a token is not from this relay.
            RelayUnavailableError: no server confirmed in time that the acknowledgement is stored.
        """
        self._run(self._calls.change_chosen("/v1/acknowledge", leases, offsets))

    def cancel(self, *leases: Lease | str, offsets: Iterable[int] | None = None) -> None:
        """Give records back: another client may get them at once. The arguments are those of `acknowledge`."""
        self._run(self._calls.change_chosen("/v1/cancel", leases, offsets))

    def extend(self, *leases: Lease | str, lease_s: float = 60.0) -> list[int]:
        """Extend leases to `lease_s` from now; return when each lease ends, in milliseconds since the epoch.

        Raises:
            LeaseError: a lease has ended.
        """
        return self._run(self._calls.extend(leases, lease_s))

    def window(self, plan: WindowPlan, group: str | None = None) -> str:
        """Start to hand out the records of a window; return the group to read. Repeating it changes nothing."""
        return self._run(self._calls.window(plan, group))

    def records(
        self,
        group: str,
        *,
        records_max: int = 100,
        wait_s: float = 10.0,
        lease_s: float = 60.0,
        topics: str | Iterable[str] | None = None,
    ) -> Generator[Record, None, None]:
        """Yield records one by one. A record is done when the next one is requested.

        Acknowledgements are sent every second and at the end. Leases are extended between records, so a single record must
        not take longer than `lease_s`. Leaving the loop gives back the records that are not done. The iterator ends when the
        window is done, and never for a group without an end.
        """
        body = read_body(group, records_max, lease_s, topics)
        while True:
            delivery = self._run(self._calls.deliver(body, wait_s))
            taken = Taken(self._calls, delivery, lease_s)
            try:
                for held, record in taken:
                    yield record
                    if not self._run(taken.done(held, record)):
                        break
            finally:
                self._run(taken.end())
            if delivery.done:
                return

    def _run(self, steps: Steps[_T]) -> _T:
        answer: Reply | Exception | None = None
        try:
            while True:
                step = steps.send(answer)
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    answer = None
                else:
                    answer = self._send(step)
        except StopIteration as end:
            result: _T = end.value
            return result

    def _send(self, send: Send) -> Reply | Exception:
        try:
            answer = self._http.post(send.url, content=send.body, **_request(send))
        except httpx.TransportError as error:
            return _failure(error)
        return Reply(answer.status_code, answer.content)


class AsyncRelayClient:
    """The `RelayClient` for async code: any number of tasks may use it concurrently."""

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        token: str | None = None,
        plain_http: bool = False,
        verify: Verify = True,
        timeout_s: float = 60.0,
    ) -> None:
        headers = _headers(token)
        self._calls = Calls(
            servers,
            has_token="authorization" in headers,
            plain_http=plain_http,
            timeout_s=timeout_s,
        )
        self._http = httpx.AsyncClient(headers=headers, verify=verify, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def read(
        self,
        group: str,
        *,
        records_max: int = 500,
        wait_s: float = 10.0,
        lease_s: float = 60.0,
        topics: str | Iterable[str] | None = None,
    ) -> Delivery:
        """Read records that no other client of the group has; see `RelayClient.read`."""
        body = read_body(group, records_max, lease_s, topics)
        return await self._run(self._calls.deliver(body, wait_s))

    async def read_table(
        self,
        group: str,
        *,
        records_max: int = 10_000,
        wait_s: float = 10.0,
        lease_s: float = 60.0,
        topics: str | Iterable[str] | None = None,
    ) -> tuple[pa.Table, bool]:
        """Read records as an Arrow table; see `RelayClient.read_table`."""
        body = read_body(group, records_max, lease_s, topics)
        return await self._run(self._calls.table(body, wait_s))

    async def acknowledge(self, *leases: Lease | str, offsets: Iterable[int] | None = None) -> None:
        """Acknowledge records; see `RelayClient.acknowledge`."""
        await self._run(self._calls.change_chosen("/v1/acknowledge", leases, offsets))

    async def cancel(self, *leases: Lease | str, offsets: Iterable[int] | None = None) -> None:
        """Give records back; see `RelayClient.cancel`."""
        await self._run(self._calls.change_chosen("/v1/cancel", leases, offsets))

    async def extend(self, *leases: Lease | str, lease_s: float = 60.0) -> list[int]:
        """Extend leases; see `RelayClient.extend`."""
        return await self._run(self._calls.extend(leases, lease_s))

    async def window(self, plan: WindowPlan, group: str | None = None) -> str:
        """Start to hand out the records of a window; see `RelayClient.window`."""
        return await self._run(self._calls.window(plan, group))

    async def records(
        self,
        group: str,
        *,
        records_max: int = 100,
        wait_s: float = 10.0,
        lease_s: float = 60.0,
        topics: str | Iterable[str] | None = None,
    ) -> AsyncGenerator[Record, None]:
        """Yield records one by one; see `RelayClient.records`.

        To leave the loop early, use `contextlib.aclosing`: otherwise, records that are not done wait until their lease ends.
        """
        body = read_body(group, records_max, lease_s, topics)
        while True:
            delivery = await self._run(self._calls.deliver(body, wait_s))
            taken = Taken(self._calls, delivery, lease_s)
            try:
                for held, record in taken:
                    yield record
                    if not await self._run(taken.done(held, record)):
                        break
            finally:
                await self._run(taken.end())
            if delivery.done:
                return

    async def _run(self, steps: Steps[_T]) -> _T:
        answer: Reply | Exception | None = None
        try:
            while True:
                step = steps.send(answer)
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    answer = None
                else:
                    answer = await self._send(step)
        except StopIteration as end:
            result: _T = end.value
            return result

    async def _send(self, send: Send) -> Reply | Exception:
        try:
            answer = await self._http.post(send.url, content=send.body, **_request(send))
        except httpx.TransportError as error:
            return _failure(error)
        return Reply(answer.status_code, answer.content)


def _headers(token: str | None) -> dict[str, str]:
    # The token may come from a file, with a line break.
    access_token = (token or os.environ.get(TOKEN_VARIABLE, "")).strip()
    if not (access_token.isascii() and access_token.isprintable()):
        raise ConfigError(
            "the access token has characters that no token has: pass it as relay token printed it"
        )
    return {"content-type": "application/json"} | (
        {"authorization": f"Bearer {access_token}"} if access_token else {}
    )


def _failure(error: httpx.TransportError) -> Exception:
    return TimeoutError(repr(error)) if isinstance(error, httpx.TimeoutException) else error


def _request(send: Send) -> dict[str, Any]:
    timeout = httpx.Timeout(send.timeout_s, connect=_CONNECT_TIMEOUT_S)
    return {"headers": {"accept": send.accept}, "timeout": timeout}
