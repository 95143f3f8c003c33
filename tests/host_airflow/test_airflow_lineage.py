"""What OpenLineage is told of a window, by the structure of its provider's classes.

Its classes are stood in for by ones that keep what they are given: not every environment of the tests has the
provider. With the provider itself: `test_airflow_standalone.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kafka_ordered_ops import Window
from kafka_ordered_ops.airflow import OrderedWindowOperator
from kafka_ordered_ops.airflow.support.lineage import lineage_of
from kafka_ordered_ops.delivery.lineage import FACET, namespace_of
from tests.support.airflow_context import context_of
from tests.support.airflow_context import kafka_connection as kafka_connection


class Kept:
    """Any class of the provider's or the client's."""

    def __init__(self, **given: Any) -> None:
        self.given = given


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that are imported, with what is used of them."""
    statistics = "openlineage.client.facet_v2.output_statistics_output_dataset"
    modules: dict[str, dict[str, Any]] = {
        "airflow.providers.openlineage": {},
        "airflow.providers.openlineage.extractors": {"OperatorLineage": Kept},
        "openlineage": {},
        "openlineage.client": {},
        "openlineage.client.event_v2": {"InputDataset": Kept, "OutputDataset": Kept},
        "openlineage.client.facet_v2": {"RunFacet": type("RunFacet", (), {})},
        statistics: {"OutputStatisticsOutputDatasetFacet": Kept},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        for key, value in content.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(
        sys.modules["openlineage.client.facet_v2"],
        statistics.rsplit(".", 1)[1],
        sys.modules[statistics],
        raising=False,
    )


@pytest.mark.usefixtures("provider")
def test_topics_in_and_files_out(
    group_id: str, orders: str, bootstrap: str, tmp_path: Path
) -> None:
    """By the names that OpenLineage has for them, with how many records, and the window in a facet."""
    task = OrderedWindowOperator(
        task_id="task",
        window=Window(orders, starting_offsets="earliest"),
        group_id=group_id,
        mode="catch_up",
        window_id="w",
        output=str(tmp_path),
    )
    before = task.get_openlineage_facets_on_failure(None)
    assert (before.given["inputs"], before.given["run_facets"]) == ([], {})
    task.execute(context_of(12))
    told = task.get_openlineage_facets_on_complete(None).given
    assert [one.given for one in told["inputs"]] == [
        {"namespace": f"kafka://{bootstrap}", "name": orders}
    ]
    [output] = told["outputs"]
    assert (output.given["namespace"], output.given["name"]) == (
        "file",
        str(tmp_path / "window_id=w"),
    )
    assert output.given["outputFacets"]["outputStatistics"].given == {"rowCount": 3}
    facet = told["run_facets"][FACET]
    assert (facet.window_id, facet.offsets, facet.partitions) == (
        "w",
        3,
        {f"{orders}[0]": {"from": 0, "up_to": 4, "offsets": 3, "ranges": 2}},
    )


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(
    ("output", "places"),
    [
        ("/lake/w", [("file", "/lake/w")]),
        ("s3://lake/orders/w", [("s3://lake", "orders/w")]),
        ("gs://lake/orders/w", [("gs://lake", "orders/w")]),
        (
            "abfss://c@acc.dfs.core.windows.net/lake/w",
            [("abfss://c@acc.dfs.core.windows.net", "/lake/w")],
        ),
        ("hdfs://namenode:8020/lake/w", [("hdfs://namenode:8020", "/lake/w")]),
        ("hdfs://nameservice/lake/w", [("hdfs://nameservice", "/lake/w")]),
        ("hdfs:///lake/w", [("hdfs", "/lake/w")]),
        ("lake.orders", []),
        (None, []),
    ],
)
def test_files_are_named_as_every_producer_names_them(
    output: str | None, places: list[tuple[str, str]]
) -> None:
    """By OpenLineage's own rules, as Spark's listener has them; a table's name says not where it is."""
    told = lineage_of({"topics": [], "output": output}, "one:1").given
    found = [(one.given["namespace"], one.given["name"]) for one in told["outputs"]]
    assert found == places


@pytest.mark.usefixtures("provider")
def test_a_window_that_failed_has_no_files() -> None:
    """What it was to read is known from its plan."""
    told = lineage_of({"topics": ["a", "b"], "window_id": "w"}, "one:1,two:2").given
    assert [one.given["name"] for one in told["inputs"]] == ["a", "b"]
    assert told["outputs"] == []


@pytest.mark.parametrize(
    ("brokers", "name"),
    [
        ("one:9093,two:9092", "kafka://one:9093"),
        (" one ", "kafka://one:9092"),
        ("SASL_SSL://one:9093", "kafka://one:9093"),
        ("[::1]:9092", "kafka://[::1]:9092"),
        ("[::1]", "kafka://[::1]:9092"),
    ],
)
def test_a_cluster_by_its_first_broker(brokers: str, name: str) -> None:
    """As OpenLineage names Kafka."""
    assert namespace_of(brokers) == name
