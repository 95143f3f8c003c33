"""A server that starts: it answers from the first moment, and serves when it has read its logs."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import httpx
import pytest

from kafka_ordered_ops import BrokerUnreachableError, NotReadyError
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.relay.engine import requests
from kafka_ordered_ops.relay.engine.replay import Replay
from kafka_ordered_ops.relay.http.server import Listening, RelayServer
from kafka_ordered_ops.relay.options import RelayOptions
from kafka_ordered_ops.relay.service import Relay
from tests.support.cli_support import NOWHERE
from tests.support.memory_world import MemoryWorld
from tests.support.relay_fake import FakeService
from tests.support.relay_fleet import await_true
from tests.support.relay_server import free_port, serving
from tests.support.relay_servers import (
    acknowledge,
    places,
    read_all,
    relay,
    run,
    until,
)
from tests.support.relay_servers import serving as serving_of

CALLS = {
    "/v1/read": {"group": "g"},
    "/v1/acknowledge": {"leases": [{"lease": "a"}]},
    "/v1/cancel": {"leases": [{"lease": "a"}]},
    "/v1/extend": {"leases": ["a"]},
}


@pytest.mark.slow
def test_calls_while_brokers_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is alive and not ready, says so to every call, and ends with the error when its time is over."""
    monkeypatch.setattr(requests, "TIMEOUT_S", 2.0)
    options = RelayOptions(topics=frozenset({"orders"}))
    server = RelayServer(Listening(port=0), lambda: Relay(NOWHERE, options))
    ended: list[BaseException] = []

    def serve() -> None:
        try:
            server.run()
        except BrokerUnreachableError as error:
            ended.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    with httpx.Client(base_url=server.url, timeout=10) as http:
        assert http.get("/health").json() == {"ok": True}
        ready = http.get("/ready")
        assert (ready.status_code, ready.json()) == (
            503,
            {"ready": False, "replayed": 0, "replayed_of": None},
        )
        assert not http.get("/v1/status").json()["ready"]
        assert http.get("/metrics").status_code == 200
        for path, body in CALLS.items():
            answer = http.post(path, json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), path
            assert answer.json()["error"]["type"] == "NotReadyError", path
            assert "is starting" in answer.json()["error"]["message"]
        assert not ended
    thread.join(20)
    assert len(ended) == 1


def test_exit_code_without_brokers(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends within the time for a request, and names the error."""
    monkeypatch.setattr(requests, "TIMEOUT_S", 0.5)
    assert main(["relay", "serve", "orders", "-b", NOWHERE, "--bind", "127.0.0.1:0"]) == 1
    assert "BrokerUnreachableError" in capfd.readouterr().err


@pytest.mark.slow
def test_stopped_while_it_starts() -> None:
    """A server that still waits for its brokers ends at SIGTERM, at once and well."""
    port = free_port()
    command = [sys.executable, "-m", "kafka_ordered_ops.cli", "relay", "serve", "orders"]
    process = subprocess.Popen([*command, "-b", NOWHERE, "--bind", f"127.0.0.1:{port}"])
    try:
        await_true(partial(_is_alive, port))
        process.send_signal(signal.SIGTERM)
        # Its request has 10 s.
        assert process.wait(7) == 0
    finally:
        process.kill()
        process.wait()


def _is_alive(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_a_start_that_is_given_up(memory: MemoryWorld) -> None:
    """The server takes part in no group afterwards."""
    memory.create("orders")

    async def scenario() -> None:
        one = relay(memory)
        starting = asyncio.create_task(one.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        engine = one._engine
        assert engine is not None
        await until(lambda: not engine._thread.is_alive())
        with open_lookup(memory.settings) as lookup:
            assert lookup.group_members(memory.named("relay")) == []

    run(scenario())


def test_server_is_ready_when_its_service_has_started() -> None:
    """The same server answers before and after; its service is started once, and closed."""
    service = FakeService()
    service.is_ready = False
    go_on = threading.Event()

    async def starting() -> None:
        await asyncio.to_thread(go_on.wait)
        service.is_ready = True

    service.starting = starting
    with serving(Listening(port=0), service) as running, httpx.Client(base_url=running.url) as http:
        assert http.get("/health").status_code == 200
        assert http.get("/ready").status_code == 503
        go_on.set()
        await_true(lambda: http.get("/ready").status_code == 200)


def test_a_partition_is_served_when_its_own_log_is_read(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another log is still being read, the server is not ready and says how far it is, but hands out records."""
    memory.create("orders", 2)
    for partition in range(2):
        memory.write("orders", partition, *range(5))
    held: list[Any] = []
    apply = Replay._apply

    def hold(self: Replay, decoded: Any) -> None:
        if decoded.tp.partition == 1:
            held.append(partial(apply, self, decoded))
        else:
            apply(self, decoded)

    async def scenario() -> None:
        async with serving_of(memory) as one:
            await acknowledge(one, await read_all(one, 4, records_max=2))
        monkeypatch.setattr(Replay, "_apply", hold)
        async with relay(memory) as one:
            found = await read_all_of_ready(one)
            assert {partition for partition, _ in places(found)} == {0}
            assert not one.is_ready
            await until(lambda: progress(one) == [(True, True), (False, False)], one.status)
            engine = one._engine
            assert engine is not None
            assert "of its logs" in str(engine.not_ready())
            monkeypatch.setattr(Replay, "_apply", apply)
            for job in held:
                engine.post(job)
            await until(lambda: one.is_ready)
            found += await read_all(one, 6 - len(places(found)))
            assert len(set(places(found))) == 6

    def progress(server: Relay) -> list[tuple[bool, bool]]:
        return [
            (bool(one.replayed), one.replayed == one.replayed_of)
            for one in server.status()
            if one.replayed_of
        ]

    async def read_all_of_ready(one: Relay) -> Any:
        while True:
            try:
                return await read_all(one, 1)
            except NotReadyError:
                await asyncio.sleep(0.02)

    run(scenario())
