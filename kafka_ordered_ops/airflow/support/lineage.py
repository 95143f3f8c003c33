"""OpenLineage: what a task reports to Airflow's provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka_ordered_ops.delivery.lineage import inputs_of, outputs_of, run_facets_of


def lineage_of(facts: Mapping[str, Any], brokers: str) -> Any:
    """Return a task's inputs and outputs, as an ``OperatorLineage``.

    Args:
        facts: the result of `facts.plan_facts` or `facts.delivery_facts`; empty before a window was planned.
        brokers: ``bootstrap.servers``; the first broker names the cluster.
    """
    # Imported here: only the OpenLineage provider calls this.
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(
        inputs=inputs_of(facts, brokers), outputs=outputs_of(facts), run_facets=run_facets_of(facts)
    )
