"""OpenLineage: a window's topics as inputs, its files or its table as output; events of runs outside of Airflow.

Imports are inside the functions: the libraries are there only with OpenLineage's provider for Airflow, or the extra ``lineage``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.delivery.summary import partition_bounds, plan_summary, window_summary
from kafka_ordered_ops.output.address import SCHEME, STORE_SCHEMES
from kafka_ordered_ops.spec.table import TableLocation, location_of

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

#: OpenLineage's scheme of each store, also of one for tables alone; in a store, a name does not begin with a slash.
_STORES: Final = {**STORE_SCHEMES, "wasb": "wasbs", "wasbs": "wasbs"}


class Say(Protocol):
    """Takes the windows of a run."""

    def __call__(self, *windows: WindowPlan | WindowRecord) -> None:
        """Send START for planned windows; keep delivered ones for the event at the end."""


@dataclass
class _Run:
    """The run of one window."""

    id: str
    facts: dict[str, Any] = field(default_factory=dict)


@contextmanager
def run_lineage(group_id: str, brokers: str) -> Iterator[Say]:
    """Send the events of each window's run, if OpenLineage's client is installed and configured by its environment variables.

    START has the planned window. At the end of the block, COMPLETE has the delivered one, or FAIL the error. Where an
    event cannot be sent, the others of its kind are not either; it is a warning.

    Args:
        group_id: the consumer group; the job's name.
        brokers: ``bootstrap.servers``; the first broker names the cluster.
    """
    if (client := _client()) is None:
        yield lambda *_: None
        return
    from openlineage.client.facet_v2 import error_message_run
    from openlineage.client.uuid import generate_new_uuid

    runs: dict[str, _Run] = {}

    def send(state: str, runs: Iterable[_Run], **facets: Any) -> None:
        try:
            for run in runs:
                client.emit(_event(state, run, group_id, brokers, facets))
        except Exception as error:  # noqa: BLE001 - the records are delivered, whether others hear of it or not
            # The client repeats an event for some seconds: the others would wait as long for a server that is away.
            _log.warning("OpenLineage: %s was not sent: %s: %s", state, type(error).__name__, error)

    def say(*windows: WindowPlan | WindowRecord) -> None:
        new: list[_Run] = []
        for facts in map(window_facts, windows):
            if (run := runs.get(facts["window_id"])) is None:
                run = runs[facts["window_id"]] = _Run(str(generate_new_uuid()))
                new.append(run)
            run.facts.update(facts)
        send("START", new)

    try:
        yield say
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        message = error_message_run.ErrorMessageRunFacet(text, programmingLanguage="python")
        # An error before the plan is that of a run without a window.
        failed = list(runs.values()) or [_Run(str(generate_new_uuid()))]
        send("FAIL", failed, errorMessage=message)
        raise
    else:
        send("COMPLETE", runs.values())
    finally:
        client.close(_CLOSE_S)


def window_facts(window: WindowPlan | WindowRecord) -> dict[str, Any]:
    """Return the facts of a planned or a delivered window; they are the other functions' `facts`."""
    if isinstance(window, WindowPlan):
        return {
            **plan_summary(window),
            "topics": list(window.topics),
            "partitions": partition_bounds(window),
        }
    return {
        **window_facts(window.plan),
        **window_summary(window),
        "location": location_of(window.result),
    }


def inputs_of(facts: Mapping[str, Any], brokers: str) -> list[Any]:
    """Return a window's topics."""
    from openlineage.client.event_v2 import InputDataset

    namespace = namespace_of(brokers)
    return [InputDataset(namespace=namespace, name=topic) for topic in facts.get("topics") or ()]


def outputs_of(facts: Mapping[str, Any]) -> list[Any]:
    """Return a window's files or its table, with the number of records; empty before it is delivered."""
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    location: TableLocation | None = facts.get("location")
    place = place_of(facts.get("output") if location is None else location.files)
    if place is None:
        return []
    counted: dict[str, Any] = {}
    if facts.get("records") is not None:
        counted["outputStatistics"] = statistics.OutputStatisticsOutputDatasetFacet(
            rowCount=facts["records"]
        )
    namespace, name = place
    return [
        OutputDataset(
            namespace=namespace, name=name, facets=_symlinks(location), outputFacets=counted
        )
    ]


def _symlinks(location: TableLocation | None) -> dict[str, Any]:
    """Return the facet with a table's name in its catalogue; empty for files, and without the catalogue's address."""
    from openlineage.client.facet_v2 import symlinks_dataset

    if location is None or location.catalog is None:
        return {}
    table = symlinks_dataset.Identifier(
        namespace=catalog_namespace(location.catalog), name=location.name or "", type="TABLE"
    )
    return {"symlinks": symlinks_dataset.SymlinksDatasetFacet(identifiers=[table])}


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


def place_of(files: str | None) -> tuple[str, str] | None:
    """Return the OpenLineage namespace and name of files, which are those that Spark's listener reports.

    None for a table's name: a table has the name of its files.
    """
    if files is None or not (files.startswith("/") or SCHEME.match(files)):
        return None
    scheme, authority, path = _split(files)
    if scheme == "file":
        return scheme, path
    if scheme in _STORES:
        path = path.lstrip("/") or "/"
    return (f"{scheme}://{authority}" if authority else scheme), path


def catalog_namespace(address: str) -> str:
    """Return the OpenLineage namespace of a catalogue by its address: a server, or the folder of its tables."""
    scheme, authority, path = _split(address)
    if scheme == "file":
        return f"file:{path}"
    if scheme == "thrift":
        return f"hive://{authority}"
    return address if scheme.startswith("http") else f"{scheme}://{authority}{path}".rstrip("/")


def _split(address: str) -> tuple[str, str, str]:
    """Return scheme, authority and path; a path without a scheme is a local one."""
    match = SCHEME.match(address)
    if match is None:
        return "file", "", address.rstrip("/") or "/"
    authority, path = "", address[match.end() :]
    if path.startswith("//"):
        authority, slash, path = path[2:].partition("/")
        path = slash + path
    scheme = match[1].lower()
    return _STORES.get(scheme, scheme), authority, path.rstrip("/") or "/"


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


def _event(state: str, run: _Run, group_id: str, brokers: str, facets: Mapping[str, Any]) -> Any:
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState

    return RunEvent(
        eventType=RunState[state],
        eventTime=datetime.now(UTC).isoformat(),
        run=Run(runId=run.id, facets={**run_facets_of(run.facts), **facets}),
        job=Job(namespace=os.environ.get("OPENLINEAGE_NAMESPACE", "default"), name=group_id),
        producer=_PRODUCER,
        inputs=inputs_of(run.facts, brokers),
        outputs=outputs_of(run.facts),
    )
