"""Records that cannot be decoded, in a root beside the output: each once, published with its window."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import (
    Application,
    ConfigError,
    DecodeError,
    Folder,
    OrderedWindows,
    OutputOwnedError,
    RecordsLostError,
    SinkError,
    cli,
    stage_window,
    stage_windows,
)
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.decoding import DeadLetter
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.objects.publisher import ManifestPublisher
from kafka_ordered_ops.output.publisher import files_of
from kafka_ordered_ops.output.renaming import RenamePublisher
from kafka_ordered_ops.output.writing.bad_records import BAD_SCHEMA
from kafka_ordered_ops.windows import OrderedWindows as Service
from kafka_ordered_ops.windows import Policy
from tests.support.both_worlds import broker as broker
from tests.support.both_worlds import memory as memory
from tests.support.both_worlds import world as world
from tests.support.dead_letters import (
    BESIDE,
    asked,
    bad_places,
    bad_rows,
    die_at_commit,
    fill,
    ids,
    lake_of,
    places,
    service,
    staged,
    window,
)
from tests.support.hdfs_support import memory_hdfs as memory_hdfs
from tests.support.objects_support import Killed
from tests.support.objects_support import memory as memory_store
from tests.support.stages import stages_of
from tests.support.windows_support import BASE_MS, at
from tests.support.worlds import World

__all__ = ["memory_hdfs", "memory_store"]  # fixtures

MakeRoot = Callable[[], str]


def test_bad_records_are_beside_the_output(world: World, tmp_path: Path) -> None:
    """With the bytes, the headers and the time that they had, where they come from, and which part is bad and why."""
    fill(world)
    lake = lake_of(tmp_path)
    result = service(world).run(asked(world), lake, window_id="w")
    assert (result.records, result.dead_letters) == (4, 3)
    assert result.dead_letters_to == f"{lake}__bad/window_id=w"
    assert sorted(ids(lake), key=str) == [1, 1, 6, None]
    first, second, third = bad_rows(lake)
    assert [(row["key"], row["value"]) for row in (first, second, third)] == [
        (b'{"id": 2}', b"{"),
        (b"nothing", b'{"id": 3}'),
        (b"nothing", b"nothing"),
    ]
    assert (first["topic"], first["partition"], first["offset"]) == (world.named("orders"), 0, 1)
    assert first["timestamp"].timestamp() * 1_000 == BASE_MS + 2_000
    headers = [(header["key"], header["value"]) for header in first["headers"]]
    assert headers == [("h", b"1"), ("h", None), ("", b"")]
    assert [
        (row["key_error"] is not None, row["value_error"] is not None)
        for row in (first, second, third)
    ] == [(False, True), (True, False), (True, True)]
    [path] = files(f"{lake}__bad")
    assert pq.read_schema(path).remove_metadata() == BAD_SCHEMA
    assert places(world) == []
    again = service(world).run(asked(world), lake, window_id="w")
    assert (again.ran, again.dead_letters_to) == (False, result.dead_letters_to)


def test_a_window_without_bad_records_has_an_empty_file(memory: World, tmp_path: Path) -> None:
    """So the root of bad records has every window, and readers find its columns."""
    fill(memory)
    service(memory).run(asked(memory, 1.5), lake_of(tmp_path), window_id="w")
    [path] = files(f"{lake_of(tmp_path)}__bad")
    assert pq.read_table(path).num_rows == 0


def test_a_replay_leaves_each_once(world: World, tmp_path: Path) -> None:
    """It replaces what the earlier attempt had there; with another schema, by other records."""
    fill(world)
    windows, lake = service(world), lake_of(tmp_path)
    windows.run(asked(world), lake, window_id="w")
    again = windows.run(asked(world), lake, window_id="w", policy=Policy(on_covered="replay"))
    assert (again.ran, bad_places(lake)) == (True, BESIDE)
    windows.run(asked(world, keys=None), lake, window_id="w", policy=Policy(on_covered="replay"))
    assert bad_places(lake) == [(0, 1), (0, 3)]
    assert len(list(Path(f"{lake}__bad").glob("*/*.parquet"))) == 1


def test_a_retry_that_only_commits_publishes_them(world: World, tmp_path: Path) -> None:
    """They are staged with the output, and hidden until its window is committed, whatever is asked for since."""
    fill(world)
    lake = lake_of(tmp_path)
    with Service(world.settings, world.named("g")) as steps:
        plan = steps.plan(asked(world), "w")
        steps.mark_written(plan, stage_window(plan, world.settings, lake).to_json())
    assert bad_places(lake) == []
    result = service(world).run(window(world, on_bad="keep"), lake, window_id="w")
    assert (result.ran, result.records, bad_places(lake)) == (False, 4, BESIDE)


def test_a_stage_without_them_is_written_again(memory: World, tmp_path: Path) -> None:
    """The output alone would lose them; a commit of it is refused, and so is its publication."""
    fill(memory)
    lake = lake_of(tmp_path)
    with Service(memory.settings, memory.named("g")) as steps:
        plan = steps.plan(asked(memory), "w")
        output = stage_window(plan, memory.settings, lake)
        shutil.rmtree(stages_of(Path(f"{lake}__bad")))
        assert not output.exists()
        with pytest.raises(SinkError):
            steps.commit(plan, output)
        with pytest.raises(SinkError):
            output.publish()
        assert (steps.show("w").status, ids(lake)) == ("planned", [])
        steps.mark_written(plan, output.to_json())
    result = service(memory).run(asked(memory), lake, window_id="w")
    assert (result.ran, bad_places(lake)) == (True, BESIDE)


def test_who_removes_published_ones_does_not_get_them_again(memory: World, tmp_path: Path) -> None:
    """They have been looked at: the window is published, and stays so. A replay writes them again."""
    fill(memory)
    windows, lake = service(memory), lake_of(tmp_path)
    windows.run(asked(memory), lake, window_id="w")
    shutil.rmtree(f"{lake}__bad")
    assert not windows.run(asked(memory), lake, window_id="w").ran
    assert bad_places(lake) == []
    windows.run(asked(memory), lake, window_id="w", policy=Policy(on_covered="replay"))
    assert bad_places(lake) == BESIDE


def test_an_abandoned_window_leaves_none(world: World, tmp_path: Path) -> None:
    """Its records are read by the next window, once; what was staged is removed by `clean`."""
    fill(world)
    windows, lake = service(world), lake_of(tmp_path)
    with Service(world.settings, world.named("g")) as steps:
        plan = steps.plan(asked(world), "w")
        steps.mark_written(plan, stage_window(plan, world.settings, lake).to_json())
        steps.abandon(plan)
    assert bad_places(lake) == []
    windows.run(asked(world), lake, window_id="v")
    assert bad_places(lake) == BESIDE
    bad = f"{lake}__bad"
    assert windows.clean(bad, older_than="PT0S") > 0
    assert bad_places(lake) == BESIDE
    assert staged(Path(bad)) == []


def test_a_discarded_output_leaves_nothing(memory: World, tmp_path: Path) -> None:
    """Neither its own stage, nor that of its bad records."""
    fill(memory)
    lake = lake_of(tmp_path)
    with Service(memory.settings, memory.named("g")) as steps:
        stage_window(steps.plan(asked(memory), "w"), memory.settings, lake).discard()
    for root in (lake, Path(f"{lake}__bad")):
        assert staged(root) == []


def test_windows_committed_together_each_have_theirs(world: World, tmp_path: Path) -> None:
    """In folders of their own, partitioned as the output."""
    fill(world)
    lake = lake_of(tmp_path)
    with Service(world.settings, world.named("g")) as steps:
        plans = steps.plan_many([asked(world, 2.5), asked(world)], ["early", "late"])
        steps.commit_many(plans, stage_windows(plans, world.settings, lake))
    counts = {
        path.parent.name: pq.read_metadata(path).num_rows
        for path in Path(f"{lake}__bad").glob("*/*.parquet")
    }
    assert counts == {"window_id=early": 1, "window_id=late": 2}


def test_they_are_partitioned_as_the_output(memory: World, tmp_path: Path) -> None:
    """And results name the folder."""
    fill(memory)
    lake = lake_of(tmp_path)
    to = Folder(lake, partition_by="date")
    result = service(memory).run(asked(memory, since=-100), to, window_id="w")
    assert result.output is not None
    folder = result.output.replace("/orders/", "/orders__bad/")
    assert folder.endswith("/window_id=w")
    assert "/date=" in folder
    assert result.dead_letters_to == folder
    [path] = Path(folder).glob("*.parquet")
    assert pq.read_metadata(path).num_rows == 3


def test_a_function_writes_the_good_ones(world: World, tmp_path: Path) -> None:
    """To the output, or to another folder beside which the bad ones are then."""
    fill(world)
    lake, other = lake_of(tmp_path), tmp_path / "other"
    windows = service(world)
    with windows.open(asked(world), lake, window_id="w") as opened:
        opened.write(opened.to_arrow(), other)
    assert (len(ids(other)), bad_places(other), bad_places(lake)) == (4, BESIDE, [])

    def looks(opened: Any) -> None:
        opened.write(next(opened.to_batches()))

    with pytest.raises(ConfigError, match="not read to their end"):
        windows.run(
            asked(world), lake, job=looks, window_id="w", policy=Policy(on_covered="replay")
        )


def test_too_many_stop_the_window(world: World, tmp_path: Path) -> None:
    """As with a topic: nothing is committed, and nothing written."""
    fill(world)
    windows, lake = service(world), lake_of(tmp_path)
    with pytest.raises(DecodeError, match="max_bad is 2"):
        windows.run(asked(world, on_bad="dead_letter::2"), lake, window_id="w")
    assert (ids(lake), bad_places(lake)) == ([], [])
    windows.run(asked(world, on_bad=DeadLetter(max_bad=0.43)), lake, window_id="w")
    assert bad_places(lake) == BESIDE


def test_records_that_are_gone_stop_the_job(memory: World, tmp_path: Path) -> None:
    """Retention may remove them while the job runs: none is lost silently, and no stage is left."""
    fill(memory)
    lake = lake_of(tmp_path)
    with Service(memory.settings, memory.named("g")) as steps:
        plan = steps.plan(asked(memory), "w")
        done = 0

        def progress(offsets: int, _: int) -> None:
            nonlocal done
            done = offsets
            if done == 7:
                memory.delete_before("orders", 0, 3)

        with pytest.raises(RecordsLostError, match="are gone"):
            stage_window(plan, memory.settings, lake, progress=progress)
        assert staged(lake) == []


@pytest.mark.parametrize("output", [None, "sink"])
def test_without_a_place_it_is_refused(memory: World, output: str | None) -> None:
    """Before a window is planned: a job that delivers itself, an application without an output, and a sink."""
    fill(memory)
    windows = service(memory)

    @dataclasses.dataclass
    class Sink:
        def write(self, result: Any, plan: Any) -> Any: ...

        def found(self, result: Any) -> Any: ...

    to = None if output is None else Sink()
    jobs: list[Any] = [lambda opened: opened.to_arrow()]
    if output is None:
        jobs.append(Application("job.py"))
    for job in jobs:
        with pytest.raises(ConfigError, match=r"on_bad is dead_letter.*(output|report)"):
            windows.run(asked(memory), to, job=job, window_id="w")
    with (
        pytest.raises(ConfigError, match="beside the output"),
        windows.open(asked(memory), to, window_id="w"),
    ):
        raise AssertionError
    assert windows.list() == []


def test_an_output_of_another_kind_is_refused(memory: World, tmp_path: Path) -> None:
    """A function may report the output of its own sink in place of files: beside it, there is no place."""
    fill(memory)
    windows = service(memory)

    class Own:
        """An output that is staged elsewhere."""

        def to_json(self) -> dict[str, Any]:
            """Return what another process needs."""
            return {"window_id": "w"}

        def publish(self) -> None:
            """Does nothing."""

        discard = publish

    def job(opened: Any) -> None:
        opened.to_arrow()
        opened.report(Own())

    with pytest.raises(ConfigError, match="no place for bad records"):
        windows.run(asked(memory), lake_of(tmp_path), job=job, window_id="w")
    assert [record.status for record in windows.list()] == ["planned"]


def test_a_root_of_another_ledger_is_refused(memory: World, tmp_path: Path) -> None:
    """Before a window is planned, as the output itself is."""
    fill(memory)
    lake = lake_of(tmp_path)
    with Service(memory.settings, "other", ledger_topic="other-ledger") as steps:
        plan = steps.plan(memory.window(100, starting_offsets="earliest"), "w")
        steps.commit(plan, stage_window(plan, memory.settings, f"{lake}__bad"))
    windows = service(memory)
    with pytest.raises(OutputOwnedError, match="orders__bad"):
        windows.run(asked(memory), lake, window_id="v")
    assert windows.list() == []


def test_a_window_of_another_group_is_in_the_way(memory: World, tmp_path: Path) -> None:
    """Of the same ledger: it is not replaced, and nothing is planned."""
    fill(memory)
    lake = lake_of(tmp_path)
    with Service(memory.settings, "other") as steps:
        plan = steps.plan(memory.window(100, starting_offsets="earliest"), "w")
        steps.commit(plan, stage_window(plan, memory.settings, f"{lake}__bad"))
    windows = service(memory)
    with pytest.raises(OutputOwnedError, match="orders__bad"):
        windows.run(asked(memory), lake, window_id="w")
    assert windows.list() == []


def test_a_folder_that_cannot_be_made_is_refused(memory: World, tmp_path: Path) -> None:
    """Before a window is planned."""
    fill(memory)
    lake = lake_of(tmp_path)
    lake.parent.mkdir()
    Path(f"{lake}__bad").write_text("not a folder")
    windows = service(memory)
    with pytest.raises(ConfigError, match="orders__bad"):
        windows.run(asked(memory), lake, window_id="w")
    assert windows.list() == []


def test_a_link_leads_to_one_place(memory: World, tmp_path: Path) -> None:
    """Beside what it points to, as the stages are."""
    fill(memory)
    lake = lake_of(tmp_path)
    lake.mkdir(parents=True)
    (tmp_path / "link").symlink_to(lake)
    service(memory).run(asked(memory), tmp_path / "link", window_id="w")
    assert bad_places(lake) == BESIDE


@pytest.fixture(params=["folder", "hdfs", "store"])
def make_root(
    request: pytest.FixtureRequest, tmp_path: Path, memory_store: MakeRoot, memory_hdfs: MakeRoot
) -> MakeRoot:
    """Makes roots in a file system, in HDFS or in an object store."""
    numbers = itertools.count()
    return {
        "folder": lambda: str(tmp_path / f"lake-{next(numbers)}" / "orders"),
        "hdfs": memory_hdfs,
        "store": memory_store,
    }[str(request.param)]


#: The steps of outputs: each is repeatable, and a process may die before and after it.
_STEPS = ("check_root", "make", "seal", "land", "check_ready", "publish")


def kills(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks whose process dies before or after the first step of an output, the second and so on."""
    left = 0

    def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal left
            if (left := left - 1) == 0:
                raise Killed
            result = method(*args, **options)
            if (left := left - 1) == 0:
                raise Killed
            return result

        return call

    for kind in (RenamePublisher, ManifestPublisher):
        for name in _STEPS:
            monkeypatch.setattr(kind, name, wrapped(getattr(kind, name)))
    for number in itertools.count(1):
        left = number
        yield
        if left > 0:
            assert number > 20
            return


def seen(root: str) -> list[tuple[int, int]]:
    """Where the records come from that readers see below a root."""
    found: list[tuple[int, int]] = []
    with suppress(FileNotFoundError):
        for path in files(root):
            with files_of(root).open(path) as file:
                table = pq.read_table(file, columns=["partition", "offset"])
            found += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return sorted(found)


@pytest.mark.slow
def test_a_death_at_any_step_leaves_each_once(
    memory: World, make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None before the commit, and none twice; an output that readers see has them beside it; the next run completes both."""
    fill(memory)
    for number, _ in enumerate(kills(monkeypatch)):
        root, windows = make_root(), OrderedWindows(memory.settings, f"g{number}")
        with suppress(Killed):
            windows.run(asked(memory), root, window_id="w")
        bad, good = seen(f"{root}__bad"), seen(root)
        assert bad in ([], BESIDE)
        assert not good or bad
        if bad:
            assert windows.show("w").status in (WindowStatus.COMMITTED, WindowStatus.PUBLISHED)
        windows.run(asked(memory), root, window_id="w")
        assert (seen(f"{root}__bad"), len(seen(root))) == (BESIDE, 4)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("step", "fatal"), [("commit", 2), ("commit", 3), ("publish", 1), ("publish", 2)]
)
def test_a_kill_leaves_each_once(
    broker: World, tmp_path: Path, when: str, step: str, fatal: int
) -> None:
    """At the commit, between both publications, and before the ledger knows of them; the next run completes the window."""
    fill(broker)
    lake = lake_of(tmp_path)
    die_at_commit(broker, lake, when, fatal, on_bad="dead_letter", step=step)
    assert bad_places(lake) in ([], BESIDE)
    service(broker).run(asked(broker), lake, window_id="w")
    assert bad_places(lake) == BESIDE
    assert sorted(ids(lake), key=str) == [1, 1, 6, None]


@pytest.mark.slow
def test_the_command_line_says_where_they_are(
    broker: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it runs the window, and as it shows it."""
    fill(broker)
    orders, group_id, lake = broker.named("orders"), broker.named("g"), lake_of(tmp_path)
    at_broker = ["-b", broker.settings.bootstrap_servers, "-g", group_id]
    given = {
        "--cutoff": at(100).isoformat(),
        "--output": str(lake),
        "--values": "json:id int64",
        "--keys": "json:id int64",
        "--on-bad": "dead_letter",
        "--window-id": "w",
    }
    more = ["-t", orders, "--starting-offsets", "earliest", "--engine", "local"]
    arguments = ["run", *at_broker, *more, *itertools.chain.from_iterable(given.items())]
    assert cli.main(arguments) == 0, capsys.readouterr().err
    ran = capsys.readouterr().out
    assert cli.main(["windows", "show", *at_broker, "w"]) == 0
    shown = capsys.readouterr().out
    for text in (ran, shown):
        assert "orders__bad/window_id=w" in text.replace("\n", "").replace(" ", "")
    assert bad_places(lake) == BESIDE


@pytest.mark.slow
def test_the_command_line_abandons_their_stage(broker: World, tmp_path: Path) -> None:
    """With that of the output."""
    fill(broker)
    lake, group_id = lake_of(tmp_path), broker.named("g")
    with Service(broker.settings, group_id) as steps:
        plan = steps.plan(asked(broker), "w")
        steps.mark_written(plan, stage_window(plan, broker.settings, lake).to_json())
    assert (staged(lake), staged(Path(f"{lake}__bad"))) == (["w"], ["w"])
    at_broker = ["-b", broker.settings.bootstrap_servers, "-g", group_id]
    assert cli.main(["windows", "abandon", *at_broker, "w", "--output", str(lake)]) == 0
    assert (staged(lake), staged(Path(f"{lake}__bad"))) == ([], [])
