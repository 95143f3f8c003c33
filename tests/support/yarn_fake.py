"""What a resource manager of YARN answers, for drivers that a test lets run, end and vanish; and a spark-submit for it."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kafka_ordered_ops.delivery.current import windows_of
from kafka_ordered_ops.spark import SparkSubmit
from kafka_ordered_ops.spark.applications.protocol import Submission
from kafka_ordered_ops.windows import ClientSettings

_SUBMIT = """\
    #!{python}
    import json, sys, urllib.request

    words = sys.argv
    assert words[words.index("--deploy-mode") + 1] == "cluster", words
    with open(words[words.index("--properties-file") + 1]) as file:
        lines = [line.partition("=") for line in file.read().splitlines()]
    conf = {{key: value.encode().decode("unicode_escape") for key, _, value in lines}}
    assert conf["spark.yarn.submit.waitAppCompletion"] == "false"
    body = {{"tags": conf["spark.yarn.tags"], "folder": conf["spark.kafkaOrderedOps.submission"]}}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
    opener.open("{url}/submit", json.dumps(body).encode()).close()
    print("accepted")
    {then}
"""


@dataclass
class FakeYarn:
    """A resource manager, and the applications that it has accepted."""

    url: str = ""
    #: As it reports them, in the order of their submission; with the folder of the run.
    applications: list[dict[str, Any]] = field(default_factory=list)
    #: What it answers to everything, in place of the truth.
    status: int | None = None

    @property
    def folder(self) -> PurePath:
        """The run of the newest driver."""
        return PurePath(self.applications[-1]["folder"])

    def settings(self, folder: Path) -> Path:
        """A folder with Hadoop's settings: its address by way of another setting, as most have it."""
        folder.mkdir(exist_ok=True)
        host, _, port = urlsplit(self.url).netloc.partition(":")
        values = {
            "yarn.resourcemanager.hostname": host,
            "yarn.resourcemanager.webapp.address": f"${{yarn.resourcemanager.hostname}}:{port}",
        }
        lines = [
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in values.items()
        ]
        (folder / "yarn-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
        return folder

    def submit(self, folder: Path, then: str = "") -> SparkSubmit:
        """How an application is submitted to it; `then` is what spark-submit does afterwards."""
        program = folder / "spark-submit"
        text = textwrap.dedent(_SUBMIT).format(python=sys.executable, url=self.url, then=then)
        program.write_text(text)
        program.chmod(0o755)
        return SparkSubmit(
            master="yarn",
            deploy_mode="cluster",
            program=program,
            environment={"HADOOP_CONF_DIR": str(self.settings(folder / "hadoop"))},
            timeout_s=3_600,
        )

    def drive(self, settings: ClientSettings, *, writes: bool = True) -> None:
        """The newest driver copies its window, unless it only ends; and exits with 0."""
        if writes:
            context = SimpleNamespace(applicationId=self.applications[-1]["id"])
            spark = SimpleNamespace(sparkContext=context)
            windows_of(Submission.read(self.folder), settings, None, spark, self.folder).copy()
        self.end("FINISHED", "SUCCEEDED")

    def end(self, state: str, final: str, diagnostics: str = "") -> None:
        """The newest driver ends."""
        self.applications[-1] |= {
            "state": state,
            "finalStatus": final,
            "diagnostics": diagnostics,
        }

    def answer(self, method: str, path: str, body: Any) -> Any:
        """The answer to a request."""
        address = urlsplit(path)
        if address.path == "/submit":
            self.applications.append(
                {
                    "id": f"application_1_{len(self.applications):04}",
                    "applicationTags": body["tags"],
                    "folder": body["folder"],
                    "state": "RUNNING",
                    "finalStatus": "UNDEFINED",
                    "trackingUrl": f"{self.url}/proxy",
                }
            )
            return {}
        if address.path.endswith("/info"):
            return {"clusterInfo": {"state": "STARTED"}}
        if method == "PUT":
            (found,) = [one for one in self.applications if f"/{one['id']}/" in path]
            found |= {"state": body["state"], "finalStatus": "KILLED"}
            return body
        (tag,) = parse_qs(address.query)["applicationTags"]
        found_all = [one for one in self.applications if tag in one["applicationTags"].split(",")]
        return {"apps": {"app": found_all} if found_all else None}


@contextmanager
def fake_yarn() -> Iterator[FakeYarn]:
    """A resource manager on this machine."""
    yarn = FakeYarn()
    with serving(lambda *asked: yarn.answer(*asked), lambda: yarn.status or 200) as yarn.url:
        yield yarn


@pytest.fixture
def yarn() -> Iterator[FakeYarn]:
    """A resource manager of one test."""
    with fake_yarn() as found:
        yield found


@contextmanager
def serving(
    answer: Callable[[str, str, Any], Any], status: Callable[[], int] = lambda: 200
) -> Iterator[str]:
    """A server that answers method, path and body with JSON; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            content = json.dumps(answer(self.command, self.path, body)).encode()
            self.send_response(status())
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = _respond

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
