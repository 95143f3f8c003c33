"""What a token with the verb read alone can do to others, through HTTP: as little as its line says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from kafka_ordered_ops.relay.http.access import add_entry, new_token
from kafka_ordered_ops.relay.http.server import Listening
from kafka_ordered_ops.relay.limits import TokenLimits
from kafka_ordered_ops.relay.rights import Verb
from tests.support.relay_fleet import await_true
from tests.support.relay_server import Running, serving
from tests.support.relay_servers import relay
from tests.support.worlds import World

RECORDS = 20


class Callers:
    """A server of one topic, and clients with tokens of their own."""

    def __init__(self, running: Running, file: Path, stack: ExitStack) -> None:
        self._running, self._file, self._stack = running, file, stack

    def client(self, name: str, **allowed: Any) -> httpx.Client:
        """A client with a new token."""
        usual: dict[str, Any] = {
            "topics": ["orders-*"],
            "groups": ["*"],
            "verbs": [Verb.READ, Verb.ACKNOWLEDGE],
        }
        token, entry = new_token(name, **(usual | allowed))
        add_entry(self._file, entry)
        headers = {"authorization": f"Bearer {token}"}
        made = httpx.Client(base_url=self._running.url, headers=headers, timeout=40)
        return self._stack.enter_context(made)

    def guest(self, **allowed: Any) -> httpx.Client:
        """A client that may read alone."""
        return self.client("guest", verbs=[Verb.READ], **allowed)

    def worker(self) -> httpx.Client:
        """A client that may acknowledge as well."""
        return self.client("worker")


@pytest.fixture
def callers(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callers]:
    """A server with a dead-letter topic, ready."""
    monkeypatch.setattr("kafka_ordered_ops.relay.http.access._LOOK_S", 0.0)
    world.create("orders", 2)
    world.create("dead")
    for partition in range(2):
        world.write("orders", partition, *range(RECORDS // 2))
    file = tmp_path / "tokens"
    file.touch(0o600)
    options: dict[str, Any] = {"attempts_max": 2, "dead_letter_topic": world.named("dead")}
    with (
        serving(
            Listening(port=0, tokens=file), lambda: relay(world, "orders", **options)
        ) as running,
        ExitStack() as stack,
    ):
        made = Callers(running, file, stack)
        worker = made.worker()

        def is_owned() -> bool:
            status = worker.get("/v1/status").json()
            return status["ready"] and all(one["is_mine"] for one in status["partitions"])

        await_true(is_owned)
        yield made


def read(http: httpx.Client, group: str = "billing", **given: Any) -> list[dict[str, Any]]:
    """The records of one read, with their attempts."""
    body = {"group": group, "records_max": 1_000, "wait_s": 2, "lease_s": 60} | given
    answer = http.post("/v1/read", json=body)
    assert answer.status_code == 200, answer.text
    return [
        record | {"attempt": lease["attempt"]}
        for lease in answer.json()["leases"]
        for record in lease["records"]
    ]


def read_all(http: httpx.Client, count: int, **given: Any) -> list[dict[str, Any]]:
    """Read until so many records are there."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += read(http, **given)
    return found


@pytest.mark.slow
def test_it_ends_no_record_of_a_group(world: World, callers: Callers) -> None:
    """It lets every lease of the group end, more often than there are attempts: the worker gets all, for the first time."""
    guest = callers.guest()
    for _ in range(4):
        assert len(read_all(guest, RECORDS, lease_s=1, wait_s=5)) == RECORDS
    worker = callers.worker()
    found = read_all(worker, RECORDS, wait_s=5)
    assert len(found) == RECORDS
    assert {one["attempt"] for one in found} == {1}
    [*parts] = worker.get("/v1/groups/billing").json()["partitions"]
    assert [(one["base"], one["acknowledged"]) for one in parts] == [(0, 0), (0, 0)]
    assert world.stored("dead") == []


@pytest.mark.slow
def test_it_holds_what_its_line_allows(callers: Callers) -> None:
    """As many records, for as long: the others are the worker's at once, and these soon."""
    limits = TokenLimits(pending_max=5, lease_s_max=6.0)
    guest = callers.guest(limits=limits)
    body = {"group": "billing", "records_max": 1_000}
    assert guest.post("/v1/read", json=body | {"lease_s": 3_600}).status_code == 403
    assert len(read_all(guest, 5, lease_s=6)) == 5
    answer = guest.post("/v1/read", json=body | {"lease_s": 6})
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "RelayLimitError")
    worker = callers.worker()
    began = time.monotonic()
    found = read_all(worker, RECORDS - 5)
    found += read_all(worker, 5)
    assert len(found) == RECORDS
    assert time.monotonic() - began < 30


def test_it_does_not_reach_a_group_that_is_not_in_its_line(callers: Callers) -> None:
    """Neither its records nor its progress."""
    worker = callers.worker()
    assert len(read_all(worker, 1, records_max=1)) == 1
    guest = callers.guest(groups=["guests-*"])
    assert guest.post("/v1/read", json={"group": "billing"}).status_code == 403
    assert guest.get("/v1/groups/billing").status_code == 403
    assert "billing" not in guest.get("/v1/status").text + guest.get("/metrics").text
    assert len(read_all(guest, RECORDS, group="guests-1")) == RECORDS


@pytest.mark.slow
def test_it_shuts_no_group_out(callers: Callers) -> None:
    """It asks for more groups than a server reads, at the same time: others still begin theirs."""
    limits = TokenLimits(groups_max=3)
    guest = callers.guest(limits=limits)

    def status(number: int) -> int:
        return guest.post("/v1/read", json={"group": f"x{number}", "records_max": 1}).status_code

    with ThreadPoolExecutor(10) as pool:
        codes = Counter(pool.map(status, range(110)))
    assert codes[200] <= 3
    assert codes[429] >= 107
    worker = callers.worker()
    assert len(read_all(worker, RECORDS, group="payments")) == RECORDS
