"""Another user of this machine, played by root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

#: Has nothing of its own here.
OTHER_USER: Final = 65_534

needs_two_users: Final = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root plays two users, with setpriv",
)


def as_other(
    script: str, *arguments: object, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a script of the shell as the other user."""
    who = ["--reuid", str(OTHER_USER), "--regid", str(OTHER_USER), "--clear-groups"]
    return subprocess.run(
        ["setpriv", *who, "--inh-caps", "-all", "sh", "-c", script, "sh", *map(str, arguments)],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=check,
    )


@contextmanager
def shared_folder(mode: int = 0o1777) -> Iterator[Path]:
    """A folder to which every user may write; in one that every user may go into."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        folder = Path(name) / "shared"
        folder.mkdir()
        folder.chmod(mode)
        yield folder
