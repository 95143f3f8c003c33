"""Publishing in a real HDFS: the promises of `test_hdfs_model`, and what the client and the name node do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kafka_ordered_ops import SinkError, WindowSupersededError
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.hdfs import door as doors
from kafka_ordered_ops.output.hdfs import turn
from kafka_ordered_ops.output.hdfs.door import open_door
from kafka_ordered_ops.output.publisher import files_of
from tests.support.hdfs_support import (
    NEW,
    OLD,
    MemoryClient,
    check_replacements_that_are_killed,
    globbed_rows,
    hdfs,
    hooked_doors,
    path_in,
    staged_names,
)
from tests.support.objects_support import error_of_publishing, named_rows, staged_rows

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running HDFS."""
    with hdfs(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


def test_a_window_is_published_read_and_replaced(address: str) -> None:
    """Marker and stage are where no glob over the data goes; an older attempt comes too late."""
    root = f"{address}/lake/orders"
    old = staged_rows(root, OLD, attempt=1)
    assert named_rows(root) == globbed_rows(root) == []
    old.publish()
    assert named_rows(root) == globbed_rows(root) == OLD
    new = staged_rows(root, NEW, attempt=2)
    new.publish()
    new.publish()
    assert named_rows(root) == globbed_rows(root) == NEW
    assert all(one.startswith(f"{root}/window_id=") for one in files(root))
    assert new.is_published()
    with pytest.raises(WindowSupersededError):
        old.publish()
    assert staged_names(root) == []


def test_a_root_without_a_host_is_in_the_default_file_system(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Hadoop's own settings say where that is, or storage_options."""
    options = {"fs.defaultFS": address}
    staged_rows("hdfs:///lake/default", OLD, options=options).publish()
    assert named_rows(f"{address}/lake/default") == OLD
    with open(f"{tmp_path}/core-site.xml", "w", encoding="ascii") as file:
        file.write(
            "<configuration><property><name>fs.defaultFS</name>"
            f"<value>{address}</value></property></configuration>"
        )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert named_rows("hdfs:///lake/default") == OLD


def test_the_model_does_what_a_name_node_does(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operation onto each kind of target: the same outcome, and the same kind of error."""
    root, outcomes = f"{address}/same", list[object]()
    model = MemoryClient()
    for connected in (None, model):
        if connected is not None:
            monkeypatch.setattr(doors, "_connected", lambda *_: model)
        door, seen = open_door(root), list[object]()
        for name in ("file", "other"):
            door.make_folder(f"{root}/folder/{name}", parents=True)
            upload = door.create(f"{root}/{name}")
            upload.write(name.encode())
            upload.close()
        door.make_folder(f"{root}/full/inner", parents=True)
        door.make_folder(f"{root}/empty", parents=True)
        paths = ["file", "other", "folder", "full", "empty", "nothing", "nothing/below"]
        calls = [
            *((door.rename, (a, b), overwrite) for a in paths for b in paths for overwrite in (0, 1)
              if a != b and not b.startswith(f"{a}/")),
            *((door.delete, (one,), None) for one in paths),
        ]  # fmt: skip
        for call, names, overwrite in calls:
            where = [f"{root}/{one}" for one in names]
            try:
                if overwrite is None:
                    door.delete(where[0], recursive=False)
                else:
                    door.rename(where[0], where[1], overwrite=bool(overwrite))
                    door.rename(where[1], where[0], overwrite=False)
            except OSError as error:
                seen.append((call.__name__, names, overwrite, type(error).__name__))
            else:
                seen.append((call.__name__, names, overwrite, "done"))
            if overwrite == 1 and seen[-1][-1] == "done":  # type: ignore[index]
                # What was in the target's place is gone.
                if names[1] == "empty":
                    door.make_folder(f"{root}/empty", parents=False)
                elif names[1] in ("file", "other"):
                    door.create(f"{root}/{names[1]}").close()
        outcomes.append(seen)
        assert not files_of(root).names(f"{root}/file/x")
    assert outcomes[0] == outcomes[1]


def test_a_publication_that_is_killed_anywhere_is_finished_by_the_next(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see the old rows, for an instant none, or the new rows; in the end the new ones, and nothing is left."""
    monkeypatch.setattr(turn, "LOST_AFTER_S", 0.2)
    hooked_doors(monkeypatch)
    numbers = itertools.count()
    # The deeper of the two; the model tries both.
    check_replacements_that_are_killed(
        lambda: f"{address}/killed/{next(numbers)}", "date=2026-11-20/hour=9"
    )


@pytest.mark.parametrize("lost_after_s", [0.0, 10.0])
def test_publishers_that_race_leave_one_whole_window(
    address: str, monkeypatch: pytest.MonkeyPatch, lost_after_s: float
) -> None:
    """Jobs of two attempts, twice each, that wait for each other or take each other for dead: the newer one is shown."""
    monkeypatch.setattr(turn, "LOST_AFTER_S", lost_after_s)

    for number in range(3):
        root = f"{address}/raced/{lost_after_s}/{number}"
        older = [staged_rows(root, OLD, attempt=1) for _ in range(2)]
        newer = [staged_rows(root, NEW, attempt=2) for _ in range(2)]
        with ThreadPoolExecutor(4) as pool:
            ended = list(pool.map(error_of_publishing, [*older, *newer]))
        if lost_after_s:
            assert None in ended[2:], ended
            assert SinkError not in ended, ended
        newer[0].publish()
        assert globbed_rows(root) == named_rows(root) == NEW
        assert staged_names(root) == []


def test_a_turn_of_a_dead_process_is_taken_over_and_one_of_a_live_one_is_not(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sign of life is enough; without one the next publisher waits so long, and no longer."""
    monkeypatch.setattr(turn, "LOST_AFTER_S", 1.0)
    root = f"{address}/turns"
    output = staged_rows(root, OLD)
    door = open_door(root)
    held = turn.Turn(door, output.stages_folder, output.window_folder, root)
    held.take()
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(output.publish)
        for number in range(8):
            time.sleep(0.5)  # a sign of life, well before it would be missed
            door.touch(held._mine, 1_000 + number)
            assert not publishing.done()
        started = time.monotonic()
        publishing.result(30)
        assert time.monotonic() - started >= 0.4
    assert named_rows(root) == OLD
    with pytest.raises(InterruptedError):
        held.end()
    assert path_in(root) == "/turns"
