"""Outputs on a server of S3, by the public calls: delivered once, read back exactly, refused by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from moto.s3.exceptions import InvalidRequest
from moto.s3.models import S3Backend

from kafka_ordered_ops import (
    ConfigError,
    Folder,
    OrderedWindows,
    SinkError,
    StagedOutput,
    Window,
    stage_window,
    stage_windows,
)
from kafka_ordered_ops.core.times import time_at
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.objects import faults
from kafka_ordered_ops.output.objects import store as door
from kafka_ordered_ops.output.objects.store import State, Store
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.objects_support import (
    globbed_rows,
    named_rows,
    staged_names,
    staged_rows,
)
from tests.support.objects_support import memory as memory
from tests.support.objects_support import server as server

HOUR = Window("orders", cutoff="2026-11-20T12:00:00Z", starting_offsets="earliest")
NOON_MS = 1_700_481_600_000
SECRET = "canary-s3cret"


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """A cluster with ten records in two partitions."""
    with InMemoryKafka() as cluster:
        cluster.create_topic("orders", 2)
        for n in range(10):
            cluster.produce("orders", value=b"v", partition=n % 2, timestamp_ms=NOON_MS + n)
        yield cluster


@pytest.fixture
def windows(kafka: InMemoryKafka) -> Iterator[OrderedWindows]:
    """The public service of a group."""
    with OrderedWindows(kafka.settings, group_id="g") as service:
        yield service


@pytest.fixture
def root(request: pytest.FixtureRequest) -> str:
    """A root of its own for each test."""
    return f"s3://bucket/lake/{request.node.name.replace('[', '-').replace(']', '')}"


# --- delivered ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_window_is_copied_and_read_back_by_everybody(
    windows: OrderedWindows, server: dict[str, str], root: str
) -> None:
    """The same call again does nothing; the list of files is what DuckDB, Polars and a glob read."""
    first = windows.run(HOUR, Folder(root, storage_options=server), window_id="noon")
    again = windows.run(HOUR, Folder(root, storage_options=server), window_id="noon")
    assert (first.records, first.ran, again.ran) == (10, True, False)
    assert first.output == StagedOutput.of(windows.show("noon").plan, root).final_path
    names = files(root, storage_options=server)
    assert files(root, ["noon"], storage_options=server) == names
    frame = pl.read_parquet(names, storage_options=server)
    times = frame["timestamp"].to_list()
    assert (len(times), times) == (10, sorted(times))
    globbed = pl.scan_parquet(f"{root}/**/*.parquet", storage_options=server).collect()
    assert globbed.height == 10
    with pytest.raises(ConfigError, match=r"1 of 1 windows are not published below .*: other"):
        files(root, ["other"], storage_options=server)


def test_duckdb_reads_the_list_of_a_local_folder(windows: OrderedWindows, tmp_path: Path) -> None:
    """One function for all roots."""
    windows.run(HOUR, tmp_path, window_id="noon")
    counted = duckdb.execute(f"select count(*) from read_parquet({files(tmp_path)})")
    assert counted.fetchall() == [(10,)]
    assert files(tmp_path / "nowhere") == []


@pytest.mark.slow
def test_credentials_come_from_the_environment(
    windows: OrderedWindows, server: dict[str, str], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without options; a scheme of Hadoop's is the same root."""
    for name, value in server.items():
        monkeypatch.setenv(name.upper(), value)
    windows.run(HOUR, root, window_id="noon")
    assert len(files(root.replace("s3://", "s3a://"))) == 1


@pytest.mark.slow
def test_a_block_may_write_files_of_its_own(
    windows: OrderedWindows, server: dict[str, str], root: str
) -> None:
    """`open` publishes after its block what was reported in it."""
    with windows.open(HOUR, Folder(root, storage_options=server), window_id="noon") as window:
        assert window.to_arrow().num_rows == 10
        window.report(stage_window(window.plan, windows.settings, root, storage_options=server))
        assert files(root, storage_options=server) == []
    assert len(files(root, storage_options=server)) == 1


@pytest.mark.slow
def test_a_split_window_is_one_window(
    windows: OrderedWindows, server: dict[str, str], root: str
) -> None:
    """Parts are sealed each; joining names their files, and again after a part was written again."""
    plan = windows.plan(HOUR, "noon")
    parts = windows.split(plan, 2)
    staged = [stage_window(part, windows.settings, root, storage_options=server) for part in parts]
    with pytest.raises(ConfigError, match="join all parts first"):
        staged[0].publish()
    whole = StagedOutput.merged(staged)
    assert whole.facts["records"] == 10
    staged[1] = stage_window(parts[1], windows.settings, root, storage_options=server)
    assert not whole.exists()
    found = StagedOutput.found({"parts": [one.to_json() for one in staged]}, server)
    assert found is not None
    assert found.exists()
    for part, one in zip(parts, staged, strict=True):
        windows.report(part, one)
    windows.commit(plan, found)
    assert len(files(root, storage_options=server)) == 2
    assert sorted(named_rows(root, server)) == sorted([*range(5)] * 2)
    assert staged_names(root, server) == []


def test_several_windows_are_written_in_one_pass(
    windows: OrderedWindows, server: dict[str, str], root: str
) -> None:
    """Each has its own manifest; an abandoned one leaves nothing."""
    early = Window("orders", cutoff=time_at(NOON_MS + 4), starting_offsets="earliest")
    plans = windows.plan_many([early, HOUR], ["early", "late"])
    outputs = stage_windows(plans, windows.settings, root, storage_options=server)
    windows.commit(plans[0], outputs[0])
    assert list(map(len, (files(root, ["early"], storage_options=server),))) == [1]
    outputs[1].discard()
    assert staged_names(root, server) == []
    assert not outputs[1].exists()


# --- refused --------------------------------------------------------------------------------------


def nothing_planned(windows: OrderedWindows) -> bool:
    """Whether no window holds records."""
    return windows.list() == []


REFUSED: dict[str, tuple[str, Callable[[dict[str, str]], Any], str]] = {
    "no bucket": (
        "s3://no-such-bucket/lake/x",
        lambda server: server,
        "there is no bucket no-such-bucket",
    ),
    "an option": ("s3://bucket/lake/x", lambda server: {**server, "aws_regoin": "x"}, "aws_regoin"),
    "a value": (
        "s3://bucket/lake/x",
        lambda server: {**server, "aws_region": object()},
        "aws_region",
    ),
    "no mapping": ("s3://bucket/lake/x", lambda server: [server], "a list"),
    "a password": (f"s3://me:{SECRET}@bucket/x", lambda server: server, "not in the address"),
    "no account": ("abfss://container/x", lambda server: server, "abfss://container@account"),
    "a pattern": ("s3://bucket/lake/*", lambda server: server, "patterns"),
    "dots": ("s3://bucket/lake/../x", lambda server: server, "'..'"),
    "our own": ("s3://bucket/lake/.koo", lambda server: server, "own folder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_before_a_window_is_planned(
    windows: OrderedWindows, server: dict[str, str], name: str
) -> None:
    """By name, and without a secret."""
    output, options, words = REFUSED[name]
    with pytest.raises(ConfigError) as raised:
        windows.run(HOUR, Folder(output, storage_options=options(server)), window_id="noon")
    assert words in str(raised.value)
    assert SECRET not in str(raised.value)
    assert nothing_planned(windows)


def test_without_the_library_the_extra_is_named(
    windows: OrderedWindows, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local default needs none of it."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match=r"kafka-ordered-ops\[object-stores\]"):
        windows.run(HOUR, root, window_id="noon")
    assert nothing_planned(windows)


@pytest.mark.parametrize("ignored", ["creation", "replacement"])
def test_a_store_without_conditional_writes_is_refused(
    memory: Callable[[], str],
    windows: OrderedWindows,
    monkeypatch: pytest.MonkeyPatch,
    ignored: str,
) -> None:
    """Before a window is planned."""
    put_if = Store.put_if

    def careless(self: Store, path: str, content: bytes, seen: State | None) -> State | None:
        if (seen is None) is (ignored == "creation"):
            self.put(path, content)
            found = self.get(path)
            return None if found is None else found.state
        return put_if(self, path, content, seen)

    monkeypatch.setattr(Store, "put_if", careless)
    with pytest.raises(ConfigError, match="does not honour conditional writes"):
        windows.run(HOUR, memory(), window_id="noon")
    assert nothing_planned(windows)


def test_a_missing_right_names_bucket_key_and_right(
    memory: Callable[[], str],
    windows: OrderedWindows,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signed address that the library shows is not shown."""
    import obstore
    from obstore.exceptions import PermissionDeniedError

    def denied(*_: Any, **__: Any) -> Any:
        raise PermissionDeniedError(f"403 for https://bucket.example/x?sig={SECRET} denied")

    root = memory()
    monkeypatch.setattr(obstore, "put", denied)
    with pytest.raises(
        ConfigError, match=r"s3://memory-\d+/lake/.koo/orders/probe/.*s3:PutObject"
    ) as raised:
        windows.run(HOUR, root, window_id="noon")
    assert SECRET not in str(raised.value)
    assert nothing_planned(windows)


def test_a_store_that_does_not_answer_is_a_sink_error(
    windows: OrderedWindows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may answer later: nothing is wrong with the call."""
    monkeypatch.setattr(faults, "RIDE_OUT_S", 0.5)
    options = {
        "aws_access_key_id": "k",
        "aws_secret_access_key": SECRET,
        "aws_endpoint": "http://127.0.0.1:1",
    }
    with pytest.raises(SinkError, match="s3://bucket/lake/x cannot be used") as raised:
        windows.run(HOUR, Folder("s3://bucket/lake/x", storage_options=options), window_id="noon")
    assert SECRET not in str(raised.value)
    assert nothing_planned(windows)


# --- owned ----------------------------------------------------------------------------------------


def test_another_groups_window_is_not_replaced(memory: Callable[[], str]) -> None:
    """Neither by a job that begins, nor by one that was faster than the first publication."""
    root = memory()
    slow = staged_rows(root, [9], claim_id="c9", group_id="other")
    staged_rows(root, [1]).publish()
    with pytest.raises(SinkError, match="of group g, and window w of group other would replace it"):
        staged_rows(root, [9], claim_id="c9", group_id="other")
    with pytest.raises(SinkError, match="of group g"):
        slow.check_ready()
    with pytest.raises(SinkError, match="of group g"):
        slow.publish()
    assert named_rows(root) == [1]


def test_files_of_other_programs_are_left(memory: Callable[[], str]) -> None:
    """In a window's place they are refused; beside a published window they stay."""
    root = memory()
    output = staged_rows(root, [1])
    other = f"{output.final_path}/theirs.parquet"
    store = door.open_store(root)
    store.put(other, b"x")
    with pytest.raises(SinkError, match=r"theirs.parquet is in the way"):
        output.publish()
    store.delete([other])
    output.publish()
    store.put(other, b"x")
    staged_rows(root, [2], attempt=2).publish()
    assert named_rows(root) == [2]
    assert store.get(other) is not None


def test_a_stage_that_has_lost_a_file_is_not_published(memory: Callable[[], str]) -> None:
    """Nor found by the next run, which writes it again."""
    root = memory()
    output = staged_rows(root, [1, 2, 3])
    store = door.open_store(root)
    [lost, *_] = [n for n in staged_names(root) if n.endswith(".parquet")]
    store.delete([f"{output.stages_folder}/{lost}"])
    assert StagedOutput.found(output.to_json()) is None
    with pytest.raises(SinkError, match="1 of 2 files are gone"):
        output.check_ready()
    again = staged_rows(root, [1, 2, 3])
    again.publish()
    assert globbed_rows(root) == [1, 2, 3]


def test_published_files_that_are_gone_are_written_again(memory: Callable[[], str]) -> None:
    """The manifest alone is no window."""
    root = memory()
    output = staged_rows(root, [1, 2, 3])
    output.publish()
    door.open_store(root).delete([files(root)[0]])
    assert not output.is_published()
    staged_rows(root, [1, 2, 3]).publish()
    assert globbed_rows(root) == named_rows(root) == [1, 2, 3]


def test_a_stage_of_another_group_is_left(memory: Callable[[], str]) -> None:
    """Two groups may use one id in one root by mistake: the later one is refused, and nothing of it is removed."""
    root = memory()
    theirs = staged_rows(root, [9], claim_id="c9", group_id="other")
    older = staged_rows(root, [5], claim_id="c0", group_id="g")
    newer = staged_rows(root, [7], attempt=2)
    staged_rows(root, [1]).publish()
    assert theirs.exists()
    assert newer.exists()
    assert not older.exists()


@pytest.mark.slow
def test_no_secret_is_stored_or_shown(
    windows: OrderedWindows,
    server: dict[str, str],
    root: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither with the plan, nor in the ledger, a repr or the log."""
    with caplog.at_level("DEBUG"):
        result = windows.run(HOUR, Folder(root, storage_options=server), window_id="noon")
        record = windows.show("noon")
    output = StagedOutput.of(record.plan, root, server)
    shown = [repr(result), repr(record), repr(output), str(output.to_json()), caplog.text]
    assert not any(SECRET in text for text in shown)
    assert record.plan.status is WindowStatus.PUBLISHED


# --- large files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "options", "variables", "endpoint"),
    [
        ("acc.dfs.core.windows.net", {}, {}, None),
        ("acc.dfs.core.chinacloudapi.cn", {}, {}, "https://acc.blob.core.chinacloudapi.cn"),
        ("onelake.dfs.fabric.microsoft.com", {}, {}, "https://onelake.blob.fabric.microsoft.com"),
        ("acc.dfs.core.cn", {"azure_storage_endpoint": "http://h/acc"}, {}, "http://h/acc"),
        ("acc.dfs.core.cn", {}, {"AZURE_STORAGE_ENDPOINT": "http://h/acc"}, None),
    ],
)
def test_an_account_of_another_cloud_is_looked_for_there(
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    options: dict[str, str],
    variables: dict[str, str],
    endpoint: str | None,
) -> None:
    """And not by its name in the public one, unless an option or a variable says where."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    store: Any = door.open_store(f"abfss://c@{host}/lake", {"account_key": "a2V5", **options})
    config = store._store.config
    assert config["account_name"] == host.partition(".")[0]
    assert config.get("endpoint", config.get("azure_storage_endpoint")) == endpoint


@pytest.mark.slow
def test_files_that_s3_does_not_copy_are_published(
    server: dict[str, str], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CopyObject refuses more than 5 GB, here of a smaller size; the small files beside them are copied."""
    limit, copied = 6_000, list[str]()
    copy_object = S3Backend.copy_object

    def refused(
        self: S3Backend, src_key: Any, bucket: str, key: str, *rest: Any, **more: Any
    ) -> None:
        if src_key.size > limit:
            raise InvalidRequest("CopyObject")
        copied.append(key)
        copy_object(self, src_key, bucket, key, *rest, **more)

    monkeypatch.setattr(S3Backend, "copy_object", refused)
    rows = list(range(3_000))
    staged = staged_rows(root, rows, rows_per_file=2_500, options=server)
    with pytest.raises(SinkError, match=r"copy failed: .*400"):
        staged.publish()
    assert named_rows(root, server) == globbed_rows(root, server) == []
    monkeypatch.setattr(door, "COPIED_BY_ONE_REQUEST_MAX", limit)
    copied.clear()
    staged.publish()
    assert named_rows(root, server) == globbed_rows(root, server) == rows
    assert [name[-13:] for name in copied if name.endswith("parquet")] == ["00001.parquet"]
    assert staged_names(root, server) == []
