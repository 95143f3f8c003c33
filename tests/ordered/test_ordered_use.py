"""How an ordered reader is used: polls, iterators, Arrow streams, threads, signals, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from kafka_ordered_ops import (
    ClosedError,
    ConfigError,
    NotShareableError,
    OrderedReader,
    UnknownTopicError,
)
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.kafka.client.interrupts import interruptible
from kafka_ordered_ops.ordered.partitions.state import STATE_SCHEMA
from tests.support.broker_world import BrokerWorld
from tests.support.memory_world import MemoryWorld
from tests.support.ordered_support import NEVER, Row, Tail, all_rows, rows, rows_of
from tests.support.windows_support import TIMEOUT_S


@pytest.fixture
def orders(memory: MemoryWorld) -> MemoryWorld:
    """Two partitions, in which seconds go up and down; few records a batch."""
    memory.create("orders", partitions=2)
    memory.write("orders", 0, *range(0, 40, 2))
    memory.write("orders", 1, *range(39, 0, -2))
    return memory


def wanted(world: MemoryWorld) -> list[Row]:
    """Everything in it, in order."""
    return sorted(
        rows(world.tp("orders", 0), *range(0, 40, 2))
        + rows(world.tp("orders", 1), *range(39, 0, -2))
    )


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches from few records."""
    from kafka_ordered_ops.core.release import ordered_release, sorting

    in_order = sorting.in_order

    def small(*args: Any, **options: Any) -> Iterator[Any]:
        return in_order(*args, **{**options, "rows_max": 7})

    monkeypatch.setattr(ordered_release, "in_order", small)


def test_a_poll_returns_in_time(orders: MemoryWorld) -> None:
    """With records as soon as there are some, with None when the time is over, and at once with 0."""
    with Tail(orders, "orders", grace=NEVER, max_out_of_orderness=NEVER) as tail:
        # Whatever is imported for the first record.
        tail.until_at(orders.tp("orders", 1), 20)
        for timeout_s, most in ((0, 0.5), (0.3, 1.0)):
            began = time.monotonic()
            assert tail.poll(timeout_s) is None
            assert timeout_s <= time.monotonic() - began < most
        for wrong in (-1, "1", float("nan"), None):
            with pytest.raises(ConfigError, match="timeout_s"):
                tail.reader.poll(wrong)  # type: ignore[arg-type]
    with OrderedReader(orders.settings, orders.named("orders")) as reader:
        found = []
        while (batch := reader.poll(TIMEOUT_S)) is not None:
            found.append(batch)
        assert reader.is_done
        assert reader.poll(TIMEOUT_S) is None
        assert all_rows(found) == wanted(orders)
        assert len(found) > 3


def test_iteration_and_polls_share_the_records(orders: MemoryWorld) -> None:
    """Each comes once, whoever asks; a second iteration goes on where the first has ended."""
    with OrderedReader(orders.settings, orders.named("orders")) as reader:
        first = next(iter(reader))
        second = reader.poll(TIMEOUT_S)
        assert second is not None
        assert all_rows([first, second, *reader]) == wanted(orders)
        assert list(reader) == []


def test_asynchronous_iteration(orders: MemoryWorld) -> None:
    """The same records, while the event loop goes on."""

    async def read() -> tuple[list[Row], int]:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0)
                beats += 1

        heart = asyncio.create_task(beat())
        with OrderedReader(orders.settings, orders.named("orders")) as reader:
            found = [row async for batch in reader for row in rows_of(batch)]
        heart.cancel()
        return found, beats

    found, beats = asyncio.run(read())
    assert found == wanted(orders)
    assert beats > 0


def test_a_cancelled_iteration_loses_and_repeats_nothing(orders: MemoryWorld) -> None:
    """Wherever it is cancelled: the batch under way is the first of the next iteration."""

    async def read() -> list[Row]:
        found: list[Row] = []
        with Tail(orders, "orders", grace=NEVER, order="partition") as tail:

            async def some() -> None:
                async for batch in tail.reader:
                    found.extend(rows_of(batch))

            for number in range(60):
                task = asyncio.create_task(some())
                await asyncio.sleep(number % 7 / 500)
                orders.write("orders", number % 2, 100 + number)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            deadline = time.monotonic() + TIMEOUT_S
            while len(found) < 99:
                assert time.monotonic() < deadline
                if (batch := tail.reader.poll(0.1)) is not None:
                    found.extend(rows_of(batch))
            return found

    found = asyncio.run(read())
    assert len(found) == len(set(found)) == 99
    for number in (0, 1):
        offsets = [row.offset for row in found if row.partition == number]
        assert offsets == list(range(len(offsets)))


def test_a_cancelled_iteration_and_its_end(orders: MemoryWorld) -> None:
    """The block ends while a thread still reads: nothing is closed under its feet."""

    async def read() -> None:
        async def some() -> None:
            with Tail(orders, "orders", grace=NEVER) as tail:
                async for _ in tail.reader:
                    pass

        for number in range(8):
            task = asyncio.create_task(some())
            await asyncio.sleep(number / 80)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(read())


def test_arrow_libraries_take_it(orders: MemoryWorld) -> None:
    """As a stream, by Arrow's own protocol."""

    def table(read: Callable[[OrderedReader], Any]) -> list[Row]:
        with OrderedReader(orders.settings, orders.named("orders")) as reader:
            return rows_of(pa.table(read(reader)))

    assert table(lambda reader: reader.to_reader().read_all()) == wanted(orders)
    assert table(pa.RecordBatchReader.from_stream) == wanted(orders)
    assert table(pa.table) == wanted(orders)
    assert table(lambda reader: pl.DataFrame(reader).to_arrow()) == wanted(orders)
    duckdb = pytest.importorskip("duckdb")
    with OrderedReader(orders.settings, orders.named("orders")) as reader:
        stream = reader.to_reader()  # noqa: F841 - DuckDB finds it by its name
        [(count,)] = duckdb.sql("select count(*) from stream").fetchall()
    assert count == 40


def test_errors_pass_through_arrow(orders: MemoryWorld) -> None:
    """A stream that fails is not one that ends."""
    with Tail(orders, "orders", grace=NEVER) as tail:
        stream = tail.reader.to_reader()
        orders.delete("orders")
        with pytest.raises(UnknownTopicError, match="orders"):
            stream.read_all()
        assert not tail.reader.is_done


def test_the_state_of_partitions(orders: MemoryWorld) -> None:
    """A row for each, with documented columns; another thread may ask, and after the end too."""
    reader = OrderedReader(orders.settings, orders.named("orders"))
    with pytest.raises(ClosedError, match="before"):
        reader.state()
    assert not reader.is_live
    with reader:
        assert reader.state().column("position").to_pylist() == [0, 0]
        list(reader)
    state = reader.state()
    assert state.schema == STATE_SCHEMA
    assert state.column("topic").to_pylist() == [orders.named("orders")] * 2
    assert state.column("partition").to_pylist() == [0, 1]
    for name, value in (("position", 20), ("end", 20), ("lag", 0), ("held", 0), ("late", 0)):
        assert state.column(name).to_pylist() == [value] * 2
    assert state.column("live").to_pylist() == [True] * 2
    assert state.column("holds_back").to_pylist() == [False] * 2


def test_progress_ends_at_everything(orders: MemoryWorld) -> None:
    """Called as the read goes on, and at its end."""
    calls: list[tuple[int, int]] = []
    with OrderedReader(
        orders.settings,
        orders.named("orders"),
        progress=lambda done, known: calls.append((done, known)),
    ) as reader:
        list(reader)
    assert calls[-1] == (40, 40)
    assert calls == sorted(calls)


def test_a_reader_in_the_middle_of_itself_is_refused(orders: MemoryWorld) -> None:
    """A callback that uses its reader gets an error, where it would wait for itself for ever."""
    uses: list[Callable[[], object]] = [
        lambda: reader.poll(0),
        lambda: reader.close(),
        lambda: next(iter(reader)),
    ]
    for use in uses:
        reader = OrderedReader(
            orders.settings,
            orders.named("orders"),
            progress=lambda *_: _call(use),  # noqa: B023
        )
        with reader, pytest.raises(ConfigError, match="own `progress`"):
            list(reader)


def _call(use: Callable[[], object]) -> None:
    use()


def test_use_outside_of_the_block(orders: MemoryWorld) -> None:
    """Before it, after it, after `close` in its middle, and a second time: refused, and never waited for."""
    reader = OrderedReader(orders.settings, orders.named("orders"))
    uses: list[Callable[[], object]] = [
        lambda: reader.poll(1),
        lambda: list(reader),
        lambda: reader.to_reader().read_all(),
        lambda: asyncio.run(_first(reader)),
    ]
    for use in uses:
        with pytest.raises(ClosedError, match="block"):
            use()
    with reader:
        assert reader.poll(TIMEOUT_S) is not None
        with pytest.raises(ClosedError, match="once"), reader:
            pass
        reader.close()
        for use in uses:
            with pytest.raises(ClosedError, match="block"):
                use()
    reader.close()
    with pytest.raises(ClosedError, match="once"), reader:
        pass


async def _first(reader: OrderedReader) -> Any:
    iterator: AsyncIterator[pa.RecordBatch] = reader.__aiter__()
    return await iterator.__anext__()


def test_an_error_in_the_block_is_the_error(orders: MemoryWorld) -> None:
    """The reader is closed all the same."""
    reader = OrderedReader(orders.settings, orders.named("orders"))

    def fail() -> None:
        with reader:
            next(iter(reader))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(ClosedError):
        reader.poll(1)


def test_an_interrupted_read_does_not_look_finished(
    orders: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever catches a Ctrl-C in the middle of a turn must not take what came for everything."""
    with OrderedReader(orders.settings, orders.named("orders")) as reader:

        def interrupted() -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(reader._engine._reader, "turn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(reader)
        assert not reader.is_done
        for use in (lambda: reader.poll(1), lambda: list(reader)):
            with pytest.raises(ClosedError, match="ended with KeyboardInterrupt"):
                use()


def test_an_interruption_that_the_client_loses() -> None:
    """It is one all the same; other failures of the client stay what they are."""
    with pytest.raises(KeyboardInterrupt), interruptible():
        raise SystemError("<method 'consume'> returned NULL without setting an exception")
    with pytest.raises(SystemError, match="other"), interruptible():
        raise SystemError("other")


def test_two_threads_take_turns(orders: MemoryWorld) -> None:
    """Each record goes to one of them; the state is there for a third."""
    found: list[list[Row]] = [[], []]
    with OrderedReader(orders.settings, orders.named("orders")) as reader:

        def some(number: int) -> None:
            while not reader.is_done:
                if (batch := reader.poll(0.01)) is not None:
                    found[number] += rows_of(batch)

        threads = [threading.Thread(target=some, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert reader.state().num_rows == 2
        for thread in threads:
            thread.join()
    assert sorted(found[0] + found[1]) == wanted(orders)


def test_a_forked_process_does_not_use_it(
    orders: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor close what belongs to its parent."""
    with OrderedReader(orders.settings, orders.named("orders")) as reader:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: 1)
            with pytest.raises(NotShareableError):
                reader.poll(1)
            reader.close()
        assert all_rows(reader) == wanted(orders)


@pytest.mark.long
def test_nothing_is_left_of_many_readers(broker: BrokerWorld) -> None:
    """No threads and no file descriptors after 200 of them, bounded and following, read or not."""
    broker.create("orders", partitions=3)
    broker.write("orders", 0, 1, 2, 3)

    def use(number: int) -> None:
        options: dict[str, Any] = {"follow": True} if number % 2 else {}
        with OrderedReader(broker.settings, broker.named("orders"), **options) as reader:
            if number % 3:
                reader.poll(0.01)

    def leftovers() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    for number in range(12):
        use(number)
    deadline = time.monotonic() + TIMEOUT_S
    before = leftovers()
    for number in range(200):
        use(number)
    while any(now > then + 3 for now, then in zip(leftovers(), before, strict=True)):
        assert time.monotonic() < deadline + 60, (before, leftovers())
        time.sleep(0.1)


_INTERRUPTED = """
import sys
from kafka_ordered_ops.ordered.options import Ordering
from kafka_ordered_ops.ordered.ordered_reader import OrderedReader
bootstrap, topic, *group = sys.argv[1:]
with OrderedReader(
    bootstrap, topic, follow=True, group_id=group[0] if group else None, order=Ordering(grace="PT1000H")
) as reader:
    while not reader.is_live:
        reader.poll(0.1)
    print("live", flush=True)
    for batch in reader:
        pass
"""


@pytest.mark.long
@pytest.mark.parametrize("is_away", [False, True], ids=["there", "away"])
@pytest.mark.parametrize("in_group", [False, True], ids=["alone", "in a group"])
def test_ctrl_c_ends_it_soon(is_away: bool, in_group: bool) -> None:
    """Within about a second, while the brokers answer and while they do not."""
    with EmbeddedKafka() as kafka:
        with BrokerWorld(kafka.bootstrap) as world:
            world.create("orders", partitions=2)
            world.write("orders", 0, 1)
        arguments = [kafka.bootstrap, world.named("orders"), *(["live"] if in_group else [])]
        with subprocess.Popen(
            [sys.executable, "-c", _INTERRUPTED, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "live\n"
                if is_away:
                    kafka.stop()
                    time.sleep(5)
                began = time.monotonic()
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=TIMEOUT_S)
                took_s = time.monotonic() - began
            finally:
                process.kill()
        assert "KeyboardInterrupt" in errors
        assert process.returncode != 0
        # About 1.2 s at most where nothing else runs; the client alone would wait for 35 s.
        assert took_s < 5


_POLLS = """
import sys
from kafka_ordered_ops import OrderedReader
from kafka_ordered_ops.testing import InMemoryKafka
with InMemoryKafka() as kafka:
    kafka.create_topic("t")
    kafka.produce("t", value=b"x")
    with OrderedReader(kafka.bootstrap, "t") as reader:
        before = set(sys.modules)
        assert reader.poll(5).num_rows == 1
        print(sorted(name for name in set(sys.modules) - before if name.startswith("pandas")))
"""


@pytest.mark.slow
def test_the_first_poll_imports_no_pandas() -> None:
    """PyArrow does so with its first array: when the reader is opened, and not while records wait."""
    done = subprocess.run(
        [sys.executable, "-c", _POLLS], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "[]\n", done.stderr
