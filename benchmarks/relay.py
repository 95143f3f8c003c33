"""The comparisons of the relay: one server, real topics, and clients on the same machine."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.backlog import make_backlog, topic_of
from benchmarks.relay_load import Load, percentile
from benchmarks.relay_share import ShareGroup
from benchmarks.values import Comparison, Contender, Outcome, Place, Work

RELAY: Final = "relay"
RELAY_SINGLE: Final = "relay-single"
RELAY_LATENCY: Final = "relay-latency"

RELAY_BATCHES: Final = "relay, batches of 500"
SHARE_GROUP: Final = "share group, batches of 500"
ONE_BY_ONE: Final = "relay, one by one"
SHARE_ONE_BY_ONE: Final = "share group, one by one"

#: Requests a second: half of the goal for single records.
PACE: Final = 1_500
FIRST_RECORD: Final = "first record"
P50: Final = "p50"
P99: Final = "p99"
WORST: Final = "worst"

_BATCH: Final = 500
_BATCH_CLIENTS: Final = 8
#: Below what the server allows from one address.
_CLIENTS: Final = 60
#: Of a run one by one: each record is two requests.
_SINGLE_RECORDS: Final = 20_000
#: While a group's first records are read from the cluster, which is no part of a steady load.
_FILL_S: Final = 3.0
_PACED_S: Final = 20.0
_START_S: Final = 60.0

#: The command. It ends with the end of its input, which is the end of the process that started it.
_PROGRAM: Final = """
import os, sys, threading
from kafka_ordered_ops.cli import main
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
sys.argv[0] = "relay"
sys.exit(main())
"""


def relay_comparisons(records: int) -> tuple[Comparison, ...]:
    """A backlog in batches, beside a share group; and single records, as fast as possible and at a steady pace."""
    prepare = partial(_prepare, records)
    single = min(records // 2, _SINGLE_RECORDS)
    # Half of the requests are reads, and each of both parts has its half of the backlog.
    paced_s = min(_PACED_S, 0.9 * records / PACE)
    return (
        Comparison(
            RELAY,
            (
                Contender(
                    RELAY_BATCHES, records, Served(records, partial(_drain, records, _BATCH))
                ),
                Contender(
                    SHARE_GROUP,
                    records,
                    ShareGroup(topic_of(records), records, _BATCH, _BATCH_CLIENTS),
                ),
            ),
            prepare,
        ),
        Comparison(
            RELAY_SINGLE,
            (
                Contender(ONE_BY_ONE, single, Served(records, partial(_drain, single, 1))),
                Contender(
                    SHARE_ONE_BY_ONE, single, ShareGroup(topic_of(records), single, 1, _CLIENTS)
                ),
            ),
            prepare,
        ),
        Comparison(
            RELAY_LATENCY,
            (
                Contender(
                    ONE_BY_ONE, int(PACE * paced_s), Served(records, partial(_paced, paced_s))
                ),
            ),
            prepare,
        ),
    )


@dataclass(frozen=True)
class Served:
    """Starts a server of the relay; in each run, a new group reads."""

    records: int
    ask: Callable[[int, str], Outcome]

    def start(self, place: Place) -> Work:
        """Starts the server, and waits until it serves."""
        server = subprocess.Popen(
            [
                *(sys.executable, "-c", _PROGRAM, "relay", "serve", topic_of(self.records)),
                *("-b", place.bootstrap, "--bind", "127.0.0.1:0"),
                *("--relay-group", f"bench-{uuid.uuid4().hex}"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if server.stdout is None:
            raise AssertionError("a pipe")
        port = int(server.stdout.readline().rpartition(":")[2])
        _await_ready(port)
        return Work(lambda _: self.ask(port, f"bench-{uuid.uuid4().hex}"))


def _drain(records: int, batch: int, port: int, group: str) -> Outcome:
    load = Load(port, group, batch, _BATCH_CLIENTS if batch > 1 else _CLIENTS)
    first_s = load.first_s()
    return Outcome(
        # The first record is gone already.
        seconds=load.drain(records - 1),
        records=records,
        beyond_s={FIRST_RECORD: first_s},
    )


def _paced(seconds: float, port: int, group: str) -> Outcome:
    load = Load(port, group, 1, _CLIENTS)
    first_s = load.first_s()
    load.pace(PACE, min(_FILL_S, seconds))
    began = time.perf_counter()
    took = load.pace(PACE, seconds)
    return Outcome(
        seconds=time.perf_counter() - began,
        records=len(took),
        beyond_s={
            FIRST_RECORD: first_s,
            P50: percentile(took, 0.5),
            P99: percentile(took, 0.99),
            WORST: took[-1],
        },
    )


def _await_ready(port: int) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_S)
        try:
            connection.request("GET", "/v1/status")
            status = json.load(connection.getresponse())
            # It also takes the log over from the server of the run before.
            if status.get("ready") and all(one["is_mine"] for one in status["partitions"]):
                return
        except ConnectionRefusedError:
            pass  # It listens before it serves.
        finally:
            connection.close()
        time.sleep(0.1)
    raise TimeoutError(f"the server did not serve within {_START_S:g} s")


def _prepare(records: int, place: Place) -> None:
    make_backlog(place.bootstrap, records)
