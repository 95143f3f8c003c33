"""A ledger's groups and windows as one page of HTML, without a server: what is held comes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from kafka_ordered_ops.cli.show.tables import age_text
from kafka_ordered_ops.core.group.summaries import WindowSummary
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.windows.queries.groups import GroupLook

#: Windows of each group on the page: those that readers do not have, and the newest.
_WINDOWS_MAX: Final = 200

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8886; --held: #c2410c; --done: #15803d; --open: #b45309 }
@media (prefers-color-scheme: dark) { :root { --held: #fb923c; --done: #4ade80; --open: #fbbf24 } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2.2rem; overflow-wrap: anywhere }
div.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top; white-space: nowrap }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums } td.id { font: .8em ui-monospace, monospace }
.held { color: var(--held); font-weight: 600 } .done { color: var(--done) } .open { color: var(--open); font-weight: 600 }
svg { display: block; width: 100%; height: 34px } p.note { opacity: .75 }
"""


def report_html(
    groups: Sequence[GroupLook], *, cluster: str, ledger_topic: str, now_ms: int
) -> str:
    """Return the page.

    Args:
        groups: the groups of the ledger, with their offsets.
        cluster: the brokers' addresses.
        ledger_topic: the topic that stores plans and progress.
        now_ms: the time of the report.
    """
    ordered = sorted(groups, key=lambda group: (-_urgency(group), group.group_id))
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>Windows of {escape(ledger_topic)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Windows of {escape(ledger_topic)}</h1>",
        f"<p class='note'>{escape(cluster)}, {time_text(now_ms // 1000 * 1000)}</p>",
        *_overview(ordered, now_ms),
        *(
            text
            for number, group in enumerate(ordered)
            for text in _group(group, f"g{number}", now_ms)
        ),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _urgency(group: GroupLook) -> int:
    if group.state is None:
        return 3
    return 2 if group.state.unpublished else 1 if group.state.open else 0


def _state(group: GroupLook) -> str:
    if group.state is None:
        return "<span class='held'>cannot be read</span>"
    found = []
    if unpublished := len(group.state.unpublished):
        found.append(f"<span class='held'>{unpublished:,} not visible</span>")
    if opened := len(group.state.open):
        found.append(f"<span class='open'>{opened:,} open</span>")
    return ", ".join(found) or "<span class='done'>all delivered</span>"


def _overview(groups: Sequence[GroupLook], now_ms: int) -> Iterator[str]:
    names = ("group", "state", ">held offsets", ">untouched for", ">lag, offsets", ">last cutoff")
    rows = []
    for number, group in enumerate(groups):
        opened = [one for one in group.windows if one.status.is_open]
        done = [one.cutoff_ms for one in group.windows if one.status.is_done]
        touched = min((one.touched_at_ms for one in opened), default=None)
        rows.append(
            [
                f"<a href='#g{number}'>{escape(group.group_id)}</a>",
                _state(group),
                f"{sum(one.offsets for one in opened):,}" if opened else "",
                "" if touched is None else age_text((now_ms - touched) / 1000),
                "" if group.offsets is None else f"{group.offsets.lag:,}",
                f"{age_text((now_ms - max(done)) / 1000)} ago" if done else "",
            ]
        )
    yield from _table(names, rows) if rows else ["<p>This ledger has no groups.</p>"]


def _group(group: GroupLook, anchor: str, now_ms: int) -> Iterator[str]:
    yield f"<h2 id='{anchor}'>{escape(group.group_id)}</h2>"
    if group.error is not None:
        yield f"<p class='held'>{escape(group.error.message)}</p>"
        return
    unpublished = set() if group.state is None else set(group.state.unpublished)
    left = [one for one in group.windows if one.status.is_open or one.window_id in unpublished]
    others = [one for one in group.windows if one not in left]
    shown = [*left, *reversed(others)][:_WINDOWS_MAX]
    yield _timeline(group.windows[-_WINDOWS_MAX:], unpublished)
    names = (
        "window",
        "state",
        "from",
        "up to",
        ">offsets",
        ">records",
        ">attempt",
        ">committed after",
    )
    yield from _table(names, [_row(one, one.window_id in unpublished, now_ms) for one in shown])
    if (more := len(group.windows) - len(shown)) > 0:
        yield f"<p class='note'>and {more:,} older windows</p>"


def _row(window: WindowSummary, is_unpublished: bool, now_ms: int) -> list[str]:
    word = "not visible" if is_unpublished else window.status.value
    if window.status.is_open:
        word += f", untouched for {age_text((now_ms - window.touched_at_ms) / 1000)}"
    committed_ms = window.committed_at_ms
    return [
        escape(window.window_id),
        f"<span class='{_class(window, is_unpublished)}'>{word}</span>",
        "" if window.since_ms is None else time_text(window.since_ms),
        time_text(window.cutoff_ms),
        f"{window.offsets:,}",
        "" if window.records is None else f"{window.records:,}",
        str(window.attempt),
        "" if committed_ms is None else age_text((committed_ms - window.cutoff_ms) / 1000),
    ]


def _class(window: WindowSummary, is_unpublished: bool) -> str:
    return "held" if is_unpublished else "open" if window.status.is_open else "done"


def _timeline(windows: Sequence[WindowSummary], unpublished: set[str]) -> str:
    """Return a drawing: a bar for each window at its cutoff, as high as it has offsets, in the colour of its state."""
    if not windows:
        return ""
    first, last = windows[0].cutoff_ms, windows[-1].cutoff_ms
    most = max(one.offsets for one in windows) or 1
    width = max(2.0, min(12.0, 900 / len(windows)))
    bars = []
    for one in windows:
        x = (1000 - width) * ((one.cutoff_ms - first) / (last - first) if last > first else 0.5)
        height = 4 + 28 * one.offsets / most
        title = f"{one.window_id}: {one.status.value}, {one.offsets:,} offsets"
        bars.append(
            f"<rect x='{x:.1f}' y='{34 - height:.1f}' width='{width:.1f}' height='{height:.1f}' fill='currentColor' "
            f"class='{_class(one, one.window_id in unpublished)}'><title>{escape(title)}</title></rect>"
        )
    label = f"offsets of {len(windows):,} windows, from {time_text(first)} to {time_text(last)}"
    return (
        f"<svg viewBox='0 0 1000 34' preserveAspectRatio='none' role='img' aria-label='{label}'>{''.join(bars)}</svg>"
        f"<p class='note'>{label}</p>"
    )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table; a name that begins with ``>`` is of numbers. Cells are HTML."""
    kinds = ["n" if name.startswith(">") else "id" if name == "window" else "" for name in names]
    head = "".join(
        f"<th class='{kind}'>{name.lstrip('>')}</th>"
        for kind, name in zip(kinds, names, strict=True)
    )
    yield f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>"
    for row in rows:
        cells = (f"<td class='{kind}'>{cell}</td>" for kind, cell in zip(kinds, row, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"
