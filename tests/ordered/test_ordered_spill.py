"""Records on disk: temporary folders and their ends, full disks, and runs that nobody wants any more."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kafka_ordered_ops import OrderedReader, ReadLimits, SpillError
from kafka_ordered_ops.ordered.folder import temporary_folder
from kafka_ordered_ops.ordered.spill import SpillFiles
from tests.support.memory_world import MemoryWorld
from tests.support.ordered_support import NEVER, Tail, all_rows, rows
from tests.support.windows_support import TIMEOUT_S


def batch(number: int, count: int = 1_000) -> pa.RecordBatch:
    """Some rows that do not compress."""
    values = np.random.default_rng(number).bytes(count * 64)
    column = pa.array([values[n * 64 : n * 64 + 64] for n in range(count)])
    return pa.RecordBatch.from_arrays([column], names=["value"])


def batches(count: int) -> Iterator[pa.RecordBatch]:
    """A run."""
    return map(batch, range(count))


def left_in(folder: Path) -> list[str]:
    """The temporary folders in a folder."""
    return [name for name in os.listdir(folder) if name.startswith("kafka-ordered-ops-")]


# --- folders ------------------------------------------------------------------------------------------


def test_a_folder_lives_as_long_as_its_block(tmp_path: Path) -> None:
    """With what is in it; others of the same time stay, whoever opens or ends first."""
    with temporary_folder(str(tmp_path)) as one:
        with temporary_folder(str(tmp_path)) as other:
            Path(one, "run").write_bytes(b"1")
            Path(other, "run").write_bytes(b"2")
            assert len(left_in(tmp_path)) == 2
        assert Path(one, "run").read_bytes() == b"1"
        assert not Path(other).exists()
    assert left_in(tmp_path) == []


_KILLED = """
import sys, time
from kafka_ordered_ops.ordered.folder import temporary_folder
with temporary_folder(sys.argv[1]) as folder:
    open(f"{folder}/run", "wb").write(b"x" * 1000)
    print("made", flush=True)
    time.sleep(1_000)
"""


def killed_holder(folder: Path) -> None:
    """A process that made a folder was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "made\n"
            before = set(left_in(folder))
            with temporary_folder(str(folder)):
                # That of a living process is left alone.
                assert before < set(left_in(folder))
        finally:
            process.kill()


def test_the_next_one_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    """And leaves what is not its own, or in use."""
    (tmp_path / "kafka-ordered-ops-notes").mkdir()
    (tmp_path / "other").mkdir()
    killed_holder(tmp_path)
    left = set(left_in(tmp_path))
    assert len(left) == 2
    with temporary_folder(str(tmp_path)):
        assert len(set(left_in(tmp_path)) & left) == 1
    assert left_in(tmp_path) == ["kafka-ordered-ops-notes"]
    assert (tmp_path / "other").exists()


def test_a_removal_that_is_killed_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark by which folders are found goes last."""
    removed: list[str] = []

    def unlink(path: str, *, dir_fd: int | None = None) -> None:
        removed.append(path)
        os_unlink(path, dir_fd=dir_fd)

    os_unlink = os.unlink
    with temporary_folder(str(tmp_path)) as folder:
        Path(folder, "run").write_bytes(b"1")
        monkeypatch.setattr(os, "unlink", unlink)
    monkeypatch.undo()
    assert [os.path.basename(path) for path in removed] == ["run", ".in-use"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """Names the place."""
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(SpillError, match="file/below"),
        temporary_folder(str(tmp_path / "file" / "below")),
    ):
        pass


# --- runs ----------------------------------------------------------------------------------------------


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    """By any batch, before and after the next is written; removed, they are gone."""
    spill = SpillFiles(lambda: str(tmp_path))
    runs = [spill.write(batches(3)) for _ in range(3)]
    for run in runs:
        assert run.num_batches == 3
        assert run.batch(2).equals(batch(2))
        assert run.batch(0).equals(batch(0))
        assert run.nbytes > 100_000
    for run in runs:
        run.remove()
        run.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_compresses_is_compressed(tmp_path: Path) -> None:
    """And what does not is written as it is: packing it would only take time."""
    text = pa.RecordBatch.from_arrays([pa.array([b"the same again" * 5] * 1_000)], names=["value"])
    spill = SpillFiles(lambda: str(tmp_path))
    packed, plain = spill.write(iter([text])), spill.write(batches(1))
    assert packed.nbytes < text.nbytes / 5
    assert plain.nbytes > batch(0).nbytes
    assert packed.batch(0).equals(text)


def test_a_run_that_cannot_be_written(tmp_path: Path) -> None:
    """Is an error of this call, which names the file; nothing of it is left, and the next one may succeed."""

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(0)
        raise KeyboardInterrupt

    spill = SpillFiles(lambda: str(tmp_path / "gone"))
    with pytest.raises(SpillError, match=r"gone.*cannot be written.*Nothing is lost"):
        spill.write(batches(1))
    (tmp_path / "gone").mkdir()
    with pytest.raises(KeyboardInterrupt):
        spill.write(broken())
    assert list((tmp_path / "gone").iterdir()) == []
    assert spill.write(batches(1)).batch(0).equals(batch(0))


# --- readers --------------------------------------------------------------------------------------------


def fill(world: MemoryWorld, partitions: int = 2, records: int = 6_000) -> None:
    """Random times; more than one turn of reading."""
    random = np.random.default_rng(1)
    world.create("orders", partitions=partitions)
    for number in range(partitions):
        times = random.integers(0, 1_000, records).tolist()
        world.write_content("orders", number, [(one, None, b"x" * 50, ()) for one in times])


def test_nothing_is_left_by_a_reader_closed_in_the_middle(
    memory: MemoryWorld, tmp_path: Path
) -> None:
    """Before it spills, after it, or between two batches of what comes from runs."""
    fill(memory)
    for polls in range(12):
        with OrderedReader(
            memory.settings,
            memory.named("orders"),
            limits=ReadLimits(held_records_max=100, temporary_folder=tmp_path),
            order="partition",
        ) as reader:
            for _ in range(polls):
                reader.poll(0)
        assert left_in(tmp_path) == []


def test_a_partition_given_up_while_it_is_on_disk(memory: MemoryWorld, tmp_path: Path) -> None:
    """The group takes it away: the read of the others goes on."""
    memory.create("orders", partitions=2)
    memory.write("orders", 0, *range(4_500))
    options: dict[str, Any] = {
        "grace": NEVER,
        "group_id": "live",
        "now": 20_000.0,
        "held_records_max": 50,
        "temporary_folder": tmp_path,
    }
    with Tail(memory, "orders", **options) as first:
        first.until_at(memory.tp("orders", 0), 4_500)
        with Tail(memory, "orders", **options) as second:
            for _ in range(200):
                first.poll()
                second.poll()
                if second.reader.state().num_rows == first.reader.state().num_rows == 1:
                    break
            kept = first.reader.state().to_pylist()[0]["partition"]
            memory.write("orders", 1, 9_999)
            memory.write("orders", 0, 9_999)
            for tail in (first, second):
                tail.until(lambda: bool(tail.rows))  # noqa: B023
            assert {row.partition for row in first.rows} == {kept}
            owner = first if kept == 0 else second
            owner.until(lambda: len(owner.rows) == 4_501)
            assert owner.rows == rows(memory.tp("orders", 0), *range(4_500), 9_999)
    assert left_in(tmp_path) == []


_SPILLS = """
import resource, sys
from kafka_ordered_ops.core.errors import SpillError
from kafka_ordered_ops.ordered.ordered_reader import OrderedReader
from kafka_ordered_ops.ordered.options import ReadLimits
from kafka_ordered_ops.testing import InMemoryKafka
folder, what, limit = sys.argv[1:]
with InMemoryKafka() as kafka:
    kafka.create_topic("orders", 2)
    for n in range(16_000):
        kafka.produce("orders", partition=n % 2, timestamp_ms=10**12 - n * 7919 % 16_000, value=b"%d" % n * 60)
    options = {"limits": ReadLimits(temporary_folder=folder, held_records_max=100)}
    if what == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    with OrderedReader(kafka.settings, "orders", **options) as reader:
        if what == "kill":
            while not reader._engine._release.held._runs:
                reader.poll(0)
            print("spilled", flush=True)
            sys.stdin.read()
        try:
            print(sum(batch.num_rows for batch in reader))
        except SpillError as error:
            print("SpillError", error)
            assert not reader.is_done
"""


@pytest.mark.slow
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A `SpillError` that names the file; nothing is left, and with room again everything comes."""
    for what, limit, wanted in (("limit", 5_000, "SpillError"), ("no", 0, "16000")):
        done = subprocess.run(
            [sys.executable, "-c", _SPILLS, str(tmp_path), what, str(limit)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        assert done.stdout.startswith(wanted), done.stderr
        assert left_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_small_file_system_that_is_full(tmp_path: Path) -> None:
    """As with a limit: the error is the system's own, of a real disk."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SPILLS, str(disk), "no", "0"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        assert done.stdout.startswith("SpillError")
        assert "No space left" in done.stdout
        assert left_in(disk) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_reader_killed_while_it_spills(tmp_path: Path) -> None:
    """Its folder stays, with the records in it, until the next reader with the same folder begins to spill."""
    with subprocess.Popen(
        [sys.executable, "-c", _SPILLS, str(tmp_path), "kill", "0"],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "spilled\n"
        process.kill()
    [name] = left_in(tmp_path)
    with open(tmp_path / name / ".in-use", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    world = MemoryWorld()
    with world:
        fill(world)
        with OrderedReader(
            world.settings,
            world.named("orders"),
            limits=ReadLimits(held_records_max=100, temporary_folder=tmp_path),
        ) as reader:
            assert len(all_rows(reader)) == 12_000
    assert left_in(tmp_path) == []


def test_what_failed_to_spill_is_not_committed(memory: MemoryWorld, tmp_path: Path) -> None:
    """Records that were on their way to the disk are read again by the next member."""
    memory.create("orders", partitions=2)
    memory.write("orders", 0, *range(7_000))
    gone = tmp_path / "gone"
    options: dict[str, Any] = {
        "grace": NEVER,
        "group_id": "live",
        "commit_interval_s": 0.01,
        "now": 20_000.0,
    }

    def fail() -> None:
        with Tail(memory, "orders", held_records_max=50, temporary_folder=gone, **options) as tail:
            tail.until(lambda: bool(tail.reader._engine._release.held._runs))
            spill = tail.reader._engine._release._spill
            assert isinstance(spill, SpillFiles)
            spill._made = str(tmp_path / "nowhere")
            memory.write("orders", 0, *range(7_000, 12_000))
            tail.until(lambda: False)

    with pytest.raises(SpillError, match="nowhere"):
        fail()
    with Tail(memory, "orders", **options) as tail:
        memory.write("orders", 1, 20_000)
        tail.until(lambda: len(tail.rows) >= 12_000)
        assert tail.rows == rows(memory.tp("orders"), *range(12_000))
