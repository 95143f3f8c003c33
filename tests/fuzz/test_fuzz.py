"""Every border of the package with inputs that no program of ours wrote: a value or a named error, within bounds.

`FUZZED_INPUTS` of each border, fewer where each takes long; `FUZZED_SEED` chooses others. An input that once failed is in
`tests/samples/fuzzed.json`, and is tried in every run.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fuzz import (
    host_borders,
    http_borders,
    stored_borders,
    text_borders,
    value_borders,
)
from tests.fuzz.borders import Border, attack, fault_of, guarded, memory_fault_of
from tests.support.dagster_yaml import READS_YAML
from tests.support.readers import needs_native

INPUTS: Final = int(os.environ.get("FUZZED_INPUTS", "500"))
SEED: Final = os.environ.get("FUZZED_SEED", "0")
KEPT: Final = Path(__file__).parents[1] / "samples" / "fuzzed.json"
#: Of the most expensive border.
_INPUTS_LEAST: Final = 5

#: By name: what makes the border. Each runs in the process of its test, where its libraries are imported.
BORDERS: Final[dict[str, Callable[[], Border]]] = {
    **stored_borders.BORDERS,
    **text_borders.BORDERS,
    **value_borders.BORDERS,
    **http_borders.BORDERS,
    **host_borders.BORDERS,
}
_NATIVE: Final = [pytest.mark.native, needs_native]

pytestmark = [
    pytest.mark.timeout(max(300, INPUTS // 50)),
    # Of a pattern of topics, Python says that it may mean something else one day.
    pytest.mark.filterwarnings("ignore:Possible:FutureWarning"),
    *READS_YAML,
]


def kept(name: str) -> list[bytes]:
    """Return the inputs of a border that once failed."""
    samples: dict[str, list[Any]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return [base64.b64decode(sample) for sample in samples.get(name, [])]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=_NATIVE if name in value_borders.NATIVE else []) for name in BORDERS],
)
def test_any_input_is_a_value_or_a_named_error(name: str) -> None:
    """Never another error, never longer than a tenth of a second, never more than 64 MB."""
    border = BORDERS[name]()
    try:
        for data in border.valid:
            border.read(data)
        with guarded():
            for data in kept(name):
                assert fault_of(border, data) is None, data
                assert memory_fault_of(border, data) is None, data
            count = max(INPUTS // border.cost, _INPUTS_LEAST)
            fault = attack(border, kept(name), count, (name, SEED))
    finally:
        border.close()
    if fault is not None:
        data, (kind, details) = fault
        text = base64.b64encode(data).decode()
        pytest.fail(
            f"{kind} of {data[:500]!r} ({len(data):,} bytes; kept as {text[:5_000]!r}):\n{details}"
        )


def test_kept_inputs_are_of_borders() -> None:
    """A border that is renamed keeps its inputs."""
    assert set(json.loads(KEPT.read_text(encoding="utf-8"))) <= BORDERS.keys()
