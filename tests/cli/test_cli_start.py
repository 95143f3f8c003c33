"""What a user meets first: help, version, completion, defaults, times, and a broker that is away."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, OrderedWindows, __version__
from kafka_ordered_ops.cli import main
from kafka_ordered_ops.cli.app import app
from kafka_ordered_ops.cli.options import times
from kafka_ordered_ops.cli.options.profile import KEYS, variable
from kafka_ordered_ops.cli.show.silence import Silence
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.cli_support import NOWHERE, arguments, cli
from tests.support.hosts_support import GROUP
from tests.support.hosts_support import kafka as kafka
from tests.support.windows_support import at

#: Help needs none of them, and each takes longer to load than all that it needs.
HEAVY = (
    *("numpy", "pyarrow", "confluent_kafka", "pyspark", "matplotlib", "pydantic", "rich.console"),
    *("tomllib", "kafka_ordered_ops.core.window.window", "kafka_ordered_ops.kafka"),
    *("kafka_ordered_ops.windows", "kafka_ordered_ops.delivery", "kafka_ordered_ops.embedded"),
)

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither variables nor profiles of whoever runs the tests."""
    for key in (*KEYS, "profile", "profiles", "storage-option"):
        monkeypatch.delenv(variable(key), raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """The file of profiles, in the folder where it is looked for."""
    path = tmp_path / "config" / "kafka-ordered-ops" / "profiles.toml"
    path.parent.mkdir(parents=True)
    return path


def run(capfd: Captured, *words: str, code: int = 0) -> Any:
    """What one command in this process says as JSON."""
    assert main([*words, "--json"]) == code
    return json.loads(capfd.readouterr().out)


def refused(capfd: Captured, *words: str) -> str:
    """What a command in this process says of its wrong usage."""
    error = run(capfd, *words, code=2)["error"]
    return str(error["message"])


# --- help, version, completion ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "--version",
        "--help",
        "run --help",
        "doctor --help",
        "windows list --help",
        "offsets reset --help",
    ],
)
def test_help_and_version_load_nothing_that_they_do_not_need(words: str) -> None:
    """Loading takes most of a short command's time."""
    program = (
        "import sys; from kafka_ordered_ops.cli import main; code = main(sys.argv[1:]); "
        f"print([one for one in {HEAVY} if one in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words.split()], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"
    assert ("Usage:" in done.stdout) == (words != "--version")


def test_version_is_told(capfd: Captured) -> None:
    """On stdout, with the program's name."""
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"kafka-ordered-ops {__version__}\n"


@pytest.mark.slow
def test_a_shell_completes_commands_and_options() -> None:
    """In words of its own: bash, here."""
    for line, wanted in (("windows ab", "abandon"), ("run --boots", "--bootstrap-server")):
        asked = {
            "_KAFKA_ORDERED_OPS_COMPLETE": "complete_bash",
            "COMP_WORDS": f"kafka-ordered-ops {line}",
            "COMP_CWORD": "2",
        }
        outcome = cli(env=asked)
        assert (outcome.code, wanted in outcome.stdout.split()) == (0, True), outcome
    assert "--install-completion" in cli("--help").stdout


def test_help_begins_with_the_options_that_matter(capfd: Captured) -> None:
    """The others follow in sections of their own, and each stands once."""
    assert main(["run", "--help"]) == 0
    first, *others = capfd.readouterr().out.split("\nOptions:\n")[1].split("\n\n")
    shown = [line.split()[0] for line in first.splitlines() if line.startswith("  -")]
    assert shown[:5] == ["-b,", "-g,", "-t,", "--cutoff", "--since"]
    assert len(shown) <= 12  # with --json and --help
    heads = [section.splitlines()[0] for section in others if section.splitlines()[0][-1] == ":"]
    assert "The cluster:" in heads
    assert len(heads) == len(set(heads))


# --- defaults --------------------------------------------------------------------------------------


def plan(kafka: InMemoryKafka, group_id: str, name: str, **more: Any) -> None:
    """A window of a group."""
    from kafka_ordered_ops import Earliest, Window

    with OrderedWindows(kafka.settings, group_id, **more) as windows:
        windows.plan(Window(["t"], at(60), starting_offsets=Earliest()), name)


def named(found: Any) -> list[str]:
    """The windows of a list."""
    return [one["window_id"] for one in found["windows"]]


def test_an_option_beats_its_variable_and_that_the_profile(
    kafka: InMemoryKafka, profiles: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    """Group by group, from the weakest to the strongest."""
    for name in ("default", "prod", "variable", "option"):
        plan(kafka, name, f"of-{name}")
    tables = (f'["{name}"]\ngroup = "{name}"\n' for name in ("default", "prod"))
    where = f'bootstrap-server = "{kafka.bootstrap}"\n'
    profiles.write_text("".join(table + where for table in tables))
    listed = ["windows", "list"]
    assert named(run(capfd, *listed)) == ["of-default"]
    assert named(run(capfd, *listed, "--profile", "prod")) == ["of-prod"]
    monkeypatch.setenv("KAFKA_ORDERED_OPS_PROFILE", "prod")
    assert named(run(capfd, *listed)) == ["of-prod"]
    monkeypatch.setenv("KAFKA_ORDERED_OPS_GROUP", "variable")
    assert named(run(capfd, *listed)) == ["of-variable"]
    assert named(run(capfd, *listed, "--group", "option")) == ["of-option"]
    other = ["--bootstrap-server", NOWHERE, "-X", "nonsense=1"]
    assert "nonsense" in refused(capfd, *listed, *other)


def test_a_profile_s_files_are_beside_it(
    kafka: InMemoryKafka, profiles: Path, capfd: Captured
) -> None:
    """Its client settings are found from any folder; its output is the command's."""
    (profiles.parent / "client.properties").write_text(f"bootstrap.servers={kafka.bootstrap}")
    profiles.write_text(
        f'[default]\nconfig = "client.properties"\ngroup = "{GROUP}"\noutput = "{profiles.parent}/out"\n'
    )
    question = ["-t", "t", "--cutoff", at(60).isoformat(), "--starting-offsets", "earliest"]
    found = run(capfd, "run", *question, "--engine", "local")
    assert found["records"] == 10
    assert Path(found["output"]).parent == profiles.parent / "out"


WRONG = {
    "no such profile": ('[prod]\ngroup = "g"', ["--profile", "pord"], "it has prod"),
    "a key with a mistake": ('[default]\ngroups = "g"', [], "did you mean group?"),
    "another key": ("[default]\nfoo = 1", [], "it may have bootstrap-server"),
    "a number": ("[default]\ngroup = 5", [], "group is text"),
    "a text": ('[default]\nallow-setting = "debug"', [], "a list of setting names"),
    "no table": ("default = 5", [], "is not a table"),
    "no TOML": ("[default", [], "is not valid TOML"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_profile_is_named(profiles: Path, capfd: Captured, name: str) -> None:
    """With its file, before anything is asked of a cluster."""
    text, words, said = WRONG[name]
    profiles.write_text(text)
    message = refused(capfd, "windows", "list", "-b", NOWHERE, "-g", "g", *words)
    assert said in message
    assert str(profiles) in message


def test_a_named_profile_needs_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    """None is read by default; one that is asked for must be there."""
    asked = ["windows", "list", "-b", NOWHERE, "-g", "g"]
    assert "there is no file" in refused(capfd, *asked, "--profile", "prod")
    monkeypatch.setenv(variable("profiles"), str(tmp_path / "missing.toml"))
    assert "missing.toml" in refused(capfd, *asked)


# --- the ledger and the settings -------------------------------------------------------------------


def test_groups_on_another_ledger_are_managed(kafka: InMemoryKafka, capfd: Captured) -> None:
    """Every command about a group takes the ledger's name, and without it looks at the usual one."""
    plan(kafka, GROUP, "mine", ledger_topic="other-ledger")
    where = ["-b", kafka.bootstrap, "-g", GROUP]
    assert named(run(capfd, "windows", "list", *where)) == []
    there = [*where, "--ledger-topic", "other-ledger"]
    assert named(run(capfd, "windows", "list", *there)) == ["mine"]
    cutoff = ["-t", "t", "--cutoff", at(60).isoformat()]
    found = run(capfd, "live", *there, *cutoff, code=3)
    assert [one["window_id"] for one in found["open_windows"]] == ["mine"]
    assert run(capfd, "windows", "abandon", *there, "mine")["status"] == "abandoned"


def test_a_setting_outside_the_list_is_allowed_by_name(
    kafka: InMemoryKafka, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    """The error names the option."""
    where = ["windows", "list", "-b", kafka.bootstrap, "-g", GROUP, "-X", "plugin.library.paths=x"]
    message = refused(capfd, *where)
    assert "name it in --allow-setting" in message
    assert "extra_allowed" not in message
    assert named(run(capfd, *where, "--allow-setting", "plugin.library.paths")) == []
    monkeypatch.setenv(variable("allow-setting"), "linger.ms plugin.library.paths")
    assert named(run(capfd, *where)) == []


# --- times -----------------------------------------------------------------------------------------

NOW = datetime(2026, 11, 20, 12, 30, 15, tzinfo=UTC)
TODAY = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command began at `NOW`."""
    times._STARTED.set(NOW)


@pytest.mark.usefixtures("at_noon")
@pytest.mark.parametrize(
    ("text", "meant"),
    {
        "now": NOW,
        "today": TODAY,
        "yesterday": TODAY - timedelta(days=1),
        "-1h": NOW - timedelta(hours=1),
        "-1d12h": NOW - timedelta(hours=36),
        "-2w": NOW - timedelta(weeks=2),
        "-90s": NOW - timedelta(seconds=90),
        "-PT10M": NOW - timedelta(minutes=10),
        "2026-11-20": TODAY,
        "2026-11-20T12:00:00+02:00": TODAY + timedelta(hours=10),
    }.items(),
)
def test_times_may_be_relative(text: str, meant: datetime) -> None:
    """To when the command began, and dates to midnight in UTC."""
    assert times.moment(text, what="cutoff") == meant


@pytest.mark.parametrize(
    ("text", "said"),
    {
        "2026-11-20T12:00:00": "write 2026-11-20T12:00:00Z",
        "noon": "such as 2026-11-20T12:00:00Z",
        "1h": "-1h",
        "-1y": "-1h",
        "-P1M": "PT10M",
        "-99999999w": "beyond the calendar",
        "-99999999999999999999w": "longer than any calendar",
        f"-{'9' * 5000}w": "longer than any calendar",
    }.items(),
)
def test_what_is_no_time_is_answered_with_examples(text: str, said: str) -> None:
    """Those of a command line, and none of Python."""
    with pytest.raises(ConfigError) as caught:
        times.moment(text, what="cutoff")
    assert said in str(caught.value)
    assert "tzinfo" not in str(caught.value)


@pytest.mark.usefixtures("at_noon")
@pytest.mark.parametrize(
    ("text", "meant"),
    {
        "earliest": "earliest",
        "offset:5": "offset:5",
        "-1d12h": "-P1DT12H",
        "-PT1H": "-PT1H",
        "today": "2026-11-20T00:00:00+00:00",
        "2026-11-20": "2026-11-20T00:00:00+00:00",
        "nonsense": "nonsense",
    }.items(),
)
def test_bounds_may_be_relative(text: str, meant: str) -> None:
    """Times to when the command began, spans to the cutoff; what is unknown is left to those who know bounds."""
    assert times.bound(text) == meant


def test_every_command_that_asks_a_cluster_takes_the_same_connection() -> None:
    """Its profile, its ledger and its allowed settings too."""
    root: Any = typer.main.get_command(app)
    named = ("windows", "groups", "offsets", "relay")
    groups = [root.commands[name].commands.values() for name in named]
    alone = [one for name, one in root.commands.items() if name not in named]
    without = ("broker", "demo", "decode", "encode", "token")
    for command in itertools.chain(alone, *groups):
        names = {one.name for one in command.params}
        wanted = {"bootstrap", "profile", "config", "setting", "allow_setting", "ledger_topic"}
        assert names & wanted == (set() if command.name in without else wanted)


@given(st.dates())
def test_every_date_is_midnight_in_utc(day: Any) -> None:
    """As ISO 8601 writes it."""
    found = times.moment(day.isoformat(), what="since")
    assert found == datetime(day.year, day.month, day.day, tzinfo=UTC)


def test_relative_times_of_one_command_count_from_one_moment(
    kafka: InMemoryKafka, capfd: Captured
) -> None:
    """An hour that ended now is an hour long."""
    asked = ["preview", "-b", kafka.bootstrap, "-g", GROUP, "-t", "t"]
    found = run(
        capfd, *asked, "--since", "-1h", "--cutoff", "now", "--starting-offsets", "earliest"
    )
    since, cutoff = (datetime.fromisoformat(found[name]) for name in ("since", "cutoff"))
    assert cutoff - since == timedelta(hours=1)


# --- a broker that is away -------------------------------------------------------------------------


def test_what_is_waited_for_is_said_within_three_seconds() -> None:
    """Once, with the broker's address and the reason."""
    said, lines = threading.Event(), list[str]()

    def say(line: str) -> None:
        lines.append(line)
        said.set()

    silence = Silence(say, f"{NOWHERE}, ssl://127.0.0.1:1", "planning")
    assert said.wait(3)
    silence.end()
    [line] = lines
    assert "planning: waiting for a broker at 127.0.0.1:1, ssl://127.0.0.1:1" in line
    assert "Connection refused" in line


@pytest.mark.slow
@pytest.mark.parametrize("waited", [False, True])
def test_brokers_that_refuse_are_waited_for_where_a_time_limit_is_given(
    capfd: Captured, monkeypatch: pytest.MonkeyPatch, waited: bool
) -> None:
    """A check that is to wait waits for the brokers as well; any other command fails soon."""
    monkeypatch.setattr("kafka_ordered_ops.kafka.client.asking.REFUSED_S", 0.3)
    question = ["live", "-b", NOWHERE, "-t", "orders", "--cutoff", at(60).isoformat()]
    began = time.monotonic()
    found = run(capfd, *question, *(["--wait", "--timeout", "PT6S"] if waited else []), code=1)
    took_s = time.monotonic() - began
    assert found["error"]["type"] == "BrokerUnreachableError"
    assert "Connection refused" in found["error"]["message"]
    assert took_s >= 6 if waited else took_s < 25


def test_a_broker_that_takes_connections_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its silence is said as what it is; an answer before that ends the watch."""
    monkeypatch.setattr("kafka_ordered_ops.cli.show.silence._LOOK_S", 0.0)
    monkeypatch.setattr("kafka_ordered_ops.cli.show.silence._NO_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        said, lines = threading.Event(), list[str]()
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def say(line: str) -> None:
            lines.append(line)
            said.set()

        Silence(say, address, "looking")
        assert said.wait(10)
    assert lines == [f"looking: waiting for an answer from the brokers at {address}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("windows", "list", "-g", "g"),
        ("live", "-t", "t", "--cutoff", "today", "--wait"),
        ("preview", "-g", "g", "-t", "t", "--cutoff", "today"),
    ],
)
def test_a_dead_broker_is_not_silence(words: tuple[str, ...]) -> None:
    """The command says what it waits for, and goes on waiting."""
    process = subprocess.Popen(
        arguments(*words, "-b", NOWHERE),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr:
        while f"waiting for a broker at {NOWHERE}" not in (line := process.stderr.readline()):
            assert line, "the command ended in silence"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
