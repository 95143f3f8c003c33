"""Code on the pages: it fits the width of a page, and each block has the names that it uses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.name != "tables.md")
_WIDTH = 88
#: Its blocks go on from one another.
_ONE_EXAMPLE = "decode-values.md"
_LANGUAGES = ("python", "shell", "bash", "json", "yaml", "toml", "text")
_BLOCK = re.compile(
    rf"(?ms)^```(?:\{{code-block\}} )?({'|'.join(_LANGUAGES)})\n(?::caption: \S+\n)?(.*?)^```"
)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each block of code."""
    return [(one[1], one[2]) for one in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_fits_the_width_of_a_page(page: Path) -> None:
    """Longer lines are cut off."""
    lines = [line for _, text in blocks(page) for line in text.splitlines()]
    assert [line for line in lines if len(line) > _WIDTH] == []


def test_code_that_pages_include_fits_as_well() -> None:
    """Their comments and docstrings too, but for a file's first one."""
    files = [*(DOCS / "snippets").glob("*.py"), *(ROOT / "example_dags").rglob("*.py")]
    assert len(files) > 30
    long = [
        (file.name, line)
        for file in files
        for line in file.read_text().partition("\nimport ")[2].splitlines()
        if len(line) > _WIDTH
    ]
    assert long == []


def test_each_block_has_the_names_that_it_uses(tmp_path: Path) -> None:
    """A reader copies one block: it imports and makes what it needs."""
    count = 0
    for page in PAGES:
        for language, text in blocks(page):
            if page.name == _ONE_EXAMPLE:
                continue
            if language == "python":
                count += 1
                (tmp_path / f"{page.stem}_{count}.py").write_text(text)
    assert count > 10
    ruff = Path(sys.executable).parent / "ruff"
    ran = subprocess.run(
        [ruff, "check", "--isolated", "--no-cache", "--select", "F821,F822", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
