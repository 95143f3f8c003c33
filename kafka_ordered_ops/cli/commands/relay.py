"""``relay``: serve records over HTTP, and create access tokens."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafka_ordered_ops.cli.exits import end_well
from kafka_ordered_ops.cli.options.help import LISTENING, RECORDS, Commands
from kafka_ordered_ops.cli.options.options import Cluster, ReadLevel, command
from kafka_ordered_ops.cli.options.times import bound, optional_span
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.arguments import as_span, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import GroupProtocol, Isolation, OnDataLoss

if TYPE_CHECKING:
    from kafka_ordered_ops.relay.http.server import Listening
    from kafka_ordered_ops.relay.limits import Limits
    from kafka_ordered_ops.relay.options import RelayOptions

_SERVE_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops relay serve orders -b localhost:9092
  kafka-ordered-ops relay serve orders payments --config client.properties --bind 0.0.0.0:8642 --tls-cert relay.pem --tokens tokens

Exit codes: 0 ended by SIGTERM; 1 failed, retry; 2 usage; 4 failed, retrying does not help; 130 Ctrl-C."""

_TOKEN_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops relay token workers --tokens tokens --topics orders --groups billing
  kafka-ordered-ops relay token guests --tokens tokens --topics orders --groups guests --limit pending=1000 --limit lease=PT5M
  kafka-ordered-ops relay token scheduler --tokens tokens --topics orders --groups 'hourly-*' --verbs admin --expires P90D"""

app = Commands(help="Hand out records to any number of workers over HTTP.")


@dataclass(frozen=True, kw_only=True)
class Server:
    """The address of the server, and access to it."""

    bind: Annotated[
        str,
        typer.Option(
            "--bind",
            metavar="HOST:PORT",
            rich_help_panel=LISTENING,
            help="Address to listen on. An address that other machines can reach needs TLS, and tokens or client certificates.",
        ),
    ] = "127.0.0.1:8642"
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            rich_help_panel=LISTENING,
            help="Certificate with its chain, in PEM. It is read again when it changes.",
        ),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key",
            metavar="FILE",
            rich_help_panel=LISTENING,
            help="Key of the certificate, in PEM. Default: in the same file.",
        ),
    ] = None
    client_ca: Annotated[
        Path | None,
        typer.Option(
            "--client-ca",
            metavar="FILE",
            rich_help_panel=LISTENING,
            help="Certificate authority, in PEM: only clients with a certificate issued by it can connect.",
        ),
    ] = None
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            rich_help_panel=LISTENING,
            help="File with access tokens from relay token. It is read again when it changes.",
        ),
    ] = None
    limit: Annotated[
        list[str],
        typer.Option(
            "--limit",
            metavar="NAME=VALUE",
            rich_help_panel=LISTENING,
            show_default=False,
            help="A limit of the server, such as connections=1000 or lease=PT10M (repeatable).",
        ),
    ] = field(default_factory=list)

    def limits(self) -> Limits:
        """Return the limits; raises `ConfigError`."""
        from kafka_ordered_ops.relay.limits import Limits, limits_of, pairs_of

        return limits_of(Limits, pairs_of(self.limit))

    def listening(self, limits: Limits) -> Listening:
        """Build the server's settings; raises `ConfigError`."""
        from kafka_ordered_ops.relay.http.server import Listening

        return Listening.at(
            self.bind,
            tls_certificate=self.tls_cert,
            tls_key=self.tls_key,
            client_authority=self.client_ca,
            tokens=self.tokens,
            limits=limits,
        )


@dataclass(frozen=True, kw_only=True)
class Served:
    """The records to serve, and their leases."""

    topic: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC", help="Names of the topics.", show_default=False),
    ]
    relay_group: Annotated[
        str,
        typer.Option(
            "--relay-group",
            metavar="GROUP",
            rich_help_panel=LISTENING,
            help="Consumer group of the servers, which share the partitions.",
        ),
    ] = "kafka-ordered-ops-relay"
    server_name: Annotated[
        str | None,
        typer.Option(
            "--server-name",
            metavar="NAME",
            rich_help_panel=LISTENING,
            help="Unique among the servers, and the same after a restart: a server that comes back soon keeps its partitions.",
        ),
    ] = None
    session_timeout: Annotated[
        str,
        typer.Option(
            "--session-timeout",
            metavar="SPAN",
            rich_help_panel=LISTENING,
            help="Time after which the partitions of a dead server move to another server.",
        ),
    ] = "PT10S"
    group_protocol: Annotated[
        GroupProtocol,
        typer.Option(
            "--group-protocol",
            rich_help_panel=LISTENING,
            help="How the servers share the partitions. With consumer (KIP-848), brokers set the session timeout.",
        ),
    ] = GroupProtocol.CLASSIC
    starting_offsets: Annotated[
        str,
        typer.Option(
            "--starting-offsets",
            metavar="BOUND",
            rich_help_panel=RECORDS,
            help="Where a new client group begins: earliest, latest, a time, or offset:N.",
        ),
    ] = "earliest"
    isolation: ReadLevel = Isolation.READ_COMMITTED
    dead_letter_topic: Annotated[
        str | None,
        typer.Option(
            "--dead-letter-topic",
            metavar="TOPIC",
            rich_help_panel=RECORDS,
            help="Topic for records leased --attempts times and not acknowledged. Default: lease them again.",
        ),
    ] = None
    attempts: Annotated[
        int,
        typer.Option(
            "--attempts",
            min=1,
            rich_help_panel=RECORDS,
            help="Leases of a record before it is moved to the dead-letter topic.",
        ),
    ] = 5
    on_data_loss: Annotated[
        OnDataLoss,
        typer.Option(
            "--on-data-loss",
            rich_help_panel=RECORDS,
            help="What to do if retention removed records before they were read, or a record cannot be decoded.",
        ),
    ] = OnDataLoss.FAIL

    def options(self, limits: Limits) -> RelayOptions:
        """Build the relay's options; raises `ConfigError`."""
        from kafka_ordered_ops.core.window.bounds import parse_bound
        from kafka_ordered_ops.relay.options import RelayOptions

        return RelayOptions(
            topics=frozenset(self.topic),
            relay_group=self.relay_group,
            server_name=self.server_name,
            protocol=self.group_protocol,
            session_timeout_s=as_span(self.session_timeout, what="session timeout").total_seconds(),
            isolation=self.isolation,
            starting_offsets=parse_bound(bound(self.starting_offsets)),
            attempts_max=self.attempts,
            dead_letter_topic=self.dead_letter_topic,
            on_data_loss=self.on_data_loss,
            records_max=limits.held_records_max,
            held_bytes_max=limits.held_bytes_max,
            groups_max=limits.groups_max,
        )


@app.command("serve", epilog=_SERVE_EXAMPLES)
@command
def serve(screen: Screen, cluster: Cluster, served: Served, server: Server) -> None:
    """Serve records of topics until Ctrl-C: workers read, acknowledge and cancel them."""
    _check_installed()
    from kafka_ordered_ops.relay.http.server import RelayServer
    from kafka_ordered_ops.relay.service import Relay

    limits = server.limits()
    settings, options = cluster.reported_settings(screen), served.options(limits)
    running = RelayServer(server.listening(limits), lambda: Relay(settings, options))
    signal.signal(signal.SIGTERM, end_well)
    if screen.as_json:
        screen.emit({"url": running.url, "topics": sorted(served.topic)})
    else:
        screen.show(running.url)
    screen.say(f"serving {', '.join(sorted(served.topic))} at {running.url}; press Ctrl-C to stop")
    running.run()


@app.command("token", epilog=_TOKEN_EXAMPLES)
@command
def token(
    screen: Screen,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The user of the token.", show_default=False)
    ],
    file: Annotated[
        Path,
        typer.Option("--tokens", metavar="FILE", help="File for the token; created if missing."),
    ],
    topics: Annotated[
        str,
        typer.Option(
            "--topics",
            metavar="NAMES",
            show_default=False,
            help="Topics, separated by commas. A prefix ends in '*'; '*' alone is all.",
        ),
    ],
    groups: Annotated[
        str,
        typer.Option(
            "--groups",
            metavar="NAMES",
            show_default=False,
            help="Client groups, in the same form. The default group of a window is the window's id.",
        ),
    ],
    verbs: Annotated[
        str,
        typer.Option(
            "--verbs",
            metavar="VERBS",
            help="read, acknowledge (also cancel and extend), admin (open windows) and describe (see status and metrics, as all "
            "tokens do), separated by commas.",
        ),
    ] = "read,acknowledge",
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=VALUE",
            show_default=False,
            help="A limit at each server: pending (records under leases), lease (its longest time), groups, windows (opened and "
            "not done) or requests (in a second) (repeatable).",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="SPAN",
            help="Lifetime of the token, such as P90D. Default: unlimited.",
        ),
    ] = None,
) -> None:
    """Create an access token and print it once. A name has at most two tokens: the oldest is removed."""
    _check_installed()
    from kafka_ordered_ops.relay.http.access import add_entry, new_token
    from kafka_ordered_ops.relay.limits import TokenLimits, limits_of, pairs_of
    from kafka_ordered_ops.relay.rights import Verb

    span = optional_span("--expires", expires)
    ends = None if span is None else time.time_ns() // 1_000_000 + span // timedelta(milliseconds=1)
    try:
        allowed = [Verb(verb) for verb in _listed(verbs)]
    except ValueError as error:
        choices = ", ".join(Verb)
        raise ConfigError(f"--verbs is {shown(verbs)}: give one or more of {choices}") from error
    secret, entry = new_token(
        name,
        topics=_listed(topics),
        groups=_listed(groups),
        verbs=allowed,
        limits=limits_of(TokenLimits, pairs_of(limit or ())),
        expires_ms=ends,
    )
    removed = add_entry(file, entry)
    if screen.as_json:
        screen.emit({"name": name, "token": secret, "removed": removed})
    else:
        screen.show(secret)
    screen.say("save the token now: the file has only its hash, and the token is not shown again")
    if removed:
        screen.say(f"{removed} older token(s) of {name} were removed")


def _listed(text: str) -> list[str]:
    names = [name for name in re.split(r"\s*,\s*", text.strip()) if name]
    if not names:
        raise ConfigError("an empty list: give names separated by commas")
    return names


def _check_installed() -> None:
    missing = [name for name in ("fastapi", "httptools", "uvicorn") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the relay needs {', '.join(missing)}: run pip install 'kafka-ordered-ops[relay]'"
        )
