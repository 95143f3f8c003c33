"""Old addresses of pages lead to a section that exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def _moved() -> dict[str, str]:
    """Return the table of the extension, which is not on the tests' path."""
    found = importlib.util.spec_from_file_location("moved_pages", DOCS / "_ext/moved_pages.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return dict(module.MOVED)


def _sections(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, as MyST makes them, and its targets."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"(?m)^#{1,4} (.+)$", text)
    slugs = {re.sub(r"[^\w\s-]", "", one.lower()).strip().replace(" ", "-") for one in headings}
    return slugs | set(re.findall(r"(?m)^\(([\w-]+)\)=$", text))


@pytest.mark.parametrize(("old", "target"), _moved().items())
def test_an_old_page_leads_to_a_section(old: str, target: str) -> None:
    """The old page is gone, and the new one has the section."""
    page, _, anchor = target.partition("#")
    assert not (DOCS / f"{old}.md").exists()
    assert anchor in _sections(DOCS / f"{page}.md") or not anchor


def test_there_are_few_pages() -> None:
    """A new subject joins a page, or replaces one; the file of tables is none."""
    pages = [page for page in DOCS.rglob("*.md") if page.name != "tables.md"]
    assert len(pages) <= 36
