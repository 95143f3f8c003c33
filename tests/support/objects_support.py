"""Object stores for tests: one in memory that can be killed and interleaved at every operation, and an S3 server."""

from __future__ import annotations

import itertools
import logging
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from kafka_ordered_ops import SinkError, StagedOutput, WindowSupersededError
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.objects import store as door
from kafka_ordered_ops.output.objects.store import Store
from kafka_ordered_ops.output.published import published
from kafka_ordered_ops.output.publisher import files_of
from kafka_ordered_ops.output.writing.draft import drafts_of

_numbers = itertools.count()
_hooks = threading.local()
#: The servers of S3 that run in this process.
_servers: list[str] = []

#: What changes the store; the others look.
_CHANGES = ("put", "put_if", "copy", "delete")
_LOOKS = ("get", "listed", "folders", "some", "tail")


class Killed(BaseException):
    """The process is dead: nothing that it does after this reaches the store."""


def step(operation: str) -> None:
    """Do what this thread's hook does before an operation, if it has one."""
    hook: Callable[[str], None] | None = getattr(_hooks, "hook", None)
    if hook is not None:
        hook(operation)


@contextmanager
def hooked(hook: Callable[[str], None]) -> Iterator[None]:
    """In this thread, call before each operation of a store in the block."""
    _hooks.hook = hook
    try:
        yield
    finally:
        _hooks.hook = None


def _wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def one(self: Store, *arguments: Any) -> Any:
        step(name)
        return original(self, *arguments)

    def each(self: Store, items: Sequence[Any]) -> None:
        if getattr(_hooks, "hook", None) is None:
            original(self, items)
            return
        for item in items:
            step(name)
            original(self, [item])

    return each if name in ("copy", "delete") else one


def hooked_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operations of all stores be hooked, until the test ends."""
    for name in (*_CHANGES, *_LOOKS):
        monkeypatch.setattr(Store, name, _wrapped(name, getattr(Store, name)))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Makes roots in fresh buckets, kept in memory by the library itself, whose operations can be hooked."""
    stores: dict[str, MemoryStore] = {}
    monkeypatch.setattr(
        door, "_connect", lambda bucket, _: stores.setdefault(bucket.bucket, MemoryStore())
    )
    hooked_stores(monkeypatch)
    return lambda: f"s3://memory-{next(_numbers)}/lake/orders"


@contextmanager
def killed_at(step: int, *, changes_only: bool = True) -> Iterator[list[Killed]]:
    """The block's process dies before its n-th operation, if it has so many; gives the kill once it came."""
    left, kills = step, list[Killed]()

    def hook(operation: str) -> None:
        nonlocal left
        if operation in _CHANGES or not changes_only:
            left -= 1
        if left <= 0:
            raise Killed

    with hooked(hook):
        try:
            yield kills
        except Killed as kill:
            kills.append(kill)


def every_kill(*, least: int = 0) -> Iterator[AbstractContextManager[object]]:
    """Blocks whose process dies before their first operation, their second and so on; the last one lives.

    There are more than `least`: a test whose blocks are not killed at all shows nothing.
    """
    for number in itertools.count(1):
        kills = list[Killed]()

        @contextmanager
        def block(number: int = number, kills: list[Killed] = kills) -> Iterator[None]:
            with killed_at(number) as found:
                yield
            kills += found

        yield block()
        if not kills:
            assert number > least
            return


class Interleaved:
    """Runs functions in threads, one operation of the store at a time, in a given order."""

    def __init__(self, calls: Sequence[Callable[[], object]], order: Sequence[int]) -> None:
        self._calls, self._order = calls, order
        self._turns = [threading.Semaphore(0) for _ in calls]
        self._stopped = threading.Semaphore(0)
        self._running = set(range(len(calls)))
        self.errors: dict[int, BaseException] = {}

    def _thread(self, number: int) -> None:
        def hook(_: str) -> None:
            self._stopped.release()
            self._turns[number].acquire()

        try:
            with hooked(hook):
                hook("")
                self._calls[number]()
        except BaseException as error:  # noqa: BLE001 - for the test to look at
            self.errors[number] = error
        self._running.discard(number)
        self._stopped.release()

    def run(self, check: Callable[[], None]) -> None:
        """Run all to their ends; `check` is called after every operation."""
        threads = [
            threading.Thread(target=self._thread, args=(number,), daemon=True)
            for number in range(len(self._calls))
        ]
        for thread in threads:
            thread.start()
            self._stopped.acquire()
        for choice in itertools.chain(self._order, itertools.repeat(0)):
            if not self._running:
                break
            running = sorted(self._running)
            self._turns[running[choice % len(running)]].release()
            self._stopped.acquire()
            check()
        for thread in threads:
            thread.join()


def staged_rows(
    root: str,
    rows: Sequence[int],
    *,
    attempt: int = 1,
    claim_id: str = "c1",
    group_id: str = "g",
    window_id: str = "w",
    rows_per_file: int = 2,
    options: Mapping[str, Any] | None = None,
    partition: str | None = None,
    ledger_id: str = "",
    replaces: Sequence[str] = (),
) -> StagedOutput:
    """An output that one attempt has staged, a file for every few rows."""
    place = StagedOutput(
        root,
        window_id,
        claim_id,
        attempt,
        group_id=group_id,
        storage_options=options,
        partition=partition,
        ledger_id=ledger_id,
        replaces=tuple(replaces),
    )
    with drafts_of([place]) as (draft,):
        for number, start in enumerate(range(0, len(rows), rows_per_file)):
            table = pa.table({"n": list(rows[start : start + rows_per_file])})
            with draft.files.sink(f"{draft.path}/part-{number:05d}.parquet") as file:
                pq.write_table(table, file)
        return draft.seal({"records": len(rows)})


def named_rows(root: str, options: Mapping[str, Any] | None = None) -> list[int]:
    """What a reader of the manifests sees; fails when a file that they name is not there."""
    return rows_in(root, files(root, storage_options=options), options)


def globbed_rows(root: str, options: Mapping[str, Any] | None = None) -> list[int]:
    """What a reader of ``root/**/*.parquet`` sees."""
    store = door.open_store(root, options)
    return rows_in(root, [f"{root}/{one}" for one in store.listed(root)], options)


def staged_names(root: str, options: Mapping[str, Any] | None = None) -> list[str]:
    """The objects in all stages below a root."""
    control = StagedOutput(root, "w", "c", 0).stages_folder
    return list(door.open_store(root, options).listed(control))


def error_of_publishing(output: StagedOutput) -> type[Exception] | None:
    """What a publication that may come too late, or lose to others, raises; None for one that goes through."""
    try:
        output.publish()
    except (WindowSupersededError, SinkError) as error:
        return type(error)
    return None


def window_ids(root: str) -> list[str]:
    """The published windows."""
    return list(published(root))


def rows_in(root: str, paths: Sequence[str], options: Mapping[str, Any] | None = None) -> list[int]:
    """The rows in some files below a root."""
    found = files_of(root, options)
    rows: list[Any] = []
    for path in paths:
        with found.open(path) as file:
            table = pq.read_table(file)
        column = "n" if "n" in table.column_names else "offset"
        rows += table.column(column).to_pylist()
    return rows


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """A server of S3 in this process, with a bucket ``bucket``; gives the storage options."""
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    put, one_at_a_time = S3Response.put_object, threading.Lock()

    def put_alone(self: S3Response) -> Any:
        # By itself it looks whether the condition holds, and writes a moment later.
        with one_at_a_time:
            return put(self)

    S3Response.put_object = put_alone  # type: ignore[method-assign]
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    _servers.append(endpoint)
    try:
        urllib.request.urlopen(
            urllib.request.Request(f"{endpoint}/bucket", method="PUT"), timeout=10
        ).close()
        yield {
            "aws_access_key_id": "key",
            "aws_secret_access_key": "canary-s3cret",
            "aws_region": "us-east-1",
            "aws_endpoint": endpoint,
        }
    finally:
        _servers.remove(endpoint)
        if not _servers:
            # All servers of a process have the same buckets, and the next test begins with empty ones.
            urllib.request.urlopen(f"{endpoint}/moto-api/reset", data=b"", timeout=10).close()
        server.stop()
        S3Response.put_object = put  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """The options of a server of S3 with a bucket ``bucket``; its credentials are in no environment."""
    with s3_server() as options:
        yield options
