"""Random histories that end in what readers of Delta and Iceberg tables see; see `tests.support.oracle.outputs.tables`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.examples import BY_DAY
from tests.support.oracle.outputs.tables import live_in_tables, table_history
from tests.support.spark_support import spark
from tests.support.tables_support import lake_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lake_spark", "spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.long, pytest.mark.timeout(1_200)]

#: Of each format, in pieces; of each mode a third.
HISTORIES, PIECES = (30, 10) if settings().max_examples > BY_DAY else (3, 1)


@pytest.mark.parametrize("piece", range(PIECES))
@pytest.mark.parametrize("format_", ["iceberg", "delta"])
def test_readers_of_tables_keep_what_they_saw(
    lake_spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    format_: str,
    piece: int,
) -> None:
    """Whatever people and processes do, readers see each committed record once, for good, and exactly flagged."""
    caplog.set_level(logging.CRITICAL)
    seeds = [seed for seed in range(2 * HISTORIES) if table_history(seed)[1] == format_]
    for seed in seeds[piece::PIECES]:
        found = live_in_tables(lake_spark, seed, str(tmp_path / str(seed)))
        again = f"repeat it with: python -m tests.support.oracle.outputs.tables {seed}"
        told = [*found.problems[:5], str(table_history(seed)[0]), *found.transcript, again]
        assert not found.problems, "\n".join(told)
