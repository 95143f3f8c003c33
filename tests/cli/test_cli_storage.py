"""Outputs in an object store through the command line: credentials by option, variable and profile, which nothing shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_ordered_ops import OrderedWindows, stage_window
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.hosts_support import GROUP, asked
from tests.support.hosts_support import kafka as kafka
from tests.support.objects_support import named_rows, staged_names
from tests.support.objects_support import server as server
from tests.support.windows_support import at

pytestmark = pytest.mark.slow

CANARY = "canary-s3cret"


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of profiles; there is none yet."""
    path = tmp_path / "profiles.toml"
    monkeypatch.setenv("KAFKA_ORDERED_OPS_PROFILES", str(path))
    path.write_text("")
    return path


class Commands:
    """Runs commands on a cluster in memory; fails if one of them shows the secret."""

    def __init__(self, kafka: InMemoryKafka, capfd: pytest.CaptureFixture[str]) -> None:
        self._where = ("-b", kafka.bootstrap, "-g", GROUP)
        self._capfd = capfd

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main([*words])
        shown = self._capfd.readouterr()
        assert CANARY not in shown.out + shown.err
        return code, shown.out, shown.err

    def run(self, root: str, *more: str) -> tuple[int, str, str]:
        question = ("-t", "t", "--cutoff", at(60).isoformat(), "--starting-offsets", "earliest")
        job = ("--engine", "local", "--output", root, "--window-id", "w", "--json")
        return self("run", *self._where, *question, *job, *more)

    def windows(self, word: str, *more: str) -> tuple[int, str, str]:
        return self("windows", word, *self._where, *more)


@pytest.fixture
def commands(kafka: InMemoryKafka, capfd: pytest.CaptureFixture[str], profiles: Path) -> Commands:
    """The commands."""
    return Commands(kafka, capfd)


def options_of(server: dict[str, str]) -> list[str]:
    """The options of the store, the secret by the name of a variable."""
    given = {**server, "aws_secret_access_key": "env:LAKE_SECRET"}
    return [word for one in given.items() for word in ("--storage-option", "=".join(one))]


def test_options_and_a_variable_reach_the_store(
    commands: Commands, server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run, again, and replay elsewhere; nothing of them is kept in the ledger."""
    monkeypatch.setenv("LAKE_SECRET", CANARY)
    root = "s3://bucket/cli/options"
    code, out, _ = commands.run(root, *options_of(server))
    assert (code, json.loads(out)["status"]) == (0, "published")
    assert sorted(named_rows(root, server)) == sorted([*range(5)] * 2)
    code, out, _ = commands.run(root, *options_of(server))
    assert (code, json.loads(out)["ran"]) == (0, False)
    again = ("--engine", "local", "--output", f"{root}-again")
    assert commands.windows("replay", "w", *again, *options_of(server))[0] == 0
    assert len(named_rows(f"{root}-again", server)) == 10
    code, out, _ = commands.windows("show", "w", "--json")
    assert "aws_" not in out


def test_a_profile_has_the_options(
    commands: Commands,
    server: dict[str, str],
    profiles: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A secret by its variable; help shows none of them, also if one is written out."""
    given = {**server, "aws_secret_access_key": "env:LAKE_SECRET"}
    lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    profiles.write_text("\n".join(["[lake.storage_options]", *lines]))
    monkeypatch.setenv("LAKE_SECRET", CANARY)
    assert commands.run("s3://bucket/cli/profile", "--profile", "lake")[0] == 0
    profiles.write_text(f'[lake.storage_options]\naws_secret_access_key = "{CANARY}"\n')
    code, out, err = commands("run", "--profile", "lake", "--help")
    assert code == 0
    assert "--storage-option KEY=VALUE" in out + err


@pytest.mark.parametrize(
    "table",
    [f'storage_options = "{CANARY}"', f'storage_options = ["{CANARY}"]', "storage_options.a = 1"],
)
def test_a_profile_with_another_value_is_refused(
    commands: Commands, profiles: Path, table: str
) -> None:
    """The error has the key, and no value."""
    profiles.write_text(f"[lake]\n{table}\n")
    code, out, _ = commands.run("s3://bucket/cli/refused", "--profile", "lake")
    assert code == 2
    assert "storage_options is a table of texts" in json.loads(out)["error"]["message"]


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (CANARY, "number 1 is not KEY=VALUE"),
        (f"={CANARY}", "number 1 is not KEY=VALUE"),
        ("aws_secret_access_key=env:LAKE_SECRET", "environment variable that is not set"),
        (f"aws_secret_acess_key={CANARY}", "'aws_secret_acess_key' is not valid"),
        (f"allow_http={CANARY}", "failed to parse \\*\\*\\*"),
    ],
)
def test_a_wrong_option_is_refused_before_the_plan(
    commands: Commands, kafka: InMemoryKafka, option: str, told: str
) -> None:
    """By a named error without the value."""
    code, out, _ = commands.run("s3://bucket/cli/wrong", "--storage-option", option)
    error = json.loads(out)["error"]
    assert (code, error["type"]) == (2, "ConfigError")
    assert told.replace("\\", "") in error["message"]
    with OrderedWindows(kafka.settings, GROUP) as windows:
        assert windows.list() == []


def test_wrong_credentials_and_folders_are_refused_before_the_plan(
    commands: Commands, kafka: InMemoryKafka, server: dict[str, str], tmp_path: Path
) -> None:
    """A folder has no credentials; a bucket that does not exist is named."""
    code, out, _ = commands.run(str(tmp_path / "out"), "--storage-option", f"token={CANARY}")
    assert (code, "the output is the folder" in out) == (2, True)
    words = [word for one in server.items() for word in ("--storage-option", "=".join(one))]
    code, out, _ = commands.run("s3://nowhere/cli/x", *words, "--debug")
    assert (code, "there is no bucket nowhere" in out) == (2, True)
    with OrderedWindows(kafka.settings, GROUP) as windows:
        assert windows.list() == []


@pytest.mark.parametrize(("verb", "rows"), [("abandon", 0), ("commit", 10)])
def test_a_written_window_is_committed_or_abandoned_by_hand(
    commands: Commands,
    kafka: InMemoryKafka,
    server: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    rows: int,
) -> None:
    """Both commands work with the store, with the same options."""
    monkeypatch.setenv("LAKE_SECRET", CANARY)
    root = f"s3://bucket/cli/{verb}"
    with OrderedWindows(kafka.settings, GROUP) as windows:
        plan = windows.plan(asked(), "w")
        staged = stage_window(plan, kafka.settings, root, storage_options=server)
        windows.mark_written(plan, staged.to_json())
    assert staged_names(root, server)
    assert commands.windows(verb, "w", "--output", root, *options_of(server))[0] == 0
    assert staged_names(root, server) == []
    assert len(named_rows(root, server)) == rows
