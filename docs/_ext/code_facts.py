"""Directives that take their facts from the code, so that a page cannot fall behind it.

`error-tree` and `error-class`: the tree of `core.errors`, and one class of it; a class that no page describes, and a
description of a class that is gone, are warnings, and a warning fails the build. `client-settings`: the keys
of one list of `kafka.settings`. `cli-options`: the options of one command.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from kafka_ordered_ops.core import errors
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.kafka import known_settings, settings

_log = logging.getLogger(__name__)

_KEPT = "code_facts_errors"

#: What of a help text is to be typed as it stands: options, and what is quoted.
_LITERAL = re.compile(r"--[a-z-]+|'[^']*'|[a-z_]+=<id>/")


def error_classes() -> dict[str, type[KafkaOrderedOpsError]]:
    """Every error class of the package, by name, in the order of its file."""
    return {
        name: one
        for name, one in vars(errors).items()
        if inspect.isclass(one) and issubclass(one, KafkaOrderedOpsError)
    }


def fields_of(kind: type[KafkaOrderedOpsError]) -> list[str]:
    """The facts that a class declares, its parents' first."""
    return [
        name
        for one in reversed(kind.__mro__)
        if issubclass(one, KafkaOrderedOpsError) and one is not KafkaOrderedOpsError
        for name in one.__annotations__
    ]


class _Directive(SphinxDirective):
    def parsed(self, lines: list[str]) -> list[nodes.Node]:
        """The nodes of some lines of Markdown."""
        return self.parse_text_to_nodes(StringList(lines, source="code_facts"))

    def table(
        self, heads: list[str], rows: list[list[str]], widths: str
    ) -> list[nodes.Node]:
        """A table of Markdown cells."""
        lines = [":::{list-table}", ":header-rows: 1", f":widths: {widths}", ""]
        for row in [heads, *rows]:
            for n, cell in enumerate(row):
                lines.append(f"{'* -' if n == 0 else '  -'} {cell}")
        return self.parsed([*lines, ":::"])


class ErrorTree(_Directive):
    """The whole tree, with a link to each class; a retriable one is marked."""

    def run(self) -> list[nodes.Node]:
        """The nodes."""
        return self.parsed(list(self._lines(KafkaOrderedOpsError, 0)))

    def _lines(self, kind: type[KafkaOrderedOpsError], depth: int) -> Iterator[str]:
        mark = " (retriable)" if kind.retriable else ""
        name = kind.__name__
        yield f"{'  ' * depth}- [`{name}`](#{name.lower()}){mark}"
        for child in error_classes().values():
            if child.__bases__[0] is kind:
                yield from self._lines(child, depth + 1)


class Error(_Directive):
    """One class: a heading's worth of facts from the code; the text below it is by hand."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The nodes."""
        name = self.arguments[0]
        kind = error_classes().get(name)
        if kind is None:
            raise self.error(f"there is no error class {name} in core/errors")
        described = self.env.__dict__.setdefault(_KEPT, {})
        if name in described:
            raise self.error(f"{name} is described twice")
        described[name] = self.env.docname
        fields = ", ".join(f"`{field}`" for field in fields_of(kind)) or "none"
        parent = kind.__bases__[0].__name__
        facts = "Retriable" if kind.retriable else "Not retriable"
        below = f" A `{parent}`." if parent != "Exception" else ""
        also = " Also a `ValueError`." if kind.__bases__[1:] == (ValueError,) else ""
        meaning = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("``", "`")
        lines = [
            "::::{container} error-facts",
            f"{facts}. Fields: {fields}.{below}{also}",
            "::::",
        ]
        return self.parsed([*lines, "", f"{meaning}"])


class ClientSettings(_Directive):
    """The keys of one list, as `run` names them."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The nodes."""
        kind = self.arguments[0]
        if kind == "forced":
            return self._values(
                ("every client", settings.FORCED_COMMON),
                ("consumers", settings.FORCED_CONSUMER),
                ("producers", settings.FORCED_PRODUCER),
            )
        if kind == "default":
            return self._values(
                ("every client", settings._DEFAULTS_COMMON),
                ("consumers", settings._DEFAULTS_CONSUMER),
            )
        keys = {
            "per-call": settings._FORCED_PER_CALL,
            "allowed-common": known_settings.ALLOWED_COMMON,
            "allowed-consumer": known_settings.ALLOWED_CONSUMER,
            "allowed-producer": known_settings.ALLOWED_PRODUCER,
        }[kind]
        shown = [
            f"- `{key}`" + (" (secret)" if settings.is_secret(key) else "")
            for key in sorted(keys)
        ]
        return self.parsed(["::::{container} key-list", "", *shown, "", "::::"])

    def _values(self, *groups: tuple[str, Any]) -> list[nodes.Node]:
        rows = [
            [f"`{key}`", f"`{value}`", who]
            for who, values in groups
            for key, value in sorted(values.items())
        ]
        return self.table(["key", "value", "of"], rows, "50 25 25")


class CliOptions(_Directive):
    """The options of one command, named by its words; with ``but``, without those of other tables."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = False
    option_spec: ClassVar[dict[str, Any]] = {
        "but": directives.unchanged,
        "only": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """The nodes."""
        import typer

        from kafka_ordered_ops.cli.app import app

        command: Any = typer.main.get_command(app)
        for word in (self.arguments[0] if self.arguments else "").split():
            command = command.commands[word]
        context = typer.Context(command)
        skipped = self.options.get("but", "").split()
        only = self.options.get("only", "").split()
        if unknown := {*skipped, *only} - {one.name for one in command.params}:
            raise self.error(f"no such options: {', '.join(sorted(unknown))}")
        rows = []
        for one in command.params:
            if one.name in skipped or (only and one.name not in only):
                continue
            record = one.get_help_record(context)
            if record is None or one.name == "help":
                continue
            usage, text = record
            rows.append([f"`{usage}`", _LITERAL.sub(r"`\g<0>`", text) or "&nbsp;"])
        return self.table(["option", "meaning"], rows, "40 60")


def _forget(_app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    kept = env.__dict__.setdefault(_KEPT, {})
    for name in [name for name, where in kept.items() if where == docname]:
        del kept[name]


def _check_all(_app: Sphinx, env: BuildEnvironment) -> None:
    for name in error_classes().keys() - env.__dict__.get(_KEPT, {}).keys():
        _log.warning("no page describes the error %s: add it to errors.md", name)


def setup(app: Sphinx) -> dict[str, Any]:
    """Tells Sphinx."""
    app.add_directive("error-tree", ErrorTree)
    app.add_directive("error-class", Error)
    app.add_directive("client-settings", ClientSettings)
    app.add_directive("cli-options", CliOptions)
    app.connect("env-purge-doc", _forget)
    app.connect("env-check-consistency", _check_all)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
