"""``windows plot``: a drawing of what the ledger knows, or a reason why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli_support import NOWHERE, Cluster, cli
from tests.support.cli_support import cluster as cluster

HEADS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.fixture
def delivered(cluster: Cluster) -> Cluster:
    """A delivered window, named `first`."""
    assert cluster.run(60, "--window-id", "first").code == 0
    return cluster


@pytest.mark.long
def test_a_window_is_drawn_from_the_ledger(delivered: Cluster, tmp_path: Path) -> None:
    """In each format, without its files; of a pruned window nothing is known that could be drawn."""
    delivered.output.rename(tmp_path / "aside")
    for suffix, head in HEADS.items():
        file = tmp_path / f"first.{suffix}"
        drawn = delivered.windows("plot", "first", "-o", file)
        assert drawn.json == {
            "window_id": "first",
            "group": delivered.group_id,
            "output": str(file),
        }
        assert file.read_bytes().startswith(head)
    assert "Window first" in (tmp_path / "first.svg").read_text(encoding="utf-8")

    assert delivered.windows("prune", "--older-than", "PT0S").json["windows"] == ["first"]
    refused = delivered.windows("plot", "first", "-o", tmp_path / "again.svg")
    assert (refused.code, refused.error["type"]) == (4, "WindowPrunedError")
    assert not (tmp_path / "again.svg").exists()


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_named(delivered: Cluster, tmp_path: Path) -> None:
    """By one line, as wrong usage."""
    (tmp_path / "a.svg").mkdir()
    refused = delivered.windows("plot", "first", "-o", tmp_path / "a.svg")
    assert (refused.code, refused.error["type"]) == (2, "ConfigError")
    assert "a.svg cannot be written: Is a directory" in refused.error["message"]


def test_a_format_that_is_not_known_asks_nobody(tmp_path: Path) -> None:
    """The broker is not there, and is not missed."""
    words = ("-b", NOWHERE, "-g", "g", "first", "-o", tmp_path / "a.gif")
    refused = cli("windows", "plot", *words, "--json")
    assert (refused.code, refused.error["type"]) == (2, "ConfigError")
