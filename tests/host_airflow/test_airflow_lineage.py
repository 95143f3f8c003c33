"""What OpenLineage's provider for Airflow extracts from the operators, by its own classes.

In a whole Airflow: `test_airflow_standalone.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.providers.openlineage.extractors.base import DefaultExtractor

from kafka_ordered_ops import Copy, PartsMissingError, Window
from kafka_ordered_ops.airflow import (
    CommitWindowOperator,
    OrderedWindowOperator,
    PlanWindowOperator,
    WindowPartOperator,
)
from kafka_ordered_ops.delivery.lineage import FACET, namespace_of, place_of
from tests.support.airflow_context import context_of
from tests.support.airflow_context import kafka_connection as kafka_connection

LOCAL = Copy("local")


def completed(task: Any) -> OperatorLineage[Any, Any]:
    """What the provider takes of a task that has succeeded."""
    found = DefaultExtractor(task).extract_on_complete(None)
    assert found is not None
    return found


def failed(task: Any) -> OperatorLineage[Any, Any]:
    """What it takes of one that has failed."""
    found = DefaultExtractor(task).extract_on_failure(None)
    assert found is not None
    return found


def names(datasets: list[Any]) -> list[tuple[str, str]]:
    """By which others know them."""
    return [(one.namespace, one.name) for one in datasets]


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
        job=LOCAL,
    )
    assert failed(task) == OperatorLineage()
    task.execute(context_of(12))
    told = completed(task)
    assert names(told.inputs) == [(f"kafka://{bootstrap}", orders)]
    assert names(told.outputs) == [("file", str(tmp_path / "window_id=w"))]
    assert told.outputs[0].outputFacets["outputStatistics"].rowCount == 3
    facet = told.run_facets[FACET]
    assert (facet.window_id, facet.offsets, facet.partitions) == (
        "w",
        3,
        {f"{orders}[0]": {"from": 0, "up_to": 4, "offsets": 3, "ranges": 2}},
    )


@pytest.mark.slow
def test_a_window_of_several_tasks_has_its_files_where_it_is_committed(
    group_id: str, orders: str, bootstrap: str, tmp_path: Path
) -> None:
    """Each part reads the topics, of its own offsets; a commit that fails has no files."""
    plan = PlanWindowOperator(
        task_id="plan",
        window=Window(orders, starting_offsets="earliest"),
        group_id=group_id,
        mode="catch_up",
        window_id="w",
        parts=2,
    )
    shares = plan.execute(context_of(12))
    commit = CommitWindowOperator(task_id="commit", window=shares, output=str(tmp_path))
    with pytest.raises(PartsMissingError):
        commit.execute(context_of(12))
    topics = [(f"kafka://{bootstrap}", orders)]
    assert (names(failed(commit).inputs), failed(commit).outputs) == (topics, [])
    offsets = 0
    for share in shares:
        part = WindowPartOperator(task_id="part", window=share, output=str(tmp_path), job=LOCAL)
        part.execute(context_of(12))
        told = completed(part)
        assert (names(told.inputs), told.outputs) == (topics, [])
        assert told.run_facets[FACET].window_id == "w"
        offsets += told.run_facets[FACET].offsets
    commit.execute(context_of(12))
    told = completed(commit)
    assert names(told.inputs) == topics
    assert names(told.outputs) == [("file", str(tmp_path / "window_id=w"))]
    assert told.outputs[0].outputFacets["outputStatistics"].rowCount == 3
    facet = told.run_facets[FACET]
    assert (facet.status, facet.records, facet.offsets) == ("published", 3, offsets)


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ("/lake/w", ("file", "/lake/w")),
        ("file:/lake/a b", ("file", "/lake/a b")),
        ("file:///lake/w/", ("file", "/lake/w")),
        ("s3://lake/orders/w", ("s3://lake", "orders/w")),
        ("s3a://lake/orders/w", ("s3://lake", "orders/w")),
        ("s3://lake", ("s3://lake", "/")),
        ("gs://lake/orders/w", ("gs://lake", "orders/w")),
        (
            "abfs://c@acc.dfs.core.windows.net/lake/w",
            ("abfss://c@acc.dfs.core.windows.net", "lake/w"),
        ),
        ("hdfs://namenode:8020/lake/w", ("hdfs://namenode:8020", "/lake/w")),
        ("hdfs://nameservice/lake/w", ("hdfs://nameservice", "/lake/w")),
        ("hdfs:///lake/w", ("hdfs", "/lake/w")),
        ("dbfs:/lake/w", ("dbfs", "/lake/w")),
        ("lake.orders", None),
        ("delta.`/lake/orders`", None),
        (None, None),
    ],
)
def test_files_are_named_as_every_producer_names_them(
    files: str | None, place: tuple[str, str] | None
) -> None:
    """By OpenLineage's own rules, as Spark's listener has them; a table's name says not where it is."""
    assert place_of(files) == place


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
