"""The comparisons of ordered reads: a whole log from its earliest record to its end, in one order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from benchmarks.jvm_reading import JvmRead
from benchmarks.ordered_reading import OrderedRead, Way
from benchmarks.ordered_topics import Arrangement, make_ordered_topic, ordered_topic
from benchmarks.peers import Peer, PeerRead, PeerSettings
from benchmarks.plain_reading import ConsumeToArrow
from benchmarks.rounds import rounds_at
from benchmarks.values import Comparison, Contender, Place

#: The ceiling of every reader of this client: no order at all.
CONSUME: Final = "consume to Arrow"
JVM: Final = "ConsumerPerformance"
JVM_TUNED: Final = "ConsumerPerformance, tuned"

TAIL: Final = "tail"
TAIL_GROWTH: Final = "tail-growth"

#: How the package reads each log.
WAYS: Final[Mapping[Arrangement, tuple[Way, ...]]] = {
    Arrangement.IN_ORDER: tuple(Way),
    Arrangement.SHUFFLED: (Way.EXACT, Way.STREAMING_1H, Way.STREAMING),
    Arrangement.REVERSED: (Way.EXACT, Way.STREAMING),
}
_GROWTH_WAYS: Final = (Way.EXACT, Way.STREAMING)
_GROWTH_ARRANGEMENTS: Final = (Arrangement.IN_ORDER, Arrangement.REVERSED)

#: A peer that gets stuck takes a minute each time.
_STUCK_PEER_ROUNDS: Final = 1

#: All of the names that peers have.
PEERS: Final = tuple(f"{peer}{settings}" for peer in Peer for settings in PeerSettings)


def comparison_of(arrangement: Arrangement) -> str:
    """The name of the comparison on this topic."""
    if arrangement is Arrangement.IN_ORDER:
        return TAIL
    return f"{TAIL}-{arrangement}"


def tail_comparisons(records: int, growth: Sequence[int]) -> tuple[Comparison, ...]:
    """One for each topic, and one over sizes."""
    # The size of the others is measured there.
    sizes = [n for n in growth if n != records]
    return (*(_on(arrangement, records) for arrangement in Arrangement), _growth(sizes))


def _on(arrangement: Arrangement, records: int) -> Comparison:
    topic = ordered_topic(arrangement, records)
    contenders = [
        Contender(CONSUME, records, ConsumeToArrow(topic)),
        *(Contender(way.value, records, OrderedRead(topic, way)) for way in WAYS[arrangement]),
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
    # The engine of both is the same code; out of order it gets stuck whatever its settings are.
    for peer in Peer if in_order else [Peer.KAFKARROW]:
        for settings in PeerSettings:
            yield Contender(
                f"{peer}{settings}",
                records,
                PeerRead(peer, topic, records, settings),
                None if in_order and settings is PeerSettings.LARGE_BATCHES else _STUCK_PEER_ROUNDS,
                # Nothing in them gets warm.
                warms_up=False,
            )


def _growth(sizes: Sequence[int]) -> Comparison:
    topics = [(arrangement, n) for n in sizes for arrangement in _GROWTH_ARRANGEMENTS]
    contenders = []
    for arrangement, n in topics:
        topic, rounds = ordered_topic(arrangement, n), rounds_at(n)
        for way in _GROWTH_WAYS:
            name, job = growth_name(arrangement, way), OrderedRead(topic, way)
            # In a long run, what happens once does not show.
            contenders.append(Contender(name, n, job, rounds, warms_up=rounds is None))
    return Comparison(TAIL_GROWTH, tuple(contenders), partial(_make_topics, topics))


def growth_name(arrangement: Arrangement, way: str) -> str:
    """The name of a contender of the growth, where logs are compared with one another."""
    return f"{way}, {arrangement}"


def growth_names() -> Iterator[tuple[Arrangement, str, str]]:
    """Of each contender of the growth: the log, the name in the log's own comparison, and in the growth."""
    for arrangement in _GROWTH_ARRANGEMENTS:
        for way in _GROWTH_WAYS:
            yield arrangement, way.value, growth_name(arrangement, way)


def _make_topics(topics: list[tuple[Arrangement, int]], place: Place) -> None:
    for arrangement, records in topics:
        make_ordered_topic(place.bootstrap, arrangement, records)
