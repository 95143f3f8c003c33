"""Records that failed for good: what the dead-letter topic gets, and when its record counts as done."""

from __future__ import annotations

import uuid
from typing import Any, NoReturn

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourceType

from kafka_ordered_ops import (
    AuthorizationError,
    ConfigError,
    Earliest,
    RecordTooLargeError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.dead_letter_headers import TEXT_BYTES_MAX
from kafka_ordered_ops.core.processing.failures import FixedBackoff
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.processing import Processor, Record
from kafka_ordered_ops.processing.dead_letters import dead_letter
from kafka_ordered_ops.processing.work_queue import Result
from tests.support.guarded import Guarded, right
from tests.support.guarded import guarded as guarded
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World


def run(world: World, function: Any, dead: str = "dead", **options: Any) -> list[Result]:
    """What came of the records of `orders`."""
    plan = world.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    chosen: dict[str, Any] = {
        "retries": 1,
        "backoff": FixedBackoff(0.01),
        "stall_timeout_s": 3,
    } | options
    processor = Processor(world.settings, dead_letter_topic=world.named(dead), **chosen)
    return list(processor.run(plan, function))


def poisoned(record: Record) -> str:
    """Fails for values that begin with `bad`."""
    if (record.value or b"").startswith(b"bad"):
        raise ValueError(f"cannot charge {record.offset}")
    return "ok"


def test_a_failed_record_is_written_as_it_was_with_its_cause(world: World) -> None:
    """Once all its attempts have failed; the others are not kept from being done."""
    world.create("orders")
    world.create("dead")
    content = [
        (1.0, b"a", b"good", ()),
        (2.0, b"b", b"bad", (("h", b"1"), ("h", None))),
        (3.0, None, b"bad too", ()),
        (4.0, b"a", None, ()),
    ]
    world.write_content("orders", 0, content)
    results = run(world, poisoned)
    assert sorted((one.record.offset, one.error is None) for one in results) == [
        (0, True),
        (1, False),
        (2, False),
        (3, True),
    ]
    found = sorted(world.stored("dead"), key=lambda row: row["value"])
    assert [(row["key"], row["value"]) for row in found] == [(b"b", b"bad"), (None, b"bad too")]
    headers = [(one["key"], one["value"]) for one in found[0]["headers"]]
    assert headers[:2] == [("h", b"1"), ("h", None)]
    facts = dict(headers[2:])
    assert facts.pop("koo.timestamp_ms").isdigit()
    assert facts == {
        "koo.topic": world.named("orders").encode(),
        "koo.partition": b"0",
        "koo.offset": b"1",
        "koo.attempts": b"2",
        "koo.error_type": b"ValueError",
        "koo.error": b"cannot charge 1",
    }


@pytest.mark.parametrize(
    ("dead", "error"), [("absent", UnknownTopicError), ("orders", ConfigError)]
)
def test_a_topic_that_cannot_be_used_is_refused_before_the_first_record(
    world: World, dead: str, error: type[Exception]
) -> None:
    """One that does not exist is not created; one of the topics read would go round in circles."""
    world.create("orders")
    world.write("orders", 0, 1, 2)
    seen: list[Record] = []
    with pytest.raises(error, match=world.named(dead)):
        run(world, seen.append, dead)
    assert not seen
    with open_lookup(world.settings) as lookup:
        assert not lookup.existing([world.named("absent")])


@pytest.mark.long
def test_a_topic_that_may_not_be_written_to_is_refused_before_the_first_record(
    guarded: Guarded,
) -> None:
    """The right is asked for, and named: without a failed record, nobody would find out."""
    orders, dead, group_id = (f"{one}-{uuid.uuid4().hex[:8]}" for one in ("orders", "dead", "live"))
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    for future in admin.create_topics([NewTopic(one, 1, 1) for one in (orders, dead)]).values():
        future.result(TIMEOUT_S)
    rights = [
        right(ResourceType.TOPIC, orders, AclOperation.READ),
        right(ResourceType.TOPIC, dead, AclOperation.READ),
        right(ResourceType.GROUP, group_id, AclOperation.READ),
    ]
    guarded.grant(*rights)
    processor = Processor(
        guarded.job, dead_letter_topic=dead, retries=1, backoff=FixedBackoff(0.01)
    )
    with pytest.raises(AuthorizationError) as caught:
        next(processor.subscribe(orders, poisoned, group_id=group_id))
    assert [str(one) for one in caught.value.missing] == [f"WRITE on topic {dead}"]
    guarded.grant(*rights, right(ResourceType.TOPIC, dead, AclOperation.WRITE))
    producer = Producer({"bootstrap.servers": guarded.bootstrap})
    producer.produce(orders, b"bad")
    assert producer.flush(TIMEOUT_S) == 0
    with processor:
        found = next(processor.subscribe(orders, poisoned, group_id=group_id))
    assert isinstance(found.error, ValueError)


@pytest.mark.slow
def test_a_topic_that_goes_away_ends_processing_and_its_record_is_not_done(world: World) -> None:
    """After it was tried again for some time; the error names the record and what failed at first."""
    world.create("orders")
    world.create("dead")
    world.write_content("orders", 0, [(1.0, b"a", b"bad", ()), (2.0, b"b", b"good", ())])
    is_gone = False

    def fails(record: Record) -> str:
        nonlocal is_gone
        if record.value == b"bad" and not is_gone:
            is_gone = True
            world.delete("dead")
        return poisoned(record)

    results: list[Result] = []
    plan = world.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    processor = Processor(
        world.settings,
        dead_letter_topic=world.named("dead"),
        retries=0,
        stall_timeout_s=2,
        max_concurrency=1,
    )
    with pytest.raises(UnknownTopicError, match=world.named("dead")) as caught:
        results.extend(processor.run(plan, fails))
    assert isinstance(caught.value.__cause__, ValueError)
    assert "@0 failed, and is not done" in caught.value.__notes__[0]
    assert not [one for one in results if one.error]


@pytest.mark.slow
def test_what_is_done_is_kept_when_a_dead_letter_is_refused(world: World) -> None:
    """The records that are done are not processed again."""
    world.create("orders")
    world.create("dead", max_message_bytes="1000")
    good = [(1.0, b"%d" % number, b"good", ()) for number in range(10)]
    world.write_content("orders", 0, [(1.0, b"a", b"bad" + b"x" * 900, ()), *good])
    plan = world.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    processor = Processor(
        world.settings, retries=0, stall_timeout_s=1, dead_letter_topic=world.named("dead")
    )
    with pytest.raises(RecordTooLargeError):
        list(processor.run(plan, poisoned, keep=world.windows()))
    [kept] = world.windows().processed(plan).values()
    assert list(kept) == [(1, 11)]


@pytest.mark.slow
def test_a_record_that_its_headers_make_too_large_is_not_done(world: World) -> None:
    """It fits into its own topic, and not into the other one with what is added."""
    world.create("orders")
    world.create("dead", max_message_bytes="1000")
    world.write_content("orders", 0, [(1.0, b"a", b"bad" + b"x" * 900, ())])
    with pytest.raises(RecordTooLargeError, match=world.named("dead")):
        run(world, poisoned, stall_timeout_s=1)
    assert not world.stored("dead")


class _Unprintable(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [ValueError("é" * 10_000), _Unprintable(), KeyError("\ud800")])
def test_any_error_can_be_told(error: Exception) -> None:
    """Long texts are cut between characters, and what has none is named by its class."""
    record = Record("orders", 0, 1, 2, None, None)
    facts = dict(dead_letter("dead", Result(record, None, error)).headers)
    text = facts["koo.error"]
    assert text is not None
    assert len(text) <= TEXT_BYTES_MAX
    text.decode()
    assert facts["koo.error_type"] == type(error).__qualname__.encode()
