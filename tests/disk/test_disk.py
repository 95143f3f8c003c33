"""The door to the disk: whose folders it works in, and that it follows no link."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.disk.disk import Disk, try_lock
from kafka_ordered_ops.disk.temporary import private_folder
from kafka_ordered_ops.disk.trust import TRUST_VARIABLE, check_trusted

ME: Final = os.geteuid()
OTHER: Final = 54_321


def owned(uid: int, mode: int) -> os.stat_result:
    """What a folder of a user looks like."""
    return os.stat_result((stat.S_IFDIR | mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))


# --- who is trusted ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uid", "mode", "named", "is_trusted"),
    [
        (ME, 0o755, "", True),
        (0, 0o755, "", True),
        (OTHER, 0o755, "", False),
        (OTHER, 0o700, "somebody", False),
        (OTHER, 0o755, f"somebody, {OTHER}", True),
        (OTHER, 0o755, f"@{OTHER}", False),
        (OTHER, 0o755, "@nogroup-of-this-name", False),
        (OTHER, 0o777, "*", True),
        # A group was let in by the owner; everybody was not.
        (ME, 0o2775, "", True),
        (ME, 0o777, "", False),
        (ME, 0o1777, "", False),
        (OTHER, 0o777, str(OTHER), False),
    ],
)
def test_who_may_own_what_this_package_works_in(
    monkeypatch: pytest.MonkeyPatch, uid: int, mode: int, named: str, is_trusted: bool
) -> None:
    """This user, root, and whom the environment names; and never everybody."""
    monkeypatch.setenv(TRUST_VARIABLE, named)
    if is_trusted:
        check_trusted(owned(uid, mode), "/lake/.koo")
    else:
        with pytest.raises(PermissionError, match=f"{TRUST_VARIABLE}=.*/lake/.koo"):
            check_trusted(owned(uid, mode), "/lake/.koo")


def test_a_group_is_trusted_by_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's own group names root; a user without an entry is in no group."""
    nobody = 65_534
    group = os.getgrouplist("nobody", 65_534)[0]
    monkeypatch.setenv(TRUST_VARIABLE, f"@{group}")
    check_trusted(owned(nobody, 0o755), "/lake/.koo")
    with pytest.raises(PermissionError):
        check_trusted(owned(OTHER, 0o755), "/lake/.koo")


# --- links -------------------------------------------------------------------------------------------

PATH: Final = (".koo", "orders", "stage", "w", "c-1", "part-00000.parquet")

OPERATIONS: Final[dict[str, Callable[[Disk, str], object]]] = {
    "read": lambda disk, path: disk.read(path, 100),
    "open": lambda disk, path: disk.open(path).close(),
    "names": lambda disk, path: disk.names(path),
    "create": lambda disk, path: disk.create(path).close(),
    "append": lambda disk, path: disk.append(path).close(),
    "write": lambda disk, path: disk.write(path, b"ours"),
    "make folder": lambda disk, path: disk.make_folder(f"{path}/more"),
    "make private": lambda disk, path: disk.make_private(f"{path}/more"),
    "own private": lambda disk, path: disk.own_private(path),
    "rename from": lambda disk, path: disk.rename(path, f"{os.path.dirname(path)}/new"),
    "rename to": lambda disk, path: disk.rename(f"{os.path.dirname(path)}/old", path),
    "exchange": lambda disk, path: disk.exchange(path, f"{os.path.dirname(path)}/old"),
    "remove": lambda disk, path: disk.remove(path),
    "remove inside": lambda disk, path: disk.remove(f"{path}/kept"),
    "remove if empty": lambda disk, path: disk.remove_if_empty(f"{path}/empty"),
    "settle": lambda disk, path: disk.settle(path, bool),
    "sync": lambda disk, path: disk.sync(path),
    "lock": lambda disk, path: disk.lock(path).close(),
    "below": lambda disk, path: list(disk.below(path)),
}


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that is in a folder, as it is."""
    return {
        str(path): (os.lstat(path).st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


@given(
    operation=st.sampled_from(sorted(OPERATIONS)),
    step=st.integers(0, len(PATH) - 1),
    is_file=st.booleans(),
)
def test_nothing_behind_a_link_is_read_or_changed(
    tmp_path_factory: pytest.TempPathFactory, operation: str, step: int, is_file: bool
) -> None:
    """Whichever step of a path the link is, and whatever is done there."""
    root = tmp_path_factory.mktemp("links")
    outside = root / "outside"
    inside = outside.joinpath(*PATH[step + 1 :])
    inside.mkdir(parents=True)
    for name in ("kept", "old"):
        (inside / name).write_bytes(b"theirs")
        (inside.parent / name).write_bytes(b"theirs")
    (inside / "empty").mkdir()
    before = everything(outside)
    above = root.joinpath(*PATH[:step])
    above.mkdir(parents=True, exist_ok=True)
    target = outside / "kept" if is_file and step == len(PATH) - 1 else outside
    (above / PATH[step]).symlink_to(target)
    found: object = None
    with suppress(OSError):
        found = OPERATIONS[operation](Disk(), str(root.joinpath(*PATH)))
    assert everything(outside) == before
    assert not found or operation in ("exchange", "below")


def test_a_folder_that_is_exchanged_for_another_one_is_not_gone_into(tmp_path: Path) -> None:
    """Below the root of the user, too: a link in the place of a date is not followed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "date=2026-01-01").symlink_to(tmp_path / "elsewhere")
    disk = Disk(str(tmp_path / "lake"))
    path = f"{tmp_path}/lake/date=2026-01-01"
    with pytest.raises(NotADirectoryError, match="it is a link"):
        disk.make_folder(f"{path}/hour=01")
    with pytest.raises(NotADirectoryError, match="it is a link"):
        disk.write(f"{path}/file", b"")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_is_made_once(tmp_path: Path) -> None:
    """What is there, a link to nothing too, is not written through."""
    (tmp_path / "link").symlink_to(tmp_path / "made")
    (tmp_path / "file").write_bytes(b"theirs")
    for name in ("link", "file"):
        with pytest.raises(FileExistsError, match=name):
            Disk().create(f"{tmp_path}/{name}")
    assert not (tmp_path / "made").exists()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Whoever reads, locks or appends to one is told that it is none of this package's files."""
    path = f"{tmp_path}/.in-use"
    os.mkfifo(path)
    disk = Disk()
    assert disk.read(path, 10) is None
    for look in (disk.open, disk.lock, disk.append, disk.open_own):
        with pytest.raises(OSError, match=r"not a regular file|not a file of|No such device"):
            look(path)
    disk.settle(str(tmp_path), bool)


# --- locks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rights", "of_lock"), [(0o755, 0o600), (0o775, 0o660), (0o700, 0o600)])
def test_who_may_read_a_lock_may_write_it(tmp_path: Path, rights: int, of_lock: int) -> None:
    """Whatever the umask: only who may write beside it can open it, and so can lock it."""
    for umask in (0, 0o022, 0o077):
        folder = tmp_path / f"{umask}"
        folder.mkdir()
        folder.chmod(rights)
        old = os.umask(umask)
        try:
            with Disk().lock(f"{folder}/.lock") as file:
                assert try_lock(file)
                assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == of_lock
                with Disk().lock(f"{folder}/.lock") as other:
                    assert not try_lock(other)
        finally:
            os.umask(old)


# --- folders for a time ------------------------------------------------------------------------------


def test_a_private_folder_is_closed_to_others(tmp_path: Path) -> None:
    """With all that is in it, whatever the umask; and gone at its end."""
    old = os.umask(0)
    try:
        with private_folder(str(tmp_path)) as (folder, _):
            for one in (folder, os.path.dirname(folder)):
                assert stat.S_IMODE(os.stat(one).st_mode) == 0o700
    finally:
        os.umask(old)
    assert list(tmp_path.iterdir()) == []


def test_what_is_only_called_like_a_private_folder_stays(tmp_path: Path) -> None:
    """A link to a folder with a free lock, say: neither it nor what it leads to is removed."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / ".in-use").touch()
    name = "kafka-ordered-ops-" + "0" * 32
    (tmp_path / name).symlink_to(tmp_path / "theirs")
    with private_folder(str(tmp_path)):
        pass
    assert {one.name for one in tmp_path.iterdir()} == {"theirs", name}
    assert (tmp_path / "theirs" / ".in-use").exists()


def test_importing_it_costs_nothing() -> None:
    """Every process that looks at an output imports it."""
    code = "import sys, kafka_ordered_ops.disk.disk; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class _Replaced(Disk):
    """Before a folder is opened the second time, it is replaced: removed, and one with its inode has its name."""

    replacing: Callable[[], None] | None = None
    opened = 0

    @contextmanager
    def held(self, folder: str, *, trusted: bool = False) -> Iterator[int]:
        self.opened += 1
        if self.opened == 2 and self.replacing is not None:
            self.replacing()
        with super().held(folder, trusted=trusted) as descriptor:
            yield descriptor


def test_a_folder_that_took_the_place_of_the_one_that_was_looked_at_is_another(
    tmp_path: Path,
) -> None:
    """Also where the file system gives it the number that the removed one had."""
    folder = tmp_path / "window"
    folder.mkdir()
    (folder / "old").touch()

    def replace() -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / "new").touch()

    disk = _Replaced()
    disk.replacing = replace
    assert disk.names(str(folder)) == ["new"]
