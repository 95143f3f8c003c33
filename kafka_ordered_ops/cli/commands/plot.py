"""``windows plot``: draw a window of the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from kafka_ordered_ops.cli.options.options import Connection, WindowId, command
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.errors import ConfigError, WindowPrunedError

PLOT_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops windows plot -b localhost:9092 -g hourly noon -o noon.svg"""


@command
def plot_window(
    screen: Screen,
    connection: Connection,
    window_id: WindowId,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="File to write, ending in .svg, .png or .pdf."
        ),
    ],
) -> None:
    """Draw the offsets and times of a window. Reads the ledger, not the records."""
    from kafka_ordered_ops.delivery import plots

    file_format = plots.format_of(output)
    with connection.open(screen) as windows, screen.progress("reading the ledger"):
        record = windows.show(window_id)
    if record.pruned is not None:
        raise WindowPrunedError(
            f"window {window_id} of group {connection.group_id} was pruned from the ledger: its offsets are no longer "
            "known, so it cannot be drawn",
            window_id=window_id,
        )
    with screen.progress("drawing"):
        image = plots.window_plot(record.plan, file_format)
    try:
        output.write_bytes(image)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}") from error
    if screen.as_json:
        screen.emit({"window_id": window_id, "group": connection.group_id, "output": str(output)})
    else:
        screen.show(str(output))
