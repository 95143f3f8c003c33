"""Whose a root is, and what its stages are: in folders, in HDFS and in a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_ordered_ops import (
    Folder,
    OrderedWindows,
    OutputOwnedError,
    SinkError,
    StagedOutput,
    stage_window,
)
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.address import control_folder
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.layout import Layout
from kafka_ordered_ops.output.objects.layout import (
    GENERATION_MAX,
    Manifest,
    is_own_file,
    next_generation,
)
from kafka_ordered_ops.output.objects.store import open_store
from kafka_ordered_ops.output.places import adopt_root
from kafka_ordered_ops.output.roots import root_owner
from kafka_ordered_ops.output.roots.root_owner import RootOwner, owner_path, read_owner
from kafka_ordered_ops.testing import InMemoryKafka
from tests.output.test_ownership import (
    HOUR,
    MakeRoot,
    a_second,
    an_hour,
    committed,
    fill,
    first,
    owner_of,
    rows,
)
from tests.output.test_ownership import clusters as clusters
from tests.output.test_ownership import kafka as kafka
from tests.support.hdfs_support import memory_hdfs as memory_hdfs
from tests.support.objects_support import memory as memory


@pytest.fixture(params=["folder", "hdfs", "store"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, memory: MakeRoot, memory_hdfs: MakeRoot
) -> str:
    """Where windows are written to."""
    if request.param == "folder":
        return str(tmp_path / "lake" / "orders")
    return memory() if request.param == "store" else memory_hdfs()


def remove(root: str, path: str) -> None:
    """Removes a file or an object, or all below it."""
    if not root.startswith("s3:"):
        files_for(root, None).remove(path)
        return
    store = open_store(root, None)
    store.delete([path, *(f"{path}/{name}" for name in store.listed(path))])


# --- the groups ---------------------------------------------------------------------------------------


def test_what_is_recorded_can_be_read_back_however_many_groups_publish(
    root: str, kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest groups lose their topics: they feed a note, and the root stays open."""
    monkeypatch.setattr(root_owner, "OWNER_BYTES_MAX", 400)
    names = [f"{n}-{'x' * 100}" for n in range(3)]
    for name in names:
        kafka.create_topic(name, 1)
    for name in names:
        with OrderedWindows(kafka.settings, f"g-{name[0]}") as windows:
            windows.run(an_hour(topics=name), root)
    with OrderedWindows(kafka.settings, "g") as windows:
        assert windows.run(an_hour(), root).notes == ()
        assert windows.run(an_hour(1), root).notes == ()
    with OrderedWindows(kafka.settings, "renamed") as windows:
        assert "g published windows" in windows.run(an_hour(), root).notes[0]


def test_an_owner_keeps_its_ledger_when_groups_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Topics go first, of the largest; then names; and a group that has none is not recorded again."""
    monkeypatch.setattr(root_owner, "OWNER_BYTES_MAX", 300)
    owner = RootOwner("cluster/topic")
    for n in range(30):
        output = Layout("/r", "w", "c", 0, group_id=f"group-{n}", topics=("t" * n,))
        owner = owner.with_group(output) or owner
        assert RootOwner.parse(owner.to_bytes(), "owner").ledger_id == "cluster/topic"
    assert 5 < len(owner.groups) < 30
    last = Layout("/r", "w", "c", 0, group_id=min(owner.groups), topics=("t" * 900,))
    assert (owner.with_group(last) or owner).with_group(last) is None


@pytest.mark.parametrize("topics", [("orders", "^orders$"), ("^orders$", "orders")])
def test_a_renamed_group_is_told_also_if_it_names_its_topics_otherwise(
    root: str, kafka: InMemoryKafka, topics: tuple[str, str]
) -> None:
    """A pattern is compared with names, and a name with patterns."""
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.run(an_hour(topics=topics[0]), root)
    with OrderedWindows(kafka.settings, "renamed") as windows:
        notes = windows.run(an_hour(topics=topics[1]), root).notes
        assert "g published windows of the same topics" in notes[0]


# --- a lost owner -------------------------------------------------------------------------------------


def test_a_window_says_whose_the_root_is_when_the_owner_was_lost(
    root: str, clusters: Callable[[], InMemoryKafka]
) -> None:
    """Another ledger is refused, also one that exists, until it adopts the root; the own one goes on."""
    one, two = clusters(), clusters()
    with OrderedWindows(one.settings, "g") as windows:
        windows.run(an_hour(), root, window_id="w")
    remove(root, owner_path(root))
    with OrderedWindows(two.settings, "g") as windows:
        for window_id in ("w", "other"):
            plan = windows.plan(an_hour(), window_id)
            with pytest.raises(OutputOwnedError):
                stage_window(plan, windows.settings, root)
            windows.abandon(plan)
    with OrderedWindows(one.settings, "g") as windows:
        windows.run(an_hour(1), root)
    remove(root, owner_path(root))
    with OrderedWindows(two.settings, "g") as windows:
        assert windows.adopt_output(root) == owner_of(one)
        windows.run(an_hour(2), root)
    assert rows(root) == first()


def test_a_root_that_lost_all_that_was_beside_it_has_no_new_owner(
    root: str, clusters: Callable[[], InMemoryKafka]
) -> None:
    """Nobody knows whose its windows are: nothing is planned, and nothing is recorded."""
    one, two = clusters(), clusters()
    with OrderedWindows(one.settings, "g") as windows:
        windows.run(an_hour(), root, window_id="w")
    remove(root, control_folder(root))
    for cluster in (two, one):
        with OrderedWindows(cluster.settings, "other") as windows:
            with pytest.raises(SinkError, match="not known which ledger"):
                windows.run(an_hour(1), root)
            assert not windows.list()


def test_who_is_refused_does_not_become_the_owner(root: str, kafka: InMemoryKafka) -> None:
    """Another program's files are in the window's place: the root is nobody's yet."""
    with OrderedWindows(kafka.settings, "g") as windows:
        plan = windows.plan(an_hour(), "w")
        place = StagedOutput.of(plan, root).final_path
        if root.startswith("s3:"):
            open_store(root, None).put(f"{place}/other.parquet", b"x")
        else:
            files_for(root, None).make_folder(place)
        with pytest.raises(SinkError, match="in the way"):
            stage_window(plan, windows.settings, root)
    if root.startswith("s3:"):
        assert open_store(root, None).get(owner_path(root)) is None
    else:
        assert read_owner(files_for(root, None), root) is None


def test_a_publisher_does_not_undo_an_adoption(
    memory_hdfs: MakeRoot, kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In HDFS the two have different locks: what is recorded of groups is apart from the owner."""
    root, original = memory_hdfs(), RootOwner.with_group

    def adopted_meanwhile(owner: RootOwner, output: Layout) -> RootOwner | None:
        adopt_root(root, "other/ledger")
        return original(owner, output)

    monkeypatch.setattr(RootOwner, "with_group", adopted_meanwhile)
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.run(an_hour(), root)
    owner = read_owner(files_for(root, None), root)
    assert owner is not None
    assert owner.ledger_id == "other/ledger"
    assert root_owner.with_groups(files_for(root, None), owner, root).groups == {}


# --- what others have staged and published ------------------------------------------------------------


def test_a_publication_leaves_another_ledger_s_stage(
    root: str, clusters: Callable[[], InMemoryKafka]
) -> None:
    """After a fail-over the same group runs the same window: what the former ledger has committed may be its only copy."""
    one, two = clusters(), clusters()
    with OrderedWindows(one.settings, "g") as windows:
        output = committed(windows, root)
    with OrderedWindows(two.settings, "g") as windows:
        windows.plan(an_hour(5), "the-ledger-exists")
        windows.adopt_output(root)
        windows.run(an_hour(), root, window_id="w")
    assert output.exists()


@pytest.mark.parametrize("partition_by", [None, "date"])
def test_an_id_that_another_group_has_used_for_another_hour_is_refused_before_it_is_claimed(
    root: str, kafka: InMemoryKafka, partition_by: str | None
) -> None:
    """Its folder has another name: no job runs, and nothing stays claimed."""
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.run(a_second(0), Folder(root, partition_by=partition_by), window_id="hourly")
    fill(kafka, "second", hour=3)
    with OrderedWindows(kafka.settings, "h") as windows:
        with pytest.raises(OutputOwnedError):
            windows.run(
                a_second(3 * HOUR), Folder(root, partition_by=partition_by), window_id="hourly"
            )
        assert windows.state() is None
    assert rows(root) == first(1)


# --- manifests ----------------------------------------------------------------------------------------


def test_a_stranger_s_file_does_not_count_as_a_generation(
    memory: MakeRoot, kafka: InMemoryKafka
) -> None:
    """Of any number of digits, of any script: the window is published again, and can be read."""
    root = memory()
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.run(an_hour(), root, window_id="w")
        folder = files(root)[0].rpartition("/")[0]
        for number in ("9" * 25, "9" * 18, "\u0663"):
            open_store(root, None).put(f"{folder}/x-0-{number}-part-00000.parquet", b"x")
        plan = windows.replay("w")
        windows.publish(plan, stage_window(plan, windows.settings, root))
        assert rows(root) == first()


def test_a_generation_that_has_none_after_it_is_an_error_before_the_write(memory: MakeRoot) -> None:
    """A manifest is never replaced by one that cannot be read."""
    output = Layout(memory(), "w", "claim", 0)
    last = Manifest(GENERATION_MAX, output, {})
    assert Manifest.parse(last.to_bytes(), output, "manifest") == last
    beyond = json.loads(last.to_bytes()) | {"generation": GENERATION_MAX + 1}
    assert Manifest.parse(json.dumps(beyond).encode(), output, "manifest") is None
    with pytest.raises(SinkError, match="none after it"):
        next_generation(output, last, {})
    assert next_generation(output, Manifest(7, None, {}), {}) == 8


def test_readers_are_given_no_files_that_are_not_the_window_s(
    memory: MakeRoot, kafka: InMemoryKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody has changed the manifest: the others are named in the log."""
    root = memory()
    with OrderedWindows(kafka.settings, "g") as windows:
        windows.run(an_hour(), root, window_id="w")
    store, path = open_store(root, None), f"{control_folder(root)}/windows"
    [name] = store.listed(path)
    found = store.get(f"{path}/{name}")
    assert found is not None
    manifest = json.loads(found.content)
    manifest["files"] += [{"path": "../../x", "bytes": 1}]
    store.put(f"{path}/{name}", json.dumps(manifest).encode())
    assert rows(root) == first()
    assert "../../x" in caplog.text
    assert not is_own_file(Layout(root, "w", "c", 0), "../../x")
