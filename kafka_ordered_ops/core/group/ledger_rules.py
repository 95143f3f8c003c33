"""The rules for a ledger topic: its settings, and the conditions before it is read or written."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.cluster.cluster_facts import (
    CommittedOffset,
    CommittedOffsets,
    TopicFacts,
)
from kafka_ordered_ops.core.cluster.names import NO_TOPIC_NAME, is_topic_name
from kafka_ordered_ops.core.errors import (
    ConfigError,
    LedgerError,
    LedgerLostError,
    OffsetMapDecodeError,
)
from kafka_ordered_ops.core.group.group_state import Change, GroupState, GroupView
from kafka_ordered_ops.core.group.others import (
    OthersCommit,
    check_usable,
    is_readable,
    others_commit,
)
from kafka_ordered_ops.core.group.shared_commits import shared_commit
from kafka_ordered_ops.core.group.transitions import Outcome
from kafka_ordered_ops.core.offset_map.ours import OffsetMap, decode_offset_map, encode_offset_map
from kafka_ordered_ops.core.types import TopicPartition

LEDGER_TOPIC: Final = "__kafka_ordered_ops"

#: Groups of one ledger partition wait for each other's open transactions; more partitions, less waiting.
#: A group's partition is found among these, whatever number the topic has: growing it moves nothing.
#: More than this would hardly shorten the start of a process: with some hundred groups in each, half of what it reads
#: are old states in the newest segment.
LEDGER_PARTITIONS: Final = 64

#: A part of a record fits, with its overhead, whatever else is in its batch.
_LEDGER_BATCH_BYTES_MAX: Final = 2 * 1024 * 1024

LEDGER_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    # Compaction skips the newest segment, and every new process reads it. No batch may be larger than a segment.
    "segment.bytes": str(_LEDGER_BATCH_BYTES_MAX),
    "min.cleanable.dirty.ratio": "0.1",
    "max.message.bytes": str(_LEDGER_BATCH_BYTES_MAX),
}

#: If the cluster has this many brokers: one may be lost, and a change still counts only when two have it.
LEDGER_REPLICAS: Final = 3
LEDGER_MIN_IN_SYNC: Final = 2

#: What the transactional id of every group begins with.
TRANSACTIONAL_PREFIX: Final = "koo."

#: One blocking call to the coordinator of a group, or of its transactions.
CALL_TIMEOUT_S: Final = 15.0

#: A decision inside the fence, on the newest state of the group and its newest committed offsets, without requests.
Decision = Callable[[GroupView, CommittedOffsets], Outcome]

#: The preparation before the fence, repeated for each attempt. It may query the cluster, and returns the decision,
#: which checks by value that the answers fit the group's state inside the fence.
Prepare = Callable[[], Decision]


def ledger_partition(name: str, group_id: str) -> TopicPartition:
    """Return where a group's records are: all in one partition."""
    return TopicPartition(name, zlib.crc32(group_id.encode()) % LEDGER_PARTITIONS)


def transactional_id(cluster_id: str, group_id: str) -> str:
    """Return the transactional id of a group's changes: one per group, so that a right on it is a right on no other."""
    # Never the user's text.
    digest = hashlib.sha256(f"{cluster_id}/{group_id}".encode()).hexdigest()
    return f"{TRANSACTIONAL_PREFIX}{digest[:32]}"


def check_ledger_topic(facts: TopicFacts) -> None:
    """Raise `LedgerError` for a topic with too few partitions to be a ledger."""
    if len(facts.partitions) < LEDGER_PARTITIONS:
        raise LedgerError(
            f"the ledger topic {facts.name} has {len(facts.partitions)} partitions, but a ledger needs at least "
            f"{LEDGER_PARTITIONS}: add partitions if it is empty, or name another ledger topic"
        )


def check_ledger_policy(name: str, policy: str | None) -> None:
    """Raise `LedgerError` for a ledger topic with time-based retention: it forgets progress."""
    if policy != "compact":
        raise LedgerError(
            f"the ledger topic {name} has cleanup.policy={policy}: with any value but compact it "
            "forgets the progress of groups. Set cleanup.policy=compact"
        )


def ledger_replicas(*, brokers: int, wanted: int) -> int:
    """Return how many replicas a new ledger gets.

    Args:
        brokers: how many brokers are known, those included that are down.
        wanted: the cluster's number of replicas of its own transactions; 0: not reported.
    """
    return min(LEDGER_REPLICAS, max(brokers, wanted, 1))


def in_sync_config(replicas: int) -> dict[str, str]:
    """Return how many of a new topic's replicas must have a record before it counts as stored; broker's default if few."""
    enough = replicas >= LEDGER_REPLICAS
    return {"min.insync.replicas": str(LEDGER_MIN_IN_SYNC)} if enough else {}


@dataclass(frozen=True, slots=True)
class Replication:
    """The replication of a ledger topic, and the size of its cluster."""

    name: str
    #: Brokers that are up, and those that hold replicas of the ledger.
    brokers: frozenset[int]
    #: For each partition, in their order: the brokers of its replicas.
    replicas: tuple[tuple[int, ...], ...]
    #: None where it is not known.
    min_in_sync: int | None

    @property
    def enough(self) -> int:
        """How many replicas each partition should have."""
        return ledger_replicas(brokers=len(self.brokers), wanted=0)

    def faults(self, bootstrap: str) -> list[str]:
        """Return the risks of losing progress with one broker, each with the command that fixes it."""
        risks: list[str] = []
        fewest = min((len(brokers) for brokers in self.replicas), default=self.enough)
        if fewest < self.enough:
            risks.append(
                f"the ledger topic {self.name} has {fewest} of {self.enough} replicas in a cluster of "
                f"{len(self.brokers)} brokers: losing {'a broker' if fewest == 1 else f'{fewest} brokers'} may "
                f"lose the progress of all groups. Write this to ledger.json: {self._reassignment()}. Then run: "
                f"kafka-reassign-partitions.sh --bootstrap-server {bootstrap} --reassignment-json-file "
                "ledger.json --execute"
            )
        if (
            len(self.brokers) >= LEDGER_REPLICAS
            and self.min_in_sync is not None
            and self.min_in_sync < LEDGER_MIN_IN_SYNC
        ):
            risks.append(
                f"the ledger topic {self.name} has min.insync.replicas={self.min_in_sync}: a change counts as "
                "stored when one broker has it, and can be lost with that broker. Set it: kafka-configs.sh "
                f"--bootstrap-server {bootstrap} --alter --entity-type topics --entity-name {self.name} "
                f"--add-config min.insync.replicas={LEDGER_MIN_IN_SYNC}"
            )
        return risks

    def _reassignment(self) -> str:
        """Return the file for Kafka's tool: existing replicas stay, and missing ones are spread over the brokers."""
        every = sorted(self.brokers)
        moves = []
        for number, now in enumerate(self.replicas):
            at = number % len(every)
            others = [broker for broker in every[at:] + every[:at] if broker not in now]
            wanted = [*now, *others][: max(self.enough, len(now))]
            moves.append({"topic": self.name, "partition": number, "replicas": wanted})
        return json.dumps({"version": 1, "partitions": moves}, separators=(",", ":"))


def check_same_ledger(name: str, *, opened_id: str | None, found_id: str | None) -> None:
    """Raise `LedgerLostError` when the topic is not the one that was opened; None: it is gone."""
    if found_id != opened_id:
        raise LedgerLostError(
            f"the ledger topic {name} was opened with id {opened_id} and "
            f"{'is gone' if found_id is None else f'now has id {found_id}'}: it was deleted while in use. Restore "
            "it, or continue with a new group from starting offsets of your choice"
        )


def check_not_lost(
    view: GroupView,
    committed: CommittedOffsets,
    unknown: Mapping[TopicPartition, OffsetMap],
    *,
    name: str,
    ledger_id: str | None,
    topics: Mapping[str, TopicFacts],
) -> None:
    """Raise if a commit of this package is newer than the ledger, or may be.

    `unknown` are the `unknown_commits`, and `topics` those of them that exist.

    Raises:
        LedgerLostError: the commit's map is about a state that the ledger does not have.
        OffsetMapDecodeError: the map is damaged, and the ledger has no progress of the partition.
    """
    damaged = {
        tp: others_commit(commit, where=f"group {view.group_id}, {tp}")
        for tp, commit in committed.items()
        if commit is not None
        and not is_readable(commit)
        and (view.state is None or view.state.partition(tp) is None)
    }
    check_usable(view.group_id, damaged)
    for tp, offset_map in mirrored_maps(unknown, topics, ledger_id=ledger_id).items():
        raise LedgerLostError(
            f"group {view.group_id}: the commit of {tp} was made on another cluster, where the topic has the id "
            f"{topic_id_text(offset_map.topic_id)} and the ledger {topic_id_text(offset_map.ledger_id)}: MirrorMaker 2 or "
            "another program has copied it, and its offsets are not those of this cluster. If the group continues here from "
            "now on, stop the mirror and run `groups fail-over` once. If not, run the windows on the other cluster"
        )
    for tp, offset_map in unknown.items():
        state = view.state
        # Of partitions that the state has, `adopt` writes the commits again.
        cure = (
            "`windows adopt` takes the commits for the group's progress, and writes them again"
            if state is not None and state.partition(tp) is not None
            else "commit the same offset again without metadata (kafka-consumer-groups.sh --reset-offsets --to-current)"
        )
        raise LedgerLostError(
            f"group {view.group_id}: the commit of {tp} was made with state {offset_map.sequence} of the ledger topic "
            f"{topic_id_text(offset_map.ledger_id)}, and the ledger {name} ({ledger_id}) holds state "
            f"{0 if state is None else state.sequence}: the ledger was deleted, recreated or cut. Restore it, or continue "
            "with a new group from starting offsets of your choice. If nothing of it is missing, another program wrote "
            f"the commit: {cure}"
        )


def unknown_commits(
    view: GroupView, committed: CommittedOffsets, *, ledger_id: str | None
) -> dict[TopicPartition, OffsetMap]:
    """Return the maps in this package's format about states that the ledger does not have."""
    sequence = view.state.sequence if view.state else 0
    return {
        tp: offset_map
        for tp, commit in committed.items()
        if (offset_map := _map_of(commit)) is not None
        and (offset_map.sequence > sequence or topic_id_text(offset_map.ledger_id) != ledger_id)
    }


def mirrored_maps(
    unknown: Mapping[TopicPartition, OffsetMap],
    topics: Mapping[str, TopicFacts],
    *,
    ledger_id: str | None,
) -> dict[TopicPartition, OffsetMap]:
    """Return those of `unknown_commits` about another ledger, and another topic than the one of this name."""
    return {
        tp: offset_map
        for tp, offset_map in unknown.items()
        if topic_id_text(offset_map.ledger_id) != ledger_id
        and (facts := topics.get(tp.topic)) is not None
        and topic_id_text(offset_map.topic_id) != facts.topic_id
    }


def is_own_commit(commit: CommittedOffset) -> bool:
    """Return whether this package wrote a committed offset: its map is whole, and about this very offset.

    A program that sets offsets back and passes on the metadata it read leaves a map with another base. The program
    that cut or changed the map has written the commit, whichever program wrote the map.
    """
    offset_map = _map_of(commit)
    return offset_map is not None and offset_map.base == commit.offset


def put_back(state: GroupState | None, committed: CommittedOffsets) -> dict[TopicPartition, int]:
    """Return committed offsets that this package wrote earlier, if they are not the ones it wrote last.

    Another program restored them, for example from a backup. The offsets must have been read after the state;
    otherwise another
    attempt may have committed in between.
    """
    if state is None or state.offsets_sequence is None:
        return {}
    offsets: dict[TopicPartition, int] = {}
    for tp, partition in state:
        commit = committed.get(tp)
        if commit is None or commit.offset == partition.committed or not is_own_commit(commit):
            continue
        offset_map = _map_of(commit)
        if offset_map is not None and offset_map.sequence < state.offsets_sequence:
            offsets[tp] = commit.offset
    return offsets


def commits_of_others(
    committed: CommittedOffsets,
    state: GroupState | None,
    ends: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, OthersCommit]:
    """Return the committed offsets that this package did not write last, with the progress in them.

    Foreign commits carry no map with this base: a program that sets an offset back and passes our metadata on leaves a
    map with another base. Of our own commits, older ones than `state` knows were restored by another program. Newer
    ones are left out, whatever they hold: another attempt may have committed since the ledger was read.

    `ends` are the ends of logs, if known: no map reaches past them.
    """
    group = "the group" if state is None else f"group {state.group_id}"
    others = {
        tp: others_commit(
            commit, where=f"{group}, {tp}", end=None if ends is None else ends.get(tp)
        )
        for tp, commit in committed.items()
        if commit is not None and not is_own_commit(commit)
    }
    restored = {tp: OthersCommit(offset) for tp, offset in put_back(state, committed).items()}
    return {**others, **restored}


def are_of_one_moment(
    before: GroupState | None, after: GroupState | None, committed: CommittedOffsets
) -> bool:
    """Return whether committed offsets can be compared with the state that was read after them.

    `before` is the state read before them, if it was. Another process may commit between the two reads, and its newer
    state then makes the offsets appear to be set back. Commits of other programs carry no sequence to compare:
    where they differ from the state, they are believed only between two reads of one state.
    """
    if after is None or not (put_back(after, committed) or _differ(after, committed)):
        return True
    if before is None:
        return False
    same = before.offsets_sequence == after.offsets_sequence
    return same or bool(put_back(before, committed))


def _differ(state: GroupState, committed: CommittedOffsets) -> bool:
    """Return whether offsets that other programs committed, or that look so, are not where the state says."""
    return any(
        commit.offset != partition.committed and not is_own_commit(commit)
        for tp, partition in state
        if (commit := committed.get(tp)) is not None
    )


def with_written_only(
    change: Change, before: GroupState | None, offsets: CommittedOffsets
) -> Change:
    """Return the change to write; offsets of deleted topics, which cannot be committed, stay as known."""
    absent = {tp for tp, _ in change.state if tp not in offsets}
    if change.commits_to is None or not absent:
        return change
    topics = dict(change.state.topics)
    for tp in absent:
        known = None if before is None else before.partition(tp)
        partitions = topics[tp.topic].partitions
        partition = replace(
            partitions[tp.partition], committed=None if known is None else known.committed
        )
        topics[tp.topic] = replace(
            topics[tp.topic], partitions={**partitions, tp.partition: partition}
        )
    return replace(change, state=replace(change.state, topics=topics))


def _map_of(commit: CommittedOffset | None) -> OffsetMap | None:
    try:
        return None if commit is None else decode_offset_map(commit.metadata)
    except OffsetMapDecodeError:
        return None


def check_ledger_name(name: str) -> str:
    """Return the name itself; raise `ConfigError` for one that no topic can have."""
    if not is_topic_name(name):
        raise ConfigError(f"ledger topic {shown(name)} {NO_TOPIC_NAME}")
    return name


def offsets_to_commit(change: Change, *, ledger_id: str) -> dict[TopicPartition, CommittedOffset]:
    """Return the offset to commit for every partition of the group: all of them, so that none expires alone.

    A topic that was deleted, or recreated, meanwhile must not hold up the others.
    """
    offsets: dict[TopicPartition, CommittedOffset] = {}
    if (present := change.commits_to) is None:
        return offsets
    state = change.state
    for tp, partition in state:
        topic_id = state.topics[tp.topic].topic_id
        if (facts := present.get(tp.topic)) is None or facts.topic_id != topic_id:
            continue
        if state.format.is_shared:
            offsets[tp] = shared_commit(tp, partition)
            continue
        offset_map = OffsetMap(
            topic_id=topic_id_bytes(topic_id),
            ledger_id=topic_id_bytes(ledger_id),
            sequence=state.sequence,
            base=partition.base,
            beyond=partition.beyond,
            delivered_before_ms=partition.delivered_before_ms,
        )
        offsets[tp] = CommittedOffset(partition.base, encode_offset_map(offset_map))
    return offsets


def topic_id_bytes(topic_id: str) -> bytes:
    """Return the 16 bytes of a topic id in Kafka's text form (base64 for URLs, without padding)."""
    return base64.urlsafe_b64decode(topic_id + "==")


def topic_id_text(topic_id: bytes) -> str:
    """Return the inverse of `topic_id_bytes`."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
