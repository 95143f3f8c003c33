"""The relay's clients, against a server with a fake service."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, aclosing
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import (
    AccessDeniedError,
    ConfigError,
    LeaseError,
    RelayError,
    RelayLimitError,
    RelayUnavailableError,
    UnknownTopicError,
)
from kafka_ordered_ops.processing import Record
from kafka_ordered_ops.relay import AsyncRelayClient, RelayClient
from kafka_ordered_ops.relay.client_calls import Calls, Pause, Reply, Send, _ranges, _requests
from kafka_ordered_ops.relay.http.server import Listening
from tests.support.memory_world import MemoryWorld
from tests.support.relay_server import Running, serving


def records(*offsets: int) -> list[Record]:
    """Records of ``orders``."""
    return [Record("orders", 0, one, one, b"k", b"v%d" % one, (("h", None),)) for one in offsets]


@pytest.fixture
def running() -> Iterator[Running]:
    """A server."""
    with serving(Listening(port=0)) as made:
        yield made


def add(running: Running, *offsets: int) -> None:
    """More to hand out."""
    running.call(lambda: running.service.add(*records(*offsets)))


def offsets_of(running: Running) -> list[int]:
    """What is acknowledged, in this order."""
    return [offset for _, _, offset in running.service.acknowledged]


def leases_of(table: pa.Table) -> list[str]:
    """The leases of a table."""
    return [str(one) for one in table["lease"].unique().to_pylist()]


def finish(running: Running) -> None:
    """From now on, reads say that the window is done."""
    running.service.done = True


def test_read_acknowledge_cancel_extend(running: Running) -> None:
    """The client's records are those of the service, and its calls arrive there."""
    add(running, 1, 2, 3)
    with RelayClient(running.url) as client:
        delivery = client.read("billing", records_max=3)
        [lease] = delivery
        assert delivery.records == records(1, 2, 3)
        assert not delivery.done
        client.acknowledge(lease, offsets=[1, 3])
        assert offsets_of(running) == [1, 3]
        assert client.extend(lease, lease_s=600)[0] > lease.until_ms
        client.cancel(lease)
        assert running.service.cancelled == [lease.token]
        client.acknowledge(lease.token)
        assert offsets_of(running) == [1, 3, 1, 2, 3]
        with pytest.raises(ConfigError, match="one lease"):
            client.acknowledge(lease, lease, offsets=[1])


def test_read_table(running: Running) -> None:
    """A read as Arrow has the lease of every record."""
    add(running, 1, 2)
    with RelayClient(running.url) as client:
        table, done = client.read_table("billing")
        assert (table["offset"].to_pylist(), done) == ([1, 2], False)
        client.acknowledge(*leases_of(table))
        finish(running)
        table, done = client.read_table("billing", wait_s=0)
        assert (table.num_rows, done) == (0, True)
    assert offsets_of(running) == [1, 2]


def test_loop_acknowledges_what_is_done(running: Running) -> None:
    """A record is acknowledged once the next one was asked for; leaving the loop gives back the rest."""
    add(running, *range(6))
    with RelayClient(running.url) as client:
        for record in client.records("billing", records_max=4):
            if record.offset == 2:
                break
        assert offsets_of(running) == [0, 1]
        assert len(running.service.cancelled) == 1
        finish(running)
        assert [one.offset for one in client.records("billing")] == [4, 5]
    assert offsets_of(running) == [0, 1, 4, 5]


def test_loop_that_raises(running: Running) -> None:
    """The record whose processing failed is given back."""
    add(running, 0, 1)
    with RelayClient(running.url) as client:
        loop = client.records("billing")
        next(loop)
        next(loop)
        loop.close()
    assert offsets_of(running) == [0]
    assert len(running.service.cancelled) == 1


def test_loop_extends_its_leases(running: Running) -> None:
    """Records that take long together, but not one by one, stay this client's."""
    add(running, *range(8))
    finish(running)
    extended: list[list[str]] = []
    extend = running.service.extend

    async def noted(tokens: Any, lease_s: float) -> list[int]:
        extended.append(list(tokens))
        return await extend(tokens, lease_s)

    running.service.extend = noted  # type: ignore[method-assign]
    with RelayClient(running.url) as client:
        for _ in client.records("billing", lease_s=1.0):
            time.sleep(0.2)
    assert len(extended) >= 2
    assert offsets_of(running) == list(range(8))


def test_loop_whose_lease_ended(running: Running) -> None:
    """Records that others may have by now are not processed; what was done is acknowledged."""
    add(running, *range(8))

    async def refused(tokens: Any, lease_s: float) -> list[int]:
        finish(running)
        raise LeaseError("the lease has ended")

    running.service.extend = refused  # type: ignore[method-assign]
    with RelayClient(running.url) as client:
        seen = []
        for record in client.records("billing", lease_s=1.0, wait_s=0.1):
            seen.append(record.offset)
            time.sleep(0.2)
    assert seen == offsets_of(running)
    assert len(seen) < 8
    assert running.service.cancelled == []


def test_errors(running: Running) -> None:
    """Each has the class that it has elsewhere in this package."""
    with RelayClient(running.url) as client:
        with pytest.raises(UnknownTopicError, match="nothing"):
            client.read("billing", topics="nothing")
        with pytest.raises(LeaseError):
            client.acknowledge("forged")
        with pytest.raises(ConfigError, match="records_max"):
            client.read("billing", records_max=0)
    for wrong in ([], ["localhost:8642"], "ftp://localhost"):
        with pytest.raises(ConfigError):
            RelayClient(wrong)


def test_token_of_the_environment(
    running: Running, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is an argument or a variable; without one, access is denied."""
    from kafka_ordered_ops.relay.http.access import add_entry, new_token
    from kafka_ordered_ops.relay.rights import Verb

    token, entry = new_token("workers", topics=["*"], groups=["*"], verbs=list(Verb))
    add_entry(tmp_path / "tokens", entry)
    with serving(Listening(port=0, tokens=tmp_path / "tokens")) as guarded:
        with RelayClient(guarded.url) as client, pytest.raises(AccessDeniedError):
            client.read("billing", wait_s=0)
        with RelayClient(guarded.url, token=token) as client:
            client.read("billing", wait_s=0)
        monkeypatch.setenv("KAFKA_ORDERED_OPS_RELAY_TOKEN", token)
        with RelayClient(guarded.url) as client:
            client.read("billing", wait_s=0)


def test_calls_are_repeated_while_a_server_is_not_ready(running: Running) -> None:
    """What goes away is waited for, up to the client's limit."""
    running.service.is_ready = False
    add(running, 1)
    threading.Timer(0.5, setattr, (running.service, "is_ready", True)).start()
    with RelayClient(running.url) as client:
        assert client.read("billing").records == records(1)
    running.service.is_ready = False
    with RelayClient(running.url, timeout_s=0.5) as client:
        began = time.monotonic()
        with pytest.raises(RelayUnavailableError, match="503"):
            client.read("billing")
        assert time.monotonic() - began < 5


def test_server_that_is_down() -> None:
    """Another one answers; without another one, the error says so in time."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        down = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with serving(Listening(port=0)) as running:
            for _ in range(4):
                add(running, 1)
                with RelayClient([down, running.url]) as client:
                    [lease] = client.read("billing")
                    client.acknowledge(lease)
        with (
            RelayClient(down, timeout_s=0.5) as client,
            pytest.raises(RelayUnavailableError, match="no answer"),
        ):
            client.read("billing")


STRANGE = {
    b"<html>please log in</html>": "log in",
    b"": "b''",
    b"null": "null",
    b"{}": "{}",
    b'{"leases":[{"lease":1}],"done":false}': "lease",
    b'{"leases":[],"done":false': "leases",
}


@pytest.mark.parametrize("body", STRANGE)
def test_answers_of_others_than_a_relay(body: bytes) -> None:
    """A proxy, or whoever listens there, answers with 200 and something else: the error shows its beginning."""

    def only(steps: Any) -> None:
        assert isinstance(next(steps), Send)
        steps.send(Reply(200, body))

    calls = Calls("http://a", timeout_s=1)
    plan = SimpleNamespace(to_json=dict)
    for steps in (
        calls.deliver({}, 0.0),
        calls.table({}, 0.0),
        calls.extend(["token"], 5.0),
        calls.window(cast(Any, plan), None),
    ):
        with pytest.raises(RelayError, match="not a relay") as raised:
            only(steps)
        assert STRANGE[body] in str(raised.value)


def test_tokens_as_they_are_pasted(running: Running) -> None:
    """The line break of a file is no part of one; what cannot be one is refused at once, and not shown."""
    with RelayClient(running.url, token="secret\n") as client:
        assert client._http.headers["authorization"] == "Bearer secret"
    for token in ("sec\nret", "sec\u00e9ret", "sec\x00ret"):
        with pytest.raises(ConfigError) as raised:
            RelayClient(running.url, token=token)
        assert "sec" not in str(raised.value)


def test_limits_of_a_token_are_waited_for(running: Running) -> None:
    """A call beyond them is repeated, as one to a server that is not ready; the error names what is too much."""
    running.service.failure = RelayLimitError("the token 'workers' has 5 records")
    add(running, 1)
    threading.Timer(0.3, setattr, (running.service, "failure", None)).start()
    with RelayClient(running.url) as client:
        assert client.read("billing").records == records(1)
    running.service.failure = RelayLimitError("the token 'workers' has 5 records")
    with (
        RelayClient(running.url, timeout_s=0.2) as client,
        pytest.raises(RelayLimitError, match="has 5 records"),
    ):
        client.read("billing")


def test_a_wait_without_an_end(running: Running) -> None:
    """It is refused before anything is sent."""
    with RelayClient(running.url) as client:
        for wait_s in (float("nan"), float("inf")):
            with pytest.raises(ConfigError, match="wait_s"):
                client.read("g", wait_s=wait_s)


def test_records_of_every_server() -> None:
    """A read asks all servers before it waits at one: each hands out other partitions."""
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(Listening(port=0))) for _ in range(3)]
        client = stack.enter_context(RelayClient([one.url for one in servers]))
        for number, server in enumerate(servers):
            add(server, number)
            began = time.monotonic()
            assert client.read("billing", wait_s=20).records == records(number)
            assert time.monotonic() - began < 5
        threading.Timer(0.3, add, (servers[1], 9)).start()
        assert client.read("billing", wait_s=20).records == records(9)
        assert client.read("billing", wait_s=0.2).records == []


@pytest.mark.slow
def test_async_client(running: Running) -> None:
    """It does all that the plain one does, many calls at a time."""

    async def scenario() -> None:
        add(running, *range(20))
        async with AsyncRelayClient(running.url) as client:
            reads = [client.read("billing", records_max=2) for _ in range(5)]
            deliveries = await asyncio.gather(*reads)
            await asyncio.gather(*(client.acknowledge(*one.leases) for one in deliveries))
            assert sorted(offsets_of(running)) == list(range(10))
            [lease] = (await client.read("billing", records_max=1)).leases
            await client.extend(lease)
            await client.cancel(lease)
            table, _ = await client.read_table("billing", records_max=2)
            assert table["offset"].to_pylist() == [11, 12]
            async with aclosing(client.records("billing")) as loop:
                async for record in loop:
                    if record.offset == 15:
                        break
            assert offsets_of(running)[-2:] == [13, 14]
            finish(running)
            assert [one async for one in client.records("billing")] == []
            with pytest.raises(LeaseError):
                await client.acknowledge("forged")

    asyncio.run(scenario())


@given(st.sets(st.integers(0, 40)))
def test_ranges_are_the_offsets(offsets: set[int]) -> None:
    """Half-open, rising, and no two touch."""
    found = _ranges(offsets)
    assert found is not None
    assert {one for start, end in found for one in range(start, end)} == offsets
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


@given(
    leases=st.lists(
        st.tuples(
            st.integers(1, 8_000).map("x".__mul__),
            st.none() | st.integers(1, 3_000).map(lambda n: [[2 * i, 2 * i + 1] for i in range(n)]),
        ),
        max_size=30,
    )
)
def test_requests_fit(leases: Any) -> None:
    """All leases are sent, with all their offsets, in requests that a server takes."""
    sent: list[tuple[str, Any]] = []
    for part in _requests(leases):
        assert len(json.dumps({"leases": part})) < 64 * 1024
        assert len(part) <= 1_000
        sent += [(one["lease"], one.get("offsets")) for one in part]
    joined: list[tuple[str, Any]] = []
    for token, offsets in sent:
        if joined and offsets is not None and joined[-1][0] == token and joined[-1][1]:
            before = joined[-1][1]
            if before[-1][0] < offsets[0][0]:
                joined[-1] = (token, before + offsets)
                continue
        joined.append((token, offsets))
    assert joined == [(token, offsets) for token, offsets in leases] or len(
        {token for token, _ in leases}
    ) < len(leases)


@given(
    replies=st.lists(
        st.sampled_from([503, 502, 408, 429, "lost"]) | st.just(200) | st.sampled_from([400, 500]),
        max_size=12,
    )
)
def test_a_call_is_repeated_exactly_while_that_may_help(replies: list[Any]) -> None:
    """It ends with the first answer that is final, and the servers take turns."""
    calls = Calls(["http://a", "http://b"], timeout_s=1_000)
    steps = calls.call("/v1/read", {})
    answer: Reply | Exception | None = None
    urls, outcome, left = [], None, iter([*replies, 200])
    ends: list[Any] = []
    while outcome is None:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            outcome = end.value.status
        except Exception as error:  # noqa: BLE001 - whatever it raises is its outcome
            outcome = error
        else:
            answer = None
            if isinstance(step, Send):
                urls.append(step.url)
                status = next(left)
                ends.append(status)
                answer = httpx.ReadError("x") if status == "lost" else Reply(status, b"{}")
            else:
                assert isinstance(step, Pause)
                assert 0 < step.seconds <= 2
    final = next(one for one in [*replies, 200] if one in (200, 400, 500))
    assert ends[-1] == final
    assert (outcome == 200) == (final == 200)
    assert all(a != b for a, b in itertools.pairwise(urls))


def test_a_server_that_hangs_delays_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three servers one never answers: it takes a third of the time of many calls, not most of it."""
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    calls = Calls([f"http://{name}" for name in "abc"], timeout_s=60)
    hung_s = 0.0
    while now_s < 1_000:
        steps = calls.read({}, accept="application/json", wait_s=0.0)
        step: Send | Pause = steps.send(None)
        while True:
            answer: Reply | Exception | None = None
            if isinstance(step, Pause):
                now_s += step.seconds
            elif step.url.startswith("http://a"):
                now_s, hung_s = now_s + step.timeout_s, hung_s + step.timeout_s
                answer = TimeoutError()
            else:
                now_s += 0.01
                answer = Reply(200, b'{"leases":[1],"done":false}')
            try:
                step = steps.send(answer)
            except StopIteration:
                break
    assert 0.2 < hung_s / now_s < 0.4


def test_window_and_its_end(running: Running, memory: MemoryWorld) -> None:
    """A plan arrives as it is, and its group is what is read."""
    memory.create("orders")
    memory.write("orders", 0, 1, 2)
    plan = memory.windows().preview(memory.window(10, starting_offsets="earliest"), "w")
    with RelayClient(running.url) as client:
        assert client.window(plan) == plan.window_id
        assert client.window(plan, "mine") == "mine"
    assert running.service.windows == [(plan, None), (plan, "mine")]
