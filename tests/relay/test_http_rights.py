"""What a token allows: its groups, its limits, and what it shows of all others: nothing."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.processing import Record
from kafka_ordered_ops.relay.http.access import add_entry, new_token
from kafka_ordered_ops.relay.http.callers import Callers
from kafka_ordered_ops.relay.http.server import Listening
from kafka_ordered_ops.relay.limits import Limits, TokenLimits
from kafka_ordered_ops.relay.ports import Reader
from kafka_ordered_ops.relay.rights import Names, Verb
from tests.support.memory_world import MemoryWorld
from tests.support.relay_fake import FakeService
from tests.support.relay_fleet import await_true
from tests.support.relay_server import Running, request_bytes, serving

LEASES_MAX_S = 600.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A tokens file."""
    return tmp_path / "tokens"


@pytest.fixture
def running(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server with tokens, of two topics and two groups, that looks at its file for every call; with few turns."""
    monkeypatch.setattr("kafka_ordered_ops.relay.http.access._LOOK_S", 0.0)
    monkeypatch.setattr("kafka_ordered_ops.relay.http.operations.ANSWERS_MAX", 2)
    monkeypatch.setattr("kafka_ordered_ops.relay.http.app.PLANS_MAX", 1)
    token_of(file, "first")
    service = FakeService(("orders", "payments"))
    service.known = ["audit", "billing"]
    limits = Limits(lease_s_max=LEASES_MAX_S)
    with serving(Listening(port=0, tokens=file, limits=limits), service) as made:
        yield made


def token_of(file: Path, name: str, **allowed: Any) -> str:
    """A new token of the file."""
    limits = {key: value for key, value in allowed.items() if key.endswith("_max")}
    rights = {key: value for key, value in allowed.items() if key not in limits}
    usual: dict[str, Any] = {"topics": ["*"], "groups": ["*"], "verbs": list(Verb)}
    token, entry = new_token(name, limits=TokenLimits(**limits), **(usual | rights))
    add_entry(file, entry)
    return token


def client(running: Running, file: Path, name: str, **allowed: Any) -> httpx.Client:
    """A client with a new token."""
    headers = {"authorization": f"Bearer {token_of(file, name, **allowed)}"}
    return httpx.Client(base_url=running.url, headers=headers, timeout=20)


def add(running: Running, *offsets: int) -> None:
    """More to hand out."""
    records = [Record("orders", 0, one, one, None, b"") for one in offsets]
    running.call(lambda: running.service.add(*records))


@given(
    names=st.sets(st.text("ab", max_size=3), min_size=1, max_size=3),
    prefixes=st.sets(st.text("ab", max_size=2), max_size=2),
    name=st.text("ab", min_size=1, max_size=4),
)
def test_names_and_prefixes(names: set[str], prefixes: set[str], name: str) -> None:
    """A name in full allows itself alone, and a prefix all that begins with it."""
    patterns = {one or "c" for one in names} | {f"{one}*" for one in prefixes}
    allowed = Names(frozenset(patterns), "group")
    assert allowed.allow(name) == (name in names or any(map(name.startswith, prefixes)))
    assert allowed.is_all == ("" in prefixes)


def test_names_that_allow_nothing() -> None:
    """Nobody gets a token for no topic or no group by mistake."""
    with pytest.raises(ConfigError, match="'\\*' for all"):
        Names(frozenset(), "group")


def test_groups(running: Running, file: Path) -> None:
    """A token reads for its groups, acknowledges leases of them, and opens windows with their names; no others."""
    add(running, 1)
    with client(running, file, "audit", groups=["audit", "hourly-*"]) as http:
        for group in ("billing", "audit-2", "hourl", "Audit"):
            answer = http.post("/v1/read", json={"group": group})
            assert answer.status_code == 403, group
            assert f"the group {group!r}" in answer.json()["error"]["message"]
        [lease] = http.post("/v1/read", json={"group": "audit"}).json()["leases"]
        assert http.post("/v1/read", json={"group": "hourly-noon"}).status_code == 200
    mine = {"leases": [{"lease": lease["lease"]}]}
    with client(running, file, "billing", groups=["billing"]) as http:
        for path in ("/v1/acknowledge", "/v1/cancel"):
            assert http.post(path, json=mine).status_code == 403
        extended = {"leases": [lease["lease"]]}
        assert http.post("/v1/extend", json=extended).status_code == 403
    assert running.service.acknowledged == []
    assert running.service.cancelled == []


def test_windows_of_other_groups(running: Running, file: Path, memory: MemoryWorld) -> None:
    """A window is opened under its own id, or another name: the token must allow the group that begins."""
    memory.create("orders")
    memory.write("orders", 0, *range(4))
    plan = memory.plan("hourly-noon", 10, starting_offsets="earliest")
    assert plan is not None
    with client(running, file, "scheduler", groups=["hourly-*"]) as http:
        for group, status in ((None, 200), ("hourly-other", 200), ("billing", 403)):
            body = {"plan": plan.to_json(), "group": group}
            assert http.post("/v1/windows", json=body).status_code == status
    with client(running, file, "others", groups=["billing"]) as http:
        body = {"plan": plan.to_json(), "group": None}
        assert http.post("/v1/windows", json=body).status_code == 403
    assert [group for _, group in running.service.windows] == [None, "hourly-other"]


def test_only_what_a_token_allows_is_shown(
    running: Running, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Status, groups and metrics have nothing of other topics, other groups, and the server as a whole."""
    with client(running, file, "all") as http:
        assert len(http.get("/v1/status").json()["partitions"]) == 4
        assert "requests_total" in http.get("/metrics").text
    with client(running, file, "one", topics=["pay*"], groups=["audit"]) as http:
        [found] = http.get("/v1/status").json()["partitions"]
        assert (found["topic"], found["group"], found["pending"]) == ("payments", "audit", 3)
        assert http.get("/v1/groups/audit").json()["partitions"] == [found]
        caplog.clear()
        assert http.get("/v1/groups/billing").status_code == 403
        assert "'/v1/groups/billing'" in caplog.text
        shown = http.get("/metrics").text
        assert 'topic="payments",partition="0",group="audit"' in shown
        for other in ("orders", "billing", "requests_total", "delivered", "denied", "connections "):
            assert other not in shown
    with client(running, file, "other", topics=["orders"], groups=["later"]) as http:
        [found] = http.get("/v1/status").json()["partitions"]
        assert (found["topic"], found["group"], found["base"]) == ("orders", None, None)


def test_a_token_to_look_at_the_server(running: Running, file: Path) -> None:
    """A monitor need not be able to take records."""
    with client(running, file, "prometheus", verbs=[Verb.DESCRIBE]) as http:
        assert http.get("/v1/status").status_code == 200
        assert "requests_total" in http.get("/metrics").text
        for path, body in (
            ("/v1/read", {"group": "billing"}),
            ("/v1/acknowledge", {"leases": [{"lease": "x"}]}),
            ("/v1/windows", {"plan": {}}),
        ):
            assert http.post(path, json=body).status_code == 403


def test_topics_that_are_not_served(running: Running, file: Path) -> None:
    """The error names those that the token may use, and no others."""
    with client(running, file, "pay", topics=["pay*"]) as http:
        body = {"group": "billing", "topics": ["paypal"]}
        answer = http.post("/v1/read", json=body)
        assert answer.status_code == 404
        assert "payments" in answer.text
        assert "orders" not in answer.text


def test_longest_lease(running: Running, file: Path) -> None:
    """A read and an extension for longer are refused: beyond the server's limit, and beyond the token's."""
    add(running, 1)
    with client(running, file, "brief", lease_s_max=30.0) as http:
        body = {"group": "billing", "lease_s": 31}
        answer = http.post("/v1/read", json=body)
        assert (answer.status_code, answer.json()["error"]["retriable"]) == (403, False)
        assert "30 s at most" in answer.text
        [lease] = http.post("/v1/read", json=body | {"lease_s": 30}).json()["leases"]
        extended = {"leases": [lease["lease"]], "lease_s": 31}
        assert http.post("/v1/extend", json=extended).status_code == 403
        assert http.post("/v1/extend", json=extended | {"lease_s": 30}).status_code == 200
    with client(running, file, "long") as http:
        answer = http.post("/v1/read", json={"group": "billing", "lease_s": LEASES_MAX_S + 1})
        assert (answer.status_code, answer.json()["error"]["retriable"]) == (400, False)
        assert "600 s at most" in answer.text
        extended = {"leases": [lease["lease"]], "lease_s": LEASES_MAX_S + 1}
        assert http.post("/v1/extend", json=extended).status_code == 400


def test_who_reads(running: Running, file: Path) -> None:
    """The service learns the bounds of a token, and whether its leases count as attempts."""
    with client(running, file, "guest", verbs=[Verb.READ], pending_max=7, groups_max=3) as http:
        http.post("/v1/read", json={"group": "billing"})
        assert running.service.read_by == Reader("guest", False, 7, 3, 1_000)
    with client(running, file, "worker", verbs=[Verb.READ, Verb.ACKNOWLEDGE]) as http:
        http.post("/v1/read", json={"group": "billing"})
        assert running.service.read_by is not None
        assert running.service.read_by.counts


def test_too_many_requests(running: Running, file: Path) -> None:
    """Beyond its rate a token is refused for a while, whatever it asks; others are not."""
    with client(running, file, "busy", requests_max=5) as http:
        answers = [http.get("/v1/status").status_code for _ in range(3)]
        answers += [http.post("/v1/read", json={"group": "g"}).status_code for _ in range(7)]
        assert set(answers) == {200, 429}
        refused = http.post("/v1/read", json={"group": "g"})
        while refused.status_code != 429:
            refused = http.post("/v1/read", json={"group": "g"})
        error = refused.json()["error"]
        assert (error["type"], error["retriable"]) == ("RelayLimitError", True)
        assert "'requests'" in error["message"]
        assert refused.headers["retry-after"] == "1"
        with client(running, file, "calm") as other:
            assert other.get("/v1/status").status_code == 200
        await_true(lambda: http.get("/v1/status").status_code == 200)


def test_rate_over_time(tmp_path: Path) -> None:
    """As many requests as the rate in each second, and no more at once after a long silence."""
    now = [100.0]
    callers = Callers(None, is_local=False, clock=lambda: now[0])
    _, entry = new_token(
        "a", topics=["*"], groups=["*"], verbs=[Verb.READ], limits=TokenLimits(requests_max=10)
    )

    def sent(most: int) -> int:
        count = 0
        for _ in range(most):
            try:
                callers.count(entry.access)
            except Exception:  # noqa: BLE001 - counted below
                continue
            count += 1
        return count

    assert sent(50) == 10
    total = 0
    for _ in range(100):
        now[0] += 0.1
        total += sent(5)
    assert 99 <= total <= 101
    now[0] += 3_600
    assert sent(50) == 10


def test_the_log_of_denied_calls_is_bounded(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """Callers without a token cannot fill the disk: a line says how many were left out, and the metric has all."""
    with httpx.Client(base_url=running.url) as http:
        for _ in range(60):
            assert http.post("/v1/read", json={"group": "g"}).status_code == 401
        time.sleep(0.2)
        http.post("/v1/read", json={"group": "g"})
    lines = [one.getMessage() for one in caplog.records if one.name.endswith("relay.audit")]
    assert 20 <= len(lines) < 60
    left_out = sum(int(line.split()[1]) for line in lines if "more calls" in line)
    assert left_out + len([line for line in lines if "more calls" not in line]) == 61


def test_slow_clients_of_one_token(running: Running, file: Path) -> None:
    """Large answers that nobody takes hold up those of their own token alone: memory has room for so many of each."""
    value = b"v" * 8_000_000
    found = [Record("orders", 0, at, at, None, value) for at in range(5)]
    running.call(lambda: running.service.add(*found))
    slow, quick = token_of(file, "slow"), token_of(file, "quick")
    body = {"group": "billing", "records_max": 1}
    held: list[socket.socket] = []
    try:
        for _ in range(3):
            connection = running.connect()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.sendall(request_bytes("/v1/read", body, token=slow))
            held.append(connection)
        await_true(lambda: len(running.service.leased) == 3)
        held[2].settimeout(0.7)
        with pytest.raises(TimeoutError):
            held[2].recv(10)
        headers = {"authorization": f"Bearer {quick}"}
        answer = httpx.post(f"{running.url}/v1/read", json=body, headers=headers, timeout=20)
        assert len(answer.content) > len(value)
        # An answer without records is none of them.
        small = {"authorization": f"Bearer {slow}"}
        assert httpx.get(f"{running.url}/v1/status", headers=small).status_code == 200
        held[0].close()
        held[2].settimeout(20)
        assert held[2].recv(12) == b"HTTP/1.1 200"
    finally:
        for one in held:
            one.close()


def test_plans_of_one_token(running: Running, file: Path) -> None:
    """A plan may be large: a client that sends one slowly holds up those of its own token alone."""
    slow, other = token_of(file, "slow"), token_of(file, "other")
    sent = request_bytes("/v1/windows", b" " * 5_000_000, token=slow)
    body: dict[str, Any] = {"plan": {}, "group": None}
    with running.connect() as first, running.connect() as second:
        first.sendall(sent[:300_000])
        time.sleep(0.1)
        second.sendall(request_bytes("/v1/windows", body, token=slow))
        second.settimeout(0.5)
        with pytest.raises(TimeoutError):
            second.recv(10)
        headers = {"authorization": f"Bearer {other}"}
        url = f"{running.url}/v1/windows"
        assert httpx.post(url, json=body, headers=headers).status_code == 400
        first.close()
        second.settimeout(20)
        assert second.recv(12) == b"HTTP/1.1 400"


def test_nothing_of_a_token_is_in_the_log(
    running: Running, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither of one that is refused by its rate, nor of one that asks for too much."""
    with caplog.at_level(logging.DEBUG):
        token = token_of(file, "busy", requests_max=1, groups=["a"])
        headers = {"authorization": f"Bearer {token}"}
        with httpx.Client(base_url=running.url, headers=headers) as http:
            for _ in range(4):
                http.post("/v1/read", content=json.dumps({"group": "b"}))
    assert token not in caplog.text
