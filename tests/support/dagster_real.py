"""A real Dagster for tests: `dagster dev` on a folder and a port of its own, and its GraphQL API."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.support.airflow_support import free_ports
from tests.support.sessions import end_session

#: Five processes, each of which imports Dagster, and two of them what they serve.
_START_TIMEOUT_S: Final = 420.0
#: The daemon looks after backfills every 30 s, and a run has two processes to start.
_TIMEOUT_S: Final = 240.0
#: Servers of code wait much longer for their last heartbeat; nothing of theirs is worth that.
_END_TIMEOUT_S: Final = 5.0
_REQUEST_TIMEOUT_S: Final = 60.0
_LOOK_S: Final = 0.5
_LOG_LINES: Final = 60

_SETTINGS: Final = """
telemetry:
  enabled: false
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config:
    dequeue_interval_seconds: 1
concurrency:
  runs:
    max_concurrent_runs: 4
  pools:
    default_limit: 1
    granularity: run
code_servers:
  local_startup_timeout: 180
"""

_METADATA: Final = """metadataEntries {
  label
  ... on TextMetadataEntry { text }
  ... on IntMetadataEntry { intValue }
  ... on FloatMetadataEntry { floatValue }
  ... on BoolMetadataEntry { boolValue }
}"""

Json = dict[str, Any]
T = TypeVar("T")

#: A run's step in the run's own process: one less to start.
_IN_PROCESS: Final[Json] = {"execution": {"config": {"in_process": {}}}}


class Dagster:
    """A running Dagster, through its API. Every wait has a deadline, and says what it has seen instead.

    Args:
        url: where its web server is.
        log: what its processes have written.
        process: the one that has started the others.
    """

    def __init__(self, url: str, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self._log = log
        self._process = process
        # Not by a proxy that the environment names.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def locations(self) -> dict[str, list[str]]:
        """The keys of the assets of each code location that has been loaded; fails when one was not."""
        query = """{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus
            locationOrLoadError { ... on PythonError { message }
              ... on RepositoryLocation { repositories { assetNodes { assetKey { path } } } } } } } } }"""
        found: dict[str, list[str]] = {}
        for entry in self.ask(query)["workspaceOrError"]["locationEntries"]:
            loaded = entry["locationOrLoadError"]
            if entry["loadStatus"] != "LOADED" or loaded is None:
                continue
            assert "repositories" in loaded, loaded
            found[entry["name"]] = [
                "/".join(node["assetKey"]["path"])
                for repository in loaded["repositories"]
                for node in repository["assetNodes"]
            ]
        return found

    def libraries(self) -> dict[str, dict[str, str]]:
        """The libraries that each code location says it uses, with their versions."""
        query = """{ workspaceOrError { ... on Workspace { locationEntries { name
            locationOrLoadError { ... on RepositoryLocation {
              dagsterLibraryVersions { name version } } } } } } }"""
        return {
            entry["name"]: {
                one["name"]: one["version"]
                for one in entry["locationOrLoadError"]["dagsterLibraryVersions"]
            }
            for entry in self.ask(query)["workspaceOrError"]["locationEntries"]
        }

    def shown(self, location: str, resource: str) -> Json:
        """What the page of a resource shows of its settings."""
        selector = {
            "repositoryName": "__repository__",
            "repositoryLocationName": location,
            "resourceName": resource,
        }
        query = """query($it: ResourceSelector!) {
            it: topLevelResourceDetailsOrError(resourceSelector: $it) {
              ... on ResourceDetails { configuredValues { key value } } ... on Error { message } } }"""
        values = self._done(query, it=selector)["configuredValues"]
        return {one["key"]: one["value"] for one in values}

    # --- runs --------------------------------------------------------------------------------------

    def launch(
        self,
        location: str,
        asset: str | Sequence[str],
        partition: str | None = None,
        *,
        in_process: bool = False,
        check: str | None = None,
    ) -> str:
        """Starts a run of assets, of one of their partitions, or of one of an asset's checks; returns the run's id."""
        paths = [{"path": [key]} for key in ([asset] if isinstance(asset, str) else asset)]
        tags = {} if partition is None else {"dagster/partition": partition}
        params = {
            "selector": {
                "jobName": "__ASSET_JOB",
                "repositoryName": "__repository__",
                "repositoryLocationName": location,
                "assetSelection": [] if check else paths,
                "assetCheckSelection": [{"assetKey": paths[0], "name": check}] if check else None,
            },
            "executionMetadata": {"tags": _pairs(tags)},
            "runConfigData": _IN_PROCESS if in_process else {},
        }
        query = """mutation($params: ExecutionParams!) { it: launchRun(executionParams: $params) {
            ... on LaunchRunSuccess { run { runId } } ... on Error { message } } }"""
        return str(self._done(query, params=params)["run"]["runId"])

    def reexecute(self, run_id: str, strategy: str) -> str:
        """Runs a run again, ``ALL_STEPS`` or ``FROM_FAILURE``; returns the new one's id."""
        query = """mutation($params: ReexecutionParams!) {
            it: launchRunReexecution(reexecutionParams: $params) {
              ... on LaunchRunSuccess { run { runId } } ... on Error { message } } }"""
        params = {"parentRunId": run_id, "strategy": strategy}
        return str(self._done(query, params=params)["run"]["runId"])

    def run(self, run_id: str) -> Json:
        """A run: its status and tags, when it began, and how its steps have failed."""
        query = """query($id: ID!) { it: runOrError(runId: $id) { ... on Run { runId status startTime
            tags { key value } eventConnection(limit: 1000) { events { __typename
              ... on MessageEvent { message }
              ... on ExecutionStepFailureEvent { error { message errorChain { error { message } } }
                failureMetadata { description } } } } } ... on Error { message } } }"""
        return self._done(query, id=run_id)

    def messages(self, run_id: str) -> str:
        """What the events of a run say."""
        events = self.run(run_id)["eventConnection"]["events"]
        return "\n".join(str(event.get("message", "")) for event in events)

    def failures(self, run_id: str) -> list[str]:
        """How the steps of a run have failed, also those that have been tried again."""
        found = []
        for event in self.run(run_id)["eventConnection"]["events"]:
            if error := event.get("error"):
                told = [error, *(link["error"] for link in error["errorChain"])]
                found.append("\n".join(one["message"] for one in told))
        return found

    def await_run(self, run_id: str, status: str = "SUCCESS") -> Json:
        """Waits until a run has come to a status; fails when it has ended otherwise."""

        def there() -> Json | None:
            run = self.run(run_id)
            if run["status"] == status:
                return run
            assert run["status"] not in ("SUCCESS", "FAILURE", "CANCELED"), self.story(run_id)
            return None

        return self.until(there, lambda: f"{status}:\n{self.story(run_id)}")

    def await_end(self, run_id: str, timeout_s: float) -> Json:
        """Waits until a run has ended, well or not."""

        def over() -> Json | None:
            run = self.run(run_id)
            return run if run["status"] in ("SUCCESS", "FAILURE", "CANCELED") else None

        return self.until(over, lambda: f"an end:\n{self.story(run_id)}", timeout_s)

    # --- backfills ---------------------------------------------------------------------------------

    def backfill(self, asset: str, partitions: Sequence[str], *, in_process: bool = False) -> str:
        """Starts a backfill of an asset's partitions, cut into runs by its own policy; returns its id."""
        params = {
            "assetSelection": [{"path": [asset]}],
            "partitionNames": list(partitions),
            "runConfigData": _IN_PROCESS if in_process else {},
        }
        return str(self._backfill(params)["backfillId"])

    def backfill_job(self, location: str, job: str, partitions: Sequence[str]) -> list[str]:
        """Starts a run of a job for each partition, in this order; returns the runs' ids."""
        repository = {"repositoryName": "__repository__", "repositoryLocationName": location}
        params = {
            "selector": {
                "partitionSetName": f"{job}_partition_set",
                "repositorySelector": repository,
            },
            "partitionNames": list(partitions),
            "runConfigData": _IN_PROCESS,
            "forceSynchronousSubmission": True,
        }
        return list(map(str, self._backfill(params)["launchedRunIds"]))

    def _backfill(self, params: Json) -> Json:
        query = """mutation($params: LaunchBackfillParams!) {
            it: launchPartitionBackfill(backfillParams: $params) {
              ... on LaunchBackfillSuccess { backfillId launchedRunIds }
              ... on Error { message } } }"""
        return self._done(query, params=params)

    def await_backfill(self, backfill_id: str) -> list[Json]:
        """Waits until all of a backfill is materialised; its runs, in the order in which they began."""
        query = """query($id: String!) { it: partitionBackfillOrError(backfillId: $id) {
            ... on PartitionBackfill { status error { message } runs(limit: 100) {
              runId status startTime tags { key value } } } ... on Error { message } } }"""

        def over() -> list[Json] | None:
            found = self._done(query, id=backfill_id)
            runs: list[Json] = found["runs"]
            stories = "\n".join(self.story(r["runId"]) for r in runs if r["status"] == "FAILURE")
            assert "FAIL" not in found["status"], f"{found}\n{stories}"
            good = found["status"] == "COMPLETED_SUCCESS"
            return sorted(runs, key=lambda run: run["startTime"]) if good else None

        return self.until(over, lambda: f"a backfill: {self._done(query, id=backfill_id)}")

    # --- what is told ------------------------------------------------------------------------------

    def told(self, asset: str) -> dict[str | None, list[Json]]:
        """The materialisations of each partition, the newest first: their metadata, and ``run_id``."""
        query = f"""query($key: AssetKeyInput!) {{ it: assetOrError(assetKey: $key) {{
            ... on Asset {{ assetMaterializations(limit: 1000) {{ runId partition
              tags {{ key value }} {_METADATA} }} }} ... on Error {{ message }} }} }}"""
        found: dict[str | None, list[Json]] = {}
        for event in self._done(query, key={"path": [asset]})["assetMaterializations"]:
            values: Json = {"run_id": event["runId"]}
            values |= {tag["key"]: tag["value"] for tag in event["tags"]}
            for entry in event["metadataEntries"]:
                kinds = ("text", "intValue", "floatValue", "boolValue")
                known = [entry[kind] for kind in kinds if kind in entry]
                values[entry["label"]] = known[0] if known else None
            found.setdefault(event["partition"], []).append(values)
        return found

    def start_sensor(self, location: str, sensor: str) -> None:
        """Has the daemon look at a sensor from now on."""
        query = """mutation($it: SensorSelector!) { it: startSensor(sensorSelector: $it) {
            ... on Sensor { name } ... on Error { message } } }"""
        self._done(query, it=_sensor(location, sensor))

    def ticks(self, location: str, sensor: str) -> list[Json]:
        """A sensor's looks, the newest first: status, the runs asked for, and why none."""
        query = """query($it: SensorSelector!) { it: sensorOrError(sensorSelector: $it) {
            ... on Sensor { sensorState { ticks(limit: 200) { status runIds skipReason cursor
              error { message } } } } ... on Error { message } } }"""
        found: list[Json] = self._done(query, it=_sensor(location, sensor))["sensorState"]["ticks"]
        return found

    # --- the way there -----------------------------------------------------------------------------

    def ask(self, query: str, **variables: Any) -> Json:
        """One question to the API."""
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with self._opener.open(request, timeout=_REQUEST_TIMEOUT_S) as answer:
            found = json.load(answer)
        assert "errors" not in found, found["errors"]
        data: Json = found["data"]
        return data

    def _done(self, query: str, **variables: Any) -> Json:
        """The answer named ``it``; fails when that is an error."""
        found: Json = self.ask(query, **variables)["it"]
        assert "message" not in found, found["message"]
        return found

    def until(
        self, find: Callable[[], T | None], what: Callable[[], str], timeout_s: float = _TIMEOUT_S
    ) -> T:
        """Asks again and again until there is an answer."""
        deadline = time.monotonic() + timeout_s
        while not (found := find()):
            assert self._process.poll() is None, f"Dagster has ended:\n{self.log_tail()}"
            assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what()}"
            time.sleep(_LOOK_S)
        return found

    def await_loaded(self, locations: int) -> None:
        """Waits until all code locations are there, and every daemon says that it is well."""
        query = "{ instance { daemonHealth { allDaemonStatuses { required healthy } } } }"

        def loaded() -> bool:
            with contextlib.suppress(OSError):
                health = self.ask(query)["instance"]["daemonHealth"]["allDaemonStatuses"]
                well = all(one["healthy"] for one in health if one["required"])
                return well and len(self.locations()) == locations
            return False

        self.until(loaded, lambda: f"Dagster to be well:\n{self.log_tail()}", _START_TIMEOUT_S)

    def log_tail(self) -> str:
        """The last lines of what its processes have written."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def story(self, run_id: str) -> str:
        """What has become of a run."""
        run = self.run(run_id)
        lines = [f"run {run_id} is {run['status']}:"]
        lines += [f"- {event.get('message')}" for event in run["eventConnection"]["events"]]
        return "\n".join([*lines[-_LOG_LINES:], *self.failures(run_id)])


@contextmanager
def dagster_dev(home: Path, workspace: str, environment: Mapping[str, str]) -> Iterator[Dagster]:
    """A whole Dagster: web server, daemon and a server for each code location; none of it is left at the end.

    Args:
        home: an empty folder for its databases, logs and settings.
        workspace: the text of a workspace file.
        environment: more variables for it and all runs.
    """
    [port] = free_ports(1)
    (home / "dagster.yaml").write_text(_SETTINGS)
    (home / "workspace.yaml").write_text(workspace)
    variables = {name: value for name, value in os.environ.items() if "DAGSTER" not in name} | {
        "DAGSTER_HOME": str(home),
        # How long a server of code may take to answer; a minute else, which a busy machine needs.
        "DAGSTER_GRPC_TIMEOUT_SECONDS": "300",
        # `dagster dev` warns that `dg dev` is to be used, which wants one project.
        "PYTHONWARNINGS": "ignore",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        **environment,
    }
    log = home / "dev.log"
    where = [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workspace",
        str(home / "workspace.yaml"),
    ]
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", *where],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=home,
            start_new_session=True,
        )
    dagster = Dagster(f"http://127.0.0.1:{port}", log, process)
    try:
        dagster.await_loaded(workspace.count("location_name:"))
        yield dagster
    finally:
        end_session(process, _END_TIMEOUT_S)


def _pairs(tags: Mapping[str, str]) -> list[Json]:
    return [{"key": key, "value": value} for key, value in tags.items()]


def _sensor(location: str, name: str) -> Json:
    return {
        "repositoryName": "__repository__",
        "repositoryLocationName": location,
        "sensorName": name,
    }
