"""Functions that get decoded records: what they see, and where records go that cannot be decoded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, DecodeError, Earliest, RecordFailedError
from kafka_ordered_ops.decoding import Avro, Decoding, Json
from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.python_values import python_values
from kafka_ordered_ops.processing import NewRecord, Processor, Record, Result, process_window
from tests.support.encoded_values import encoded
from tests.support.memory_world import MemoryWorld
from tests.support.processing_groups import wait_until
from tests.support.stub_registry import stub_registry
from tests.support.work_functions import seen
from tests.support.worlds import World

JSON = {"format": "json", "fields": [["id", "int64"], ["tags", {"map": "string"}]]}
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
GOOD, BAD = b'{"id": 7, "tags": {"a": "b"}}', b'{"id": "x"}'


def write(world: World, values: Sequence[bytes | None], key: bytes = b'{"shop": 1}') -> None:
    """Create `orders` and `dead`, and write values with one key."""
    world.create("orders")
    world.create("dead")
    content = [(float(n), key, value, ()) for n, value in enumerate(values)]
    world.write_content("orders", 0, content)


def process(world: World, function: Any, values: Any = JSON, **options: Any) -> Any:
    """Process the window, decoded."""
    batch_size, on_result = options.pop("batch_size", None), options.pop("on_result", None)
    window = world.window(
        1_000, starting_offsets=Earliest(), values=values, **options.pop("of", {})
    )
    with Processor(world.settings, **{"backoff": 0.01, **options}) as processor:
        return process_window(
            world.windows(),
            window,
            function,
            window_id="w",
            processor=processor,
            batch_size=batch_size,
            on_result=on_result,
        )


def test_the_function_gets_decoded_records(world: World) -> None:
    """Keys too, if the window says how they are encoded; a tombstone is None, and results have the records as they were."""
    write(world, [GOOD, None])
    records, results = list[Record](), list[Result]()
    done = process(
        world,
        records.append,
        Json(pa.schema([("id", pa.int64()), ("tags", pa.map_(pa.string(), pa.string()))])),
        of={"keys": "json:shop int64"},
        on_result=results.append,
    )
    assert (done.succeeded, done.failed) == (2, 0)
    assert [(one.key, one.value) for one in records] == [
        ({"shop": 1}, {"id": 7, "tags": {"a": "b"}}),
        ({"shop": 1}, None),
    ]
    assert [one.record.value for one in results] == [GOOD, None]


def test_a_bad_record_is_a_dead_letter_at_once(world: World) -> None:
    """With its bytes and the reason; the function is not called, and nothing is tried again."""
    write(world, [GOOD, BAD, b"\xff", GOOD])
    records = list[Record]()
    done = process(world, records.append, dead_letter_topic=world.named("dead"), retries=3)
    assert (done.succeeded, done.failed) == (2, 2)
    assert [one.offset for one in records] == [0, 3]
    letters = world.stored("dead")
    assert [row["value"] for row in letters] == [BAD, b"\xff"]
    headers = {one["key"]: one["value"] for one in letters[0]["headers"]}
    assert (headers["koo.error_type"], headers["koo.attempts"]) == (b"DecodeError", b"1")
    assert b"[0] at offset 1: the value cannot be decoded: id: " in headers["koo.error"]


def test_a_bad_record_stops_processing_or_is_skipped() -> None:
    """By default it stops the window, which is processed from there on later."""
    with MemoryWorld() as world:
        write(world, [GOOD, BAD, GOOD])
        records = list[Record]()
        with pytest.raises(RecordFailedError) as failure:
            process(world, records.append, retries=None)
        cause = failure.value.__cause__
        assert isinstance(cause, DecodeError)
        assert (failure.value.offset, cause.offset, failure.value.attempts) == (1, 1, 1)
        assert [one.offset for one in records] == [0]
        results = list[Result]()
        process(world, records.append, when_exhausted="skip", on_result=results.append)
        assert [one.offset for one in records] == [0, 2]
        assert [type(one.error) for one in results] == [DecodeError, type(None)]


def test_a_bad_record_of_a_batch_fails_alone() -> None:
    """The function gets the others, and each result is that of its record; async functions are the same."""
    with MemoryWorld() as world:
        write(world, [BAD, GOOD, BAD, GOOD, BAD])
        plan = world.plan("w", 1_000, starting_offsets=Earliest(), values=JSON)
        assert plan is not None
        lists: list[list[int]] = []

        def offsets(records: list[Record]) -> list[int]:
            lists.append([record.offset for record in records])
            return [record.value["id"] + record.offset for record in records]

        async def offsets_later(records: list[Record]) -> list[int]:
            return offsets(records)

        for function in (offsets, offsets_later):
            processor = Processor(world.settings, ordering="partition", when_exhausted="skip")
            results = list(processor.run(plan, function, batch_size=5))
            found = {one.record.offset: (one.value, type(one.error)) for one in results}
            assert found == {
                number: (7 + number, type(None)) if number % 2 else (None, DecodeError)
                for number in range(5)
            }
        assert lists == [[1, 3], [1, 3]]


@pytest.mark.slow
def test_processes_decode_their_own_records(world: World) -> None:
    """Bytes go to them, and the same errors come back."""
    write(world, [GOOD, BAD, None])
    results = list[Result]()
    process(
        world,
        seen,
        workers="processes",
        max_concurrency=1,
        when_exhausted="skip",
        on_result=results.append,
    )
    assert [(one.value, type(one.error)) for one in results] == [
        ({"id": 7, "tags": {"a": "b"}}, type(None)),
        (None, DecodeError),
        (None, type(None)),
    ]


@pytest.mark.slow
def test_a_group_produces_from_decoded_records_exactly_once(world: World) -> None:
    """The dead letter is in the transaction of its record's commit."""
    write(world, [GOOD, BAD, GOOD])
    world.create("out")

    def priced(record: Record) -> NewRecord:
        return NewRecord(world.named("out"), record.key, str(record.value["id"]).encode())

    processor = Processor(
        world.settings, decoding=Decoding(JSON), dead_letter_topic=world.named("dead")
    )
    results = processor.subscribe(
        world.named("orders"), priced, group_id=world.named("live"), produce="transactional"
    )
    taken = [next(results) for _ in range(3)]
    results.close()  # type: ignore[attr-defined]
    assert sorted((one.record.offset, type(one.error)) for one in taken) == [
        (0, type(None)),
        (1, DecodeError),
        (2, type(None)),
    ]
    assert [row["value"] for row in world.stored("out")] == [b"7", b"7"]
    assert [row["value"] for row in world.stored("dead")] == [BAD]


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True])
def test_a_registry_that_is_away_fails_no_record(is_async: bool) -> None:
    """The record waits, however many retries there are; the registry's refusal stops processing."""
    with MemoryWorld() as world, stub_registry() as registry:
        subject = f"{world.named('orders')}-value"
        first = registry.register(subject, ORDER)
        late = registry.register("elsewhere", ORDER)
        write(world, [encoded({"id": n}, ORDER, one["id"]) for n, one in enumerate((first, late))])
        settings = world.settings.merged({"schema.registry.url": registry.url})
        values = list[Any]()

        async def later(record: Record) -> None:
            values.append(record.value)

        processor = Processor(
            settings,
            decoding=Decoding(Avro()),
            retries=0,
            backoff=0.05,
            dead_letter_topic=world.named("dead"),
        )
        results = processor.subscribe(
            world.named("orders"),
            later if is_async else lambda record: values.append(record.value),
            group_id=world.named("live"),
        )
        assert next(results).error is None
        # The schema of the second record is not one of the topic's subject.
        registry.status = 503
        wait_until(lambda: processor.counts[0].retried > 0)
        registry.status = None
        assert next(results).error is None
        assert values == [{"id": 0}, {"id": 1}]
        results.close()  # type: ignore[attr-defined]
        assert world.stored("dead") == []


def test_what_has_no_meaning_for_single_records_is_refused() -> None:
    """Before a window is planned, or a group joined."""
    with MemoryWorld() as world:
        write(world, [GOOD])
        for of in ({"on_bad": "keep"}, {"flatten": True}, {"on_bad": "dead_letter:dead"}):
            with pytest.raises(ConfigError, match="for columns"):
                process(world, print, of=of)
        with pytest.raises(ConfigError, match="decoding is for subscribe"):
            process(world, print, decoding=Decoding(JSON))
        with pytest.raises(ConfigError, match="decoding is 'avro'"):
            Processor(world.settings, decoding="avro")  # type: ignore[arg-type]
        processor = Processor(world.settings, decoding=Decoding(JSON, flatten=True))
        with pytest.raises(ConfigError, match="for columns"):
            processor.subscribe(world.named("orders"), print, group_id="g")


# --- values of Python ----------------------------------------------------------------------------------

_TIMES = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
#: Types of Arrow, and values of Python for them.
_PLAIN = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.string(), st.text(max_size=3)),
    (pa.binary(), st.binary(max_size=3)),
    (
        pa.timestamp("ms", "UTC"),
        _TIMES.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
    ),
    (pa.timestamp("ns", "UTC"), _TIMES),
    (pa.duration("ns"), st.timedeltas(timedelta(-1000), timedelta(1000))),
    (pa.decimal128(9, 2), st.integers(-(10**7), 10**7).map(lambda n: Decimal(n) / 100)),
]


def _nested(inner: Any) -> Any:
    def of(pair: tuple[Any, Any]) -> Any:
        kind, values = pair
        values = st.none() | values
        return st.sampled_from(
            [
                (pa.list_(kind), st.lists(values, max_size=3)),
                (
                    pa.map_(pa.string(), kind),
                    st.dictionaries(st.text(max_size=2), values, max_size=3),
                ),
                (
                    pa.struct([("a", kind), ("b", pa.map_(pa.string(), kind))]),
                    st.fixed_dictionaries(
                        {
                            "a": values,
                            "b": st.none()
                            | st.dictionaries(st.text(max_size=2), values, max_size=2),
                        }
                    ),
                ),
            ]
        )

    return inner.flatmap(of)


@given(st.data())
def test_values_of_python_are_those_that_were_written(data: st.DataObject) -> None:
    """Structs and maps are dicts, at any depth; times are exact to the microsecond."""
    kind, values = data.draw(st.recursive(st.sampled_from(_PLAIN), _nested, max_leaves=3))
    rows = data.draw(st.lists(st.none() | values, max_size=4))
    assert python_values(pa.array(rows, kind)) == rows


def test_a_time_beyond_python_s_years_is_a_bad_value() -> None:
    """The other rows have their values; nanoseconds are cut."""
    kind = pa.struct([("at", pa.timestamp("us", "UTC"))])
    good, far = python_values(pa.array([{"at": 0}, {"at": 10**18}], kind))
    assert good == {"at": datetime(1970, 1, 1, tzinfo=UTC)}
    assert isinstance(far, BadValueError)
    [cut] = python_values(pa.array([1_999], pa.timestamp("ns", "UTC")))
    assert cut == datetime(1970, 1, 1, 0, 0, 0, 1, UTC)
    assert (
        json.dumps(python_values(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))))
        == '[{"a": 1}]'
    )
