"""Windows in an object store: complete or not there, from every crash and every interleaving of publishers."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import (
    Copy,
    Folder,
    OrderedWindows,
    SinkError,
    StagedOutput,
    Window,
    WindowSupersededError,
    stage_window,
)
from kafka_ordered_ops.core.times import time_at
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.contents import check_rows
from kafka_ordered_ops.output.objects import publisher as publisher_module
from kafka_ordered_ops.output.objects import store as door
from kafka_ordered_ops.output.objects.layout import manifest_path
from kafka_ordered_ops.output.objects.store import State, Store, open_store
from kafka_ordered_ops.output.writing.draft import Draft
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.objects_support import (
    Interleaved,
    globbed_rows,
    killed_at,
    named_rows,
    s3_server,
    staged_names,
    staged_rows,
)
from tests.support.objects_support import memory as memory

MakeRoot = Callable[[], str]

HOUR = Window("orders", cutoff="2026-11-20T12:00:00Z", starting_offsets="earliest")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers that meet do not wait: the order of their steps is given."""
    monkeypatch.setattr(publisher_module, "_PAUSE_S", 0.0)


@pytest.fixture
def kafka() -> Any:
    """A cluster with ten records."""
    with InMemoryKafka() as cluster:
        cluster.create_topic("orders")
        for number in range(10):
            cluster.produce("orders", value=b"v", timestamp_ms=1_700_000_000_000 + number)
        yield cluster


def service(kafka: InMemoryKafka) -> OrderedWindows:
    """A new process of one group."""
    return OrderedWindows(kafka.settings, group_id="g")


# --- every crash point ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_is_exact_when_it_is_run_again(memory: MakeRoot) -> None:
    """No glob sees a file before the commit, no manifest reader a part, and in the end nothing is left behind."""
    step = 0
    while True:
        step += 1
        root = memory()
        with InMemoryKafka() as kafka:
            kafka.create_topic("orders")
            for number in range(10):
                kafka.produce("orders", value=b"v", timestamp_ms=1_700_000_000_000 + number)
            with killed_at(step) as kills, service(kafka) as windows:
                windows.run(HOUR, root, job=Copy(ordered=False), window_id="w")
            with service(kafka) as windows:
                is_done = any(
                    one.plan.status in (WindowStatus.COMMITTED, WindowStatus.PUBLISHED)
                    for one in windows.list()
                )
                if not is_done:
                    assert globbed_rows(root) == []
                assert named_rows(root) in ([], list(range(10)))
                windows.run(HOUR, root, job=Copy(ordered=False), window_id="w")
        assert sorted(globbed_rows(root)) == sorted(named_rows(root)) == list(range(10))
        assert staged_names(root) == []
        if not kills:
            break
    assert step > 8


@pytest.mark.parametrize("before", [0, 1], ids=["first", "replacing"])
def test_a_publication_that_is_killed_anywhere_is_finished_by_the_next(
    memory: MakeRoot, before: int
) -> None:
    """Before: what was there. After: the newest. In between nothing else, for who reads the manifest."""
    old, new = ([1, 2, 3] if before else []), [4, 5, 6, 7, 8]
    for step in range(1, 100):
        root = memory()
        if before:
            staged_rows(root, old, attempt=1).publish()
        staged = staged_rows(root, new, attempt=2)
        with killed_at(step, changes_only=False) as kills:
            staged.publish()
        assert named_rows(root) in (old, new)
        staged_again = StagedOutput.found(staged.to_json())
        assert staged_again is not None
        staged_again.check_ready()
        staged_again.publish()
        assert globbed_rows(root) == named_rows(root) == new
        assert staged_names(root) == []
        if not kills:
            break
    assert step > 12


def test_a_discard_that_is_killed_anywhere_leaves_no_stage_that_counts(memory: MakeRoot) -> None:
    """A seal goes before the files that it names."""
    for step in range(1, 30):
        root = memory()
        staged = staged_rows(root, [1, 2, 3, 4])
        with killed_at(step) as kills:
            staged.discard()
        if step > 1:
            assert not staged.exists()
        staged.discard()
        assert staged_names(root) == []
        if not kills:
            break
    assert step > 4


# --- publishers at the same time ------------------------------------------------------------------


@pytest.mark.slow
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.integers(0, 2), max_size=90),
    st.sampled_from(["same attempt", "two drafts", "older and newer"]),
    st.booleans(),
)
def test_publishers_in_any_order_of_steps_never_leave_a_hole(
    memory: MakeRoot, order: list[int], who: str, replacing: bool
) -> None:
    """After each single step, all files that a manifest names are there; in the end the newest attempt is."""
    root = memory()
    if replacing:
        staged_rows(root, [0, 0, 0], attempt=1).publish()
    first = staged_rows(root, [1, 2, 3], attempt=2)
    if who == "same attempt":
        calls = [first.publish, first.publish]
        allowed = [[1, 2, 3]]
    elif who == "two drafts":
        second = staged_rows(root, [4, 5, 6, 7], attempt=2)
        calls = [first.publish, second.publish]
        allowed = [[1, 2, 3], [4, 5, 6, 7]]
    else:
        newer = staged_rows(root, [8, 9, 10], attempt=3)
        calls = [first.publish, newer.publish]
        allowed = [[8, 9, 10]]
    attempts = [1 if replacing else 0]

    def check() -> None:
        named = files(root)
        assert set(named) <= {f"{root}/{one}" for one in door.open_store(root).listed(root)}
        attempts.append(max((int(name.split("-")[-4]) for name in named), default=0))

    both = Interleaved(calls, order)
    both.run(check)
    assert named_rows(root) in allowed, both.errors
    # What readers see never moves back.
    assert attempts == sorted(attempts)
    for error in both.errors.values():
        assert isinstance(error, WindowSupersededError | SinkError), error
    # At least one came to its end, and left nothing but what readers see.
    assert len(both.errors) < 2
    newest = max(calls, key=lambda call: call.__self__.attempt)  # type: ignore[attr-defined]
    newest()
    assert sorted(globbed_rows(root)) == sorted(named_rows(root))
    assert staged_names(root) == []


@pytest.mark.slow
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.integers(0, 1), max_size=60), st.integers(1, 25))
def test_a_publisher_that_is_killed_beside_another_is_no_harm(
    memory: MakeRoot, order: list[int], step: int
) -> None:
    """The one that lives ends exactly, whatever the dead one has left where."""
    root = memory()
    staged = staged_rows(root, [1, 2, 3, 4, 5])

    def killed() -> None:
        left = step
        from tests.support import objects_support

        turn = objects_support._hooks.hook

        def hook(operation: str) -> None:
            nonlocal left
            turn(operation)
            left -= 1
            if left <= 0:
                raise SystemExit

        objects_support._hooks.hook = hook
        staged.publish()

    both = Interleaved([staged.publish, killed], order)
    both.run(lambda: None)
    assert 0 not in both.errors
    assert named_rows(root) == [1, 2, 3, 4, 5]
    staged.publish()
    assert globbed_rows(root) == [1, 2, 3, 4, 5]


# --- answers that are lost ------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "asked_again", [False, True], ids=["an error", "asked again by the client"]
)
def test_a_write_whose_answer_is_lost_is_read_back(
    memory: MakeRoot, monkeypatch: pytest.MonkeyPatch, nth: int, asked_again: bool
) -> None:
    """It has happened: the client then fails, or repeats it and is told that the object has changed."""
    root, put_if, calls = memory(), Store.put_if, 0
    staged_rows(root, [9], attempt=1).publish()
    staged = staged_rows(root, [1, 2, 3], attempt=2)

    def lost(self: Store, path: str, content: bytes, seen: State | None) -> State | None:
        nonlocal calls
        calls += 1
        state = put_if(self, path, content, seen)
        if calls != nth:
            return state
        if asked_again:
            return None
        raise OSError("the connection was closed")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put_if", lost)
        if nth <= 2 and not asked_again:
            with pytest.raises(SinkError, match="closed"):
                staged.publish()
            assert named_rows(root) in ([9], [1, 2, 3])
        else:
            staged.publish()
    staged.publish()
    assert globbed_rows(root) == named_rows(root) == [1, 2, 3]


def test_a_window_that_was_forgotten_and_has_another_date_now_leaves_nothing_in_its_old_folder(
    kafka: InMemoryKafka, memory: MakeRoot
) -> None:
    """Neither a glob nor the manifest finds a record twice."""
    root = memory()
    with service(kafka) as windows:
        windows.run(HOUR, Folder(root, partition_by="hour"), job=Copy(ordered=False), window_id="w")
        plan = replace(
            windows.show("w").plan, window=replace(HOUR, cutoff=time_at(HOUR.cutoff_ms + 3_600_000))
        )
    again = stage_window(
        replace(plan, attempt=plan.attempt + 1), kafka.settings, root, partition_by="hour"
    )
    again.publish()
    assert sorted(globbed_rows(root)) == sorted(named_rows(root)) == list(range(10))
    assert all("hour=12" in path for path in files(root))


# --- what dead attempts leave ----------------------------------------------------------------------


def test_clean_removes_old_stages_and_nothing_else(memory: MakeRoot) -> None:
    """An attempt's objects go together; what readers see, what is complete, and what is young, stays."""
    root = memory()
    done = staged_rows(root, [1], window_id="done", attempt=2)
    older = staged_rows(root, [1], window_id="done")
    done.publish()
    Draft(older).make()
    waiting = staged_rows(root, [2], window_id="waiting")
    Draft(replace(waiting, window_id="dead")).make()
    assert StagedOutput.clean(root) == 0
    assert StagedOutput.clean(root, older_than=timedelta(0)) == 2
    assert waiting.exists()
    assert named_rows(root) == [1]


def test_a_draft_that_is_cleaned_while_it_is_sealed_replaces_nothing(
    memory: MakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too young an age was given: what was counted is what is published, or nothing."""
    root = memory()
    staged_rows(root, [1, 2, 3]).publish()

    def then_clean(*args: Any) -> None:
        check_rows(*args)
        StagedOutput.clean(root, older_than=timedelta(0))

    monkeypatch.setattr(publisher_module, "check_rows", then_clean)
    newer = staged_rows(root, [1, 2, 3], attempt=2)
    with pytest.raises(SinkError):
        newer.publish()
    assert named_rows(root) == [1, 2, 3]


@pytest.mark.slow
def test_clean_does_not_count_what_it_cannot_delete() -> None:
    """A folder of Hadoop's, an empty object whose name ends in a slash, has no name in the library: it is in nobody's way."""
    root = "s3://bucket/lake/orders"
    with s3_server() as options:
        staged = staged_rows(root, [1], options=options)
        (name,) = (one for one in staged_names(root, options) if one.endswith(".parquet"))
        attempt = name.partition("~")[0]
        # A complete stage would stay.
        open_store(root, options).delete([f"{staged.stages_folder}/{attempt}~seal.json"])
        # Newer than all that the attempt has written.
        marker = f"lake/.koo/orders/stage/{attempt}~draft-1/_temporary/0/"
        address = f"{options['aws_endpoint']}/bucket/{marker}"
        urllib.request.urlopen(
            urllib.request.Request(address, b"", method="PUT"), timeout=10
        ).close()
        assert len(staged_names(root, options)) == 4
        clean = partial(StagedOutput.clean, root, older_than=timedelta(0), storage_options=options)
        assert clean() == 3
        assert not staged.exists()
        assert clean() == 0


def test_an_object_in_the_place_of_a_small_one_is_cut(
    memory: MakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its size, no more than a seal's is held in memory; it then counts as none of this package's."""
    monkeypatch.setattr(door, "SMALL_BYTES_MAX", 1_000)
    root = memory()
    store = door.open_store(root)
    for size, expected in ((999, 999), (1_000, 1_000), (1_001, 1_001), (100_000, 1_001)):
        store.put(f"{root}/x", b"x" * size)
        found = store.get(f"{root}/x")
        assert found is not None
        assert len(found.content) == expected


@pytest.mark.parametrize(
    "path",
    ["{theirs}", "../../secret", "secret.parquet", "x/../{theirs}", "/{theirs}", "..", "", "a//b"],
)
def test_a_forged_manifest_removes_nothing_of_others(memory: MakeRoot, path: str) -> None:
    """Files that it says its window has left behind are removed only if they are that window's own."""
    root = memory()
    staged_rows(root, [1], window_id="theirs").publish()
    [theirs] = files(root)
    staged_rows(root, [2]).publish()
    store = open_store(root)
    secret = f"{root}/secret.parquet"
    store.put_if(secret, b"x", None)
    again = staged_rows(root, [3], attempt=2)
    found = store.get(manifest_path(again))
    assert found is not None
    fields = json.loads(found.content)
    fields["left"] = [path.format(theirs=theirs.removeprefix(f"{root}/"))]
    assert store.put_if(manifest_path(again), json.dumps(fields).encode(), found.state)
    again.publish()
    assert named_rows(root) == [1, 3]
    assert store.get(secret) is not None
