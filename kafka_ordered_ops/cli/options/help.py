"""Help in sections: the most used options first, the others by topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

#: The sections after the first one; an option names its section as `rich_help_panel`.
CLUSTER: Final = "The cluster"
LISTENING: Final = "The server"
RECORDS: Final = "The records"
SERIES: Final = "Several windows"
OTHERS: Final = "Conflicts with other windows"
JOB: Final = "The job"
MESSAGES: Final = "Messages"

_ORDER: Final = (
    "Arguments",
    "Options",
    LISTENING,
    RECORDS,
    SERIES,
    JOB,
    OTHERS,
    CLUSTER,
    MESSAGES,
)


class _Sectioned(TyperCommand):
    """A command whose help has sections, as plain text: in rich's boxes a narrow terminal leaves no room."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        rows: dict[str, list[tuple[str, str]]] = {name: [] for name in _ORDER}
        for parameter in self.get_params(ctx):
            if (row := parameter.get_help_record(ctx)) is not None:
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                name = getattr(parameter, "rich_help_panel", None) or kind
                rows.setdefault(name, []).append(row)
        for name, entries in rows.items():
            if entries:
                with formatter.section(name):
                    formatter.write_dl(entries)


class _Group(TyperGroup):
    """A group whose flags need no conversion: newer versions of typer load pydantic for it, which is slow."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options before the command; those added by typer, such as completion, have no default."""
        parameters = super().get_params(ctx)
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.default is None:
                parameter.default = False
        return parameters


class Commands(typer.Typer):
    """Commands with plain help in sections."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            cls=_Group,
            no_args_is_help=True,
            rich_markup_mode=None,
            # Its tracebacks show the values of variables, which may be passwords.
            pretty_exceptions_enable=False,
            **options,
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Add a command; see `typer.Typer.command`."""
        return super().command(name, **{"cls": _Sectioned, **options})
