"""The windows that a command requests, and its policies for conflicts with other windows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafka_ordered_ops.cli.options.given_formats import given_format
from kafka_ordered_ops.cli.options.help import OTHERS, RECORDS, SERIES
from kafka_ordered_ops.cli.options.options import Cutoff, Looking, Topics
from kafka_ordered_ops.cli.options.times import bounds, moment, optional_span
from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import duration_text, time_ms, time_text
from kafka_ordered_ops.core.types import OnCovered, OnDataLoss, OnForeignCommit, OnOpenClaim
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.window import Window


#: Windows in one pass. One transaction claims all of them and must end before its timeout of 10 s. Each needs a
#: look-up of its cutoff, a plan in memory and a folder. A day of minutes fits, and three years of days.
WINDOWS_AT_ONCE_MAX: Final = 1_500

_SINCE: Final = typer.Option(
    "--since",
    metavar="TIME",
    help="Inclusive start; turns the group's windows into intervals.",
)


def _span_text(length: timedelta) -> str:
    return duration_text(length // timedelta(milliseconds=1))


@dataclass(frozen=True, kw_only=True)
class Interval(Cutoff):
    """The times of one window."""

    since: Annotated[str | None, _SINCE] = None


@dataclass(frozen=True, kw_only=True)
class Times(Topics):
    """The times of one window or of a series."""

    cutoff: Annotated[
        str | None,
        typer.Option(
            "--cutoff",
            metavar="TIME",
            help="Exclusive end, such as 2026-11-20T12:00:00Z, 2026-11-20, today or -1h. With --every: of the first window.",
        ),
    ] = None
    since: Annotated[str | None, _SINCE] = None
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            rich_help_panel=SERIES,
            metavar="SPAN",
            help="Deliver a series of windows in one pass, one for each span, such as P1D. Needs --until.",
        ),
    ] = None
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            rich_help_panel=SERIES,
            help="With --every: the end of the series; no cutoff is later.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class WindowOptions(Looking, Topics):
    """Everything about windows except their times."""

    starting_offsets: Annotated[
        list[str],
        typer.Option(
            "--starting-offsets",
            metavar="[TOPIC=]BOUND",
            help="Where a new group starts: earliest, latest, committed, a time, or a span before the cutoff such as -PT1H. "
            "Repeatable, one for each topic.",
        ),
    ] = field(default_factory=list)
    on_data_loss: Annotated[
        OnDataLoss,
        typer.Option(
            "--on-data-loss",
            rich_help_panel=RECORDS,
            help="What to do if retention has deleted records of the window, or records cannot be read.",
        ),
    ] = OnDataLoss.FAIL
    value_format: Annotated[
        str | None,
        typer.Option(
            "--values",
            rich_help_panel=RECORDS,
            metavar="FORMAT",
            help="Decode values: avro (newest schema of TOPIC-value), avro:SUBJECT, avro:@FILE (a schema), json:@FILE, "
            "'json:id int64, at timestamp[ms, UTC]', or json-inferred (columns of the group's first window). Avro needs -X schema.registry.url=URL.",
        ),
    ] = None
    key_format: Annotated[
        str | None,
        typer.Option(
            "--keys", rich_help_panel=RECORDS, metavar="FORMAT", help="Decode keys in the same way."
        ),
    ] = None
    on_bad: Annotated[
        str,
        typer.Option(
            "--on-bad",
            rich_help_panel=RECORDS,
            metavar="fail|keep|dead_letter[:TOPIC]",
            help="What to do with a value that cannot be decoded. keep adds columns with its bytes and the reason; dead_letter "
            "writes the record to a topic, or beside the output.",
        ),
    ] = "fail"
    flatten: Annotated[
        bool,
        typer.Option(
            "--flatten", rich_help_panel=RECORDS, help="Put the fields of a struct in its place."
        ),
    ] = False

    def template(self) -> Window:
        """Build the window without its times; raises `ConfigError`."""
        from kafka_ordered_ops.core.window.window import Window

        return Window(
            self.topic,
            starting_offsets=bounds(self.starting_offsets, self.topic, option="--starting-offsets"),
            max_out_of_orderness=self.out_of_orderness,
            isolation=self.isolation,
            exclude=self.exclude,
            on_data_loss=self.on_data_loss,
            values=given_format(self.value_format, "--values"),
            keys=given_format(self.key_format, "--keys"),
            on_bad=self.on_bad,
            flatten=self.flatten,
        )


@dataclass(frozen=True, kw_only=True)
class Question(WindowOptions, Interval):
    """One window."""

    def window(self) -> Window:
        """Build the window; raises `ConfigError`."""
        since = None if self.since is None else moment(self.since, what="since")
        return self.template().at(moment(self.cutoff, what="cutoff"), since)


@dataclass(frozen=True, kw_only=True)
class SweepQuestion(WindowOptions, Cutoff):
    """The records outside all intervals."""

    def window(self) -> Window:
        """Build the window; raises `ConfigError`."""
        return replace(self.template().at(moment(self.cutoff, what="cutoff")), sweep=True)


@dataclass(frozen=True, kw_only=True)
class Series(WindowOptions, Times):
    """One window, or a series."""

    @property
    def is_many(self) -> bool:
        """Whether the command requests a series, of any number of windows."""
        return self.every is not None

    def windows(self) -> list[Window]:
        """Build the windows, by time; raises `ConfigError`."""
        if self.every is not None:
            return self._series(self.every)
        if self.until is not None:
            raise ConfigError(
                f"--until {self.until} ends a series: also give --every SPAN, or omit --until"
            )
        if self.cutoff is None:
            raise ConfigError(
                "no --cutoff is given: give one, or a series with --every and --until"
            )
        since = None if self.since is None else moment(self.since, what="since")
        return [self.template().at(moment(self.cutoff, what="cutoff"), since)]

    def _series(self, every_text: str) -> list[Window]:
        if self.until is None:
            raise ConfigError(f"--every {every_text} has no end: also give --until TIME")
        template = self.template()
        every, until = as_span(every_text, what="every"), moment(self.until, what="until")
        if not every:
            raise ConfigError(f"--every {every_text} is zero: give a span such as PT1H or P1D")
        if self.since is not None:
            if self.cutoff is not None:
                raise ConfigError(
                    f"--cutoff {self.cutoff} conflicts with --since and --every, whose intervals end at --until: "
                    "omit --cutoff"
                )
            since = moment(self.since, what="since")
            starts = _intervals(since, until, every)
            return [template.at(start + every, start) for start in starts]
        if self.cutoff is None:
            raise ConfigError(
                f"--every {every_text} has no beginning: give --cutoff TIME, the first cutoff; or --since TIME, the start "
                "of the first interval"
            )
        return [
            template.at(cutoff)
            for cutoff in _cutoffs(moment(self.cutoff, what="cutoff"), until, every)
        ]


@dataclass(frozen=True, kw_only=True)
class Policies:
    """What a plan does about conflicts with other windows."""

    on_covered: Annotated[
        OnCovered,
        typer.Option(
            "--on-covered",
            rich_help_panel=OTHERS,
            help="What to do if other windows have taken all records. auto skips the window, with exit code 5.",
        ),
    ] = DEFAULT_POLICY.on_covered
    on_open_claim: Annotated[
        OnOpenClaim,
        typer.Option(
            "--on-open-claim",
            rich_help_panel=OTHERS,
            help="What to do if open windows may hold some of the records.",
        ),
    ] = DEFAULT_POLICY.on_open_claim
    claim_age: Annotated[
        str | None,
        typer.Option(
            "--claim-age",
            rich_help_panel=OTHERS,
            metavar="SPAN",
            help="With take_over: abandon planned windows that no attempt has touched for this long. "
            f"Default: {_span_text(DEFAULT_POLICY.claim_age)}.",
        ),
    ] = None
    claim_wait: Annotated[
        str | None,
        typer.Option(
            "--claim-wait",
            rich_help_panel=OTHERS,
            metavar="SPAN",
            help=f"With wait: give up after this long. Default: {_span_text(DEFAULT_POLICY.claim_wait)}.",
        ),
    ] = None
    on_foreign_commit: Annotated[
        OnForeignCommit,
        typer.Option(
            "--on-foreign-commit",
            rich_help_panel=OTHERS,
            help="What to do if another program moved the group's committed offset; adopt accepts it as progress.",
        ),
    ] = DEFAULT_POLICY.on_foreign_commit
    redefine: Annotated[
        bool,
        typer.Option(
            "--redefine",
            rich_help_panel=OTHERS,
            help="Change the group's mode, isolation and topics to those of this window.",
        ),
    ] = False
    allow_fewer: Annotated[
        bool,
        typer.Option(
            "--allow-fewer",
            rich_help_panel=OTHERS,
            help="Let a window replace its earlier output by one with fewer records, for example after retention.",
        ),
    ] = False

    def policy(self) -> Policy:
        """Return the policy; raise `ConfigError`."""
        age = self._span("--claim-age", self.claim_age, OnOpenClaim.TAKE_OVER)
        wait = self._span("--claim-wait", self.claim_wait, OnOpenClaim.WAIT)
        return Policy(
            self.on_covered,
            self.on_open_claim,
            DEFAULT_POLICY.claim_age if age is None else age,
            DEFAULT_POLICY.claim_wait if wait is None else wait,
            redefine=self.redefine,
            allow_fewer=self.allow_fewer,
            on_foreign_commit=self.on_foreign_commit,
        )

    def _span(self, option: str, text: str | None, needed: OnOpenClaim) -> timedelta | None:
        if text is not None and self.on_open_claim is not needed:
            raise ConfigError(
                f"{option} {text} needs --on-open-claim {needed}, which is {self.on_open_claim}: change "
                "one of them"
            )
        return optional_span(option, text)


def _cutoffs(first: datetime, until: datetime, every: timedelta) -> list[datetime]:
    """Return the cutoffs from the first one up to and including `until`."""
    if until < first:
        raise ConfigError(
            f"--until {_text(until)} is before --cutoff {_text(first)}: the series has no window"
        )
    return _steps(first, (until - first) // every + 1, every)


def _intervals(since: datetime, until: datetime, every: timedelta) -> list[datetime]:
    """Return the starts of intervals that exactly fill the time between `since` and `until`."""
    if until <= since:
        raise ConfigError(
            f"--until {_text(until)} is not after --since {_text(since)}: the series has no interval"
        )
    count, remainder = divmod(until - since, every)
    if remainder:
        raise ConfigError(
            f"from --since {_text(since)} to --until {_text(until)}, {_span_text(remainder)} remain after "
            f"{count:,} intervals of {_span_text(every)}: end at {_text(until - remainder)}, or choose another span"
        )
    return _steps(since, count, every)


def _steps(first: datetime, count: int, every: timedelta) -> list[datetime]:
    if count > WINDOWS_AT_ONCE_MAX:
        raise ConfigError(
            f"--every {_span_text(every)} gives {count:,} windows; one pass plans at most "
            f"{WINDOWS_AT_ONCE_MAX:,}: choose an earlier --until, and run the rest afterwards"
        )
    return [first + every * number for number in range(count)]


def _text(moment_: datetime) -> str:
    return time_text(time_ms(moment_, what="time"))
