"""``offsets decode`` and ``offsets encode``: offset maps in commit metadata, without a broker."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafka_ordered_ops.cli.exits import ExitCode
from kafka_ordered_ops.cli.options.options import command
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.errors import ConfigError

if TYPE_CHECKING:
    from kafka_ordered_ops.core.offset_set import OffsetSet

DECODE_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops offsets decode bgABAAk= --base 100
  echo bgABAAk= | kafka-ordered-ops offsets decode --base 100 --json

Exit codes: 0 decoded, or no offset map; 4 a damaged offset map; 2 usage; 130 Ctrl-C."""

ENCODE_EXAMPLES: Final = """\b
Example, in which 100 and 111 to 119 are not done:
  kafka-ordered-ops offsets encode --base 100 --done 101:111 --done 120"""

#: Ranges shown to people; --json has all.
_RANGES_SHOWN: Final = 20

#: Bytes read from stdin: far more than a broker stores.
_INPUT_MAX: Final = 1 << 20

_RANGE: Final = re.compile(r"(\d{1,19})(?::(\d{1,19}))?", re.ASCII)

_INT64_MAX: Final = (1 << 63) - 1


@command
def decode(
    screen: Screen,
    metadata: Annotated[
        str | None,
        typer.Argument(
            metavar="METADATA",
            help="Metadata of a committed offset. Default: from stdin.",
            show_default=False,
        ),
    ] = None,
    base: Annotated[
        int | None,
        typer.Option(
            "--base",
            metavar="OFFSET",
            min=0,
            max=_INT64_MAX,
            help="The committed offset with this metadata. Default: the base stored in a map of windows; otherwise 0.",
        ),
    ] = None,
) -> None:
    """Decode the metadata of a committed offset. Shows which offsets beyond it are done; needs no broker."""
    from kafka_ordered_ops.cli.show.offset_maps import MAPS, map_json, map_text
    from kafka_ordered_ops.core.offset_map.reading import DecodePolicy, read_committed_progress

    encoded = _input() if metadata is None else os.fsencode(metadata)
    at = _base_of(encoded) if base is None else base
    progress = read_committed_progress(
        at, encoded, end=None, policy=DecodePolicy.IGNORE, where="the given metadata"
    )
    if screen.as_json:
        screen.emit(map_json(progress))
    else:
        screen.show(map_text(progress, _RANGES_SHOWN))
    if progress.problem is not None and progress.kind in MAPS:
        raise typer.Exit(ExitCode.FAILED)


@command
def encode(
    screen: Screen,
    base: Annotated[
        int,
        typer.Option(
            "--base",
            metavar="OFFSET",
            min=0,
            max=_INT64_MAX,
            help="The committed offset: the first one that is not done.",
        ),
    ],
    done: Annotated[
        list[str],
        typer.Option(
            "--done",
            metavar="OFFSET[:END]",
            help="Done offsets beyond the base: one, or a range without its end, such as 101:111 (repeatable).",
        ),
    ],
) -> None:
    """Encode done offsets as Parallel Consumer does. Prints the metadata of a committed offset; needs no broker."""
    from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map

    offsets = _offsets(base, done)
    metadata = encode_parallel_consumer_map(base, offsets).decode()
    if screen.as_json:
        screen.emit({"base": base, "metadata": metadata})
    else:
        screen.show(metadata)


def _base_of(metadata: bytes) -> int:
    """Return the base stored in a map of windows; 0 for other metadata."""
    from kafka_ordered_ops.core.errors import OffsetMapDecodeError
    from kafka_ordered_ops.core.offset_map.ours import decode_offset_map

    try:
        offset_map = decode_offset_map(metadata)
    except OffsetMapDecodeError:
        # Decoding it again reports why.
        return 0
    return 0 if offset_map is None else offset_map.base


def _input() -> bytes:
    """Return stdin as bytes: metadata may not be text."""
    if sys.stdin.isatty():
        raise ConfigError("no metadata: give it as an argument, or on stdin")
    data = sys.stdin.buffer.read(_INPUT_MAX + 1)
    if len(data) > _INPUT_MAX:
        raise ConfigError(f"stdin has more than {_INPUT_MAX:,} bytes: give one metadata string")
    # A shell adds a line break.
    return data.removesuffix(b"\n").removesuffix(b"\r")


def _offsets(base: int, texts: list[str]) -> OffsetSet:
    from kafka_ordered_ops.core.offset_set import OffsetSet

    pairs = []
    for text in texts:
        match = _RANGE.fullmatch(text)
        start, end = (
            (0, 0) if match is None else (int(match[1]), int(match[2] or int(match[1]) + 1))
        )
        if not start < end <= _INT64_MAX:
            raise ConfigError(
                f"--done {text} is not an offset or a range: give 120, or 101:111 for the offsets 101 to 110"
            )
        if start <= base:
            raise ConfigError(
                f"--done {text} begins at or below --base {base}: the base is the first offset that is not done, and all "
                "offsets below it are done"
            )
        pairs.append((start, end))
    return OffsetSet.from_ranges(pairs)
