"""The comparisons of ordered reads: a whole log from its earliest record to its end, in one order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from benchmarks.jvm_reading import JvmRead
from benchmarks.ordered_topics import Arrangement, make_ordered_topic, ordered_topic
from benchmarks.peers import Peer, PeerRead, PeerSettings
from benchmarks.plain_reading import ConsumeToArrow
from benchmarks.values import Comparison, Contender, Place

#: The ceiling of every reader of this client: no order at all.
CONSUME: Final = "consume to Arrow"
JVM: Final = "ConsumerPerformance"
JVM_TUNED: Final = "ConsumerPerformance, tuned"

TAIL: Final = "tail"

#: A round of a peer takes half a minute, and where it gets stuck a whole one.
_PEER_ROUNDS: Final = 3
_STUCK_PEER_ROUNDS: Final = 1


#: All of the names that peers have.
PEERS: Final = tuple(f"{peer}{settings}" for peer in Peer for settings in PeerSettings)


def comparison_of(arrangement: Arrangement) -> str:
    """The name of the comparison on this topic."""
    if arrangement is Arrangement.IN_ORDER:
        return TAIL
    return f"{TAIL}-{arrangement}"


def tail_comparisons(records: int) -> tuple[Comparison, ...]:
    """One for each topic."""
    return tuple(_on(arrangement, records) for arrangement in Arrangement)


def _on(arrangement: Arrangement, records: int) -> Comparison:
    topic = ordered_topic(arrangement, records)
    contenders = [
        Contender(CONSUME, records, ConsumeToArrow(topic)),
        *_peers(arrangement, topic, records),
    ]
    if arrangement is Arrangement.IN_ORDER:
        # To a reader that only counts, the times make no difference.
        contenders += [
            Contender(JVM, records, JvmRead(topic, records, tuned=False)),
            Contender(JVM_TUNED, records, JvmRead(topic, records, tuned=True)),
        ]
    return Comparison(
        comparison_of(arrangement),
        tuple(contenders),
        partial(_make_topics, [(arrangement, records)]),
    )


def _peers(arrangement: Arrangement, topic: str, records: int) -> Iterator[Contender]:
    in_order = arrangement is Arrangement.IN_ORDER
    # The engine of both is the same code; out of order it is stuck for a minute each time.
    for peer in Peer if in_order else [Peer.KAFKARROW]:
        for settings in PeerSettings:
            yield Contender(
                f"{peer}{settings}",
                records,
                PeerRead(peer, topic, records, settings),
                _PEER_ROUNDS if in_order else _STUCK_PEER_ROUNDS,
                # Nothing in them gets warm.
                warms_up=False,
            )


def _make_topics(topics: list[tuple[Arrangement, int]], place: Place) -> None:
    for arrangement, records in topics:
        make_ordered_topic(place.bootstrap, arrangement, records)
