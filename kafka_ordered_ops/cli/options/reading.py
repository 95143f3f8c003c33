"""What `read` reads, and how it writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafka_ordered_ops.cli.options.help import MESSAGES, RECORDS
from kafka_ordered_ops.cli.options.options import Cluster, ReadLevel
from kafka_ordered_ops.cli.options.times import bound, moment
from kafka_ordered_ops.cli.records.choices import Bytes, Format, OnBad, Ordering
from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import Isolation

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan
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
            "cutoff) such as -1h; also for one topic (repeatable). Default: earliest.",
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
        typer.Option("-f", "--follow", help="Go on at the end of the logs, until Ctrl-C."),
    ] = False
    # Neither from a variable nor from a profile: those name a group of windows.
    group_id: Annotated[
        str | None,
        typer.Option(
            "-g",
            "--group",
            metavar="GROUP",
            help="With --follow: join this consumer group, go on from its committed offsets, and commit what is written.",
        ),
    ] = None
    order: Annotated[
        Ordering,
        typer.Option(
            "--order",
            rich_help_panel=RECORDS,
            help="By timestamp; or by timestamp, but never before an earlier record of the same partition.",
        ),
    ] = Ordering.TIMESTAMP
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
            help="With --follow: how long others wait for a partition without new records. Default: PT5S.",
        ),
    ] = None
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
        say: Callable[[str], None],
    ) -> OrderedReader:
        """Return the reader; with a cutoff, look for its records before, and say what is to be noted of them."""
        from kafka_ordered_ops.ordered.ordered_reader import OrderedReader

        starts = self._starts()
        common: dict[str, Any] = {
            "order": self.order.value,
            "max_out_of_orderness": self._span("--max-out-of-orderness", self.max_out_of_orderness),
            "progress": progress,
        }
        if self.cutoff is not None:
            plan = self._plan(settings, self.cutoff, starts)
            for note in plan.notes:
                say(f"note: {note}")
            return OrderedReader.of_plan(plan, settings, **common)
        if self.grace is not None:
            common["grace"] = self._span("--grace", self.grace)
        return OrderedReader(
            settings,
            self.topic,
            starting_offsets=starts,
            follow=self.follow,
            group_id=self.group_id,
            isolation=self.isolation,
            **common,
        )

    def _plan(
        self, settings: ClientSettings, cutoff: str, starts: Mapping[str, str] | str
    ) -> WindowPlan:
        """Return the plan of a window that nobody claims: nothing is written."""
        from kafka_ordered_ops.core.window.window import Window
        from kafka_ordered_ops.ordered.engine import NO_GROUP
        from kafka_ordered_ops.windows.queries.unclaimed import unclaimed

        if not isinstance(starts, str):
            raise ConfigError(
                "--from with a topic conflicts with --cutoff: give one bound for all topics"
            )
        window = Window(
            self.topic,
            cutoff=moment(cutoff, what="cutoff"),
            starting_offsets=starts,
            max_out_of_orderness=self._span("--max-out-of-orderness", self.max_out_of_orderness),
            isolation=self.isolation,
        )
        return unclaimed(settings, window, NO_GROUP)

    def _starts(self) -> Mapping[str, str] | str:
        """Return one bound for all topics, or one for each."""
        found: dict[str | None, str] = {}
        for text in self.starts:
            # No bound has this sign.
            topic, sign, start = text.rpartition("=")
            name = topic if sign else None
            if name in found:
                raise ConfigError(
                    f"--from is given twice for {name or 'all topics'}: {found[name]} and {start}"
                )
            if name is not None and name not in self.topic:
                raise ConfigError(
                    f"--from {text} is for {name}, which is not among the topics: {', '.join(self.topic)}"
                )
            found[name] = bound(start)
        default = found.pop(None, "earliest")
        if not found:
            return default
        return {topic: found.get(topic, default) for topic in self.topic}

    @staticmethod
    def _span(option: str, text: str | None) -> Any:
        return None if text is None else as_span(text, what=option.strip("-").replace("-", " "))


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
        Bytes | None,
        typer.Option(
            "--values",
            help="How jsonl and csv show values: as text, as JSON that is embedded, or exactly. Default: text.",
        ),
    ] = None
    keys: Annotated[
        Bytes | None,
        typer.Option("--keys", help="The same for keys. Default: text."),
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
        typer.Option("-n", "--limit", metavar="N", min=1, help="Stop after so many records."),
    ] = None
    table: Annotated[
        bool,
        typer.Option(
            "--table/--no-table",
            rich_help_panel=MESSAGES,
            help="Show the partitions on the terminal while the records go elsewhere.",
        ),
    ] = True

    def check(self, group_id: str | None, *, as_json: bool, is_terminal: bool) -> None:
        """Raise `ConfigError` for options that do not go together."""
        if not self.form.is_text:
            for option, value in (("--values", self.values), ("--keys", self.keys)):
                if value is not None:
                    raise ConfigError(
                        f"{option} {value} is for jsonl and csv: --format {self.form} has the bytes themselves"
                    )
            if self.output is None and is_terminal:
                raise ConfigError(
                    f"--format {self.form} is not text for a terminal: redirect stdout, or give --output FILE"
                )
        if self.on_bad is not None and Bytes.JSON not in (self.values, self.keys):
            raise ConfigError(
                f"--on-bad {self.on_bad} is for --values json and --keys json: add one of them, or omit it"
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
