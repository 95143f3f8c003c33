"""The windows that a command asks for, and its policies for conflicts with other windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafka_ordered_ops.cli.options.help import OTHERS, RECORDS, SERIES
from kafka_ordered_ops.cli.options.options import Cutoff, Looking, Topics
from kafka_ordered_ops.cli.options.times import bound, moment
from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import duration_text, time_ms, time_text
from kafka_ordered_ops.core.types import OnCovered, OnDataLoss, OnOpenClaim
from kafka_ordered_ops.core.window.policy import Policy

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.window import Window
    from kafka_ordered_ops.hosting.window_spec import WindowSpec

_DEFAULT: Final = Policy()

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
class Asked(Looking, Topics):
    """Everything about windows except their times."""

    starting_offsets: Annotated[
        str | None,
        typer.Option(
            "--starting-offsets",
            metavar="BOUND",
            help="Where a new group starts: earliest, latest, committed, a time, or a span before the cutoff such as -PT1H.",
        ),
    ] = None
    on_data_loss: Annotated[
        OnDataLoss,
        typer.Option(
            "--on-data-loss",
            rich_help_panel=RECORDS,
            help="What to do if retention has deleted records of the window, or records cannot be read.",
        ),
    ] = OnDataLoss.FAIL

    def spec(self, group_id: str, policies: Policies | None = None) -> WindowSpec:
        """Build everything but the times; raises `ConfigError`."""
        from kafka_ordered_ops.hosting.window_spec import WindowSpec

        policies = policies or Policies()
        return WindowSpec(
            topics=self.topic,
            group_id=group_id,
            starting_offsets=None
            if self.starting_offsets is None
            else bound(self.starting_offsets),
            max_out_of_orderness=self.out_of_orderness,
            isolation=self.isolation,
            exclude=self.exclude,
            on_data_loss=self.on_data_loss,
            on_open_claim=policies.on_open_claim,
            redefine=policies.redefine,
        )


@dataclass(frozen=True, kw_only=True)
class Question(Asked, Interval):
    """One window."""

    def window(self, spec: WindowSpec) -> Window:
        """Build the window; raises `ConfigError`."""
        since = None if self.since is None else moment(self.since, what="since")
        return spec.window(moment(self.cutoff, what="cutoff"), since)


@dataclass(frozen=True, kw_only=True)
class SweepQuestion(Asked, Cutoff):
    """The records outside all intervals."""

    def window(self, spec: WindowSpec) -> Window:
        """Build the window; raises `ConfigError`."""
        return replace(spec.window(moment(self.cutoff, what="cutoff"), None), sweep=True)


@dataclass(frozen=True, kw_only=True)
class Series(Asked, Times):
    """One window, or a series."""

    @property
    def is_many(self) -> bool:
        """Whether the command asks for a series, of any number of windows."""
        return self.every is not None

    def windows(self, spec: WindowSpec) -> list[Window]:
        """Build the windows, by time; raises `ConfigError`."""
        if self.every is not None:
            return self._series(spec, self.every)
        if self.until is not None:
            raise ConfigError(
                f"--until {self.until} ends a series: also give --every SPAN, or omit --until"
            )
        if self.cutoff is None:
            raise ConfigError(
                "no --cutoff is given: give one, or a series with --every and --until"
            )
        since = None if self.since is None else moment(self.since, what="since")
        return [spec.window(moment(self.cutoff, what="cutoff"), since)]

    def _series(self, spec: WindowSpec, every_text: str) -> list[Window]:
        if self.until is None:
            raise ConfigError(f"--every {every_text} has no end: also give --until TIME")
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
            return [spec.window(start + every, start) for start in starts]
        if self.cutoff is None:
            raise ConfigError(
                f"--every {every_text} has no beginning: give --cutoff TIME, the first cutoff; or --since TIME, the start "
                "of the first interval"
            )
        return [
            spec.window(cutoff, None)
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
            help="What to do if other windows have taken all records. auto skips them, with exit code 5.",
        ),
    ] = _DEFAULT.on_covered
    on_open_claim: Annotated[
        OnOpenClaim,
        typer.Option(
            "--on-open-claim",
            rich_help_panel=OTHERS,
            help="What to do if open windows may hold some of the records.",
        ),
    ] = _DEFAULT.on_open_claim
    claim_age: Annotated[
        str | None,
        typer.Option(
            "--claim-age",
            rich_help_panel=OTHERS,
            metavar="SPAN",
            help="With take_over: abandon planned windows that no attempt has touched for this long. "
            f"Default: {_span_text(_DEFAULT.claim_age)}.",
        ),
    ] = None
    claim_wait: Annotated[
        str | None,
        typer.Option(
            "--claim-wait",
            rich_help_panel=OTHERS,
            metavar="SPAN",
            help=f"With wait: give up after this long. Default: {_span_text(_DEFAULT.claim_wait)}.",
        ),
    ] = None
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

    def policy(self, spec: WindowSpec) -> Policy:
        """Return the policy; raise `ConfigError`."""
        return spec.policy(
            self.on_covered,
            self._span("--claim-age", self.claim_age, OnOpenClaim.TAKE_OVER),
            self._span("--claim-wait", self.claim_wait, OnOpenClaim.WAIT),
            allow_fewer=self.allow_fewer,
        )

    def _span(self, option: str, text: str | None, needed: OnOpenClaim) -> timedelta | None:
        if text is None:
            return None
        if self.on_open_claim is not needed:
            raise ConfigError(
                f"{option} {text} needs --on-open-claim {needed}, which is {self.on_open_claim}: change "
                "one of them"
            )
        return as_span(text, what=option.strip("-").replace("-", " "))


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
    count, rest = divmod(until - since, every)
    if rest:
        raise ConfigError(
            f"from --since {_text(since)} to --until {_text(until)}, {_span_text(rest)} remain after "
            f"{count:,} intervals of {_span_text(every)}: end at {_text(until - rest)}, or choose another span"
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
