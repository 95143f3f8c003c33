"""The server: its address, its protection, and its run."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import math
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvicorn

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.relay.http.access import Tokens
from kafka_ordered_ops.relay.http.app import RelayApp
from kafka_ordered_ops.relay.http.callers import Callers
from kafka_ordered_ops.relay.http.certificates import Certificates
from kafka_ordered_ops.relay.http.handshakes import Handshakes
from kafka_ordered_ops.relay.http.metrics import Metrics
from kafka_ordered_ops.relay.http.protocol import Connections, is_news
from kafka_ordered_ops.relay.limits import Limits
from kafka_ordered_ops.relay.ports import RelayService

_UVICORN: Final = logging.getLogger("uvicorn.error")

DEFAULT_PORT: Final = 8642

#: The time for requests in flight after SIGTERM. A cut-off request loses nothing, because leases expire.
_STOP_TIMEOUT_S: Final = 2
_BACKLOG: Final = 256
#: The interval between two checks of the service and the certificate.
_WATCH_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Listening:
    """The address of a server, and who may call it.

    Args:
        host: an address or a host name.
        port: the port; 0 chooses a free one.
        tls_certificate: PEM, with the whole chain.
        tls_key: PEM; None if the key is in the certificate's file.
        client_authority: PEM; callers need a certificate of this authority.
        tokens: the tokens file.

    Raises:
        ConfigError: other machines could call without TLS or without authentication.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    client_authority: Path | None = None
    tokens: Path | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.tls_certificate is None:
            for name, value in (
                ("tls_key", self.tls_key),
                ("client_authority", self.client_authority),
            ):
                if value is not None:
                    raise ConfigError(f"{name} {value} needs a tls_certificate: also give it")
        if self.is_local:
            return
        if self.tls_certificate is None:
            raise ConfigError(
                f"{self.host} can be reached from other machines, and there is no TLS: give a certificate, or listen on 127.0.0.1"
            )
        if self.tokens is None and self.client_authority is None:
            raise ConfigError(
                f"{self.host} can be reached from other machines, and anyone could read records: give a tokens file, or the "
                "authority of the clients' certificates"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @classmethod
    def at(cls, address: str, **options: Any) -> Listening:
        """Parse an address such as ``127.0.0.1:8642``, ``[::1]:8642`` or a host alone."""
        host, sign, port = address.rpartition(":")
        if not sign or address.endswith("]"):
            host, port = address, str(DEFAULT_PORT)
        if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise ConfigError(f"the address {address!r} is not HOST:PORT")
        return cls(host=host.removeprefix("[").removesuffix("]"), port=int(port), **options)

    def bound(self) -> socket.socket:
        """Return a listening socket; raise `ConfigError` for an address that cannot be used."""
        try:
            addresses = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, kind, proto, _, address = addresses[0]
            made = socket.socket(family, kind, proto)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self.host}: {error.strerror}") from error
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(_BACKLOG)
        except OSError as error:
            made.close()
            raise ConfigError(
                f"cannot listen on {self.host} port {self.port}: {error.strerror}"
            ) from error
        return made

    def certificates(self) -> Certificates | None:
        """Return the certificates for TLS; raise `ConfigError` for files that cannot be used."""
        if self.tls_certificate is None:
            return None
        return Certificates(self.tls_certificate, self.tls_key, self.client_authority)


class RelayServer:
    """One server of the relay.

    Args:
        listening: the address, and who may call.
        service: creates the service, on the server's event loop.

    Raises:
        ConfigError: the address, a file for TLS or the tokens file cannot be used.
    """

    def __init__(
        self,
        listening: Listening,
        service: Callable[[], RelayService],
    ) -> None:
        self._listening, self._make_service = listening, service
        tokens = None if listening.tokens is None else Tokens(listening.tokens)
        self._callers = Callers(
            tokens, is_local=listening.is_local and listening.client_authority is None
        )
        self._certificates = listening.certificates()
        self._socket = listening.bound()
        self._server: uvicorn.Server | None = None
        self._is_stopped = False

    @property
    def url(self) -> str:
        """The URL for clients."""
        host, port = self._socket.getsockname()[:2]
        host_text = f"[{host}]" if ":" in host else host
        return f"{'http' if self._certificates is None else 'https'}://{host_text}:{port}"

    def run(self) -> None:
        """Serve until SIGTERM, Ctrl-C or `stop`; raise the error that ended the service."""
        # Objects of the libraries live until the end: without this, each full collection would stop everything to scan them.
        gc.freeze()
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(self.serve())

    async def serve(self) -> None:
        """Serve on the running loop."""
        connections = Connections(self._listening.limits)
        limits = self._listening.limits
        service = self._make_service()
        app = RelayApp(service, self._callers, Metrics(connections), limits)
        handshakes = None
        if self._certificates is not None:
            handshakes = Handshakes(self._certificates.context, connections)
        protocol: Any = connections.protocol() if handshakes is None else handshakes.protocol()
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            # A forged address in a header would get into the log, and bypass the limits.
            proxy_headers=False,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=math.ceil(limits.keep_alive_s),
            # No request is left by then; see `_Server`.
            timeout_graceful_shutdown=2 * _STOP_TIMEOUT_S,
        )
        self._server = _Server(config, service.close, handshakes)
        # Another thread may have called `stop` before there was a server to stop.
        self._server.should_exit = self._is_stopped
        # From the start, callers are answered that the server is not ready yet.
        watching = asyncio.create_task(self._watch(service))
        _UVICORN.addFilter(is_news)
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            await service.close()
            watching.cancel()
            _UVICORN.removeFilter(is_news)
        if watching.done():
            watching.result()

    async def _watch(self, service: RelayService) -> None:
        """Start the service; when it ends, stop the server, so that it can be restarted, and raise the service's error."""
        try:
            await service.start()
            while (error := service.ended_by) is None:
                await asyncio.sleep(_WATCH_S)
                if self._certificates is not None:
                    self._certificates.look()
            raise error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Make the server end, or not start; from any thread."""
        self._is_stopped = True
        if self._server is not None:
            self._server.should_exit = True

    def close(self) -> None:
        """Release the address of a server that never ran."""
        self._socket.close()


class _Server(uvicorn.Server):
    """A server that ends the service before the connections: waiting calls are answered, and other servers take over at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        close_service: Callable[[], Awaitable[None]],
        handshakes: Handshakes | None,
    ) -> None:
        super().__init__(config)
        self._close_service, self._handshakes = close_service, handshakes

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer the calls in flight, then close the connections that clients keep open."""
        if self._handshakes is not None:
            self._handshakes.abort()
        closing = asyncio.ensure_future(self._close_service())
        ending = asyncio.get_running_loop().call_later(_STOP_TIMEOUT_S, self._abort)
        await super().shutdown(sockets)
        ending.cancel()
        await closing

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # not on Windows
    except ImportError:
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()
