"""Markers, seals, manifests and results that other programs may have written: a value, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import OutputVersionError, StagedOutput, Window, WindowPlan
from kafka_ordered_ops.core.strict_json import JsonError, loads
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.core.window.plan import PlanPart
from kafka_ordered_ops.output.contents import Holding
from kafka_ordered_ops.output.objects.layout import Manifest, Seal
from kafka_ordered_ops.output.writing.staged_output import output_of
from kafka_ordered_ops.spark.write.table_output import KeptOutput
from tests.support.examples import examples
from tests.support.stored_text import changed

OUTPUT = StagedOutput(
    root="/nowhere/orders",
    window_id="w",
    claim_id="c" * 16,
    attempt=1,
    facts={"records": 3, "files": 1},
    group_id="g",
    holding=Holding.of({"part-00000.parquet": 100}, 3),
)
PLAN = WindowPlan(
    group_id="g",
    window_id="w",
    window=Window("orders", "2026-11-20T12:00:00Z"),
    claim_id=OUTPUT.claim_id,
    attempt=1,
    status=WindowStatus.COMMITTED,
    content=PlanContent.RECORDS,
    planned_at_ms=0,
    partitions=(),
)
PART = replace(OUTPUT, part=PlanPart(0, 2))
RESULTS = (dict(OUTPUT.to_json()), {"parts": [dict(PART.to_json())]})
FILES = {"a/part-00000.parquet": 100, "a/part-00001.parquet": 0}


def unless_newer(read: Callable[[], Any]) -> Any:
    """What is read; None for a text whose version was raised."""
    try:
        return read()
    except OutputVersionError:
        return None


@settings(max_examples=examples(100))
@given(changed(json.loads(Seal(OUTPUT, FILES).to_bytes())))
def test_any_seal_is_read_or_is_none(content: bytes) -> None:
    """Sizes are whole numbers that are not negative, and no path is there twice."""
    found = unless_newer(lambda: Seal.parse(content, OUTPUT, "seal"))
    assert found is None or all(type(size) is int and size >= 0 for size in found.files.values())


@settings(max_examples=examples(100))
@given(changed(json.loads(Manifest(3, OUTPUT, FILES, "me", ("b/x",)).to_bytes())))
def test_any_manifest_is_read_or_is_none(content: bytes) -> None:
    """What is read can be written again."""
    found = unless_newer(lambda: Manifest.parse(content, OUTPUT, "manifest"))
    assert found is None or Manifest.parse(found.to_bytes(), OUTPUT, "") == found


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=changed(json.loads(OUTPUT.marker())))
def test_any_marker_is_read_or_is_none(tmp_path: Any, content: bytes) -> None:
    """As a folder beside the output may hold it."""
    output = replace(OUTPUT, root=str(tmp_path))
    (tmp_path / "_kafka_ordered_ops.json").write_bytes(content)
    found = unless_newer(lambda: type(output).parsed(content, str(tmp_path), "marker"))
    assert found is None or found.root == str(tmp_path)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(st.sampled_from(RESULTS).flatmap(changed))
def test_any_stored_result_is_an_output_or_none(text: bytes) -> None:
    """Results in the ledger are of any sink, or of another program."""
    try:
        result = loads(text, limit_bytes=10**6)
    except JsonError:
        return
    found = output_of(result, PLAN)
    assert found is None or (found.window_id, found.claim_id) == ("w", OUTPUT.claim_id)
    if isinstance(result, dict):
        unless_newer(lambda: StagedOutput.found(result))
        unless_newer(lambda: KeptOutput.from_json(result))
        try:
            StagedOutput.from_json(result)
        except JsonError:
            return
