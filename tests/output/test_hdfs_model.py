"""Publishing in HDFS, in memory: every crash point, and publishers in every order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops.core.errors import ConfigError, SinkError, WindowSupersededError
from kafka_ordered_ops.output.filesystem import normal_root
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.hdfs import turn
from kafka_ordered_ops.output.hdfs.door import open_door
from kafka_ordered_ops.output.hdfs.files import HdfsFiles
from tests.support.hdfs_support import (
    NEW,
    OLD,
    MemoryClient,
    check_replacements_that_are_killed,
    globbed_rows,
    staged_names,
)
from tests.support.hdfs_support import memory_hdfs as memory_hdfs
from tests.support.objects_support import Interleaved, every_kill, named_rows, staged_rows


@pytest.fixture(autouse=True)
def _dead_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a turn is taken for dead at once: the worst that can happen to one that is only slow."""
    monkeypatch.setattr(turn, "LOST_AFTER_S", 0.0)
    monkeypatch.setattr(turn, "_POLL_S", 0.0)


@pytest.mark.slow
def test_a_publication_that_is_killed_anywhere_is_finished_by_the_next(
    memory_hdfs: Callable[[], str],
) -> None:
    """Readers see the old rows, for an instant none, or the new rows; in the end the new ones, and nothing is left."""
    check_replacements_that_are_killed(memory_hdfs)


@pytest.mark.slow
def test_a_first_publication_that_is_killed_is_there_whole_or_not_at_all(
    memory_hdfs: Callable[[], str],
) -> None:
    """Also for a plain glob: the folder appears by one rename."""
    for killed in every_kill():
        root = memory_hdfs()
        staged = staged_rows(root, NEW)
        with killed:
            staged.publish()
        assert globbed_rows(root) == named_rows(root)
        assert named_rows(root) in ([], NEW)
        staged.publish()
        assert named_rows(root) == NEW
        assert staged_names(root) == []


@pytest.mark.slow
def test_a_job_that_is_killed_while_it_writes_leaves_nothing_behind(
    memory_hdfs: Callable[[], str],
) -> None:
    """The next attempt's publication removes what it had written, and nothing of it was ever seen."""
    for killed in every_kill():
        root = memory_hdfs()
        with killed:
            staged_rows(root, OLD, attempt=1)
        assert named_rows(root) == []
        staged_rows(root, NEW, attempt=2).publish()
        assert named_rows(root) == globbed_rows(root) == NEW
        assert staged_names(root) == []


@pytest.mark.slow
def test_a_discard_that_is_killed_is_finished_by_the_next(memory_hdfs: Callable[[], str]) -> None:
    """What is published stays."""
    for killed in every_kill():
        root = memory_hdfs()
        staged_rows(root, OLD, attempt=1).publish()
        staged = staged_rows(root, NEW, attempt=2)
        with killed:
            staged.discard()
        assert named_rows(root) == OLD
        staged.discard()
        assert named_rows(root) == OLD
        assert [name for name in staged_names(root) if not name.startswith(".turns")] == []


@pytest.mark.slow
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=st.lists(st.integers(0, 2), max_size=250))
def test_publishers_in_any_order_never_replace_a_newer_attempt(
    memory_hdfs: Callable[[], str], order: list[int]
) -> None:
    """Three at once, each of which takes the others for dead: what readers see is whole, and never gets older."""
    root = memory_hdfs()
    staged_rows(root, [0], attempt=1).publish()
    attempts = [staged_rows(root, [10 * n, 10 * n + 1, 10 * n + 2], attempt=n) for n in (2, 3, 4)]
    newest = 0

    def check() -> None:
        nonlocal newest
        seen = globbed_rows(root)
        assert len(seen) in (0, 1, 3)
        assert seen == named_rows(root)
        if seen:
            assert seen[0] // 10 >= newest
            newest = seen[0] // 10

    calls = [one.publish for one in attempts]
    interleaved = Interleaved(calls, order)
    interleaved.run(check)
    for error in interleaved.errors.values():
        assert isinstance(error, SinkError | WindowSupersededError), error
    attempts[2].publish()
    check()
    assert named_rows(root) == [40, 41, 42]
    assert staged_names(root) == []


@pytest.mark.slow
def test_an_operation_that_the_client_asks_for_twice_loses_nothing(
    memory_hdfs: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does when a name node fails before it answers: this publication or the next one is complete."""
    left, failed = 0, 0

    def twice(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def one(self: MemoryClient, *arguments: Any, **keywords: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                original(self, *arguments, **keywords)
            return original(self, *arguments, **keywords)

        return one

    for name in ("mkdirs", "rename", "delete", "set_times", "create"):
        monkeypatch.setattr(MemoryClient, name, twice(name, getattr(MemoryClient, name)))
    for number in itertools.count(1):
        root = memory_hdfs()
        staged_rows(root, OLD, attempt=1).publish()
        staged = staged_rows(root, NEW, attempt=2)
        left = number
        try:
            staged.publish()
        except SinkError:
            failed += 1
            assert named_rows(root) in (OLD, [], NEW)
        is_over, left = left > 0, 0
        staged.publish()
        assert globbed_rows(root) == named_rows(root) == NEW
        assert staged_names(root) == []
        if is_over:
            break
    assert number > 8
    assert failed


@pytest.mark.parametrize("when", ["inside", "behind"])
def test_a_turn_inside_another_one_leaves_that_one_in_force(
    memory_hdfs: Callable[[], str], when: str
) -> None:
    """Whoever has lost the outer turn changes nothing of its window, neither in the inner one nor after it."""
    output = staged_rows(memory_hdfs(), NEW)
    where = files_for(output.root)
    assert isinstance(where, HdfsFiles)
    place, elsewhere = (output.stages_folder, output.window_folder), f"{output.root}/older"
    aside = f"{output.stage_path}~aside"

    def lost() -> None:
        turn.Turn(open_door(output.root), *place, output.root).take()
        with pytest.raises(InterruptedError):
            where.rename(output.stage_path, aside)
        with pytest.raises(InterruptedError):
            where.remove(output.stage_path)

    inner = f"{elsewhere}/{output.window_folder.rpartition('/')[2]}"
    with ExitStack() as locks:
        locks.enter_context(pytest.raises(InterruptedError))
        locks.enter_context(where.locked(*place))
        with where.locked(elsewhere, inner):
            if when == "inside":
                lost()
        if when == "behind":
            lost()
    assert where.exists(output.stage_path)


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("hdfs://nn:8020/lake/orders/", "hdfs://nn:8020/lake/orders"),
        ("HDFS://MyService/lake", "hdfs://MyService/lake"),
        ("hdfs:///lake/orders", "hdfs:///lake/orders"),
    ],
)
def test_a_root_in_hdfs_has_one_name(given: str, root: str) -> None:
    """Without a host it is that of fs.defaultFS, which this process need not know yet."""
    assert normal_root(given) == root


@pytest.mark.parametrize(
    "root",
    [
        "hdfs:lake",
        "hdfs://nn",
        "hdfs://nn/",
        "hdfs:///",
        "hdfs://bob:canary-s3cret@nn/lake",
        "hdfs://nn/lake/../orders",
        "hdfs://nn/lake//orders",
        "hdfs://nn/lake/a:b",
        "hdfs://nn/lake/*",
        "hdfs://nn/lake/.koo",
        "hdfs://nn/lake/" + "x" * 256,
    ],
)
def test_a_root_that_hdfs_does_not_take_is_refused(root: str) -> None:
    """Before anything is touched, and without a password that is in it."""
    with pytest.raises(ConfigError) as caught:
        normal_root(root)
    assert "canary" not in str(caught.value)
