"""The only console for terminals: rich's, with control characters of shown text escaped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from kafka_ordered_ops.cli.show.printable import printable


class SafeConsole(Console):
    """Shows text with escaped control characters; rich's own codes are separate from text."""

    def __init__(self, **options: Any) -> None:
        # Without markup: brackets in values are not colours.
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the text, escaped before it is measured."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable."""
        if isinstance(renderable, Text):
            # Before its lines are wrapped to a width.
            renderable = _printable_text(renderable)
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)


def _printable_text(text: Text) -> Text:
    if printable(text.plain) == text.plain:
        return text
    result = text.blank_copy()
    edges = sorted({edge for span in text.spans for edge in (span.start, span.end)})
    for piece in text.divide(edges):
        safe_piece = Text(printable(piece.plain))
        for span in piece.spans:
            safe_piece.stylize(span.style)
        result.append_text(safe_piece)
    return result
