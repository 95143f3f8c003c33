"""``read`` from a real broker: what is left out, where partitions begin, and what is done about lost records."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops.cli import main
from tests.conftest import MakeTopic, Produce
from tests.support.windows_support import BASE_MS


def offsets(capfd: pytest.CaptureFixture[str], *arguments: str) -> list[tuple[str, int]]:
    """Topics and offsets of what a command prints."""
    assert main(["read", *arguments, "--format", "jsonl"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    return [(row["topic"], row["offset"]) for row in rows]


@pytest.mark.slow
def test_excluded_topics_starts_of_partitions_and_lost_records(
    bootstrap: str, topic: MakeTopic, produce: Produce, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on the model."""
    orders, other = topic(), topic()
    for name in (orders, other):
        produce((name, 0, None, b"x", BASE_MS + second * 1000, ()) for second in range(6))
    both = ("-b", bootstrap, f"^({orders}|{other})")
    assert offsets(capfd, *both, "--exclude", other) == [(orders, n) for n in range(6)]
    assert offsets(capfd, "-b", bootstrap, orders, "--from", f"{orders}[0]=4") == [
        (orders, 4),
        (orders, 5),
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(orders, 0, 3)]).values():
        future.result(30)
    lost = ("-b", bootstrap, orders, "--from", f"{orders}[0]=1")
    assert offsets(capfd, *lost, "--on-data-loss", "earliest") == [(orders, n) for n in (3, 4, 5)]
    assert main(["read", *lost]) == 4
    assert "RecordsLostError" in capfd.readouterr().err
