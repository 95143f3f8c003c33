"""The one way to a terminal: a console of rich that shows no control character of others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from kafka_ordered_ops.cli.show.printable import printable


class SafeConsole(Console):
    """Shows text of others as it is, without what a terminal would obey; rich's own codes are apart from text."""

    def __init__(self, **options: Any) -> None:
        # Without markup: values may have brackets, which are not colours.
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text, escaped before it is measured."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the pieces of whatever is shown."""
        if isinstance(renderable, Text):
            # Before its lines are cut to a width.
            renderable = _printable_text(renderable)
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def _printable_text(text: Text) -> Text:
    if printable(text.plain) == text.plain:
        return text
    shown = text.blank_copy()
    edges = sorted({edge for span in text.spans for edge in (span.start, span.end)})
    for piece in text.divide(edges):
        one = Text(printable(piece.plain))
        for span in piece.spans:
            one.stylize(span.style)
        shown.append_text(one)
    return shown
