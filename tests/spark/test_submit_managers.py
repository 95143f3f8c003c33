"""What spark-submit is run with for YARN and Kubernetes: the commands in `docs/submit.md`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_ordered_ops.spark import SparkSubmit
from kafka_ordered_ops.spark.applications import submitter
from kafka_ordered_ops.spark.applications.protocol import SECRET_KEY, new_place, settings_to_text
from kafka_ordered_ops.windows import ClientSettings
from tests.support.spark_support import plan_of

API = "k8s://https://kubernetes.example:6443"
SECRET = settings_to_text(
    ClientSettings.from_mapping({"bootstrap.servers": "h:1", "sasl.password": "hunter-2"})
)

#: By name: how it is run, the options that spark-submit gets, and the settings in its file.
_MANAGERS = {
    "yarn": (
        SparkSubmit(
            master="yarn",
            archives=["env.tar.gz#environment"],
            py_files=["helper.py", "more.zip"],
            conf={
                "spark.pyspark.python": "./environment/bin/python",
                "spark.executor.instances": "4",
            },
        ),
        "--archives env.tar.gz#environment --py-files helper.py,more.zip",
    ),
    "kubernetes": (
        SparkSubmit(
            master=API,
            conf={
                "spark.kubernetes.container.image": "registry.example/spark-orders:1.0",
                "spark.kubernetes.namespace": "lake",
                "spark.pyspark.python": "/opt/env/bin/python",
            },
        ),
        "",
    ),
}


@pytest.mark.parametrize("mode", ["client", "cluster"])
@pytest.mark.parametrize("manager", _MANAGERS)
def test_a_cluster_manager_gets_what_was_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    manager: str,
    mode: str,
) -> None:
    """Options as options, settings in the file, the driver's mode named, the application last, and no secret in the list."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    given, options = _MANAGERS[manager]
    how = SparkSubmit(**{**vars(given), "deploy_mode": mode})
    with new_place(str(tmp_path / "out"), plan := plan_of([])) as place:
        words = submitter.command_of(
            place, "/jobs/job.py", ["--country", "DE"], SECRET, [plan], how
        )
        settings = dict(
            line.split("=", 1)
            for line in Path(words[words.index("--properties-file") + 1]).read_text().splitlines()
        )
        line = " ".join(words)
        assert f" --master {how.master} --deploy-mode {mode} " in line
        assert all(one in words for one in options.split())
        assert words[-3:] == ["/jobs/job.py", "--country", "DE"]
        assert SECRET not in line
        for key, value in how.conf.items():
            assert settings[key] == submitter._escaped(value)
        # An interpreter of this machine would not be there.
        assert "PYSPARK_PYTHON" not in how.variables()
        assert (SECRET_KEY in settings) is (mode == "cluster")
    # There everybody who may read config maps sees it.
    assert ("ConfigMap" in caplog.text) is ((manager, mode) == ("kubernetes", "cluster"))
