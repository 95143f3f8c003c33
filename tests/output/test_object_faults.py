"""A store that fails for a while, and publishers beside one another: what is well is not called lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from kafka_ordered_ops import ConfigError, SinkError, StagedOutput
from kafka_ordered_ops.core.window.plan import PlanPart
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.output.objects import faults
from kafka_ordered_ops.output.objects.layout import manifest_path
from kafka_ordered_ops.output.objects.probe import check_store
from kafka_ordered_ops.output.objects.store import State, Store, open_store
from tests.support.faulty_store import FaultyStore, faulty_store
from tests.support.objects_support import (
    globbed_rows,
    hooked,
    killed_at,
    named_rows,
    s3_server,
    staged_names,
    staged_rows,
)
from tests.support.objects_support import memory as memory

MakeRoot = Callable[[], str]


# --- another publisher comes to its end between two looks -------------------------------------------


def test_a_lost_answer_takes_nothing_from_readers(
    memory: MakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the publishing write is lost, and another publisher begins before that is noticed, and dies."""
    root = memory()
    output = staged_rows(root, [1, 2, 3])
    put_if, lost = Store.put_if, list[bytes]()

    def put(self: Store, path: str, content: bytes, seen: State | None) -> State | None:
        state = put_if(self, path, content, seen)
        if path != manifest_path(output) or b'"output":null' in content or lost:
            return state
        lost.append(content)
        with killed_at(2) as kills:
            output.publish()
        assert kills
        return None

    delete = Store.delete

    def delete_and_look(self: Store, paths: Sequence[str]) -> None:
        delete(self, paths)
        assert named_rows(root) == ([1, 2, 3] if lost else [])

    monkeypatch.setattr(Store, "put_if", put)
    monkeypatch.setattr(Store, "delete", delete_and_look)
    output.publish()
    assert lost
    assert named_rows(root) == [1, 2, 3]


def _ends_before(step: int, other: Callable[[], object]) -> tuple[Callable[[str], None], list[int]]:
    """A hook that lets another publisher come to its end before the n-th operation."""
    left, ended = step, list[int]()

    def hook(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            ended.append(step)
            with hooked(lambda _: None):
                other()

    return hook, ended


@pytest.mark.slow
@pytest.mark.parametrize("call", ["publish", "check_ready", "found"])
@pytest.mark.parametrize("drafts", [1, 2])
def test_a_publisher_that_finds_the_other_s_work_done_is_content(
    memory: MakeRoot, call: str, drafts: int
) -> None:
    """Wherever in its steps the other one ends and cleans up: the window is published, and nobody is told to replay it."""
    for step in range(1, 100):
        root = memory()
        staged_rows(root, [9], attempt=1).publish()
        staged = staged_rows(root, [1, 2, 3], attempt=2)
        other = staged if drafts == 1 else staged_rows(root, [1, 2, 3], attempt=2)
        hook, ended = _ends_before(step, other.publish)
        with hooked(hook):
            if call == "found":
                assert StagedOutput.found(staged.to_json()) is not None
            else:
                getattr(staged, call)()
        if not ended:
            break
        assert named_rows(root) == [1, 2, 3]
        assert staged.is_published()
    assert step > 3


def test_what_is_published_is_seen_while_another_publishes_it_again(memory: MakeRoot) -> None:
    """A second job of the attempt replaces the files between the look at the manifest and the look at them."""
    for step in range(1, 30):
        root = memory()
        staged = staged_rows(root, [1, 2, 3])
        staged.publish()
        hook, ended = _ends_before(step, staged_rows(root, [1, 2, 3]).publish)
        with hooked(hook):
            assert staged.is_published()
        if not ended:
            break
    assert step > 2


@pytest.mark.slow
def test_a_window_that_another_process_has_joined_meanwhile_is_joined(memory: MakeRoot) -> None:
    """Its parts are gone then: the whole is there."""
    for step in range(1, 60):
        root = memory()
        parts = [_part(root, n, [n, n + 10]) for n in range(2)]

        def joined(parts: list[StagedOutput] = parts) -> None:
            StagedOutput.merged(parts).publish()

        hook, ended = _ends_before(step, joined)
        with hooked(hook):
            StagedOutput.merged(parts).publish()
        assert named_rows(root) == [0, 10, 1, 11]
        if not ended:
            break
    assert step > 3


def _part(root: str, number: int, rows: list[int]) -> StagedOutput:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from kafka_ordered_ops.output.writing.draft import drafts_of

    place = StagedOutput(root, "w", "c1", 1, PlanPart(number, 2), group_id="g")
    with drafts_of([place]) as (draft,):
        with draft.files.sink(f"{draft.path}/part-00000.parquet") as file:
            pq.write_table(pa.table({"n": rows}), file)
        return draft.seal({"records": len(rows)})


# --- stores that look first and write later ---------------------------------------------------------


@pytest.mark.parametrize("raced", ["creation", "replacement"])
@pytest.mark.parametrize("lucky", [0, 4])
def test_a_store_that_honours_conditions_only_in_sequence_is_refused(
    memory: MakeRoot, monkeypatch: pytest.MonkeyPatch, raced: str, lucky: int
) -> None:
    """It looks whether the condition holds, and writes a moment later: several win, if not in the first races by luck."""
    put_if, paths = Store.put_if, set[str]()

    def looks_first(self: Store, path: str, content: bytes, seen: State | None) -> State | None:
        paths.add(path)
        if len(paths) <= lucky or (seen is None) is not (raced == "creation"):
            return put_if(self, path, content, seen)
        found = self.get(path)
        if (None if found is None else found.state) != seen:
            return None
        time.sleep(0.05)
        self.put(path, content)
        written = self.get(path)
        return None if written is None else written.state

    monkeypatch.setattr(Store, "put_if", looks_first)
    with pytest.raises(ConfigError, match="does not honour conditional writes"):
        check_store(memory(), None)


def test_a_store_whose_answers_are_lost_is_not_refused(
    memory: MakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner asks again, and hears that the object has changed: nobody has won, and the store is good."""
    put_if = Store.put_if

    def forgets(self: Store, path: str, content: bytes, seen: State | None) -> State | None:
        put_if(self, path, content, seen)
        return None

    monkeypatch.setattr(Store, "put_if", forgets)
    check_store(memory(), None)


# --- faults that pass -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bad_way() -> Iterator[tuple[FaultyStore, dict[str, str]]]:
    """A proxy before a server of S3, and the options that lead through it."""
    with s3_server() as options, faulty_store(options) as found:
        yield found


@pytest.mark.long
@pytest.mark.parametrize("fault", ["refused", "answer lost", "answer cut"])
def test_every_operation_rides_out_a_store_s_fault(
    bad_way: tuple[FaultyStore, dict[str, str]], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request fails twice, whether it was done or not, and the window is published once and whole."""
    monkeypatch.setattr(faults, "_PAUSE_S", 0.01)
    proxy, options = bad_way
    root, failed = f"s3://bucket/lake/{fault.replace(' ', '-')}", dict[tuple[str, str], int]()

    def faulty(method: str, path: str) -> str | None:
        request = (method, path.partition("?")[0])
        failed[request] = failed.get(request, 0) + 1
        return fault if failed[request] <= 2 else None

    proxy.fault = faulty
    try:
        check_store(root, options)
        staged_rows(root, [9], attempt=1, options=options).publish()
        staged = staged_rows(root, [1, 2, 3], attempt=2, options=options)
        staged.publish()
        assert staged.is_published()
    finally:
        proxy.fault = lambda *_: None
    assert sum(count > 2 for count in failed.values()) > 5
    assert globbed_rows(root, options) == named_rows(root, options) == [1, 2, 3]
    assert staged_names(root, options) == []


@pytest.mark.long
def test_an_outage_is_ridden_out(bad_way: tuple[FaultyStore, dict[str, str]]) -> None:
    """Of some seconds, longer than the library alone repeats a request."""
    proxy, options = bad_way
    end = time.monotonic() + 8

    proxy.fault = lambda *_: "refused" if time.monotonic() < end else None
    open_store("s3://bucket", options).put("s3://bucket/outage", b"1")
    assert time.monotonic() >= end


@pytest.mark.slow
def test_a_fault_that_does_not_pass_is_an_error_in_time(
    bad_way: tuple[FaultyStore, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time for it, or at the end of the public call, also in the threads that copy; others at once."""
    proxy, options = bad_way
    store, started = open_store("s3://bucket", options), time.monotonic()
    with pytest.raises(FileNotFoundError):
        store.tail("s3://bucket/nothing", 10)
    with pytest.raises(FileNotFoundError, match="there is no bucket"):
        open_store("s3://nobody", options).put("s3://nobody/x", b"1")
    assert time.monotonic() - started < 10
    proxy.fault = lambda *_: "refused"
    try:
        monkeypatch.setattr(faults, "RIDE_OUT_S", 3.0)
        with pytest.raises(OSError, match="503"):
            store.put("s3://bucket/x", b"1")
        monkeypatch.setattr(faults, "RIDE_OUT_S", 600.0)
        with calls.call("test", 2.0), pytest.raises(SinkError, match="503"):
            check_store("s3://bucket/lake/never", options)
    finally:
        proxy.fault = lambda *_: None
    assert time.monotonic() - started < 60
