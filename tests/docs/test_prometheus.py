"""The dashboard and the rules of the documentation, in a real Prometheus that scrapes a real group."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import opentelemetry.metrics
import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, start_http_server

from kafka_ordered_ops import Earliest, OrderedWindows, WindowSupersededError, stage_window
from kafka_ordered_ops.windows import metrics
from tests.support.pages import ROOT
from tests.support.prometheus import missing, prometheus, watch
from tests.support.sessions import end_session
from tests.support.windows_support import at, before

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

pytestmark = pytest.mark.slow

SNIPPETS: Final = ROOT / "docs/snippets"
AGE_S: Final = 3 * 3_600
#: What Grafana replaces: all groups, and a time that the test does not reach.
VARIABLES: Final = {"$group": ".*", "$__rate_interval": "1h"}


@dataclass(frozen=True)
class Watched:
    """The `watch` of a ledger."""

    target: str
    process: subprocess.Popen[bytes]


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where this process serves its metrics."""
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(registry=registry)])
    monkeypatch.setattr(opentelemetry.metrics, "get_meter", provider.get_meter)
    metrics._instruments.cache_clear()
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()
    metrics._instruments.cache_clear()
    provider.shutdown()


@pytest.fixture
def watched(bootstrap: str, group_id: str, orders: str, tmp_path: Path) -> Iterator[Watched]:
    """A ledger with a published, an unpublished and an open window, all some hours old."""
    ledger = f"{group_id}-ledger"
    leave_trouble(bootstrap, group_id, orders, ledger, tmp_path / "lake")
    # Read once: a slow read later would fail a scrape.
    with watch(bootstrap, "--ledger-topic", ledger, "--interval", "PT1H") as (url, process):
        yield Watched(urlsplit(url).netloc, process)


def leave_trouble(bootstrap: str, group_id: str, topic: str, ledger: str, root: Path) -> None:
    """Publish a window, leave another unpublished, and a third open to an attempt that has superseded its first."""
    old = time.time() - AGE_S
    with OrderedWindows(bootstrap, group_id, ledger_topic=ledger, clock=lambda: old) as windows:
        windows.run(before(topic, 12, Earliest()), str(root))
        hidden = windows.plan(before(topic, 17), "hidden")
        windows.mark_written(hidden, stage_window(hidden, windows.settings, str(root)).to_json())
        windows.commit(hidden)
        superseded = windows.plan(before(topic, 22), "open")
        windows.plan(before(topic, 22), "open")
        with pytest.raises(WindowSupersededError):
            windows.commit(superseded)


def as_grafana_sends(expression: str) -> str:
    """An expression without Grafana's variables."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def test_every_panel_of_the_dashboard_shows_what_happened(
    exported: str, watched: Watched, orders: str, group_id: str, tmp_path: Path
) -> None:
    """Counters too, though their first values are all that Prometheus ever reads of a short process."""
    board = json.loads((SNIPPETS / "grafana-dashboard.json").read_text())
    with prometheus(tmp_path, {"watch": watched.target, "process": exported}) as server:
        shown: dict[str, Any] = {
            panel["title"]: [
                server.values(as_grafana_sends(one["expr"])) for one in panel["targets"]
            ]
            for panel in board["panels"]
        }
        served = server.label_values("__name__", '{__name__=~".+"}')
        groups = server.label_values("group", "kafka_ordered_ops_group_readable")
    [durations] = shown.pop("Duration of operations, 95th percentile")
    assert {name for (name,) in durations} == {"plan", "mark_written", "commit", "publish"}
    assert all(0 < seconds < 1_800 for seconds in durations.values())
    assert shown == {
        "Readable": [{(): 1}, {(): 1}],
        "Cutoff lag": [{(group_id,): pytest.approx(time.time() - at(17).timestamp(), abs=60)}],
        "Lag": [{(group_id, orders): 2}],
        "Open windows": [{(group_id,): 1}],
        "Longest untouched": [{(group_id,): pytest.approx(AGE_S, abs=300)}],
        "Unpublished windows": [{(group_id,): 1}],
        "Windows by status": [
            {
                ("planned",): 3,
                ("resumed",): 1,
                ("written",): 1,
                ("committed",): 2,
                ("published",): 1,
            }
        ],
        "Records by kind": [{("delivered",): 3, ("out_of_order",): 1}],
        "Failed operations": [{("WindowSupersededError", "commit"): 1}],
    }
    assert groups == [group_id]
    assert set(re.findall(r"kafka_ordered_ops_\w+", json.dumps(board))) <= set(served)


def test_the_rules_alert_about_a_group_in_trouble_and_about_a_lost_watch(
    watched: Watched, group_id: str, tmp_path: Path
) -> None:
    """Those that wait are pending. Prometheus reads the file as the page shows it."""
    with prometheus(tmp_path, {"watch": watched.target}, [SNIPPETS / "alerts.yml"]) as server:
        expected = {
            "WindowLeftOpen": ("ok", "firing"),
            "WindowUnpublished": ("ok", "pending"),
            "GroupBehind": ("ok", "firing"),
            "LedgerUnreadable": ("ok", "inactive"),
        }
        server.reaches(lambda: server.rules() == expected, server.rules)
        summaries = server.summaries()
        end_session(watched.process)
        lost = {
            **dict.fromkeys(expected, ("ok", "inactive")),
            "LedgerUnreadable": ("ok", "pending"),
        }
        server.reaches(lambda: server.rules() == lost, server.rules)
    assert re.fullmatch(
        f"Group {group_id}: no attempt has worked on an open window for 3h [0-4]m [0-9]+s.",
        summaries["WindowLeftOpen"],
    )
    assert (
        summaries["WindowUnpublished"]
        == f"Group {group_id}: committed windows that readers do not see: 1."
    )
