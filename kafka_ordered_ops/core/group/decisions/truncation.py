"""Whether a log is still the one that a group has worked on: a node that loses power can lose the end of a log.

There are two signs. A log that ends below its known end was cut. A cut log may also be filled again. Then only the
leaders' epochs show it: a log loses its end with its leader, and under one leader it only grows. If the epoch is
still the one under which the group last read, nothing was cut. Otherwise the broker reports the end of that epoch's
log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka_ordered_ops.core.cluster.cluster_facts import LogClaim, LogEnd
from kafka_ordered_ops.core.errors import LogTruncatedError
from kafka_ordered_ops.core.group.group_state import Claims, GroupView, PartitionState
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan

#: For each partition the epoch of the leader under which it was read, and its known end.
KnownLogs = Mapping[TopicPartition, tuple[int | None, int]]


def known_end(view: GroupView, claims: Claims, tp: TopicPartition, known: PartitionState) -> int:
    """Return the offset up to which a group has done, claimed, decided or read a log."""
    time_map = view.time_map(tp)
    return max(
        known.done.end if known.done else 0,
        known.late.end,
        time_map.covered.end if time_map else 0,
        *(part.decided_end for part, _ in claims.by_partition.get(tp, ())),
    )


def known_logs(view: GroupView) -> KnownLogs:
    """Return the epoch under which a group last read each partition, and the known end."""
    claims = view.claims()
    return {
        tp: (known.leader_epoch, known_end(view, claims, tp, known))
        for tp, known in view.state or ()
    }


def planned_logs(plans: Sequence[WindowPlan]) -> list[KnownLogs]:
    """Return the epoch and the end of the decided offsets of plans, for each partition.

    Plans of one epoch are combined, with the furthest end. Usually there is one epoch.
    """
    furthest: dict[tuple[TopicPartition, int | None], int] = {}
    for part in (part for plan in plans for part in plan):
        key = part.tp, part.leader_epoch
        furthest[key] = max(furthest.get(key, 0), part.decided_end)
    groups: list[dict[TopicPartition, tuple[int | None, int]]] = []
    for (tp, epoch), end in furthest.items():
        free = next((group for group in groups if tp not in group), None)
        if free is None:
            groups.append(free := {})
        free[tp] = epoch, end
    return list(groups)


def seen_epochs(*known: KnownLogs) -> dict[TopicPartition, int]:
    """Return the newest leader epoch that was seen of each partition, where brokers report epochs."""
    newest: dict[TopicPartition, int] = {}
    for tp, (epoch, _) in (item for logs in known for item in logs.items()):
        if epoch is not None:
            newest[tp] = max(epoch, newest.get(tp, epoch))
    return newest


def doubtful(
    known: KnownLogs, ends: Mapping[TopicPartition, LogEnd]
) -> dict[TopicPartition, LogClaim]:
    """Return the queries for the broker: logs with another leader since the last read."""
    return {
        tp: LogClaim(epoch, end)
        for tp, (epoch, end) in known.items()
        if tp in ends and end and epoch is not None and epoch != ends[tp].leader_epoch
    }


def cut_logs(
    known: KnownLogs,
    ends: Mapping[TopicPartition, LogEnd],
    diverged: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the logs that were cut below their known end, each with the offset up to which it is unchanged."""
    cuts = {
        tp: min(ends[tp].offset, diverged.get(tp, ends[tp].offset)) for tp in known if tp in ends
    }
    return {tp: cut for tp, cut in cuts.items() if cut < known[tp][1]}


def check_not_cut(group_id: str, known: KnownLogs, cuts: Mapping[TopicPartition, int]) -> None:
    """Raise `LogTruncatedError` where logs were cut."""
    if not cuts:
        return
    tp, cut = next(iter(cuts.items()))
    raise LogTruncatedError(
        f"group {group_id}: {tp} was known up to offset {known[tp][1]}, but what is left of that log ends at {cut} "
        f"({len(cuts)} partitions were cut): the log was truncated, or the topic was refilled, and later offsets hold "
        "other records. Check the topic. `windows adopt` moves progress back to where the log "
        "was cut; a group that has planned nothing yet needs other starting offsets",
        truncated={str(partition): (known[partition][1], end) for partition, end in cuts.items()},
    )
