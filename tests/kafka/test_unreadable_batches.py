"""Batches that the client cannot unpack: named by their offsets, passed over where nothing of them is wanted, or lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import (
    ClientSettings,
    CorruptRecordError,
    Earliest,
    ReadError,
    RecordsLostError,
    RecordTooLargeError,
    Window,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, OnDataLoss, TopicPartition
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_reader
from kafka_ordered_ops.kafka.read import quiet
from kafka_ordered_ops.windows import OrderedWindows
from kafka_ordered_ops.windows.queries.groups import list_groups
from tests.conftest import MakeTopic, Produce
from tests.support.bombs import BOMB, put_batch
from tests.support.ledger_support import ledger as ledger
from tests.support.ledger_support import place_of, service
from tests.support.logs import read_plan, read_ranges
from tests.support.readers import READERS
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at, before, offsets_of

COMMITTED = Isolation.READ_COMMITTED
LIMIT = "receive.message.max.bytes"


def settings(bootstrap: str, **more: str) -> ClientSettings:
    """Of a client on the broker."""
    return ClientSettings.of(
        {
            "bootstrap.servers": bootstrap,
            **{key.replace("_", "."): one for key, one in more.items()},
        }
    )


#: Settings of a client on the broker, with more of them.
By = Callable[..., ClientSettings]


@pytest.fixture(params=READERS)
def by(bootstrap: str, request: pytest.FixtureRequest) -> By:
    """Either reader reads."""
    return partial(settings, bootstrap, reader=request.param)


def small(produce: Produce, topic: str, seconds: Sequence[float]) -> None:
    """Records of one byte, each in a batch of its own."""
    for second in seconds:
        produce([(topic, 0, None, b"x", round(BASE_MS + second * 1000), ())])


@pytest.fixture
def bombed(bootstrap: str, topic: MakeTopic, produce: Produce) -> str:
    """Offsets 0 to 2, a bomb at 3 to 6, and 7 to 9: seconds 0 to 9."""
    name = topic()
    small(produce, name, range(3))
    put_batch(bootstrap, name, BOMB, codec="zstd", seconds=range(3, 7))
    small(produce, name, range(7, 10))
    return name


def read(
    settings: ClientSettings, topic: str, wanted: OffsetSet, into: list[int] | None = None
) -> list[int]:
    """The offsets that a reader returns, those before an error included."""
    offsets = [] if into is None else into
    by_partition = {TopicPartition(topic, 0): wanted}
    for batch in read_ranges(settings, "g", COMMITTED, by_partition, columns=["offset"]):
        column: Any = batch["offset"]
        offsets += column.to_pylist()
    return offsets


@pytest.mark.parametrize(
    ("wanted", "lost"),
    [
        (OffsetSet.of((0, 10)), [(3, 7)]),
        (OffsetSet.of((5, 8)), [(5, 7)]),
        (OffsetSet.of((0, 1), (4, 5)), [(4, 5)]),
    ],
)
def test_a_batch_beyond_the_limit_is_named_with_its_offsets(
    by: By, bombed: str, wanted: OffsetSet, lost: list[tuple[int, int]]
) -> None:
    """All of them that are wanted, what takes to read it, and how to go on without."""
    found: list[int] = []
    with pytest.raises(RecordTooLargeError) as caught:
        read(by(), bombed, wanted, into=found)
    assert found == [offset for offset in range(3) if offset in wanted]
    assert caught.value.unreadable == {f"{bombed}[0]": lost}
    text = str(caught.value)
    assert f"{bombed}[0] offsets [3, 7)" in text
    assert f"{LIMIT} to " in text
    assert "on_data_loss='warn'" in text
    # What it names is enough.
    enough = text.split(f"set {LIMIT} to ")[1].split(" or more")[0].replace(",", "")
    assert read(by(receive_message_max_bytes=enough), bombed, wanted) == [
        offset for offset in range(10) if offset in wanted
    ]


@pytest.mark.parametrize(
    "wanted",
    [
        OffsetSet.of((0, 3), (7, 10)),
        OffsetSet.of((0, 3)),
        OffsetSet.of((7, 10)),
        OffsetSet.of((2, 3), (9, 10)),
    ],
)
def test_a_batch_is_passed_over_where_nothing_in_it_is_wanted(
    by: By, bombed: str, wanted: OffsetSet
) -> None:
    """As when its offsets are lost: the records around it are read."""
    assert read(by(), bombed, wanted) == [n for n in range(10) if n in wanted]


@pytest.mark.slow
def test_a_batch_whose_end_is_not_found_is_not_passed_over(
    bootstrap: str, group_id: str, ledger: str, bombed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody answers in time: the error names no offsets, nothing counts as lost, and the next attempt finds them.

    The native reader reads where a batch ends, and asks nobody.
    """
    by_librdkafka = settings(bootstrap, reader="librdkafka")
    with OrderedWindows(by_librdkafka, group_id, ledger_topic=ledger, timeout_s=60) as windows:
        with monkeypatch.context() as patch:
            patch.setattr(quiet, "EXPLAIN_TIMEOUT_S", 0.0)
            with pytest.raises(CorruptRecordError, match="at offset 3") as caught:
                read(by_librdkafka, bombed, OffsetSet.of((0, 10)))
            assert caught.value.unreadable == {}
            with pytest.raises(CorruptRecordError, match="was not found in time"):
                windows.plan(warned(before(bombed, 2, Earliest())), "w")
        windows.plan(warned(before(bombed, 2, Earliest())), "w")
        assert lost_of(windows, "w") == [(3, 7)]


@pytest.mark.slow
def test_an_open_read_names_where_to_go_on(by: By, bootstrap: str, bombed: str) -> None:
    """Its reader stops the partition, adds it again, and has the rest."""
    tp = TopicPartition(bombed, 0)
    endless = OffsetSet.of((0, 2**63 - 1))
    offsets: list[int] = []
    with open_reader(by(), "g", COMMITTED, {tp: endless}) as reader:
        with pytest.raises(RecordTooLargeError, match=r"continue from offset 7") as caught:
            _turns(reader, offsets, 100)
        [(_, end)] = caught.value.unreadable[str(tp)]
        reader.stop(tp)
        reader.add(tp, endless.within(end, endless.end))
        _turns(reader, offsets, 6)
    assert offsets == [0, 1, 2, 7, 8, 9]


def _turns(reader: ReaderDoor, offsets: list[int], count: int) -> None:
    """Turns of a reader, until there are so many offsets."""
    while len(offsets) < count:
        for turn in reader.turn():
            if turn.records is not None:
                column: Any = turn.records["offset"]
                offsets += column.to_pylist()


_PEAK = """
import resource, sys
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_reader
from kafka_ordered_ops.kafka.read.reader import RangeReader
from kafka_ordered_ops.kafka.settings import ClientSettings

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
wanted = {TopicPartition(topic, 0): OffsetSet.of((0, count))}
before, records, most = peak(), 0, 0
with RangeReader(ClientSettings.of(bootstrap), "g", Isolation.READ_COMMITTED, wanted) as reader:
    for batch in reader.batches():
        records += batch.num_rows
        most = max(most, batch.nbytes)
print(records, most, peak() - before)
"""


@pytest.mark.long
@pytest.mark.parametrize("codec", ["gzip", "lz4"])
def test_large_records_of_a_small_batch_are_read_few_at_a_time(
    bootstrap: str, topic: MakeTopic, codec: str
) -> None:
    """The client unpacks 200 MB, which cannot be prevented; nothing else is held of them all at once."""
    name = topic()
    put_batch(bootstrap, name, (20_000_000,) * 10, codec=codec)
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, bootstrap, name, "10"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    records, most, peak = map(int, done.stdout.split())
    assert records == 10
    assert most < 21_000_000
    assert peak < 200 + 160


def test_what_a_broker_returns_at_once_is_bounded(
    bootstrap: str, topic: MakeTopic, produce: Produce
) -> None:
    """The client's bound, of all partitions together, is far below its own 50 MiB, and may be set."""
    config = settings(bootstrap).consumer(group_id="g", isolation=COMMITTED)
    assert int(config["fetch.max.bytes"]) == 1024**2
    other = settings(bootstrap, fetch_max_bytes="9000000")
    assert other.consumer(group_id="g", isolation=COMMITTED)["fetch.max.bytes"] == "9000000"


# --- windows -----------------------------------------------------------------------------------------


def warned(window: Window) -> Window:
    """The same, with losses accepted."""
    return replace(window, on_data_loss=OnDataLoss.WARN)


def lost_of(windows: OrderedWindows, window_id: str) -> list[tuple[int, int]]:
    """The offsets that a window has recorded as lost."""
    return [pair for offsets in windows.show(window_id).plan.lost.values() for pair in offsets]


@pytest.mark.slow
def test_a_window_goes_on_once_its_loss_is_accepted(windows: OrderedWindows, bombed: str) -> None:
    """Planned by the index alone, it fails when it is read; taken up with `warn`, it has the rest."""
    window = before(bombed, 100, Earliest())
    plan = windows.plan(window, "w")
    with pytest.raises(RecordTooLargeError, match=r"offsets \[3, 7\)"):
        read_plan(windows.settings, plan)
    again = windows.plan(window, "w")
    assert again.taken == plan.taken
    plan = windows.plan(warned(window), "w")
    assert lost_of(windows, "w") == [(3, 7)]
    assert offsets_of(read_plan(windows.settings, plan)) == {0, 1, 2, 7, 8, 9}
    # The policy of the next attempt counts.
    with pytest.raises(RecordsLostError, match=r"\[3, 7\)"):
        windows.plan(window, "w")
    windows.commit(windows.plan(warned(window), "w"))
    assert windows.offsets().lag == 0


@pytest.mark.slow
def test_a_plan_that_has_to_read_the_batch_records_it_as_lost(
    windows: OrderedWindows, bombed: str
) -> None:
    """Its times are not known: of several windows the first has it, and no later one asks for it again."""
    earlier, later = before(bombed, 2, Earliest()), before(bombed, 8.5)
    with pytest.raises(RecordTooLargeError, match=r"offsets \[3, 7\)"):
        windows.plan(before(bombed, 1.5, Earliest()), "x")
    plan = windows.plan(warned(earlier), "earlier")
    assert lost_of(windows, "earlier") == [(3, 7)]
    assert offsets_of(read_plan(windows.settings, plan)) == {0, 1}
    windows.commit(plan)
    plan = windows.plan(later, "later")
    assert offsets_of(read_plan(windows.settings, plan)) == {2, 7, 8}


@pytest.mark.slow
def test_times_are_searched_past_the_batch(
    windows: OrderedWindows, bootstrap: str, topic: MakeTopic, produce: Produce
) -> None:
    """Starting offsets by a time that the index does not prove, and liveness, do not end at it."""
    name = topic()
    small(produce, name, [30, 1])
    put_batch(bootstrap, name, BOMB, codec="zstd", seconds=[2, 3, 4, 5])
    assert not windows.live(before(name, 45)).is_live
    small(produce, name, [50])
    assert windows.live(before(name, 45)).is_live
    window = warned(Window(name, at(40), starting_offsets="-PT20S"))
    windows.plan(window, "w")
    assert offsets_of(read_plan(windows.settings, windows.plan(window, "w"))) == {0, 1}


@pytest.mark.long
def test_a_bomb_in_the_ledger_stops_nobody(
    bootstrap: str, topic: MakeTopic, produce: Produce, ledger: str, orders: str
) -> None:
    """Whoever may write there: each group plans, commits, and is listed."""
    with service(bootstrap, "bombed", ledger) as windows:
        windows.plan(before(orders, 12, Earliest()), "open")
        place = place_of(ledger, "bombed")
        put_batch(bootstrap, ledger, BOMB, codec="zstd", partition=place.partition)
        for one in (windows, service(bootstrap, "bombed", ledger)):
            one.plan(before(orders, 12), "open")
        windows.commit(windows.show("open").plan)
        groups = list_groups(windows.settings, ledger_topic=ledger)
        assert [one.group_id for one in groups] == ["bombed"]


# --- damage ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged() -> Iterator[tuple[str, str]]:
    """A broker, and a topic of three batches of two records, the second of them with a flipped bit on the disk."""
    with EmbeddedKafka() as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        new = NewTopic("damaged", 1, 1, config={"retention.ms": "-1"})
        admin.create_topics([new])["damaged"].result(TIMEOUT_S)
        for _ in range(3):
            put_batch(kafka.bootstrap, "damaged", (100, 100), codec="none", fill=b"x")
        [log] = kafka.data_dir.glob("damaged-0/*.log")
        # The broker serves the file as it is. The three batches are alike: this is a value of the second one.
        with log.open("r+b") as file:
            file.seek(log.stat().st_size // 2)
            [byte] = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
        yield kafka.bootstrap, "damaged"


@pytest.mark.long
def test_a_checksum_that_fails_is_named_with_the_offsets_of_its_batch(
    by: By,
    damaged: tuple[str, str],
) -> None:
    """The client's error has only the first; and without the batch the others are read."""
    bootstrap, topic = damaged
    settings = by(bootstrap_servers=bootstrap)
    found: list[int] = []
    with pytest.raises(CorruptRecordError, match=r"damaged\[0\] offsets \[2, 4\)") as caught:
        read(settings, topic, OffsetSet.of((0, 6)), into=found)
    assert found == [0, 1]
    assert caught.value.unreadable == {"damaged[0]": [(2, 4)]}
    assert "Restore the partition from a replica" in str(caught.value)
    assert isinstance(caught.value, ReadError)
    rest = OffsetSet.of((0, 2), (4, 6))
    assert read(settings, topic, rest) == [0, 1, 4, 5]


@pytest.mark.long
def test_a_window_with_a_damaged_batch_goes_on_once_its_loss_is_accepted(
    damaged: tuple[str, str],
) -> None:
    """As with one that is too large."""
    bootstrap, topic = damaged
    with OrderedWindows({"bootstrap.servers": bootstrap}, "g") as windows:
        window = before(topic, 100, Earliest())
        with pytest.raises(CorruptRecordError, match=r"on_data_loss='warn'"):
            read_plan(windows.settings, windows.plan(window, "w"))
        plan = windows.plan(warned(window), "w")
        assert lost_of(windows, "w") == [(2, 4)]
        assert offsets_of(read_plan(windows.settings, plan)) == {0, 1, 4, 5}
        windows.commit(plan)
