"""OpenLineage: a window's topics as inputs, its files as output; events of plain runs.

Imports are inside the functions: the libraries are there only with OpenLineage's provider for Airflow, or the extra ``lineage``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.delivery.summary import partition_bounds, plan_summary, window_summary
from kafka_ordered_ops.output.address import address_of, is_in_hdfs, is_in_store, split_hdfs

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord

_log = logging.getLogger(__name__)

#: The name of the facet with the window's own facts.
FACET: Final = "kafka_ordered_ops_window"

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
    "output",
)

_PRODUCER: Final = "https://pypi.org/project/kafka-ordered-ops"

#: How long the end of a run waits until all events are sent.
_CLOSE_S: Final = 10.0

#: What OpenLineage's client is configured by. Without configuration it would print each event.
_CONFIGURATION: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT")

#: Sends the event of the planned, and then of the delivered window.
Say = Callable[["WindowPlan | WindowRecord"], None]


@contextmanager
def run_lineage(group_id: str, brokers: str) -> Iterator[Say]:
    """Send the events of a run, if OpenLineage's client is installed and configured by its environment variables.

    START has the planned window. At the end of the block, COMPLETE has the delivered one, or FAIL the error. An event
    that cannot be sent is a warning.

    Args:
        group_id: the consumer group; the job's name.
        brokers: ``bootstrap.servers``; the first broker names the cluster.
    """
    if (client := _client()) is None:
        yield lambda _: None
        return
    from openlineage.client.facet_v2 import error_message_run
    from openlineage.client.uuid import generate_new_uuid

    run_id, facts = str(generate_new_uuid()), dict[str, Any]()

    def send(state: str, **facets: Any) -> None:
        try:
            client.emit(_event(state, run_id, group_id, brokers, facts, facets))
        except Exception as error:  # noqa: BLE001 - the records are delivered, whether others hear of it or not
            _log.warning("OpenLineage: %s was not sent: %s: %s", state, type(error).__name__, error)

    def say(window: WindowPlan | WindowRecord) -> None:
        if isinstance(window, WindowPlan):
            facts.update(_planned_facts(window))
            send("START")
        else:
            facts.update(_planned_facts(window.plan), **window_summary(window))

    try:
        yield say
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        message = error_message_run.ErrorMessageRunFacet(text, programmingLanguage="python")
        send("FAIL", errorMessage=message)
        raise
    else:
        send("COMPLETE")
    finally:
        client.close(_CLOSE_S)


def _planned_facts(plan: WindowPlan) -> dict[str, Any]:
    """Return the facts of a planned window."""
    return {
        **plan_summary(plan),
        "topics": list(plan.topics),
        "partitions": partition_bounds(plan),
    }


def inputs_of(facts: Mapping[str, Any], brokers: str) -> list[Any]:
    """Return a window's topics."""
    from openlineage.client.event_v2 import InputDataset

    namespace = namespace_of(brokers)
    return [InputDataset(namespace=namespace, name=topic) for topic in facts.get("topics") or ()]


def outputs_of(facts: Mapping[str, Any]) -> list[Any]:
    """Return a window's files, with the number of their records; empty before it is delivered, and for a table."""
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


def run_facets_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facet with the window's own facts; empty before the plan."""
    if not facts:
        return {}
    import attr
    from openlineage.client.facet_v2 import RunFacet

    # Defined on use: its base class does not exist without the library.
    kind = attr.make_class(
        "KafkaWindowRunFacet",
        {name: attr.ib(default=None) for name in _FACTS},
        bases=(RunFacet,),
        slots=False,
        kw_only=True,
    )
    return {FACET: kind(**{name: facts.get(name) for name in _FACTS})}


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


def _client() -> Any:
    """Return OpenLineage's client; None if it is not installed, not configured, or its configuration is invalid."""
    if not any(name.startswith(_CONFIGURATION) for name in os.environ):
        return None
    try:
        from openlineage.client import OpenLineageClient

        return OpenLineageClient()
    except Exception as error:  # noqa: BLE001 - lineage must not keep a window from its readers
        _log.warning("OpenLineage: no events are sent: %s: %s", type(error).__name__, error)
        return None


def _event(
    state: str,
    run_id: str,
    group_id: str,
    brokers: str,
    facts: Mapping[str, Any],
    facets: Mapping[str, Any],
) -> Any:
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState

    return RunEvent(
        eventType=RunState[state],
        eventTime=datetime.now(UTC).isoformat(),
        run=Run(runId=run_id, facets={**run_facets_of(facts), **facets}),
        job=Job(namespace=os.environ.get("OPENLINEAGE_NAMESPACE", "default"), name=group_id),
        producer=_PRODUCER,
        inputs=inputs_of(facts, brokers),
        outputs=outputs_of(facts),
    )
