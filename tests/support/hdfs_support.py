"""A real HDFS, a name node and a data node in one Java; and one in memory that is killed or interleaved at any operation."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from kafka_ordered_ops import StagedOutput
from kafka_ordered_ops.embedded.jars import listed_jars
from kafka_ordered_ops.embedded.java import find_java
from kafka_ordered_ops.output.address import split_hdfs
from kafka_ordered_ops.output.hdfs import door as doors
from kafka_ordered_ops.output.hdfs.door import Door, Entry
from tests.support.objects_support import every_kill, named_rows, rows_in, staged_rows, step

_JARS: Final = Path(__file__).with_name("hdfs.sha256")
_START_S: Final = 180.0
_CHANGES: Final = ("make_folder", "rename", "delete", "touch", "create")
_LOOKS: Final = ("entry", "listed", "open")

#: The rows of an older attempt and of a newer one.
OLD, NEW = [1, 2, 3], [4, 5, 6, 7, 8]


@contextmanager
def hdfs(folder: Path) -> Iterator[str]:
    """Hadoop's own mini cluster; gives its address."""
    folder.mkdir(parents=True, exist_ok=True)
    details = folder / "details.json"
    jars = ":".join(map(str, listed_jars(_JARS, "hdfs-mini")))
    command = [str(find_java().executable), "-Xmx384m", "-cp", jars]
    command += ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-datanodes", "1"]
    command += ["-D", f"hdfs.minidfs.basedir={folder / 'data'}", "-writeDetails", str(details)]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _START_S
        while not details.exists() or not details.read_text().endswith("}"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no HDFS: {(folder / 'log').read_text()[-2_000:]}")
            time.sleep(0.1)
        port = json.loads(details.read_text())["namenode_port"]
        yield f"hdfs://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class NameNodes:
    """Two name nodes of one nameservice; one of them is active."""

    def __init__(self, cluster: Any) -> None:
        self._cluster, self._active = cluster, 0

    def fail_over(self) -> None:
        """Make the other one active."""
        self._cluster.transitionToStandby(self._active)
        self._activate_other()

    def kill_active(self) -> None:
        """End the active one, and make the other one active."""
        self._cluster.shutdownNameNode(self._active)
        self._activate_other()

    def _activate_other(self) -> None:
        self._active = 1 - self._active
        self._cluster.transitionToActive(self._active)


@contextmanager
def available_hdfs(folder: Path) -> Iterator[NameNodes]:
    """Hadoop's mini cluster with high availability, as nameservice ``lake``; its settings are in ``folder/conf``."""
    from py4j.java_gateway import (  # type: ignore[import-untyped]
        GatewayParameters,
        JavaGateway,
        launch_gateway,
    )

    (folder / "conf").mkdir(parents=True)
    with open(folder / "log", "wb") as log:
        port, process = launch_gateway(
            classpath=":".join(map(str, listed_jars(_JARS, "hdfs-mini"))),
            java_path=str(find_java().executable),
            javaopts=["-Xmx384m"],
            die_on_exit=True,
            return_proc=True,
            redirect_stdout=log,
            redirect_stderr=log,
        )
    # Java lives no longer than the test, so it keeps what Python has forgotten: nothing is sent behind the end.
    kept = GatewayParameters(port=port, enable_memory_management=False)
    gateway = JavaGateway(gateway_parameters=kept)
    try:
        hadoop = gateway.jvm.org.apache.hadoop
        conf = hadoop.conf.Configuration()
        conf.set("hdfs.minidfs.basedir", str(folder / "data"))
        two = hadoop.hdfs.MiniDFSNNTopology.simpleHATopology()
        builder = getattr(hadoop.hdfs, "MiniDFSCluster$Builder")(conf)
        cluster = builder.nnTopology(two).numDataNodes(1).build()
        cluster.waitActive()
        cluster.transitionToActive(0)
        _write_settings(folder / "conf", [cluster.getNameNodePort(number) for number in (0, 1)])
        yield NameNodes(cluster)
    finally:
        gateway.shutdown()
        process.kill()
        process.communicate()


def _write_settings(folder: Path, ports: list[int]) -> None:
    """As administrators hand them out."""
    proxy = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
    settings = {
        "dfs.nameservices": "lake",
        "dfs.ha.namenodes.lake": "one,two",
        "dfs.namenode.rpc-address.lake.one": f"127.0.0.1:{ports[0]}",
        "dfs.namenode.rpc-address.lake.two": f"127.0.0.1:{ports[1]}",
        "dfs.client.failover.proxy.provider.lake": proxy,
    }
    for name, content in (
        ("core-site.xml", {"fs.defaultFS": "hdfs://lake"}),
        ("hdfs-site.xml", settings),
    ):
        pairs = "".join(
            f"<property><name>{key}</name><value>{value}</value></property>"
            for key, value in content.items()
        )
        (folder / name).write_text(f"<configuration>{pairs}</configuration>")


# --- in memory -------------------------------------------------------------------------------------


class _Upload:
    def __init__(self, tree: dict[str, bytes | None], key: str) -> None:
        self._tree, self._key, self._content = tree, key, bytearray()

    def write(self, content: Any) -> int:
        self._content += content
        return len(content)

    def hsync(self) -> None:
        """Others see nothing yet."""

    def close(self) -> None:
        step("put")
        if self._key not in self._tree:
            raise FileNotFoundError(f"{self._key} has no lease")
        self._tree[self._key] = bytes(self._content)


class _File:
    def __init__(self, content: bytes) -> None:
        self.size, self._content = len(content), content

    def read_range(self, start: int, length: int) -> bytes:
        return self._content[start : start + length]


class _Status:
    def __init__(self, path: str, content: bytes | None, at: int) -> None:
        self.path, self.isdir, self.modification_time = path, content is None, at
        self.length = len(content or b"")


class MemoryClient:
    """What a name node does, to a dict of paths; a folder has no content. Its errors are those of the real one."""

    def __init__(self) -> None:
        self.tree: dict[str, bytes | None] = {"/": None}
        self._times: dict[str, int] = {}
        self._born_ms = time.time_ns() // 1_000_000
        self._clock = itertools.count(self._born_ms + 1)

    def _found(self, path: str) -> bytes | None:
        parts = path.strip("/").split("/")
        for n in range(1, len(parts)):
            if self.tree.get("/" + "/".join(parts[:n])) is not None:
                raise NotADirectoryError(f"{path} is below a file")
        if path not in self.tree:
            raise FileNotFoundError(f"{path} does not exist")
        return self.tree[path]

    def _below(self, path: str) -> list[str]:
        return [one for one in self.tree if one.startswith(f"{path.rstrip('/')}/") and one != "/"]

    def _has_folder(self, path: str) -> None:
        if self._found(path.rpartition("/")[0] or "/") is not None:
            raise NotADirectoryError(f"{path} is below a file")

    def get_file_info(self, path: str) -> _Status:
        return _Status(path, self._found(path), self._times.get(path, self._born_ms))

    def list_status(self, path: str) -> list[_Status]:
        if self._found(path) is not None:
            return [self.get_file_info(path)]
        direct = [one for one in self._below(path) if "/" not in one[len(path.rstrip("/")) + 1 :]]
        return [self.get_file_info(one) for one in sorted(direct)]

    def mkdirs(self, path: str, permission: int = 0o755, create_parent: bool = False) -> None:
        if not create_parent:
            self._has_folder(path)
        parts = path.strip("/").split("/")
        for n in range(1, len(parts) + 1):
            if self.tree.setdefault("/" + "/".join(parts[:n]), None) is not None:
                raise FileExistsError(f"{path} is a file, or below one")

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        content = self._found(source)
        try:
            there = self._found(target)
        except FileNotFoundError:
            self._has_folder(target)
        else:
            if (there is None) != (content is None):
                raise OSError(f"{target} is of another kind")
            if not overwrite or self._below(target):
                raise FileExistsError(f"{target} already exists")
        for path in [source, *self._below(source)]:
            self.tree[target + path[len(source) :]] = self.tree.pop(path)
        self._times[target] = self._times.pop(source, self._born_ms)

    def delete(self, path: str, recursive: bool) -> bool:
        if path not in self.tree:
            return False
        below = self._below(path)
        if below and not recursive:
            raise FileExistsError(f"{path} is not empty")
        for one in [path, *below]:
            del self.tree[one]
        return True

    def set_times(self, path: str, mtime: int, atime: int) -> None:
        self._found(path)
        self._times[path] = next(self._clock)

    def read(self, path: str) -> _File:
        content = self._found(path)
        if content is None:
            raise FileNotFoundError(f"{path} is not a file")
        return _File(content)

    def create(self, path: str, options: Any) -> _Upload:
        self._has_folder(path)
        if path in self.tree and not options.overwrite:
            raise FileExistsError(f"{path} already exists")
        self.tree[path] = b""
        return _Upload(self.tree, path)


def hooked_doors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operations in HDFS be hooked, until the test ends; see `objects_support.hooked`."""

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def one(self: Door, *arguments: Any, **keywords: Any) -> Any:
            step("put" if name in _CHANGES else "get")
            return original(self, *arguments, **keywords)

        return one

    for name in (*_CHANGES, *_LOOKS):
        monkeypatch.setattr(Door, name, wrapped(name, getattr(Door, name)))


@pytest.fixture
def memory_hdfs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Makes roots in fresh file systems in memory, whose operations can be hooked."""
    clients: dict[str, MemoryClient] = {}
    numbers = itertools.count()
    monkeypatch.setattr(
        doors, "_connected", lambda host, *_: clients.setdefault(host, MemoryClient())
    )
    # One thread at a time is enough where nothing is waited for.
    monkeypatch.setattr(doors, "within", lambda _, call: call())
    hooked_doors(monkeypatch)
    return lambda: f"hdfs://memory-{next(numbers)}:8020/lake/orders"


# --- what is there ---------------------------------------------------------------------------------


def _walk(door: Door, folder: str) -> Iterator[tuple[str, Entry]]:
    try:
        found = door.listed(folder)
    except FileNotFoundError:
        return
    for one in found:
        yield f"{folder}/{one.name}", one
        if one.is_folder:
            yield from _walk(door, f"{folder}/{one.name}")


def globbed_rows(root: str) -> list[int]:
    """What a reader of ``root/**/*.parquet`` sees."""
    found = [path for path, one in _walk(doors.open_door(root), root) if not one.is_folder]
    return rows_in(root, [path for path in found if path.endswith(".parquet")])


def staged_names(root: str) -> list[str]:
    """What is in all stages of a root."""
    folder = StagedOutput(root, "w", "c", 0).stages_folder
    return [path.removeprefix(f"{folder}/") for path, _ in _walk(doors.open_door(root), folder)]


def check_replacements_that_are_killed(
    make_root: Callable[[], str], partition: str | None = None
) -> None:
    """Readers see the old rows, for an instant none, or the new rows; in the end the new ones, and nothing is left."""
    for killed in every_kill(least=15):
        root = make_root()
        staged_rows(root, OLD, attempt=1, partition=partition).publish()
        staged = staged_rows(root, NEW, attempt=2, partition=partition)
        with killed:
            staged.publish()
        assert named_rows(root) in (OLD, [], NEW)
        assert globbed_rows(root) == named_rows(root)
        found = StagedOutput.found(staged.to_json())
        assert found is not None
        found.publish()
        assert globbed_rows(root) == named_rows(root) == NEW
        assert staged_names(root) == []


def path_in(root: str) -> str:
    """The path of a root, without its host."""
    return split_hdfs(root)[1]
