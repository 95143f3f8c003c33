"""Publishing in HDFS, in memory: every crash point, and publishers in every order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, SinkError, StagedOutput, WindowSupersededError
from kafka_ordered_ops.output.filesystem import normal_root
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.hdfs import turn
from kafka_ordered_ops.output.hdfs.door import open_door
from kafka_ordered_ops.output.hdfs.files import is_scrap
from kafka_ordered_ops.output.hdfs.probe import check_hdfs
from kafka_ordered_ops.output.roots import leftovers
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
from tests.support.swaps import NEXT, check_replacements_that_others_heal


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
@pytest.mark.parametrize("touch", NEXT.values(), ids=NEXT)
def test_whoever_touches_the_root_next_heals_a_replacement_that_was_killed(
    memory_hdfs: Callable[[], str], touch: Callable[[str], object]
) -> None:
    """There is no step in HDFS that exchanges two folders: between the two that there are, readers see nothing."""
    check_replacements_that_others_heal(memory_hdfs, touch)


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
def test_what_killed_processes_leave_goes_with_clean(
    memory_hdfs: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a check of the folder, of small files, and of their turns; what is young stays, and what is published."""
    for killed in every_kill():
        root = memory_hdfs()
        client: Any = open_door(root)._client
        with killed:
            check_hdfs(root, None)
            staged_rows(root, NEW).publish()
            check_hdfs(f"{root}/deeper", None)
        left, shown = _scrap(client), named_rows(root)
        StagedOutput.clean(root)
        assert _scrap(client) == left
        with monkeypatch.context() as patch:
            patch.setattr(leftovers, "before", lambda *_, **__: datetime.now(UTC) + timedelta(1))
            StagedOutput.clean(root)
        assert _scrap(client) == []
        assert named_rows(root) == shown
        staged_rows(root, NEW, attempt=2).publish()
        assert named_rows(root) == NEW


def _scrap(client: Any) -> list[str]:
    return [path for path in client.tree if is_scrap(path) or "/.turns/" in path]


@pytest.mark.long
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


def test_who_has_lost_its_turn_changes_nothing(memory_hdfs: Callable[[], str]) -> None:
    """Neither by a rename nor by a removal; the end of the turn says that it was taken over."""
    output = staged_rows(memory_hdfs(), NEW)
    where = files_for(output.root)
    place = (output.stages_folder, output.window_folder)

    def too_slow() -> None:
        with where.locked(*place):
            turn.Turn(open_door(output.root), *place, output.root).take()
            with pytest.raises(InterruptedError):
                where.rename(output.stage_path, f"{output.stage_path}~aside")
            with pytest.raises(InterruptedError):
                where.remove(output.stage_path)

    with pytest.raises(InterruptedError):
        too_slow()
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
