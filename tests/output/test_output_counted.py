"""What an output holds is counted before it is called complete, and again before it is shown."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import Earliest, SinkError, StagedOutput, Window, WindowPlan, stage_window
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.core.window.plan import PlanPart
from kafka_ordered_ops.output.contents import count
from kafka_ordered_ops.output.filesystem import LocalFiles
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.writing import stage_files
from kafka_ordered_ops.output.writing.draft import Draft
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.stages import stages_of

RECORDS = 100

#: What becomes of the files of an output that nobody looks after.
LOSSES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "cut short": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "emptied": lambda file: file.write_bytes(b""),
    "renamed": lambda file: file.rename(file.with_name("part-99999.parquet")),
    "doubled": lambda file: shutil.copy(file, file.with_name("part-99999.parquet")),
    "moved": lambda file: file.rename(file.parent.parent.parent / file.name),
    "fewer rows": lambda file: pq.write_table(pq.read_table(file).slice(1), file),
}

losses = pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)


@pytest.fixture
def windows() -> Iterator[OrderedWindows]:
    """A group on a topic with a hundred records."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", 1)
        for n in range(RECORDS):
            kafka.produce("orders", value=b"%d" % n, timestamp_ms=1000 * n)
        with OrderedWindows(kafka.settings, "g") as service:
            yield service


def plan_of(windows: OrderedWindows, window_id: str = "w") -> WindowPlan:
    """A plan of all of them."""
    cutoff = datetime.fromtimestamp(RECORDS, UTC)
    return windows.plan(Window(["orders"], cutoff, starting_offsets=Earliest()), window_id)


def staged(windows: OrderedWindows, plan: WindowPlan, root: Path) -> StagedOutput:
    """What a job of it has written, in several files."""
    return stage_window(plan, windows.settings, root, rows_per_file=30)


def some_file(folder: str) -> Path:
    """One of the data files in a folder, neither the first nor the last."""
    return sorted(Path(folder).glob("part-*"))[1]


def rows_seen(folder: str) -> int:
    """The rows that a reader of the folder finds."""
    return sum(pq.read_metadata(file).num_rows for file in Path(folder).glob("part-*"))


def stages(root: Path) -> list[str]:
    """What is left of the stages of all attempts."""
    return [path.name for path in stages_of(root).glob("*/*")]


class Elsewhere(LocalFiles):
    """A machine that does not see some files that others have written."""

    def names(self, folder: str) -> list[str]:
        return [name for name in super().names(folder) if not name.startswith("part-00001")]

    def sizes(self, folder: str) -> dict[str, int]:
        found = super().sizes(folder)
        return {name: size for name, size in found.items() if not name.startswith("part-00001")}


def test_files_that_are_not_seen_here_make_no_window(
    windows: OrderedWindows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are counted in the files by the eyes that will publish them; the error has both numbers and the cause."""
    plan = plan_of(windows)
    with monkeypatch.context() as patch:
        patch.setattr("kafka_ordered_ops.output.roots.locking.files_for", lambda *_: Elsewhere())
        with pytest.raises(SinkError, match=r"100 rows .* 3 files .* hold 70.*mounted") as raised:
            staged(windows, plan, tmp_path)
    assert (raised.value.facts["records"], raised.value.facts["found"]) == (100, 70)
    assert stages(tmp_path) == []
    assert windows.show("w").status is WindowStatus.PLANNED
    assert windows.commit(plan, staged(windows, plan, tmp_path)).status is WindowStatus.PUBLISHED


def test_what_is_on_the_disk_is_counted_not_what_was_handed_over(
    windows: OrderedWindows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was written and is damaged, or short, by the time it is durable is named."""
    write = stage_files._write_file
    for spoil, message in (
        (LOSSES["fewer rows"], "hold 96"),
        (LOSSES["emptied"], "part-0000[0-9].* cannot be read back"),
        (LOSSES["gone"], "hold 0"),
    ):

        def spoiled(rows: Any, path: str, where: Any, spoil: Any = spoil) -> int:
            size = write(rows, path, where)
            spoil(Path(path))
            return size

        monkeypatch.setattr(stage_files, "_write_file", spoiled)
        with pytest.raises(SinkError, match=message):
            staged(windows, plan_of(windows), tmp_path)
        assert stages(tmp_path) == []


@losses
def test_a_stage_that_has_lost_anything_is_never_committed(
    windows: OrderedWindows, tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    """Between staging and commit: refused before the ledger or Kafka know of it, and nothing is visible."""
    plan = plan_of(windows)
    output = staged(windows, plan, tmp_path)
    lose(some_file(output.stage_path))
    assert not output.exists()
    with pytest.raises(SinkError, match=r"4 files of .* were written, but"):
        windows.commit(plan, output)
    assert windows.show("w").status is WindowStatus.PLANNED
    assert not Path(output.final_path).exists()


@losses
def test_an_earlier_attempt_s_stage_that_has_lost_anything_is_written_again(
    windows: OrderedWindows, tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    """Taken up after a crash, before the commit and after it: the job runs again, and all rows are shown."""
    for window_id, committed in (("a", False), ("b", True)):
        plan = windows.plan(
            Window(
                ["orders"],
                datetime.fromtimestamp(RECORDS if committed else 80, UTC),
                starting_offsets=Earliest(),
            ),
            window_id,
        )
        output = stage_window(plan, windows.settings, tmp_path, rows_per_file=6)
        windows.mark_written(plan, output.to_json())
        if committed:
            windows.commit(plan)
        lose(some_file(output.stage_path))
        assert StagedOutput.found(output.to_json()) is None
        delivery = windows.deliver(
            windows.plan(plan.window, window_id),
            lambda plan: staged(windows, plan, tmp_path),
            StagedOutput.found,
        )
        assert delivery.ran
        assert rows_seen(output.final_path) == plan.offsets


@losses
def test_a_committed_window_s_stage_that_has_lost_anything_is_not_published(
    windows: OrderedWindows, tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    """What readers see stays as it was: the older output, whole."""
    plan = plan_of(windows)
    first = staged(windows, plan, tmp_path)
    windows.commit(plan, first)
    replay = windows.replay("w")
    # Other files than those that readers see: the same ones need no publishing.
    again = stage_window(replay, windows.settings, tmp_path, rows_per_file=20)
    lose(some_file(again.stage_path))
    with pytest.raises(SinkError, match=r"is not published.*Run the window again"):
        windows.publish(replay, again)
    assert rows_seen(first.final_path) == RECORDS
    windows.publish(replay, staged(windows, replay, tmp_path))
    assert rows_seen(first.final_path) == RECORDS


@losses
def test_a_published_window_that_has_lost_rows_counts_as_gone(
    windows: OrderedWindows, tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    """Its files may be rewritten by whoever owns the table, with all their rows; else they are delivered again."""
    plan = plan_of(windows)
    output = staged(windows, plan, tmp_path)
    windows.commit(plan, output)
    lose(some_file(output.final_path))
    try:
        same = rows_seen(output.final_path) == RECORDS
    except pa.ArrowException:
        same = False
    assert output.is_published() is same
    delivery = windows.deliver(
        windows.plan(plan.window, "w"),
        lambda plan: staged(windows, plan, tmp_path),
        StagedOutput.found,
    )
    assert delivery.ran is not same
    assert rows_seen(output.final_path) == RECORDS


def test_a_table_s_owner_may_compact_it(windows: OrderedWindows, tmp_path: Path) -> None:
    """The same rows in one file are what was published."""
    plan = plan_of(windows)
    output = staged(windows, plan, tmp_path)
    windows.commit(plan, output)
    folder = Path(output.final_path)
    table = pq.read_table(sorted(folder.glob("part-*")))
    for file in folder.glob("part-*"):
        file.unlink()
    pq.write_table(table, folder / "compacted.parquet")
    assert output.is_published()
    output.publish()


@losses
def test_parts_that_have_lost_anything_are_not_joined(
    windows: OrderedWindows, tmp_path: Path, lose: Callable[[Path], object]
) -> None:
    """Neither found nor joined; the part that is written again makes the window whole."""
    plan = plan_of(windows)
    shares = windows.split(plan, 3)
    parts = [staged(windows, share, tmp_path) for share in shares]
    for share, part in zip(shares, parts, strict=True):
        windows.report(share, part)
    lose(some_file(parts[1].stage_path))
    assert StagedOutput.found({"parts": [part.to_json() for part in parts]}) is None
    with pytest.raises(
        SinkError, match=r"have written 6 files.* of part 2 of 3.*run the parts again"
    ):
        StagedOutput.merged(parts)
    staged(windows, shares[1], tmp_path)
    whole = StagedOutput.merged(parts)
    assert rows_seen(whole.stage_path) == RECORDS
    assert windows.commit(plan, whole).status is WindowStatus.PUBLISHED


def test_an_output_without_a_file_is_not_complete(tmp_path: Path) -> None:
    """A window without rows has a file, too: its columns."""
    draft = Draft(StagedOutput(str(tmp_path), "w", "c1", 1, PlanPart(0, 2)))
    draft.make()
    with pytest.raises(SinkError, match=r"0 rows were written .* the 0 files"):
        draft.seal({"records": 0})


def test_counting_reads_footers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand files are counted without any of their rows being read."""
    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "part-00000.parquet")
    for n in range(1, 1000):
        shutil.copy(tmp_path / "part-00000.parquet", tmp_path / f"part-{n:05d}.parquet")
    monkeypatch.setattr(pq.ParquetFile, "read", None)
    holding = count(files_for(str(tmp_path)), str(tmp_path))
    assert (holding.files, holding.rows) == (1000, 1_000_000)


def test_a_file_of_another_kind_is_no_row(windows: OrderedWindows, tmp_path: Path) -> None:
    """A note that somebody leaves in a stage goes along; another Parquet file would be rows."""
    plan = plan_of(windows)
    output = staged(windows, plan, tmp_path)
    (Path(output.stage_path) / "notes.txt").write_text("checked")
    windows.commit(plan, output)
    assert output.is_published()
    assert (Path(output.final_path) / "notes.txt").exists()
