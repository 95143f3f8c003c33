"""OpenLineage: a window's topics as inputs, its files as output.

Imports are inside the functions: only the OpenLineage provider calls them, and it installs their libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kafka_ordered_ops.output.address import address_of, is_in_hdfs, is_in_store, split_hdfs

#: The name of the facet with the window's own facts.
FACET: Final = "kafka_ordered_ops_window"


def lineage_of(facts: Mapping[str, Any], brokers: str) -> Any:
    """Return a task's inputs and outputs, as an ``OperatorLineage``.

    Args:
        facts: the result of `facts.plan_facts` or `facts.delivery_facts`; empty before a window was planned.
        brokers: ``bootstrap.servers``; the first broker names the cluster.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(
        inputs=_inputs(facts, brokers),
        outputs=_outputs(facts),
        run_facets={FACET: _facet(facts)} if facts else {},
    )


def _inputs(facts: Mapping[str, Any], brokers: str) -> list[Any]:
    from openlineage.client.event_v2 import InputDataset

    namespace = namespace_of(brokers)
    return [InputDataset(namespace=namespace, name=topic) for topic in facts.get("topics") or ()]


def _outputs(facts: Mapping[str, Any]) -> list[Any]:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset

    place = place_of(facts.get("output"))
    if place is None:
        return []
    counted: dict[str, Any] = {}
    if facts.get("records") is not None:
        counted["outputStatistics"] = (
            output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=facts["records"]
            )
        )
    namespace, name = place
    return [OutputDataset(namespace=namespace, name=name, outputFacets=counted)]


def place_of(output: str | None) -> tuple[str, str] | None:
    """Return an output's OpenLineage namespace and name, which are those that Spark reports for the same files.

    None for a table: Spark reports it by the place of its files, which a task does not know.
    """
    if output is None:
        return None
    if is_in_store(output):
        address = address_of(output)
        # A path in a file system begins with a slash, the key of an object does not.
        slash = "/" if address.scheme == "abfss" else ""
        return f"{address.scheme}://{address.bucket}", f"{slash}{address.key}"
    if is_in_hdfs(output):
        host, path = split_hdfs(output)
        return host.removesuffix("://"), path
    return ("file", output) if output.startswith("/") else None


def namespace_of(brokers: str) -> str:
    """Return a cluster's OpenLineage name: ``kafka://host:port``."""
    first = brokers.split(",")[0].strip()
    # librdkafka accepts a protocol before the host, and a missing port.
    host = first.rsplit("://", 1)[-1]
    has_port = ":" in host.rsplit("]", 1)[-1]
    return f"kafka://{host if has_port else f'{host}:9092'}"


def _facet(facts: Mapping[str, Any]) -> Any:
    import attr
    from openlineage.client.facet_v2 import RunFacet

    # Defined on use: its base class does not exist without the provider.
    kind = attr.make_class(
        "KafkaWindowRunFacet",
        {name: attr.ib(default=None) for name in _FACTS},
        bases=(RunFacet,),
        slots=False,
        kw_only=True,
    )
    return kind(**{name: facts.get(name) for name in _FACTS})


#: The facts that identify a window's records.
_FACTS: Final = (
    "window_id",
    "group",
    "since",
    "cutoff",
    "status",
    "offsets",
    "partitions",
    "records",
    "late",
    "out_of_order",
)
