"""`groups list`, `lag` and `doctor`: what there is, how far it is, and what is wrong with what cure."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import AuthorizationError, ConfigError, Earliest, OrderedWindows, Window
from kafka_ordered_ops.cli import doctor, main
from kafka_ordered_ops.core.errors.rights import MissingRight, Resource
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC
from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka import ports
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.cli_support import NOWHERE, Cluster, cli
from tests.support.cli_support import cluster as cluster
from tests.support.hosts_support import GROUP
from tests.support.hosts_support import kafka as kafka
from tests.support.stub_registry import stub_registry
from tests.support.windows_support import at

Captured = pytest.CaptureFixture[str]


def run(capfd: Captured, *words: str, code: int = 0) -> Any:
    """What one command in this process says as JSON."""
    assert main([*words, "--json"]) == code
    return json.loads(capfd.readouterr().out)


def checks(capfd: Captured, *words: str, code: int = 0) -> dict[str, Any]:
    """What `doctor` has found, by name."""
    found = run(capfd, "doctor", *words, code=code)["checks"]
    return {one["name"]: one for one in found}


def plan(kafka: InMemoryKafka, group_id: str, seconds: int, *, commit: bool = False) -> None:
    """A window of a group."""
    with OrderedWindows(kafka.settings, group_id) as windows:
        made = windows.plan(Window(["t"], at(seconds), starting_offsets=Earliest()))
        if commit:
            windows.commit(made)


# --- groups ----------------------------------------------------------------------------------------


def test_all_groups_of_a_ledger_are_listed(kafka: InMemoryKafka, capfd: Captured) -> None:
    """By name, with what each is about; groups with odd names too, and no other ledger's."""
    where = ["groups", "list", "-b", kafka.bootstrap]
    assert run(capfd, *where) == {"ledger_topic": LEDGER_TOPIC, "groups": []}
    names = ["b", "a", 'with "quotes", commas', "ümläute"]
    for name in names:
        plan(kafka, name, 4, commit=name == "b")
    plan(kafka, "b", 8)
    found = {one["group"]: one for one in run(capfd, *where)["groups"]}
    assert list(found) == sorted(names)
    wanted = {"windows": 2, "open_windows": 1, "mode": "catch_up", "topics": ["t"], "error": None}
    assert found["b"] | wanted == found["b"]
    assert found["b"]["newest_cutoff"] == at(8).isoformat().replace("+00:00", "Z")
    assert found["a"]["open_windows"] == 1
    assert run(capfd, *where, "--ledger-topic", "other")["groups"] == []
    assert main(where) == 0
    assert "ümläute" in capfd.readouterr().out


def test_a_damaged_group_hides_no_other(kafka: InMemoryKafka, capfd: Captured) -> None:
    """It is listed by its name, with the error."""
    for name in ("good", "bad"):
        plan(kafka, name, 4)
    [record] = [
        one
        for one in kafka.records(LEDGER_TOPIC)
        if one.key is not None and json.loads(one.key)[:2] == ["bad", "state"]
    ]
    kafka.produce(LEDGER_TOPIC, key=record.key, value=b"{", partition=record.partition)
    found = {
        one["group"]: one for one in run(capfd, "groups", "list", "-b", kafka.bootstrap)["groups"]
    }
    assert found["good"]["windows"] == 1
    assert found["bad"]["error"]
    assert main(["groups", "list", "-b", kafka.bootstrap]) == 0
    assert "unreadable" in capfd.readouterr().out


# --- lag -------------------------------------------------------------------------------------------


def test_lag_counts_what_no_committed_window_has(kafka: InMemoryKafka, capfd: Captured) -> None:
    """An open window's offsets count; those of a topic that is gone cannot be counted, and are named."""
    where = ["lag", "-b", kafka.bootstrap, "-g", GROUP]
    assert "groups list" in run(capfd, *where, code=2)["error"]["message"]
    plan(kafka, GROUP, 4, commit=True)
    plan(kafka, GROUP, 6)
    found = run(capfd, *where)
    assert found["lag"] == 6
    assert [(one["committed"], one["end"], one["lag"]) for one in found["partitions"]] == [
        (2, 5, 3),
        (2, 5, 3),
    ]
    kafka.delete_topic("t")
    assert run(capfd, *where) == {
        "group": GROUP,
        "lag": 0,
        "partitions": [],
        "missing_topics": ["t"],
    }
    assert main(where) == 0
    assert "topic t is gone" in capfd.readouterr().err


def test_lag_of_a_shared_group_counts_parallel_consumers_work(
    kafka: InMemoryKafka, capfd: Captured
) -> None:
    """Its commits, and what is done beyond them."""
    plan(kafka, GROUP, 4, commit=True)
    with OrderedWindows(kafka.settings, GROUP) as windows:
        windows.migrate("parallel-consumer")
    tp = TopicPartition("t", 0)
    kafka.commit(GROUP, {tp: 3}, encode_parallel_consumer_map(3, OffsetSet.of((4, 5))))
    found = run(capfd, "lag", "-b", kafka.bootstrap, "-g", GROUP)
    assert [(one["committed"], one["lag"]) for one in found["partitions"]] == [(3, 1), (2, 3)]


@pytest.mark.long
def test_a_real_cluster_is_looked_at(cluster: Cluster) -> None:
    """The group that a run has made, how far it is behind, and nothing wrong."""
    assert cluster.run(60).code == 0
    [group] = [
        one
        for one in cli("groups", "list", "-b", cluster.bootstrap, "--json").json["groups"]
        if one["group"] == cluster.group_id
    ]
    assert (group["windows"], group["open_windows"]) == (1, 0)
    assert cli("lag", *cluster.where, "--json").json["lag"] == 3
    found = cli("doctor", *cluster.where)
    assert found.code == 0, found.stdout
    named = {line.split()[1]: line.split()[0] for line in found.stdout.splitlines()}
    assert {"connection", "rights", "ledger", "group", "clock", "versions"} <= named.keys()
    assert {named[one] for one in ("connection", "rights", "group", "clock")} == {"ok"}
    elsewhere = cli("doctor", *cluster.where, "--ledger-topic", cluster.topic, "--json")
    assert elsewhere.code == 4
    [ledger] = [one for one in elsewhere.json["checks"] if one["name"] == "ledger"]
    assert (ledger["state"], "64" in ledger["text"]) == ("failed", True)


def test_a_page_shows_what_is_held_first(
    kafka: InMemoryKafka, capfd: Captured, tmp_path: Path
) -> None:
    """Every window of every group is on it, and no name is markup."""
    plan(kafka, "a delivered one", 4, commit=True)
    plan(kafka, "<b>held</b>", 4, commit=True)
    plan(kafka, "<b>held</b>", 8)
    file = tmp_path / "windows.html"
    found = run(capfd, "groups", "report", "-b", kafka.bootstrap, "--output", str(file))
    assert found == {"output": str(file), "groups": 2}
    page = file.read_text()
    assert "<b>" not in page
    states = re.findall(r"<td class=''><a href='#g\d'>(.*?)</a></td>\s*<td.*?>([^<]+)</span>", page)
    assert states == [("&lt;b&gt;held&lt;/b&gt;", "1 open"), ("a delivered one", "all delivered")]
    assert re.findall(r"<td class=''><span class='\w+'>(\w+)", page)[2:] == [
        "planned",
        "committed",
        "committed",
    ]


# --- doctor ----------------------------------------------------------------------------------------


def test_doctor_changes_nothing(kafka: InMemoryKafka, capfd: Captured) -> None:
    """Neither ledger nor group is there afterwards; and a ledger that is missing is no fault."""
    before = kafka.topics()
    found = checks(capfd, "-b", kafka.bootstrap, "-g", GROUP)
    assert kafka.topics() == before
    assert "created by the first plan" in found["ledger"]["text"]
    assert "has not planned" in found["group"]["text"]
    plan(kafka, GROUP, 4)
    assert "1 window open" in checks(capfd, "-b", kafka.bootstrap, "-g", GROUP)["group"]["text"]


def test_doctor_names_windows_that_nobody_works_on(kafka: InMemoryKafka, capfd: Captured) -> None:
    """An open window keeps its records, however green everything else is."""
    with OrderedWindows(kafka.settings, GROUP, clock=lambda: time.time() - 200_000) as windows:
        windows.plan(Window(["t"], at(4), starting_offsets=Earliest()), "forgotten")
    [found] = [
        one
        for one in run(capfd, "doctor", "-b", kafka.bootstrap, "-g", GROUP)["checks"]
        if one["state"] == "warning" and one["name"] == "group"
    ]
    assert "1 open window untouched for long: forgotten (" in found["text"]
    assert found["cure"].endswith(f"windows abandon -b {kafka.bootstrap} -g {GROUP} forgotten")


def test_doctor_names_timestamps_in_another_unit(capfd: Captured) -> None:
    """Of the group's topics; they are not taken for a wrong clock."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("t", 2, {"message.timestamp.after.max.ms": str(2**63 - 1)})
        plan(kafka, GROUP, 4)
        kafka.produce("t", partition=0, timestamp_ms=1_700_000_000)
        where = ["-b", kafka.bootstrap, "-g", GROUP]
        found = checks(capfd, *where)
        assert found["timestamps"]["text"].startswith(
            "t[0]: of the greatest timestamps, 1 of 1 are seconds, and milliseconds are expected"
        )
        kafka.produce("t", partition=0, timestamp_ms=1_700_000_000_000_000)
        found = checks(capfd, *where)
        assert "are microseconds" in found["timestamps"]["text"]
        assert (found["timestamps"]["state"], found["clock"]["state"]) == ("warning", "ok")


@pytest.mark.slow
def test_doctor_asks_the_schema_registry(kafka: InMemoryKafka, capfd: Captured) -> None:
    """If the settings name one; a URL without the path of its API is not taken for a registry without schemas."""
    assert "registry" not in checks(capfd, "-b", kafka.bootstrap)
    with stub_registry() as registry:
        found = checks(capfd, "-b", kafka.bootstrap, "-X", f"schema.registry.url={registry.url}")
        assert found["registry"]["text"] == f"{registry.url} answers"
        for status, words in ((401, "AuthenticationError"), (404, "give the URL of its API")):
            registry.status = status
            where = ["-b", kafka.bootstrap, "-X", f"schema.registry.url={registry.url}"]
            found = checks(capfd, *where, code=4)
            assert found["registry"]["state"] == "failed"
            assert words in found["registry"]["text"]


def test_doctor_names_a_cluster_that_is_away(
    monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    """With a cure; what needs no cluster is looked at all the same."""
    monkeypatch.setattr(doctor, "_TIMEOUT_S", 1.0)
    found = checks(capfd, "-b", NOWHERE, code=4)
    assert found["connection"]["state"] == "failed"
    assert NOWHERE in found["connection"]["cure"]
    assert "ledger" not in found
    assert found["versions"]["state"] == "ok"


_MISSING = {
    MissingRight(("READ",), Resource.GROUP, "g"): (
        "READ on group g",
        ["--operation", "READ", "--group", "g"],
    ),
    MissingRight(("READ", "WRITE"), Resource.TOPIC, "led.ger"): (
        "READ and WRITE on topic led.ger",
        ["--operation", "READ", "--operation", "WRITE", "--topic", "led.ger"],
    ),
    MissingRight(("READ",), Resource.GROUP, "Ann's $group, new"): (
        "READ on group Ann's $group, new",
        ["--operation", "READ", "--group", "Ann's $group, new"],
    ),
    MissingRight(("CREATE",), Resource.TOPIC, "t", condition="which does not exist yet"): (
        "CREATE on topic t, which does not exist yet",
        ["--operation", "CREATE", "--topic", "t"],
    ),
    MissingRight(("WRITE",), Resource.TRANSACTIONAL_ID, "koo.", is_prefix=True): (
        "WRITE on transactional ids that begin with koo.",
        [
            "--operation",
            "WRITE",
            "--transactional-id",
            "koo.",
            "--resource-pattern-type",
            "prefixed",
        ],
    ),
}


def test_every_missing_right_has_kafka_s_own_command(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    """As a shell splits it, whatever is in a group's name."""
    monkeypatch.setattr(doctor, "missing_rights", lambda *_, **__: list(_MISSING))
    found = run(capfd, "doctor", "-b", kafka.bootstrap, code=4)["checks"]
    rights = [one for one in found if one["name"] == "rights"]
    command = (
        f"kafka-acls.sh --bootstrap-server {kafka.bootstrap} --add --allow-principal User:NAME"
    )
    assert [(one["text"], shlex.split(one["cure"])) for one in rights] == [
        (f"missing: {text}", [*command.split(), *words]) for text, words in _MISSING.values()
    ]


def test_a_refusal_of_the_ledger_is_not_reported_twice(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    """The rights that are missing say it all; without them the ledger's own error is shown."""

    def refuse(*_: object) -> None:
        raise AuthorizationError("not authorized to read the ledger")

    monkeypatch.setattr("kafka_ordered_ops.cli.doctor.OrderedWindows.state", refuse)
    assert "not authorized" in checks(capfd, "-b", kafka.bootstrap, code=4)["ledger"]["text"]
    monkeypatch.setattr(doctor, "missing_rights", lambda *_, **__: list(_MISSING))
    assert "ledger" not in checks(capfd, "-b", kafka.bootstrap, code=4)


def test_the_right_to_read_a_group_s_topics_is_asked_about(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    """Of a group that has planned: its topics are known."""
    plan(kafka, GROUP, 4)
    missing = MissingRight(("READ",), Resource.TOPIC, "t")

    def answer(*_: object, about: Any = (), **__: object) -> list[MissingRight]:
        return [missing for state in about if "t" in state.topics]

    monkeypatch.setattr(doctor, "missing_rights", answer)
    found = run(capfd, "doctor", "-b", kafka.bootstrap, "-g", GROUP, code=4)["checks"]
    assert [one["text"] for one in found if one["state"] == "failed"] == [f"missing: {missing}"]


def test_a_refused_topic_does_not_hide_the_other_checks(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    """The missing right is the only failure, with its command; topics that are refused are not looked at."""
    plan(kafka, GROUP, 4)
    monkeypatch.setattr(
        doctor,
        "missing_rights",
        lambda *_, about=(), **__: [MissingRight(("READ",), Resource.TOPIC, "t") for _ in about],
    )
    open_lookup = ports.open_lookup

    def guarded(*arguments: Any, **more: Any) -> Any:
        lookup = open_lookup(*arguments, **more)
        existing = lookup.existing

        def refuse(names: Any) -> Any:
            if "t" in names:
                raise AuthorizationError("not authorized while describing topics (t)")
            return existing(names)

        lookup.existing = refuse  # type: ignore[method-assign]
        return lookup

    monkeypatch.setattr(doctor, "open_lookup", guarded)
    found = run(capfd, "doctor", "-b", kafka.bootstrap, "-g", GROUP, code=4)["checks"]
    failed = [one for one in found if one["state"] == "failed"]
    assert [one["text"] for one in failed] == ["missing: READ on topic t"]
    assert "--operation READ --topic t" in failed[0]["cure"]
    assert {"ledger", "group", "clock"} <= {one["name"] for one in found}


def test_a_clock_behind_the_records_is_named(kafka: InMemoryKafka, capfd: Captured) -> None:
    """Records from the future of this machine mean that somebody's clock is wrong."""
    plan(kafka, GROUP, 4)
    kafka.produce("t", value=b"x", partition=1, timestamp_ms=kafka.now_ms + 1_800_000)
    found = checks(capfd, "-b", kafka.bootstrap, "-g", GROUP)["clock"]
    assert (found["state"], "t[1]" in found["text"]) == ("warning", True)
    assert "NTP" in found["cure"]


def test_a_missing_spark_is_a_warning_with_the_way_out(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    """Windows can be delivered without it."""

    def check(*_: object, **__: object) -> None:
        raise ConfigError("pyspark is not installed")

    monkeypatch.setattr(doctor, "check_session", check)
    found = checks(capfd, "-b", kafka.bootstrap)["spark"]
    assert (found["state"], "--engine local" in found["cure"]) == ("warning", True)
