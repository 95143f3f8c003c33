"""``watch``: the groups of a ledger, for Prometheus."""

from __future__ import annotations

import signal
import time
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Final

import typer

from kafka_ordered_ops.cli.exits import end_well
from kafka_ordered_ops.cli.options.options import Cluster, command
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.errors import ConfigError

WATCH_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops watch -b localhost:9092
  kafka-ordered-ops watch -b localhost:9092 --once"""

#: A signal's exception ends the sleep early.
_SLEEP_S: Final = 3600.0


@command
def watch(
    screen: Screen,
    cluster: Cluster,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 for a free one.")
    ] = 9464,
    interval: Annotated[
        str,
        typer.Option(
            "--interval", metavar="SPAN", help="Read the ledger at most once in this time."
        ),
    ] = "PT30S",
    once: Annotated[bool, typer.Option("--once", help="Print the metrics, and exit.")] = False,
) -> None:
    """Serve the lag and the open windows of all groups of a ledger to Prometheus, until Ctrl-C. Changes nothing."""
    if find_spec("prometheus_client") is None:
        raise ConfigError("watch needs prometheus-client: pip install 'kafka-ordered-ops[metrics]'")
    from kafka_ordered_ops.cli.watching import LedgerCollector, serve, text_of
    from kafka_ordered_ops.windows.queries.groups import list_groups

    interval_s = as_span(interval, what="interval").total_seconds()
    settings = cluster.reported_settings(screen)
    look = partial(list_groups, settings, ledger_topic=cluster.ledger, with_offsets=True)
    if once:
        screen.show(text_of(look()).rstrip("\n"))
        return
    signal.signal(signal.SIGTERM, end_well)
    url = f"http://{host}:{serve(LedgerCollector(look, interval_s), host, port)}/metrics"
    if screen.as_json:
        screen.emit({"url": url})
    else:
        screen.show(url)
    screen.say("press Ctrl-C to stop")
    while True:
        time.sleep(_SLEEP_S)
