"""A page's section followed as a reader does: its files are saved, and its commands run, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

_BLOCK: Final = re.compile(
    r"```(?:\{code-block\} )?(?P<language>\w+)\n(?::caption: (?P<file>\S+)\n)?(?P<text>.*?)```\n",
    re.S,
)
_INSTALL: Final = re.compile(r"pip install '(?:kafka-ordered-ops)(?P<extras>\[[\w,]+\])'")
_TIMEOUT_S: Final = 900.0


@dataclass(frozen=True)
class Section:
    """The files of a section by name, and its commands, in order."""

    files: Mapping[str, str]
    commands: str


def section(page: str, heading: str) -> Section:
    """A section of a page of the documentation."""
    text = (ROOT / "docs" / page).read_text()
    [found] = re.findall(rf"(?ms)^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text)
    blocks = list(_BLOCK.finditer(found))
    files = {one["file"]: one["text"] for one in blocks if one["file"]}
    shell = [one["text"] for one in blocks if one["language"] == "shell"]
    assert files
    assert shell
    return Section(files, "\n".join(shell))


def follow(
    given: Section, folder: Path, replaced: Mapping[str, str], *, wheel: Path | None = None
) -> str:
    """What the commands print.

    Args:
        given: the section.
        folder: an empty one.
        replaced: what is this test's own: the broker's address, say.
        wheel: what is installed, into an environment of its own. None: the environment of the tests has it all.
    """

    def own(text: str) -> str:
        for old, new in replaced.items():
            text = text.replace(old, new)
        return text

    for name, text in given.files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(own(text))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands = own(given.commands)
    assert _INSTALL.search(commands)
    if wheel is None:
        commands = re.sub(r"(?m)^pip install .*$", "", commands)
    else:
        made = f"uv venv -q --python {sys.executable} env\n. env/bin/activate\n"
        commands = made + _INSTALL.sub(rf"uv pip install -q '{wheel}\g<extras>'", commands)
    environment = {
        name: value
        for name, value in os.environ.items()
        # Of the tests, and not of a reader.
        if not name.startswith(("AIRFLOW", "DAGSTER", "PYTHON", "KAFKA"))
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={**environment, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    return done.stdout


def built_wheel(folder: Path) -> Path:
    """The package as it is published."""
    subprocess.run(
        [Path(sys.executable).parent / "uv", "build", "--wheel", "-q", "-o", folder, ROOT],
        check=True,
        timeout=_TIMEOUT_S,
    )
    [wheel] = folder.glob("*.whl")
    return wheel
