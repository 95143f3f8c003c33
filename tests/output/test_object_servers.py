"""The protocol on real stores: every crash point, and publishers that race."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore
import pytest

from kafka_ordered_ops import ConfigError, StagedOutput
from kafka_ordered_ops.output.objects import store as door
from kafka_ordered_ops.output.objects.probe import check_store
from kafka_ordered_ops.output.objects.store import Copy, open_store
from tests.support.object_servers import SERVERS, Server, s3mock
from tests.support.objects_support import (
    error_of_publishing,
    globbed_rows,
    hooked_stores,
    killed_at,
    named_rows,
    staged_names,
    staged_rows,
)

#: Those that have to be built or installed are for the long run, and the first test waits for that.
_INSTALLED = (pytest.mark.long, pytest.mark.timeout(2_400))
_KINDS = [
    pytest.param("moto", marks=pytest.mark.slow),
    *(pytest.param(name, marks=_INSTALLED) for name in SERVERS if name != "moto"),
]


@pytest.fixture(scope="module", params=_KINDS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A running store."""
    folder = tmp_path_factory.mktemp(request.param) / "data"
    with SERVERS[request.param](folder) as running:
        yield running


@pytest.fixture(autouse=True)
def _hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    hooked_stores(monkeypatch)


def test_the_store_is_good_for_publishing(server: Server) -> None:
    """Its probe says so, leaves nothing, and names what is missing where something is."""
    check_store(f"{server.root}/probed", server.options)
    assert staged_names(f"{server.root}/probed", server.options) == []
    elsewhere = server.root.replace("bucket", "no-bucket").replace("container@", "no-container@")
    with pytest.raises(ConfigError, match=r"there is no bucket no-(bucket|container)"):
        check_store(elsewhere, server.options)


@pytest.mark.long
@pytest.mark.timeout(2_400)
def test_a_store_that_honours_conditions_only_in_sequence_is_refused() -> None:
    """S3Mock lets in several writers of a race, and a single one now and then."""
    with s3mock() as server:
        store, path = open_store(server.root, server.options), f"{server.root}/in sequence"
        assert store.put_if(path, b"first", None) is not None
        assert store.put_if(path, b"second", None) is None
        for number in range(10):
            with pytest.raises(ConfigError, match="does not honour conditional writes"):
                check_store(f"{server.root}/{number}", server.options)


def test_a_publication_that_is_killed_anywhere_is_finished_by_the_next(server: Server) -> None:
    """Replacing an older attempt: old or new for who reads manifests, and in the end new for everybody."""
    options, old, new = server.options, [1, 2, 3], [4, 5, 6, 7, 8]
    for step in range(1, 100):
        root = f"{server.root}/killed/{step}"
        staged_rows(root, old, attempt=1, options=options).publish()
        staged = staged_rows(root, new, attempt=2, options=options)
        with killed_at(step) as kills:
            staged.publish()
        assert named_rows(root, options) in (old, new)
        found = StagedOutput.found(staged.to_json(), options)
        assert found is not None
        found.publish()
        assert globbed_rows(root, options) == named_rows(root, options) == new
        assert staged_names(root, options) == []
        if not kills:
            break
    assert step > 8


def test_publishers_that_race_leave_one_whole_window(server: Server) -> None:
    """Jobs of two attempts, twice each: the newer one is there in the end, and files of no other."""
    options = server.options
    for turn in range(5):
        root = f"{server.root}/raced/{turn}"
        older = [staged_rows(root, [1, 2, 3], attempt=1, options=options) for _ in range(2)]
        newer = [staged_rows(root, [4, 5, 6, 7], attempt=2, options=options) for _ in range(2)]

        with ThreadPoolExecutor(4) as pool:
            ended = list(pool.map(error_of_publishing, [*older, *newer]))
        assert None in ended[2:], ended
        assert named_rows(root, options) == [4, 5, 6, 7]
        newer[0].publish()
        assert globbed_rows(root, options) == [4, 5, 6, 7]
        assert staged_names(root, options) == []


def test_an_object_that_the_store_does_not_copy_is_read_and_written(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts, whole or not at all; one that was replaced meanwhile is not mixed with what it was."""
    monkeypatch.setattr(door, "COPIED_BY_ONE_REQUEST_MAX", 1_000_000)
    monkeypatch.setattr(door, "_PART_BYTES", part := 5 * 1024**2)
    store, root = open_store(server.root, server.options), f"{server.root}/large"
    content = random.Random(7).randbytes(2 * part + 12_345)
    store.put(f"{root}/source", content)
    store.copy([Copy(f"{root}/source", f"{root}/target", len(content))])
    found = store.get(f"{root}/target")
    assert found is not None
    assert found.content == content
    with pytest.raises(FileNotFoundError, match=r"/nowhere does not exist \(copy\)"):
        store.copy([Copy(f"{root}/nowhere", f"{root}/other", len(content))])

    get, parts = obstore.get, 0

    def replaced(*arguments: Any, **options: Any) -> Any:
        nonlocal parts
        parts += 1
        if parts == 2:
            store.put(f"{root}/source", content[::-1])
        return get(*arguments, **options)

    monkeypatch.setattr(obstore, "get", replaced)
    with pytest.raises(OSError, match=r"large/source: copy failed: .*replaced"):
        store.copy([Copy(f"{root}/source", f"{root}/third", len(content))])
    assert list(store.listed(root)) == ["source", "target"]
