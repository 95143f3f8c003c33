"""What commands do when others stand in their way: covered windows, open claims, other definitions, foreign commits."""

from __future__ import annotations

import json

import pytest

from kafka_ordered_ops.cli import main
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
    visible,
)
from tests.support.cli_support import cluster as cluster


@pytest.mark.long
def test_a_covered_window_is_skipped_refused_or_replaced(cluster: Cluster) -> None:
    """--on-covered: nothing, an error that retrying cannot cure, or the window that holds the records."""
    first = cluster.run(60, "--window-id", "first").json
    refused = cluster.run(60, "--window-id", "second", "--on-covered", "fail")
    assert (refused.code, refused.error["type"]) == (4, "WindowCoveredError")
    assert refused.error["facts"] == {"window_id": "second"}
    replayed = cluster.run(60, "--window-id", "second", "--on-covered", "replay")
    assert replayed.json == {**first, "attempt": replayed.json["attempt"]}
    plan = (*cluster.where, *cluster.question(60), "--window-id", "second")
    told = cli("windows", "plan", *plan, "--on-covered", "replay")
    assert "window second is covered: window first holds its records" in told.stderr
    assert len(visible(cluster.output)) == 1
    skipped = cluster.run(60, "--window-id", "second")
    assert (skipped.json["window_id"], skipped.json["content"]) == ("second", "covered")


@pytest.mark.slow
def test_a_window_committed_by_hand_is_read_in_place_of_a_covered_one(cluster: Cluster) -> None:
    """Its records get into the folder that is asked for, under its own name, and the note says whose they are."""
    cluster.windows("plan", *cluster.question(60), "--window-id", "by-hand")
    cluster.windows("commit", "by-hand")
    words = (*cluster.where, *cluster.question(60), *cluster.sink(), "--window-id", "mine")
    told = cli("run", *words, "--on-covered", "replay")
    assert told.code == 0, told.stderr
    assert "window mine is covered: window by-hand holds its records" in told.stderr
    [folder] = visible(cluster.output)
    assert values(cluster.output / folder) == FIRST_WINDOW


@pytest.mark.long
def test_open_windows_are_stepped_around_refused_or_waited_for(cluster: Cluster) -> None:
    """--on-open-claim: what may come free is an error worth a retry, at once or after a wait."""
    cluster.windows("plan", *cluster.question(60), "--window-id", "noon")
    for policy in (("fail",), ("wait", "--claim-wait", "PT0S")):
        refused = cluster.run(90, "--on-open-claim", *policy)
        assert (refused.code, refused.error["type"]) == (1, "OpenClaimError")
        assert refused.error["facts"]["open_windows"] == ["noon"]
        assert ("after PT0S" in refused.error["message"]) == (policy[0] == "wait")
    around = cluster.run(90)
    assert values(around.json["output"]) == SECOND_WINDOW
    assert around.json["stepped_around"] == ["noon"]


@pytest.mark.long
def test_only_a_claim_older_than_its_age_is_taken_over(cluster: Cluster) -> None:
    """By default an hour-old claim is young; with --claim-age it is abandoned, and that is told."""
    cluster.windows("plan", *cluster.question(60), "--window-id", "noon")
    young = cluster.windows(
        "plan", *cluster.question(75), "--window-id", "a", "--on-open-claim", "take_over"
    )
    assert young.json["stepped_around"] == ["noon"]
    cluster.windows("commit", "a")
    old = ("--on-open-claim", "take_over", "--claim-age", "PT0.001S")
    taken = cluster.run(90, *old)
    assert values(taken.json["output"]) == [*FIRST_WINDOW, 80]
    assert "abandoned window noon" in taken.json["notes"][0]
    assert cluster.windows("show", "noon").json["status"] == "abandoned"


@pytest.mark.long
def test_what_a_group_is_about_changes_only_when_that_is_said(
    cluster: Cluster, topic: MakeTopic
) -> None:
    """Another mode, isolation or topic is refused, and the error names the way: --redefine."""
    cluster.run(60)
    refused = cluster.run(90, "--since", at(60))
    assert (refused.code, refused.error["type"]) == (4, "GroupMismatchError")
    assert refused.error["facts"]["differences"] == {"mode": ["catch_up", "interval"]}
    assert "--redefine" in refused.error["message"]
    other = ("-t", topic(), "--isolation", "read_uncommitted")
    twice = cluster.windows("plan", *cluster.question(90), *other)
    assert set(twice.error["facts"]["differences"]) == {"isolation", "topics"}
    declared = cluster.run(90, "--since", at(60), "--redefine")
    assert values(declared.json["output"]) == SECOND_WINDOW
    later = cluster.windows("plan", *cluster.question(100))
    assert later.error["facts"]["differences"] == {"mode": ["interval", "catch_up"]}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("run", marks=pytest.mark.slow),
        *(pytest.param(one, marks=pytest.mark.long) for one in ("plan", "commit", "sweep")),
    ],
)
def test_a_foreign_commit_stops_a_command_unless_it_is_adopted(
    cluster: Cluster, command: str
) -> None:
    """Somebody moved the group ahead: an error that names the offsets, or progress from there."""
    cluster.windows("plan", *cluster.question(60), "--window-id", "noon")
    if command != "commit":
        cluster.windows("commit", "noon")
    # The 80 of partition 0 is left, and nothing of partition 1.
    commit_elsewhere(cluster.bootstrap, cluster.group_id, cluster.topic, {0: 5, 1: 3})
    question = ("-t", cluster.topic, "--cutoff", at(90))
    words = {
        "run": ("run", *cluster.where, *question, *cluster.sink()),
        "plan": ("windows", "plan", *cluster.where, *question),
        "commit": ("windows", "commit", *cluster.where, "noon"),
        "sweep": ("windows", "sweep", *cluster.where, *question, *cluster.sink()),
    }[command]
    refused = cli(*words, "--json")
    assert (refused.code, refused.error["type"]) == (4, "ForeignCommitError")
    moved = {f"{cluster.topic}[0]": 5, f"{cluster.topic}[1]": 3}
    assert {tp: found for tp, (_, found) in refused.error["facts"]["moved"].items()} == moved
    if command == "commit":  # A commit has no policy: its plan has.
        return
    adopted = cli(*words, "--json", "--on-foreign-commit", "adopt")
    assert adopted.code == 0, adopted.stderr
    if command in ("run", "sweep"):
        assert values(adopted.json["output"]) == [80]
    assert cluster.committed == {0: 6 if command in ("run", "sweep") else 5, 1: 3}


_PLAN = ("windows", "plan", "-b", NOWHERE, "-g", "g", "-t", "t", "--cutoff", at(0))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param((*_PLAN, "--claim-age", "P1D"), "take_over", id="age-without-take-over"),
        pytest.param((*_PLAN, "--claim-wait", "P1D"), "step_around", id="wait-without-wait"),
        pytest.param(
            (*_PLAN, "--on-open-claim", "wait", "--claim-age", "P1D"), "--claim-age P1D", id="age"
        ),
        pytest.param(
            (*_PLAN, "--on-open-claim", "take_over", "--claim-age", "1d"), "claim age '1d'", id="1d"
        ),
        pytest.param(
            (*_PLAN, "--on-open-claim", "take_over", "--claim-age", "PT0S"),
            "claim_age",
            id="no-age",
        ),
        pytest.param((*_PLAN, "--on-open-claim", "shrug"), "step_around", id="on-open-claim"),
        pytest.param((*_PLAN, "--on-covered", "shrug"), "replay", id="on-covered"),
        pytest.param((*_PLAN, "--on-foreign-commit", "shrug"), "adopt", id="on-foreign-commit"),
        pytest.param(
            ("windows", "list", "-b", NOWHERE, "-g", "g", "--on-foreign-commit", "adopt"),
            "--on-foreign-commit",
            id="list-commits-nothing",
        ),
    ],
)
def test_wrong_policies_exit_2(
    words: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is wrong is named before anything is touched: no broker answers at this address."""
    assert main([*words, "--json"]) == 2
    captured = capfd.readouterr()
    assert said in json.loads(captured.out)["error"]["message"]
    assert "Traceback" not in captured.err
