"""The page of limits names bounds as the code has them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
LIMITS = PAGE.partition("\n## Limits\n")[2]

#: What, bound, constant.
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| `([\w.]+)` \|", LIMITS, re.MULTILINE)
UNITS = {"KiB": 1024, "MiB": 1024**2}


@pytest.mark.parametrize(("bound", "constant"), [row[1:] for row in ROWS], ids=lambda one: one)
def test_a_bound_is_that_of_the_code(bound: str, constant: str) -> None:
    """The first number of the cell, with its unit."""
    module, _, name = constant.rpartition(".")
    value = getattr(importlib.import_module(f"kafka_ordered_ops.{module}"), name)
    found = re.search(r"(\d[\d,]*)(?: (KiB|MiB))?", bound)
    assert found is not None
    assert int(found[1].replace(",", "")) * UNITS.get(found[2], 1) == value


def test_the_page_has_bounds() -> None:
    """A page without them would pass the test above."""
    assert len(ROWS) > 15
