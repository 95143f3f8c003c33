"""Where windows are published, and what readers see there: local folders, and prefixes in an object store."""

from __future__ import annotations

import glob
import io
import itertools
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import MemoryStore

from kafka_ordered_ops import ClientSettings, Folder, StagedOutput, WindowPlan, stage_windows
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.filesystem import LocalFiles
from kafka_ordered_ops.output.objects import store as door

_COLUMNS: Final = ["topic", "partition", "offset", "timestamp", "value", "late"]

_numbers = itertools.count()


class SeenRow(NamedTuple):
    """A row in a file that readers see."""

    #: The record's value, which is its name.
    name: str
    topic: str
    partition: int
    offset: int
    time_ms: int
    late: bool


#: The rows below a root, by the folder of the window.
Seen = dict[str, tuple[SeenRow, ...]]


class Roots(ABC):
    """The roots of a history: how windows get there, their readers, and what people do to them by hand.

    Tables would be a third kind, with words of `run` and a way of staging of their own.
    """

    #: Whether readers see the older output or the newer one at every moment of a replacement.
    replaces_at_once = True

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let the package find these roots until the block ends."""
        yield

    @abstractmethod
    def new(self) -> str:
        """Return the path of a root that does not exist yet."""

    @abstractmethod
    def seen(self, root: str) -> Seen:
        """Return what a reader sees who cares for nothing."""

    @abstractmethod
    def carry(self, root: str, target: str, *, moves: bool, with_control: bool) -> None:
        """Copy or move a root, with or without what is stored beside it."""

    @abstractmethod
    def remove(self, root: str, folder: str | None) -> None:
        """Delete a window's folder, or a whole root with all that is stored beside it."""

    def run_words(self, root: str, partition_by: str | None) -> dict[str, Any]:
        """Return the arguments of `OrderedWindows.run` that name a root."""
        return {"output": Folder(root, partition_by)}

    def stage(
        self,
        plans: Sequence[WindowPlan],
        settings: ClientSettings,
        root: str,
        partition_by: str | None,
    ) -> list[StagedOutput]:
        """Read windows, and write them where nobody sees them."""
        return stage_windows(plans, settings, root, partition_by=partition_by)


def _rows(table: pa.Table) -> tuple[SeenRow, ...]:
    columns = [table.column(name) for name in _COLUMNS]
    columns[3] = columns[3].cast(pa.int64())
    return tuple(
        SeenRow(value.decode(), topic, partition, offset, time_ms, late)
        for topic, partition, offset, time_ms, value, late in zip(
            *(one.to_pylist() for one in columns), strict=True
        )
    )


def _control(root: str) -> str:
    parent, _, name = root.rpartition("/")
    return f"{parent}/.koo/{name}"


class FolderRoots(Roots):
    """Folders; a reader takes every Parquet file below the root.

    Args:
        base: where they are.
        exchanges: whether the file system exchanges two of them in one step.
    """

    def __init__(self, base: str, *, exchanges: bool = True) -> None:
        self.replaces_at_once = exchanges
        self._base = base
        self._numbers = itertools.count()
        #: Files never change; by what tells them from any other.
        self._read: dict[tuple[int, int, int], tuple[SeenRow, ...]] = {}

    @contextmanager
    def opened(self) -> Iterator[None]:
        if self.replaces_at_once:
            yield
            return
        with patch.object(LocalFiles, "exchange", lambda *_: False):
            yield

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(FolderRoots, exchanges=self.replaces_at_once), (self._base,)

    def new(self) -> str:
        return f"{self._base}/place{next(self._numbers)}/lake"

    def seen(self, root: str) -> Seen:
        found: Seen = {}
        for path in sorted(glob.glob(f"{root}/**/*.parquet", recursive=True)):
            try:
                rows = self._file(path)
            except FileNotFoundError:
                # A reader that lists files and opens them later lists them again.
                return self.seen(root)
            folder = os.path.dirname(path).removeprefix(f"{root}/")
            found[folder] = found.get(folder, ()) + rows
        return found

    def _file(self, path: str) -> tuple[SeenRow, ...]:
        state = os.stat(path)
        key = state.st_ino, state.st_mtime_ns, state.st_size
        if key not in self._read:
            with pq.ParquetFile(path) as file:
                self._read[key] = _rows(file.read(columns=_COLUMNS))
        return self._read[key]

    def carry(self, root: str, target: str, *, moves: bool, with_control: bool) -> None:
        for source, to in [(root, target), (_control(root), _control(target))]:
            if os.path.isdir(source) and (source == root or with_control):
                os.makedirs(os.path.dirname(to), exist_ok=True)
                if moves:
                    os.rename(source, to)
                else:
                    shutil.copytree(source, to)

    def remove(self, root: str, folder: str | None) -> None:
        if folder is not None:
            shutil.rmtree(f"{root}/{folder}")
            return
        for path in (root, _control(root)):
            shutil.rmtree(path, ignore_errors=True)


class StoreRoots(Roots):
    """Prefixes of a bucket in memory; a reader takes the files that `kafka_ordered_ops.output.files` names."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._bucket = f"s3://histories-{os.getpid()}-{next(_numbers)}"
        self._numbers = itertools.count()
        self._read: dict[tuple[str | None, int], tuple[SeenRow, ...]] = {}

    @contextmanager
    def opened(self) -> Iterator[None]:
        with patch.object(door, "_connect", lambda _bucket, _options: self._store):
            yield

    def new(self) -> str:
        return f"{self._bucket}/place{next(self._numbers)}/lake"

    def seen(self, root: str) -> Seen:
        found: Seen = {}
        for path in files(root):
            folder = path.rpartition("/")[0].removeprefix(f"{root}/")
            # Somebody may have deleted the file of a window that is still named.
            with suppress(FileNotFoundError):
                found[folder] = found.get(folder, ()) + self._file(self._key(path))
        return found

    def _file(self, key: str) -> tuple[SeenRow, ...]:
        state = obstore.head(self._store, key)
        known = state["e_tag"], state["size"]
        if known not in self._read:
            content = bytes(obstore.get(self._store, key).bytes())
            with pq.ParquetFile(io.BytesIO(content)) as file:
                self._read[known] = _rows(file.read(columns=_COLUMNS))
        return self._read[known]

    def carry(self, root: str, target: str, *, moves: bool, with_control: bool) -> None:
        for source, to in [(root, target), (_control(root), _control(target))]:
            if source == root or with_control:
                for key in self._keys(source):
                    name = key.removeprefix(self._key(source))
                    obstore.copy(self._store, key, f"{self._key(to)}{name}")
                    if moves:
                        obstore.delete(self._store, key)

    def remove(self, root: str, folder: str | None) -> None:
        prefixes = [root, _control(root)] if folder is None else [f"{root}/{folder}"]
        for prefix in prefixes:
            for key in self._keys(prefix):
                obstore.delete(self._store, key)

    def _keys(self, prefix: str) -> list[str]:
        pages = obstore.list(self._store, prefix=f"{self._key(prefix)}/")
        return [one["path"] for page in pages for one in page]

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self._bucket}/")
