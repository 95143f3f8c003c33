"""Whose a published output is, and who may replace it: one rule for folders, HDFS, object stores and tables.

What readers see is replaced only by an attempt of the same claim, or by a claim whose window names the shown claim as
an earlier one of its own. Output of another ledger, group or window stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kafka_ordered_ops.core.errors import (
    FewerRecordsError,
    OutputOwnedError,
    WindowSupersededError,
)


@dataclass(frozen=True, slots=True)
class OutputOwner:
    """The attempt that an output belongs to."""

    #: The cluster's id and the ledger topic's id, as ``cluster/topic``.
    ledger_id: str
    group_id: str
    window_id: str
    claim_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Publisher:
    """Who asks to replace what readers see."""

    ledger_id: str
    group_id: str
    window_id: str
    #: Claims of the window whose output it may replace: its own, and earlier ones.
    claims: Collection[str]


def check_may_replace(
    mine: Publisher, shown: OutputOwner, place: str, *, remedy: str = "move it away"
) -> None:
    """Raise `OutputOwnedError` unless what `place` shows is an earlier output of the publisher's own window.

    `remedy` says what to do with it if nobody needs it.
    """
    wanted = (mine.ledger_id, mine.group_id, mine.window_id)
    if (
        wanted == (shown.ledger_id, shown.group_id, shown.window_id)
        and shown.claim_id in mine.claims
    ):
        return
    raise OutputOwnedError(
        f"{place} holds window {shown.window_id} {_difference(mine, shown)}, and window {mine.window_id} of group "
        f"{mine.group_id} would replace it. Nothing was changed. Write to another output, give the window another id, or, "
        f"if what is there is not needed, {remedy}",
        ledger_id=shown.ledger_id,
        group_id=shown.group_id,
        window_id=mine.window_id,
    )


def check_newest(mine: OutputOwner, shown: OutputOwner, place: str) -> None:
    """Raise `WindowSupersededError` for an attempt that is older than the shown one of its claim."""
    if shown.claim_id == mine.claim_id and shown.attempt > mine.attempt:
        raise WindowSupersededError(
            f"attempt {mine.attempt} of window {mine.window_id} comes too late: {place} holds "
            f"attempt {shown.attempt} of the same claim {mine.claim_id}. There is nothing to do",
            window_id=mine.window_id,
        )


def check_root_owner(ledger_id: str, owner: str, root: str) -> None:
    """Raise `OutputOwnedError` for a root that belongs to another ledger.

    Args:
        ledger_id: the ledger of the windows to be published; empty: it does not exist yet.
        owner: the ledger that the root belongs to.
        root: the root, for the message.
    """
    if owner == ledger_id:
        return
    mine = f"ledger {ledger_id}" if ledger_id else "a ledger that does not exist yet"
    raise OutputOwnedError(
        f"the windows below {root} belong to ledger {owner} (cluster/topic id), and these are of {mine}: another cluster, "
        "another ledger topic, or one that was deleted and created again. Nothing was changed. Write to another root; "
        "or, if this ledger takes over from that one, run `windows adopt-output` once: what is published stays, and "
        "its windows are never replaced; or, if the windows are not needed, move the root away with the folder .koo beside it",
        ledger_id=owner,
        group_id=None,
    )


def fewer_error(window_id: str, group_id: str, why: str) -> FewerRecordsError:
    """Return the error of a window whose new output would hold less than readers see."""
    return FewerRecordsError(
        f"window {window_id} of group {group_id} would replace its earlier output by one with fewer records: {why}. Nothing "
        "was changed, and readers keep what they see. To replace it nevertheless, run the window with allow_fewer=True "
        "(--allow-fewer); to deliver only what is open, give the window another id",
        window_id=window_id,
    )


def _difference(mine: Publisher, shown: OutputOwner) -> str:
    if shown.ledger_id != mine.ledger_id:
        return f"of group {shown.group_id} in ledger {shown.ledger_id or 'unknown'}, this window is of ledger {mine.ledger_id}"
    if shown.group_id != mine.group_id:
        return f"of group {shown.group_id}"
    if shown.window_id != mine.window_id:
        return "(it was copied or renamed by hand)"
    return (
        f"as claim {shown.claim_id} delivered it, which the ledger does not name as an earlier claim of this window (it "
        "has lost the window, or another program wrote the marker)"
    )
