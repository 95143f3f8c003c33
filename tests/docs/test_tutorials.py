"""The tutorials without a host, from an empty folder, with nothing but what their pages say."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.pages import (
    ROOT,
    Section,
    built_wheel,
    follow,
    other_python,
    whole_page,
)

pytestmark = pytest.mark.timeout(1_200)

BROKER = "kafka-ordered-ops broker --port 9092\n"


def first_window() -> Section:
    """The first tutorial; its broker, which runs in a terminal of its own, is that of the tests."""
    page = whole_page("quickstart.md")
    assert BROKER in page.commands
    return replace(page, commands=page.commands.replace(BROKER, ""))


def query() -> Section:
    """The tutorial of DuckDB up to its first result."""
    page = whole_page("your-code.md")
    [code] = re.findall(
        r"## Query a window\n\n```python\n(.*?)```", (ROOT / "docs/your-code.md").read_text(), re.S
    )
    return Section({"query.py": code}, page.commands + "\npython query.py\npython query.py\n")


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(None, id="here", marks=pytest.mark.slow),
        *(pytest.param(each, marks=pytest.mark.long) for each in ("3.11", "3.12", "3.13", "3.14")),
    ],
)
def test_the_tutorials_run_as_their_pages_have_them(
    bootstrap: str, group_id: str, tmp_path: Path, version: str | None
) -> None:
    """Here in the environment of the tests; else in a new one of a Python that the wheel supports."""
    topic = f"orders-{group_id}"
    replaced = {
        "localhost:9092": bootstrap,
        " orders\n": f" {topic}\n",
        "-t orders ": f"-t {topic} ",
    }
    replaced |= {"-g orders-cli": f"-g {topic}-cli", '"orders-duckdb"': f'"{topic}-duckdb"'}
    replaced |= {'Window("orders"': f'Window("{topic}"'}
    wheel = None if version is None else built_wheel(tmp_path / "dist")
    python = sys.executable if version is None else other_python(version)
    folders = [tmp_path / name for name in ("first", "query")]
    for folder in folders:
        folder.mkdir()
    printed = follow(first_window(), folders[0], replaced, wheel=wheel, python=python)
    assert "already published; nothing was done" in printed
    times = pq.read_table(folders[0] / "out/orders")["timestamp"].cast(pa.int64()).to_numpy()
    assert len(times) > 0
    assert (times[1:] >= times[:-1]).all()
    printed = follow(query(), folders[1], replaced, wheel=wheel, python=python)
    assert printed.count("customer") == 2
