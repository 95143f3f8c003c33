"""The input and output options of `read`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafka_ordered_ops.cli.options.given_formats import given_format
from kafka_ordered_ops.cli.options.help import MESSAGES, RECORDS
from kafka_ordered_ops.cli.options.options import Cluster, ReadLevel
from kafka_ordered_ops.cli.options.times import bound, bounds, moment, optional_span
from kafka_ordered_ops.cli.records.choices import Bytes, Format, OnBad, OrderBy
from kafka_ordered_ops.core.cluster.out_of_range import OnOutOfRange
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import Isolation

#: A topic's partition, and where it starts; a pattern may end with a bracket too, and has no single partition.
_OF_PARTITION: Final = re.compile(r"([^=^]+)\[(\d{1,10})\]=(.+)", re.ASCII)

_BYTES: Final = frozenset(Bytes)

if TYPE_CHECKING:
    from kafka_ordered_ops.decoding.decoder import Decoder
    from kafka_ordered_ops.ordered.options import Ordering
    from kafka_ordered_ops.ordered.ordered_reader import OrderedReader
    from kafka_ordered_ops.windows import ClientSettings


@dataclass(frozen=True, kw_only=True)
class Source(Cluster):
    """The records that are read."""

    topic: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC",
            help="Topic names, or patterns such as '^orders-.*'.",
            show_default=False,
        ),
    ]
    starts: Annotated[
        list[str],
        typer.Option(
            "--from",
            metavar="[TOPIC=]BOUND",
            help="Where to begin: earliest, latest, a time, offset:N, or a span before now (with --cutoff: before the "
            "cutoff) such as -1h; also for one topic, or one partition as 'orders[3]=50' (repeatable). Default: earliest.",
        ),
    ] = field(default_factory=list)
    cutoff: Annotated[
        str | None,
        typer.Option(
            "--cutoff",
            metavar="TIME",
            help="Read exactly the records stamped before this time. Default: up to where the logs end now.",
        ),
    ] = None
    follow: Annotated[
        bool,
        typer.Option("-f", "--follow", help="Keep reading at the end of the logs, until Ctrl-C."),
    ] = False
    exclude: Annotated[
        list[str],
        typer.Option(
            "--exclude",
            metavar="TOPIC",
            help="A topic name or pattern to leave out of the matches of TOPIC (repeatable).",
        ),
    ] = field(default_factory=list)
    # Not from a variable or a profile, which set a group of windows.
    group_id: Annotated[
        str | None,
        typer.Option(
            "-g",
            "--group",
            metavar="GROUP",
            help="With --follow: join this consumer group, continue from its committed offsets, and commit written records.",
        ),
    ] = None
    order: Annotated[
        OrderBy,
        typer.Option(
            "--order",
            rich_help_panel=RECORDS,
            help="By timestamp; or by timestamp, but never before an earlier record of the same partition.",
        ),
    ] = OrderBy.TIMESTAMP
    max_out_of_orderness: Annotated[
        str | None,
        typer.Option(
            "--max-out-of-orderness",
            rich_help_panel=RECORDS,
            metavar="SPAN",
            help="How far a timestamp may be below an earlier one of its partition, such as PT10M. Default: any distance; "
            "with --follow, none.",
        ),
    ] = None
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            rich_help_panel=RECORDS,
            metavar="SPAN",
            help="With --follow: how long other partitions wait for one without new records. Default: PT5S.",
        ),
    ] = None
    on_data_loss: Annotated[
        OnOutOfRange,
        typer.Option(
            "--on-data-loss",
            rich_help_panel=RECORDS,
            help="If a position is outside its log: fail, or log it and continue at the nearest, earliest or latest offset. "
            "With --cutoff: fail or warn.",
        ),
    ] = OnOutOfRange.FAIL
    isolation: ReadLevel = Isolation.READ_COMMITTED

    def check(self) -> None:
        """Raise `ConfigError` for options that do not go together."""
        if self.follow and self.cutoff is not None:
            raise ConfigError(
                f"--cutoff {self.cutoff} ends the read, and --follow has no end: omit one of them"
            )
        for option, value in (("--group", self.group_id), ("--grace", self.grace)):
            if value is not None and not self.follow:
                raise ConfigError(
                    f"{option} {value} needs --follow: also give it, or omit {option}"
                )

    def reader(
        self,
        settings: ClientSettings,
        progress: Callable[[int, int], None] | None,
    ) -> OrderedReader:
        """Return the reader."""
        from kafka_ordered_ops.ordered.ordered_reader import OrderedReader

        earliest = "earliest"
        exact, texts = _by_partition(self.starts)
        starts: Any = bounds(texts, self.topic, option="--from", otherwise=earliest) or earliest
        if exact:
            by_topic = starts if isinstance(starts, dict) else dict.fromkeys(self.topic, starts)
            starts = {**by_topic, **exact}
        common: dict[str, Any] = {
            "order": self._ordering(),
            "progress": progress,
        }
        return OrderedReader(
            settings,
            self.topic,
            starting_offsets=starts,
            exclude=self.exclude,
            until=None if self.cutoff is None else moment(self.cutoff, what="cutoff"),
            on_data_loss=self.on_data_loss.value,
            follow=self.follow,
            group_id=self.group_id,
            isolation=self.isolation,
            **common,
        )

    def _ordering(self) -> Ordering:
        from kafka_ordered_ops.ordered.options import GRACE, Ordering

        slack = optional_span("--max-out-of-orderness", self.max_out_of_orderness)
        grace = optional_span("--grace", self.grace)
        return Ordering(self.order.value, slack, GRACE if grace is None else grace)


def _by_partition(
    texts: Sequence[str],
) -> tuple[dict[tuple[str, int], str | int], list[str]]:
    """Return the bounds of single partitions, given as ``orders[3]=50``, and the other texts."""
    exact: dict[tuple[str, int], str | int] = {}
    others: list[str] = []
    for text in texts:
        if (match := _OF_PARTITION.fullmatch(text)) is None:
            others.append(text)
            continue
        tp, start = (match[1], int(match[2])), match[3]
        if tp in exact:
            raise ConfigError(f"--from is given twice for {match[1]}[{match[2]}]")
        exact[tp] = int(start) if start.isascii() and start.isdigit() else bound(start)
    return exact, others


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """How the records are written."""

    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="JSON or CSV, one record a line; an Arrow stream; or a Parquet file.",
        ),
    ] = Format.JSONL
    values: Annotated[
        str | None,
        typer.Option(
            "--values",
            metavar="text|json|base64|FORMAT",
            help="How jsonl and csv show values: as text, as JSON that is embedded, or exactly. Default: text. Or decoded, as with "
            "run: avro, avro:SUBJECT, avro:@FILE, protobuf, 'json:id int64'.",
        ),
    ] = None
    keys: Annotated[
        str | None,
        typer.Option(
            "--keys",
            metavar="text|json|base64|FORMAT",
            help="The same for keys. Default: text.",
        ),
    ] = None
    on_bad: Annotated[
        OnBad | None,
        typer.Option(
            "--on-bad",
            rich_help_panel=RECORDS,
            help="With --values json or --keys json: fail at a record that is not JSON, skip it, or keep it as text. "
            "Default: fail.",
        ),
    ] = None
    guard_cells: Annotated[
        bool,
        typer.Option(
            "--guard-cells",
            rich_help_panel=RECORDS,
            help="With --format csv: write an apostrophe before cells that a spreadsheet would run as a formula (= + - @).",
        ),
    ] = False
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="File to write. Default: stdout."),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option("-n", "--limit", metavar="N", min=1, help="Stop after N records."),
    ] = None
    table: Annotated[
        bool,
        typer.Option(
            "--table/--no-table",
            rich_help_panel=MESSAGES,
            help="Show the partitions on the terminal while the records go elsewhere.",
        ),
    ] = True

    def decoder(self, topics: list[str], settings: ClientSettings) -> Decoder | None:
        """Return what decodes keys and values; None if both stay bytes. Raise `ConfigError`, or as the registry does."""
        from kafka_ordered_ops.core.window.formats import OnBad as OnBadValue
        from kafka_ordered_ops.core.window.window import Window
        from kafka_ordered_ops.decoding.decoder import decoder_of, fixed

        values = None if self.values in _BYTES else given_format(self.values, "--values")
        keys = None if self.keys in _BYTES else given_format(self.keys, "--keys")
        if values is None and keys is None:
            return None
        on_bad = OnBadValue.FAIL if self.on_bad in (None, OnBad.FAIL) else OnBadValue.KEEP
        window = Window(topics, values=values, keys=keys, on_bad=on_bad)
        return decoder_of(fixed(window, settings), settings)

    def shown(self, text: str | None) -> Bytes:
        """Return how keys or values are shown: decoded ones as JSON."""
        if text is None:
            return Bytes.TEXT
        return Bytes(text) if text in _BYTES else Bytes.JSON

    def check(self, group_id: str | None, *, as_json: bool, is_terminal: bool) -> None:
        """Raise `ConfigError` for options that do not go together."""
        if not self.form.is_text:
            for option, value in (("--values", self.values), ("--keys", self.keys)):
                if value in _BYTES:
                    raise ConfigError(
                        f"{option} {value} is for jsonl and csv: --format {self.form} has the bytes themselves"
                    )
            if self.output is None and is_terminal:
                raise ConfigError(
                    f"--format {self.form} is not text for a terminal: redirect stdout, or give --output FILE"
                )
        if self.on_bad is not None and {self.values, self.keys} <= {None, "text", "base64"}:
            raise ConfigError(
                f"--on-bad {self.on_bad} is for --values json and --keys json, and for formats: add one of them, or omit it"
            )
        if self.guard_cells and self.form is not Format.CSV:
            raise ConfigError(
                f"--guard-cells is for csv, and --format {self.form} has no cells: omit one of them"
            )
        if as_json and self.output is None:
            raise ConfigError(
                "--json prints one object to stdout, where the records go: also give --output FILE"
            )
        if group_id is None:
            return
        if self.limit is not None:
            raise ConfigError(
                f"--limit {self.limit} conflicts with --group, which commits whole batches: omit one of them"
            )
        if self.form is Format.PARQUET:
            raise ConfigError(
                "--format parquet conflicts with --group: the file can be read only when it is complete, and the group "
                "commits before"
            )
