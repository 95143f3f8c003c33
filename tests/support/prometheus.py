"""A Prometheus in tests, the server that scrapes and evaluates; and `kafka-ordered-ops watch`, which it scrapes."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from tests.support.sessions import end_session

_COMMAND: Final = "prometheus"
_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 0.2

#: Values by the labels, in the order of their names.
Values = dict[tuple[str, ...], float]


def missing() -> str | None:
    """Return why these tests cannot be run here; None if they can."""
    return None if shutil.which(_COMMAND) else f"there is no {_COMMAND} on the path"


class Prometheus:
    """A running Prometheus, through its HTTP API.

    Args:
        url: where it is.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def values(self, expression: str) -> Values:
        """What an expression is now, by its labels."""
        found = self._get("query", query=expression)["result"]
        return {
            tuple(value for _, value in sorted(one["metric"].items())): float(one["value"][1])
            for one in found
        }

    def label_values(self, label: str, series: str) -> list[str]:
        """The values of a label, as a dashboard's variable lists them."""
        found: list[str] = self._get(f"label/{label}/values", **{"match[]": series})
        return found

    def rules(self) -> dict[str, tuple[str, str]]:
        """The health and the state of each rule, by its name."""
        groups = self._get("rules")["groups"]
        return {
            one["name"]: (one["health"], one["state"]) for group in groups for one in group["rules"]
        }

    def summaries(self) -> dict[str, str]:
        """The text of each alert that is pending or firing, by the name of its rule."""
        alerts = self._get("alerts")["alerts"]
        return {one["labels"]["alertname"]: one["annotations"]["summary"] for one in alerts}

    def reaches(self, is_so: Callable[[], bool], seen: Callable[[], object]) -> None:
        """Wait until something is so; what is seen instead is in the failure."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not is_so():
            assert time.monotonic() < deadline, seen()
            time.sleep(_LOOK_S)

    def _get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(
            f"{self._url}/api/v1/{path}?{urlencode(query)}", timeout=_TIMEOUT_S
        ) as answer:
            return json.load(answer)["data"]


@contextmanager
def prometheus(
    folder: Path, targets: Mapping[str, str], rules: Sequence[Path] = ()
) -> Iterator[Prometheus]:
    """A Prometheus that has scraped its targets, and evaluates rules every second.

    Args:
        folder: for its settings, log and data.
        targets: `host:port` by the name of the job.
        rules: the files with the rules.
    """
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(one) for one in rules],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [target]}]}
            for job, target in targets.items()
        ],
    }
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    log = folder / "log"
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": "127.0.0.1:0",
    }
    with open(log, "wb") as written:
        process = subprocess.Popen(
            [_COMMAND, *(f"--{name}={value}" for name, value in options.items())],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            start_new_session=True,
        )
    try:
        made = Prometheus(f"http://127.0.0.1:{_port(process, log)}")

        def is_up() -> bool:
            with contextlib.suppress(OSError):
                return made.values("sum(up)") == {(): len(targets)}
            return False

        made.reaches(is_up, log.read_text)
        yield made
    finally:
        end_session(process)


@contextmanager
def watch(bootstrap: str, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A `kafka-ordered-ops watch` with some options; gives its URL, and its process."""
    command = [sys.executable, "-m", "kafka_ordered_ops.cli", "watch", "-b", bootstrap]
    process = subprocess.Popen(
        [*command, "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout as printed:
        try:
            [url] = re.findall(r"http://127.0.0.1:\d+/metrics", printed.readline().decode())
            yield url, process
        finally:
            end_session(process)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """The port that it has chosen."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not (found := re.search(r'"Listening on" address=127\.0\.0\.1:(\d+)', log.read_text())):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(_LOOK_S)
    return int(found[1])
