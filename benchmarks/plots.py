"""Measurements as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.statistics import Results

_INK: Final = "#22252a"
_QUIET: Final = "#5b6068"
_OURS: Final = "#1f4e9c"
_THEIRS: Final = "#9aa0a6"
_WIDTH_INCHES: Final = 8.0
_BAR_INCHES: Final = 0.42
_MARGIN_INCHES: Final = 1.3
_LINES_INCHES: Final = 4.2
#: What the page shows, by comparison.
PICTURES: Final = {
    "window": "seconds and CPU seconds of each engine and of the connector",
    "ordered": "the same in order, and of the connector with orderBy",
    "hourly": "seconds and CPU seconds of the ways to 24 hourly windows",
    "planning": "seconds to plan and commit over the number of partitions",
    "tail": "seconds and CPU seconds of each reader of a log in order",
    "processing": "seconds over the number of keys, beside Parallel Consumer",
}

_COLOURS: Final = ("#55585c", "#1f4e9c", "#f2a33a", "#2a9d6f")


def draw_bars(results: Sequence[Results], path: Path, title: str, *, theirs: Sequence[str]) -> None:
    """Seconds of each contender, median with the least and greatest, and CPU seconds beside them."""
    shown = [one for one in results if one.seconds is not None]
    if not shown:
        return
    height = _MARGIN_INCHES + _BAR_INCHES * len(shown)
    with _figure(path, height, columns=2) as (left, right):
        names = [one.contender for one in shown]
        colours = [_THEIRS if name in theirs else _OURS for name in names]
        for axis, what, spreads in (
            (left, "seconds", [one.seconds for one in shown]),
            (right, "CPU seconds, all processes", [one.cpu_s for one in shown]),
        ):
            medians = [0.0 if one is None else one.median for one in spreads]
            around = [
                [0.0 if one is None else one.median - one.least for one in spreads],
                [0.0 if one is None else one.greatest - one.median for one in spreads],
            ]
            axis.barh(
                names, medians, xerr=around, color=colours, ecolor=_INK, capsize=3, height=0.6
            )
            axis.invert_yaxis()
            axis.set_xlabel(what, color=_QUIET)
        right.tick_params(labelleft=False)
        left.figure.suptitle(title, x=0.02, ha="left", size=11, weight="bold")


def draw_lines(
    results: Sequence[Results], path: Path, title: str, *, across: str, of_plan: bool = False
) -> None:
    """Seconds over sizes, one line for each contender; of planning and committing where `of_plan`."""
    from matplotlib.ticker import LogLocator

    names = list(dict.fromkeys(one.contender for one in results))
    with _figure(path, _LINES_INCHES) as (axis,):
        for name, colour in zip(names, _COLOURS, strict=False):
            mine = sorted(
                (one for one in results if one.contender == name), key=lambda one: one.size
            )
            spreads = [one.beyond_s("plan", "commit") if of_plan else one.seconds for one in mine]
            points = [
                (one.size, spread)
                for one, spread in zip(mine, spreads, strict=True)
                if spread is not None
            ]
            sizes = [size for size, _ in points]
            axis.errorbar(
                sizes,
                [spread.median for _, spread in points],
                yerr=[
                    [spread.median - spread.least for _, spread in points],
                    [spread.greatest - spread.median for _, spread in points],
                ],
                label=name,
                color=colour,
                marker="o",
                capsize=3,
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        every = sorted({one.size for one in results})
        axis.set_xticks(every, labels=[f"{size:,}" for size in every])
        axis.minorticks_off()
        # Decades alone would leave a narrow axis without any number.
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_xlabel(across, color=_QUIET)
        axis.set_ylabel("seconds", color=_QUIET)
        axis.legend(frameon=False)
        axis.figure.suptitle(title, x=0.02, ha="left", size=11, weight="bold")


@contextmanager
def _figure(path: Path, height_inches: float, *, columns: int = 1) -> Iterator[tuple[Any, ...]]:
    import matplotlib as mpl

    # Before pyplot: without a display it would look for one.
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    # The salt and the missing date: the same numbers make the same file.
    look: dict[Any, Any] = {
        "font.size": 9,
        "text.color": _INK,
        "axes.edgecolor": "#b0b4ba",
        "svg.hashsalt": "bench",
    }
    with plt.rc_context(look):
        figure, axes = plt.subplots(
            1,
            columns,
            figsize=(_WIDTH_INCHES, height_inches),
            layout="constrained",
            facecolor="white",
            squeeze=False,
        )
        for axis in axes[0]:
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(colors=_QUIET)
        yield tuple(axes[0])
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        plt.close(figure)
