"""Whatever this package makes is reached through one door, `kafka_ordered_ops.disk`, and never by a bare path.

The door's functions are those of `Disk`, `remove_in` and `try_lock`, `private_folder` and `system_folder`. All else that touches
a file by its path is refused in the folders below, but for what is listed here with its reason.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import kafka_ordered_ops

PACKAGE: Final = Path(kafka_ordered_ops.__file__).parent

#: Where nothing is reached by a bare path.
CHECKED: Final = (
    "output",
    "spark/applications",
    "ordered",
    "embedded/cache.py",
    "spec/spark_submit.py",
)

#: What takes a path and does something with what is there.
_OS: Final = frozenset(
    [
        "open",
        "mkdir",
        "makedirs",
        "rename",
        "renames",
        "replace",
        "remove",
        "unlink",
        "rmdir",
        "removedirs",
        "chmod",
        "lchmod",
        "chown",
        "lchown",
        "stat",
        "lstat",
        "listdir",
        "scandir",
        "walk",
        "fwalk",
        "utime",
        "symlink",
        "link",
        "truncate",
        "access",
        "readlink",
        "mkfifo",
        "mknod",
        "chdir",
        "chroot",
        "statvfs",
        "getxattr",
        "setxattr",
        "listxattr",
        "removexattr",
        "pathconf",
    ]
)
_PATHS: Final = frozenset(
    [
        "exists",
        "lexists",
        "isfile",
        "isdir",
        "islink",
        "ismount",
        "getsize",
        "getmtime",
        "getatime",
        "getctime",
        "samefile",
        "realpath",
    ]
)
_PYARROW: Final = frozenset(
    [
        "pyarrow.OSFile",
        "pyarrow.fs.LocalFileSystem",
        "pyarrow.memory_map",
        "pyarrow.create_memory_map",
        "pyarrow.input_stream",
        "pyarrow.output_stream",
        "pyarrow.parquet.ParquetFile",
        "pyarrow.parquet.ParquetWriter",
        "pyarrow.parquet.ParquetDataset",
        "pyarrow.parquet.read_table",
        "pyarrow.parquet.read_schema",
        "pyarrow.parquet.read_metadata",
        "pyarrow.parquet.write_table",
        "pyarrow.dataset.dataset",
        "pyarrow.dataset.write_dataset",
    ]
)
#: Whole libraries. What `pathlib.PurePath` has touches nothing.
_LIBRARIES: Final = frozenset(
    [
        "shutil",
        "tempfile",
        "glob",
        "fileinput",
        "zipfile",
        "tarfile",
        "pickle",
        "marshal",
        "shelve",
        "dbm",
        "sqlite3",
        "pathlib.Path",
        "pathlib.PosixPath",
        "io.open",
        "io.open_code",
        "io.FileIO",
        "builtins.open",
        "codecs.open",
    ]
)
#: Of a `pathlib.Path`, whatever it is called.
_METHODS: Final = frozenset(
    [
        "read_text",
        "write_text",
        "read_bytes",
        "write_bytes",
        "unlink",
        "iterdir",
        "glob",
        "rglob",
        "touch",
        "is_dir",
        "is_file",
        "is_symlink",
        "is_mount",
        "mkdir",
        "rmdir",
        "lstat",
        "resolve",
        "expanduser",
        "readlink",
        "symlink_to",
        "hardlink_to",
        "chmod",
        "samefile",
    ]
)
#: With one of these, a name is looked up in a folder that is held.
_HELD: Final = frozenset({"dir_fd", "src_dir_fd"})

#: What is let through: how often, and why.
ALLOWED: Final = {
    ("output/address.py", "os.path.islink"): (1, "the user's own name of a root may be a link"),
    ("output/address.py", "os.path.realpath"): (1, "the same"),
    ("output/hdfs/turn.py", ".touch"): (1, "of the door to HDFS"),
    ("output/filesystem.py", "open"): (1, "the method of this name"),
    ("output/renaming.py", "os.path.ismount"): (1, "a look at the user's own root, before a window is planned"),
    ("output/contents.py", "pyarrow.parquet.read_metadata"): (1, "of a file that the door has opened"),
    ("output/published.py", "pyarrow.parquet.ParquetFile"): (1, "of a file that the door has opened"),
    ("output/writing/schema.py", "pyarrow.parquet.read_schema"): (1, "of a file that the door has opened"),
    ("output/writing/stage_files.py", "pyarrow.parquet.write_table"): (1, "to a file that the door has made"),
    ("output/objects/store.py", "os.path.exists"): (1, "whether the user has a file with credentials"),
    ("ordered/options.py", "os.lstat"): (1, "a look at the user's own folder, before anything is read"),
    ("ordered/options.py", "os.path.isdir"): (1, "the same"),
    ("ordered/options.py", "os.access"): (1, "the same"),
    ("spark/applications/driver.py", "open"): (1, "the user's own application"),
    ("spark/applications/guard.py", "os.utime"): (1, "of a descriptor that it has inherited"),
    ("spark/applications/guard.py", "pathlib.Path"): (1, "the kernel's list of processes"),
    ("spark/applications/guard.py", ".iterdir"): (1, "the same"),
    ("spark/applications/guard.py", ".read_text"): (1, "the same"),
    ("spark/applications/yarn.py", "open"): (1, "Hadoop's own files of settings"),
    ("spark/applications/yarn.py", "pathlib.Path"): (2, "the same"),
    ("spark/applications/process.py", "pathlib.Path"): (1, "the kernel's list of processes"),
    ("spark/applications/process.py", ".glob"): (1, "the same"),
    ("spark/applications/process.py", ".read_bytes"): (1, "the same"),
    ("spec/spark_submit.py", "os.access"): (1, "the user's own spark-submit"),
    ("spec/spark_submit.py", "pathlib.Path"): (2, "the user's own spark-submit"),
    ("spec/spark_submit.py", ".resolve"): (1, "the same"),
    ("embedded/cache.py", "pathlib.Path"): (3, "the name of the folder, from the user's variables"),
    ("embedded/cache.py", "pathlib.Path.home"): (1, "the same"),
    ("embedded/cache.py", ".expanduser"): (1, "the same"),
}  # fmt: skip

#: In the door itself: the user's own names of places, which may be links, and what works on descriptors.
ALLOWED_IN_DOOR: Final = {
    ("disk/disk.py", "os.open"): (2, "the user's folder in which the first step is taken"),
    ("disk/disk.py", "os.path.isdir"): (2, "the user's own folders are made where they are missing"),
    ("disk/disk.py", "os.listdir"): (3, "of a descriptor"),
    ("disk/disk.py", "open"): (6, "of a descriptor"),
    ("disk/disk.py", "io.FileIO"): (3, "the type of what it returns"),
    ("disk/temporary.py", "tempfile.gettempdir"): (1, "the user's choice of the folder, by TMPDIR"),
}  # fmt: skip


def bare(source: str) -> Iterator[str]:
    """The uses of something that takes a path, but those that look a name up in a folder that is held."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                names[one.asname or one.name.partition(".")[0]] = (
                    one.name if one.asname else one.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                names[one.asname or one.name] = f"{node.module}.{one.name}"
                if one.name == "*":
                    yield f"{node.module}.*"
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in _METHODS
            and _dotted(node, names) is None
        ):
            yield f".{node.attr}"
        if id(node) in inner or (found := _dotted(node, names)) is None or not _touches(found):
            continue
        keywords = {one.arg for one in called[id(node)].keywords} if id(node) in called else set()
        if not keywords & _HELD:
            yield found


def _dotted(node: ast.AST, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return names.get(node.id, node.id if node.id == "open" else None)
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value, names)) is not None:
        return f"{before}.{node.attr}"
    return None


def _touches(name: str) -> bool:
    room, _, last = name.rpartition(".")
    return (
        name == "open"
        or (room in ("os", "posix") and last in _OS)
        or (room in ("os.path", "posixpath") and last in _PATHS)
        or name in _PYARROW
        or any(name == one or name.startswith(f"{one}.") for one in _LIBRARIES)
    )


def found_in(*places: str) -> Counter[tuple[str, str]]:
    """The bare uses in some files and folders of the package, by file."""
    files = [
        file
        for place in places
        for file in (
            [PACKAGE / place] if place.endswith(".py") else (PACKAGE / place).rglob("*.py")
        )
    ]
    assert files
    return Counter(
        (str(file.relative_to(PACKAGE)), name) for file in files for name in bare(file.read_text())
    )


def test_nothing_is_reached_but_through_the_door() -> None:
    """No file operation takes a path where this package keeps its own files; each exception is there as often as it says."""
    assert found_in(*CHECKED) == {place: count for place, (count, _) in ALLOWED.items()}


def test_the_door_takes_each_step_in_a_folder_that_it_holds() -> None:
    """But the first one, to the user's own folder."""
    assert found_in("disk") == {place: count for place, (count, _) in ALLOWED_IN_DOOR.items()}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("open('a')", ["open"]),
        ("import os\nos.unlink(path)", ["os.unlink"]),
        ("import os\nos.unlink(name, dir_fd=parent)", []),
        ("import os\nos.rename(a, b, src_dir_fd=x, dst_dir_fd=y)", []),
        ("import os\nseen(os.listdir)", ["os.listdir"]),
        ("from os import unlink as gone\ngone(path)", ["os.unlink"]),
        ("import os.path\nos.path.exists(path)", ["os.path.exists"]),
        ("import os\nos.path.join(a, b)", []),
        ("import shutil\nshutil.rmtree(path)", ["shutil.rmtree"]),
        ("import shutil\nshutil.rmtree(name, dir_fd=parent)", []),
        ("from pathlib import Path\nPath(a).write_text(b)", [".write_text", "pathlib.Path"]),
        ("from pathlib import PurePath\nPurePath(a).name", []),
        ("import pathlib\npathlib.Path(a)", ["pathlib.Path"]),
        ("import pyarrow as pa\npa.OSFile(path)", ["pyarrow.OSFile"]),
        ("import pyarrow.parquet as pq\npq.read_table(path)", ["pyarrow.parquet.read_table"]),
        ("import pickle\npickle.loads(text)", ["pickle.loads"]),
        ("import io\nio.FileIO(path)", ["io.FileIO"]),
        ("import builtins\nbuiltins.open(path)", ["builtins.open"]),
        ("import posix\nposix.unlink(path)", ["posix.unlink"]),
        ("from os import *\nunlink(path)", ["os.*"]),
        ("from pyarrow import fs\nfs.LocalFileSystem()", ["pyarrow.fs.LocalFileSystem"]),
        ("files.open(path)", []),
        ("folder.mkdir()", [".mkdir"]),
    ],
)  # fmt: skip
def test_what_the_lint_sees(source: str, found: list[str]) -> None:
    """By whatever name it was imported, called or passed on."""
    assert list(bare(source)) == found
