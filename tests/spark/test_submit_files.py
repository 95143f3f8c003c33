"""The files by which a submitter and its job talk: whole, private, and of this run only."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ClientSettings, ConfigError, SinkError
from kafka_ordered_ops.kafka.properties import parse_properties
from kafka_ordered_ops.spark.applications import protocol
from kafka_ordered_ops.spark.applications import submitter as submitter_module
from kafka_ordered_ops.spark.applications.protocol import settings_from_text, settings_to_text
from kafka_ordered_ops.spark.applications.result import JobResult
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.stages import control_of
from tests.support.submit_support import logs, planned, runs

PASSWORD = "hunter-of-secrets-3"


def test_a_result_of_another_run_is_never_taken(
    windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """Whatever differs: run, window, claim, attempt, share, number of windows; nor a damaged one."""
    plan = planned(windows, orders)
    result = JobResult(({"rows": 5},), "app-1")
    result.write(tmp_path, "token", [plan])
    assert JobResult.read(tmp_path, "token", [plan]) == result
    [half, other] = windows.split(plan, 2)
    others = [
        replace(plan, window_id="v"),
        replace(plan, claim_id="c"),
        replace(plan, attempt=plan.attempt + 1),
        half,
    ]
    for one in others:
        with pytest.raises(SinkError, match="was requested"):
            JobResult.read(tmp_path, "token", [one])
    with pytest.raises(SinkError, match="was requested"):
        JobResult.read(tmp_path, "token", [plan, others[0]])
    with pytest.raises(SinkError, match="another run"):
        JobResult.read(tmp_path, "other", [plan])
    result.write(tmp_path, "token", [half])
    assert JobResult.read(tmp_path, "token", [half]) == result
    with pytest.raises(SinkError, match="was requested"):
        JobResult.read(tmp_path, "token", [other])
    for text in ("", "{", "[]", '{"version":2}', '{"version":1,"token":"token","windows":[]}'):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(SinkError, match="is not accepted"):
            JobResult.read(tmp_path, "token", [plan])
    (tmp_path / "result.json").unlink()
    assert JobResult.read(tmp_path, "token", [plan]) is None


@given(conf=st.dictionaries(st.text(min_size=1), st.text(), max_size=4))
def test_any_setting_of_spark_survives_the_file(conf: dict[str, str]) -> None:
    """As Java reads it: the file has its syntax, whatever is in a key or a value."""
    text = submitter_module._properties(conf)
    assert text.isascii()
    # Java's text is UTF-16, and its escapes are halves of a character beyond the first 65,536.
    read = {
        one.encode("utf-16", "surrogatepass").decode("utf-16"): value.encode(
            "utf-16", "surrogatepass"
        ).decode("utf-16")
        for one, value in parse_properties(text).items()
    }
    assert read == conf


def test_the_settings_travel_whole() -> None:
    """Secrets, and what the deployment allows itself, too."""
    given_ = ClientSettings.from_mapping(
        {"bootstrap.servers": "h:1", "sasl.password": PASSWORD, "debug": "all"},
        extra_allowed=["debug"],
    )
    assert settings_from_text(settings_to_text(given_)) == (given_, None)
    options = {"aws_secret_access_key": PASSWORD}
    assert settings_from_text(settings_to_text(given_, options)) == (given_, options)
    assert PASSWORD not in settings_to_text(given_)
    for damaged in ("", "AAAA", "é", "gASVBQAAAAAAAABLAS4="):
        with pytest.raises(ConfigError, match="client settings") as caught:
            settings_from_text(damaged)
        assert PASSWORD not in str(caught.value)


def test_what_a_dead_submitter_left_is_removed_by_the_next(
    windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """Its folder has secrets in it. One that is in use stays, and so do the newest logs."""
    output, plan = tmp_path / "out", planned(windows, orders)
    root = control_of(output) / "submit"
    dead = [root / "other" / f"c-{number}-{uuid.uuid4().hex}" for number in (1, 2)]
    for folder in dead:
        folder.mkdir(parents=True)
        (folder / "settings").write_text(PASSWORD)
    (dead[0] / "alive").touch()
    (root / "_logs").mkdir()
    for number in range(60):
        (root / "_logs" / f"{number}-{uuid.uuid4().hex}.log").touch()
    with (
        protocol.new_place(str(control_of(output)), plan) as place,
        protocol.new_place(str(control_of(output)), plan),
    ):
        assert Path(place.folder).is_dir()
        assert sum(one.startswith(f"{plan.claim_id}-{plan.attempt}-") for one in runs(output)) == 2
        assert not any(folder.exists() for folder in dead)
        assert not (root / "other").exists()
        assert len(logs(output)) < protocol.LOGS_MAX
    assert runs(output) == []


def test_links_in_the_place_of_runs_and_logs_are_not_followed(
    windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """Whatever is behind them stays, and so does what is not called like a run or a log."""
    output, plan = tmp_path / "out", planned(windows, orders)
    root, precious = control_of(output) / "submit", tmp_path / "precious"
    names = [f"c-1-{uuid.uuid4().hex}", f"w-c-1-{uuid.uuid4().hex}.log", "inner"]
    for name in names:
        (precious / name).mkdir(parents=True)
        (precious / name / "file").write_text("precious")
    (root / "mine" / "inner").mkdir(parents=True)
    (root / "x").symlink_to(precious)
    (root / "mine" / names[0]).symlink_to(precious / "inner")
    with protocol.new_place(str(control_of(output)), plan):
        pass
    (root / "_logs").rmdir()
    (root / "_logs").symlink_to(precious)
    with (
        pytest.raises(SinkError, match="it is a link"),
        protocol.new_place(str(control_of(output)), plan),
    ):
        pass
    assert sorted(path.name for path in precious.glob("*/file")) == ["file"] * 3
    assert (root / "mine" / "inner").is_dir()
    assert (root / "x").is_symlink()


@pytest.mark.parametrize("options", [{"key": object()}, {"key": b"bytes"}, {"key": float("nan")}])
def test_options_that_do_not_travel_are_refused(options: dict[str, object]) -> None:
    """They are sent as JSON, and nothing is unpickled; the error shows no value."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": "h:1"})
    with pytest.raises(ConfigError, match="cannot be sent to an application"):
        settings_to_text(settings, options)
