"""Windows staged as Parquet from a real broker."""

from __future__ import annotations

import errno
from collections.abc import Callable
from io import BufferedWriter
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import (
    ConfigError,
    SpillError,
    StagedOutput,
    UnknownTopicError,
    WindowCoveredError,
    WindowPlan,
    stage_window,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.disk.disk import Disk
from kafka_ordered_ops.ordered.records.pieces import pieces_of
from kafka_ordered_ops.ordered.records.slices import sample_of, slices_of
from kafka_ordered_ops.output.writing import stage_files
from tests.support.spark_support import (
    CUTOFF_MS,
    Row,
    part_of,
    plan_of,
    position,
    random_case,
    settings_of,
)
from tests.support.stages import control_of

MakeTopic = Callable[..., str]


def rows_of(output: StagedOutput) -> list[Row]:
    """The staged rows in the order of the files' names and of the rows within them."""
    return [Row.of(fields) for fields in _fields(output)]


def _fields(output: StagedOutput) -> list[dict[str, object]]:
    tables = [pq.read_table(path) for path in sorted(Path(output.stage_path).glob("part-*"))]
    table = pa.concat_tables(tables)
    ms = table["timestamp"].cast(pa.int64())
    return table.append_column("timestamp_ms", ms).to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_stage_holds_exactly_the_plan(
    bootstrap: str, topic: MakeTopic, tmp_path: Path, seed: int, ordered: bool
) -> None:
    """Random records with aborts and holes: the rows, their late flags and the facts are the plan's."""
    case = random_case(bootstrap, {topic(partitions=3): 3, topic(): 1}, seed=seed)
    output = stage_window(
        case.plan, settings_of(bootstrap), tmp_path, ordered=ordered, rows_per_file=17
    )
    rows = rows_of(output)
    assert (rows if ordered else sorted(rows, key=position)) == case.rows
    late = {(f["topic"], f["partition"], f["offset"]) for f in _fields(output) if f["late"]}
    assert late == case.late
    facts = dict(output.facts)
    assert facts.pop("bytes")
    assert facts.pop("elapsed_ms") is not None
    assert facts == {
        "records": len(rows),
        "out_of_order": case.out_of_order,
        "late": len(late),
        "timestamp_ms_min": case.rows[0].timestamp_ms,
        "timestamp_ms_max": case.rows[-1].timestamp_ms,
        "files": -(-len(rows) // 17),
    }
    assert output.exists()


def test_small_files_are_cut_by_bytes_too(
    bootstrap: str, topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large records make files of fewer rows, and one larger than a file has one of its own."""
    case = random_case(bootstrap, {topic(): 1}, seed=3)
    monkeypatch.setattr(stage_files, "FILE_BYTES_MAX", 1)
    output = stage_window(case.plan, settings_of(bootstrap), tmp_path)
    assert output.facts["files"] == len(case.rows)
    assert rows_of(output) == case.rows


@pytest.mark.parametrize("ordered", [True, False])
def test_an_empty_window_is_one_valid_file_without_rows(tmp_path: Path, ordered: bool) -> None:
    """Readers of an empty window find the columns; no broker is asked."""
    output = stage_window(plan_of([]), settings_of("127.0.0.1:1"), tmp_path, ordered=ordered)
    (path,) = Path(output.stage_path).glob("*.parquet")
    table = pq.read_table(path)
    assert table.num_rows == 0
    assert table.schema.names == [
        "topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers", "late"
    ]  # fmt: skip
    assert table.schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert output.facts["records"] == 0
    assert output.facts["timestamp_ms_min"] is None


def test_a_covered_window_is_never_staged(tmp_path: Path) -> None:
    """An empty output in the place of records that others deliver would hide them."""
    plan = plan_of([], content=PlanContent.COVERED)
    with pytest.raises(WindowCoveredError):
        stage_window(plan, settings_of("127.0.0.1:1"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_window_beyond_memory_waits_on_disk_and_leaves_nothing_there(
    bootstrap: str, topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, as the window that memory holds; a full disk is an error by name, and no stage."""
    case = random_case(bootstrap, {topic(): 1}, seed=4)
    output = stage_window(case.plan, settings_of(bootstrap), tmp_path, limit_bytes=100)
    assert rows_of(output) == case.rows
    control = control_of(tmp_path)
    assert not list(control.glob("kafka-ordered-ops-*"))
    output.discard()

    create = Disk.create

    def full(disk: Disk, path: str, *more: Any, **named: Any) -> BufferedWriter:
        if path.endswith(".arrow"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(disk, path, *more, **named)

    monkeypatch.setattr(Disk, "create", full)
    with pytest.raises(SpillError, match=r"run-000000.arrow.*No space left"):
        stage_window(case.plan, settings_of(bootstrap), tmp_path, limit_bytes=100)
    assert not StagedOutput.of(case.plan, tmp_path).exists()
    assert not list(control.glob("kafka-ordered-ops-*"))


@pytest.mark.slow
def test_progress_rises_to_all_offsets(bootstrap: str, topic: MakeTopic, tmp_path: Path) -> None:
    """Offsets without a record count as well, so the last report is always everything."""
    case = random_case(bootstrap, {topic(partitions=2): 2}, seed=5)
    reports: list[tuple[int, int]] = []
    stage_window(
        case.plan, settings_of(bootstrap), tmp_path, progress=lambda *both: reports.append(both)
    )
    done = [one for one, _ in reports]
    assert done == sorted(done)
    assert len(done) > 1
    assert reports[-1] == (case.plan.offsets, case.plan.offsets)


@pytest.mark.slow
def test_a_deleted_topic_is_a_named_error_and_no_stage(bootstrap: str, tmp_path: Path) -> None:
    """A plan whose topic is gone fails by name and leaves no stage behind."""
    plan = plan_of([part_of("never-made", 0, OffsetSet.of((0, 5)))])
    with pytest.raises(UnknownTopicError):
        stage_window(plan, settings_of(bootstrap), tmp_path, stall_timeout_s=2)
    assert not Path(StagedOutput.of(plan, tmp_path).stage_path).exists()


def test_a_timestamp_of_the_far_future_is_kept(
    bootstrap: str, topic: MakeTopic, tmp_path: Path
) -> None:
    """Files keep milliseconds, so a time that Spark cannot hold is no obstacle here."""
    name, far = topic(config={"message.timestamp.after.max.ms": str((1 << 63) - 1)}), 1 << 60
    producer = ck.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for timestamp in (far, CUTOFF_MS):
        producer.produce(name, b"v", partition=0, timestamp=timestamp)
    producer.flush()
    plan = plan_of([part_of(name, 0, OffsetSet.of((0, 2)))])
    output = stage_window(plan, settings_of(bootstrap), tmp_path)
    paths = sorted(Path(output.stage_path).glob("part-*"))
    times = pa.concat_tables(map(pq.read_table, paths))["timestamp"].cast(pa.int64())
    assert times.to_pylist() == [CUTOFF_MS, far]


@pytest.mark.parametrize("wrong", [{"limit_bytes": 0}, {"rows_per_file": 0}])
def test_limits_must_be_positive(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """A limit that nothing can keep is refused before anything is touched."""
    with pytest.raises(ConfigError):
        stage_window(plan_of([]), settings_of("127.0.0.1:1"), tmp_path, **wrong)


SETS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=8).map(
    lambda pairs: OffsetSet.from_ranges((start, start + length) for start, length in pairs)
)


def _plan(sets: list[OffsetSet]) -> WindowPlan:
    return plan_of([part_of("t", n, taken) for n, taken in enumerate(sets)])


@given(sets=st.lists(SETS, max_size=6), tasks=st.integers(1, 12), least=st.integers(1, 50))
def test_slices_are_the_plan_cut_without_loss(
    sets: list[OffsetSet], tasks: int, least: int
) -> None:
    """Every offset is in exactly one slice, no slice passes the weight, and none names a partition twice."""
    plan = _plan(sets)
    slices = slices_of(pieces_of([plan]), tasks=tasks, least_offsets=least)
    weight = max(least, -(-plan.offsets // tasks), 1)
    for pieces in slices:
        assert 0 < sum(piece.wanted.count for piece in pieces) <= weight
        assert len({piece.tp for piece in pieces}) == len(pieces)
    found = [piece for pieces in slices for piece in pieces]
    assert sum(piece.wanted.count for piece in found) == plan.offsets
    for part in plan:
        ranges = [r for piece in found if piece.tp == part.tp for r in piece.wanted]
        assert OffsetSet.from_ranges(ranges) == part.taken


@given(sets=st.lists(SETS, max_size=6), runs=st.integers(1, 40))
def test_samples_lie_in_the_plan_at_even_steps(sets: list[OffsetSet], runs: int) -> None:
    """A sample takes nothing that is not planned, and of each partition about its share of the runs."""
    plan = _plan(sets)
    samples = sample_of(pieces_of([plan]), runs=runs, run_offsets=1)
    taken = {piece.tp: piece.wanted for piece in samples}
    assert all(wanted <= plan.taken[tp] for tp, wanted in taken.items())
    step = max(1, plan.offsets // runs)
    for tp, offsets in plan.taken.items():
        count = taken[tp].count if tp in taken else 0
        assert offsets.count // step <= count <= -(-offsets.count // step)
    assert any(taken.values()) == bool(plan.offsets)
