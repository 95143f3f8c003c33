"""The comparisons of per-record processing: with Confluent's Parallel Consumer, and with functions that do nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from benchmarks.backlog import make_backlog
from benchmarks.values import Comparison, Contender, Place
from benchmarks.work_parallel_consumer import JavaSleeping
from benchmarks.work_processor import Computing, DoingNothing, Sleeping, Way
from benchmarks.work_records import WorkTopic
from kafka_ordered_ops.core.processing.scheduling import Ordering

PROCESSING: Final = "processing"
PROCESSING_RATE: Final = "processing-rate"
PROCESSING_CPU: Final = "processing-cpu"

JAVA: Final = "Parallel Consumer"

#: The contenders that compute, by how many processes they have.
PROCESSES: Final = {1: "one process", 2: "two processes"}
#: Some ten seconds for one process.
_COMPUTED: Final = 2_500

_RECORDS_MAX: Final = 10_000
#: With few keys, fewer records: the slowest rows take as long as five keys do.
_RECORDS_A_KEY: Final = 2_000
_KEYS: Final = (1, 2, 5, 10, 20, 50, 100, 1_000, 10_000)

#: What runs at each size: at one key the whole partition in order beside it, and at a key a record, no order.
_IN_WORDS: Final = {
    Ordering.KEY: "by key",
    Ordering.PARTITION: "by partition",
    Ordering.UNORDERED: "unordered",
}


def processing_comparisons(records: int, backlog: int) -> tuple[Comparison, ...]:
    """Records that are worked on, over numbers of keys; a backlog through functions that do nothing; and processes."""
    records = min(records, _RECORDS_MAX)
    topics = [
        WorkTopic(min(records, _RECORDS_A_KEY * keys), keys) for keys in _KEYS if keys < records
    ]
    topics.append(WorkTopic(records, records))
    computed = WorkTopic(min(records, _COMPUTED), 1)
    processes = tuple(
        Contender(name, computed.records, Computing(computed, number))
        for number, name in PROCESSES.items()
    )
    rate = tuple(Contender(way.value, backlog, DoingNothing(backlog, way)) for way in Way)
    return (
        Comparison(
            PROCESSING,
            tuple(one for topic in topics for one in _contenders(topic)),
            partial(_make_topics, topics),
        ),
        Comparison(PROCESSING_RATE, rate, partial(_make_backlog, backlog)),
        Comparison(PROCESSING_CPU, processes, partial(_make_topics, [computed])),
    )


def contender_name(ordering: Ordering, who: str) -> str:
    """What a contender of the first comparison is called: in which order, and who works."""
    return f"{_IN_WORDS[ordering]}, {who}"


def _contenders(topic: WorkTopic) -> Iterator[Contender]:
    orderings = [Ordering.KEY]
    if topic.keys == 1:
        orderings.insert(0, Ordering.PARTITION)
    if topic.keys == topic.records:
        orderings.append(Ordering.UNORDERED)
    for ordering in orderings:
        for way in Way:
            job = Sleeping(topic, ordering, way)
            yield Contender(contender_name(ordering, way), topic.keys, job)
        job_of_java = JavaSleeping(topic, ordering)
        yield Contender(contender_name(ordering, JAVA), topic.keys, job_of_java)


def _make_topics(topics: Sequence[WorkTopic], place: Place) -> None:
    for topic in topics:
        topic.make(place.bootstrap)


def _make_backlog(records: int, place: Place) -> None:
    make_backlog(place.bootstrap, records)
