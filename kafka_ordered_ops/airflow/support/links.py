"""Links of a task: to a page about its window, and to the page of its Spark job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from kafka_ordered_ops.airflow.compat import BaseOperatorLink, conf

if TYPE_CHECKING:
    from collections.abc import Mapping

SECTION: Final = "kafka_ordered_ops"
OPTION: Final = "window_url"


class WindowLink(BaseOperatorLink):
    """The button "Window", by ``[kafka_ordered_ops] window_url`` of Airflow's configuration.

    That text is a template with ``{window_id}``, ``{group}``, ``{topic}`` (the first), ``{since}`` and
    ``{cutoff}``: a page of a Kafka console, or of a catalogue. Without one, the button opens the page in
    Airflow that lists the attempt's XComs, with the window's summary.
    """

    @property
    def name(self) -> str:
        """Return the text of the button."""
        return "Window"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; empty for an attempt that planned no window."""
        template = conf.get(SECTION, OPTION, fallback="")
        facts = getattr(operator, "link_facts", None)
        if not facts:
            return ""
        return url_of(template, facts) if template else _summary_page(ti_key)


class SparkJobLink(BaseOperatorLink):
    """The button "Spark job": the page of the attempt's job, in the history server or in Spark's own UI."""

    @property
    def name(self) -> str:
        """Return the text of the button."""
        return "Spark job"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address; empty for a job without Spark, or one whose page is not known."""
        return getattr(operator, "spark_job_url", None) or ""


def _summary_page(ti: Any) -> str:
    page = f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/dags/{_part(ti.dag_id)}/runs/{_part(ti.run_id)}"
    page += f"/tasks/{_part(ti.task_id)}"
    if ti.map_index is not None and ti.map_index >= 0:
        page += f"/mapped/{ti.map_index}"
    return f"{page}/xcom"


def _part(value: object) -> str:
    """Return a value as one part of a path or query."""
    return quote("" if value is None else str(value), safe="")


def url_of(template: str, facts: Mapping[str, Any]) -> str:
    """Return a template with a window's facts in it, each as one part of a path or query."""
    topics = facts.get("topics") or [""]
    values = {
        "window_id": facts.get("window_id"),
        "group": facts.get("group"),
        "topic": topics[0],
        "since": facts.get("since"),
        "cutoff": facts.get("cutoff"),
    }
    url = template
    # Not str.format: a template may hold braces, and reach into objects.
    for name, value in values.items():
        url = url.replace(f"{{{name}}}", _part(value))
    return url
