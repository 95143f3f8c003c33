"""Publishing in HDFS, in memory: every crash point, and publishers in every order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops.core.errors import ConfigError, SinkError, WindowSupersededError
from kafka_ordered_ops.output.filesystem import normal_root
from kafka_ordered_ops.output.hdfs import turn
from kafka_ordered_ops.output.staged_output import StagedOutput
from tests.support.hdfs_support import globbed_rows, named_rows, staged_names
from tests.support.hdfs_support import memory_hdfs as memory_hdfs
from tests.support.objects_support import Interleaved, killed_at, staged_rows

OLD, NEW = [1, 2, 3], [4, 5, 6, 7, 8]


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
    step = 0
    while True:
        step += 1
        root = memory_hdfs()
        staged_rows(root, OLD, attempt=1).publish()
        staged = staged_rows(root, NEW, attempt=2)
        with killed_at(step) as kills:
            staged.publish()
        assert named_rows(root) in (OLD, [], NEW)
        assert globbed_rows(root) == named_rows(root)
        found = StagedOutput.found(staged.to_json())
        assert found is not None, step
        found.publish()
        assert globbed_rows(root) == named_rows(root) == NEW
        assert staged_names(root) == []
        if not kills:
            break
    assert step > 15


@pytest.mark.slow
def test_a_first_publication_that_is_killed_is_there_whole_or_not_at_all(
    memory_hdfs: Callable[[], str],
) -> None:
    """Also for a plain glob: the folder appears by one rename."""
    step = 0
    while True:
        step += 1
        root = memory_hdfs()
        staged = staged_rows(root, NEW)
        with killed_at(step) as kills:
            staged.publish()
        assert globbed_rows(root) == named_rows(root)
        assert named_rows(root) in ([], NEW)
        staged.publish()
        assert named_rows(root) == NEW
        assert staged_names(root) == []
        if not kills:
            break


@pytest.mark.slow
def test_a_job_that_is_killed_while_it_writes_leaves_nothing_behind(
    memory_hdfs: Callable[[], str],
) -> None:
    """The next attempt's publication removes what it had written, and nothing of it was ever seen."""
    step = 0
    while True:
        step += 1
        root = memory_hdfs()
        with killed_at(step) as kills:
            staged_rows(root, OLD, attempt=1)
        assert named_rows(root) == []
        staged_rows(root, NEW, attempt=2).publish()
        assert named_rows(root) == globbed_rows(root) == NEW
        assert staged_names(root) == []
        if not kills:
            break


@pytest.mark.slow
def test_a_discard_that_is_killed_is_finished_by_the_next(memory_hdfs: Callable[[], str]) -> None:
    """What is published stays."""
    step = 0
    while True:
        step += 1
        root = memory_hdfs()
        staged_rows(root, OLD, attempt=1).publish()
        staged = staged_rows(root, NEW, attempt=2)
        with killed_at(step) as kills:
            staged.discard()
        assert named_rows(root) == OLD
        staged.discard()
        assert named_rows(root) == OLD
        assert [name for name in staged_names(root) if not name.startswith(".turns")] == []
        if not kills:
            break


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
