"""The relay over HTTP: what it answers."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import (
    AccessDeniedError,
    ClosedError,
    CommitUnknownError,
    GroupInUseError,
    RelayLimitError,
    RelayUnavailableError,
)
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.processing import Record
from kafka_ordered_ops.relay.http import bodies
from kafka_ordered_ops.relay.http.server import Listening, RelayServer
from kafka_ordered_ops.relay.ports import Delivered
from tests.support.relay_fake import FakeService
from tests.support.relay_server import Running, request_bytes, serving

READ = {"group": "billing", "records_max": 10}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """A server for this machine alone."""
    with serving(Listening(port=0)) as made:
        yield made


@pytest.fixture(scope="module")
def http(running: Running) -> Iterator[httpx.Client]:
    """A client of it."""
    with httpx.Client(base_url=running.url, timeout=20) as client:
        yield client


def record(offset: int, value: bytes | None = b"v", **given: Any) -> Record:
    """A record of ``orders``."""
    return Record("orders", 0, offset, 1_700_000_000_000 + offset, b"k", value, **given)


def await_true(check: Any) -> None:
    """Waits until something holds."""
    ends_at = time.monotonic() + 20
    while not check():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def test_read_and_acknowledge(running: Running, http: httpx.Client) -> None:
    """Records have all that they had in Kafka, and their lease acknowledges all or some of them."""
    headers = (("name", b"\x00\xff"), ("name", None))
    running.call(
        lambda: running.service.add(record(3), record(4, None, headers=headers), record(6))
    )
    answer = http.post("/v1/read", json=READ).json()
    [lease] = answer["leases"]
    assert not answer["done"]
    assert (lease["topic"], lease["partition"], lease["attempt"]) == ("orders", 0, 1)
    assert [one["offset"] for one in lease["records"]] == [3, 4, 6]
    first, second, _ = lease["records"]
    assert b64decode(first["value"]) == b"v"
    assert first["timestamp_ms"] == 1_700_000_000_003
    assert second["value"] is None
    assert second["headers"] == [["name", "AP8="], ["name", None]]

    some = {"leases": [{"lease": lease["lease"], "offsets": [[3, 5]]}]}
    assert http.post("/v1/acknowledge", json=some).json() == {}
    assert running.service.acknowledged[-2:] == [("orders", 0, 3), ("orders", 0, 4)]
    rest = {"leases": [{"lease": lease["lease"]}]}
    assert http.post("/v1/cancel", json=rest).status_code == 200
    assert running.service.cancelled == [lease["lease"]]
    later = http.post("/v1/extend", json={"leases": [lease["lease"]], "lease_s": 600})
    assert later.json()["until_ms"][0] > lease["until_ms"]


def test_waiting_read_gets_the_first_record(running: Running, http: httpx.Client) -> None:
    """A read that waits returns as soon as there is a record, and without one after its wait."""
    assert http.post("/v1/read", json=READ | {"wait_s": 0.05}).json() == {
        "leases": [],
        "done": False,
    }
    running.loop.call_soon_threadsafe(
        lambda: running.loop.call_later(0.2, running.service.add, record(9))
    )
    began = time.monotonic()
    [lease] = http.post("/v1/read", json=READ | {"wait_s": 20}).json()["leases"]
    assert lease["records"][0]["offset"] == 9
    assert time.monotonic() - began < 10


def test_read_of_a_client_that_left_takes_nothing(running: Running, http: httpx.Client) -> None:
    """When the client of a waiting read is gone, the next record is for somebody else."""
    with running.connect() as connection:
        connection.sendall(request_bytes("/v1/read", READ | {"wait_s": 20}))
        await_true(lambda: running.service.readers == 1)
    await_true(lambda: running.service.readers == 0)
    running.call(lambda: running.service.add(record(11)))
    [lease] = http.post("/v1/read", json=READ).json()["leases"]
    assert lease["records"][0]["offset"] == 11


def test_arrow(running: Running, http: httpx.Client) -> None:
    """A client that accepts Arrow gets the same records as columns."""
    running.call(lambda: running.service.add(record(1), record(2, None, headers=(("h", b"x"),))))
    answer = http.post("/v1/read", json=READ, headers={"accept": bodies.ARROW_TYPE})
    assert answer.headers["content-type"] == bodies.ARROW_TYPE
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.schema.metadata == {b"done": b"false"}
    assert table["offset"].to_pylist() == [1, 2]
    assert table["value"].to_pylist() == [b"v", None]
    assert table["headers"].to_pylist() == [None, [{"key": "h", "value": b"x"}]]
    assert set(table["lease"].to_pylist()) <= set(running.service.leased)
    assert table.schema.equals(bodies.LEASED_SCHEMA)


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/v1/read", {}, 400, "ConfigError"),
        ("/v1/read", {"group": ""}, 400, "ConfigError"),
        ("/v1/read", {"group": "a\nb"}, 400, "ConfigError"),
        ("/v1/read", READ | {"records_max": 0}, 400, "ConfigError"),
        ("/v1/read", READ | {"records_max": 10_001}, 400, "ConfigError"),
        ("/v1/read", READ | {"wait_s": 30.5}, 400, "ConfigError"),
        ("/v1/read", READ | {"lease_s": 0.5}, 400, "ConfigError"),
        ("/v1/read", READ | {"lease_s": 3_601}, 400, "ConfigError"),
        ("/v1/read", READ | {"leese_s": 5}, 400, "ConfigError"),
        ("/v1/read", READ | {"topics": ["nothing"]}, 404, "UnknownTopicError"),
        ("/v1/read", b'{"group":"a","wait_s":NaN}', 400, "ConfigError"),
        ("/v1/read", READ | {"records_max": "5"}, 400, "ConfigError"),
        ("/v1/read", READ | {"records_max": True}, 400, "ConfigError"),
        ("/v1/read", READ | {"lease_s": "5"}, 400, "ConfigError"),
        ("/v1/read", b"{" * 5_000, 400, "ConfigError"),
        ("/v1/read", b"\xff", 400, "ConfigError"),
        ("/v1/acknowledge", {"leases": []}, 400, "ConfigError"),
        ("/v1/acknowledge", {"leases": [{"lease": "forged"}]}, 409, "LeaseError"),
        ("/v1/acknowledge", {"leases": [{"lease": "x", "offsets": [[5, 5]]}]}, 400, "ConfigError"),
        ("/v1/acknowledge", {"leases": [{"lease": "x", "offsets": [[-1, 5]]}]}, 400, "ConfigError"),
        ("/v1/extend", {"leases": ["forged"]}, 409, "LeaseError"),
        (
            "/v1/acknowledge",
            {"leases": [{"lease": "x", "offsets": [["1", 5]]}]},
            400,
            "ConfigError",
        ),
        ("/v1/windows", {"plan": {"version": 2}}, 400, "ConfigError"),
        ("/v1/windows", {"plan": {}, "group": 5}, 400, "ConfigError"),
        ("/v1/windows", b'{"plan":{"version":NaN}}', 400, "ConfigError"),
        ("/v1/windows", b'{"plan":{"version":18446744073709551616}}', 400, "ConfigError"),
        ("/v1/windows", b'{"plan":' + b'{"a":' * 5_000, 400, "ConfigError"),
        ("/v1/elsewhere", {}, 404, "HttpError"),
        ("/v1/read/", {}, 404, "HttpError"),
        ("/v1/status", {}, 405, "HttpError"),
    ],
)
def test_refused_requests(http: httpx.Client, path: str, body: Any, status: int, kind: str) -> None:
    """What no request may have is refused with its field, and nothing happens."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = http.post(path, content=content, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["retriable"]) == (status, kind, False)
    assert error["message"]


@given(body=st.binary(max_size=300) | st.text().map(str.encode))
def test_any_bytes_are_an_answer(http: httpx.Client, body: bytes) -> None:
    """No body makes the server fail."""
    for path in ("/v1/read", "/v1/acknowledge", "/v1/extend", "/v1/windows"):
        answer = http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code in {400, 409}


@pytest.mark.parametrize(
    ("failure", "status", "kind", "is_retriable"),
    [
        (RelayUnavailableError("no broker"), 503, "RelayUnavailableError", True),
        (CommitUnknownError("who knows"), 503, "CommitUnknownError", True),
        (ClosedError("closed"), 503, "RelayUnavailableError", True),
        (RelayLimitError("too many"), 429, "RelayLimitError", True),
        (GroupInUseError("a program of streams", retriable=False), 409, "GroupInUseError", False),
        (AccessDeniedError("no more groups"), 403, "AccessDeniedError", False),
        (RuntimeError("a password"), 500, "InternalError", False),
    ],
)
def test_failures_of_the_service(
    running: Running,
    http: httpx.Client,
    failure: Exception,
    status: int,
    kind: str,
    is_retriable: bool,
) -> None:
    """A client learns whether to try again, and nothing of a bug's text."""
    running.service.failure = failure
    try:
        answer = http.post("/v1/read", json=READ)
    finally:
        running.service.failure = None
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["retriable"]) == (status, kind, is_retriable)
    assert ("retry-after" in answer.headers) == is_retriable
    assert "password" not in answer.text


def test_server_ends_with_its_service() -> None:
    """A server whose service has failed for good ends with that error, so that it is started again."""
    service = FakeService()
    server = RelayServer(Listening(port=0), lambda: service)
    service.ended_by = RelayUnavailableError("the group is gone")
    with pytest.raises(RelayUnavailableError, match="group is gone"):
        server.run()


def test_server_that_was_stopped_before_it_ran_ends_at_once() -> None:
    """The word of another thread counts also while there is nothing yet to stop."""
    service = FakeService()
    server = RelayServer(Listening(port=0), lambda: service)
    url = server.url
    server.stop()
    asyncio.run(asyncio.wait_for(server.serve(), 20))
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, timeout=20)


def test_not_ready(running: Running, http: httpx.Client) -> None:
    """Until the logs are read, a server is alive and not ready."""
    running.service.is_ready = False
    try:
        assert http.get("/health").status_code == 200
        ready = http.get("/ready")
        read = http.post("/v1/read", json=READ)
    finally:
        running.service.is_ready = True
    assert (ready.status_code, ready.json()["replayed"]) == (503, 10)
    assert (read.status_code, read.json()["error"]["type"]) == (503, "NotReadyError")
    assert http.get("/ready").status_code == 200


def test_status_and_metrics(running: Running, http: httpx.Client) -> None:
    """Both show the groups, and metrics are text that Prometheus reads."""
    [found] = http.get("/v1/status").json()["partitions"]
    assert (found["topic"], found["group"], found["pending"]) == ("orders", "billing", 3)
    assert http.get("/v1/groups/billing").json()["partitions"] == [found]
    for other in ("other", "a/b", "a%2Fb", "%00"):
        assert http.get(f"/v1/groups/{other}").json()["partitions"] == []
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert all(float(value) >= 0 for value in values.values())
    prefix = "kafka_ordered_ops_relay_"
    assert values[f'{prefix}pending_records{{topic="orders",partition="0",group="billing"}}'] == "3"
    assert values[f'{prefix}waiting_offsets{{topic="orders",partition="0",group="billing"}}'] == (
        "1250"
    )
    read = f'{prefix}request_seconds_bucket{{operation="read",le="+Inf"}}'
    assert float(values[read]) == float(
        values[f'{prefix}request_seconds_count{{operation="read"}}']
    )
    assert f"# TYPE {prefix}requests_total counter" in lines


def test_page_has_all_it_needs(http: httpx.Client) -> None:
    """The status page loads nothing from elsewhere, and its policy allows nothing else."""
    answer = http.get("/")
    assert "http://" not in answer.text
    assert "https://" not in answer.text
    assert "src=" not in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_openapi_describes_every_request(running: Running, http: httpx.Client) -> None:
    """The document is complete: every reference resolves, every call has its body and answers."""
    document = http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.")
    text = json.dumps(document)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]
    paths = document["paths"]
    assert set(paths) == {
        *("/v1/read", "/v1/acknowledge", "/v1/cancel", "/v1/extend", "/v1/windows"),
        *("/v1/status", "/v1/groups/{group}", "/health", "/ready", "/metrics"),
    }
    read = paths["/v1/read"]["post"]
    body = read["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert body == "#/components/schemas/ReadBody"
    assert set(read["responses"]["200"]["content"]) == {"application/json", bodies.ARROW_TYPE}
    assert read["responses"]["503"]["content"]["application/json"]["schema"]["$ref"]
    assert document["components"]["schemas"]["ReadBody"]["additionalProperties"] is False


def test_described_requests_are_those_that_are_served(running: Running) -> None:
    """A request gives the same answer through FastAPI as past it."""
    from kafka_ordered_ops.relay.http.api import ACCESS
    from kafka_ordered_ops.relay.http.app import RelayApp
    from kafka_ordered_ops.relay.http.callers import Callers
    from kafka_ordered_ops.relay.http.metrics import Metrics
    from kafka_ordered_ops.relay.http.protocol import Connections
    from kafka_ordered_ops.relay.limits import Limits
    from kafka_ordered_ops.relay.rights import EVERYTHING

    async def answers() -> list[Any]:
        limits = Limits()
        found = []
        for is_direct in (True, False):
            service = FakeService()
            service.add(record(1), record(2))
            metrics = Metrics(Connections(limits))
            app = RelayApp(service, Callers(None, is_local=True), metrics, limits)

            async def described(scope: Any, receive: Any, send: Any, app: Any = app) -> None:
                scope[ACCESS] = EVERYTHING
                await app.api(scope, receive, send)

            transport = httpx.ASGITransport(app if is_direct else described)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                read = (await client.post("/v1/read", json=READ)).json()
                read["leases"][0].pop("until_ms")
                lease = {"leases": [{"lease": read["leases"][0]["lease"]}]}
                done = await client.post("/v1/acknowledge", json=lease)
                found.append((read, done.json(), done.status_code, service.acknowledged))
        return found

    direct, described = asyncio.run(answers())
    assert direct == described


_VALUES = st.none() | st.binary(max_size=20)


@given(
    records=st.lists(
        st.builds(
            Record,
            st.just("orders"),
            st.integers(0, 3),
            st.integers(0, 2**62),
            st.integers(-(2**40), 2**42),
            _VALUES,
            _VALUES,
            st.lists(st.tuples(st.text(max_size=5), _VALUES), max_size=3).map(tuple),
            st.integers(1, 9),
        ),
        min_size=1,
        max_size=8,
    ),
    done=st.booleans(),
)
def test_both_forms_have_the_same_records(records: list[Record], done: bool) -> None:
    """Records survive JSON and Arrow, whatever is in them, and fit the description."""
    delivered = [
        Delivered(TopicPartition("orders", one.partition), [one], f"lease-{n}", n)
        for n, one in enumerate(records)
    ]
    answer = bodies.ReadAnswer.model_validate_json(bodies.read_json(delivered, done=done))
    as_json = [
        Record(
            lease.topic,
            lease.partition,
            one.offset,
            one.timestamp_ms,
            None if one.key is None else b64decode(one.key),
            None if one.value is None else b64decode(one.value),
            tuple((name, None if v is None else b64decode(v)) for name, v in one.headers),
            lease.attempt,
        )
        for lease in answer.leases
        for one in lease.records
    ]
    assert as_json == records
    assert answer.done == done
    stream = pa.ipc.open_stream(bodies.read_arrow(delivered, done=done))
    rows: list[Any] = stream.read_all().to_pylist()
    as_arrow = [
        Record(
            row["topic"],
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            tuple((one["key"], one["value"]) for one in row["headers"] or ()),
            row["attempt"],
        )
        for row in rows
    ]
    assert as_arrow == records
    assert [row["lease"] for row in rows] == [one.lease for one in delivered]
