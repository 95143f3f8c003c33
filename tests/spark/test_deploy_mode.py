"""Cluster mode is asked for by `deploy_mode`; whatever else asks for it is refused, and never ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.spark import SparkSubmit
from kafka_ordered_ops.spark.session import local_session
from kafka_ordered_ops.spec.deploy_mode import DeployMode

KEY = "spark.submit.deployMode"


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark without settings, and an environment that says nothing of it."""
    for name in ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "DEPLOY_MODE"):
        monkeypatch.delenv(name, raising=False)
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.touch(mode=0o755)
    (tmp_path / "conf").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("value", ["cluster", "Cluster", " CLUSTER "])
def test_settings_that_name_another_mode_are_refused(value: str) -> None:
    """At once, with what to say in its place; the same mode twice is one."""
    for mode in (None, DeployMode.CLIENT):
        with pytest.raises(ConfigError, match=r"deploy_mode='cluster'"):
            SparkSubmit(master="yarn", deploy_mode=mode, conf={KEY: value})
    how = SparkSubmit(master="yarn", deploy_mode=DeployMode.CLUSTER, conf={KEY: value})
    assert how.options()[:4] == ["--master", "yarn", "--deploy-mode", "cluster"]
    with pytest.raises(ConfigError, match="has no effect"):
        SparkSubmit(master="yarn", deploy_mode=DeployMode.CLUSTER, conf={KEY: "client"})
    assert SparkSubmit(conf={KEY: "client"}).options() == ["--deploy-mode", "client"]


@pytest.mark.parametrize("as_setting", [False, True])
@pytest.mark.parametrize(
    ("master", "mode", "words"),
    [
        ("yarn-cluster", None, r"master='yarn' and deploy_mode='cluster'"),
        ("yarn-client", None, r"master='yarn' and deploy_mode='client'"),
        ("local[2]", DeployMode.CLUSTER, "has no cluster"),
        ("spark://h:7077", DeployMode.CLUSTER, "standalone"),
    ],
)
def test_masters_without_such_a_mode_are_refused(
    master: str, mode: DeployMode | None, words: str, *, as_setting: bool
) -> None:
    """Given as the master or as a setting."""
    conf = {"spark.master": master} if as_setting else {}
    with pytest.raises(ConfigError, match=words):
        SparkSubmit(deploy_mode=mode, master=None if as_setting else master, conf=conf)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEPLOY_MODE", "cluster"),
        ("PYSPARK_SUBMIT_ARGS", "--master yarn --deploy-mode cluster pyspark-shell"),
        ("PYSPARK_SUBMIT_ARGS", "--deploy-mode=cluster pyspark-shell"),
        ("PYSPARK_SUBMIT_ARGS", f"--conf {KEY}=cluster pyspark-shell"),
        ("SPARK_SUBMIT_OPTS", f"-Xmx1g -D{KEY}=cluster"),
    ],
)
def test_an_environment_that_asks_for_cluster_mode_is_refused(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Before anything starts, unless the caller says which mode it is."""
    assert SparkSubmit().command == str(spark_home / "bin" / "spark-submit")
    with pytest.raises(ConfigError, match=f"the variable {name} asks"):
        _ = SparkSubmit(environment={name: value}).command
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"the variable {name} asks"):
        _ = SparkSubmit().command
    for mode in DeployMode:
        assert SparkSubmit(master="yarn", deploy_mode=mode).command
    monkeypatch.setenv(name, value.replace("cluster", "client"))
    assert SparkSubmit().command


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        (f"{KEY} cluster\n", True),
        (f"spark.master=yarn\n  {KEY}=cluster", True),
        (f"{KEY}: cluster\n", True),
        (f"{KEY}\tclient\n{KEY}\tcluster\n", True),
        (f"{KEY} cluster\n{KEY} client\n", False),
        (f"# {KEY} cluster\n", False),
        (f"{KEY}s cluster\n", False),
        ("", False),
    ],
)
def test_defaults_that_ask_for_cluster_mode_are_refused(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, *, refused: bool
) -> None:
    """Those of Spark's folder, or of the folder that a variable names."""
    elsewhere = tmp_path / "etc"
    elsewhere.mkdir()
    for folder in (spark_home / "conf", elsewhere):
        (folder / "spark-defaults.conf").write_text(text)
        if refused:
            with pytest.raises(ConfigError, match=f"{folder}/spark-defaults.conf asks"):
                _ = SparkSubmit().command
        assert SparkSubmit(deploy_mode=DeployMode.CLIENT).command
        monkeypatch.setenv("SPARK_CONF_DIR", str(elsewhere))
    if not refused:
        assert SparkSubmit().command


@pytest.mark.parametrize(
    ("conf", "variables", "words"),
    [
        ({KEY: "cluster"}, {}, "the setting"),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--deploy-mode cluster pyspark-shell"}, "PYSPARK_SUBMIT_ARGS"),
    ],
)
def test_a_session_in_this_process_has_its_driver_here(
    monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], variables: dict[str, str], words: str
) -> None:
    """Refused before Java starts, which would only say that it did not."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=rf"{words}.*this process"):
        local_session("test", conf=conf)
