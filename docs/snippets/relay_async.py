"""Workers of the relay on one event loop: python relay_async.py BOOTSTRAP TOPIC."""

import asyncio
import subprocess
import sys
from contextlib import aclosing

from kafka_ordered_ops.relay import AsyncRelayClient

bootstrap, topic = sys.argv[1:3]
handled = asyncio.Event()


async def charge(record):
    """Charge one order."""
    print(record, record.attempt)
    handled.set()


# [start async]
async def work(client):
    async with aclosing(client.records("billing")) as records:
        async for record in records:
            await charge(record)


async def main(url):
    async with AsyncRelayClient(url) as client, asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(work(client))
            # [end async]


async def until_handled(url):
    """Work until a record is handled: the group itself has no end."""
    working = asyncio.create_task(main(url))
    await asyncio.wait_for(handled.wait(), 60)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


serve = [sys.executable, "-m", "kafka_ordered_ops.cli", "relay", "serve", topic]
with subprocess.Popen(
    [*serve, "-b", bootstrap, "--bind", "127.0.0.1:0"],
    stdout=subprocess.PIPE,
    text=True,
) as server:
    address = server.stdout.readline().strip()
    asyncio.run(until_handled(address))
    server.terminate()
