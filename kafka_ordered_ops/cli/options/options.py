"""Groups of options that commands share: each group is a dataclass that builds one value from its options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from kafka_ordered_ops.cli.options import times
from kafka_ordered_ops.cli.options.help import CLUSTER, MESSAGES, RECORDS
from kafka_ordered_ops.cli.options.pairs import pairs_of
from kafka_ordered_ops.cli.options.profile import profile_option, use_profile
from kafka_ordered_ops.cli.options.times import moment
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import Isolation

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.window import Window
    from kafka_ordered_ops.windows import ClientSettings, OrderedWindows

WindowId = Annotated[
    str,
    typer.Argument(
        metavar="WINDOW_ID", help="Window id, as windows list shows it.", show_default=False
    ),
]

WindowIdOption = Annotated[
    str | None,
    typer.Option(
        "--window-id",
        metavar="ID",
        help="Window id. Default: made from group, topics and times, so the same command runs the same window.",
    ),
]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")]

Root = Annotated[
    str,
    typer.Argument(
        metavar="ROOT",
        help="The folder or prefix that windows were written to.",
        show_default=False,
    ),
]


def group_option(help_text: str) -> Any:
    """Return the option that names the consumer group."""
    return profile_option("-g", "--group", metavar="GROUP", help=help_text)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The connection to the cluster."""

    bootstrap: Annotated[
        str | None,
        profile_option(
            "-b",
            "--bootstrap-server",
            "--bootstrap",
            metavar="HOST:PORT",
            help="Kafka brokers, separated by commas.",
        ),
    ] = None
    profile: Annotated[
        str | None,
        profile_option(
            "--profile",
            metavar="NAME",
            is_eager=True,
            callback=use_profile,
            rich_help_panel=CLUSTER,
            help="Profile with defaults for these options, a table in profiles.toml. Default: 'default', if it exists.",
        ),
    ] = None
    config: Annotated[
        Path | None,
        profile_option(
            "--config",
            metavar="FILE",
            rich_help_panel=CLUSTER,
            help="File with client settings (.properties). Put secrets here.",
        ),
    ] = None
    setting: Annotated[
        list[str],
        typer.Option(
            "-X",
            metavar="KEY=VALUE",
            rich_help_panel=CLUSTER,
            help="A client setting (repeatable). Overrides --config.",
        ),
    ] = field(default_factory=list)
    allow_setting: Annotated[
        list[str],
        profile_option(
            "--allow-setting",
            metavar="KEY",
            rich_help_panel=CLUSTER,
            help="Accept a client setting outside the allow-list, at your own risk (repeatable).",
        ),
    ] = field(default_factory=list)
    ledger_topic: Annotated[
        str | None,
        profile_option(
            "--ledger-topic",
            metavar="TOPIC",
            rich_help_panel=CLUSTER,
            help="Topic that stores plans and progress. Default: __kafka_ordered_ops.",
        ),
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether the options name brokers, or may do so in a file."""
        return self.bootstrap is not None or self.config is not None or bool(self.setting)

    @property
    def ledger(self) -> str:
        """The topic that stores plans and progress."""
        from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC

        return self.ledger_topic or LEDGER_TOPIC

    def settings(self) -> ClientSettings:
        """Merge the client settings of the file, -X and -b; the later overrides the earlier."""
        from kafka_ordered_ops.windows import ClientSettings

        values = {} if self.config is None else _properties(self.config)
        values |= dict(pairs_of("-X", self.setting))
        if self.bootstrap is not None:
            values["bootstrap.servers"] = self.bootstrap
        if not values.get("bootstrap.servers"):
            raise ConfigError(
                "no brokers: give -b HOST:PORT, or set bootstrap.servers in --config FILE"
            )
        return ClientSettings.from_mapping(
            values, extra_allowed=self.allow_setting, option="--allow-setting"
        )

    def reported_settings(self, screen: Screen) -> ClientSettings:
        """Return the settings; the screen masks the secret ones, and reports those that were overridden."""
        settings = self.settings()
        screen.hide(settings.secret_values())
        if settings.memory_name is None:
            screen.brokers = settings.bootstrap_servers
        if settings.overridden:
            screen.say(
                f"settings that this package always sets itself: {', '.join(settings.overridden)}"
            )
        return settings


@dataclass(frozen=True, kw_only=True)
class Connection(Cluster):
    """A consumer group of a cluster."""

    group_id: Annotated[
        str,
        group_option("Consumer group that tracks the progress."),
    ]

    def open(self, screen: Screen) -> OrderedWindows:
        """Open the service, which reports to the screen; the caller closes it."""
        from kafka_ordered_ops.windows import OrderedWindows

        return OrderedWindows(
            self.reported_settings(screen),
            self.group_id,
            progress=screen.report,
            ledger_topic=self.ledger,
        )


#: The option ``--topic`` of commands that need one.
TopicNames: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "-t",
        "--topic",
        metavar="TOPIC",
        help="Topic name, or a pattern such as '^orders-.*' (repeatable).",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Topics:
    """The topics."""

    topic: TopicNames
    exclude: Annotated[
        list[str],
        typer.Option(
            "--exclude",
            metavar="TOPIC",
            rich_help_panel=RECORDS,
            help="Topic name or pattern to exclude (repeatable).",
        ),
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Cutoff(Topics):
    """The topics and the cutoff."""

    cutoff: Annotated[
        str,
        typer.Option(
            "--cutoff",
            metavar="TIME",
            help="Exclusive end, such as 2026-11-20T12:00:00Z, 2026-11-20, today or -1h.",
        ),
    ]


#: Which records of transactions are read.
ReadLevel: TypeAlias = Annotated[
    Isolation,
    typer.Option(
        "--isolation",
        rich_help_panel=RECORDS,
        help="Whether to read records of open and aborted transactions.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Looking:
    """How the logs are searched for records."""

    max_out_of_orderness: Annotated[
        str | None,
        typer.Option(
            "--max-out-of-orderness",
            rich_help_panel=RECORDS,
            metavar="SPAN",
            help="Search for out-of-order records up to cutoff + span, such as PT10M. Default: the whole log.",
        ),
    ] = None
    isolation: ReadLevel = Isolation.READ_COMMITTED

    @property
    def out_of_orderness(self) -> timedelta | None:
        """The maximum out-of-orderness; raises `ConfigError`."""
        return (
            None
            if self.max_out_of_orderness is None
            else as_span(self.max_out_of_orderness, what="maximum out-of-orderness")
        )


@dataclass(frozen=True, kw_only=True)
class Records(Looking, Cutoff):
    """The records of the topics up to the cutoff."""

    def window(self) -> Window:
        """Build the window; raises `ConfigError`."""
        from kafka_ordered_ops.core.window.window import Window

        return Window(
            self.topic,
            cutoff=moment(self.cutoff, what="cutoff"),
            max_out_of_orderness=self.out_of_orderness,
            isolation=self.isolation,
            exclude=self.exclude,
        )


@dataclass(frozen=True, kw_only=True)
class Reporting:
    """Output options. `Screen` reads them itself: it reports errors in the other options, too."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")] = False
    debug: Annotated[
        bool,
        typer.Option(
            "--debug",
            rich_help_panel=MESSAGES,
            help="Show full logs, and tracebacks of all errors.",
        ),
    ] = False


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn a function of `Screen` and option groups into one of single options, as typer needs it.

    Every parameter whose type is a group becomes the group's fields; the screen comes from the context;
    `Reporting` is added.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    plain = dict(inspect.signature(function).parameters)
    groups = {name: hints[name] for name in plain if dataclasses.is_dataclass(hints[name])}
    screens = [name for name in plain if hints[name] is Screen]
    own_parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in plain.items()
        if name not in groups and name not in screens
    ]
    options = [option for group in groups.values() for option in _options_of(group)]
    parameters = [
        _required("ctx", typer.Context),
        *options,
        *own_parameters,
        *_options_of(Reporting),
    ]

    @functools.wraps(function)
    def call(ctx: typer.Context, **values: Any) -> None:
        group_values = {
            name: group(
                **{
                    option_field.name: values.pop(option_field.name)
                    for option_field in dataclasses.fields(group)
                }
            )
            for name, group in groups.items()
        }
        for option_field in dataclasses.fields(Reporting):
            values.pop(option_field.name)
        times.begin()
        ctx.obj.show_logs()
        function(**dict.fromkeys(screens, ctx.obj), **group_values, **values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


@functools.cache
def _options_of(group: type[Any]) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    options = []
    for option_field in dataclasses.fields(group):
        option = _required(option_field.name, hints[option_field.name])
        if option_field.default is not dataclasses.MISSING:
            option = option.replace(default=option_field.default)
        elif option_field.default_factory is not dataclasses.MISSING:
            option = option.replace(default=option_field.default_factory())
        options.append(option)
    return options


def _required(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


def _properties(path: Path) -> dict[str, str]:
    from kafka_ordered_ops.kafka.properties import parse_properties

    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        # For a file that is not text, the error would show some bytes, perhaps of a secret.
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ConfigError(f"cannot read client settings from {path}: {reason}") from None
