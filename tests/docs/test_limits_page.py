"""The page of limits names bounds and errors as the code has them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import kafka_ordered_ops

PAGE = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
CODE = Path(kafka_ordered_ops.__file__).parent

#: What, bound, constant.
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| `([\w.]+)` \|", PAGE, re.MULTILINE)
UNITS = {"KiB": 1024, "MiB": 1024**2}
QUOTED = [
    line
    for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize(("bound", "constant"), [row[1:] for row in ROWS], ids=lambda one: one)
def test_a_bound_is_that_of_the_code(bound: str, constant: str) -> None:
    """The first number of the cell, with its unit."""
    module, _, name = constant.rpartition(".")
    value = getattr(importlib.import_module(f"kafka_ordered_ops.{module}"), name)
    found = re.search(r"(\d[\d,]*)(?: (KiB|MiB))?", bound)
    assert found is not None
    assert int(found[1].replace(",", "")) * UNITS.get(found[2], 1) == value


@pytest.mark.parametrize("message", QUOTED)
def test_an_error_is_quoted_word_by_word(message: str) -> None:
    """Between the ellipses, which stand for values; numbers are those of the bounds."""
    # Texts over several lines are one.
    code = "".join(re.sub(r'"\s*\n\s*f?"', "", file.read_text()) for file in CODE.rglob("*.py"))
    # A bound's value is in the text as an expression.
    said = re.sub(r"\{[^{}]*\}", "…", code)
    parts = [one.strip(" .:,") for one in re.split(r"…|\d[\d,]*", message)]
    assert [one for one in parts if one not in said] == []


def test_the_page_has_bounds_and_errors() -> None:
    """A page without them would pass the tests above."""
    assert len(ROWS) > 15
    assert len(QUOTED) > 8
