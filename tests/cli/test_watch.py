"""`watch`: the groups of a ledger, as Prometheus reads them."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kafka_ordered_ops import Earliest, OrderedWindows, Window
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_CONFIG, LEDGER_PARTITIONS
from kafka_ordered_ops.testing import InMemoryKafka
from tests.conftest import MakeTopic
from tests.support.hosts_support import GROUP
from tests.support.hosts_support import kafka as kafka
from tests.support.pages import ROOT
from tests.support.prometheus import watch
from tests.support.windows_support import at, before

PREFIX: Final = "kafka_ordered_ops_group_"
TIMEOUT_S: Final = 60.0


def samples(text: str) -> dict[tuple[str, ...], float]:
    """The values by name and labels."""
    return {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_all_groups_are_printed_once(
    kafka: InMemoryKafka, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is held, by whom and since when, what is not visible, and how far each group is."""
    two_hours_ago = time.time() - 7_200
    with OrderedWindows(kafka.settings, GROUP, clock=lambda: two_hours_ago) as windows:
        done = windows.plan(Window(["t"], at(2), starting_offsets=Earliest()), "done")
        windows.commit(done)
        held = windows.plan(Window(["t"], at(4)), "held")
    with OrderedWindows(kafka.settings, 'other, "odd"') as windows:
        windows.plan(Window(["t"], at(2), starting_offsets=Earliest()), "w")
    assert main(["watch", "-b", kafka.bootstrap, "--once"]) == 0
    found = samples(capfd.readouterr().out)
    assert found["kafka_ordered_ops_ledger_readable",] == 1
    assert found["open_windows", GROUP] == 1
    assert found["held_offsets", GROUP] == held.offsets > 0
    assert 7_200 <= found["untouched_seconds", GROUP] < 7_300
    assert found["unpublished_windows", GROUP] == 0
    assert found["lag_offsets", GROUP, "t"] >= held.offsets
    assert found["cutoff_lag_seconds", GROUP] == pytest.approx(
        time.time() - at(2).timestamp(), abs=60
    )
    assert found["open_windows", 'other, "odd"'] == found["readable", 'other, "odd"'] == 1
    assert ("cutoff_lag_seconds", 'other, "odd"') not in found


@pytest.mark.parametrize("file", ["alerts.yml", "grafana-dashboard.json"])
def test_the_files_of_the_documentation_are_about_these_metrics(
    kafka: InMemoryKafka, capfd: pytest.CaptureFixture[str], file: str
) -> None:
    """A rule about a metric that is not there never alerts, and a panel stays empty."""
    with OrderedWindows(kafka.settings, GROUP) as windows:
        windows.commit(windows.plan(Window(["t"], at(2), starting_offsets=Earliest()), "w"))
    assert main(["watch", "-b", kafka.bootstrap, "--once"]) == 0
    served = {name for name, *_ in samples(capfd.readouterr().out)}
    text = (ROOT / "docs/snippets" / file).read_text()
    found = re.findall(r"kafka_ordered_ops_(?:group|ledger)_\w+", text)
    names = {name.removeprefix(PREFIX) for name in found}
    assert len(names) >= 4
    assert names <= served


@pytest.mark.slow
def test_a_server_follows_a_group(
    bootstrap: str, group_id: str, topic: MakeTopic, orders: str
) -> None:
    """On a real broker: a window is planned and committed while it serves, and SIGTERM ends it well."""
    group, ledger = group_id, topic(partitions=LEDGER_PARTITIONS, config=LEDGER_CONFIG)
    with (
        OrderedWindows(bootstrap, group, ledger_topic=ledger) as windows,
        # The default ledger has a group of every other test.
        watch(bootstrap, "--interval", "PT0S", "--ledger-topic", ledger) as (url, server),
    ):

        def reaches(is_so: Callable[[dict[tuple[str, ...], float]], bool]) -> None:
            deadline = time.monotonic() + TIMEOUT_S
            while not is_so(found := scraped(url)):
                assert time.monotonic() < deadline, found

        reaches(lambda found: ("open_windows", group) not in found)
        plan = windows.plan(before(orders, 12, Earliest()), "w")
        reaches(lambda found: found.get(("held_offsets", group)) == plan.offsets == 3)
        assert scraped(url)["lag_offsets", group, orders] == 6
        windows.commit(plan)
        reaches(lambda found: found["open_windows", group] == found["held_offsets", group] == 0)
        assert scraped(url)["lag_offsets", group, orders] == 3
        os.killpg(server.pid, signal.SIGTERM)
        assert server.wait(TIMEOUT_S) == 0


def test_a_port_in_use_is_named(kafka: InMemoryKafka, capfd: pytest.CaptureFixture[str]) -> None:
    """A usage error, before anything is served."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["watch", "-b", kafka.bootstrap, "--port", str(port)]) == 2
    assert f"127.0.0.1:{port} is not available" in capfd.readouterr().err


def scraped(url: str) -> dict[tuple[str, ...], float]:
    """What a scrape brings."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return samples(answer.read().decode())
