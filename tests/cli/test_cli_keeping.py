"""Adopting, pruning, and what list and show say of such windows, through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops.cli import main
from kafka_ordered_ops.cli.app import app
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic
from tests.support.cli_support import (
    FIRST_WINDOW,
    NOWHERE,
    SECOND_WINDOW,
    Cluster,
    at,
    cli,
    commit_elsewhere,
    values,
)
from tests.support.cli_support import cluster as cluster
from tests.support.windows_support import TIMEOUT_S, wait_until_gone


def facts(cluster: Cluster, window_id: str) -> dict[str, Any]:
    """A window as `windows list` tells it."""
    [found] = [
        one for one in cluster.windows("list").json["windows"] if one["window_id"] == window_id
    ]
    return dict(found)


@pytest.mark.long
def test_progress_that_was_moved_back_is_adopted(cluster: Cluster) -> None:
    """A dry run only tells; then the windows behind are rewound, and the same command delivers them again."""
    cluster.run(60, "--window-id", "first")
    cluster.run(90, "--window-id", "second")
    assert cluster.windows("adopt").json == {
        "group": cluster.group_id,
        "dry_run": False,
        "moved": [],
        "rewound": [],
        "abandoned": [],
    }
    assert "nothing to adopt" in cli("windows", "adopt", *cluster.where).stderr
    commit_elsewhere(cluster.bootstrap, cluster.group_id, cluster.topic, {0: 0, 1: 0})

    would = cluster.windows("adopt", "--dry-run").json
    tp = {"topic": cluster.topic, "cause": "back", "base_after": 0}
    assert would["moved"] == [
        {**tp, "partition": 0, "base_before": 6},
        {**tp, "partition": 1, "base_before": 3},
    ]
    assert sorted(would["rewound"]) == ["first", "second"]
    people = cli("windows", "adopt", *cluster.where, "--dry-run")
    [row] = [line.split() for line in people.stdout.splitlines() if f"{cluster.topic}[0]" in line]
    assert row == [f"{cluster.topic}[0]", "back", "6", "0"]
    assert "2 windows rewound" in people.stderr
    assert "nothing was changed" in people.stderr
    assert facts(cluster, "first")["status"] == "published"

    assert cluster.windows("adopt").json == {**would, "dry_run": False}
    assert {one["status"] for one in cluster.windows("list").json["windows"]} == {"rewound"}
    assert cluster.committed == {0: 0, 1: 0}
    again = cluster.run(60, "--window-id", "first")
    assert (again.json["status"], again.json["ran"]) == ("published", True)
    assert values(again.json["output"]) == FIRST_WINDOW
    assert cluster.windows("adopt").json["moved"] == []


@pytest.mark.long
def test_a_topic_that_was_made_anew_is_adopted(cluster: Cluster, topic: MakeTopic) -> None:
    """The group begins with the new one; open windows of the old one are given up, by name."""
    cluster.run(60)
    cluster.windows("plan", *cluster.question(90), "--window-id", "open")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_topics([cluster.topic])[cluster.topic].result(TIMEOUT_S)
    wait_until_gone(cluster.bootstrap, cluster.topic)
    topic(cluster.topic, partitions=2)
    refused = cluster.run(90)
    assert (refused.code, refused.error["type"]) == (4, "TopicRecreatedError")
    told = cli("windows", "adopt", *cluster.where, "--dry-run").stderr
    assert "1 window abandoned, of a topic that is gone: open" in told
    adopted = cluster.windows("adopt").json
    tp = {"topic": cluster.topic, "cause": "recreated", "base_after": 0}
    assert adopted["moved"] == [
        {**tp, "partition": 0, "base_before": 3},
        {**tp, "partition": 1, "base_before": 2},
    ]
    assert adopted["abandoned"] == ["open"]
    assert cluster.run(90).json["content"] == "empty"


@pytest.mark.slow
def test_a_group_without_windows_has_nothing_to_adopt_or_prune(cluster: Cluster) -> None:
    """No state is a mistake of the group's name for adopt, and nothing to do for the others."""
    unknown = cluster.windows("adopt")
    assert (unknown.code, unknown.error["type"]) == (4, "UnknownWindowError")
    nothing = {"group": cluster.group_id, "forgotten": False, "windows": []}
    assert cluster.windows("prune", "--older-than", "PT0S").json == nothing
    assert cluster.windows("gaps").json["gaps"] == []


@pytest.mark.long
def test_old_windows_are_pruned_to_stubs(cluster: Cluster) -> None:
    """A stub has the counts and no ranges, its id stays known as done, and progress does not move."""
    cluster.run(60, "--window-id", "old")
    cluster.windows("plan", *cluster.question(90), "--window-id", "open")
    before = facts(cluster, "old")
    assert cluster.windows("prune", "--older-than", "P1D").json["windows"] == []
    pruned = cluster.windows("prune", "--older-than", "PT0S").json
    assert pruned == {"group": cluster.group_id, "forgotten": False, "windows": ["old"]}
    assert facts(cluster, "old") == {**before, "pruned": True, "records": None}
    assert (before["pruned"], before["offsets"]) == (False, len(FIRST_WINDOW))
    shown = cluster.windows("show", "old").json
    assert (shown["offsets"], shown["partitions"], shown["result"]) == (6, [], None)
    people = cli("windows", "show", *cluster.where, "old")
    assert "6 offsets, 0 lost" in people.stdout
    assert "published (pruned)" in cli("windows", "list", *cluster.where).stdout

    refused = cluster.run(60, "--window-id", "old")
    assert (refused.code, refused.error["type"]) == (4, "WindowPrunedError")
    assert cluster.committed == {0: 3, 1: 2}
    assert values(cluster.run(90, "--window-id", "open").json["output"]) == SECOND_WINDOW


@pytest.mark.long
def test_forgotten_windows_leave_nothing(cluster: Cluster) -> None:
    """--forget takes stubs as well; the group's progress still knows what was taken."""
    cluster.run(60, "--window-id", "old")
    cluster.windows("prune", "--older-than", "PT0S")
    told = cli("windows", "prune", *cluster.where, "--older-than", "PT0S", "--forget")
    assert f"1 window of group {cluster.group_id} forgotten" in told.stderr
    assert cluster.windows("list").json["windows"] == []
    assert cluster.run(60, "--window-id", "old").json["content"] == "covered"


@pytest.mark.long
def test_a_split_window_tells_which_parts_have_reported(cluster: Cluster) -> None:
    """List and show count them; a commit before the last one is an error worth a retry."""
    cluster.windows("plan", *cluster.question(60), "--window-id", "split")
    assert facts(cluster, "split")["parts"] is None
    with OrderedWindows({"bootstrap.servers": cluster.bootstrap}, cluster.group_id) as windows:
        plan = windows.show("split").plan
        parts = windows.split(plan, 3)
        windows.report(parts[1], {"rows": 2})
        expected = {"count": 3, "reported": 1, "missing": [0, 2]}
        assert facts(cluster, "split")["parts"] == expected
        assert cluster.windows("show", "split").json["parts"] == expected
        listed, shown = (
            cli("windows", "list", *cluster.where),
            cli("windows", "show", *cluster.where, "split"),
        )
        assert "1/3" in listed.stdout
        assert "1/3 reported" in shown.stdout
        early = cluster.windows("commit", "split")
        assert (early.code, early.error["type"]) == (1, "PartsMissingError")
        assert early.error["facts"]["missing"] == [0, 2]
        for part in (parts[0], parts[2]):
            windows.report(part, {"rows": 2})
    assert facts(cluster, "split")["status"] == "written"
    assert cluster.windows("commit", "split").json["status"] == "committed"


@pytest.mark.long
def test_an_open_window_tells_how_many_offsets_are_processed(cluster: Cluster) -> None:
    """Show counts them while the window is open, and says nothing where none were recorded."""
    cluster.windows("plan", *cluster.question(60), "--window-id", "noon")
    assert cluster.windows("show", "noon").json["processed"] is None
    assert "\nprocessed " not in cli("windows", "show", *cluster.where, "noon").stdout
    with OrderedWindows({"bootstrap.servers": cluster.bootstrap}, cluster.group_id) as windows:
        plan = windows.show("noon").plan
        tp, taken = next(iter(plan.taken.items()))
        windows.mark_processed(plan, {tp: OffsetSet.of((taken.first, taken.first + 1))})
        assert cluster.windows("show", "noon").json["processed"] == 1
        people = cli("windows", "show", *cluster.where, "noon")
        assert f"1/{plan.offsets} offsets" in people.stdout
        windows.commit(plan)
    assert cluster.windows("show", "noon").json["processed"] is None


@pytest.mark.long
def test_the_age_of_a_claim_begins_anew_when_it_is_taken_up(cluster: Cluster) -> None:
    """A window that an attempt has just touched is not stale, however long ago it was planned."""
    cluster.windows("plan", *cluster.question(60), "--window-id", "noon")
    new = facts(cluster, "noon")
    assert new["untouched_seconds"] == new["open_seconds"] > 0
    cluster.windows("plan", *cluster.question(60), "--window-id", "noon")
    assert cluster.windows("list", "--open").json["windows"][0]["attempt"] == 2
    again = facts(cluster, "noon")
    assert 0 < again["untouched_seconds"] < again["open_seconds"]
    shown = cli("windows", "show", *cluster.where, "noon").stdout
    assert "untouched for" in shown
    done = cluster.windows("commit", "noon").json
    assert (done["untouched_seconds"], done["open_seconds"]) == (None, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("prune",), "--older-than", id="no-age"),
        pytest.param(("prune", "--older-than", "90d"), "older than '90d'", id="age"),
        pytest.param(("prune", "--older-than", "P1M"), "P1D", id="a-month"),
        pytest.param(("gaps", "--cutoff", at(0)), "--cutoff", id="gaps"),
        pytest.param(("adopt", "--forget"), "--forget", id="adopt"),
    ],
)
def test_wrong_keeping_exits_2(
    words: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is wrong is named before anything is touched: no broker answers at this address."""
    assert main(["windows", *words, "-b", NOWHERE, "-g", "g", "--json"]) == 2
    captured = capfd.readouterr()
    assert said in json.loads(captured.out)["error"]["message"]
    assert "Traceback" not in captured.err


@pytest.mark.slow
def test_every_command_about_a_group_has_an_example_that_works(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example in a help text is understood: it gets as far as asking where the broker is."""
    root: Any = typer.main.get_command(app)
    groups = {name for name, one in root.commands.items() if hasattr(one, "commands")}
    commands = [
        *(
            (f"{group} {name}", one)
            for group in groups
            for name, one in root.commands[group].commands.items()
        ),
        *((name, one) for name, one in root.commands.items() if name not in groups),
    ]
    examples = [
        (name, line.split()[1:])
        for name, command in commands
        for line in (command.epilog or "").splitlines()
        if line.strip().startswith("kafka-ordered-ops ")
    ]
    missing = {name for name, _ in commands} - {name for name, _ in examples} - {"demo"}
    assert missing == set()
    (tmp_path / "job.py").touch()
    monkeypatch.chdir(tmp_path)
    for _, words in examples:
        if words[0] == "broker":
            continue
        if words[0] == "offsets" and words[1] in ("decode", "encode"):
            # They need no broker.
            assert main([word.strip("'") for word in words]) == 0
            continue
        if words[:2] == ["relay", "token"]:
            # It writes a file.
            assert main([word.strip("'") for word in words]) == 0
            continue
        if words[0] == "clean":
            # It asks a broker only where a group is named.
            words[1] = str(tmp_path / "orders")
            if "-g" not in words:
                assert main(words) == 0
                continue
        # Without a broker's address nothing is asked of any cluster.
        bare = [
            word.strip("'")
            for at_, word in enumerate(words)
            if word not in ("-b", "--config") and words[at_ - 1] not in ("-b", "--config")
        ]
        if bare[0] == "offsets" and bare[1] in ("reset", "migrate"):
            # Without a terminal, no confirmation is possible.
            bare = [*(word for word in bare if word != "--dry-run"), "--yes"]
        assert main(bare) == 2
        assert "no brokers: give" in capfd.readouterr().err, bare
