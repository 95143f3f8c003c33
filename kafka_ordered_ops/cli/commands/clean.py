"""``clean``: remove the leftovers of dead attempts below a root."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafka_ordered_ops.cli.options.options import (
    Cluster,
    Connection,
    DryRun,
    Root,
    command,
    group_option,
)
from kafka_ordered_ops.cli.options.storage import Storage
from kafka_ordered_ops.cli.show.screen import Screen

if TYPE_CHECKING:
    from kafka_ordered_ops.output.roots.leftovers import Choice, Leftovers

CLEAN_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops clean s3://bucket/lake/orders --dry-run
  kafka-ordered-ops clean s3://bucket/lake/orders -b localhost:9092 -g hourly
  kafka-ordered-ops clean /lake/orders --older-than P30D --json"""

#: Longer than a job may take.
_AGE: Final = "P7D"
#: With the ledger, which knows the open windows: longer than a replay takes, which the ledger does not record.
_AGE_BY_LEDGER: Final = "P1D"


@command
def clean(
    screen: Screen,
    root: Root,
    cluster: Cluster,
    storage: Storage,
    group_id: Annotated[
        str | None,
        group_option("Remove this group's stages only."),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="SPAN",
            help=f"Remove stages last written longer ago than this. Default: {_AGE}, with brokers {_AGE_BY_LEDGER}.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Remove staged files below ROOT that no attempt will publish. Published files are not touched.

    With brokers, the ledger shows which complete stages are obsolete. Without brokers, a complete stage stays unless a newer
    output of its window is published.
    """
    from kafka_ordered_ops.output.cleaning import leftovers
    from kafka_ordered_ops.output.roots.leftovers import before

    span = older_than or (_AGE_BY_LEDGER if cluster.is_given else _AGE)
    storage.hide_options(screen)
    old = before(span, what="older than")
    stages = leftovers(root, storage.storage_options)
    removed = 0
    with screen.progress("checking stages"):
        choice = _chosen(screen, cluster, stages, old, group_id)
        if not dry_run:
            screen.phase("removing", "attempts")
            for number, attempt in enumerate(choice.dead, start=1):
                removed += stages.remove(attempt)
                screen.report(number, len(choice.dead))
            if group_id is None:
                removed += stages.remove_probes(old)
    _report(screen, root, group_id, span, choice, removed=None if dry_run else removed)


def _chosen(
    screen: Screen, cluster: Cluster, stages: Leftovers, old: datetime, group_id: str | None
) -> Choice:
    from kafka_ordered_ops.output.roots.leftovers import choose

    if not cluster.is_given and group_id is None:
        return choose(stages, old, group_id=group_id)
    # One connection looks up the windows of all groups, so any of their names will do.
    groups = [stage.group_id for stage in stages.found() if stage.group_id is not None]
    name = group_id or next(iter(groups), "clean")
    with Connection(**vars(cluster), group_id=name).open(screen) as windows:
        return choose(
            stages,
            old,
            ledger_id=windows.existing_ledger_id(),
            group_id=group_id,
            needed=windows.needed_outputs,
        )


def _report(
    screen: Screen,
    root: str,
    group_id: str | None,
    span: str,
    choice: Choice,
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
                "stages": [attempt.to_json() for attempt in choice.dead],
                "removed": removed or 0,
                "kept": {
                    "younger": choice.young,
                    "not_published": choice.needed,
                    "of_others": choice.others,
                },
            }
        )
        return
    from kafka_ordered_ops.cli.show.tables import stages_table

    if choice.dead:
        screen.show(stages_table(choice.dead))
    files = sum(attempt.files for attempt in choice.dead)
    screen.say(
        f"{files:,} files of {len(choice.dead):,} attempts would be removed; nothing was removed"
        if removed is None
        else f"{removed:,} files of {len(choice.dead):,} attempts removed"
    )
    counts = {
        f"younger than {span}": choice.young,
        "that are complete, and whose windows may still be published": choice.needed,
        "of other groups or ledgers": choice.others,
    }
    for reason, count in counts.items():
        if count:
            screen.say(f"kept: {count:,} attempts {reason}")
