"""A page that is gone leads to where its content is now: a small file that the browser follows, at its old address."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any, Final

from sphinx.application import Sphinx
from sphinx.util import logging

_log = logging.getLogger(__name__)

#: The page and the section that hold the content of a page that is gone.
MOVED: Final = {
    "airflow/backfills": "airflow/scheduling#backfills",
    "airflow/connection": "settings#connections-in-airflow",
    "airflow/cutoff": "airflow/scheduling",
    "airflow/events": "airflow/scheduling#start-runs-by-record-time",
    "airflow/executors": "where-it-runs#airflows-executors",
    "airflow/moving": "moving#consumefromtopicoperator",
    "airflow/plan-and-commit": "airflow/operator#plan-and-commit-around-any-spark-operator",
    "airflow/process": "airflow/operator#processwindowoperator",
    "airflow/reference": "api-hosts",
    "airflow/sensor": "liveness#in-airflow",
    "airflow/taskflow": "airflow/operator#a-function-in-the-dags-file",
    "airflow/troubleshooting": "troubleshooting#in-airflow",
    "airflow/versions": "operate#versions",
    "benchmarks/imports": "benchmarks/index#main-figures",
    "benchmarks/results": "benchmarks/index#main-figures",
    "changelog": "index#changelog",
    "coming-from": "moving",
    "dagster/moving": "moving#a-consuming-sensor-or-dagster-kafka",
    "dagster/reference": "api-hosts#objects-for-dagster",
    "dagster/sensor": "liveness#in-dagster",
    "dagster/topics": "dagster/component#topics",
    "decisions": "how-it-works",
    "duckdb": "your-code",
    "formats": "ledger#stored-formats",
    "glossary": "how-it-works#glossary",
    "hand-back": "moving#hand-a-group-back",
    "hdfs": "storage#hdfs",
    "limits": "ledger#limits",
    "native": "engines#the-native-reader",
    "object-stores": "storage",
    "offset-maps": "ledger#offset-maps",
    "order": "engines#keep-records-in-order",
    "packaging": "submit#install-the-package-on-executors",
    "parallel-consumer": "moving#parallel-consumer",
    "security": "guarantees#threat-model",
    "steps": "your-code#with-spark",
    "take-over-parallel-consumer": "moving#parallel-consumer",
    "upkeep": "operate#open-windows",
    "what-can-go-wrong": "troubleshooting",
    "window-life": "troubleshooting#states-of-a-window",
}

_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Moved</title>
<meta http-equiv="refresh" content="0; url={url}">
<link rel="canonical" href="{url}">
<p>This page is now at <a href="{url}">{url}</a>.</p>
</html>
"""


def _write(app: Sphinx, error: Exception | None) -> None:
    """Write the files, after a build of HTML that succeeded."""
    if error is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    for old, target in MOVED.items():
        page, _, anchor = target.partition("#")
        html = out / f"{page}.html"
        if old in app.env.found_docs or not html.is_file():
            _log.warning("moved page %s: it is still there, or %s is not", old, page)
        elif anchor and f'id="{anchor}"' not in html.read_text(encoding="utf-8"):
            _log.warning("moved page %s: %s has no section %s", old, page, anchor)
        url = f"{posixpath.relpath(page, posixpath.dirname(old) or '.')}.html"
        file = out / f"{old}.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            _PAGE.format(url=url + (f"#{anchor}" if anchor else "")), encoding="utf-8"
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("build-finished", _write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
