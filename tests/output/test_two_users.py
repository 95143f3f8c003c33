"""Another user of the machine, who may write beside an output: nothing of this user's is run, read, overwritten or deleted."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kafka_ordered_ops import ConfigError, SinkError, SpillError, WindowPlan
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.disk.trust import TRUST_VARIABLE
from kafka_ordered_ops.ordered.folder import temporary_folder
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.cleaning import leftovers
from kafka_ordered_ops.output.filesystem import LocalFiles
from kafka_ordered_ops.spark.applications.protocol import new_place
from kafka_ordered_ops.spec.writable import check_writable
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.garbage_support import plan as plan
from tests.support.garbage_support import staged
from tests.support.garbage_support import windows as windows
from tests.support.stages import control_of, stages_of
from tests.support.two_users import OTHER_USER, as_other, needs_two_users, shared_folder

pytestmark = needs_two_users


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder to which every user may write; a user removes or renames its own files there alone."""
    with shared_folder() as folder:
        yield folder


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Path]:
    """A folder of this user's that nothing may happen to."""
    folder = tmp_path / "mine"
    (folder / "inner").mkdir(parents=True)
    for name in ("file", "inner/file"):
        (folder / name).write_text("precious")
    yield folder
    assert {str(one.relative_to(folder)) for one in folder.rglob("*")} == {
        "file",
        "inner",
        "inner/file",
    }
    assert (folder / "file").read_text() == (folder / "inner" / "file").read_text() == "precious"


def contents(folder: Path) -> set[str]:
    """All that is below a folder."""
    return {str(path) for path in folder.rglob("*")}


PLANTED = {
    "the control folder": 'umask 0; mkdir -p "$1/.koo/orders/stage" "$1/.koo/orders/submit"',
    "the root's control folder": 'umask 0; mkdir -p "$1/.koo"; mkdir -p "$1/.koo/orders"',
    "a closed control folder": 'umask 077; mkdir -p "$1/.koo/orders"',
    "a link": 'mkdir "$1/theirs"; mkdir "$1/theirs/orders"; ln -s "$1/theirs" "$1/.koo"',
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_folder_of_another_user_is_not_used(
    windows: OrderedWindows, plan: WindowPlan, shared: Path, planted: str
) -> None:
    """Refused before the window is planned, and before it is staged; the error names the folder, and nothing is put there."""
    as_other(PLANTED[planted], shared)
    before = contents(shared)
    with pytest.raises(ConfigError, match=r"\.koo"):
        check_writable(shared / "orders")
    with pytest.raises(SinkError, match=r"\.koo") as refused:
        staged(windows, plan, shared / "orders")
    if planted != "a link":
        assert f"{TRUST_VARIABLE}=" in str(refused.value)
    with pytest.raises(SpillError, match=r"\.koo"), temporary_folder(f"{shared}/.koo/orders"):
        pass
    assert contents(shared) - before <= {f"{shared}/orders"}
    assert windows.show("w").status is WindowStatus.PLANNED


def test_the_files_of_a_run_are_not_put_there(plan: WindowPlan, shared: Path) -> None:
    """Another user would change them, and its program would run as this user."""
    as_other(PLANTED["the control folder"], shared)
    before = contents(shared)
    with (
        pytest.raises(SinkError, match="belongs to user"),
        new_place(f"{shared}/.koo/orders", plan),
    ):
        pass
    assert contents(shared) == before


def test_what_runs_is_where_nobody_else_can_put_anything(plan: WindowPlan, shared: Path) -> None:
    """Whoever may rename what is beside the output does not reach the driver's program and Spark's settings."""
    shared.chmod(0o777)
    with new_place(f"{shared}/.koo/orders", plan) as place:
        assert not Path(place.private).is_relative_to(shared)
        assert stat.S_IMODE(os.stat(place.private).st_mode) == 0o700
        as_other('mv "$1/.koo" "$1/.away"; mkdir -p "$1/.koo/orders/submit/_logs"', shared)
        with pytest.raises(PermissionError, match="belongs to user"):
            LocalFiles().write(f"{place.folder}/progress.json", b"")
    left = as_other('find "$1/.koo" -type f', shared).stdout
    assert left == ""


def test_a_folder_that_was_exchanged_for_another_user_s_is_not_gone_into(
    windows: OrderedWindows, plan: WindowPlan, shared: Path, mine: Path
) -> None:
    """In a folder where everybody may rename everything: the stage is not found, and nothing else is touched."""
    shared.chmod(0o777)
    root = shared / "orders"
    output = staged(windows, plan, root)
    stage = os.path.relpath(output.window_folder, shared)
    as_other(
        f'umask 0; mv "$1/.koo" "$1/.away"; mkdir -p "$1/{os.path.dirname(stage)}"; ln -s "$2" "$1/{stage}"; '
        f'ln -s "$2" "$1/.koo/orders/windows"; ln -s "$2" "$1/.koo/orders/swap"',
        shared,
        mine,
    )
    for action in (output.publish, output.check_ready, output.discard, lambda: clean(root)):
        with suppress(SinkError):
            action()
    assert files(root) == []


def clean(root: Path) -> None:
    """Remove all that is left there."""
    stages = leftovers(root)
    for left in stages.found():
        stages.remove(left)


def test_a_link_in_the_place_of_the_stages_is_not_cleaned(
    windows: OrderedWindows, plan: WindowPlan, tmp_path: Path, mine: Path
) -> None:
    """What looks like old stages behind it stays."""
    root = tmp_path / "orders"
    output = staged(windows, plan, root)
    stages_of(root).rename(tmp_path / "moved")
    stages_of(root).symlink_to(tmp_path / "moved")
    before = contents(tmp_path / "moved")
    clean(root)
    with pytest.raises(SinkError, match="in the way"):
        output.publish()
    assert contents(tmp_path / "moved") == before


def test_a_link_in_the_place_of_a_data_file_is_not_written_through(
    tmp_path: Path, mine: Path
) -> None:
    """Data files are made, never opened."""
    draft = tmp_path / ".koo" / "orders" / "stage" / "w" / "c-1~draft-x"
    draft.mkdir(parents=True)
    (draft / "part-00000.parquet").symlink_to(mine / "file")
    with (
        pytest.raises(FileExistsError),
        LocalFiles().sink(f"{draft}/part-00000.parquet") as file,
    ):
        file.write(b"ours")


def test_readers_cannot_lock_publishers_out(
    windows: OrderedWindows, plan: WindowPlan, shared: Path
) -> None:
    """A lock needs the right to write."""
    output = staged(windows, plan, shared / "orders")
    lock = stages_of(shared / "orders") / ".lock"
    assert os.stat(output.stages_folder).st_mode & 0o005 == 0o005
    held = as_other('flock -n "$1" true', lock, check=False)
    assert held.returncode != 0
    assert "Permission denied" in held.stderr
    output.publish()


def test_a_folder_that_is_named_as_trusted_is_used(
    windows: OrderedWindows, plan: WindowPlan, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A team shares a root on purpose: the users who made it are named."""
    as_other('mkdir -p "$1/.koo/orders"', shared)
    monkeypatch.setenv(TRUST_VARIABLE, f"etl,{OTHER_USER}")
    check_writable(shared / "orders")
    output = staged(windows, plan, shared / "orders")
    assert windows.commit(plan, output).status is WindowStatus.PUBLISHED
    assert files(shared / "orders")


def test_a_team_shares_a_root(shared: Path, plan: WindowPlan, windows: OrderedWindows) -> None:
    """A folder for a group, and a umask that lets the group write: the other user works in what this one has made."""
    shared.chmod(0o2770)
    os.chown(shared, 0, OTHER_USER)
    old = os.umask(0o007)
    try:
        output = staged(windows, plan, shared / "orders")
        output.publish()
    finally:
        os.umask(old)
    # Root is trusted by every user, so nothing has to be named here.
    done = as_other(
        'umask 007; mkdir "$1/.koo/orders/stage/more" && flock -n "$1/.koo/orders/stage/.lock" '
        'mv "$1"/orders/window_id=* "$1/.koo/orders/stage/more"',
        shared,
    )
    assert done.stderr == ""
    assert os.stat(control_of(shared / "orders")).st_gid == OTHER_USER


def test_readers_of_another_user_see_what_is_published(
    windows: OrderedWindows, plan: WindowPlan, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who changes something must trust its owner."""
    root = shared / "orders"
    staged(windows, plan, root).publish()
    for folder, _, names in os.walk(shared):
        for one in (folder, *(f"{folder}/{name}" for name in names)):
            os.chown(one, OTHER_USER, OTHER_USER)
    assert len(files(root)) == 10


# --- temporary folders -------------------------------------------------------------------------------

FOLDER = "kafka-ordered-ops-" + "0" * 32


@pytest.mark.parametrize(
    "planted",
    [
        f'mkdir "$1/{FOLDER}" && mkfifo -m 644 "$1/{FOLDER}/.in-use" && chmod 755 "$1/{FOLDER}"',
        f'mkdir "$1/{FOLDER}" && touch "$1/{FOLDER}/.in-use" && chmod -R a+rwX "$1/{FOLDER}"',
        f'mkdir "$1/{FOLDER}" && ln -s "$2" "$1/{FOLDER}/content" && touch "$1/{FOLDER}/.in-use"',
        f'ln -s "$2" "$1/{FOLDER}"',
    ],
    ids=["a pipe", "a folder", "a link in it", "a link"],
)
@pytest.mark.timeout(60)
def test_another_user_s_temporary_folder_is_none_of_this_one_s(
    shared: Path, mine: Path, planted: str
) -> None:
    """It is neither waited for nor removed."""
    as_other(planted, shared, mine)
    before = contents(shared)
    with temporary_folder(str(shared)) as folder:
        Path(folder, "run").write_bytes(b"1")
    assert contents(shared) == before


def test_nobody_else_looks_into_a_temporary_folder(shared: Path) -> None:
    """There are records in it."""
    with temporary_folder(str(shared)) as folder:
        Path(folder, "run").write_bytes(b"1")
        with pytest.raises(subprocess.CalledProcessError):
            as_other('cat "$1/run"', folder)
