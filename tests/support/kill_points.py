"""Runs the command line, and kills it where a test asks for it: ``python -m tests.support.kill_points POINT ...``.

A crash cannot be tried in any other way: at the point the process kills itself with SIGKILL, so that no handler,
no ``finally`` and no buffer softens it, exactly as the kernel's out-of-memory killer would. The product knows
nothing of it: its steps are wrapped here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from kafka_ordered_ops import WindowPlan, cli
from kafka_ordered_ops.cli.options.sink import Sink
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.windows import OrderedWindows, Staged


class KillPoint(StrEnum):
    """Between any two steps of a window's way."""

    #: The plan is in the ledger, nothing is read.
    AFTER_PLAN = "after_plan"
    #: Some records are read, and some may be written.
    IN_READ = "in_read"
    #: The stage is complete, and the ledger does not know it.
    AFTER_WRITE = "after_write"
    #: The ledger knows the stage, and the group's progress has not moved.
    BEFORE_COMMIT = "before_commit"
    #: The progress has moved, and nobody sees the output.
    BEFORE_PUBLISH = "before_publish"


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _wrap(
    owner: type,
    name: str,
    *,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Has a method do something else as well."""
    method = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        before()
        result = method(*args, **kwargs)
        after()
        return result

    setattr(owner, name, call)


def _wrap_writing(point: KillPoint) -> None:
    """The writer that a sink hands out, and what it reports of its reading."""
    writer = Sink.writer

    def killed(self: Sink, *args: Any) -> Any:
        write = writer(self, *args)

        def call(plans: Any) -> Any:
            if point is KillPoint.IN_READ:
                # Only now: planning reports how far it is by the same method.
                _wrap(Screen, "report", before=_kill)
            staged = write(plans)
            _kill()
            return staged

        return call

    Sink.writer = killed  # type: ignore[method-assign, assignment]


def _mark_written_and_die(
    windows: OrderedWindows, plans: Sequence[WindowPlan], staged: Sequence[Staged] | None = None
) -> list[WindowPlan]:
    """Leaves what a commit that is refused leaves."""
    windows.mark_written_many(plans, [one.to_json() for one in staged or ()])
    _kill()
    return []


def main() -> int:
    """Takes the point from the arguments; what follows is the command."""
    point = KillPoint(sys.argv[1])
    match point:
        case KillPoint.AFTER_PLAN:
            _wrap(OrderedWindows, "plan_many", after=_kill)
        case KillPoint.IN_READ | KillPoint.AFTER_WRITE:
            _wrap_writing(point)
        case KillPoint.BEFORE_COMMIT:
            OrderedWindows.commit_many = _mark_written_and_die  # type: ignore[method-assign, assignment]
        case KillPoint.BEFORE_PUBLISH:
            _wrap(OrderedWindows, "publish_many", before=_kill)
    return cli.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
