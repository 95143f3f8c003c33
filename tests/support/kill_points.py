"""Runs the command line, and kills it where a test asks for it: ``python -m tests.support.kill_points POINT ...``.

A crash cannot be tried in any other way: at the point the process kills itself with SIGKILL, so that no handler,
no ``finally`` and no buffer softens it, exactly as the kernel's out-of-memory killer would. The product knows
nothing of it: its steps are wrapped here.
"""

from __future__ import annotations

from enum import StrEnum


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
