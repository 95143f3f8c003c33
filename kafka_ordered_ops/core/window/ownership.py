"""Who owns a published output, and who may replace it: one rule for folders, HDFS, object stores and tables.

Published output is replaced only by an attempt of the same claim, or by a claim whose window lists the published claim
as an earlier one of its own. Output of another ledger, group or window is never changed.
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
    """The window that is to replace a published output."""

    ledger_id: str
    group_id: str
    window_id: str
    #: Claims whose output the window may replace: its current claim, and earlier ones.
    claims: Collection[str]


def check_may_replace(
    publisher: Publisher, published: OutputOwner, place: str, *, remedy: str = "move it away"
) -> None:
    """Raise `OutputOwnedError` unless the output at `place` is an earlier output of the publisher's own window.

    `remedy` is the advice for an output that is not needed.
    """
    window_key = (publisher.ledger_id, publisher.group_id, publisher.window_id)
    if (
        window_key == (published.ledger_id, published.group_id, published.window_id)
        and published.claim_id in publisher.claims
    ):
        return
    raise OutputOwnedError(
        f"{place} holds window {published.window_id} {_difference(publisher, published)}, and window {publisher.window_id} of group "
        f"{publisher.group_id} would replace it. Nothing was changed. Write to another output, give the window another id, or, "
        f"if the existing output is not needed, {remedy}",
        ledger_id=published.ledger_id,
        group_id=published.group_id,
        window_id=publisher.window_id,
    )


def check_newest(attempt: OutputOwner, published: OutputOwner, place: str) -> None:
    """Raise `WindowSupersededError` for an attempt that is older than the published attempt of its claim."""
    if published.claim_id == attempt.claim_id and published.attempt > attempt.attempt:
        raise WindowSupersededError(
            f"attempt {attempt.attempt} of window {attempt.window_id} comes too late: {place} holds "
            f"attempt {published.attempt} of the same claim {attempt.claim_id}. There is nothing to do",
            window_id=attempt.window_id,
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
    own_ledger = f"ledger {ledger_id}" if ledger_id else "a ledger that does not exist yet"
    raise OutputOwnedError(
        f"the windows below {root} belong to ledger {owner} (cluster/topic id), and these are of {own_ledger}: another cluster, "
        "another ledger topic, or one that was deleted and created again. Nothing was changed. Write to another root; "
        "or, if this ledger takes over from that one, run `windows adopt-output` once: published output stays, and "
        "its windows are never replaced; or, if the windows are not needed, move the root away with the folder .koo beside it",
        ledger_id=owner,
        group_id=None,
    )


def fewer_error(window_id: str, group_id: str, why: str) -> FewerRecordsError:
    """Return the error for a window whose new output would have fewer records than the published one."""
    return FewerRecordsError(
        f"window {window_id} of group {group_id} would replace its earlier output by one with fewer records: {why}. Nothing "
        "was changed, and readers keep what they see. To replace it nevertheless, run the window with allow_fewer=True "
        "(--allow-fewer); to deliver only the open records, give the window another id",
        window_id=window_id,
    )


def _difference(publisher: Publisher, published: OutputOwner) -> str:
    if published.ledger_id != publisher.ledger_id:
        return f"of group {published.group_id} in ledger {published.ledger_id or 'unknown'}, this window is of ledger {publisher.ledger_id}"
    if published.group_id != publisher.group_id:
        return f"of group {published.group_id}"
    if published.window_id != publisher.window_id:
        return "(it was copied or renamed by hand)"
    return (
        f"as delivered by claim {published.claim_id}, which is not an earlier claim of this window in the ledger (the "
        "ledger has lost the window, or another program wrote the marker)"
    )
