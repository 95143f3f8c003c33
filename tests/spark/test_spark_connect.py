"""The same windows over Spark Connect, really tried: a server of its own, and a client that has no Java."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.submit_support import script_environment

_TIMEOUT_S = 280.0


@pytest.mark.long
@pytest.mark.spark
def test_windows_over_spark_connect(
    bootstrap: str, group_id: str, orders: str, tmp_path: Path
) -> None:
    """One and several, ordered, with their counts; and a task's error by its name."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.support.connect_script",
            bootstrap,
            group_id,
            orders,
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        # A server keeps its tables below the folder in which it was started.
        cwd=tmp_path,
        env=script_environment(),
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["session"].startswith("pyspark.sql.connect")
    # Seconds 0, 10, 20, 5, 30, 15 at offsets 0 to 5.
    in_order = [("a", 0), ("a", 3), ("a", 1), ("b", 5), ("b", 2), ("c", 4)]
    assert list(map(tuple, told["in order"])) == in_order
    assert list(map(tuple, told["rows"])) == sorted(in_order)
    assert list(map(sorted, told["apart"])) == [[0, 1, 3], [2, 5]]
    for name, counts in {"many": [3, 2, 1], "one": [3], "staged": [3]}.items():
        facts = told["facts"][name]
        assert [one["records"] for one in facts] == counts
        assert facts[0]["timestamp_ms_max"] - facts[0]["timestamp_ms_min"] == 10_000
        assert facts[0]["out_of_order"] == 1
    rows = [
        offset
        for folder in told["published"]
        for file in sorted(Path(folder).glob("part-*.parquet"))
        for offset in pq.read_table(file)["offset"].to_pylist()
    ]
    assert rows == [offset for _, offset in in_order]
    named = "RecordsLostError"
    assert told["errors"] == [named, named, f"Spark's, with {named}"]
