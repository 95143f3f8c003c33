"""What readers saw, they keep: output of another ledger, group or claim is never replaced, in folders and in a store."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import (
    FewerRecordsError,
    Folder,
    LedgerLostError,
    OrderedWindows,
    OutputOwnedError,
    Policy,
    SinkError,
    StagedOutput,
    Window,
    WindowMismatchError,
    WindowUnpublishedError,
    stage_window,
    stage_windows,
)
from kafka_ordered_ops.core.types import PlanContent, TopicPartition, WindowStatus
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.publisher import files_of
from kafka_ordered_ops.output.roots.root_owner import owner_path
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.objects_support import memory as memory
from tests.support.objects_support import named_rows, staged_rows
from tests.support.windows_support import BASE_MS, at, no_age

HOUR = 3_600

MakeRoot = Callable[[], str]


@pytest.fixture(params=["folder", "store"])
def root(request: pytest.FixtureRequest, tmp_path: Path, memory: MakeRoot) -> str:
    """Where windows are written to."""
    return str(tmp_path / "lake" / "orders") if request.param == "folder" else memory()


@pytest.fixture
def clusters() -> Iterator[Callable[[], InMemoryKafka]]:
    """Makes clusters with a topic `orders` of five records of the first hour."""
    with ExitStack() as stack:

        def make() -> InMemoryKafka:
            kafka = stack.enter_context(InMemoryKafka())
            kafka.create_topic("orders", 1)
            fill(kafka, "first")
            return kafka

        yield make


@pytest.fixture
def kafka(clusters: Callable[[], InMemoryKafka]) -> InMemoryKafka:
    """One such cluster."""
    return clusters()


def test_an_attempt_that_was_written_again_is_published_though_it_looks_the_same(root: str) -> None:
    """As many rows, in files of the same sizes, written in the same time: a replay for damaged files, say."""
    staged_rows(root, [1, 2]).publish()
    staged_rows(root, [3, 4]).publish()
    assert named_rows(root) == [3, 4]


def fill(kafka: InMemoryKafka, name: str, *, hour: int = 0, count: int = 5) -> None:
    """Writes records of an hour."""
    for n in range(count):
        time_ms = BASE_MS + (hour * HOUR + n) * 1000
        kafka.produce("orders", value=f"{name}-{n}".encode(), partition=0, timestamp_ms=time_ms)


def an_hour(hour: int = 0, topics: str = "orders", **more: object) -> Window:
    """The interval of an hour."""
    since, cutoff = at(hour * HOUR), at((hour + 1) * HOUR)
    return Window(topics, since=since, cutoff=cutoff, starting_offsets="earliest", **more)  # type: ignore[arg-type]


def a_second(second: int) -> Window:
    """The interval of a second, which is in one date."""
    return Window("orders", since=at(second), cutoff=at(second + 1), starting_offsets="earliest")


def rows(root: str) -> list[str]:
    """What readers see."""
    found = []
    for path in files(root):
        with files_of(root).open(path) as file:
            found += pq.read_table(file)["value"].to_pylist()
    return sorted(one.decode() for one in found if one is not None)


def first(count: int = 5) -> list[str]:
    """The values of the first hour."""
    return [f"first-{n}" for n in range(count)]


def later(kafka: InMemoryKafka, group_id: str = "g") -> OrderedWindows:
    """The group, by a clock that runs an hour ahead."""
    return OrderedWindows(kafka.settings, group_id, clock=lambda: time.time() + HOUR)


def committed(windows: OrderedWindows, root: str, window_id: str = "w") -> StagedOutput:
    """A window whose process died between Kafka's commit and the publication."""
    plan = windows.plan(an_hour(), window_id)
    output = stage_window(plan, windows.settings, root)
    windows.mark_written(plan, output.to_json())
    windows.commit(plan)
    return output


# --- another ledger ---------------------------------------------------------------------------------


def test_a_group_of_the_same_name_on_another_cluster_is_refused(
    root: str, clusters: Callable[[], InMemoryKafka]
) -> None:
    """Before anything is planned; what is published stays, and nothing is claimed."""
    one, two = clusters(), clusters()
    with OrderedWindows(one.settings, "g") as windows:
        windows.run(an_hour(), root)
    with OrderedWindows(two.settings, "g") as windows:
        with pytest.raises(OutputOwnedError) as refused:
            windows.run(an_hour(1), root)
        assert windows.state() is None
        assert refused.value.ledger_id == owner_of(one)
    assert rows(root) == first()


def test_a_ledger_that_was_created_again_is_another_one(root: str, kafka: InMemoryKafka) -> None:
    """While the group's offsets are there, the ledger is lost; afterwards the root says whose it is."""
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.run(an_hour(), root)
    kafka.delete_records("orders", 0, 3)
    kafka.delete_topic("__kafka_ordered_ops")
    for error in (LedgerLostError, OutputOwnedError):
        with OrderedWindows(kafka.settings, "g") as windows, pytest.raises(error):
            windows.run(an_hour(), root)
        kafka.expire_offsets("g")
    assert rows(root) == first()


def test_another_ledger_topic_of_the_same_cluster_is_another_ledger(
    root: str, kafka: InMemoryKafka
) -> None:
    """Two teams with a ledger each do not replace one another's windows, whichever way they are delivered."""
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.run(an_hour(), root)
    with OrderedWindows(kafka.settings, "h", ledger_topic="theirs") as windows:
        [plan] = windows.plan_many([an_hour()])
        with pytest.raises(OutputOwnedError):
            windows.deliver_many(
                [plan],
                lambda plans: stage_windows(plans, windows.settings, root),
                StagedOutput.found,
            )
        assert windows.show(plan.window_id).status is WindowStatus.ABANDONED
    assert rows(root) == first()


def test_after_a_fail_over_the_root_is_adopted_and_its_windows_stay(
    root: str, clusters: Callable[[], InMemoryKafka]
) -> None:
    """The new ledger adds windows, and never replaces one that the former ledger published."""
    one, two = clusters(), clusters()
    fill(two, "second", hour=1)
    with OrderedWindows(one.settings, "g") as windows:
        windows.run(an_hour(), root)
        assert windows.adopt_output(root) is None
    with OrderedWindows(two.settings, "g") as windows:
        windows.plan(an_hour(5), "the-ledger-exists")
        assert windows.adopt_output(root) == owner_of(one)
        assert windows.adopt_output(root) is None
        windows.run(an_hour(1), root)
        with pytest.raises(OutputOwnedError):
            windows.run(an_hour(), root)
        assert [one.window_id for one in windows.summaries().left()] == ["the-ledger-exists"]
    assert rows(root) == [*first(), *(f"second-{n}" for n in range(5))]
    with OrderedWindows(one.settings, "g") as windows, pytest.raises(OutputOwnedError):
        windows.run(an_hour(1), root)


def owner_of(kafka: InMemoryKafka) -> str:
    """What tells a cluster's ledger from others."""
    with OrderedWindows(kafka.settings, "any") as windows:
        return windows.existing_ledger_id()


def test_clean_leaves_another_ledger_s_stages(
    root: str, clusters: Callable[[], InMemoryKafka]
) -> None:
    """Neither the other cluster's command nor one without brokers removes what may be published."""
    one, two = clusters(), clusters()
    with OrderedWindows(one.settings, "g") as windows:
        output = committed(windows, root)
    with OrderedWindows(two.settings, "g") as windows:
        windows.plan(an_hour(), "any")
        with pytest.raises(OutputOwnedError):
            windows.clean(root, older_than=timedelta(0))
    StagedOutput.clean(root, older_than=timedelta(0))
    assert output.exists()


# --- forgotten windows ------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_by", [None, "date"])
def test_a_forgotten_window_is_covered_and_its_late_record_comes_with_the_next(
    root: str, kafka: InMemoryKafka, partition_by: str | None
) -> None:
    """Its output stands; the late record is flagged in the next interval's output."""
    with later(kafka) as windows:
        windows.run(a_second(0), Folder(root, partition_by=partition_by))
        assert windows.prune(no_age(), forget=True)
        kafka.produce("orders", value=b"late", partition=0, timestamp_ms=BASE_MS + 77)
        again = windows.run(a_second(0), Folder(root, partition_by=partition_by))
        assert again.content is PlanContent.COVERED
        assert rows(root) == first(1)
        following = windows.run(a_second(1), Folder(root, partition_by=partition_by))
        assert (following.records, following.late) == (2, 1)
    assert rows(root) == [*first(2), "late"]


def test_the_id_of_a_forgotten_window_is_used_up(root: str, kafka: InMemoryKafka) -> None:
    """It answers its own question alone, and an empty window does not replace it either."""
    with later(kafka) as windows:
        windows.run(an_hour(), root, window_id="w")
        windows.prune(no_age(), forget=True)
        with pytest.raises(WindowMismatchError):
            windows.run(an_hour(1), root, window_id="w")
        for _ in range(2):
            assert windows.run(an_hour(), root, window_id="w").content is PlanContent.COVERED
            windows.prune(no_age(), forget=True)
        preview = windows.preview(an_hour(), "w")
        assert (preview.content, preview.offsets) == (PlanContent.COVERED, 0)
    assert rows(root) == first()


def test_a_forgotten_window_without_output_may_be_planned_again(kafka: InMemoryKafka) -> None:
    """It was abandoned, so nobody has seen anything of it."""
    with later(kafka) as windows:
        windows.abandon(windows.plan(an_hour(), "w"))
        windows.prune(no_age(), forget=True)
        assert windows.plan(an_hour(), "w").offsets == 5


# --- claims of the same window ----------------------------------------------------------------------


def test_a_rewound_window_replaces_its_own_earlier_output(root: str, kafka: InMemoryKafka) -> None:
    """All of it was given back: the ledger names the shown claim as an earlier one of the window."""
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.run(an_hour(), root, window_id="w")
        windows.reset_offsets("earliest")
        kafka.produce("orders", value=b"late", partition=0, timestamp_ms=BASE_MS + 77)
        again = windows.run(an_hour(), root, window_id="w")
        assert again.ran
        assert len(windows.show("w").plan.replaces) == 1
    assert rows(root) == [*first(), "late"]


def test_the_id_of_a_rewound_window_answers_its_own_question_alone(
    root: str, kafka: InMemoryKafka
) -> None:
    """As many rows of another hour would take the place of those that readers see; also after an abandon."""
    fill(kafka, "second", hour=1)
    with later(kafka) as windows:
        windows.run(an_hour(), root, window_id="w")
        windows.reset_offsets("earliest")
        for ask in (windows.plan, windows.preview, partial(windows.run, output=root)):
            with pytest.raises(WindowMismatchError, match=r"moved back since.*another window id"):
                ask(an_hour(1), window_id="w")
        windows.abandon(windows.plan(an_hour(), "w"))
        with pytest.raises(WindowMismatchError, match="moved back since"):
            windows.run(an_hour(1), root, window_id="w")
        assert rows(root) == first()
        windows.run(an_hour(), root, window_id="w")
    assert rows(root) == first()


def test_a_rewound_window_does_not_replace_more_by_less(root: str, kafka: InMemoryKafka) -> None:
    """Retention has its records: it is an error, and readers keep what they see, until the word is given."""
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.run(an_hour(), root, window_id="w")
        windows.reset_offsets("earliest")
        kafka.delete_records("orders", 0, 3)
        window = an_hour(on_data_loss="warn")
        with pytest.raises(FewerRecordsError):
            windows.run(window, root, window_id="w")
        assert windows.show("w").status is WindowStatus.REWOUND
        assert rows(root) == first()
        windows.run(window, root, window_id="w", policy=Policy(allow_fewer=True))
    assert rows(root) == ["first-3", "first-4"]


def test_a_job_with_fewer_rows_does_not_replace_a_rewound_window(
    tmp_path: Path, kafka: InMemoryKafka
) -> None:
    """The rows are counted before the commit, and nothing stays claimed."""
    root = str(tmp_path / "orders")
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.run(an_hour(), root, window_id="w")
        windows.reset_offsets("earliest")
        plan = windows.plan(an_hour(), "w")
        staged = stage_window(plan, windows.settings, root)
        path = Path(staged.stage_path, "part-00000.parquet")
        pq.write_table(pq.read_table(path).slice(0, 2), path)
        holding = staged.holding
        assert holding is not None
        fewer = replace(staged, holding=None)
        with pytest.raises(SinkError):
            windows.commit(plan, fewer)
    assert rows(root) == first()


def test_a_claim_that_the_ledger_does_not_name_is_not_replaced(
    root: str, kafka: InMemoryKafka
) -> None:
    """The ledger has lost the window: its output stays, and the error says whose it is."""
    with OrderedWindows(kafka.settings, "g") as windows:
        plan = windows.plan(an_hour(), "w")
        output = stage_window(plan, windows.settings, root)
        other = replace(plan, claim_id="another")
        windows.commit(plan, output)
        with pytest.raises(OutputOwnedError, match="is not an earlier claim"):
            stage_window(other, windows.settings, root)
    assert rows(root) == first()


# --- committed and not published --------------------------------------------------------------------


@pytest.mark.parametrize("forget", [False, True])
def test_an_unpublished_window_is_not_pruned(
    root: str, kafka: InMemoryKafka, forget: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named, and the same run publishes it afterwards."""
    with later(kafka) as windows:
        committed(windows, root)
        assert windows.prune(no_age(), forget=forget) == []
        assert "1 committed window whose output readers do not see yet: w" in caplog.text
        assert [one.window_id for one in windows.summaries().left()] == ["w"]
        windows.run(an_hour(), root, window_id="w")
        assert windows.summaries().left() == ()
    assert rows(root) == first()


@pytest.mark.parametrize("way", ["adopt", "reset"])
def test_progress_does_not_move_back_into_an_unpublished_window(
    root: str, kafka: InMemoryKafka, way: str
) -> None:
    """The rest of its records would be in no output; before its first offset it may be moved."""

    def move(offset: int) -> None:
        if way == "adopt":
            kafka.commit("g", {TopicPartition("orders", 0): offset})
            windows.adopt()
        else:
            windows.reset_offsets({TopicPartition("orders", 0): offset})

    with OrderedWindows(kafka.settings, "g") as windows:
        committed(windows, root)
        with pytest.raises(WindowUnpublishedError, match="w"):
            move(3)
        move(0)
        assert windows.show("w").status is WindowStatus.REWOUND
        windows.run(an_hour(), root, window_id="w")
    assert rows(root) == first()


def test_the_next_run_publishes_what_an_earlier_one_has_left(
    root: str, kafka: InMemoryKafka
) -> None:
    """The next hour's run names the window, and readers see both."""
    fill(kafka, "second", hour=1)
    with OrderedWindows(kafka.settings, "g") as windows:
        committed(windows, root)
        following = windows.run(an_hour(1), root)
        assert "output readers do not see yet: w" in following.notes[0]
        assert windows.show("w").status is WindowStatus.PUBLISHED
        assert windows.run(an_hour(1), root).notes == ()
    assert rows(root) == [*first(), *(f"second-{n}" for n in range(5))]


def test_a_copy_of_a_root_is_not_shown_what_nobody_asked_for(
    tmp_path: Path, kafka: InMemoryKafka
) -> None:
    """A run into the copy leaves a window that is to be published to the original: it is named, until a run shows it there."""
    original, copy = tmp_path / "one" / "orders", tmp_path / "other" / "orders"
    fill(kafka, "second", hour=1)
    with OrderedWindows(kafka.settings, "g") as windows:
        committed(windows, str(original))
        shutil.copytree(original.parent, copy.parent)
        following = windows.run(an_hour(1), copy)
        assert "output readers do not see yet: w" in following.notes[0]
        assert windows.show("w").status is WindowStatus.COMMITTED
        assert rows(str(copy)) == [f"second-{n}" for n in range(5)]
        windows.run(an_hour(2), original)
    assert rows(str(original)) == first()


def test_clean_keeps_what_may_still_be_published(root: str, kafka: InMemoryKafka) -> None:
    """An unpublished and an open window keep their stages; those of an abandoned one go."""
    fill(kafka, "second", hour=1)
    with OrderedWindows(kafka.settings, "g") as windows:
        output = committed(windows, root)
        open_ = windows.plan(an_hour(1), "open")
        stages = [output, stage_window(open_, windows.settings, root)]
        given_up = windows.plan(an_hour(2), "given-up")
        dead = stage_window(given_up, windows.settings, root)
        windows.abandon(given_up)
        assert windows.clean(root, older_than=timedelta(0)) > 0
        assert all(one.exists() for one in stages)
        assert not dead.exists()


# --- the root ---------------------------------------------------------------------------------------


def test_two_groups_of_one_ledger_share_a_root(root: str, kafka: InMemoryKafka) -> None:
    """The second one is told that others have windows of the same topics there: it may be the first one, renamed."""
    with OrderedWindows(kafka.settings, "g") as windows:
        assert windows.run(an_hour(), root).notes == ()
    with OrderedWindows(kafka.settings, "renamed") as windows:
        assert "g published windows of the same topics" in windows.run(an_hour(), root).notes[0]
        assert windows.run(an_hour(1), root).notes == ()
    assert rows(root) == sorted([*first(), *first()])


def test_a_root_that_was_moved_with_what_is_beside_it_is_found(
    tmp_path: Path, kafka: InMemoryKafka
) -> None:
    """After retention nothing is read again: the files are there, and the ledger learns where."""
    before, after = tmp_path / "before", tmp_path / "after"
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.run(an_hour(), before / "orders", window_id="w")
        kafka.delete_records("orders", 0, 5)
        shutil.move(before, after)
        again = windows.run(an_hour(), after / "orders", window_id="w")
        assert not again.ran
        assert str(again.output).startswith(str(after))
    assert rows(str(after / "orders")) == first()


def test_a_damaged_owner_is_named(tmp_path: Path, kafka: InMemoryKafka) -> None:
    """Nothing is planned before somebody has looked."""
    root = str(tmp_path / "orders")
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.run(an_hour(), root)
        Path(owner_path(root)).write_text("{")
        with pytest.raises(SinkError, match="which ledger"):
            windows.run(an_hour(1), root)
        assert len(windows.list()) == 1
