"""The demo's report: a table of the windows, and the checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from kafka_ordered_ops.cli.demo.check import Attempt, Finding
from kafka_ordered_ops.cli.demo.output import Published
from kafka_ordered_ops.cli.demo.story import Story
from kafka_ordered_ops.core.times import time_text


@dataclass(frozen=True, slots=True)
class WindowRow:
    """One line of the table."""

    window_id: str
    cutoff: str
    status: str
    records: int
    out_of_order: int
    late: int
    attempts: int
    #: Of the call that did the work: plan, Spark job, commit and publish.
    seconds: float
    note: str

    @property
    def records_per_second(self) -> float:
        """The pace of that call."""
        return self.records / self.seconds if self.seconds else 0.0


def window_rows(
    story: Story, published: Published, attempts: Sequence[Attempt], seconds: dict[str, float]
) -> list[WindowRow]:
    """Return the table's lines; counts are those of the published files."""
    window, count = published.int64("window"), len(story.steps)
    records = np.bincount(window, minlength=count)
    out_of_order = np.bincount(window[published.out_of_order(story)], minlength=count)
    late = np.bincount(window[published.bools("late")], minlength=count)
    last = {attempt.window_id: attempt for attempt in attempts}
    return [
        WindowRow(
            window_id=step.window_id,
            cutoff=time_text(step.cutoff_ms),
            status=last[step.window_id].status,
            records=int(records[n]),
            out_of_order=int(out_of_order[n]),
            late=int(late[n]),
            attempts=last[step.window_id].attempt,
            seconds=seconds[step.window_id],
            note=step.twist.value,
        )
        for n, step in enumerate(story.steps)
    ]


def window_table(rows: Sequence[WindowRow]) -> Table:
    """Return the windows as a table for people."""
    table = Table(
        title="Windows of one group over one topic",
        caption="out of order: written after a record stamped at or after the cutoff; late: written after the "
        "window of their time had been planned",
    )
    table.add_column("window")
    table.add_column("cutoff")
    table.add_column("status")
    for name in ("records", "out of order", "late", "attempts", "seconds", "records/s"):
        table.add_column(name, justify="right")
    table.add_column("note")
    for row in rows:
        table.add_row(
            row.window_id,
            # All are midnights: without their zeros the table fits 120 columns.
            row.cutoff.partition("T")[0],
            row.status,
            f"{row.records:,}",
            f"{row.out_of_order:,}",
            f"{row.late:,}",
            str(row.attempts),
            f"{row.seconds:.1f}",
            f"{row.records_per_second:,.0f}",
            row.note,
        )
    numbers = [
        sum(row.records for row in rows),
        sum(r.out_of_order for r in rows),
        sum(r.late for r in rows),
    ]
    table.add_section()
    table.add_row("all", "", "", *(f"{number:,}" for number in numbers))
    return table


def finding_lines(findings: Sequence[Finding]) -> list[Text]:
    """Return the checks, one line each."""
    return [
        Text.assemble(
            ("  ok  ", "green") if finding.holds else (" FAILED ", "bold red"),
            f" {finding.what}: {finding.detail}",
        )
        for finding in findings
    ]


def as_json(rows: Sequence[WindowRow], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the report as JSON."""
    return {
        "windows": [asdict(row) for row in rows],
        "checks": [asdict(finding) for finding in findings],
        "holds": all(finding.holds for finding in findings),
    }
