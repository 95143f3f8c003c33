"""``clean``: remove what dead attempts have left below a root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafka_ordered_ops.cli.options.options import Cluster, Connection, command, group_option
from kafka_ordered_ops.cli.options.storage import Storage
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.arguments import as_span

if TYPE_CHECKING:
    from kafka_ordered_ops.output.leftovers import Left

CLEAN_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops clean s3://bucket/lake/orders --dry-run
  kafka-ordered-ops clean s3://bucket/lake/orders -b localhost:9092 -g hourly
  kafka-ordered-ops clean /lake/orders --older-than P30D --json"""

#: Longer than a written window may wait for its commit, and than a job may take.
_AGE: Final = "P7D"
#: With the ledger's word on open windows: longer than the replay of a window takes, which the ledger does not know.
_AGE_OF_GROUP: Final = "P1D"


@dataclass(frozen=True)
class _Choice:
    """Which stages go, and why the others stay."""

    dead: Sequence[Left]
    young: int
    held: int
    others: int


@command
def clean(
    screen: Screen,
    root: Annotated[
        str,
        typer.Argument(
            metavar="ROOT",
            help="The folder or prefix that windows were written to.",
            show_default=False,
        ),
    ],
    cluster: Cluster,
    storage: Storage,
    group_id: Annotated[
        str | None,
        group_option(
            "Remove this group's stages only, and none of a window that is not published."
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="SPAN",
            help=f"Remove what was last written longer ago than this. Default: {_AGE}, with a group {_AGE_OF_GROUP}.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")
    ] = False,
) -> None:
    """Remove what attempts have staged below ROOT and nobody will publish. Published files are not touched."""
    from kafka_ordered_ops.output.cleaning import leftovers

    span = older_than or (_AGE if group_id is None else _AGE_OF_GROUP)
    storage.hide_options(screen)
    before = datetime.now(UTC) - as_span(span, what="older than")
    stages = leftovers(root, storage.storage_options)
    removed = 0
    with screen.progress("looking at the stages"):
        # Stages first: an attempt that begins now is not among them.
        found = stages.found()
        held = frozenset[str]() if group_id is None else _held(screen, cluster, group_id)
        choice = _chosen(found, before, group_id, held)
        if not dry_run:
            screen.phase("removing", "attempts")
            for number, one in enumerate(choice.dead, start=1):
                removed += stages.remove(one)
                screen.report(number, len(choice.dead))
            if group_id is None:
                removed += stages.remove_probes(before)
    _report(screen, root, group_id, span, choice, removed=None if dry_run else removed)


def _held(screen: Screen, cluster: Cluster, group_id: str) -> frozenset[str]:
    """Return the windows whose stages may still be published, by the names of their stages."""
    from kafka_ordered_ops.core.types import WindowStatus
    from kafka_ordered_ops.core.window.window import safe_name

    connection = Connection(**vars(cluster), group_id=group_id)
    over = (WindowStatus.PUBLISHED, WindowStatus.ABANDONED)
    with connection.open(screen) as windows:
        found = windows.summaries()
    open_ = [one.window_id for one in found.windows if one.status not in over]
    return frozenset(map(safe_name, [*open_, *found.unreadable]))


def _chosen(
    found: Sequence[Left], before: datetime, group_id: str | None, held: frozenset[str]
) -> _Choice:
    mine = [one for one in found if group_id is None or one.group_id == group_id]
    free = [one for one in mine if one.window not in held]
    dead = [one for one in free if one.modified < before]
    return _Choice(dead, len(free) - len(dead), len(mine) - len(free), len(found) - len(mine))


def _report(
    screen: Screen,
    root: str,
    group_id: str | None,
    span: str,
    choice: _Choice,
    *,
    removed: int | None,
) -> None:
    if screen.as_json:
        screen.emit(
            {
                "root": root,
                "group": group_id,
                "older_than": span,
                "dry_run": removed is None,
                "stages": [one.to_json() for one in choice.dead],
                "removed": removed or 0,
                "kept": {
                    "younger": choice.young,
                    "not_published": choice.held,
                    "of_other_groups": choice.others,
                },
            }
        )
        return
    from kafka_ordered_ops.cli.show.tables import stages_table

    if choice.dead:
        screen.show(stages_table(choice.dead))
    files = sum(one.files for one in choice.dead)
    screen.say(
        f"{files:,} files of {len(choice.dead):,} attempts would be removed; nothing was removed"
        if removed is None
        else f"{removed:,} files of {len(choice.dead):,} attempts removed"
    )
    kept = {
        f"younger than {span}": choice.young,
        "of windows that are not published yet": choice.held,
        "of other groups": choice.others,
    }
    for why, count in kept.items():
        if count:
            screen.say(f"kept: {count:,} attempts {why}")
