"""A page's section followed as a reader does: its files are saved, and its commands run, in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

_BLOCK: Final = re.compile(
    r"```(?:\{code-block\} )?(?P<language>\w+)\n(?::caption: (?P<file>\S+)\n)?(?P<text>.*?)```\n",
    re.S,
)
_INSTALL: Final = re.compile(r"pip install '?kafka-ordered-ops(?P<extras>\[[\w,]+\])?'?")
_INCLUDED: Final = re.compile(
    r"```\{literalinclude\} snippets/(?P<file>\w+\.py)\n:language: python\n```"
)
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


def whole_page(page: str) -> Section:
    """The files that a page includes whole, and all its commands, in order."""
    text = (ROOT / "docs" / page).read_text()
    files = {
        one["file"]: (ROOT / "docs/snippets" / one["file"]).read_text()
        for one in _INCLUDED.finditer(text)
    }
    shell = [one["text"] for one in _BLOCK.finditer(text) if one["language"] == "shell"]
    assert shell
    return Section(files, "\n".join(shell))


def other_python(version: str) -> str:
    """An interpreter of this machine, or of pyenv; without one, the test is skipped."""
    installed = Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
    for found in (*installed, shutil.which(f"python{version}")):
        if (
            found
            and subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode == 0
        ):
            return str(found)
    pytest.skip(f"this machine has no Python {version}")


def follow(
    given: Section,
    folder: Path,
    replaced: Mapping[str, str],
    *,
    wheel: Path | None = None,
    python: str = sys.executable,
) -> str:
    """What the commands print.

    Args:
        given: the section.
        folder: an empty one.
        replaced: what is this test's own: the broker's address, say.
        wheel: what is installed, into an environment of its own. None: the environment of the tests has it all.
        python: the interpreter of that environment.
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
        made = f"uv venv -q --python {python} env\n. env/bin/activate\n"
        commands = made + _INSTALL.sub(
            lambda found: f"uv pip install -q '{wheel}{found['extras'] or ''}'", commands
        )
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
