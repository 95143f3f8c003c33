"""The parts of a split window: written apart, joined to one output, with a crash between any two steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, SinkError, StagedOutput, stage_window
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.group.decisions import splitting as core_parts
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.core.window.plan import PlanPart
from kafka_ordered_ops.output.parts import sum_of_facts
from kafka_ordered_ops.output.writing.draft import Draft
from tests.support.spark_support import Row, crashes, position, random_case, settings_of
from tests.support.stages import stages_of

MakeTopic = Callable[..., str]

WINDOW = "2026-11-20T11-00-00Z@a~b.c"
COUNT = 3


def part_of_output(
    root: Path, index: int, *, content: str = "", files: int = 2, attempt: int = 1
) -> StagedOutput:
    """A complete stage of one part, whose files say whose they are."""
    draft, sealed = written_part(root, index, content=content, files=files, attempt=attempt)
    draft.land()
    return sealed


def written_part(
    root: Path, index: int, *, content: str = "", files: int = 2, attempt: int = 1
) -> tuple[Draft, StagedOutput]:
    """A part that is complete, and not in its place yet."""
    draft = Draft(StagedOutput(str(root), WINDOW, "c1", attempt, PlanPart(index, COUNT)))
    draft.make()
    for number in range(files):
        # As Spark leaves a folder: with checksums and a flag beside the data.
        (Path(draft.path) / f"part-{number:05d}.txt").write_text(f"{index}.{number}{content}")
        (Path(draft.path) / f".part-{number:05d}.txt.crc").write_text("checksum")
    (Path(draft.path) / "_SUCCESS").write_text("")
    facts = {"records": 10 + index, "files": files, "timestamp_ms_min": index or None}
    return draft, draft.seal({**facts, "timestamp_ms_max": index, "elapsed_ms": 5})


def all_parts(root: Path) -> list[StagedOutput]:
    """Complete stages of all parts."""
    return [part_of_output(root, index) for index in range(COUNT)]


def contents(folder: str) -> list[str]:
    """What the data files say, in the order of their names."""
    return [path.read_text() for path in sorted(Path(folder).glob("part-*"))]


def half_joined(root: Path) -> list[StagedOutput]:
    """All parts, whose files have been moved together, without their being complete yet."""
    parts = all_parts(root)
    first = Path(parts[0].stage_path) / "part-00000.txt"
    first.rename(root / "aside")
    with pytest.raises(SinkError, match="6 files, and 5"):
        StagedOutput.merged(parts)
    (root / "aside").rename(first)
    return parts


def joined_or_refused(parts: list[StagedOutput]) -> bool:
    """Whether the parts can be joined; if so, nothing is missing, and if not, the error says why."""
    try:
        whole = StagedOutput.merged(parts)
    except SinkError as error:
        assert "is not complete at" in error.message  # noqa: PT017
        return False
    assert contents(whole.stage_path) == EVERYTHING
    return True


EVERYTHING = [f"{index}.{number}" for index in range(COUNT) for number in range(2)]


def stages(root: Path) -> set[str]:
    """The folders that are left for the window's attempts."""
    return {path.name for path in stages_of(root).glob("*/*")}


def test_parts_are_joined_to_one_output(tmp_path: Path) -> None:
    """The files lie part after part, the facts are added up, and publishing goes on as for any output."""
    parts = all_parts(tmp_path)
    whole = StagedOutput.merged(list(reversed(parts)))
    assert contents(whole.stage_path) == EVERYTHING
    assert whole.facts == {
        "records": 33, "files": 6, "timestamp_ms_min": 1, "timestamp_ms_max": 2, "elapsed_ms": 15
    }  # fmt: skip
    assert whole.part is None
    assert whole.exists()
    assert not any(Path(part.stage_path).exists() for part in parts)
    whole.publish()
    assert contents(whole.final_path) == EVERYTHING
    assert stages(tmp_path) == set()


@pytest.mark.parametrize("after", [False, True])
def test_joining_again_after_a_crash_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Wherever joining dies, a complete stage holds everything, and joining again ends with one."""
    for root, crashing in crashes(tmp_path, monkeypatch, after=after, least=12):
        parts = all_parts(root)
        with crashing:
            StagedOutput.merged(parts)
        if parts[0].whole.exists():
            assert contents(parts[0].whole.stage_path) == EVERYTHING
        assert all(StagedOutput.found(part.to_json()) == part for part in parts)
        whole = StagedOutput.merged(parts)
        assert whole == StagedOutput.merged(parts)
        assert contents(whole.stage_path) == EVERYTHING
        assert whole.facts["records"] == 33
        assert stages(root) == {"c1-1"}


@pytest.mark.parametrize("after", [False, True])
def test_a_part_written_again_between_two_tries_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """A part whose files had been moved already is replaced, not doubled, unless joining had ended."""
    for root, crashing in crashes(tmp_path, monkeypatch, after=after, least=12):
        parts = all_parts(root)
        with crashing:
            StagedOutput.merged(parts)
        ended = parts[0].whole.exists()
        parts[1] = part_of_output(root, 1, content=" again", files=1)
        whole = StagedOutput.merged(parts)
        middle = ["1.0", "1.1"] if ended else ["1.0 again"]
        assert contents(whole.stage_path) == ["0.0", "0.1", *middle, "2.0", "2.1"]
        assert whole.facts["files"] == 4 + len(middle)
        assert stages(root) == {"c1-1"}


@pytest.mark.parametrize("after", [False, True])
def test_giving_up_after_a_crash_leaves_no_part_that_is_less_than_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Joining dies, giving it up dies: whoever joins then gets everything or an error, and nothing stays behind."""
    for root, crashing in crashes(tmp_path, monkeypatch, after=after, least=5):
        parts = half_joined(root)
        with crashing:
            parts[0].whole.discard()
        joined_or_refused(parts)
        parts[0].whole.discard()
        assert stages(root) == set()


@pytest.mark.parametrize("after", [False, True])
def test_a_part_that_dies_while_it_takes_its_files_back_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """The retry of a part, after its files had been moved, dies in turn: they are all there, or it is named."""
    for root, crashing in crashes(tmp_path, monkeypatch, after=after, least=4):
        parts = half_joined(root)
        draft, _ = written_part(root, 1)
        with crashing:
            draft.land()
        if not joined_or_refused(parts):
            part_of_output(root, 1)
            assert joined_or_refused(parts)


def test_joining_what_was_published_changes_nothing(tmp_path: Path) -> None:
    """A zombie that joins late finds the published output, and the part it may have written again goes."""
    parts = all_parts(tmp_path)
    whole = StagedOutput.merged(parts)
    whole.publish()
    part_of_output(tmp_path, 1, content=" again")
    assert StagedOutput.merged(parts) == whole
    assert contents(whole.final_path) == EVERYTHING
    assert stages(tmp_path) == set()


def test_several_that_join_at_once_agree(tmp_path: Path) -> None:
    """Whoever reports the last part may be two: both get the same output."""
    parts, found = all_parts(tmp_path), list[StagedOutput]()
    threads = [
        threading.Thread(target=lambda: found.append(StagedOutput.merged(parts))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    assert len({strict_json.dumps(one.to_json()) for one in found}) == 1
    assert contents(found[0].stage_path) == EVERYTHING


def test_publishing_keeps_the_parts_of_newer_attempts_only(tmp_path: Path) -> None:
    """A split of a newer attempt is not pulled from under its tasks; an older one is worthless."""
    older, newer = (part_of_output(tmp_path, 0, attempt=attempt) for attempt in (1, 3))
    parts = [part_of_output(tmp_path, index, attempt=2) for index in range(COUNT)]
    StagedOutput.merged(parts).publish()
    assert newer.exists()
    assert not older.exists()


def test_a_part_is_not_published_by_itself(tmp_path: Path) -> None:
    """A third of a window in the window's place would look like all of it."""
    part = part_of_output(tmp_path, 0)
    with pytest.raises(ConfigError, match=r"part 1 of 3 .*merged"):
        part.publish()
    assert not Path(part.final_path).exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parts: [], "no parts"),
        (lambda parts: parts[:1] + parts[2:], "2 of 3 parts .* index 1"),
        (lambda parts: [*parts, parts[2]], "part 3 of 3 .* twice"),
        (lambda parts: [*parts[:2], replace(parts[2], attempt=2)], "different outputs .*attempt 2"),
        (lambda parts: [*parts[:2], replace(parts[2], claim_id="c2")], "claim c2"),
        (lambda parts: [*parts[:2], replace(parts[2], window_id="other")], "window other"),
        (lambda parts: [*parts[:2], replace(parts[2], root="/elsewhere")], "below /elsewhere"),
        (lambda parts: [*parts[:2], replace(parts[2], part=PlanPart(2, 4))], "part 3 of 4"),
        (lambda parts: [*parts[:2], parts[2].whole], "whole output"),
    ],
)
def test_a_set_that_is_not_all_parts_of_one_split_is_refused(
    tmp_path: Path, change: Callable[[list[StagedOutput]], list[StagedOutput]], message: str
) -> None:
    """The error says which part is missing, twice or foreign, and nothing is moved."""
    parts = all_parts(tmp_path)
    with pytest.raises(ConfigError, match=message):
        StagedOutput.merged(change(parts))
    assert all(part.exists() for part in parts)


def test_a_part_that_is_gone_is_named(tmp_path: Path) -> None:
    """Files that somebody deleted are an error that says which part to run again."""
    parts = all_parts(tmp_path)
    parts[1].discard()
    with pytest.raises(SinkError, match=r"part 2 of 3 .* Run this part again"):
        StagedOutput.merged(parts)
    parts[1] = part_of_output(tmp_path, 1)
    assert contents(StagedOutput.merged(parts).stage_path) == EVERYTHING


def test_parts_are_found_from_what_the_ledger_keeps(tmp_path: Path) -> None:
    """The reports of all parts together give the whole; with one of them gone, nothing."""
    parts = all_parts(tmp_path)
    result = {"parts": [part.to_json() for part in parts]}
    parts[2].discard()
    assert StagedOutput.found(result) is None
    part_of_output(tmp_path, 2)
    whole = StagedOutput.found(result)
    assert whole is not None
    assert contents(whole.stage_path) == EVERYTHING
    assert StagedOutput.found(result) == whole
    assert StagedOutput.found({"parts": ["x"]}) is None
    assert StagedOutput.found({"parts": []}) is None


@pytest.mark.parametrize(
    "part", [{"index": 3, "count": 3}, {"index": 0}, 1, {"index": -1, "count": 1}]
)
def test_a_part_in_json_is_read_strictly(part: object) -> None:
    """A part that there cannot be is refused, in JSON and from code."""
    value = {**StagedOutput("/root", WINDOW, "c1", 1).to_json(), "part": part}
    with pytest.raises(JsonError):
        StagedOutput.from_json(value)
    with pytest.raises(ConfigError, match="no part 4 of 3"):
        StagedOutput("/root", WINDOW, "c1", 1, PlanPart(3, 3))


FACTS = st.fixed_dictionaries(
    {"records": st.integers(0, 99), "timestamp_ms_min": st.none() | st.integers(-9, 9)},
    optional={"late": st.none() | st.integers(0, 9), "timestamp_ms_max": st.none() | st.integers()},
)


@given(facts=st.lists(FACTS, min_size=1, max_size=5))
def test_facts_add_up(facts: list[dict[str, int | None]]) -> None:
    """Sums, least and greatest over all parts; what one part does not know, nobody knows of the whole."""
    total = sum_of_facts(facts)
    assert total["records"] == sum(one["records"] or 0 for one in facts)
    least = [one["timestamp_ms_min"] for one in facts]
    assert total["timestamp_ms_min"] == min((n for n in least if n is not None), default=None)
    assert ("timestamp_ms_max" in total) == all("timestamp_ms_max" in one for one in facts)
    if "timestamp_ms_max" in total:
        greatest = [n for one in facts if (n := one["timestamp_ms_max"]) is not None]
        assert total["timestamp_ms_max"] == max(greatest, default=None)
    late = [one.get("late") for one in facts]
    if all("late" in one for one in facts):
        assert total["late"] == (None if None in late else sum(n for n in late if n is not None))
    else:
        assert "late" not in total


def test_a_split_window_holds_what_the_whole_one_holds(
    bootstrap: str, topic: MakeTopic, tmp_path: Path
) -> None:
    """Parts staged one by one from a real broker and joined: the same records and the same facts."""
    case = random_case(bootstrap, {topic(partitions=2): 2}, seed=6)
    settings = settings_of(bootstrap)
    alone = stage_window(case.plan, settings, tmp_path / "alone", rows_per_file=20)
    parts = [
        stage_window(plan, settings, tmp_path / "split", rows_per_file=20)
        for plan in core_parts.shares(case.plan, 4)
    ]
    whole = StagedOutput.merged(parts)
    rows = []
    for path in sorted(Path(whole.stage_path).glob("part-*")):
        table = pq.read_table(path)
        ms = table["timestamp"].cast(pa.int64())
        rows += [Row.of(fields) for fields in table.append_column("timestamp_ms", ms).to_pylist()]
    assert sorted(rows, key=position) == case.rows
    counted = {"records", "late", "out_of_order", "timestamp_ms_min", "timestamp_ms_max"}
    assert {name: whole.facts[name] for name in counted} == {
        name: alone.facts[name] for name in counted
    }
    whole.publish()
    assert whole.is_published()
