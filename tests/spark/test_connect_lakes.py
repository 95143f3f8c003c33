"""Over Spark Connect, windows go to a store and to a table as in a classic session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_spark_objects import conf_with_keys
from tests.support.objects_support import s3_server
from tests.support.spark_support import spark41_conf, spark41_jars
from tests.support.submit_support import script_environment
from tests.support.tables_support import CATALOG, tables_conf

pytestmark = [pytest.mark.spark41, pytest.mark.long, pytest.mark.timeout(900)]


def test_a_store_and_a_table_over_connect(
    bootstrap: str, group_id: str, orders: str, tmp_path: Path
) -> None:
    """Objects in order with their manifest; a table's rows in each mode. The second call changes nothing."""
    with s3_server() as options:
        on_s3 = conf_with_keys(options)
        jars = [*on_s3["spark.jars"].split(","), *map(str, spark41_jars())]
        task = {
            "bootstrap": bootstrap,
            "group_id": group_id,
            "topic": orders,
            "root": "s3://bucket/lake/orders",
            "options": options,
            "catalog": CATALOG,
            "conf": {
                **on_s3,
                **spark41_conf(),
                **tables_conf(tmp_path / "warehouse"),
                "spark.jars": ",".join(jars),
                "spark.driver.extraClassPath": ":".join(jars),
            },
        }
        (tmp_path / "task.json").write_text(json.dumps(task))
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.connect_lakes_script", "task.json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
            # A server keeps its tables below the folder in which it was started.
            cwd=tmp_path,
            env=script_environment(),
        )
    assert done.returncode == 0, done.stderr[-6_000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.pop("session").startswith("pyspark.sql.connect")
    # Seconds 0, 10, 20, 5, 30, 15 at offsets 0 to 5.
    assert told.pop("files") == [0, 3, 1, 5, 2]
    rows: dict[str, list[Any]] = {
        mode: [[mode, offset] for offset in (0, 1, 2, 3, 5)] for mode in ("append", "replace")
    }
    added = {mode: sorted([["before", 3], *found]) for mode, found in rows.items()}
    # Its offset is the key of a record of the window.
    merged = [["merge", offset] for offset in (0, 1, 2, 3, 5)]
    assert told.pop("rows") == {**added, "merge": merged}
    assert told == {
        name: [[True, 5], [False, 5]] for name in ("store", "append", "replace", "merge")
    }
